"""Shows how far a run is: to a person at a terminal, and in the log."""

from __future__ import annotations

import logging
import time

from cdc.capture.pipeline import Report
from cdc.capture.snapshots.snapshot_progress import SnapshotProgress, duration, snapshot_progress, tables_being_read
from cdc.cli.terminal import clear_progress, instant, place_of, show_progress
from cdc.model.state import Phase
from cdc.telemetry.json_log import Place

_NAMED = 3
_SILENT_S = 30.0
"""A connector with nothing to read commits its position every 10 s."""
_SAID_EVERY_S = 10.0
_DRAWN_EVERY_S = 0.25
_PHASES = {
    Phase.CREATING: "making publication and slot",
    Phase.SNAPSHOT: "reading the tables",
    Phase.STREAM: "following the log",
}


class RunProgress:
    """Shows a run to a person: a line when a phase begins and every 10 s; on a terminal, a status line too."""

    def __init__(self, name: str, *, live: bool, place: Place | None = None) -> None:
        self._name = name
        self._place = place or Place(connector=name)
        self._live = live
        self._phase: Phase | None = None
        self._at_s = self._drawn_s = time.monotonic()
        self._events = 0
        self._report: Report | None = None
        self._reported_s = time.monotonic()
        self.stopping = False
        self._log = logging.getLogger("cdc")

    def __call__(self, report: Report) -> None:
        now = self._reported_s = time.monotonic()
        self._report = report
        self._place.stands_at(report.state.offset)
        if report.phase is not self._phase:
            self._phase = report.phase
            self.say(logging.INFO, _PHASES[report.phase])
        elif now - self._at_s >= _SAID_EVERY_S and report.events > self._events:
            self.say(logging.INFO, self._progress(report, now))
        else:
            self._log.debug("%s: committed at %s, %d events", self._name, report.state.offset, report.events)
            self._draw(report, now)
            return
        self._at_s, self._events = now, report.events

    def alive(self) -> None:
        """Say that it lives, and what it does; called on another thread when nothing else was said for a minute."""
        report, silent_s = self._report, time.monotonic() - self._reported_s
        if report is None:
            self.say(logging.INFO, f"alive; no position committed for {duration(silent_s)}, since the start")
        elif silent_s > _SILENT_S:
            where = f"the last one is {place_of(report.state.offset)}"
            self.say(logging.INFO, f"alive; no position committed for {duration(silent_s)}: {where}")
        else:
            state = report.state
            upto = f", all that was committed up to {instant(state.source_ms / 1000)} is in Kafka"
            known = upto if report.phase is Phase.STREAM and state.source_ms else ""
            if state.paused_ms:
                self.say(
                    logging.INFO,
                    f"alive; paused since {instant(state.paused_ms / 1000)}, at {place_of(state.offset)}{known}",
                )
                return
            self.say(logging.INFO, f"alive; {report.events:,} events so far, at {place_of(state.offset)}{known}")

    def _progress(self, report: Report, now: float) -> str:
        rate = (report.events - self._events) / max(now - self._at_s, 0.001)
        snapshot = report.phase is Phase.SNAPSHOT and report.tables
        what = (
            reading(snapshot_progress(report.state.snapshot, _now_ms()))
            if snapshot
            else f"at {place_of(report.state.offset)}"
        )
        again = [
            at for at in tables_being_read(report.state, _now_ms()).items() if at[1].phase in ("reading", "deleting")
        ]
        for name, at in again:
            left = "" if at.eta_s is None else f", about {duration(at.eta_s)} left"
            what += f"; {at.phase} {name}: {at.rows:,} rows{left}"
        return f"{report.events:,} events, {rate:,.0f}/s, {what}"

    def _draw(self, report: Report, now: float) -> None:
        if self._live and now - self._drawn_s >= _DRAWN_EVERY_S:
            self._drawn_s = now
            show_progress(f"{self._name}: {self._progress(report, now)}")

    def say(self, level: int, text: str) -> None:
        """Log a line about the connector."""
        if self._live:
            clear_progress()
        self._log.log(level, "%s: %s", self._name, text)

    def done(self) -> None:
        if self._report is None and self.stopping:  # it has stood by, or has made no slot yet
            self.say(logging.INFO, "stopped, nothing was written")
            return
        events = 0 if self._report is None else self._report.events
        ended = "stopped" if self.stopping else "caught up"
        self.say(logging.INFO, f"{ended}, position committed; {events:,} events in this run")


def reading(found: SnapshotProgress) -> str:
    """Write ``reading public.t 1,200 rows of about 4,000, 3 of 5 tables done, about 12 s left``."""
    part = [name for name, table in found.tables.items() if table.rows and not table.done]
    words = []
    for name in part[:_NAMED]:
        table = found.tables[name]
        of = "" if table.estimate is None else f" of about {max(table.estimate, table.rows):,}"
        words.append(f"reading {name} {table.rows:,} rows{of}")
    done = sum(table.done for table in found.tables.values())
    words.append(f"{done} of {len(found.tables)} tables done")
    if found.eta_s is not None:
        words.append(f"about {duration(found.eta_s)} left")
    return ", ".join(words)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
