"""Turns changes into events, by the contract of docs/events.md. Pure.

Parts that depend on the table alone are computed once per table version (`TableEncoder`), parts that depend on the
transaction once per transaction (`Frame`), as a format (`%`) of an event; a row costs its columns and two formats.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, cast

import orjson

from cdc import __version__
from cdc.encode.row_codegen import Write, compiled, hole_finder, key_writer, row_writer
from cdc.model.change import UNCHANGED, Coordinates, Kind, Message, Position, Row, Table, Unsent, Xid
from cdc.model.errors import BugError, OperatorError
from cdc.model.state import Key
from cdc.model.wire import Wire
from cdc.rules.capture_rules import Published
from cdc.rules.flat import Flat

_NULL: Final = b"null"
_WITH_SCHEMA: Final = b'{"schema":{"type":"struct"'


class TableEncoder:
    """Encodes rows of one version of one table as JSON, and keys as they are on the wire."""

    def __init__(
        self,
        table: Table,
        *,
        connector: str,
        prefix: str,
        database: str,
        version: int,
        topic: str,
        published: Published | None = None,
        flat: Flat | None = None,
        wire: Wire | None = None,
    ) -> None:
        """`published` is what the rules leave of the table; None: all of it, as it is.

        `flat` is how the table's topic is flat, `wire` how records are not plain JSON.
        """
        self.flat, self.wire = flat, wire
        self.source = table
        """The table as the source has it, in whose order its rows are before they are cut."""
        self.published = published
        if published is not None:
            table = published.table
        self.table = table
        """With the columns that events have."""
        self.version = version
        self.topic = topic
        self.toastable = any(column.toastable for column in table.columns)
        self.key_indexes = table.key_indexes
        encoders = [column.encode for column in table.columns] if wire is None else wire.encoders
        named = [(column.name, encode) for column, encode in zip(table.columns, encoders, strict=True)]
        self._columns = tuple(_Encoded.of(*of, first=i == 0) for i, of in enumerate(named))
        self._key = tuple((index, _Encoded.of(*named[index], first=i == 0)) for i, index in enumerate(self.key_indexes))
        self.has_holes = hole_finder(tuple(index for index, column in enumerate(table.columns) if column.toastable))
        """Whether the source left values out of a row: it may leave out toastable ones."""
        # the generated functions may raise any error, see `cdc.encode.row_codegen`
        self.write_row = row_writer([(column.prefix, column.encode) for column in self._columns])
        self.write_key = self._key_writer()
        self.told = (
            (__version__, connector, prefix),
            (database, table.schema, table.name) if database else (table.schema, table.name),
        )
        """What the source block says in all events, as text: first who writes, then of what."""
        head, self.source_where = _source(connector, prefix, database, table.schema, table.name)
        self.source_head = b'{"before":%b,"after":%b,' + head
        self.source_tail = b'","schema_version":%d},"transaction":' % version
        self.shape = _shape(b"," + head, self.source_where, self.source_tail, topic, table.qualified)
        self.made: Counter[bytes] = Counter()

    def _key_writer(self) -> Write:
        columns = [(column.prefix, column.encode) for _, column in self._key]
        wire = self.wire
        if wire is None or wire.around_key is None:
            write = key_writer(columns, self.key_indexes)
            return write if wire is None else (lambda row: wire.key(write(row)))
        begin, end = wire.around_key
        (prefix, encode), *others = columns
        return key_writer([(begin + prefix, encode), *others], self.key_indexes, end=b"}" + end)

    def key_image(self, key: bytes) -> bytes:
        """Return the JSON of a record's key; ``null`` for one of another format."""
        if self.wire is not None:
            return self.wire.key_image(key)
        return key if key[:1] == b"{" and not key.startswith(_WITH_SCHEMA) else _NULL

    def taken(self) -> dict[str, int]:
        """Return how many events of each op were made since the last call."""
        return _taken(self)

    def cut(self, row: Row) -> Row:
        """Leave out of a row of the source what is not published: all other methods take what is left."""
        if self.published is None or self.published.cut is None:
            return row
        return self.published.cut(row)

    def publishes(self, row: Row) -> bool | Unsent | None:
        """Whether a row of the source is published: only if True. UNCHANGED: that depends on a value not sent."""
        if self.published is None or self.published.judge is None:
            return True
        return self.published.judge(row)

    def shown(self, rows: Sequence[Row]) -> Sequence[Row]:
        """Return what is published of whole rows of the source."""
        if self.published is None:
            return rows
        return [self.cut(row) for row in rows if self.publishes(row) is True]

    def key(self, row: Row) -> bytes:
        """Encode the key of a row or key image."""
        try:
            return self.write_key(row)
        except Exception:  # noqa: BLE001, S110 - the plain one says what is wrong; this error holds values
            pass
        return self.key_plainly(row)

    def key_of(self, key: Key) -> bytes:
        """Encode a key's parts. Raises ValueError for a text that no row of the table can have."""
        row: list[bytes | Unsent] = [UNCHANGED] * len(self.table.columns)
        for index, part in zip(self.key_indexes, key, strict=True):
            row[index] = part
        return self.key(tuple(row))

    def key_plainly(self, row: Row) -> bytes:
        """Encode as `key` does, column by column: slower, and with errors that say what is wrong."""
        parts = []
        for index, column in self._key:
            value = row[index]
            if value is None:
                raise OperatorError(
                    f"table {self.table.qualified}: key column {column.name} is null in a row, and a key never is",
                    hint=f"make that row whole, then: ALTER TABLE {self.table.qualified} "
                    f"ALTER COLUMN {column.name} SET NOT NULL; or choose other columns in tables: key",
                )
            if value is UNCHANGED:
                raise BugError(f"table {self.table.qualified}: key column {column.name} has no value")
            parts.append(column.prefix)
            parts.append(column.encode(value))
        parts.append(b"}")
        json = b"".join(parts)
        return json if self.wire is None else self.wire.key(json)

    def row(self, row: Row, fragments: Mapping[str, bytes] | None = None) -> bytes:
        """Encode a whole row; `fragments` has the JSON of columns that are UNCHANGED in it."""
        if not fragments:
            try:
                return self.write_row(row)
            except Exception:  # noqa: BLE001, S110 - as in `key`
                pass
        return self.row_plainly(row, fragments)

    def row_plainly(self, row: Row, fragments: Mapping[str, bytes] | None = None) -> bytes:
        """Encode as `row` does, column by column."""
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
        """Encode the columns that the source sent of a row, without the others."""
        parts = []
        first = True
        for column, value in zip(self._columns, row, strict=True):
            if value is UNCHANGED:
                continue
            parts.append((b"{" if first else b",") + column.prefix[1:])
            parts.append(_NULL if value is None else column.encode(value))
            first = False
        return b"".join(parts) + b"}" if parts else b"{}"

    def blame(self, row: Row) -> tuple[str, ...]:
        """Name the columns whose values their encoders refuse."""
        names = []
        for column, value in zip(self._columns, row, strict=True):
            try:
                if value is not None and value is not UNCHANGED:
                    column.encode(value)
            except ValueError:
                names.append(column.name)
        return tuple(names)

    def key_parts(self, row: Row) -> list[bytes]:
        """The key's values as the source has them."""
        return [value for index in self.key_indexes if isinstance(value := row[index], bytes)]

    def key_only(self, row: Row) -> Row:
        """Keep only the key columns of `row`."""
        return tuple(value if index in self.key_indexes else UNCHANGED for index, value in enumerate(row))

    def fragments(self, row: Row, names: frozenset[str]) -> dict[str, bytes]:
        """Encode single columns, by name."""
        found = {}
        for column, value in zip(self._columns, row, strict=True):
            if column.name in names and value is not UNCHANGED:
                found[column.name] = _NULL if value is None else column.encode(value)
        return found


