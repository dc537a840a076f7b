"""The short way of a data message to its change: inserts, and updates that say nothing of the old row. Pure.

Such messages begin alike for all rows of a relation, so one look-up tells relation, operation and number of columns:

    w · int64 LSN · 16 bytes · I or U · int32 relation · N · int16 columns · the columns

`pgoutput.decode` and `Assembler.change` take every message that this one leaves, and are its oracle.
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final

from cdc.change import Change, Op, Table
from cdc.errors import ProtocolError
from connectors.postgres.rowcode import Read, row_reader

_HEAD: Final = Struct(">xq16x8s")
_RELATION: Final = Struct(">cIcH")
_OPS: Final = {b"I": Op.CREATE, b"U": Op.UPDATE}


class Straight:
    """What rows of the relations of one stream begin with."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Op, Table, Read]] = {}

    def learn(self, relation: int, columns: int, table: Table | None) -> None:
        """Rows of this relation are `table`'s from here on; None: it is not captured."""
        for head in [head for head in self._known if _RELATION.unpack(head)[1] == relation]:
            del self._known[head]
        if table is not None:
            for tag, op in _OPS.items():
                self._known[_RELATION.pack(tag, relation, b"N", columns)] = op, table, row_reader(columns)

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
