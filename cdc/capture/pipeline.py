"""The one loop snapshots, streams, writes, commits and acknowledges; nothing else orders, commits or retries.

    fence -> position -> [hold the log -> snapshot] -> stream: { transaction* -> commit -> acknowledge }*

A Kafka transaction holds whole source transactions and, last, the position after them. After any failure the next
session begins with a new producer and goes on from the position in Kafka: docs/guarantees.md lists what is replayed.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from cdc.capture import signals
from cdc.capture.incremental_snapshot import IncrementalSnapshot
from cdc.capture.outbox_writer import OutboxWriter
from cdc.capture.rereads import Rereads
from cdc.capture.startup import Settings, Startup, now_ms, restored, unless_rekeyed
from cdc.encode.dead_letters import DeadLetters, refusal
from cdc.encode.envelope import Frame, transaction_records
from cdc.encode.event_writer import EventWriter
from cdc.encode.published_values import PublishedValues
from cdc.encode.schema_versions import SchemaVersions
from cdc.encode.toast import ToastValues
from cdc.encode.window_keys import RequestedRows
from cdc.model.change import Idle, Message, Position, Table, Transaction, TransactionBatch
from cdc.model.errors import (
    BugError,
    CdcError,
    ChangedError,
    FencedError,
    GapError,
    OperatorError,
    RetryableError,
    TooLargeError,
    raise_first,
)
from cdc.model.interfaces import Handover, Shared, Sink, Snapshotter, Source, Window
from cdc.model.state import Phase, State
from cdc.rules import outbox

CUT_RECORDS: Final = 50_000
CUT_BYTES: Final = 32 * 1024 * 1024
CUT_AGE_S: Final = 0.2
APART_MOST_S: Final = 1.0
_COMMITS_APART: Final = 4
"""A commit of a thousand partitions takes long: commits are so far apart that they take at most a fifth of the time."""
MOVED_POSITION_S: Final = 0.5
IDLE_POSITION_S: Final = 10.0
COMMANDS_S: Final = 1.0
LOOK_AT_END_S: Final = 1.0
RETRY_FIRST_S: Final = 0.5
RETRY_LONGEST_S: Final = 10.0
GIVE_UP_S: Final = 300.0
STAND_BY_FIRST_S: Final = 0.1
STAND_BY_LONGEST_S: Final = 2.0
STAND_BY_LOOK_S: Final = 10.0
STAND_BY_SAID_S: Final = 60.0
STAND_BY_SETTLED_S: Final = 1.0
"""A server takes a moment to see that a process was killed: nothing is said of that."""
GONE_S: Final = 5.0
_REFUSALS: Final = 2
"""A record is tried twice: as it is, and without the old row's values."""

log = logging.getLogger("cdc")

__all__ = ["Pipeline", "Report", "RestartSession", "Settings", "Stopped"]


