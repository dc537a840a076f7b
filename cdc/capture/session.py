"""A session is the loop between two fences: it reads, writes whole transactions, commits, and then acknowledges."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, NoReturn

from cdc.capture.commands import RestartSession, UserCommands
from cdc.capture.commit_pace import CUT_BYTES, CommitPace
from cdc.capture.freshness import Freshness
from cdc.capture.incremental_snapshot import IncrementalSnapshot
from cdc.capture.outbox_writer import OutboxWriter
from cdc.capture.rereads import Rereads
from cdc.capture.startup import Settings, restored, unless_rekeyed
from cdc.capture.throttle import Throttle
from cdc.encode.dead_letters import DeadLetters
from cdc.encode.envelope import Frame, transaction_records
from cdc.encode.event_writer import EventWriter
from cdc.encode.published_values import PublishedValues
from cdc.encode.schema_versions import SchemaVersions
from cdc.encode.toast import ToastValues
from cdc.encode.window_keys import RequestedRows
from cdc.model.audit import READ_AGAIN, Act, asked_by
from cdc.model.change import Idle, Message, Position, Table, Transaction, TransactionBatch
from cdc.model.errors import OperatorError
from cdc.model.interfaces import Handover, Sink, Snapshotter, Source, Window
from cdc.model.meter import Commit, Meter, RunState
from cdc.model.state import Phase, State

PAUSED_LOOK_S: Final = 0.5
THROTTLED_S: Final = 1.0
"""A transaction is not left open while so long is waited."""

log = logging.getLogger("cdc")


class Stopped(Exception):  # noqa: N818 - not an error
    """The user asked to stop; everything whole is committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AcrossSessions:
    """Holds what outlives a session."""

    stop: threading.Event
    reload: threading.Event
    """Set where the file is to be read again: the session ends for that."""
    committed: Callable[[int, State], None]
    good: Callable[[], None]
    executor: Callable[[], Executor]
    meter: Meter
    published: PublishedValues
    """What the topics say of values that the log leaves out, as far as it has been read."""
    not_asked: set[str] = field(default_factory=set)
    """Topics for whose left-out values the source is not asked: see `EventWriter`."""
    looked_for: set[bytes] = field(default_factory=set)
    """Commands for whose tables a session was restarted."""
    refused: Counter[tuple[str, bytes, str]] = field(default_factory=Counter)
    """How often the broker found the record of (topic, key, position) too large."""


