"""The fast path from a change to its record, for nearly all changes: a whole row whose key has stayed the same.

The compiled fast path takes deletes too, whose record a tombstone follows. `EventWriter` asks the fast path of the
change's table first, and writes itself what the fast path declines: its full path is the oracle in tests. A fast path
declines a change before it has done anything about it, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.row_codegen import compiled
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import Change, Coordinates, Op, Row, Table, Transaction
from cdc.model.interfaces import Headers

Made: TypeAlias = tuple[bytes, bytes] | tuple[bytes, bytes | None, Headers]
"""Key and value of a record; of a flat one also the headers, and of a delete then no value."""

FastPath: TypeAlias = Callable[[Change, Frame], Made | None]
"""Makes a change's only record, or a delete's first, whose tombstone follows; None: it declines the change."""

Write: TypeAlias = Callable[[str, bytes, bytes | None], None]
"""A sink's `write`: topic, key, value."""

ReadFastPath: TypeAlias = Callable[[Sequence[Row], int, Frame, Coordinates], int]
"""Writes a snapshot's rows from a number on, up to the first that it declines, and returns that row's number.

If it has written all, it returns how many rows there are.
"""


class BatchFastPath(Protocol):
    """Writes transactions of which every change takes its table's fast path."""

    def __call__(
        self, transactions: list[Transaction], begin: int, epoch: int, made_at_ms: int, logged: str, /
    ) -> tuple[int, int]:
        """Return how many transactions from `begin` on were written, and their events; none is written in part.

        A change in the topic `logged`, whose keys are noted, is declined.
        """


_NULL: Final = b"null"
_CODES: Final = {Op.CREATE: b"c", Op.UPDATE: b"u"}


def fast_path(encoder: TableEncoder, stored: Callable[[Row], int] | None, limit: int) -> FastPath:
    """Make the fast path of the changes of one version of one table.

    `stored` bounds the bytes that a row takes in the source. From `limit` on its values may be stored out of line and
    must be kept (`cdc.encode.topic_contents.toast`), so such a row is declined.
    """
    if encoder.wire is not None and encoder.wire.compiled is None:
        return _decline
    if compiled is not None:
        return cast("FastPath", compiled.Way(encoder, stored, limit))
    if encoder.flat is not None:
        return _decline
    write_key, write_row = encoder.write_key, encoder.write_row

    def fast(change: Change, frame: Frame) -> tuple[bytes, bytes] | None:
        op, _, before, after, lsn = change
        code = _CODES.get(op)
        if code is None or after is None:
            return None
        try:
            if stored is not None and stored(after) >= limit:
                return None
            key, row, image = write_key(after), write_row(after), _NULL
            if before is not None:
                if write_key(before) != key:
                    return None
                image = write_row(before)
        except Exception:  # noqa: BLE001 - a value is missing or none of its type: the full path says which
            return None
        return key, frame.event(encoder, code, image, row, lsn)

    return fast


def _decline(_change: Change, _frame: Frame) -> None:
    """Decline every change."""


def read_fast_path(encoder: TableEncoder, write: Write) -> ReadFastPath:
    """Make the fast path of a snapshot's rows of one version of one table."""
    without = encoder.wire is not None and encoder.wire.compiled is None
    if compiled is not None and not without:
        return cast("ReadFastPath", compiled.Reading(encoder, write))
    if encoder.flat is not None or without:
        return lambda rows, begin, *_: begin  # noqa: ARG005 - it declines the first
    topic, write_key, write_row = encoder.topic, encoder.write_key, encoder.write_row

    def fast(rows: Sequence[Row], begin: int, frame: Frame, lsn: Coordinates) -> int:
        for at in range(begin, len(rows)):
            try:
                key, after = write_key(rows[at]), write_row(rows[at])
            except Exception:  # noqa: BLE001 - the full path says what is wrong
                return at
            write(topic, key, frame.event(encoder, b"r", _NULL, after, lsn))
        return len(rows)

    return fast


def batch_fast_path(
    fast_paths: dict[int, tuple[str, FastPath]],
    look_up: Callable[[Table], tuple[str, FastPath]],
    write: Write,
) -> BatchFastPath | None:
    """Make the fast path of a batch of transactions; None where nothing is compiled: then one by one is as fast.

    `fast_paths` has each table's topic and fast path by the table's `id`; `look_up` finds others.
    """
    return None if compiled is None else cast("BatchFastPath", compiled.AtOnce(fast_paths, look_up, write))
