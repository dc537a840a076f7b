"""The short way of a change to its record, for what nearly all changes are: a whole row whose key has stayed the same.

What is compiled takes deletes too, whose record a tombstone follows.

`Writer` asks each table's way first, and does by itself, in full, what this one leaves: it is the oracle. A way leaves
a change before it has done anything about it, so that nothing is done twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

from cdc.encode.envelope import Frame, TableEncoder
from cdc.encode.row_codegen import compiled
from cdc.model.change import Change, Op, Place, Row, Table, Transaction

Way: TypeAlias = Callable[[Change, Frame], tuple[bytes, bytes] | None]
"""Key and value of a change's only record, or of a delete's first; None: it takes more than that."""

Write: TypeAlias = Callable[[str, bytes, bytes | None], None]
"""A sink's: topic, key, value."""

Reading: TypeAlias = Callable[[Sequence[Row], int, Frame, Place], int]
"""Writes rows that were read, not changed, from one on, up to the first that cannot be written so: gives its number.

How many rows there are: it has written them all.
"""


class AtOnce(Protocol):
    """Writes transactions of which every change goes its table's way."""

    def __call__(
        self, transactions: list[Transaction], begin: int, epoch: int, made_at_ms: int, touched: str, /
    ) -> tuple[int, int]:
        """How many transactions from `begin` on were written, and their events; one is written whole or not at all.

        Changes in the topic `touched` go no short way.
        """


_NULL: Final = b"null"
_CODES: Final = {Op.CREATE: b"c", Op.UPDATE: b"u"}


def way(encoder: TableEncoder, stored: Callable[[Row], int] | None, limit: int) -> Way:
    """Of the changes of one version of one table.

    `stored` tells how many bytes a row takes in the source, at most, where it may leave values out of one that takes
    `limit` or more: those are remembered, which is not done here.
    """
    if compiled is not None:
        return cast("Way", compiled.Way(encoder, stored, limit))
    write_key, write_row = encoder.write_key, encoder.write_row

    def straight(change: Change, frame: Frame) -> tuple[bytes, bytes] | None:
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

    return straight


def reading(encoder: TableEncoder, write: Write) -> Reading:
    """Of the rows that a snapshot has read of one version of one table."""
    if compiled is not None:
        return cast("Reading", compiled.Reading(encoder, write))
    topic, write_key, write_row = encoder.topic, encoder.write_key, encoder.write_row

    def straight(rows: Sequence[Row], begin: int, frame: Frame, lsn: Place) -> int:
        for at in range(begin, len(rows)):
            try:
                key, after = write_key(rows[at]), write_row(rows[at])
            except Exception:  # noqa: BLE001 - the plain way says what is wrong
                return at
            write(topic, key, frame.event(encoder, b"r", _NULL, after, lsn))
        return len(rows)

    return straight


def at_once(
    ways: dict[int, tuple[str, Way]],
    look_up: Callable[[Table], tuple[str, Way]],
    write: Write,
) -> AtOnce | None:
    """None: nothing does it any better than one by one. `ways` by the `id` of a table, `look_up` for others."""
    return None if compiled is None else cast("AtOnce", compiled.AtOnce(ways, look_up, write))
