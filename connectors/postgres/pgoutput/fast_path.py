"""The fast path decodes begin, commit, and inserts and updates without the old row. Pure.

Such messages begin alike for all rows of a relation, so one look-up tells relation, operation and number of columns:

    w · uint64 LSN · 16 bytes · I or U · int32 relation · N · int16 columns · the columns
    w · 24 bytes · B · uint64 LSN · int64 clock · int32 xid
    w · 24 bytes · C · int8 · uint64 LSN · uint64 end · int64 clock
    k · uint64 end · int64 clock · int8 whether an answer is wanted

`messages.decode` and `Assembler.change` take every message that this one leaves, and are its oracle. Where there is
`connectors.postgres.pgoutput.compiled`, it does the same in C.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from cdc.encode.built import built
from cdc.encode.envelope.frame import in_wal
from cdc.model.change import Change, Op, Table, Transaction
from cdc.model.errors import ProtocolError
from connectors.postgres.pgoutput.messages import POSTGRES_EPOCH_US, Begin, Commit
from connectors.postgres.pgoutput.row_codegen import Read, row_reader

_HEAD: Final = Struct(">xQ16x8s")
_RELATION: Final = Struct(">cIcH")
_OPS: Final = {b"I": Op.CREATE, b"U": Op.UPDATE}
_BEGIN: Final = Struct(">QqI")
_CLOCK_BITS: Final = 62
"""Of a transaction's time: one before the year 2000, or far behind ours, is left to others."""
_COMMIT: Final = Struct(">xQQq")
_TAG_AT: Final = 25
_FIELDS_AT: Final = 26
_B, _C, _W = b"BCw"
_KEEPALIVE: Final = Struct(">cQqB")
MOST_BYTES: Final = 1 << 20
"""How many bytes of messages are held, of one transaction and of a batch of them."""

GetCopyData: TypeAlias = Callable[[int], tuple[int, memoryview]]
"""Is libpq's: it returns a message's size and the message; 0: none has come, -1: none will, both without one."""


class Received(NamedTuple):
    """Holds what has come, up to where it takes more than the fast path."""

    whole: list[Transaction]
    end: int
    """Where the log was read up to, in whole transactions and by keepalives between them; 0: nowhere."""
    begun: Begin | None
    """A transaction that is not whole yet, or too large to be held."""
    changes: list[Change]
    """Its first changes."""
    message: bytes | None
    """The message behind all that, which the fast path does not take."""
    status: int
    """The connection's last answer, as GetCopyData returns it."""

    @property
    def something(self) -> bool:
        """Tell whether anything has come."""
        return bool(self.whole or self.end or self.begun or self.message)


def begin(message: bytes) -> Begin | None:
    """A transaction's beginning, as the server framed it; None: it is none, or is for others to refuse."""
    if len(message) != _FIELDS_AT + _BEGIN.size or message[_TAG_AT] != _B:
        return None
    lsn, at_us, xid = _BEGIN.unpack_from(message, _FIELDS_AT)
    if at_us >> _CLOCK_BITS:
        return None
    return tuple.__new__(Begin, (lsn, at_us + POSTGRES_EPOCH_US, xid))


def commit(message: bytes) -> Commit | None:
    """Read a transaction's end."""
    if len(message) != _FIELDS_AT + _COMMIT.size or message[_TAG_AT] != _C:
        return None
    lsn, end_lsn, _at_us = _COMMIT.unpack_from(message, _FIELDS_AT)
    return tuple.__new__(Commit, (lsn, end_lsn))


def _keepalive(message: bytes) -> int | None:
    """Return where the server has got to, of a keepalive that wants no answer."""
    if len(message) != _KEEPALIVE.size or message[:1] != b"k":
        return None
    _, end, _clock, wanted = _KEEPALIVE.unpack(message)
    return None if wanted else end


class PlainFastPath:
    """Knows what rows of the relations of one stream begin with."""

    def __init__(self) -> None:
        self._known: dict[bytes, tuple[Op, Table, Read]] = {}
        self._heads: dict[int, list[bytes]] = {}
        """What is known of each relation."""

    def learn(
        self, relation: int, columns: int, table: Table | None, in_identity: Sequence[bool] | None = None
    ) -> None:
        """Take rows of this relation as `table`'s from here on; None: it is not captured.

        `in_identity` (which columns are in its replica identity) is for the compiled one, which takes old rows too.
        """
        del in_identity
        for head in self._heads.pop(relation, ()):
            del self._known[head]
        if table is not None:
            self._heads[relation] = [_RELATION.pack(tag, relation, b"N", columns) for tag in _OPS]
            for head, op in zip(self._heads[relation], _OPS.values(), strict=True):
                self._known[head] = op, table, row_reader(columns)

    def changes(self, get_copy_data: GetCopyData, most: int) -> tuple[list[Change], bytes | None, int]:
        """Return changes of the messages that have come, at most so many, and the first message that says none.

        The number is the connection's last answer: 0 and -1 come with no message.
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

    def transactions(self, get_copy_data: GetCopyData, more: Callable[[], None], after: int, most: int) -> Received:
        """Return the transactions that have come, up to so many changes, one at least of each, or MOST_BYTES.

        `more` reads from the socket what has come since. Transactions committed before `after` are left out.
        """
        whole: list[Transaction] = []
        changes: list[Change] = []
        begun: Begin | None = None
        end = count = size = of_one = 0
        while count + len(changes) < most and size + of_one < MOST_BYTES:
            got, data = get_copy_data(1)
            if got == 0:
                more()
                got, data = get_copy_data(1)
            if got <= 0:
                return Received(whole, end, begun, changes, None, got)
            message = bytes(data)
            of_one += got
            kept = _keepalive(message)
            if kept is not None:
                end = max(end, kept if begun is None else 0)
            elif begun is None:
                begun = begin(message) if message[0] == _W else None
                if begun is None:
                    return Received(whole, end, None, changes, message, got)
            elif message[0] != _W:
                return Received(whole, end, begun, changes, message, got)
            elif (ended := commit(message)) is not None and ended.commit_lsn == begun.commit_lsn:
                if ended.commit_lsn >= after:
                    lsn, at_us, xid = begun
                    whole.append(Transaction(f"{xid}:{lsn}", xid, lsn, at_us // 1000, changes, in_wal(xid)))
                count += max(1, len(changes))
                size += of_one
                end = max(end, ended.end_lsn)
                begun, changes, of_one = None, [], 0
            elif (change := self.change(message)) is not None:
                changes.append(change)
            else:
                return Received(whole, end, begun, changes, message, got)
        return Received(whole, end, begun, changes, None, 1)

    def change(self, message: bytes) -> Change | None:
        """Return the change that a data message says, as the server framed it; None: it is for others to read."""
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


_compiled = built("connectors.postgres.pgoutput.compiled")
if TYPE_CHECKING or _compiled is None:  # noqa: SIM108 - type checkers read the branch
    FastPath = PlainFastPath
else:
    FastPath = _compiled.Straight
