"""Decodes pgoutput, protocol version 1: bytes in, messages out.

`decode` takes one whole message as the server framed it and returns one value. Bytes that end early, go on too long or
are of another protocol raise `ProtocolError`; nothing here reads, waits or remembers.

Layout (https://www.postgresql.org/docs/current/protocol-logicalrep-message-formats.html), big-endian:

    B  begin      int64 commit LSN · int64 commit time · int32 xid
    C  commit     int8 0 · int64 commit LSN · int64 end LSN · int64 commit time
    R  relation   int32 id · cstr schema · cstr name · int8 identity · int16 n
                  · n × (int8 key · cstr name · int32 type · int32 typmod)
    I  insert     int32 relation · 'N' row
    U  update     int32 relation · ['K' row | 'O' row] · 'N' row
    D  delete     int32 relation · 'K' row | 'O' row
    T  truncate   int32 n · int8 options · n × int32 relation
    M  message    int8 flags · int64 LSN · cstr prefix · int32 size · bytes
    O  origin     int64 LSN · cstr name, read over
    Y  type       int32 id · cstr schema · cstr name, read over
    row           int16 n · n × ('n' null | 'u' unchanged | 't' int32 size · text)
"""

from __future__ import annotations

import struct
from struct import Struct
from typing import Final, NamedTuple, TypeAlias, cast

from cdc.model.change import UNCHANGED, Row, Value
from cdc.model.errors import ProtocolError
from connectors.postgres.pgoutput.row_codegen import row_reader

POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 in microseconds since 1970: PostgreSQL counts from there."""

_BEGIN = Struct(">QqI")
_COMMIT = Struct(">BQQq")
_COLUMN = Struct(">Ii")
_INT16 = Struct(">H")
_INT32 = Struct(">I")
_MESSAGE = Struct(">BQ")

_MOST_COLUMNS: Final = 1664
"""MaxTupleAttributeNumber: no server sends more."""


class Begin(NamedTuple):
    """A transaction starts; `commit_lsn` is where its commit record starts, `committed_at_us` is since 1970."""

    commit_lsn: int
    committed_at_us: int
    xid: int


class Commit(NamedTuple):
    """A transaction ends; the log goes on at `end_lsn`."""

    commit_lsn: int
    end_lsn: int


class RelationColumn(NamedTuple):
    """Describes a column as the row was written; `in_identity` is set for the replica identity's columns."""

    name: str
    type_oid: int
    typmod: int
    in_identity: bool


class Relation(NamedTuple):
    """Describes a table as it is for the rows that follow; `identity` is pg_class.relreplident."""

    id: int
    schema: str
    name: str
    identity: str
    columns: tuple[RelationColumn, ...]


class Insert(NamedTuple):
    """Holds a new row."""

    relation: int
    new: Row


class Update(NamedTuple):
    """Holds a changed row; `old` is None where the identity did not change and is not FULL."""

    relation: int
    old: Row | None
    old_is_key: bool
    new: Row


class Delete(NamedTuple):
    """Holds a row that is gone."""

    relation: int
    old: Row
    old_is_key: bool


class Truncate(NamedTuple):
    """Names tables emptied by one statement."""

    relations: tuple[int, ...]


class LogicalMessage(NamedTuple):
    """Holds what pg_logical_emit_message wrote."""

    transactional: bool
    lsn: int
    prefix: str
    content: bytes


class Skipped(NamedTuple):
    """Is a message that nothing depends on: of an origin, of a type, or of what was rolled back."""

    tag: str


Message: TypeAlias = Begin | Commit | Relation | Insert | Update | Delete | Truncate | LogicalMessage | Skipped


def decode(message: bytes) -> Message:
    """Decode one message, which must fill `message` exactly. Raises ProtocolError."""
    if not message:
        raise ProtocolError(0, "an empty message")
    reader = _READERS.get(message[0])
    if reader is None:
        raise ProtocolError(0, f"a message of unknown type 0x{message[0]:02x}")
    try:
        value, at = cast("tuple[Message, int]", reader(message))
    except (IndexError, ValueError, struct.error) as exc:
        raise ProtocolError(len(message), "the message ends early") from exc
    if at != len(message):
        what = "the message ends early" if at > len(message) else "bytes after the message's end"
        raise ProtocolError(min(at, len(message)), what)
    return value


def _row(message: bytes, at: int) -> tuple[Row, int]:
    """Read a row. A slice past the end is caught by `decode`'s length check."""
    count = message[at] << 8 | message[at + 1]
    return row_reader(count)(message, at + 2) if count <= _MOST_COLUMNS else plain_row(message, at)