@dataclass(frozen=True, slots=True)
class Report:
    """Says what holds after a commit."""

    phase: Phase
    events: int
    """Records of tables committed by this process so far."""
    tables: tuple[tuple[str, int, bool], ...]
    """Of a snapshot: table, rows read, done."""
    state: State


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop; everything whole is committed."""


class RestartSession(Exception):  # noqa: N818 - not an error
    """Restart the session: a command needs it (an unknown table, a gap), or a topic is another one now."""


class Pipeline:
    """Runs one connector. `open_source` and `open_snapshotter` make a new part for every session."""

    def __init__(
        self,
        settings: Settings,
        *,
        open_source: Callable[[], Source],
        open_snapshotter: Callable[[], Snapshotter],
        sink: Sink,
        observe: Callable[[Report], None] = lambda _: None,
        failed: Callable[[CdcError], None] = lambda _: None,
        executor: Callable[[], Executor] | None = None,
    ) -> None:
        """`observe` is called with every commit, `failed` with every error that ends a session.

        `executor` makes what a session reads rows on while it follows the log; a thread by default.
        """
        self._settings = settings
        self._startup = Startup(settings, sink)
        self._open_source = open_source
        self._open_snapshotter = open_snapshotter
        self._sink = sink
        self._observe = observe
        self._failed = failed
        self._stop = threading.Event()
        self._across = _AcrossSessions(
            stop=self._stop,
            committed=self._committed,
            good=self._good,
            executor=executor or partial(ThreadPoolExecutor, 1, "cdc-resnapshot"),
            published=PublishedValues(executor or partial(ThreadPoolExecutor, 1, "cdc-published")),
        )
        self._events = 0
        self._good_at_s = 0.0
        self._ran = False
        self._stood_by = False
        """Whether this copy has found another one at work, and has not run since."""
        self._sequence: int | None = None
        """The sequence number of the newest position that this process knows."""
        self._gap: GapError | None = None
        """The gap in the log that ended the last session, if the user wants to go on behind it."""

    def stop(self) -> None:
        """Ask to end after the current source transaction; callable from a signal handler."""
        self._stop.set()

    def run(self, *, until_caught_up: bool = False) -> None:
        """Run until stopped, or until everything the source had committed at the call is in Kafka.

        Raises OperatorError, BugError, or RetryableError when trying again did not help for five minutes.
        """
        with closing(self._across.published):
            self._run(until_caught_up=until_caught_up)

    def _run(self, *, until_caught_up: bool) -> None:
        failing_since: float | None = None
        pause_s = RETRY_FIRST_S
        while True:
            try:
                self._session(until_caught_up=until_caught_up)
            except Stopped:
                return
            except RestartSession:
                continue
            except ChangedError as exc:
                log.info("%s", exc.message)
                continue
            except TooLargeError as exc:
                self._refuse(exc)
            except (OperatorError, BugError) as exc:
                self._leave(exc)
                raise
            except RetryableError as exc:
                now = time.monotonic()
                if failing_since is None or self._good_at_s > failing_since:
                    failing_since, pause_s = now, RETRY_FIRST_S
                self._leave(exc)
                if now - failing_since > self._patience_s(exc):
                    raise
                log.warning("%s; trying again in %.1f s", exc.message, pause_s)
                if self._stop.wait(pause_s):
                    return
                pause_s = min(pause_s * 2, RETRY_LONGEST_S)
            else:
                return

    def _leave(self, error: CdcError) -> None:
        """Report an error, unless another copy is at work: it is that one's errors that count."""
        if not self._stood_by:
            self._failed(error)

    def _patience_s(self, error: RetryableError) -> float:
        """Return how long an error is tried again: not at all at the first start, unless that was asked for."""
        if self._stood_by:
            return float("inf")
        if self._ran:
            return GIVE_UP_S
        at_start_s = GIVE_UP_S if error.at_start else -1.0
        return at_start_s if self._settings.wait_s is None else max(at_start_s, self._settings.wait_s)

    def _session(self, *, until_caught_up: bool) -> None:
        """Run from fencing to the first error. Nothing is made anywhere before source and sink have been checked."""
        with closing(self._sink), closing(self._open_source()) as source, closing(self._open_snapshotter()) as reader:
            self._stand_by(source)
            identity = source.connect()
            tables = source.tables()
            ran_before = self._sink.check(tables)
            raise_first(self._settings.rules.refusals(tables, first=not ran_before))
            raise_first(self._settings.formats.refusals(tables))
            raise_first(outbox.refusals(self._settings.outbox, tables))
            if not ran_before:
                self._startup.refuse_neighbours(identity, tables)
                source.unused()
            self._sink.create(tables)
            self._refuse_second_copy()
            state = self._sink.fence()
            target = source.current() if until_caught_up else None
            gap, self._gap = self._gap, None
            state, view = self._startup.state(source, identity, tables, state, gap=gap)
            self._sequence = state.sequence
            session = _Session(
                self._settings,
                self._sink,
                source,
                reader,
                self._across,
                tables=tables,
                state=state,
            )
            self._ran, self._stood_by = True, False
            with closing(session):
                if state.phase is Phase.SNAPSHOT:
                    session.snapshot(view)
                try:
                    session.stream(target)
                except GapError as exc:
                    if not signals.after_gap(self._sink.commands()):
                        raise
                    self._gap = exc
                    raise RestartSession from exc

    def _refuse_second_copy(self) -> None:
        """Raise OperatorError if another copy has taken over meanwhile: two would fence each other off for ever."""
        if self._sequence is None:
            return
        state = self._sink.peek()
        if state is not None and state.sequence > self._sequence + 1:  # one commit of ours may have an unknown outcome
            raise FencedError(
                f"another copy of connector {self._settings.connector} has gone on while this one was cut off",
                hint="nothing is lost, the other copy goes on; started again, this one stands by while the other "
                "follows",
            )

    def _stand_by(self, source: Source) -> None:
        """Return when no other copy is at work, or at once if this one is to take over.

        Two copies that are started again whenever they fail would fence each other off for ever: the one that comes
        later waits instead, holding nothing. Who is at work, the source tells (PostgreSQL: the slot is active, or the
        connector's lock is held). A copy that died without a goodbye, or is cut off from the source, is seen there
        until the server notices, a minute or so by default. A copy that is cut off from Kafka ends its session and
        lets go. After both, this one goes on: if the other was alive after all, it is fenced. That costs nothing but
        its exit, because exactly-once rests on fencing alone and not on what is seen here.

        A copy that fails tries again within seconds. So it must be away for as long as it was seen, at most 5 s.
        """
        if not isinstance(source, Shared) or (self._settings.take_over and not self._ran):
            return
        begun_s = seen_s = time.monotonic()
        told_s = looked_s = float("-inf")
        pause_s = STAND_BY_FIRST_S
        while True:
            who, now = source.follower(), time.monotonic()
            if who is None and now - seen_s >= min(GONE_S, seen_s - begun_s):
                break
            if who is not None and not (who.certain or self._stood_by or self._sink.check(())):
                return  # a connector without a position has no slot: this is another tool's, and a verdict says so
            if who is not None:
                if now - looked_s >= STAND_BY_LOOK_S:
                    self._refuse_second_copy()  # this one was fenced off: it does not wait for its turn
                    looked_s = now
                self._stood_by, seen_s = True, now
                if now - begun_s >= STAND_BY_SETTLED_S and now - told_s >= STAND_BY_SAID_S:
                    told_s = now
                    log.warning(
                        "connector %s stands by: another copy%s is at work (%s); it goes on when that one is gone; "
                        "cdc run --take-over fences it at once",
                        self._settings.connector, ", or its own former connection," if self._ran else "", who.who,
                    )  # fmt: skip
            if self._stop.wait(pause_s):
                raise Stopped
            pause_s = min(pause_s * 2, STAND_BY_LONGEST_S)
        if self._stood_by:
            self._sequence = None  # what others have committed since is no reason to end
        if told_s > 0:
            log.info("connector %s: no other copy is at work any more: going on", self._settings.connector)

    def _refuse(self, error: TooLargeError) -> None:
        """Note the record, so that the next session makes a dead letter of it. Raises OperatorError if that is off."""
        found = refusal(error)
        record, stop = found or (None, error)
        if record is None or "dead-letter" not in self._settings.logs or self._across.refused[record] >= _REFUSALS:
            self._failed(stop)
            raise stop from error
        self._across.refused[record] += 1

    def _good(self) -> None:
        """Note that everything read is in Kafka: the next failure is a new fault."""
        self._good_at_s = time.monotonic()

    def _committed(self, events: int, state: State) -> None:
        self._good()
        self._sequence = state.sequence
        self._events += events
        tables = state.snapshot.get("tables", {})
        rows = tuple((name, t["rows"], t["done"]) for name, t in tables.items()) if isinstance(tables, dict) else ()
        self._observe(Report(state.phase, self._events, rows, state))


