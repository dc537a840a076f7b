"""PostgreSQL's snapshot: sessions COPY in key order in parallel, under the slot's view or, after a crash, a new one."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import Final

import psycopg2
import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from cdc.model.change import Row, Table, Xid
from cdc.model.errors import ChangedError, RetryableError, raise_first
from cdc.model.interfaces import Chunk, Handover, Window
from cdc.model.state import Key
from connectors.postgres import same_server, session
from connectors.postgres.cancelling import cancel
from connectors.postgres.catalog import lock_room
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.copy_text import parse_row
from connectors.postgres.slot.slot import await_older_transactions
from snapshot.handover import PostgresView, Progress, RangeHandover
from snapshot.key_ranges import KeyRange, needs_splitting, split_ranges
from snapshot.parallel_readers import ParallelReaders, RowBuffer, chunks, release
from snapshot.postgres.copying import (
    Relation,
    copy_statement,
    lock_statement,
    plan_statement,
    sample_statement,
    shape_statement,
)
from snapshot.postgres.logs import Log, WriteAheadLog
from snapshot.postgres.names import named
from snapshot.postgres.single_rows import LastWrittenRows, single_row
from snapshot.postgres.windows import PostgresWindows

_REWRITTEN: Final = """
SELECT count(*) FROM pg_class c
WHERE (c.oid = %s OR c.oid IN (SELECT relid FROM pg_partition_tree(%s::oid::regclass))) AND c.relkind = 'r'
  AND c.relfilenode IS DISTINCT FROM pg_relation_filenode(c.oid)
"""
"""Counts files of a table and its partitions that differ between the view and now."""
_BYTEWISE: Final = """
SELECT a.attname
FROM pg_attribute a
JOIN pg_collation c ON c.oid = a.attcollation
JOIN pg_database d ON d.datname = current_database() AND d.encoding = pg_char_to_encoding('UTF8')
WHERE a.attrelid = %s AND a.atttypid IN ('text'::regtype, 'varchar'::regtype)
  AND CASE replace(c.collprovider::text, 'd', coalesce(to_jsonb(d)->>'datlocprovider', 'c'))
           WHEN 'b' THEN true
           WHEN 'c' THEN CASE c.collprovider WHEN 'd' THEN d.datcollate ELSE c.collcollate END IN ('C', 'POSIX')
           ELSE false END
