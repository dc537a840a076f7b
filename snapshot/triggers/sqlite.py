"""SQLite's snapshot: one session reads the tables in key order, under a view that is taken behind a mark.

A view is the number of its mark: it has seen all transactions up to there and none behind it (`change_log`). It is kept
open while the tables are read; the application goes on writing, and the file's write-ahead log grows meanwhile.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Row, Table, Xid
from cdc.model.errors import BugError, ChangedError, RetryableError
from cdc.model.interfaces import Chunk, Handover, Window
from cdc.model.state import Key
from connectors.triggers.sqlite import values
from connectors.triggers.sqlite.catalog import Catalog, Found, key_columns
from connectors.triggers.sqlite.change_log import ChangeLog
from connectors.triggers.sqlite.session import Session, path_of, quoted, translate
from connectors.triggers.sqlite.triggers import image
from connectors.triggers.sqlite.values import INTEGER, affinity
from snapshot.handover import Progress, RangeHandover, key_of

_KEYS_AT_ONCE: Final = 100
_CLOSE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A view that saw all changes up to a number."""

    last: int

    @classmethod
    def parse(cls, text: str) -> SequenceView:
        return cls(int(text.partition(" ")[0]))

    def sees(self, xid: Xid) -> bool:
        """Whether the view saw the transaction that ends with this change."""
        if isinstance(xid, str):
            raise BugError("SQLite's transactions have numbers")
        return xid <= self.last


class SqliteSnapshotter:
    """Reads one file."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._path = path_of(config.source.url)
        self._chunk_rows = config.snapshot.chunk_rows
        self._reading: Session | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()
        self._window: Session | None = None

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        if view is not None:
            raise BugError("a view of SQLite's has no name")
        done = Progress.from_json(progress)
        remaining = [table for table in tables if not done.of(table).done]
        if not remaining:
            return
        session = self._reading = Session(self._path)
        seen, at_ms = self._take_view(session)
        number = len(done.views) + 1
        done = replace(done, views={**done.views, number: (f"{seen} {at_ms}", seen + 1)})
        done = replace(done, started_at_ms=_now_ms(), rows_before=sum(at.rows for at in done.tables.values()))
        for table in remaining:
            found = _found(session, table)
            at = done.of(table)
            ((rows,),) = session.rows("sizing a table", f"SELECT count(*) FROM {found.sql}")
            done = done.with_table(table, replace(at, estimate=max(at.estimate, rows)))
            for after, upto in list(at.gaps()):
                for chunk in self._range(session, found, after, upto):
                    last = len(chunk) < self._chunk_rows
                    reached = upto if last else key_of(table, chunk[-1])
                    at = done.of(table).read(after=after, upto=reached, view=number, rows=len(chunk))
                    done, after = done.with_table(table, at), reached  # noqa: PLW2901 - it is what is read so far
                    yield Chunk(table, chunk, done.to_json(), number, _now_ms())
        self._end()

    def _take_view(self, session: Session) -> tuple[int, int]:
        """Begin to read just behind a mark, while no other writer can commit; return it, and when it was written."""
        with closing(Session(self._path)) as writer:
            changes = ChangeLog(writer, self._config.name)
            with changes.writing():
                mark = changes.mark()
                at_ms = changes.written_at(mark) or 0
                session.rows("taking a view", "BEGIN")
                session.rows("taking a view", "SELECT count(*) FROM sqlite_schema")
        return mark, at_ms

    def _range(self, session: Session, found: Found, after: Key | None, upto: Key | None) -> Iterator[list[Row]]:
        """Read a range in chunks, the last of which is smaller, and may be empty."""
        bounds, parameters = [], list[object]()
        for key, how in ((after, ">"), (upto, "<=")):
            if key is not None:
                marks, values_ = zip(*(_comparable(found, n, part) for n, part in enumerate(key)), strict=True)
                bounds.append(f"{_tuple(_order(found))} {how} {_tuple(marks)}")
                parameters += values_
        cursor = session.cursor(f"reading table {found.qualified}", _select(found, bounds, _order(found)), parameters)
        while True:
            try:
                lines = cursor.fetchmany(self._chunk_rows)
            except sqlite3.Error as exc:
                raise translate(exc, f"reading table {found.qualified}") from exc
            yield _rows(found, lines)
            if len(lines) < self._chunk_rows:
                return

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = RangeHandover(tables, Progress.from_json(progress), SequenceView.parse)
        return None if made.hides_nothing else made

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:  # noqa: ARG002 - every view sees all before it
        with self._under_a_view(table) as (session, found, mark):
            if found is None:
                return None
            now = found.table
            if now.key_order != key:
                after = None
            order = [_by_index(found, name) for name in now.key]
            marks, parameters = ([], []) if after is None else _parameters(now, after)
            bounds = [] if after is None else [f"{_tuple(order)} > {_tuple(marks)}"]
            lines = session.rows(
                f"reading table {table.qualified}", f"{_select(found, bounds, order)} LIMIT {rows}", parameters
            )
            read = _rows(found, lines)
            return Window(
                table=now,
                rows=read,
                after=key_of(now, read[-1]) if len(read) == rows else None,
                sees=SequenceView(mark).sees,
                end=mark + 1,
                estimate=None,
                read_at_ms=_now_ms(),
            )

    def sizes(self, tables: Sequence[Table]) -> Mapping[str, int]:
        with self._in_use, closing(Session(self._path)) as session:
            found = [found for table in tables if (found := Catalog(session).find(table.name)) is not None]
            return {
                of.qualified: session.rows("sizing a table", f"SELECT count(*) FROM {of.sql}")[0][0] for of in found
            }

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:  # noqa: ARG002 - as above
        with self._under_a_view(table) as (session, found, mark):
            if found is None or found.table.key_as_text != table.key_as_text:
                return None
            read: list[Row] = []
            for begin in range(0, len(keys), _KEYS_AT_ONCE):
                read += _by_keys(session, found, keys[begin : begin + _KEYS_AT_ONCE])
            return Window(found.table, read, None, SequenceView(mark).sees, mark + 1, None, _now_ms())

    @contextmanager
    def _under_a_view(self, table: Table) -> Iterator[tuple[Session, Found | None, int]]:
        with self._in_use:
            if self._closed.is_set():
                raise RetryableError("reading was ended")
            with closing(Session(self._path)) as session:
                self._window = session
                try:
                    mark, _ = self._take_view(session)
                    found = Catalog(session).find(table.name)
                    yield session, found if found is not None and found.kind == "table" else None, mark
                finally:
                    self._window = None

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        with closing(Session(self._path)) as session:
            found = Catalog(session).find(table.name)
            if found is None or found.table != table:
                return None
            return next(iter(_by_keys(session, found, [tuple(key)])), None)

    def close(self) -> None:
        self._closed.set()
        self._end()
        window = self._window
        if window is not None:
            window.interrupt()
        if self._in_use.acquire(timeout=_CLOSE_S):
            self._in_use.release()

    def _end(self) -> None:
        session, self._reading = self._reading, None
        if session is not None:
            session.close()


def _found(session: Session, table: Table) -> Found:
    """Return the table as the view has it. Raises if it is not as it was described."""
    found = Catalog(session).find(table.name)
    if found is None:
        raise ChangedError(f"table {table.qualified} was dropped during its snapshot: looking again")
    if found.table != table:
        raise RetryableError(f"table {table.qualified} was altered before its snapshot began")
    return found


def _select(found: Found, bounds: Sequence[str], order: Sequence[str]) -> str:
    """Select rows' images. Rows whose key is NULL are left out: they cannot be told apart."""
    where = [*bounds, *(f"t.{quoted(name)} IS NOT NULL" for name in found.nullable)]
    condition = f" WHERE {' AND '.join(where)}" if where else ""
    return f"SELECT {image('t', found)} FROM {found.sql} AS t{condition} ORDER BY {', '.join(order)}"