def plain_row(message: bytes, at: int) -> tuple[Row, int]:
    """Do what the generated readers do, column by column: it is their oracle."""
    count = message[at] << 8 | message[at + 1]
    at += 2
    values: list[Value] = []
    append = values.append
    for _ in range(count):
        kind = message[at]
        if kind == 0x74:  # t
            start = at + 5
            at = start + int.from_bytes(message[at + 1 : start], "big")
            append(message[start:at])
        elif kind == 0x6E:  # n
            append(None)
            at += 1
        elif kind == 0x75:  # u
            append(UNCHANGED)
            at += 1
        else:
            raise ProtocolError(at, f"a column of unknown kind 0x{kind:02x}")
    return tuple(values), at


def _expect(message: bytes, at: int, tag: int) -> int:
    if message[at] != tag:
        raise ProtocolError(at, f"row tag 0x{message[at]:02x} where 0x{tag:02x} belongs")
    return at + 1


def _text(message: bytes, at: int) -> tuple[str, int]:
    end = message.find(b"\0", at)
    if end < 0:
        raise ProtocolError(at, "a name without its end")
    try:
        return message[at:end].decode(), end + 1
    except UnicodeDecodeError as exc:
        raise ProtocolError(at + exc.start, "a name that is not UTF-8") from exc


def _begin(message: bytes) -> tuple[Begin, int]:
    lsn, at_us, xid = _BEGIN.unpack_from(message, 1)
    return Begin(lsn, at_us + POSTGRES_EPOCH_US, xid), 1 + _BEGIN.size


def _commit(message: bytes) -> tuple[Commit, int]:
    _flags, lsn, end_lsn, _at_us = _COMMIT.unpack_from(message, 1)
    return Commit(lsn, end_lsn), 1 + _COMMIT.size


def _relation(message: bytes) -> tuple[Relation, int]:
    (relation,) = _INT32.unpack_from(message, 1)
    schema, at = _text(message, 5)
    name, at = _text(message, at)
    identity = chr(message[at])
    (count,) = _INT16.unpack_from(message, at + 1)
    at += 3
    columns = []
    for _ in range(count):
        flags = message[at]
        column, at = _text(message, at + 1)
        type_oid, typmod = _COLUMN.unpack_from(message, at)
        at += _COLUMN.size
        columns.append(RelationColumn(column, type_oid, typmod, bool(flags & 1)))
    return Relation(relation, schema or "pg_catalog", name, identity, tuple(columns)), at


def _insert(message: bytes) -> tuple[Insert, int]:
    relation = int.from_bytes(message[1:5], "big")
    row, at = _row(message, _expect(message, 5, 0x4E))
    return Insert(relation, row), at


def _update(message: bytes) -> tuple[Update, int]:
    relation = int.from_bytes(message[1:5], "big")
    tag = message[5]
    old, at = (None, 5) if tag == 0x4E else _row(message, 6)
    if tag not in (0x4E, 0x4B, 0x4F):
        raise ProtocolError(5, f"row tag 0x{tag:02x} in an update")
    new, at = _row(message, _expect(message, at, 0x4E))
    return Update(relation, old, tag == 0x4B, new), at


def _delete(message: bytes) -> tuple[Delete, int]:
    relation = int.from_bytes(message[1:5], "big")
    tag = message[5]
    if tag not in (0x4B, 0x4F):
        raise ProtocolError(5, f"row tag 0x{tag:02x} in a delete")
    old, at = _row(message, 6)
    return Delete(relation, old, tag == 0x4B), at


def _truncate(message: bytes) -> tuple[Truncate, int]:
    (count,) = _INT32.unpack_from(message, 1)
    size = 6 + 4 * count
    if size != len(message):
        raise ProtocolError(min(size, len(message)), "a truncate of another length")
    return Truncate(tuple(_INT32.unpack_from(message, 6 + 4 * i)[0] for i in range(count))), size


def _message(message: bytes) -> tuple[LogicalMessage, int]:
    flags, lsn = _MESSAGE.unpack_from(message, 1)
    start = 1 + _MESSAGE.size
    end = message.index(b"\0", start)
    prefix, at = message[start:end].decode(errors="replace"), end + 1  # an application's: any bytes in SQL_ASCII
    (size,) = _INT32.unpack_from(message, at)
    at += 4
    return LogicalMessage(bool(flags & 1), lsn, prefix, message[at : at + size]), at + size


def _origin(message: bytes) -> tuple[Skipped, int]:
    _name, at = _text(message, 9)
    return Skipped("O"), at


def _type(message: bytes) -> tuple[Skipped, int]:
    _schema, at = _text(message, 5)
    _name, at = _text(message, at)
    return Skipped("Y"), at


def _stream_abort(_message: bytes) -> tuple[Skipped, int]:
    """PostgreSQL 18 says it, unasked, of savepoints in a large transaction that was rolled back: no row was sent."""
    return Skipped("A"), 1 + 2 * _INT32.size


_READERS: Final = {
    ord("I"): _insert,
    ord("U"): _update,
    ord("D"): _delete,
    ord("B"): _begin,
    ord("C"): _commit,
    ord("R"): _relation,
    ord("T"): _truncate,
    ord("M"): _message,
    ord("O"): _origin,
    ord("Y"): _type,
    ord("A"): _stream_abort,
}
