"""MySQL's snapshot: sessions SELECT in key order in parallel, under views whose place in the log is known."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.model.change import Row, Table
from cdc.model.errors import RetryableError
from cdc.model.interfaces import Chunk, Handover, Window
from cdc.model.state import Key
from connectors.captured_tables import looking_again
from connectors.mysql import same_server, session
from connectors.mysql.catalog.catalog import Captured
from snapshot.handover import INTEGERS, Progress, RangeHandover, key_columns, key_of
from snapshot.key_ranges import KeyRange, needs_splitting, split_ranges
from snapshot.mysql import selects
from snapshot.mysql.logs import BinaryLog, Log
from snapshot.mysql.rows import all_rows, looked_at_again, stream_rows
from snapshot.mysql.selects import Relation
from snapshot.mysql.views import end_view
from snapshot.parallel_readers import ParallelReaders, RowBuffer, chunks, release

log = logging.getLogger("cdc")

_READ_TIMEOUT_S: Final = 3600.0
"""How long a read may be silent: keys without an index in their order are sorted first."""
_SAMPLES: Final = 1024
_CLOSE_S: Final = 5.0
_SIZE: Final = "SELECT TABLE_ROWS FROM information_schema.TABLES WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s"

_Statement = Callable[[Captured], str | None]
"""Makes the statement that reads a table as it is now; None: it cannot be read."""


class MysqlSnapshotter:
    """Reads on connections of its own, in read-only transactions that end with `close`."""

    def __init__(self, config: ConnectorConfig, log: Log) -> None:
        self._config = config
        self._log = log
        self._address = session.address(config.source.url)
        self._workers = config.snapshot.workers
        self._chunk_rows = config.snapshot.chunk_rows
        self._sessions: list[session.Connection] = []
        self._readers: ParallelReaders[session.Connection] | None = None
        self._asking: session.Connection | None = None
        self._window: session.Connection | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        del view  # MySQL has no view that sessions could share
        done = Progress.from_json(progress)
        remaining = [table for table in tables if not done.of(table).done]
        if not remaining:
            return
        first = self._session()
        planned: list[KeyRange[Relation]] = []
        for table in remaining:
            done, found = self._plan(first, table, done)
            planned += found
        while len(self._sessions) < min(self._workers, len(planned)):
            self._session()
        taken, end = self._log.take_views(
            self._sessions, remaining, self._connect, over=self._closed.is_set, all_=True, exact=True
        )
        numbers = {text: n for n, text in enumerate(dict.fromkeys(view.text for view in taken), len(done.views) + 1)}
        rows_before = sum(at.rows for at in done.tables.values())
        done = replace(
            done,
            views={**done.views, **{number: (text, end) for text, number in numbers.items()}},
            started_at_ms=_now_ms(),
            rows_before=rows_before,
        )
        readers = self._readers = ParallelReaders(self._sessions, planned, self._read, session.break_off)
        yield from chunks(readers, done, views=[numbers[view.text] for view in taken], parse=lambda _, rows: rows)
        self._end()

    def _connect(self) -> session.Connection:
        return same_server.beside(self._address, read_timeout_s=_READ_TIMEOUT_S)

    def _session(self) -> session.Connection:
        connection = self._connect()
        self._sessions.append(connection)
        return connection

    def _plan(
        self, connection: session.Connection, table: Table, done: Progress
    ) -> tuple[Progress, list[KeyRange[Relation]]]:
        """Plan the key ranges to read of a table; return them with the progress, which has its estimate."""
        now = self._now(connection, table)
        relation = Relation(now.columns)
        at = done.of(table)
        at = replace(at, estimate=max(at.estimate, now.rows))
        sample: Iterable[Key] = ()
        if needs_splitting(at, workers=self._workers, smallest=self._chunk_rows):
            sample = _sample(connection, table)
        return done.with_table(table, at), list(split_ranges(table, relation, at, sample=sample, workers=self._workers))

    def _read(self, connection: session.Connection, key_range: KeyRange[Relation], rows: RowBuffer) -> None:
        """Read one key range, then release the table: a transaction blocks DDL on the tables that it has read."""
        table = key_range.table
        doing = f"reading table {table.qualified}"
        session.rows(connection, doing, "SAVEPOINT locks")
        all_rows(connection, doing, selects.lock_by_reading(table), ())
        now = self._now(connection, table)
        if now.table.columns != table.columns or now.table.key != table.key:
            raise RetryableError(f"table {table.qualified} was altered after its snapshot began")
        statement = selects.chunk_statement(table, key_range.relation, after=key_range.after, upto=key_range.upto)
        for some, size_bytes in stream_rows(connection, doing, statement, selects.documents(table)):
            rows.add(some, size_bytes)
        session.rows(connection, doing, "ROLLBACK TO SAVEPOINT locks")

    def _found(self, connection: session.Connection, table: Table) -> Captured | None:
        with looking_again():
            return self._log.catalog(connection).find(table.schema, table.name, self._config.source.keys)

    def _now(self, connection: session.Connection, table: Table) -> Captured:
        now = self._found(connection, table)
        if now is None:
            raise RetryableError(f"table {table.qualified} was dropped during its snapshot")
        return now

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = RangeHandover(tables, Progress.from_json(progress), self._log.parse)
        return None if made.hides_nothing else made

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        def statement(now: Captured) -> str:
            behind = after if now.table.key_order == key else None
            return selects.window_statement(now.table, Relation(now.columns), after=behind, rows=rows)

        return self._under_a_view(table, statement, rows=rows, first=first)

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        def statement(now: Captured) -> str | None:
            if now.table.key_as_text != table.key_as_text:
                return None
            return selects.keys_statement(now.table, Relation(now.columns), keys)

        return self._under_a_view(table, statement, rows=None, first=first)

    def sizes(self, tables: Sequence[Table]) -> Mapping[str, int]:
        with self._windows() as connection:
            found = {
                table.qualified: session.rows(connection, "sizing a table", _SIZE, (table.schema, table.name))
                for table in tables
            }
        return {name: int(rows[0][0] or 0) for name, rows in found.items() if rows}

    @contextmanager
    def _windows(self) -> Iterator[session.Connection]:
        """Give the connection that reads windows."""
        with self._in_use:
            if self._closed.is_set():
                raise RetryableError("reading was ended")
            if self._window is None or not self._window.open:
                self._window = self._connect()
            yield self._window

    def _under_a_view(self, table: Table, statement: _Statement, *, rows: int | None, first: bool) -> Window | None:
        with self._windows() as connection:
            try:
                return self._read_window(connection, table, statement, rows, first=first)
            finally:
                if connection.open:
                    end_view(connection)

    def _read_window(
        self,
        connection: session.Connection,
        table: Table,
        statement: _Statement,
        rows: int | None,
        *,
        first: bool,
    ) -> Window | None:
        """Read under a new view; `rows`: as many as `statement` asks for, None if no more rows can follow."""
        if self._found(connection, table) is None:
            return None
        (taken,), end = self._log.take_views(
            [connection], [table], self._connect, over=self._closed.is_set, all_=first, exact=False
        )
        now = self._found(connection, table)
        if now is None:
            return None
        select = statement(now)
        if select is None:
            return None
        read = all_rows(connection, f"reading table {table.qualified}", select, selects.documents(now.table))
        if self._config.source.columns:  # what a rule hides may be under a name that the log has still to tell of
            end = max(end, self._log.end(connection))
        return Window(
            table=now.table,
            rows=read,
            after=key_of(now.table, read[-1]) if len(read) == rows else None,
            sees=taken.sees,
            end=end,
            estimate=now.rows,
            read_at_ms=_now_ms(),
        )

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        if self._asking is None:
            self._asking = self._connect()
        now = self._found(self._asking, table)
        if now is None or now.table.columns != table.columns:
            return None
        statement = selects.row_statement(table, Relation(now.columns), key)
        doing = f"reading a row of table {table.qualified}"
        return next(iter(all_rows(self._asking, doing, statement, selects.documents(table))), None)

    def close(self) -> None:
        self._closed.set()
        self._end()
        for connection in (self._window, self._asking):
            if connection is not None:
                session.break_off(connection)
        if self._in_use.acquire(timeout=_CLOSE_S):
            session.close(self._window)
            self._in_use.release()
        session.close(self._asking)
        self._asking = None

    def _end(self) -> None:
        """Close what `chunks` has opened."""
        readers, self._readers = self._readers, None
        sessions, self._sessions = self._sessions, []
        release(readers, sessions, session.close)


def _sample(connection: session.Connection, table: Table) -> Iterator[Key]:
    columns = key_columns(table)
    if len(columns) != 1 or columns[0].type not in INTEGERS:
        return
    doing = f"sampling table {table.qualified}"
    with looked_at_again(doing):
        ((first, last),) = session.rows(connection, doing, selects.ends_statement(table))
    if first is not None and last is not None:
        yield from selects.interpolated(int(first), int(last), _SAMPLES)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_snapshotter(config: ConnectorConfig) -> MysqlSnapshotter:
    """Make the snapshotter for the registry. It does not connect yet."""
    return MysqlSnapshotter(config, BinaryLog())
