"""Snapshots read as many rows a second as they may; the log is followed meanwhile, and a stop is not waited for."""

from __future__ import annotations

import time
from typing import Any

import pytest

import cdc.capture.commit_pace
import cdc.capture.session
import cdc.capture.snapshots.throttle
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.capture.snapshots.throttle import Throttle
from cdc.testing import At, MemorySink, MemorySnapshotter, MemorySource, insert, nothing
from tests.unit.test_pipeline import A, B, Bench, _row


def _pipeline(bench: Bench, rows_per_second: int | None, at: At = nothing) -> Pipeline:
    return Pipeline(
        Settings(connector="c", prefix="p", chunk_rows=1000, rows_per_second=rows_per_second),
        open_source=lambda: MemorySource(bench.log, [A, B], at=at),
        open_snapshotter=lambda: MemorySnapshotter(bench.log, rows_each=5, at=at),
        sink=MemorySink(bench.kafka, "c", "p"),
    )


class _Clock:
    """Time passes only where somebody waits for it."""

    def __init__(self, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = time.monotonic()
        self.waited_s = 0.0
        monkeypatch.setattr(cdc.capture.snapshots.throttle.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(pipeline._stop, "wait", self._wait)

    def _wait(self, timeout: float) -> bool:
        self.now_s += timeout
        self.waited_s += timeout
        return False


@pytest.mark.parametrize(("rows_per_second", "least_s"), [(10, 3.5), (1, 35.0), (None, 0.0), (10**6, 0.0)])
def test_a_first_snapshot_takes_its_time(
    rows_per_second: int | None, least_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 rows, of which the last are not waited for; what was read is committed before it waits for long."""
    bench = Bench()
    bench.log.commit(*(insert(A, _row(f"{n}")) for n in range(40)))
    pipeline = _pipeline(bench, rows_per_second)
    clock = _Clock(pipeline, monkeypatch)
    pipeline.run(until_caught_up=True)
    assert len(bench.fold(A)) == 40
    assert least_s <= clock.waited_s <= least_s * 1.2 + 0.6


def test_incremental_snapshots_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log goes on meanwhile."""
    bench = Bench()
    bench.log.commit(*(insert(A, _row(f"{n}")) for n in range(20)))
    _pipeline(bench, None).run(until_caught_up=True)
    seen: list[tuple[float, int]] = []
    begun_s = time.monotonic()

    def at(point: str) -> None:
        if point == "snapshot.window":
            seen.append((time.monotonic() - begun_s, 0))
        if point == "source.idle" and len(seen) == 1 and len(bench.log.transactions) == 1:
            bench.log.commit(insert(B, _row("b")))

    bench.ask(Command(tables=(A.qualified,)))
    pipeline: Any = Pipeline(
        Settings(connector="c", prefix="p", chunk_rows=5, rows_per_second=50, idle_position_s=0.0),
        open_source=lambda: MemorySource(bench.log, [A, B], at=at),
        open_snapshotter=lambda: MemorySnapshotter(bench.log, rows_each=5, at=at),
        sink=MemorySink(bench.kafka, "c", "p"),
    )
    pipeline.run(until_caught_up=True)
    assert bench.events(A) == ["r"] * 40
    assert bench.events(B) == ["c"]
    assert seen[-1][0] >= 0.3, "four windows of five rows, at 50 a second"


def test_a_stop_is_not_waited_for() -> None:
    bench = Bench()
    bench.log.commit(*(insert(A, _row(f"{n}")) for n in range(40)))
    chunks = iter(range(1000))

    def at(point: str) -> None:
        if point == "snapshot.chunk" and next(chunks) == 1:
            pipeline.stop()

    pipeline = _pipeline(bench, 100, at)
    pipeline.run()
    assert 0 < len(bench.fold(A)) < 40


def test_what_was_missed_is_not_made_up_for(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(cdc.capture.snapshots.throttle.time, "monotonic", lambda: now[0])
    throttle = Throttle(10)
    throttle.took(20)
    assert throttle.wait_s() == 2.0
    now[0] = 200.0
    throttle.took(20)
    assert throttle.wait_s() == 2.0
