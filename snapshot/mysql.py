"""MySQL's snapshot: sessions SELECT in key order in parallel, under views whose place in the log is known."""

from __future__ import annotations

import io
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

import pymysql
import pymysql.cursors

from cdc.config.config import ConnectorConfig
from cdc.encode.built import built
from cdc.model.change import Row, Table
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.interfaces import Chunk, Handover, Window
from cdc.model.state import Key
from connectors.mysql import session
from connectors.mysql.binlog.positions import BinlogPosition, GtidSet
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured, Catalog
from snapshot import mysql_selects
from snapshot.handover import INTEGERS, Progress, RangeHandover, key_columns, key_of
from snapshot.key_ranges import KeyRange, needs_splitting, split_ranges
from snapshot.mysql_selects import Relation
from snapshot.mysql_visibility import BinlogView
from snapshot.parallel_readers import ParallelReaders, RowBuffer, chunks, release

log = logging.getLogger("cdc")

_READ_TIMEOUT_S: Final = 3600.0
"""How long a read may be silent: keys without an index in their order are sorted first."""
_VIEW: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
_LOCK_S: Final = 1
"""How long the lock waits for open writers, which is how long new ones may be blocked."""
_VIEW_S: Final = 60.0
_PAUSE_S: Final = 3.0
_LOCKED_S: Final = 10.0
"""How long a snapshot tries for a view without open transactions: first in a pause of the writers, then by a lock."""
_SAMPLES: Final = 1024
_FETCHED: Final = 500
_CLOSE_S: Final = 5.0
_CHANGED: Final = frozenset({1054, 1146, 1049, 1412, 1305})
"""Errors: unknown column, no such table or database, definition changed since the view was taken."""


_Statement = Callable[[Captured], str | None]
"""Makes the statement that reads a table as it is now; None: it cannot be read."""


class MysqlSnapshotter:
    """Reads on connections of its own, in read-only transactions that end with `close`."""

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
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
        taken, end = take_view(self._sessions, remaining, self._connect, over=self._closed.is_set, exact=True)
        number = len(done.views) + 1
        rows_before = sum(at.rows for at in done.tables.values())
        done = replace(
            done,
            views={**done.views, number: (taken.text, end)},
            started_at_ms=_now_ms(),
            rows_before=rows_before,
        )
        readers = self._readers = ParallelReaders(self._sessions, planned, self._read, session.break_off)
        yield from chunks(readers, done, view=number, parse=lambda _, rows: rows)
        self._end()

    def _connect(self) -> session.Connection:
        return session.connect(self._address, read_timeout_s=_READ_TIMEOUT_S)

    def _session(self) -> session.Connection:
        connection = self._connect()
        self._sessions.append(connection)
        return connection

    def _plan(
        self, connection: session.Connection, table: Table, done: Progress
    ) -> tuple[Progress, list[KeyRange[Relation]]]:
        """Plan the key ranges to read of a table; return them with the progress, which has its estimate."""
        now = _now(connection, table, self._config)
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
        now = _now(connection, table, self._config)
        if now.table.columns != table.columns or now.table.key != table.key:
            raise RetryableError(f"table {table.qualified} was altered after its snapshot began")
        statement = mysql_selects.chunk_statement(table, key_range.relation, after=key_range.after, upto=key_range.upto)
        for some, size_bytes in _stream(connection, doing, statement):
            rows.add(some, size_bytes)
        session.rows(connection, doing, "ROLLBACK TO SAVEPOINT locks")

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        made = RangeHandover(tables, Progress.from_json(progress), BinlogView.parse)
        return None if made.hides_nothing else made

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        def statement(now: Captured) -> str:
            behind = after if now.table.key_as_text == key else None
            return mysql_selects.window_statement(now.table, Relation(now.columns), after=behind, rows=rows)

        return self._under_a_view(table, statement, rows=rows, first=first)

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        def statement(now: Captured) -> str | None:
            if now.table.key_as_text != table.key_as_text:
                return None
            return mysql_selects.keys_statement(now.table, Relation(now.columns), keys)

        return self._under_a_view(table, statement, rows=None, first=first)

    def _under_a_view(self, table: Table, statement: _Statement, *, rows: int | None, first: bool) -> Window | None:
        with self._in_use:
            if self._closed.is_set():
                raise RetryableError("reading was ended")
            if self._window is None or not self._window.open:
                self._window = self._connect()
            connection = self._window
            try:
                return self._read_window(connection, table, statement, rows, first=first)
            finally:
                if connection.open:
                    _end_view(connection)

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
        if Catalog(connection).find(table.schema, table.name, self._config.source.keys) is None:
            return None
        taken, end = take_view([connection], [table], self._connect, over=self._closed.is_set, all_=first)
        now = Catalog(connection).find(table.schema, table.name, self._config.source.keys)
        if now is None:
            return None
        select = statement(now)
        if select is None:
            return None
        read = _all(connection, f"reading table {table.qualified}", select)
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
        now = Catalog(self._asking).find(table.schema, table.name, self._config.source.keys)
        if now is None or now.table.columns != table.columns:
            return None
        statement = mysql_selects.row_statement(table, Relation(now.columns), key)
        return next(iter(_all(self._asking, f"reading a row of table {table.qualified}", statement)), None)

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