@dataclass(frozen=True, slots=True, kw_only=True)
class _AcrossSessions:
    """Holds what outlives a session."""

    stop: threading.Event
    committed: Callable[[int, State], None]
    good: Callable[[], None]
    executor: Callable[[], Executor]
    published: PublishedValues
    """What the topics say of values that the log leaves out, as far as it has been read."""
    not_asked: set[str] = field(default_factory=set)
    """Topics for whose left-out values the source is not asked: see `EventWriter`."""
    looked_for: set[bytes] = field(default_factory=set)
    """Commands for whose tables a session was restarted."""
    refused: Counter[tuple[str, bytes, str]] = field(default_factory=Counter)
    """How often the broker found the record of (topic, key, position) too large."""


class _Session:
    """Runs between two fences: it knows what is read, what is pending and what is committed."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        source: Source,
        reader: Snapshotter,
        across: _AcrossSessions,
        *,
        tables: Sequence[Table],
        state: State,
    ) -> None:
        self._across = across
        self._settings, self._sink, self._source, self._reader = settings, sink, source, reader
        self._tables = tables
        self._letters = DeadLetters(sink, across.refused, on="dead-letter" in settings.logs)
        published = list(sink.schemas())
        versions = SchemaVersions(
            [*published, *restored(sink, published, {sink.topic(table) for table in tables})],
            connector=settings.connector,
            source=source.name,
            prefix=settings.prefix,
            database=source.database,
            rules=settings.rules,
            formats=settings.formats,
            tables=tables,
        )
        source.recall(versions.described())
        self._state = unless_rekeyed(state, tables, versions)
        gaps = {name: str(of["since"]) for name, of in state.reading.items() if of["gap"]}
        floors = {sink.topic(table): gaps[table.qualified] for table in tables if table.qualified in gaps}
        self._toast = ToastValues(
            across.published,
            sink,
            versions.carried,
            committed=lambda: Position(self._state.epoch, self._state.commit, 0).text,
            tend=self._tend,
            floors=floors,
            letters=sink.dead_letters,
        )
        self._versions = versions
        self._incremental = IncrementalSnapshot(
            reader,
            {table.qualified: table for table in tables},
            state.reading,
            topic=sink.topic,
            records=partial(sink.records, committed=True),
            version=versions.number,
            rows=settings.chunk_rows,
            executor=across.executor(),
        )
        by_name = {table.qualified: table for table in tables}
        self._rereads = Rereads(self._incremental, sink, by_name, state, since=self._since)
        self._writer = EventWriter(
            sink,
            versions,
            self._toast,
            reader,
            logged=self._incremental.logged,
            resnapshot=self.resnapshot,
            reread=self._rereads.add,
            letters=self._letters,
            not_asked=across.not_asked,
            emptied=self._emptied,
            key_headers=settings.key_headers,
            outbox=OutboxWriter(settings.outbox, sink, self._letters) if settings.outbox is not None else None,
        )
        self._windows = state.windows
        self._frame: Frame | None = None
        self._commands_read_s = 0.0
        self._gap_before: int | None = None
        """Where the log ended when the user reported a gap: the gap may still come before that."""
        self._first_of = ""
        """The table whose first window is being written; empty between windows."""
        self._handover: Handover | None = None
        self._uncommitted = 0
        self._source_ms = state.source_ms
        self._looked: tuple[int, int] | None = None
        """Where the log ended when that was last asked, and when that was."""
        self._looked_s = float("-inf")
        self._at_end = False
        """Whether there may be nothing more to read now."""
        self._since_s = 0.0
        self._commit_s = 0.0
        """How long the last commit took."""
        self._positioned_s = time.monotonic()

    def close(self) -> None:
        self._incremental.close()
        self._toast.close()
        self._writer.close()

    def _tend(self) -> None:
        """Look after the source while something takes long within a transaction. Raises Stopped, which undoes it."""
        self._source.tend()
        if self._across.stop.is_set():
            raise Stopped

    def resnapshot(self, table: Table, reason: str) -> None:
        """Snapshot a table incrementally: the topic's rows are not the source's, though no event said so."""
        if self._first_of == table.qualified:
            self._incremental.note_version(table.qualified)  # its first rows have shown the change it is read for
        elif self._incremental.add(table.qualified, self._since(), required=True):
            log.warning("table %s: %s: its rows are read again", table.qualified, reason)

    def _emptied(self, table: Table) -> None:
        """Have a truncated table read: the many keys that are not there any more get their deletes at the end."""
        self._incremental.add(table.qualified, self._since(), required=True, restart=True)
        log.info("table %s was truncated: its keys get their deletes in parts, behind what is in it by now",
                 table.qualified)  # fmt: skip

    def _since(self) -> str:
        """Give a position before all that is written from now on, behind all that was."""
        if self._frame is not None:
            return self._frame.next_position()
        commit = max(self._source.position()[1], self._state.commit)
        return Position(self._state.epoch, commit - 1, self._windows + 1).text

    def snapshot(self, view: str | None) -> None:
        """Read the rest of the snapshot; rows and their progress are in one Kafka transaction."""
        state = self._state
        point = state.commit - 1  # before every transaction of the log that follows
        where, at = self._source.coordinates(state.commit)
        progress = state.snapshot
        self._windows = state.windows
        unread = [table for table in self._tables if table.qualified in state.unread]
        for chunk in self._reader.chunks(unread, progress, view):
            frame = Frame(
                epoch=state.epoch,
                commit=point,
                at_ms=chunk.read_at_ms,
                made_at_ms=time.time_ns() // 1_000_000,
                transaction=None,
                where=where,
                view=chunk.view,
            )
            self._writer.rows(chunk.table, chunk.rows, frame, Position(state.epoch, point, chunk.view), lsn=at)
            self._uncommitted += len(chunk.rows)
            self._windows = max(self._windows, chunk.view)
            self._source.tend()
            records, size = self._sink.pending()
            stopped = self._across.stop.is_set()
            if records >= self._settings.chunk_rows or size >= CUT_BYTES or stopped:
                self._commit(self._state.next(snapshot=chunk.progress, windows=self._windows))
            if stopped:
                raise Stopped
            progress = chunk.progress
        self._commit(self._state.next(phase=Phase.STREAM, unread=(), snapshot=progress, windows=self._windows))

    def stream(self, target: int | None) -> None:
        """Follow the log; with a `target`, until everything below it is committed."""
        self._handover = self._reader.handover(self._tables, self._state.snapshot)
        for table in self._tables:
            if reason := self._versions.stale(table):
                self.resnapshot(table, reason)
        if target is not None and self._state.commit >= target and not self._to_do() and not self._sink.pending()[0]:
            self._look_at_topics(whole=True)
            return
        for frame in self._source.stream(self._state.offset):
            if isinstance(frame, Transaction):
                self._transaction(frame)
            elif isinstance(frame, TransactionBatch):
                self._batch(frame.transactions)
            elif isinstance(frame, Message):
                self._message(frame)
            caught_up = target is not None and self._source.position()[1] >= target and not self._to_do()
            stopped = self._across.stop.is_set()
            due = self._due_when_idle() if isinstance(frame, Idle) else self._cut()
            if due or caught_up or stopped:
                self._at_end = caught_up or stopped or isinstance(frame, Idle)
                self._commit_position()
            if caught_up:
                self._look_at_topics(whole=True)
                return
            if stopped:
                raise Stopped
            if self._to_do() and self._incremental and self._write_window():
                self._commit_position()

    def _to_do(self) -> bool:
        """Whether tables are to be read while the log is followed; regularly reads the user's commands."""
        now = time.monotonic()
        no_gap = self._gap_before is not None and not self._gap_may_come()
        if no_gap or now - self._commands_read_s >= COMMANDS_S:
            self._commands_read_s = now
            self._look_at_topics()
            self._carry_out_commands()
            self._gap_before = None if no_gap else self._gap_before
        return bool(self._incremental) or bool(self._rereads) or self._gap_before is not None

    def _look_at_topics(self, *, whole: bool = False) -> None:
        """Restart the session if a topic has been deleted or changed: a start compares all with what is recorded."""
        if self._sink.moved(whole=whole):
            log.warning("a topic has been deleted, made again or given partitions: the session starts again to compare")
            raise RestartSession

    def _carry_out_commands(self) -> None:
        """Carry out commands; a command and what it changes are committed together.

        A command about a gap waits until the part of the log that may have the gap is read.
        """
        commands = self._sink.commands()
        self._rereads.look_for(commands)
        for key, value in commands:
            command = signals.parse(value)
            if command.after_gap and self._gap_may_come():
                continue
            unknown = [name for name in command.tables if name not in self._state.tables]
            if unknown and not command.stop and key not in self._across.looked_for:
                self._across.looked_for.add(key)
                raise RestartSession
            for name in unknown:
                log.warning("table %s is not captured: it cannot be read", name)
            for name in command.tables:
                if name in unknown:
                    continue
                if command.keys and not command.stop:
                    if self._rereads.request(key, name, command.keys):
                        log.info("%d rows of table %s are read again, as asked", len(command.keys), name)
                elif command.stop:
                    gone = self._incremental.remove(name)
                    log.info("table %s is %s", name, "no longer read, as asked" if gone else "not read on request")
                elif self._incremental.add(name, self._since(), required=False):
                    log.info("table %s is read again, as asked", name)
                else:
                    log.info("table %s is being read already", name)
            if not (command.keys and self._incremental.is_requested(key)):
                self._sink.answered(key)

    def _gap_may_come(self) -> bool:
        """Whether the log as it was when the user reported a gap is not all read yet."""
        if self._gap_before is None:
            self._gap_before = self._source.current()
        return max(self._state.commit, self._source.position()[1]) < self._gap_before

    def _write_window(self) -> bool:
        """Write a window that was read, if the log has been followed far enough; True if there was one."""
        due = self._incremental.due(
            lambda: self._source.position()[1], settled=self._sink.pending()[0] == 0, since=self._since
        )
        if due is None:
            return False
        commit = self._source.position()[1]
        self._windows += 1
        position = Position(self._state.epoch, commit - 1, self._windows)
        where, at = self._source.coordinates(commit)
        frame = Frame(
            epoch=position.epoch,
            commit=position.commit,
            at_ms=_read_at_ms(due),
            made_at_ms=time.time_ns() // 1_000_000,
            transaction=None,
            where=where,
            view=position.number,
            snapshot="incremental",
        )
        if isinstance(due, Window):
            self._first_of = due.table.qualified if self._incremental.is_first(due) else ""
            self._uncommitted += self._writer.window(due, frame, position, lsn=at)
            self._first_of = ""
            self._incremental.wrote(due)
        elif isinstance(due, RequestedRows):
            self._uncommitted += self._writer.requested(due, frame, position, lsn=at)
            if self._incremental.wrote_requested(due):
                self._sink.answered(due.command)
            self._rereads.wrote(due)
        else:
            self._writer.stale(self._incremental.table, due, frame, position, lsn=at)
            self._incremental.deleted(len(due), self._since)
            self._uncommitted += len(due)
        return True

    def _batch(self, transactions: list[Transaction]) -> None:
        """Write a batch of source transactions in order: by the fast path those whose changes all take it."""
        at = 0
        while at < len(transactions):
            if self._handover is None and "transaction" not in self._settings.logs:
                at += self._fast(transactions, at)
            if at < len(transactions):
                self._transaction(transactions[at])
                at += 1

    def _fast(self, transactions: list[Transaction], begin: int) -> int:
        """Write the transactions from `begin` on by the fast path, up to one that it declines; return how many."""
        if self._sink.pending()[0] == 0:
            self._since_s = time.monotonic()
        made_at_ms = time.time_ns() // 1_000_000
        written, events = self._writer.batch(transactions, begin, self._state.epoch, made_at_ms)
        for transaction in transactions[begin : begin + written]:
            self._source_ms = max(self._source_ms, transaction.committed_at_ms)
        self._uncommitted += events
        return written

    def _transaction(self, transaction: Transaction) -> None:
        """Write one whole source transaction into the open Kafka transaction."""
        if self._sink.pending()[0] == 0:
            self._since_s = time.monotonic()
        frame = Frame(
            epoch=self._state.epoch,
            commit=transaction.commit,
            at_ms=transaction.committed_at_ms,
            made_at_ms=time.time_ns() // 1_000_000,
            transaction=(transaction.id, transaction.xid),
            where=transaction.where,
        )
        self._frame = frame
        self._writer.changes(transaction, frame, self._handover)
        self._frame = None
        self._source_ms = max(self._source_ms, transaction.committed_at_ms)
        self._uncommitted += frame.events
        counts = frame.counts() if "transaction" in self._settings.logs else []
        if counts:
            for key, value in transaction_records(transaction.id, transaction.committed_at_ms, counts):
                self._sink.log("transaction", key, value)
        if self._handover is not None and self._handover.spent(transaction.commit):
            self._handover = None

    def _message(self, message: Message) -> None:
        """Write a message that belongs to no transaction."""
        if self._sink.pending()[0] == 0:
            self._since_s = time.monotonic()
        now_ms = time.time_ns() // 1_000_000
        where, _ = self._source.coordinates(message.lsn)
        frame = Frame(
            epoch=self._state.epoch,
            commit=message.lsn,
            at_ms=now_ms,
            made_at_ms=now_ms,
            transaction=None,
            where=where,
            alone=True,
        )
        self._writer.message(message, frame)
        self._uncommitted += 1

    def _cut(self) -> bool:
        """Whether to commit under load: by records, bytes or age of the first; with none, if the position is due."""
        records, size = self._sink.pending()
        if records == 0:
            return self._position_due()
        apart_s = min(self._commit_s * _COMMITS_APART, APART_MOST_S)
        age_s = time.monotonic() - self._since_s
        return age_s >= apart_s and (age_s >= CUT_AGE_S or records >= CUT_RECORDS or size >= CUT_BYTES)

    def _due_when_idle(self) -> bool:
        """Whether to commit with nothing to read: at once if records are pending, else when the position is due.

        So the server can drop old log, and a copy that was fenced off notices, even where nobody writes.
        """
        return self._sink.pending()[0] > 0 or self._position_due()

    def _position_due(self) -> bool:
        """Whether to commit the position: soon after it has moved (`cdc wait` may wait for it), else every 10 s."""
        waited_s = time.monotonic() - self._positioned_s
        if waited_s >= IDLE_POSITION_S:
            return True
        return waited_s >= MOVED_POSITION_S and self._source.position()[1] > self._state.commit

    def _look_at_end(self, commit: int) -> None:
        """Note how fresh `commit` is, which only the log's end tells where none of our tables is written.

        The clock is looked at first: all that was committed by then lies before the log's end, which is asked for next.
        """
        if self._looked is not None and commit < self._looked[0]:
            return
        if self._looked is not None:
            self._source_ms = max(self._source_ms, self._looked[1])
        self._looked_s = time.monotonic()
        looked_ms = now_ms(self._source)
        self._looked = (self._source.current(), looked_ms)
        if commit >= self._looked[0]:
            self._source_ms = looked_ms  # a commit may claim a later time: sessions of MySQL may set theirs

    def _commit_position(self) -> None:
        rereads, asked = self._rereads.commit()
        offset, commit = self._source.position()
        reading = self._incremental.state()
        nothing = commit == self._state.commit and self._sink.pending()[0] == 0 and reading == self._state.reading
        if nothing and time.monotonic() - self._positioned_s < IDLE_POSITION_S:
            self._across.good()
            return
        looked_long_ago = time.monotonic() - self._looked_s >= LOOK_AT_END_S
        if self._sink.pending()[0] == 0 or (self._at_end and looked_long_ago):
            self._look_at_end(commit)
        snapshot = self._state.snapshot if self._handover is not None else {}
        self._commit(
            self._state.next(
                offset=offset,
                commit=commit,
                source_ms=self._source_ms,
                carried=self._source.carried(),
                snapshot=snapshot,
                reading=reading,
                windows=self._windows,
                rereads=rereads,
                asked=asked,
            )
        )
        self._source.acknowledge(offset)

    def _commit(self, state: State) -> None:
        """Commit records and position together: both become visible, or neither. All guarantees rest on this step."""
        state = replace(state, dead_letters=self._state.dead_letters + self._letters.take())
        begun_s = time.monotonic()
        self._sink.commit(state)
        self._state = state
        self._positioned_s = time.monotonic()
        self._commit_s = self._positioned_s - begun_s
        events, self._uncommitted = self._uncommitted, 0
        self._across.committed(events, state)


def _read_at_ms(due: Window | RequestedRows | Sequence[bytes]) -> int:
    window = due.window if isinstance(due, RequestedRows) else due
    return window.read_at_ms if isinstance(window, Window) else time.time_ns() // 1_000_000
