"""The short way of data messages: begin, commit, and to a change of inserts and updates without the old row. Pure.

Such messages begin alike for all rows of a relation, so one look-up tells relation, operation and number of columns:

    w · int64 LSN · 16 bytes · I or U · int32 relation · N · int16 columns · the columns
    w · 24 bytes · B · int64 LSN · int64 clock · int32 xid
    w · 24 bytes · C · int8 · int64 LSN · int64 end · int64 clock

`pgoutput.decode` and `Assembler.change` take every message that this one leaves, and are its oracle. Where there is
`connectors.postgres.compiled`, it does the same in C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final

from cdc.built import built
from cdc.change import Change, Op, Table
from cdc.errors import ProtocolError
from connectors.postgres.pgoutput import POSTGRES_EPOCH_US, Begin, Commit
from connectors.postgres.rowcode import Read, row_reader

_HEAD: Final = Struct(">xq16x8s")
_RELATION: Final = Struct(">cIcH")
_OPS: Final = {b"I": Op.CREATE, b"U": Op.UPDATE}
_BEGIN: Final = Struct(">qqI")
_COMMIT: Final = Struct(">xqqq")
_TAG_AT: Final = 25
_FIELDS_AT: Final = 26
_B, _C = b"BC"


def begin(message: bytes) -> Begin | None:
    """A transaction's beginning, as the server framed it; None: it is none, or is for others to refuse."""
    if len(message) != _FIELDS_AT + _BEGIN.size or message[_TAG_AT] != _B:
        return None
    lsn, at_us, xid = _BEGIN.unpack_from(message, _FIELDS_AT)
    return tuple.__new__(Begin, (lsn, at_us + POSTGRES_EPOCH_US, xid))


def commit(message: bytes) -> Commit | None:
    """A transaction's end."""
    if len(message) != _FIELDS_AT + _COMMIT.size or message[_TAG_AT] != _C:
        return None
    lsn, end_lsn, _at_us = _COMMIT.unpack_from(message, _FIELDS_AT)
    return tuple.__new__(Commit, (lsn, end_lsn))


class PlainStraight:
    """What rows of the relations of one stream begin with."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Op, Table, Read]] = {}

    def learn(
        self, relation: int, columns: int, table: Table | None, in_identity: Sequence[bool] | None = None
    ) -> None:
        """Rows of this relation are `table`'s from here on; None: it is not captured.

        `in_identity`, which columns are of its replica identity, is for what is compiled: that takes old rows too.
        """
        del in_identity
        for head in [head for head in self._known if _RELATION.unpack(head)[1] == relation]:
            del self._known[head]
        if table is not None:
            for tag, op in _OPS.items():
                self._known[_RELATION.pack(tag, relation, b"N", columns)] = op, table, row_reader(columns)

    def changes(
        self, get_copy_data: Callable[[int], tuple[int, memoryview]], most: int
    ) -> tuple[list[Change], bytes | None, int]:
        """Changes of the messages that have come, at most so many, and the first message that says none.

        With what the connection said last: 0 and -1 come with no message.
        """
        found: list[Change] = []
        while len(found) < most:
            got, data = get_copy_data(1)
            if got <= 0:
                return found, None, got
            message = bytes(data)
            change = self.change(message)
            if change is None:
                return found, message, got
            found.append(change)
        return found, None, 1

    def change(self, message: bytes) -> Change | None:
        """The change that a data message says, as the server framed it; None: it is for others to read."""
        if len(message) < _HEAD.size:
            return None
        lsn, head = _HEAD.unpack_from(message)
        known = self._known.get(head)
        if known is None:
            return None
        op, table, read = known
        try:
            row, end = read(message, _HEAD.size)
        except (IndexError, struct.error, ProtocolError):
            return None
        if end != len(message):
            return None
        return tuple.__new__(Change, (op, table, None, row, lsn))


_compiled = built("connectors.postgres.compiled")
if TYPE_CHECKING or _compiled is None:  # noqa: SIM108 - type checkers read the branch
    Straight = PlainStraight
else:
    Straight = _compiled.Straight
