"""Prefixes as tables: what their columns are, and a key's row. Pure."""

from __future__ import annotations

from binascii import b2a_base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.config.source_config import KeyPrefix
from cdc.encode.json_text import PACKED, as_is, text
from cdc.model.change import UNCHANGED, Change, Column, Kind, Op, Row, Table
from connectors.etcd.messages import Event, KeyValue, first_of

WHERE: Final = b'"revision":%d'
"""An event's place: the revision of the transaction."""
_REST: Final = 5
"""How many columns there are beside the key."""


def binary(value: bytes) -> bytes:
    """Encode bytes as base64."""
    return b'"%b"' % b2a_base64(value, newline=False)


PACKED[binary] = "raw"


@dataclass(frozen=True, slots=True)
class Captured:
    """Is a prefix that is captured as a table."""

    table: Table
    prefix: bytes
    is_text: bool

    @property
    def first(self) -> bytes:
        """Return the key that the table's range begins with."""
        return first_of(self.prefix)

    @property
    def stands(self) -> str:
        """Return what the table's events rely on."""
        return f"{'text' if self.is_text else 'bytes'} {self.prefix.hex()}"


def prefix_of(stands: str) -> bytes:
    """Return the prefix of a table, of what `Captured.stands` gave."""
    return bytes.fromhex(stands.rpartition(" ")[2])


def captured(prefixes: Mapping[str, KeyPrefix]) -> tuple[Captured, ...]:
    """Return the tables that the configuration makes of prefixes, sorted by name."""
    return tuple(_table(name, prefixes[name]) for name in sorted(prefixes, key=lambda name: name.split(".", 1)))


def differences(carried: Mapping[str, str], now: Sequence[Captured]) -> dict[str, str]:
    """Return the tables that are made of something else than `carried` has of them, with the reason."""
    stands = {one.table.qualified: one.stands for one in now}
    return {
        name: "its prefix, or whether it is text, is another one now"
        for name, was in carried.items()
        if stands.get(name, was) != was
    }


def _table(qualified: str, of: KeyPrefix) -> Captured:
    schema, _, name = qualified.partition(".")
    kind, encode = (Kind("string"), text) if of.text else (Kind("bytes"), binary)
    type_ = "text" if of.text else "bytes"
    numbers = (
        Column(each, "bigint", Kind("int64"), as_is) for each in ("version", "create_revision", "mod_revision", "lease")
    )
    columns = (
        Column("key", type_, kind, encode, equality="exact"),
        Column("value", type_, kind, encode, equality="exact"),
        *numbers,
    )
    return Captured(Table(schema, name, columns, ("key",)), of.prefix.encode(), of.text)


def row(of: KeyValue) -> Row:
    """Return a key's row; no lease is NULL."""
    lease = b"%d" % of.lease if of.lease else None
    return (of.key, of.value, b"%d" % of.version, b"%d" % of.created, b"%d" % of.modified, lease)


def change(event: Event, table: Table, revision: int) -> Change:
    """Return an event as a change. Where etcd has compacted the value of before, a delete has the key alone."""
    before = row(event.before) if event.before is not None else None
    if event.now is None:
        gone = before if before is not None else (event.key, *(UNCHANGED,) * _REST)
        return Change(Op.DELETE, table, gone, None, revision)
    op = Op.CREATE if event.now.created == event.now.modified else Op.UPDATE
    return Change(op, table, before, row(event.now), revision)
