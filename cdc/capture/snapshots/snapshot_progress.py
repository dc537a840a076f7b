"""Tells how far snapshots are (rows, estimate, time left) from the committed state alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from cdc.model.state import State


@dataclass(frozen=True, slots=True)
class SnapshotTable:
    """Progress of one table of the initial snapshot."""

    rows: int
    """Rows read so far."""
    estimate: int | None
    """The estimated number of rows; None where the snapshotter has no estimate."""
    done: bool

    @property
    def left(self) -> int:
        return 0 if self.done or self.estimate is None else max(0, self.estimate - self.rows)


@dataclass(frozen=True, slots=True)
class SnapshotProgress:
    """Progress of the initial snapshot."""

    tables: Mapping[str, SnapshotTable]
    eta_s: float | None
    """Seconds until the rest is read at the pace of this run; None where the pace is not known."""

    @property
    def rows(self) -> int:
        return sum(table.rows for table in self.tables.values())

    @property
    def left(self) -> int:
        return sum(table.left for table in self.tables.values())


def snapshot_progress(progress: Mapping[str, Any], at_ms: int) -> SnapshotProgress:
    """Sum up a snapshotter's progress (`cdc.model.interfaces.Chunk`) as it was committed at `at_ms`."""
    shown = progress.get("tables")
    tables = {
        name: SnapshotTable(table["rows"], table.get("estimate"), table["done"])
        for name, table in (shown.items() if isinstance(shown, dict) else ())
    }
    found = SnapshotProgress(tables, None)
    run = progress.get("run")
    if not isinstance(run, dict):
        return found
    read, took_s = found.rows - run["rows_before"], (at_ms - run["started_at_ms"]) / 1000
    if found.left == 0 or read <= 0 or took_s <= 0:
        return found
    return SnapshotProgress(tables, found.left * took_s / read)


@dataclass(frozen=True, slots=True)
class TableRead:
    """Progress of a table that is being read, by the initial or an incremental snapshot."""

    phase: str
    """``initial`` before the log is followed; else ``waiting``, ``reading``, or ``deleting`` rows that are gone."""
    rows: int
    estimate: int | None
    required: bool
    """Its topic is not complete before the end: it cannot be stopped."""
    eta_s: float | None


def tables_being_read(state: State, at_ms: int) -> dict[str, TableRead]:
    """Find the tables that are being read, by name, as committed at `at_ms`."""
    initial = snapshot_progress(state.snapshot, at_ms)
    found = {
        name: TableRead("initial", table.rows, table.estimate, required=True, eta_s=initial.eta_s)
        for name, table in initial.tables.items()
        if name in state.unread and not table.done
    }
    for number, (name, value) in enumerate(state.reading.items()):
        of = cast("Mapping[str, Any]", value)
        phase = "waiting" if number else "deleting" if of["read"] else "reading"
        left = max(0, (of["estimate"] or 0) - of["rows"])
        took_s = (at_ms - (of["started_at_ms"] or at_ms)) / 1000
        eta_s = left * took_s / of["rows"] if phase == "reading" and left and of["rows"] and took_s > 0 else None
        found[name] = TableRead(phase, of["rows"], of["estimate"], required=of["required"], eta_s=eta_s)
    return found


def duration(seconds: float) -> str:
    """Format a duration in its two largest units: ``45 s``, ``3 min 20 s``, ``2 h 5 min``."""
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004 - a minute
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
