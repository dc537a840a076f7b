"""Reads PostgreSQL's windows of an incremental snapshot: rows of one table under a view of their own."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc.config.config import ConnectorConfig
from cdc.model.change import Table
from cdc.model.errors import ChangedError, RetryableError
from cdc.model.interfaces import Window
from cdc.model.state import Key
from connectors.captured_tables import looking_again
from connectors.postgres import same_server, session
from connectors.postgres.cancelling import cancel
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.copy_text import parse_row
from connectors.postgres.slot import afresh
from connectors.postgres.slot.slot import await_older_transactions
from snapshot.handover import PostgresView, key_of
from snapshot.postgres.copying import Relation, keys_statement, lock_statement, window_statement
from snapshot.postgres.logs import Log, WriteAheadLog
from snapshot.postgres.names import named

_LOCK_S: Final = 10
_CLOSE_S: Final = 5.0

_ESTIMATE: Final = (
    "SELECT sum(greatest(c.reltuples, 0))::int8 FROM pg_class c"
    " WHERE c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass))"
)


_Statement = Callable[[Table, Relation], sql.Composable | None]
"""Makes the statement that reads a table as it is now; None: it cannot be read."""


class PostgresWindows:
    """Reads all windows of a session on one connection; used by one thread, closed by any."""

    def __init__(self, config: ConnectorConfig, log: Log | None = None) -> None:
        """`log`: as for the snapshotter."""
        self._config = config
        self._log = log or WriteAheadLog(config)
        self._connection: psycopg2.extensions.connection | None = None
        self._catalog: Catalog | None = None
        self._in_use = threading.Lock()
        self._closed = threading.Event()
        self._behind: set[str] = set()
        """The tables that were read since a walsender was asked for: see `afresh`."""

    def read(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        """See `cdc.model.interfaces.Snapshotter.window`."""

        def statement(now: Table, relation: Relation) -> sql.Composable:
            return window_statement(now, relation, after=after if now.key_order == key else None, rows=rows)

        return self._under_a_view(table, statement, rows=rows, first=first)

    def find(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        """See `cdc.model.interfaces.Snapshotter.rows`."""

        def statement(now: Table, relation: Relation) -> sql.Composable | None:
            return keys_statement(now, relation, keys) if now.key_as_text == table.key_as_text else None

        return self._under_a_view(table, statement, rows=None, first=first)

    def sizes(self, tables: Sequence[Table]) -> dict[str, int]:
        """See `cdc.capture.snapshots.turns.Sizing`."""
        with self._in_use:
            _, catalog = self._open()
            found = {table.qualified: catalog.relation(table.schema, table.name) for table in tables}
            return {
                name: estimate
                for name, there in found.items()
                if there is not None
                for (estimate,) in catalog.rows("sizing a table", _ESTIMATE, (there[0], there[0]))
            }

    def _under_a_view(self, table: Table, statement: _Statement, *, rows: int | None, first: bool) -> Window | None:
        with self._in_use:
            connection, catalog = self._open()
            if first and self._log.late:
                await_older_transactions(
                    catalog, f"reading table {table.qualified}", within_s=None, over=self._closed.is_set
                )
                if rows is not None:
                    self._await_walsender(catalog, table.qualified)
            try:
                return self._read(catalog, connection, table, statement, rows)
            except (psycopg2.Error, SystemError) as exc:  # of a commit or a setting of the session, not of a statement
                raise session.translate(exc, f"reading table {table.qualified}") from exc
            finally:
                with suppress(*session.DRIVER_ERRORS):  # the connection is lost, and the next view opens another
                    connection.rollback()
                    connection.autocommit = True

    def _await_walsender(self, catalog: Catalog, table: str) -> None:
        """Have the log sent behind all that was open as the tables joined: at a session's start, so by one for all."""
        if not self._behind or table in self._behind:
            afresh.await_new(catalog, (self._config.source.url, self._config.slot), over=self._closed.is_set)
            self._behind.clear()
        self._behind.add(table)

    def _open(self) -> tuple[psycopg2.extensions.connection, Catalog]:
        if self._closed.is_set():
            raise RetryableError("reading was ended")
        if self._connection is None or self._catalog is None or self._connection.closed:
            params = session.parameters(self._config.source.url, f"cdc {self._config.name} windows")
            self._connection = same_server.beside(params)
            self._catalog = self._log.catalog(self._connection)
        return self._connection, self._catalog

    def _read(
        self,
        catalog: Catalog,
        connection: psycopg2.extensions.connection,
        table: Table,
        statement: _Statement,
        rows: int | None,
    ) -> Window | None:
        """Read under a new view; `rows`: as many as `statement` asks for, None if no more rows can follow.

        A table whose columns were altered since the session began is not read: names that mean another column now may
        be given back before the next look at the catalog.
        """
        there = catalog.relation(table.schema, table.name)
        if there is None:
            return None
        connection.autocommit = False
        connection.set_session(isolation_level="REPEATABLE READ", readonly=False)
        oid, partitioned = there
        relation = Relation(oid, partitioned, encoding=session.key_encoding(connection))
        catalog.rows("setting lock_timeout", sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(f"{_LOCK_S}s")))
        # The lock comes first: a view taken before a rewrite would see an empty table.
        altered = ChangedError(f"table {table.qualified} was altered before it was read: looking again")
        with named(altered):
            catalog.rows(f"locking table {table.qualified}", lock_statement(table, relation))
        ((text,),) = catalog.rows("taking a view", "SELECT pg_current_snapshot()::text")
        end = self._log.end(catalog)
        with looking_again():
            now = catalog.find(table.schema, table.name, self._config.source.keys)
        if now is None or now.oid != oid:
            raise RetryableError(f"table {table.qualified} was replaced meanwhile")
        if self._log.looks and table.marks[1:] != now.table.marks[1:]:
            raise altered
        select = statement(now.table, relation)
        if select is None:
            return None
        found = io.BytesIO()
        catalog.copy(f"reading table {table.qualified}", select, found)
        ((estimate,),) = catalog.rows("estimating", _ESTIMATE, (oid, oid))
        connection.commit()
        self._log.nudge(catalog)
        connection.commit()
        columns = len(now.table.columns)
        read = [parse_row(line, columns) for line in found.getvalue().splitlines(keepends=True)]
        return Window(
            table=now.table,
            rows=read,
            after=key_of(now.table, read[-1]) if len(read) == rows else None,
            sees=PostgresView.parse(text).sees,
            end=end,
            estimate=estimate,
            read_at_ms=time.time_ns() // 1_000_000,
        )

    def close(self) -> None:
        """End what runs; safe to call twice, on any thread."""
        self._closed.set()
        connection = self._connection
        if connection is None or connection.closed:
            return
        if not (idle := self._in_use.acquire(blocking=False)):
            cancel(connection)
        if idle or self._in_use.acquire(timeout=_CLOSE_S):
            connection.close()
            self._in_use.release()
