"""The fast path from a change to its record, for what nearly all changes are: a whole row whose key has stayed the same.

The compiled fast path takes deletes too, whose record a tombstone follows. `EventWriter` asks the fast path of the
change's table first, and writes itself what the fast path declines: its full path is the oracle in tests. A fast path
declines a change before it has done anything about it, so nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from cdc.encode.envelope import Frame, TableEncoder
from cdc.encode.row_codegen import compiled
from cdc.model.change import Change, Coordinates, Op, Row, Table, Transaction

FastPath: TypeAlias = Callable[[Change, Frame], tuple[bytes, bytes] | None]
"""Key and value of a change's only record, or of a delete's first; None: it takes more than that."""

Write: TypeAlias = Callable[[str, bytes, bytes | None], None]
"""A sink's: topic, key, value."""

ReadFastPath: TypeAlias = Callable[[Sequence[Row], int, Frame, Coordinates], int]
"""Writes rows that were read, not changed, from one on, up to the first that cannot be written so: gives its number.

How many rows there are: it has written them all.
"""


class BatchFastPath(Protocol):
    """Writes transactions of which every change goes its table's way."""

    def __call__(
        self, transactions: list[Transaction], begin: int, epoch: int, made_at_ms: int, logged: str, /
    ) -> tuple[int, int]:
        """How many transactions from `begin` on were written, and their events; one is written whole or not at all.

        Changes in the topic `logged` go no short way.
        """


_NULL: Final = b"null"
_CODES: Final = {Op.CREATE: b"c", Op.UPDATE: b"u"}


def fast_path(encoder: TableEncoder, stored: Callable[[Row], int] | None, limit: int) -> FastPath:
    """Of the changes of one version of one table.

    `stored` tells how many bytes a row takes in the source, at most, where it may leave values out of one that takes
    `limit` or more: those are remembered, which is not done here.
    """
    if compiled is not None:
        return cast("FastPath", compiled.Way(encoder, stored, limit))
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
        except Exception:  # noqa: BLE001 - a value is missing or none of its type: the plain way says which
            return None
        return key, frame.event(encoder, code, image, row, lsn)

    return fast


def read_fast_path(encoder: TableEncoder, write: Write) -> ReadFastPath:
    """Of the rows that a snapshot has read of one version of one table."""
    if compiled is not None:
        return cast("ReadFastPath", compiled.Reading(encoder, write))
    topic, write_key, write_row = encoder.topic, encoder.write_key, encoder.write_row

    def fast(rows: Sequence[Row], begin: int, frame: Frame, lsn: Coordinates) -> int:
        for at in range(begin, len(rows)):
            try:
                key, after = write_key(rows[at]), write_row(rows[at])
            except Exception:  # noqa: BLE001 - the plain way says what is wrong
                return at
            write(topic, key, frame.event(encoder, b"r", _NULL, after, lsn))
        return len(rows)

    return fast


def batch_fast_path(
    fast_paths: dict[int, tuple[str, FastPath]],
    look_up: Callable[[Table], tuple[str, FastPath]],
    write: Write,
) -> BatchFastPath | None:
    """None: nothing does it any better than one by one. `fast_paths` by the `id` of a table, `look_up` for others."""
    return None if compiled is None else cast("BatchFastPath", compiled.AtOnce(fast_paths, look_up, write))