class MessageEncoder:
    """Encodes messages that an application wrote into the log: events of no table."""

    topic: Final = "message"

    def __init__(self, *, connector: str, prefix: str, database: str) -> None:
        head, self.source_where = _source(connector, prefix, database, "", "")
        self.source_head = b"%b,%b" + head
        self.source_tail = b'"},"transaction":'
        self.shape = _shape(b"," + head, self.source_where, self.source_tail, self.topic, self.topic)
        self.made: Counter[bytes] = Counter()

    def taken(self) -> dict[str, int]:
        """Return how many messages were made since the last call."""
        return {"m": sum(_taken(self).values())}

    def key(self, message: Message) -> bytes:
        return orjson.dumps({"prefix": message.prefix})

    def body(self, message: Message) -> bytes:
        content = base64.b64encode(message.content).decode()
        return b'{"message":' + orjson.dumps({"prefix": message.prefix, "content": content})


def _source(connector: str, prefix: str, database: str, schema: str, table: str) -> tuple[bytes, bytes]:
    """Make the parts of the source block that are the same in all events of a table, as parts of a format."""
    source = {"version": __version__, "connector": connector, "name": prefix}
    where = {"db": database, "schema": schema, "table": table} if database else {"db": schema, "table": table}
    return (
        _literally(b'"source":' + orjson.dumps(source)[:-1] + b',"ts_ms":'),
        _literally(b"," + orjson.dumps(where)[1:-1] + b","),
    )