def take_view(
    sessions: Sequence[session.Connection],
    tables: Sequence[Table],
    connect: Callable[[], session.Connection],
    *,
    over: Callable[[], bool],
    all_: bool = True,
    exact: bool = False,
) -> tuple[BinlogView, int]:
    """Begin a view on each session; return what all of them saw, and a commit position that none saw beyond.

    `exact`: try for some seconds to take views that saw nothing else, in a pause of the writers or by a lock.
    `all_`: the views have seen all that is in the log by now; commits that are logged and not visible are waited for.
    """
    found = server.look(sessions[0])
    if not found.gtids and not found.mariadb:
        return _under_lock(sessions, found, tables, connect, over, within_s=_VIEW_S)
    if exact:
        taken = _in_a_pause(sessions, found) if found.gtids else _at_one_position(sessions, found)
        if taken is not None:
            return taken
        try:
            return _under_lock(sessions, found, tables, connect, over, within_s=_LOCKED_S)
        except (OperatorError, RetryableError) as exc:
            log.info("a view of transactions under way is taken (%s): some of them will be told twice", exc.message)
    if found.mariadb:
        return _by_status(sessions, found, over)
    return _by_gtids(sessions, found, over, all_=all_)


def _by_gtids(
    sessions: Sequence[session.Connection], found: server.Server, over: Callable[[], bool], *, all_: bool
) -> tuple[BinlogView, int]:
    """Take views without a lock: the set is read before them, so they see all of it, and perhaps a few more."""
    asking, deadline = sessions[0], time.monotonic() + _VIEW_S
    if all_:
        owned = GtidSet.parse(_owned(server.global_text(asking, "gtid_owned")))
        while not owned <= GtidSet.parse(server.global_text(asking, "gtid_executed")):
            still = GtidSet.parse(_owned(server.global_text(asking, "gtid_owned")))
            if not owned <= still:
                owned = GtidSet.parse(",".join(gtid for gtid in str(owned).split(",") if GtidSet.parse(gtid) <= still))
            _wait(deadline, over)
    seen = GtidSet.parse(server.global_text(asking, "gtid_executed"))
    _begin(sessions)
    return BinlogView(None, seen), server.status(asking, found)[0].commit


def _in_a_pause(sessions: Sequence[session.Connection], found: server.Server) -> tuple[BinlogView, int] | None:
    """Take views while nothing is being committed: what they saw is the set. None: there was no such moment.

    A commit that is visible but not in the set yet is in gtid_owned until it is.
    """
    asking, deadline = sessions[0], time.monotonic() + _PAUSE_S
    while True:
        before = server.global_text(asking, "gtid_executed")
        _begin(sessions)
        owned = server.global_text(asking, "gtid_owned")
        if not owned and server.global_text(asking, "gtid_executed") == before:
            return BinlogView(None, GtidSet.parse(before)), server.status(asking, found)[0].commit
        for connection in sessions:
            _end_view(connection)
        if time.monotonic() > deadline:
            return None


