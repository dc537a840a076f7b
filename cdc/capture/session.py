"""A session is the loop between two fences: it reads, writes whole transactions, commits, and then acknowledges."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final, NoReturn

from cdc.capture.across_sessions import AcrossSessions, Stopped
from cdc.capture.commit_pace import CUT_BYTES
from cdc.capture.control.commands import RestartSession
from cdc.capture.place import Place
from cdc.capture.session_parts import open_parts
from cdc.capture.settings import Settings
from cdc.capture.starting.descriptions import unless_rekeyed
from cdc.encode.envelope.frame import Frame
from cdc.model.change import Idle, Message, Position, Table, Transaction, TransactionBatch
from cdc.model.errors import OperatorError
from cdc.model.interfaces import SettingAside, Settling, Sink, Snapshotter, Source
from cdc.model.meter import Commit, RunState
from cdc.model.state import Phase, State

PAUSED_LOOK_S: Final = 0.5
THROTTLED_S: Final = 1.0
"""A transaction is not left open while so long is waited."""

log = logging.getLogger("cdc")


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
        told: Mapping[str, str],
        until_caught_up: bool,
    ) -> None:
        """`told`: why the start has said that tables are read again."""
        self._across = across
        self._until_caught_up = until_caught_up
        self._settings, self._sink, self._source, self._reader = settings, sink, source, reader
        self._setting_aside = source if isinstance(source, SettingAside) else None  # too slow to ask at each frame
        self._tables, self._meter = tables, across.meter
        self._place = Place(source, state)
        self._parts = parts = open_parts(
            settings, sink, source, reader, across, tables=tables, place=self._place, tend=self._tend
        )
        self._state = unless_rekeyed(state, tables, parts.versions)
        self._letters, self._versions, self._writer = parts.letters, parts.versions, parts.writer
        self._incremental, self._rereads, self._commands = parts.incremental, parts.rereads, parts.commands
        self._rereads.told.update(told)
        self._log, self._windows = parts.log, parts.windows
        self._freshness, self._throttle, self._pace = parts.freshness, parts.throttle, parts.pace
        self._uncommitted = 0
        """Events in the open transaction."""
        self._at_end = False
        """Whether there may be nothing more to read now."""
        self._rekeyed: list[Table] = []
        """Tables that have another key than their topics, and no event of it yet: see `_read_rekeyed`."""
        self._rekeyed_behind = 0
        self._meter.opened(self._state, sink.pending)

    def close(self) -> None:
        self._parts.close()

    def _tend(self) -> None:
        """Look after the source while something takes long within a transaction. Raises Stopped, which undoes it."""
        self._source.tend()
        self._meter.moves()
        if self._across.stop.is_set():
            raise Stopped

    def snapshot(self, view: str | None) -> None:
        """Read the rest of the snapshot; rows and their progress are in one Kafka transaction."""
        state = self._state
        point = state.commit - 1  # before every transaction of the log that follows
        where, at = self._source.coordinates(state.commit)
        progress = state.snapshot
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
            self._writer.snapshot.rows(chunk.table, chunk.rows, frame, Position(state.epoch, point, chunk.view), lsn=at)
            self._uncommitted += len(chunk.rows)
            self._place.view = max(self._place.view, chunk.view)
            self._source.tend()
            records, size = self._sink.pending()
            stopped = self._across.stop.is_set()
            paused = self._commands.is_paused(look=True) or self._commands.is_to_reload()
            self._throttle.took(len(chunk.rows))
            waits = self._throttle.wait_s() >= THROTTLED_S
            quiet = records > 0 and not chunk.rows  # the next may be long in coming, and brokers end what stays open
            if records >= self._settings.chunk_rows or size >= CUT_BYTES or stopped or paused or waits or quiet:
                self._commit_read(chunk.progress)
            if stopped:
                raise Stopped
            if paused:
                self._restart()  # the readers let go of the tables
            progress = chunk.progress
            self._await_throttle()
            self._meter.waits()
        self._commit_read(progress, phase=Phase.STREAM, unread=())

    def _commit_read(self, progress: Mapping[str, object], **more: object) -> None:
        """Commit rows with how far the snapshot is, and with the tables that they have asked to be read once more.

        Rows that describe a table with another key ask for that. The next session finds the table as it is described.
        """
        reading, view = self._incremental.state(), self._place.view
        self._commit(self._state.next(snapshot=progress, reading=reading, windows=view, **more))

    def _await_throttle(self) -> None:
        """Wait until more rows may be read, looking after the source; not for somebody who stops or pauses it."""
        while (left_s := self._throttle.wait_s()) > 0 and not self._commands.is_paused(look=True):
            self._source.tend()
            self._meter.moves()
            if self._across.stop.wait(min(left_s, PAUSED_LOOK_S)):
                return

    def stream(self, target: int | None) -> None:
        """Follow the log; with a `target`, until everything below it is committed."""
        self._log.handover = self._reader.handover(self._tables, self._state.snapshot)
        outbox = self._settings.outbox
        read = [table for table in self._tables if outbox is None or table.qualified != outbox.table]  # into topics
        for table in read:
            if reason := self._versions.stale(table):
                self._rereads.resnapshot(table, reason, at_start=True)
        self._rekeyed = [table for table in read if self._versions.rekeyed(table)]
        self._rekeyed_behind = self._source.current() if self._rekeyed else 0
        self._read_rekeyed(self._state.commit)
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
                self._uncommitted += self._log.transaction(frame)
            elif isinstance(frame, TransactionBatch):
                self._uncommitted += self._log.batch(frame.transactions)
            elif isinstance(frame, Message):
                self._uncommitted += self._log.message(frame)
            if self._rekeyed:
                self._read_rekeyed(self._source.position()[1])
            caught_up = target is not None and self._source.position()[1] >= target and not self._to_do()
            stopped = self._across.stop.is_set()
            due = self._due_when_idle() if isinstance(frame, Idle) else self._cut()
            if due or caught_up or stopped:
                self._at_end = caught_up or stopped or isinstance(frame, Idle)
                self._commit_position()
            if caught_up and (not isinstance(self._source, Settling) or self._source.settled()):
                self._look_at_topics(whole=True)
                return
            if stopped:
                raise Stopped
            if isinstance(frame, Idle):
                self._look_if_wanted()
            if self._to_do() and self._incremental and not self._throttle.wait_s() and self._write_window():
                self._commit_position()
            if self._commands.is_to_reload():
                self._commit_position()
                self._restart()
            if self._commands.is_paused():
                self._commit_position()
                self._pause()

    def _read_rekeyed(self, commit: int) -> None:
        """Have tables with another key read again, once the log is written up to where it ended when that was found."""
        if not self._rekeyed or commit < self._rekeyed_behind:
            return
        for table in self._rekeyed:
            if reason := self._versions.rekeyed(table):  # else an event has described it by now
                self._rereads.resnapshot(table, reason, at_start=True)
        self._rekeyed = []

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
            if self._commands.is_to_reload():
                self._commit(self._state.next())
                self._restart()
            if self._state.phase is Phase.STREAM:
                self._look_if_wanted()
            if self._pace.is_long_ago():
                self._look_at_topics()
                self._commit(self._state.next())  # a copy that was fenced off notices
            self._across.stop.wait(PAUSED_LOOK_S)

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
        gap = self._commands.look(self._reached, self._look_at_topics)
        waits = self._setting_aside is not None and bool(self._setting_aside.set_aside())
        return bool(self._incremental) or bool(self._rereads) or bool(self._rekeyed) or gap or waits

    def _reached(self) -> int:
        return max(self._state.commit, self._source.position()[1])

    def _look_at_topics(self, *, whole: bool = False) -> None:
        """Restart the session if a topic has been deleted or changed: a start compares all with what is recorded."""
        unfinished = self._incremental or self._rereads or self._sink.pending()[0]  # which might begin again each time
        if self._across.asks_again() and not self._until_caught_up and not unfinished:
            log.debug("the session starts again to ask for tables that are left out")
            raise RestartSession
        if self._settings.wires is not None and self._settings.wires.moved():
            log.warning("the schema registry has other ids than it gave, or takes what it has refused: the session "
                        "starts again to compare")  # fmt: skip
            raise RestartSession
        if self._sink.moved(whole=whole):
            log.warning("a topic has been deleted, made again or given partitions, has lost records, or is right "
                        "that was not: the session starts again to compare")  # fmt: skip
            raise RestartSession

    def _write_window(self) -> bool:
        """Write a window that was read, if there is one to be written by now."""
        events = self._windows.write(settled=self._sink.pending()[0] == 0)
        self._uncommitted += events or 0
        return events is not None

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
        snapshot = self._state.snapshot if self._log.handover is not None else {}
        self._commit(
            self._state.next(
                offset=offset,
                commit=commit,
                source_ms=self._freshness.source_ms,
                carried=self._source.carried(),
                snapshot=snapshot,
                reading=reading,
                windows=self._place.view,
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
        self._letters.committed()
        self._state = self._place.state = state
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