class Session:
    """Runs between two fences: it knows what is read, what is pending and what is committed."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        source: Source,
        reader: Snapshotter,
        across: AcrossSessions,
        *,
        tables: Sequence[Table],
        state: State,
        until_caught_up: bool,
    ) -> None:
        self._across = across
        self._until_caught_up = until_caught_up
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
            wires=settings.wires,
            tend=self._tend,
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
            unsent=settings.unsent,
            outbox=OutboxWriter(settings.outbox, sink, self._letters) if settings.outbox is not None else None,
        )
        self._windows = state.windows
        self._told = False
        """Whether the process was told to read the file again."""
        self._frame: Frame | None = None
        self._commands = UserCommands(
            sink,
            source,
            self._rereads,
            self._incremental,
            connector=settings.connector,
            captured=self._state.tables,
            looked_for=across.looked_for,
            since=self._since,
            paused_ms=self._state.paused_ms,
        )
        self._first_of = ""
        """The table whose first window is being written; empty between windows."""
        self._handover: Handover | None = None
        self._uncommitted = 0
        self._freshness = Freshness(source, state.source_ms)
        self._meter = across.meter
        self._throttle = Throttle(settings.rows_per_second)
        self._at_end = False
        """Whether there may be nothing more to read now."""
        self._pace = CommitPace(settings.idle_position_s)
        self._meter.opened(self._state, sink.pending)

    def close(self) -> None:
        self._incremental.close()
        self._toast.close()
        self._writer.close()

    def _tend(self) -> None:
        """Look after the source while something takes long within a transaction. Raises Stopped, which undoes it."""
        self._source.tend()
        self._meter.moves()
        if self._across.stop.is_set():
            raise Stopped

    def resnapshot(self, table: Table, reason: str) -> None:
        """Snapshot a table incrementally: the topic's rows are not the source's, though no event said so."""
        if self._first_of == table.qualified:
            self._incremental.note_version(table.qualified)  # its first rows have shown the change it is read for
        elif self._incremental.add(table.qualified, self._log_end(), required=True):
            log.warning("table %s: %s: its rows are read again", table.qualified, reason)

    def _emptied(self, table: Table) -> None:
        """Have a truncated table read: the many keys that are not there any more get their deletes at the end."""
        self._incremental.add(table.qualified, self._since(), required=True, restart=True)
        log.info("table %s was truncated: its keys get their deletes in parts, behind what is in it by now",
                 table.qualified)  # fmt: skip

    def _log_end(self) -> str:
        """Give a position behind all that is in the log by now: what has changed the rows may be anywhere before it."""
        commit = max(self._source.current(), self._source.position()[1], self._state.commit)
        return Position(self._state.epoch, commit - 1, self._windows + 1).text

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
        if self._commands.is_paused(now=True):
            self._pause()
        self._meter.becomes(RunState.SNAPSHOT)
        self._meter.waits()  # a table may be locked
        unread = [table for table in self._tables if table.qualified in state.unread]
        for chunk in self._reader.chunks(unread, progress, view):
            self._meter.moves()
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
            paused = self._commands.is_paused(look=True) or self._is_to_reload()
            self._throttle.took(len(chunk.rows))
            waits = self._throttle.wait_s() >= THROTTLED_S
            if records >= self._settings.chunk_rows or size >= CUT_BYTES or stopped or paused or waits:
                self._commit(self._state.next(snapshot=chunk.progress, windows=self._windows))
            if stopped:
                raise Stopped
            if paused:
                self._restart()  # the readers let go of the tables
            progress = chunk.progress
            self._await_throttle()
            self._meter.waits()
        self._commit(self._state.next(phase=Phase.STREAM, unread=(), snapshot=progress, windows=self._windows))

    def _await_throttle(self) -> None:
        """Wait until more rows may be read, looking after the source; not for somebody who stops or pauses it."""
        while (left_s := self._throttle.wait_s()) > 0 and not self._commands.is_paused(look=True):
            self._source.tend()
            self._meter.moves()
            if self._across.stop.wait(min(left_s, PAUSED_LOOK_S)):
                return

    def stream(self, target: int | None) -> None:
        """Follow the log; with a `target`, until everything below it is committed."""
        self._handover = self._reader.handover(self._tables, self._state.snapshot)
        for table in self._tables:
            if reason := self._versions.stale(table):
                self.resnapshot(table, reason)
        if target is not None and self._state.commit >= target and not self._to_do() and not self._sink.pending()[0]:
            self._look_at_topics(whole=True)
            return
        self._commands.is_paused(now=True)
        self._meter.becomes(RunState.STREAMING)
        self._look_if_wanted()
        for frame in self._source.stream(self._state.offset):
            self._meter.moves()
            if self._commands.is_paused():
                self._pause()
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
            if isinstance(frame, Idle):
                self._look_if_wanted()
            if self._to_do() and self._incremental and not self._throttle.wait_s() and self._write_window():
                self._commit_position()
            if self._is_to_reload():
                self._commit_position()
                self._restart()
            if self._commands.is_paused():
                self._commit_position()
                self._pause()

    def _pause(self) -> NoReturn:
        """Read nothing until the connector is to go on: a new session then compares everything with the position.

        No event may be pending. What the source has given last is not touched: the next session is given it again.
        """
        self._meter.becomes(RunState.PAUSED)
        if not self._state.paused_ms or self._sink.pending()[0]:
            self._commit(self._state.next())
        if self._until_caught_up:
            raise OperatorError(
                f"connector {self._settings.connector} is paused: it does not catch up before it is resumed",
                hint="cdc resume CONNECTOR.yaml",
            )
        log.info("connector %s is paused: its place in the log is kept, and nothing is read", self._settings.connector)
        while True:
            self._tend()
            if not self._commands.is_paused(look=True):
                self._commit(self._state.next())
                log.info("connector %s is resumed", self._settings.connector)
                raise RestartSession
            if self._is_to_reload():
                self._commit(self._state.next())
                self._restart()
            if self._state.phase is Phase.STREAM:
                self._look_if_wanted()
            if self._pace.is_long_ago():
                self._look_at_topics()
                self._commit(self._state.next())  # a copy that was fenced off notices
            self._across.stop.wait(PAUSED_LOOK_S)

    def _is_to_reload(self) -> bool:
        """Whether the file is to be read again: a command says so, or the process was told, which is noted."""
        if self._across.reload.is_set() and not self._told:
            self._told = True
            act = Act(action="reload", by=asked_by(), about={"by": "SIGHUP"}, outcome=READ_AGAIN)
            connector = self._settings.connector
            self._sink.log("audit", connector.encode(), act.to_bytes(connector=connector, position=self._since()))
        return self._commands.reload or self._told

    def _restart(self) -> NoReturn:
        """Begin a new session, after a commit that has answered what asked for it."""
        if self._commands.reload:
            self._across.reload.set()
        raise RestartSession

    def _look_if_wanted(self) -> None:
        """Look at the log's end for those who look at figures, where all that was read is in Kafka."""
        if not (self._meter.wanted and self._freshness.is_due()) or self._sink.pending()[0]:
            return
        commit = self._state.commit if self._commands.is_paused() else self._source.position()[1]
        if commit == self._state.commit:
            self._freshness.look(commit)
            self._meter.is_fresh(self._freshness.source_ms, self._freshness.ahead_ms)

    def _to_do(self) -> bool:
        """Whether tables are to be read while the log is followed; regularly reads the user's commands."""
        reached = max(self._state.commit, self._source.position()[1])
        gap = self._commands.look(reached, self._look_at_topics)
        return bool(self._incremental) or bool(self._rereads) or gap

    def _look_at_topics(self, *, whole: bool = False) -> None:
        """Restart the session if a topic has been deleted or changed: a start compares all with what is recorded."""
        if self._sink.moved(whole=whole):
            log.warning("a topic has been deleted, made again or given partitions: the session starts again to compare")
            raise RestartSession

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
            self._throttle.took(len(due.rows))
        elif isinstance(due, RequestedRows):
            self._uncommitted += self._writer.requested(due, frame, position, lsn=at)
            if self._incremental.wrote_requested(due):
                self._commands.read(due.command)
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
        self._pace.begins(self._sink.pending()[0])
        made_at_ms = time.time_ns() // 1_000_000
        written, events = self._writer.batch(transactions, begin, self._state.epoch, made_at_ms)
        self._freshness.read(transactions[begin : begin + written])
        self._uncommitted += events
        return written

    def _transaction(self, transaction: Transaction) -> None:
        """Write one whole source transaction into the open Kafka transaction."""
        self._pace.begins(self._sink.pending()[0])
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
        self._freshness.read_one(transaction.committed_at_ms, frame.events)
        self._uncommitted += frame.events
        counts = frame.counts() if "transaction" in self._settings.logs else []
        if counts:
            for key, value in transaction_records(transaction.id, transaction.committed_at_ms, counts):
                self._sink.log("transaction", key, value)
        if self._handover is not None and self._handover.spent(transaction.commit):
            self._handover = None

    def _message(self, message: Message) -> None:
        """Write a message that belongs to no transaction."""
        self._pace.begins(self._sink.pending()[0])
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
        """Whether to commit under load; with nothing pending, if the position is due."""
        records, size = self._sink.pending()
        return self._pace.is_cut(records, size) if records else self._position_due()

    def _due_when_idle(self) -> bool:
        """Whether to commit with nothing to read: at once if records are pending, else when the position is due.

        So the server can drop old log, and a copy that was fenced off notices, even where nobody writes.
        """
        return self._sink.pending()[0] > 0 or self._position_due()

    def _position_due(self) -> bool:
        return self._pace.is_position_due(moved=self._source.position()[1] > self._state.commit)

    def _commit_position(self) -> None:
        rereads, asked = self._rereads.commit()
        offset, commit = self._source.position()
        reading = self._incremental.state()
        nothing = commit == self._state.commit and self._sink.pending()[0] == 0 and reading == self._state.reading
        if nothing and not self._pace.is_long_ago():
            self._across.good()
            return
        if self._sink.pending()[0] == 0 or (self._at_end and self._freshness.is_due()):
            self._freshness.look(commit)
        snapshot = self._state.snapshot if self._handover is not None else {}
        self._commit(
            self._state.next(
                offset=offset,
                commit=commit,
                source_ms=self._freshness.source_ms,
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
        letters = self._state.dead_letters + self._letters.take()
        # A pause that was answered in this transaction is in its position: neither is ever there without the other.
        state = replace(state, dead_letters=letters, paused_ms=self._commands.paused_ms)
        begun_s, (records, size) = time.monotonic(), self._sink.pending()
        self._sink.commit(state)
        self._state = state
        self._pace.committed(begun_s)
        events, self._uncommitted = self._uncommitted, 0
        self._across.committed(events, state)
        transactions = self._freshness.taken()
        if self._meter.wanted:
            made = self._writer.taken()
            self._meter.committed(
                Commit(
                    state=state,
                    events=made,
                    transactions=transactions,
                    records=records,
                    size_bytes=size,
                    took_s=self._pace.commit_s,
                    epochs=self._sink.epochs,
                )
            )
            if state.phase is Phase.STREAM:
                self._meter.is_fresh(state.source_ms, self._freshness.ahead_ms)


def _read_at_ms(due: Window | RequestedRows | Sequence[bytes]) -> int:
    window = due.window if isinstance(due, RequestedRows) else due
    return window.read_at_ms if isinstance(window, Window) else time.time_ns() // 1_000_000