def _order(found: Found) -> list[str]:
    """Give what orders keys as `handover.sort_key` does: their own order, by an index, where it is that."""
    order = []
    for column in key_columns(found.table):
        declared = next(of for other, of, _ in found.shape.columns if other == column.name)
        bytes_ = affinity(declared) in ("text", "blob") or column.kind.name == "bytes"
        own = column.type == INTEGER or (bytes_ and found.is_bytewise(column.name))
        order.append(_by_index(found, column.name) if own else f"CAST(t.{quoted(column.name)} AS BLOB)")
    return order


def _by_index(found: Found, name: str) -> str:
    """Name a column of the key as its index compares it: the column itself may take other values for equal."""
    collation = (found.collations or {}).get(name)
    return f"t.{quoted(name)}" if collation is None else f"t.{quoted(name)} COLLATE {quoted(collation)}"


def _comparable(found: Found, number: int, part: bytes) -> tuple[str, object]:
    """Return a part of a key, and what stands for it, as what `_order` gives is compared with it."""
    column, expression = key_columns(found.table)[number], _order(found)[number]
    if not expression.startswith("CAST"):
        return values.parameter(part, column)
    return "?", part if column.kind.name != "bytes" else values.parameter(part, column)[1]


def _parameters(table: Table, key: Key) -> tuple[list[str], list[object]]:
    """Return what stands for the parts of a key, and the parts."""
    made = [values.parameter(part, column) for column, part in zip(key_columns(table), key, strict=True)]
    return [mark for mark, _ in made], [value for _, value in made]


def _by_keys(session: Session, found: Found, keys: Sequence[Key]) -> list[Row]:
    wanted, parameters = [], list[object]()
    for key in keys:
        marks, parts = _parameters(found.table, key)
        one = (f"{_by_index(found, name)} = {mark}" for name, mark in zip(found.shape.key, marks, strict=True))
        wanted.append(f"({' AND '.join(one)})")
        parameters += parts
    statement = _select(found, [f"({' OR '.join(wanted)})"], ["1"])
    read = _rows(found, session.rows(f"reading rows of table {found.qualified}", statement, parameters))
    return [row for row in read if key_of(found.table, row) in keys]  # of those that a collation takes for equal


def _rows(found: Found, lines: Sequence[tuple[bytes]]) -> list[Row]:
    columns = found.table.columns
    return [values.row(line, columns) for (line,) in lines]


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)})"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_snapshotter(config: ConnectorConfig) -> SqliteSnapshotter:
    """Make the snapshotter. It does not connect yet."""
    return SqliteSnapshotter(config)
