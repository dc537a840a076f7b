"""PostgreSQL's snapshot: every table by one COPY in key order, under the slot's view or, after a crash, a new one."""

from __future__ import annotations

import io
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc.change import Row, Table
from cdc.config import ConnectorConfig
from cdc.errors import BugError, OperatorError, RetryableError
from cdc.interfaces import Chunk, Handover
from connectors.postgres import session
from connectors.postgres.catalog import Catalog
from connectors.postgres.slot import await_older_transactions
from connectors.postgres.stream import lsn_number
from snapshot.chunks import copy_statement, parse_row, row_statement
from snapshot.handover import PostgresHandover, Progress, TableProgress

_REWRITTEN: Final = """
SELECT count(*) FROM pg_class c
WHERE (c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass))) AND c.relkind = 'r'
  AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
"""
"""The view's file of a table and its partitions against the file it has now."""
_KIND: Final = (
    "SELECT c.oid::int8, c.relkind FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
    " WHERE n.nspname = %s AND c.relname = %s"
)
_CHUNK_ROWS: Final = 2_000
_QUEUED_CHUNKS: Final = 4


class PostgresSnapshotter:
    """Reads on a connection of its own, in a repeatable-read transaction that ends with `close`."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._params = session.parameters(config.source.url, f"cdc {config.name} snapshot")
        self._connection: psycopg2.extensions.connection | None = None
        self._reader: _Reader | None = None

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        done = Progress.from_json(progress)
        remaining = [t for t in tables if not done.tables.get(t.qualified, TableProgress()).done]
        if not remaining:
            return
        connection = self._connection = session.connect(self._params)
        if view is None:  # a commit before the slot's point may be held (synchronous standby) and in no view yet
            await_older_transactions(Catalog(connection))
        connection.autocommit = False
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
        catalog = Catalog(connection)
        number = 0
        if view is not None:
            with connection.cursor() as cursor:
                self._execute(cursor, "SET TRANSACTION SNAPSHOT %s", (view,))
        else:
            ((text,),) = catalog.rows("taking a view", "SELECT pg_current_snapshot()::text")
            ((end,),) = catalog.rows("reading the log's end", "SELECT pg_current_wal_insert_lsn()::text")
            number = len(done.views) + 1
            done = Progress(done.tables, {**done.views, str(number): (text, lsn_number(end))})
        for table in remaining:
            for rows, last in self._table(catalog, table, done.tables.get(table.qualified, TableProgress())):
                at = done.tables.get(table.qualified, TableProgress())
                at = at.read(None if last else _key(table, rows[-1]), str(number) if number else None, len(rows))
                done = Progress({**done.tables, table.qualified: at}, done.views)
                yield Chunk(table, rows, done.to_json(), number, time.time_ns() // 1_000_000)
        self.close()

    @staticmethod
    def _execute(cursor: psycopg2.extensions.cursor, statement: str, parameters: Sequence[object]) -> None:
        try:
            cursor.execute(statement, parameters)
        except psycopg2.Error as exc:  # its owner, the walsender, may be gone: the slot stays, a new view will do
            raise RetryableError(
                "the slot's snapshot is gone: reading goes on under a new view", at_start=True
            ) from exc

    def _table(self, catalog: Catalog, table: Table, at: TableProgress) -> Iterator[tuple[list[Row], bool]]:
        """Lists of rows in key order, and whether it is the last of the table."""
        kinds = catalog.rows("reading the catalog", _KIND, (table.schema, table.name))
        if not kinds:
            raise OperatorError(f"table {table.qualified} was dropped during its snapshot", hint="start again")
        if self._connection is None:
            raise BugError("the snapshot's connection is closed")
        oid, kind = kinds[0]
        self._hold_still(catalog, table, oid, partitioned=kind == "p")
        statement = copy_statement(table, partitioned=kind == "p", after=at.after)
        reader = self._reader = _Reader(self._connection, statement.as_string(self._connection), table)
        columns = len(table.columns)
        for lines, last in reader.chunks():
            yield [parse_row(line, columns) for line in lines], last

    @staticmethod
    def _hold_still(catalog: Catalog, table: Table, oid: int, *, partitioned: bool) -> None:
        """Lock the table as reading will; raise RetryableError if it was rewritten since the view was taken.

        To an older view such a table is empty: https://www.postgresql.org/docs/current/mvcc-caveats.html
        """
        what = sql.SQL("" if partitioned else "ONLY ") + sql.Identifier(table.schema, table.name)
        catalog.rows(f"locking table {table.qualified}", sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(what))
        ((rewritten,),) = catalog.rows("reading the catalog", _REWRITTEN, (oid, oid))
        if rewritten:
            raise RetryableError(
                f"table {table.qualified} was rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) after its snapshot began"
            )

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        connection = session.connect(self._params)
        found = io.BytesIO()
        try:
            kinds = Catalog(connection).rows("reading the catalog", _KIND, (table.schema, table.name))
            if not kinds:
                return None
            statement = row_statement(table, partitioned=kinds[0][1] == "p", key=key)
            with connection.cursor() as cursor:
                cursor.copy_expert(statement, found)
        except psycopg2.Error as exc:
            raise session.translate(exc, f"reading a row of table {table.qualified}") from exc
        finally:
            connection.close()
        line = found.getvalue()
        return parse_row(line, len(table.columns)) if line else None

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = PostgresHandover(tables, Progress.from_json(progress))
        return None if made.hides_nothing else made

    def close(self) -> None:
        connection, self._connection = self._connection, None
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.stop()
        if connection is not None:
            connection.close()


class _Reader:
    """Runs one COPY on a thread, since psycopg2 pushes its rows; a bounded queue holds it back."""

    def __init__(self, connection: psycopg2.extensions.connection, statement: str, table: Table) -> None:
        self._connection = connection
        self._statement = statement
        self._table = table
        self._queue: queue.Queue[list[bytes] | BaseException | None] = queue.Queue(_QUEUED_CHUNKS)
        self._lines: list[bytes] = []
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cdc-snapshot", daemon=True)

    def chunks(self) -> Iterator[tuple[list[bytes], bool]]:
        """Lists of lines; the last one is marked, and may be empty."""
        self._thread.start()
        held: list[bytes] = []
        while True:
            got = self._queue.get()
            if isinstance(got, psycopg2.Error):
                raise session.translate(got, f"reading table {self._table.qualified}") from got
            if isinstance(got, BaseException):
                raise got
            if got is None:
                yield held, True
                self._thread.join()
                return
            if held:
                yield held, False
            held = got

    def write(self, line: bytes) -> None:
        """Called by psycopg2 with each row."""
        self._lines.append(line)
        if len(self._lines) >= _CHUNK_ROWS:
            self._put(self._lines)
            self._lines = []

    def _put(self, item: list[bytes] | BaseException | None) -> None:
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
        raise _StoppedError

    def _run(self) -> None:
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(self._statement, self)
            if self._lines:
                self._put(self._lines)
            self._put(None)
        except _StoppedError:
            pass
        except BaseException as exc:  # noqa: BLE001 - handed to the reading thread
            if not self._stopped.is_set():
                self._put(exc)

    def stop(self) -> None:
        """End the thread; the connection is cancelled, so that a long read does not go on."""
        self._stopped.set()
        if self._thread.is_alive():
            try:
                self._connection.cancel()
            except psycopg2.Error:
                pass  # the connection is gone already, which is what is wanted
            self._thread.join(10)


class _StoppedError(Exception):
    pass


def _key(table: Table, row: Row) -> tuple[str, ...]:
    texts = []
    for index in table.key_indexes:
        value = row[index]
        if not isinstance(value, bytes):
            raise BugError(f"table {table.qualified}: a row without its key")
        texts.append(value.decode())
    return tuple(texts)


def open_snapshotter(config: ConnectorConfig) -> PostgresSnapshotter:
    """The registry's entry. Connects to nothing yet."""
    return PostgresSnapshotter(config)
