"""Changes to records: the wire contract of docs/events.md. Pure.

What depends on the table alone is computed once per table version (`TableEncoder`), what depends on the transaction
once per transaction (`Frame`); a row costs its columns and two joins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import orjson

from cdc import __version__
from cdc.change import UNCHANGED, Column, Kind, Position, Row, Table
from cdc.errors import BugError

_NULL: Final = b"null"


class TableEncoder:
    """JSON of rows and keys of one version of one table."""

    def __init__(self, table: Table, *, connector: str, prefix: str, database: str, version: int, topic: str) -> None:
        self.table = table
        self.version = version
        self.topic = topic
        self.wide = any(column.wide for column in table.columns)
        self.key_indexes = table.key_indexes
        self._columns = tuple(_Encoded.of(column, first=i == 0) for i, column in enumerate(table.columns))
        self._key = tuple(
            (index, _Encoded.of(table.columns[index], first=i == 0)) for i, index in enumerate(self.key_indexes)
        )
        source = {"version": __version__, "connector": connector, "name": prefix}
        self.source_head = b'"source":' + orjson.dumps(source)[:-1] + b',"ts_ms":'
        where = {"db": database, "schema": table.schema, "table": table.name}
        self.source_where = b"," + orjson.dumps(where)[1:-1] + b',"txId":'
        self.source_tail = b'","schema_version":%d},"transaction":' % version

    def key(self, row: Row) -> bytes:
        """The key of a row or key image."""
        parts = []
        for index, column in self._key:
            value = row[index]
            if value is None or value is UNCHANGED:
                raise BugError(f"table {self.table.qualified}: key column {column.name} has no value")
            parts.append(column.prefix)
            parts.append(column.encode(value))
        parts.append(b"}")
        return b"".join(parts)

    def row(self, row: Row, fragments: Mapping[str, bytes] | None = None) -> bytes:
        """A whole row; `fragments` has the JSON of columns that are UNCHANGED in it."""
        parts = []
        for column, value in zip(self._columns, row, strict=True):
            parts.append(column.prefix)
            if value is None:
                parts.append(_NULL)
            elif value is UNCHANGED:
                if fragments is None or column.name not in fragments:
                    raise BugError(f"table {self.table.qualified}: a row with a hole in column {column.name}")
                parts.append(fragments[column.name])
            else:
                parts.append(column.encode(value))
        parts.append(b"}")
        return b"".join(parts)

    def image(self, row: Row) -> bytes:
        """What was sent of a row; columns that were not are left out."""
        parts = []
        first = True
        for column, value in zip(self._columns, row, strict=True):
            if value is UNCHANGED:
                continue
            parts.append((b"{" if first else b",") + column.prefix[1:])
            parts.append(_NULL if value is None else column.encode(value))
            first = False
        return b"".join(parts) + b"}" if parts else b"{}"

    def blame(self, row: Row) -> str:
        """Names of the columns whose values their encoders refuse."""
        names = []
        for column, value in zip(self._columns, row, strict=True):
            try:
                if value is not None and value is not UNCHANGED:
                    column.encode(value)
            except ValueError:
                names.append(column.name)
        return ", ".join(names)

    def fragments(self, row: Row, names: frozenset[str]) -> dict[str, bytes]:
        """The JSON of single columns."""
        found = {}
        for column, value in zip(self._columns, row, strict=True):
            if column.name in names and value is not UNCHANGED:
                found[column.name] = _NULL if value is None else column.encode(value)
        return found


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A column ready to be written: ``,"name":`` (``{`` for the first) and the value's encoder."""

    name: str
    prefix: bytes
    encode: Callable[[bytes], bytes]

    @classmethod
    def of(cls, column: Column, *, first: bool) -> _Encoded:
        return cls(column.name, (b"{" if first else b",") + orjson.dumps(column.name) + b":", column.encode)


class Frame:
    """What the events of one source transaction, or of one snapshot chunk, have in common."""

    def __init__(
        self,
        *,
        epoch: int,
        commit: int,
        at_ms: int,
        made_at_ms: int,
        transaction: tuple[str, int] | None,
        view: int = 0,
    ) -> None:
        """`transaction` is the source's (id, xid); None for rows of a snapshot, read under `view`."""
        self._position = f"{epoch:08x}.{commit:016x}.".encode()
        at = b"%d" % at_ms
        self._at = at + (b',"snapshot":"true"' if transaction is None else b',"snapshot":"false"')
        self._xid = (_NULL if transaction is None else b"%d" % transaction[1]) + b',"lsn":'
        self._id = None if transaction is None else b'{"id":' + orjson.dumps(transaction[0]) + b',"total_order":'
        self._made = b'","ts_ms":%d}' % made_at_ms
        self._counts: dict[str, int] = {}
        self._view = view
        self.events = 0

    def event(self, encoder: TableEncoder, op: bytes, before: bytes, after: bytes, lsn: int) -> bytes:
        """One event's value. `before` and `after` are JSON."""
        if self._id is None:
            number = self._view
            transaction = b'null,"op":"'
        else:
            number = self.events = self.events + 1
            count = self._counts[encoder.topic] = self._counts.get(encoder.topic, 0) + 1
            transaction = b'%b%d,"data_collection_order":%d},"op":"' % (self._id, number, count)
        return b"".join(
            (
                b'{"before":', before, b',"after":', after, b",",
                encoder.source_head, self._at, encoder.source_where, self._xid,
                b'%d,"position":"' % lsn, self._position, b"%08x" % number, encoder.source_tail,
                transaction, op, self._made,
            )
        )  # fmt: skip

    def skip(self) -> None:
        """Count an event that is not written, so that the others keep their numbers when it is."""
        if self._id is not None:
            self.events += 1

    def next_position(self) -> str:
        """The position the next event will have."""
        return (self._position + b"%08x" % (self.events + 1)).decode()


def schema_record(
    table: Table, *, connector: str, source: str, database: str, topic: str, version: int, position: Position
) -> tuple[bytes, bytes]:
    """Key and value of one version of a table for the schema topic."""
    key = {"schema": table.schema, "table": table.name, "version": version}
    value = {
        "connector": connector,
        "source": source,
        "db": database,
        "schema": table.schema,
        "table": table.name,
        "topic": topic,
        "version": version,
        "position": position.text,
        "key": list(table.key),
        "columns": [{"name": c.name, "type": c.type, **_kind(c.kind)} for c in table.columns],
    }
    return orjson.dumps(key), orjson.dumps(value)


def _kind(kind: Kind) -> dict[str, object]:
    described: dict[str, object] = {"kind": kind.name}
    if kind.precision is not None:
        described |= {"precision": kind.precision, "scale": kind.scale or 0}
    if kind.element is not None:
        described["element"] = _kind(kind.element)
    return described
