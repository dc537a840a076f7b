"""pgoutput written the other way: the decoder's oracle, written from PostgreSQL's page on message formats."""

from __future__ import annotations

import struct

from cdc.model.change import UNCHANGED, Row
from connectors.postgres.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    Skipped,
    Truncate,
    Update,
)


def encode(message: Message) -> bytes:
    """One message as the server frames it."""
    match message:
        case Begin(lsn, at_us, xid):
            return b"B" + struct.pack(">QqI", lsn, at_us - POSTGRES_EPOCH_US, xid)
        case Commit(lsn, end):
            return b"C" + struct.pack(">BQQq", 0, lsn, end, 0)
        case Relation(number, schema, name, identity, columns):
            described = b"".join(
                struct.pack(">B", c.in_identity) + _text(c.name) + struct.pack(">Ii", c.type_oid, c.typmod)
                for c in columns
            )
            head = b"R" + struct.pack(">I", number) + _text("" if schema == "pg_catalog" else schema) + _text(name)
            return head + identity.encode() + struct.pack(">H", len(columns)) + described
        case Insert(relation, new):
            return b"I" + struct.pack(">I", relation) + b"N" + row(new)
        case Update(relation, old, old_is_key, new):
            before = b"" if old is None else (b"K" if old_is_key else b"O") + row(old)
            return b"U" + struct.pack(">I", relation) + before + b"N" + row(new)
        case Delete(relation, old, old_is_key):
            return b"D" + struct.pack(">I", relation) + (b"K" if old_is_key else b"O") + row(old)
        case Truncate(relations):
            return b"T" + struct.pack(f">IB{len(relations)}I", len(relations), 0, *relations)
        case LogicalMessage(transactional, lsn, prefix, content):
            return b"M" + struct.pack(">BQ", transactional, lsn) + _text(prefix) + _sized(content)
        case Skipped("O"):
            return b"O" + struct.pack(">q", 7) + _text("origin")
        case Skipped("A"):
            return b"A" + struct.pack(">II", 790, 791)
        case Skipped():
            return b"Y" + struct.pack(">I", 16_400) + _text("public") + _text("mood")


def row(values: Row) -> bytes:
    """A row: how many columns, and each by its kind."""
    parts = [struct.pack(">H", len(values))]
    for value in values:
        if value is None:
            parts.append(b"n")
        elif value is UNCHANGED:
            parts.append(b"u")
        else:
            parts.append(b"t" + _sized(value))
    return b"".join(parts)


def _text(text: str) -> bytes:
    return text.encode() + b"\0"


def _sized(content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + content