def _owned(text: str) -> str:
    """Remove the owning threads from ``uuid:7#12,uuid:8#15``."""
    return ",".join(part.partition("#")[0] for part in text.replace("\n", "").split(",") if ":" in part)


def _by_status(
    sessions: Sequence[session.Connection], found: server.Server, over: Callable[[], bool]
) -> tuple[BinlogView, int]:
    """Take views on MariaDB, which reports the place in the log that each is of."""
    asking, deadline = sessions[0], time.monotonic() + _VIEW_S
    logged = server.status(asking, found)[0].commit
    while True:
        _begin(sessions)
        places = [_snapshot_position(connection) for connection in sessions]
        if min(places) >= logged:
            return BinlogView(min(places), None), max(places)
        for connection in sessions:
            _end_view(connection)
        _wait(deadline, over)


def _at_one_position(sessions: Sequence[session.Connection], found: server.Server) -> tuple[BinlogView, int] | None:
    """Take views on MariaDB that are all of one place. None: each time, a transaction was committed between them."""
    deadline = time.monotonic() + _PAUSE_S
    logged = server.status(sessions[0], found)[0].commit
    while True:
        _begin(sessions)
        place, *others = [_snapshot_position(connection) for connection in sessions]
        if place >= logged and all(other == place for other in others):
            return BinlogView(place, None), place
        for connection in sessions:
            _end_view(connection)
        if time.monotonic() > deadline:
            return None


def _snapshot_position(connection: session.Connection) -> int:
    status = dict(session.texts(connection, "taking a view", "SHOW STATUS LIKE 'binlog_snapshot_%'"))
    named = {name.lower(): value for name, value in status.items()}
    return BinlogPosition(named["binlog_snapshot_file"], int(named["binlog_snapshot_position"])).commit


def _under_lock(
    sessions: Sequence[session.Connection],
    found: server.Server,
    tables: Sequence[Table],
    connect: Callable[[], session.Connection],
    over: Callable[[], bool],
    *,
    within_s: float,
) -> tuple[BinlogView, int]:
    """Take views while nobody writes the tables: they saw all up to the log's end, or all of the set."""
    deadline = time.monotonic() + within_s
    locking = connect()
    try:
        session.rows(locking, "preparing a session", f"SET SESSION lock_wait_timeout = {_LOCK_S}")
        while True:
            try:
                session.rows(locking, "locking the tables for a moment", mysql_selects.lock_statement(tables))
                break
            except RetryableError:
                _wait(deadline, over)
            except OperatorError as exc:
                if session.is_denied(exc):
                    raise OperatorError(
                        f"user {found.user} may not lock tables for the moment in which a view is taken, and there are "
                        "no GTIDs to do without",
                        hint=f"GRANT LOCK TABLES ON *.* TO {found.account}; or set gtid_mode to ON, step by step",
                    ) from exc
                raise
        _begin(sessions)
        seen = GtidSet.parse(server.global_text(sessions[0], "gtid_executed")) if found.gtids else None
        end = server.status(sessions[0], found)[0].commit
        session.rows(locking, "letting go of the tables", "UNLOCK TABLES")
    finally:
        session.close(locking)
    return BinlogView(end if seen is None else None, seen), end


def _begin(sessions: Sequence[session.Connection]) -> None:
    for statement in _VIEW:
        for connection in sessions:
            session.rows(connection, "taking a view", statement)
    for connection in sessions:
        session.check_settings(connection)


def _end_view(connection: session.Connection) -> None:
    try:
        session.rows(connection, "ending a view", "ROLLBACK")
    except RetryableError:
        pass  # the connection is gone, and the view with it


