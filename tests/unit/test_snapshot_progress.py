"""How far a snapshot is, from its state."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.capture.snapshots.snapshot_progress import SnapshotProgress, SnapshotTable, duration, snapshot_progress
from cdc.cli.running.run_progress import reading

AT_MS = 1_700_000_000_000


def _progress(*, rows_before: int = 0, **tables: tuple[int, int | None, bool]) -> dict[str, Any]:
    return {
        "tables": {
            name: {"rows": rows, "done": done} | ({} if estimate is None else {"estimate": estimate})
            for name, (rows, estimate, done) in tables.items()
        },
        "run": {"started_at_ms": AT_MS, "rows_before": rows_before},
    }


def test_the_rest_is_read_at_the_pace_of_this_run() -> None:
    """Rows that earlier runs read took another time; done tables have nothing left, whatever was estimated."""
    progress = _progress(a=(3_000, 9_000, True), b=(1_000, 5_000, False), c=(0, 2_000, False), rows_before=2_000)
    found = snapshot_progress(progress, AT_MS + 10_000)
    assert (found.rows, found.left) == (4_000, 6_000)
    assert found.eta_s == pytest.approx(30.0)


@pytest.mark.parametrize(
    ("progress", "after_ms"),
    [
        (_progress(a=(10, 10, True)), 1_000),  # done
        (_progress(a=(0, 10, False)), 1_000),  # no pace yet
        (_progress(a=(5, 10, False), rows_before=5), 1_000),  # none in this run
        (_progress(a=(5, 10, False)), 0),
        (_progress(a=(20, 10, False)), 1_000),  # more than was estimated
        (_progress(a=(5, None, False)), 1_000),  # a snapshotter that does not guess
        ({"tables": {"a": {"rows": 5, "done": False, "estimate": 10}}}, 1_000),  # nor notes when it began
        ({"at": "b", "tables": None}, 1_000),  # a third party's own terms
        ({}, 1_000),
    ],
)
def test_no_time_is_made_up(progress: dict[str, Any], after_ms: int) -> None:
    """Without an estimate, a pace or anything left there is no time to tell."""
    assert snapshot_progress(progress, AT_MS + after_ms).eta_s is None


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (3_599, "59 min 59 s"), (7_500, "2 h 5 min")],
)
def test_a_duration_has_two_units(seconds: float, text: str) -> None:
    """Nobody needs the seconds of an hour."""
    assert duration(seconds) == text


def test_the_line_in_hand() -> None:
    """What is being read, how much of how many tables, and how long it will take."""
    tables = {
        "s.a": SnapshotTable(9, 7, done=True),
        "s.b": SnapshotTable(1_200, 4_000, done=False),
        "s.c": SnapshotTable(50, 40, done=False),
        "s.d": SnapshotTable(5, None, done=False),
        "s.e": SnapshotTable(0, 40, done=False),
    }
    assert reading(SnapshotProgress(tables, 75.0)) == (
        "reading s.b 1,200 rows of about 4,000, reading s.c 50 rows of about 50, reading s.d 5 rows, "
        "1 of 5 tables done, about 1 min 15 s left"
    )
