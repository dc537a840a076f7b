"""Encodes rows and keys of one version of one table as JSON, by the contract of docs/events.md. Pure.

Parts that depend on the table alone are computed once per table version, here; those that depend on the transaction
once per transaction (`cdc.encode.envelope.frame`). A row then costs its columns and two formats.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from cdc import __version__
from cdc.encode.envelope.row_codegen import Write, hole_finder, key_writer, row_writer
from cdc.encode.envelope.source_block import compiled_shape, source_block, take_counts
from cdc.model.change import UNCHANGED, Row, Table, Unsent
from cdc.model.errors import BugError, OperatorError
from cdc.model.state import Key
from cdc.model.wire import Wire
from cdc.rules.capture_rules import Published
from cdc.rules.flat import Flat
from cdc.rules.routes import key_end

_NULL: Final = b"null"
WITH_SCHEMA: Final = b'{"schema":{"type":"struct"'


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A column ready to be written: ``,"name":`` (``{`` for the first) and the value's encoder."""

    name: str
    prefix: bytes
    encode: Callable[[bytes], bytes]

    @classmethod
    def of(cls, name: str, encode: Callable[[bytes], bytes], *, first: bool) -> _Encoded:
        return cls(name, (b"{" if first else b",") + orjson.dumps(name) + b":", encode)


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
        names_source: bool = False,
    ) -> None:
        """`published` is what the rules leave of the table; None: all of it, as it is.

        `flat` is how the table's topic is flat, `wire` how records are not plain JSON. `names_source`: keys have the
        table's name, for the topic is not of this table alone.
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
        self._key_end = key_end(table.qualified) if names_source else b"}"
        self.toastable = any(column.toastable for column in table.columns)
        self.key_indexes = table.key_indexes
        encoders = [column.encode for column in table.columns] if wire is None else wire.encoders
        named = [(column.name, encode) for column, encode in zip(table.columns, encoders, strict=True)]
        self._columns = tuple(_Encoded.of(*of, first=i == 0) for i, of in enumerate(named))
        self._key = tuple((index, _Encoded.of(*named[index], first=i == 0)) for i, index in enumerate(self.key_indexes))
        self.has_holes = hole_finder(tuple(index for index, column in enumerate(table.columns) if column.toastable))
        """Whether the source left values out of a row: it may leave out toastable ones."""
        # the generated functions may raise any error, see `cdc.encode.envelope.row_codegen`
        self.write_row = row_writer([(column.prefix, column.encode) for column in self._columns])
        self.write_key = self._key_writer()
        self.told = (
            (__version__, connector, prefix),
            (database, table.schema, table.name) if database else (table.schema, table.name),
        )
        """What the source block says in all events, as text: first who writes, then of what."""
        head, self.source_where = source_block(connector, prefix, database, table.schema, table.name)
        self.source_head = b'{"before":%b,"after":%b,' + head
        self.source_tail = b'","schema_version":%d},"transaction":' % version
        counted = table.qualified  # events are numbered by table, whatever topic they go to
        self.shape = compiled_shape(b"," + head, self.source_where, self.source_tail, counted, counted)
        self.made: Counter[bytes] = Counter()

    def _key_writer(self) -> Write:
        columns = [(column.prefix, column.encode) for _, column in self._key]
        wire = self.wire
        if wire is None or wire.around_key is None:
            write = key_writer(columns, self.key_indexes, end=self._key_end)
            return write if wire is None else (lambda row: wire.key(write(row)))
        begin, end = wire.around_key
        (prefix, encode), *others = columns
        return key_writer([(begin + prefix, encode), *others], self.key_indexes, end=b"}" + end)

    def key_image(self, key: bytes) -> bytes:
        """Return the JSON of a record's key columns; ``null`` for one of another format."""
        if self.wire is not None:
            return self.wire.key_image(key)
        key = key.removesuffix(self._key_end) + b"}" if key.endswith(self._key_end) else key
        return key if key[:1] == b"{" and not key.startswith(WITH_SCHEMA) else _NULL

    def taken(self) -> dict[str, int]:
        """Return how many events of each op were made since the last call."""
        return take_counts(self)

    def cut(self, row: Row) -> Row:
        """Leave out of a row of the source what is not published: all other methods take what is left."""
        if self.published is None or self.published.cut is None:
            return row
        return self.published.cut(row)

    def cut_old(self, row: Row) -> Row:
        """Do the same to the old row of a change, without what could not be decrypted any more."""
        if self.published is None or self.published.encrypted is None:
            return self.cut(row)
        return self.published.encrypted.cut_old(row)

    def publishes(self, row: Row) -> bool | Unsent | None:
        """Whether a row of the source is published: only if True. UNCHANGED: that depends on a value not sent."""
        if self.published is None or self.published.judge is None:
            return True
        return self.published.judge(row)

    def refuse_unjudged(self) -> None:
        """Raise OperatorError for rows that were read, if the table has not what their condition speaks of any more.

        None of them would be published, and what the topic has of them would be deleted.
        """
        if self.published is not None and self.published.unjudged is not None:
            raise self.published.unjudged

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
        parts.append(self._key_end)
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