def _wait(deadline_s: float, over: Callable[[], bool]) -> None:
    if over():
        raise RetryableError("reading was ended")
    if not session.wait_until(deadline_s, 0.05):
        raise RetryableError(
            "a view cannot be taken: transactions that are in the log already do not become visible, or the tables are "
            f"written without a pause of {_LOCK_S} s",
            hint="SELECT * FROM information_schema.INNODB_TRX ORDER BY trx_started",
        )


def _now(connection: session.Connection, table: Table, config: ConnectorConfig) -> Captured:
    now = Catalog(connection).find(table.schema, table.name, config.source.keys)
    if now is None:
        raise RetryableError(f"table {table.qualified} was dropped during its snapshot")
    return now


def _sample(connection: session.Connection, table: Table) -> Iterator[Key]:
    columns = key_columns(table)
    if len(columns) != 1 or columns[0].type not in INTEGERS:
        return
    ((first, last),) = session.rows(
        connection, f"sampling table {table.qualified}", mysql_selects.ends_statement(table)
    )
    if first is not None and last is not None:
        yield from mysql_selects.interpolated(int(first), int(last), _SAMPLES)


def _all(connection: session.Connection, doing: str, statement: str) -> list[Row]:
    """Read the rows, as bytes."""
    return [row for rows, _ in _stream(connection, doing, statement) for row in rows]


def _stream(connection: session.Connection, doing: str, statement: str) -> Iterator[tuple[Sequence[Row], int]]:
    """Give the rows as they come, some at a time, each with about how many bytes they have."""
    try:
        cursor = connection.cursor(pymysql.cursors.SSCursor)
        try:
            cursor.execute(statement)
            yield from _rows_at_once(connection)
            while rows := cursor.fetchmany(_FETCHED):
                for row in rows:
                    yield [row], _size(row)
        except BaseException:
            _leave(connection)
            raise
        cursor.close()
    except session.DRIVER_ERRORS as exc:
        error = session.translate(exc, doing)
        if session.code_of_exception(exc) in _CHANGED:
            raise RetryableError(f"{doing}: it was altered or dropped meanwhile", hint=session.GO_ON) from exc
        raise error from exc


def _size(row: Row) -> int:
    return sum(len(value) for value in row if isinstance(value, bytes))


def _rows_at_once(connection: session.Connection) -> Iterator[tuple[Sequence[Row], int]]:
    """Give rows from the connection's buffer by compiled code; the library reads rows that are there only in part.

    Without compiled code it gives nothing.
    """
    result, stream = connection._result, connection._rfile  # noqa: SLF001 - where the library reads
    if _compiled is None or result is None or any(convert for of in result.converters for convert in of):
        return
    while result.unbuffered_active:
        number = connection._next_seq_id  # noqa: SLF001
        taken, number, rows = _compiled.text_rows(_seen(connection, stream), result.field_count, number)
        if taken:
            stream.read(taken)  # what was seen: nothing is waited for
            connection._next_seq_id = number  # noqa: SLF001
            yield rows, taken
        elif (row := result._read_rowdata_packet_unbuffered()) is not None:  # noqa: SLF001
            yield [row], _size(row)


def _seen(connection: session.Connection, stream: io.BufferedReader) -> bytes:
    try:
        return stream.peek()
    except (OSError, ValueError) as exc:  # ValueError where another thread has closed it
        connection._force_close()  # noqa: SLF001 - as the library does
        raise pymysql.OperationalError(_LOST, f"Lost connection to MySQL server during query ({exc})") from exc


def _leave(connection: session.Connection) -> None:
    """Drop a result that is not read to its end; its connection cannot be used any more."""
    result = connection._result  # noqa: SLF001 - else the library reads on to the end
    if result is not None and result.unbuffered_active:
        result.unbuffered_active = False
        result.connection = None
        connection._force_close()  # noqa: SLF001


_compiled: Final = built("connectors.mysql.binlog.compiled")
_LOST: Final = 2013
"""The client library's number of a lost connection."""


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def open_snapshotter(config: ConnectorConfig) -> MysqlSnapshotter:
    """Make the snapshotter for the registry. It does not connect yet."""
    return MysqlSnapshotter(config)