def _taken(encoder: TableEncoder | MessageEncoder) -> dict[str, int]:
    """Sum up what compiled code and the plain one have counted, and begin again."""
    found = {op.decode(): many for op, many in encoder.made.items()}
    encoder.made.clear()
    if compiled is not None:
        for op, many in zip("rcdu", encoder.shape.taken(), strict=True):  # type: ignore[attr-defined]
            if many:
                found[op] = found.get(op, 0) + many
    return found


def _shape(head: bytes, where: bytes, tail: bytes, topic: str, name: str) -> object:
    """Make the same parts for `compiled.Frame`, which needs no formats."""
    return compiled and compiled.Shape(*(part.replace(b"%%", b"%") for part in (head, where, tail)), topic, name)


def _literally(part: bytes) -> bytes:
    """Escape a part of a format."""
    return part.replace(b"%", b"%%")


def in_wal(xid: int | None) -> bytes:
    """Make PostgreSQL's `Transaction.where`."""
    return b'"txId":%b,"lsn":%%d' % (_NULL if xid is None else b"%d" % xid)


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A column ready to be written: ``,"name":`` (``{`` for the first) and the value's encoder."""

    name: str
    prefix: bytes
    encode: Callable[[bytes], bytes]

    @classmethod
    def of(cls, name: str, encode: Callable[[bytes], bytes], *, first: bool) -> _Encoded:
        return cls(name, (b"{" if first else b",") + orjson.dumps(name) + b":", encode)


@dataclass(slots=True)
class _Count:
    """Counts the events of one topic in a frame."""

    name: str
    events: int = 0


class PlainFrame:
    """Holds the parts that the events of one source transaction, or of one snapshot chunk, have in common."""

    def __init__(
        self,
        *,
        epoch: int,
        commit: int,
        at_ms: int,
        made_at_ms: int,
        transaction: tuple[str, Xid] | None,
        where: bytes,
        view: int = 0,
        snapshot: str = "true",
        alone: bool = False,
    ) -> None:
        """`transaction` is the source's (id, xid); None for rows of a snapshot, read under `view`.

        `where` is as a Transaction has it. `snapshot` is Debezium's mark of a snapshot's rows: ``true``, or
        ``incremental`` for rows read while the log is followed.
        `alone`: of the log, but of no transaction.
        """
        self._epoch, self._commit, self._view = epoch, commit, view
        marked = snapshot if transaction is None and not alone else "false"
        self._at = b'%d,"snapshot":"%b"' % (at_ms, marked.encode())
        self._where = b'%b,"position":"%08x.%016x.%%08x' % (where, epoch, commit)
        self._numbered = transaction is not None
        of = b"null"
        if transaction is not None:
            of = b'{"id":%b,"total_order":%%d,"data_collection_order":%%d}' % _literally(orjson.dumps(transaction[0]))
        self._end = b'%b,"op":"%%b","ts_ms":%d}' % (of, made_at_ms)
        self._forms: dict[TableEncoder | MessageEncoder, tuple[bytes, _Count]] = {}
        self._counts: dict[str, _Count] = {}
        self.events = 0

    def event(self, encoder: TableEncoder, op: bytes, before: bytes, after: bytes, lsn: Coordinates) -> bytes:
        """Make one event's value. `before` and `after` are JSON."""
        return self._event(encoder, before, after, op, lsn)

    def message(self, encoder: MessageEncoder, message: Message) -> bytes:
        """Make a message's value."""
        return self._event(encoder, encoder.body(message), b"", b"m", message.lsn)

    def _event(
        self, encoder: TableEncoder | MessageEncoder, first: bytes, second: bytes, op: bytes, lsn: Coordinates
    ) -> bytes:
        try:
            form, count = self._forms[encoder]
        except KeyError:
            form, count = self._form(encoder)
        encoder.made[op] += 1
        if not self._numbered:
            at = lsn if isinstance(lsn, tuple) else (lsn,)
            return form % (first, second, *at, self._view, op)
        self.events = number = self.events + 1
        count.events = of_topic = count.events + 1
        if type(lsn) is int:
            return form % (first, second, lsn, number, number, of_topic, op)
        return form % (first, second, *cast("tuple[int, int]", lsn), number, number, of_topic, op)

    def _form(self, encoder: TableEncoder | MessageEncoder) -> tuple[bytes, _Count]:
        """Make the format of all events that `encoder` makes in this frame."""
        count = self._counts.get(encoder.topic)
        if count is None:
            name = encoder.table.qualified if isinstance(encoder, TableEncoder) else encoder.topic
            count = self._counts[encoder.topic] = _Count(name)
        form = b"".join(
            (encoder.source_head, self._at, encoder.source_where, self._where, encoder.source_tail, self._end)
        )
        self._forms[encoder] = form, count
        return form, count

    def counts(self) -> list[tuple[str, int]]:
        """Return how many events of each table were made so far, messages under ``message``; sorted."""
        return sorted((of.name, of.events) for of in self._counts.values() if of.events)

    def skip(self) -> None:
        """Count an event that is not written, so that the others keep their numbers when it is."""
        if self._numbered:
            self.events += 1

    def next_position(self) -> str:
        """The position the next event will have."""
        return Position(self._epoch, self._commit, self.events + 1 if self._numbered else self._view).text


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 - type checkers read the branch
    Frame = PlainFrame
else:
    Frame = compiled.Frame


def transaction_records(transaction: str, at_ms: int, counts: list[tuple[str, int]]) -> list[tuple[bytes, bytes]]:
    """Make the records of a transaction's beginning and end, as Debezium has them."""
    key = orjson.dumps({"id": transaction})
    begin = {"status": "BEGIN", "id": transaction, "ts_ms": at_ms, "event_count": None, "data_collections": None}
    end = {
        "status": "END",
        "id": transaction,
        "ts_ms": at_ms,
        "event_count": sum(count for _, count in counts),
        "data_collections": [{"data_collection": name, "event_count": count} for name, count in counts],
    }
    return [(key, orjson.dumps(begin)), (key, orjson.dumps(end))]


def schema_record(
    table: Table,
    *,
    connector: str,
    source: str,
    database: str,
    topic: str,
    version: int,
    position: Position,
    published: Published | None = None,
    format_: str = "",
    key_form: str = "",
) -> tuple[bytes, bytes]:
    """Make the schema topic's record of one version of a table: of what is published of it.

    `format_` is the records' format, `key_form` differs where the bytes of the same key do: see `cdc.model.wire`.
    """
    table = table if published is None else published.table
    key = {"schema": table.schema, "table": table.name, "version": version}
    value = {
        "connector": connector,
        "source": source,
        "db": database or table.schema,
        "schema": table.schema,
        "table": table.name,
        "topic": topic,
        "version": version,
        "position": position.text,
        "key": list(table.key),
        "columns": [{"name": c.name, "type": c.type, **_kind(c.kind)} for c in table.columns],
        **({"marks": list(table.marks)} if table.marks else {}),
        **({"deferred_key": True} if table.deferred_key else {}),
        **({"format": format_} if format_ else {}),
        **({"key_form": key_form} if key_form else {}),
        **({"rules": published.rules} if published is not None else {}),
        **(
            {"left_out": [list(of) for of in published.left_out]}
            if published is not None and published.left_out
            else {}
        ),
    }
    return orjson.dumps(key), orjson.dumps(value)


def _kind(kind: Kind) -> dict[str, object]:
    described: dict[str, object] = {"kind": kind.name}
    if kind.precision is not None:
        described |= {"precision": kind.precision, "scale": kind.scale or 0}
    if kind.element is not None:
        described["element"] = _kind(kind.element)
    return described
