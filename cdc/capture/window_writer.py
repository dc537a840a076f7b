"""Writes what the incremental snapshot has read, at the place of the log that the loop has reached."""

from __future__ import annotations

import time
from collections.abc import Sequence

from cdc.capture.control.commands import UserCommands
from cdc.capture.control.rereads import Rereads
from cdc.capture.place import Place
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.capture.snapshots.throttle import Throttle
from cdc.encode.envelope.frame import Frame
from cdc.encode.snapshot_rows import SnapshotRows
from cdc.encode.window_keys import RequestedRows
from cdc.model.change import Position
from cdc.model.interfaces import Source, Window


class WindowWriter:
    """Writes rows between two transactions of the log; commits nothing."""

    def __init__(
        self,
        incremental: IncrementalSnapshot,
        rereads: Rereads,
        commands: UserCommands,
        source: Source,
        place: Place,
        *,
        rows: SnapshotRows,
        throttle: Throttle,
    ) -> None:
        self._incremental, self._rereads, self._commands = incremental, rereads, commands
        self._source, self._place, self._rows, self._throttle = source, place, rows, throttle

    def write(self, *, settled: bool) -> int | None:
        """Write a window that was read, if the log has been followed far enough; return how many events it has.

        None: there is none yet. `settled`: all that was written is committed.
        """
        due = self._incremental.due(lambda: self._source.position()[1], settled=settled, since=self._place.since)
        if due is None:
            return None
        commit = self._source.position()[1]
        self._place.view = Position.window(self._place.view)
        position = Position(self._place.state.epoch, commit - 1, self._place.view)
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
            self._rereads.first = (due.table.qualified, position.text) if self._incremental.is_first(due) else None
            events = self._rows.window(due, frame, position, lsn=at)
            self._rereads.first = None
            self._incremental.wrote(due)
            self._throttle.took(len(due.rows))
            return events
        if isinstance(due, RequestedRows):
            events = self._rows.requested(due, frame, position, lsn=at)
            if self._incremental.wrote_requested(due):
                self._commands.read(due.command)
            self._rereads.wrote(due)
            return events
        deleted = self._rows.stale(self._incremental.table, due, frame, position, lsn=at)
        self._incremental.deleted(deleted, self._place.since)
        return deleted


def _read_at_ms(due: Window | RequestedRows | Sequence[bytes]) -> int:
    window = due.window if isinstance(due, RequestedRows) else due
    return window.read_at_ms if isinstance(window, Window) else time.time_ns() // 1_000_000
