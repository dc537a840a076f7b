"""The one loop: snapshot, stream, write, commit, acknowledge. The only place that orders, commits and tries again.

    fence -> position -> [hold the log -> snapshot] -> stream: { transaction* -> commit -> acknowledge }*

A Kafka transaction holds whole source transactions and, last, the position after them. Whatever fails, the next session
begins with a fresh producer and goes on from the position Kafka holds: docs/guarantees.md lists what is replayed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from cdc.change import Position, Table, Transaction
from cdc.envelope import Frame
from cdc.errors import BugError, CdcError, OperatorError, RetryableError
from cdc.interfaces import Handover, Sink, Snapshotter, Source
from cdc.state import Phase, State
from cdc.versions import Versions
from cdc.wide import WideValues
from cdc.writing import Writer

CUT_RECORDS: Final = 10_000
CUT_BYTES: Final = 8 * 1024 * 1024
CUT_AGE_S: Final = 0.2
IDLE_POSITION_S: Final = 10.0
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 10.0
GIVE_UP_S: Final = 300.0

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class Report:
    """What a commit made true."""

    phase: Phase
    events: int
    """Records of tables committed by this process so far."""
    tables: tuple[tuple[str, int, bool], ...]
    """Snapshot: table, rows read, done."""
    state: State


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a pipeline needs to know of its configuration."""

    connector: str
    prefix: str
    chunk_rows: int = 50_000


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop; everything whole is committed."""


class Pipeline:
    """One connector. `open_source` and the others make a fresh part for every session."""

    def __init__(
        self,
        settings: Settings,
        *,
        open_source: Callable[[], Source],
        open_snapshotter: Callable[[], Snapshotter],
        sink: Sink,
        observe: Callable[[Report], None] = lambda _: None,
        failed: Callable[[CdcError], None] = lambda _: None,
    ) -> None:
        """`observe` hears of every commit, `failed` of every error that ends a session."""
        self._settings = settings
        self._open_source = open_source
        self._open_snapshotter = open_snapshotter
        self._sink = sink
        self._observe = observe
        self._failed = failed
        self._stop = threading.Event()
        self._events = 0
        self._good_at_s = 0.0
        self._ran = False

    def stop(self) -> None:
        """Ask to end after the source transaction in hand; callable from a signal handler."""
        self._stop.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        """Run until stopped, or until everything the source had committed at the call is in Kafka.

        Raises OperatorError, BugError, or RetryableError when trying again did not help for five minutes.
        """
        failing_since: float | None = None
        pause_s = RETRY_FIRST_S
        while True:
            try:
                self._session(until_caught_up=until_caught_up)
            except Stopped:
                return
            except (OperatorError, BugError) as exc:
                self._failed(exc)
                raise
            except RetryableError as exc:
                now = time.monotonic()
                if failing_since is None or self._good_at_s > failing_since:
                    failing_since, pause_s = now, RETRY_FIRST_S
                self._failed(exc)
                if not (self._ran or exc.at_start) or now - failing_since > GIVE_UP_S:
                    raise
                log.warning("%s; trying again in %.1f s", exc.message, pause_s)
                if self._stop.wait(pause_s):
                    return
                pause_s = min(pause_s * 2, RETRY_LONGEST_S)
            else:
                return

    def _session(self, *, until_caught_up: bool) -> None:
        """From fencing to the first error. Nothing is made anywhere before both ends have been looked at."""
        with closing(self._sink), closing(self._open_source()) as source, closing(self._open_snapshotter()) as reader:
            identity = source.connect()
            tables = source.tables()
            if not self._sink.check(tables):
                source.unused()
            self._sink.create(tables)
            state = self._sink.fence()
            target = source.current() if until_caught_up else None
            state, view = self._begin(source, identity, tables, state)
            session = _Session(
                self._settings,
                self._sink,
                source,
                reader,
                tables=tables,
                state=state,
                stop=self._stop,
                committed=self._committed,
                good=self._good,
            )
            self._ran = True
            with closing(session):
                if state.phase is Phase.SNAPSHOT:
                    session.snapshot(view)
                session.stream(target)

    def _good(self) -> None:
        """Everything read is in Kafka: whatever fails next is a new fault."""
        self._good_at_s = time.monotonic()

    def _committed(self, events: int, state: State) -> None:
        self._good()
        self._events += events
        tables = state.snapshot.get("tables", {})
        rows = tuple((name, t["rows"], t["done"]) for name, t in tables.items()) if isinstance(tables, dict) else ()
        self._observe(Report(state.phase, self._events, rows, state))

    def _begin(
        self, source: Source, identity: Mapping[str, str], tables: Sequence[Table], state: State | None
    ) -> tuple[State, str | None]:
        """The state to go on from, its log held; and the view of a hold made just now."""
        names = tuple(table.qualified for table in tables)
        if state is None:
            source.unused()
            self._refuse_occupied(tables)
            state = State(connector=self._settings.connector, identity=identity, phase=Phase.CREATING, epoch=1)
            self._sink.commit(state)
        _same_source(state, identity)
        if state.phase is Phase.CREATING:
            start = source.hold(tables)
            state = state.next(
                phase=Phase.SNAPSHOT, offset=start.offset, commit=start.commit, tables=names, unread=names, snapshot={}
            )
            self._sink.commit(state)
            return state, start.view
        still = _still_captured(state, names)
        source.verify(still)
        added = [table for table in tables if table.qualified not in still.tables]
        if added:
            self._refuse_occupied(added)
            source.extend(tables)
            unread = (*still.unread, *(table.qualified for table in added))
            still = replace(still, phase=Phase.SNAPSHOT, tables=names, unread=unread)
        if still is not state:
            state = still.next()
            self._sink.commit(state)
        return state, None

    def _refuse_occupied(self, tables: Sequence[Table]) -> None:
        occupied = self._sink.occupied(tables)
        if occupied:
            raise OperatorError(
                f"topic {occupied[0]} holds records already, and connector {self._settings.connector} has no position "
                "for them: rows deleted since they were written would stay in it for ever",
                hint="set another sink.topic_prefix; or delete the topic if nobody needs it: "
                f"kafka-topics.sh --delete --topic {occupied[0]}",
            )


def _still_captured(state: State, names: Sequence[str]) -> State:
    """`state` without the tables no longer captured: their changes pass unread, so they are new if they come back."""
    tables = tuple(name for name in state.tables if name in names)
    if tables == state.tables:
        return state
    progress = state.snapshot.get("tables")
    left = {name: at for name, at in progress.items() if name in tables} if isinstance(progress, dict) else progress
    snapshot = {**state.snapshot, "tables": left} if progress is not None else state.snapshot
    unread = tuple(name for name in state.unread if name in names)
    return replace(state, tables=tables, unread=unread, snapshot=snapshot)


def _same_source(state: State, identity: Mapping[str, str]) -> None:
    for what, there in state.identity.items():
        here = identity.get(what)
        if here != there:
            raise OperatorError(
                f"another source: connector {state.connector} stands at a position of {what.replace('_', ' ')} "
                f"{there}, source.url leads to {here}",
                hint="point source.url at the server this connector began with; for a new server, a new name",
            )


class _Session:
    """One run between two fences: what it has read, what is pending, what is committed."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        source: Source,
        reader: Snapshotter,
        *,
        tables: Sequence[Table],
        state: State,
        stop: threading.Event,
        committed: Callable[[int, State], None],
        good: Callable[[], None],
    ) -> None:
        self._settings, self._sink, self._source, self._reader = settings, sink, source, reader
        self._tables = tables
        self._state = state
        self._stop = stop
        self._committed = committed
        self._good = good
        self._wide = WideValues(sink.records)
        versions = Versions(
            sink.schemas(),
            connector=settings.connector,
            source=source.name,
            prefix=settings.prefix,
            database=source.database,
        )
        self._writer = Writer(sink, versions, self._wide, reader)
        self._handover: Handover | None = None
        self._uncommitted = 0
        self._since_s = 0.0
        self._positioned_s = time.monotonic()

    def close(self) -> None:
        self._wide.close()

    def snapshot(self, view: str | None) -> None:
        """Read what is left; rows and the progress they make are in one Kafka transaction."""
        state = self._state
        point = state.commit - 1  # before every transaction of the log that follows
        progress = state.snapshot
        unread = [table for table in self._tables if table.qualified in state.unread]
        for chunk in self._reader.chunks(unread, progress, view):
            frame = Frame(
                epoch=state.epoch,
                commit=point,
                at_ms=chunk.read_at_ms,
                made_at_ms=time.time_ns() // 1_000_000,
                transaction=None,
                view=chunk.view,
            )
            self._writer.rows(
                chunk.table, chunk.rows, frame, Position(state.epoch, point, chunk.view), lsn=state.commit
            )
            self._uncommitted += len(chunk.rows)
            records, size = self._sink.pending()
            stopped = self._stop.is_set()
            if records >= self._settings.chunk_rows or size >= CUT_BYTES or stopped:
                self._commit(self._state.next(snapshot=chunk.progress))
            if stopped:
                raise Stopped
            progress = chunk.progress
        self._commit(self._state.next(phase=Phase.STREAM, unread=(), snapshot=progress))

    def stream(self, target: int | None) -> None:
        """Follow the log; with a `target`, until everything below it is committed."""
        self._handover = self._reader.handover(self._tables, self._state.snapshot)
        if target is not None and self._state.commit >= target:
            return
        for frame in self._source.stream(self._state.offset):
            if isinstance(frame, Transaction):
                self._transaction(frame)
                caught_up = target is not None and self._source.position()[1] >= target
                due = caught_up or self._cut()
            else:
                caught_up = target is not None and self._source.position()[1] >= target
                due = caught_up or self._due_when_idle()
            stopped = self._stop.is_set()
            if due or stopped:
                self._commit_position()
            if caught_up:
                return
            if stopped:
                raise Stopped

    def _transaction(self, transaction: Transaction) -> None:
        """Write one source transaction, whole, into the open Kafka transaction."""
        if self._sink.pending()[0] == 0:
            self._since_s = time.monotonic()
        frame = Frame(
            epoch=self._state.epoch,
            commit=transaction.commit,
            at_ms=transaction.committed_at_ms,
            made_at_ms=time.time_ns() // 1_000_000,
            transaction=(transaction.id, transaction.xid),
        )
        self._writer.changes(transaction, frame, self._handover)
        self._uncommitted += frame.events
        if self._handover is not None and self._handover.spent(transaction.commit):
            self._handover = None

    def _cut(self) -> bool:
        """Under load: by records, bytes, or age of the first of them; with none, now and then the position alone."""
        records, size = self._sink.pending()
        if records == 0:
            return time.monotonic() - self._positioned_s >= IDLE_POSITION_S
        return records >= CUT_RECORDS or size >= CUT_BYTES or time.monotonic() - self._since_s >= CUT_AGE_S

    def _due_when_idle(self) -> bool:
        """With nothing to read: at once what is pending; now and then the position alone.

        So the log can go, and a copy that was fenced off finds out, even where nobody writes.
        """
        return self._sink.pending()[0] > 0 or time.monotonic() - self._positioned_s >= IDLE_POSITION_S

    def _commit_position(self) -> None:
        offset, commit = self._source.position()
        nothing = commit == self._state.commit and self._sink.pending()[0] == 0
        if nothing and time.monotonic() - self._positioned_s < IDLE_POSITION_S:
            self._good()
            return
        snapshot = self._state.snapshot if self._handover is not None else {}
        self._commit(self._state.next(offset=offset, commit=commit, snapshot=snapshot))
        self._source.acknowledge(offset)

    def _commit(self, state: State) -> None:
        """The step everything hangs on: records and position become visible together, or neither does."""
        self._sink.commit(state)
        self._state = state
        self._positioned_s = time.monotonic()
        events, self._uncommitted = self._uncommitted, 0
        self._committed(events, state)