"""
"""Text columns that compare by code point, which is by byte in UTF-8: collation C, and provider builtin."""
log = logging.getLogger("cdc")

_PAGES: Final = """
SELECT coalesce(sum(pg_relation_size(oid)), 0)::int8 / current_setting('block_size')::int8
FROM (SELECT %s::oid UNION SELECT relid FROM pg_partition_tree(%s::oid::regclass)) AS t(oid)
"""
_SHAPE: Final = """
WITH RECURSIVE found(name, number, type) AS (
    SELECT a.attname::text, a.attnum::int, a.atttypid FROM pg_attribute a
    WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL
    SELECT found.name, found.number, t.typbasetype
    FROM found JOIN pg_type t ON t.oid = found.type WHERE t.typtype = 'd'
)
SELECT found.name, found.number, t.oid::int8 FROM found JOIN pg_type t ON t.oid = found.type WHERE t.typtype <> 'd'
"""
_ROWS_A_PAGE: Final = 291
"""The most rows of a page of 8 kB; the planner assumes at least ten pages for a table without statistics."""
_SAMPLED_PAGES: Final = 256


class PostgresSnapshotter:
    """Reads on connections of its own, in repeatable-read transactions that end with `close`."""

    def __init__(self, config: ConnectorConfig, log: Log | None = None) -> None:
        """`log`: what tells of the tables' changes; None: PostgreSQL's own."""
        self._log = log or WriteAheadLog(config)
        self._params = session.parameters(config.source.url, f"cdc {config.name} snapshot")
        self._publication = config.publication
        self._workers = config.snapshot.workers
        self._chunk_rows = config.snapshot.chunk_rows
        self._sessions: list[psycopg2.extensions.connection] = []
        self._readers: ParallelReaders[psycopg2.extensions.connection] | None = None
        self._windows = PostgresWindows(config, self._log)
        self._asking: psycopg2.extensions.connection | None = None
        self._last_written = LastWrittenRows(self._params, config.publication)

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        done = Progress.from_json(progress)
        remaining = [table for table in tables if not done.of(table).done]
        if not remaining:
            return
        first = self._session()
        if (
            view is None and self._log.late
        ):  # a commit before the slot's point may wait for a standby and be in no view yet
            await_older_transactions(Catalog(first), "the snapshot")
        _begin(first, view)
        catalog = Catalog(first)
        number = 0
        if view is None:
            ((text,),) = catalog.rows("taking a view", "SELECT pg_current_snapshot()::text")
            number = len(done.views) + 1
            done = replace(done, views={**done.views, number: (text, self._log.end(catalog))})
            self._make_safe()
        ((shared,),) = catalog.rows("sharing the view", "SELECT pg_export_snapshot()")
        planned: list[KeyRange[Relation]] = []
        for table in remaining:
            with named(_altered(table)), _letting_go(catalog):
                done, found = self._plan(first, table, done)
            planned += found
        rows_before = sum(at.rows for at in done.tables.values())
        done = replace(done, started_at_ms=_now_ms(), rows_before=rows_before)
        while len(self._sessions) < min(self._workers, len(planned)):
            _begin(self._session(), shared)
        readers = self._readers = ParallelReaders(self._sessions, planned, _read, cancel)
        yield from chunks(readers, done, views=[number] * len(self._sessions), parse=_parse)
        self._end()

    def _make_safe(self) -> None:
        """Commit something: then what the view sees is lost in no crash of the server."""
        try:
            other = same_server.beside(self._params)
        except RetryableError as exc:  # such as a role's CONNECTION LIMIT, which the snapshot itself keeps within
            log.warning("rows that the server loses in a crash right now may stay in the topics: %s", exc.message)
            return
        with closing(other):
            self._log.nudge(Catalog(other))

    def _session(self) -> psycopg2.extensions.connection:
        connection = same_server.beside(self._params)
        self._sessions.append(connection)
        return connection

    def _plan(
        self, connection: psycopg2.extensions.connection, table: Table, done: Progress
    ) -> tuple[Progress, list[KeyRange[Relation]]]:
        """Plan the key ranges to read of a table; return them with the progress, which has its estimate."""
        catalog = Catalog(connection)
        there = catalog.relation(table.schema, table.name)
        if there is None:
            raise _altered(table)
        oid, partitioned = there
        now = self._log.catalog(connection).marks(oid)
        if table.marks and (now is None or now[1:] != table.marks[1:]):  # its rows are under the view, in any file
            raise _altered(table)
        indexed = catalog.rows("reading the catalog", _BYTEWISE, (oid,))
        relation = Relation(
            oid,
            partitioned=partitioned,
            indexed=frozenset(name for (name,) in indexed),
            encoding=session.key_encoding(connection),
            shape=frozenset(catalog.rows("reading the catalog", _SHAPE, (oid,))),
        )
        if partitioned:
            raise_first(lock_room.refusals(catalog.rows, {oid: table.qualified}))
        ((pages,),) = catalog.rows(f"sizing table {table.qualified}", _PAGES, (oid, oid))
        (((plan,),),) = catalog.rows(f"sizing table {table.qualified}", plan_statement(table, relation))
        estimate = min(int(plan["Plan"]["Plan Rows"]), pages * _ROWS_A_PAGE)
        at = done.of(table)
        at = replace(at, estimate=max(at.estimate, estimate))
        sample: Iterable[Key] = ()
        if needs_splitting(at, workers=self._workers, smallest=self._chunk_rows):
            sample = _sample(catalog, table, relation, percent=min(100.0, 100.0 * _SAMPLED_PAGES / max(pages, 1)))
        return done.with_table(table, at), list(split_ranges(table, relation, at, sample=sample, workers=self._workers))

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        return self._windows.read(table, after, rows, key=key, first=first)

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        return self._windows.find(table, keys, first=first)

    def sizes(self, tables: Sequence[Table]) -> Mapping[str, int]:
        return self._windows.sizes(tables)

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        if self._asking is None:
            self._asking = same_server.beside(self._params)
        found = single_row(self._asking, self._publication, table, key)
        return None if found is None else found.row

    def row_written_last(self, table: Table, key: Sequence[bytes], xid: Xid) -> Row | None:
        """See `cdc.model.interfaces.LastWritten`; a server that does not answer at once has not told."""
        return self._last_written.row(table, key, xid)

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = RangeHandover(tables, Progress.from_json(progress), PostgresView.parse)
        return None if made.hides_nothing else made

    def close(self) -> None:
        self._end()
        self._windows.close()
        self._last_written.close()
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def _end(self) -> None:
        """Close what `chunks` has opened."""
        readers, self._readers = self._readers, None
        sessions, self._sessions = self._sessions, []
        release(readers, sessions, psycopg2.extensions.connection.close)


def _begin(connection: psycopg2.extensions.connection, view: str | None) -> None:
    """Begin the transaction for all reads, under `view` or a view of its own."""
    try:
        connection.autocommit = False
        connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
    except session.DRIVER_ERRORS as exc:
        raise session.translate(exc, "beginning a snapshot") from exc
    if view is None:
        return
    try:
        with connection.cursor() as cursor:
            cursor.execute("SET TRANSACTION SNAPSHOT %s", (view,))
    except session.DRIVER_ERRORS as exc:  # its owner, the walsender or a session of ours, may be gone
        raise RetryableError(
            "the snapshot's view is gone: reading goes on under a new one", hint=session.GO_ON, at_start=True
        ) from exc


def _sample(catalog: Catalog, table: Table, relation: Relation, *, percent: float) -> Iterator[Key]:
    text = io.BytesIO()
    catalog.copy(f"sampling table {table.qualified}", sample_statement(table, relation, percent=percent), text)
    text.seek(0)
    for line in text:
        yield tuple(part for part in parse_row(line, len(table.key)) if isinstance(part, bytes))


def _read(connection: psycopg2.extensions.connection, key_range: KeyRange[Relation], rows: RowBuffer) -> None:
    """Copy one key range. The table is locked only meanwhile, so that DDL need not wait for the rest.

    Raises RetryableError if the table was rewritten since the view was taken, because an older view sees it empty
    (https://www.postgresql.org/docs/current/mvcc-caveats.html), and ChangedError if it was altered or has gone since: a
    view keeps rows as they were, but names mean what they mean now. With all of them given back later, no look at the
    catalog would tell of it.
    """
    table, relation, catalog = key_range.table, key_range.relation, Catalog(connection)
    with named(_altered(table)), _letting_go(catalog):
        catalog.rows(f"locking table {table.qualified}", lock_statement(table, relation))
        ((rewritten,),) = catalog.rows("reading the catalog", _REWRITTEN, (relation.oid, relation.oid))
        if rewritten:
            raise RetryableError(
                f"table {table.qualified} was rewritten (TRUNCATE, ALTER TABLE, VACUUM FULL) after its snapshot began"
            )
        shape = catalog.answer_of(f"reading table {table.qualified}", shape_statement(table, relation))
        if any(of != relation.oid or (name, n, type_) not in relation.shape for name, of, n, type_ in shape):
            raise _altered(table)
        statement = copy_statement(table, relation, after=key_range.after, upto=key_range.upto)
        catalog.copy(f"reading table {table.qualified}", statement, rows)


def _altered(table: Table) -> ChangedError:
    return ChangedError(f"table {table.qualified} was altered or dropped after its snapshot began: looking again")


def _parse(table: Table, lines: list[bytes]) -> list[Row]:
    return [parse_row(line, len(table.columns)) for line in lines]


@contextmanager
def _letting_go(catalog: Catalog) -> Iterator[None]:
    """Release at the end all locks taken inside, which a transaction would keep; its view stays."""
    catalog.rows("setting a savepoint", "SAVEPOINT locks")
    yield
    catalog.rows("giving back locks", "ROLLBACK TO SAVEPOINT locks")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_snapshotter(config: ConnectorConfig) -> PostgresSnapshotter:
    """Make the snapshotter for the registry. It does not connect yet."""
    return PostgresSnapshotter(config)
