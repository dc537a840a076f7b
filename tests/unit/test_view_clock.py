"""The clock of views: it goes on, and goes back where the source's was wrong by more than an hour."""

from __future__ import annotations

import pytest

from spark_apply.views.running.clock import MOST_AHEAD_MS, ViewClock

KEPT = 1_767_225_600_000
BACK, STILL = "goes back with it", "stands still"


@pytest.mark.parametrize(
    ("source_ms", "kept_ms", "moved", "expected", "told"),
    [
        (None, None, True, None, None),
        (None, KEPT, True, KEPT, None),
        (KEPT, None, True, KEPT, None),
        (KEPT + 1, KEPT, False, KEPT + 1, None),
        (KEPT - 1, KEPT, True, KEPT, None),
        (KEPT - MOST_AHEAD_MS, KEPT, True, KEPT, STILL),
        (KEPT - MOST_AHEAD_MS - 1, KEPT, False, KEPT, STILL),  # of the same position nobody knows which is the later
        (KEPT - MOST_AHEAD_MS - 1, KEPT, True, KEPT - MOST_AHEAD_MS - 1, BACK),
        (KEPT, 1 << 60, True, KEPT, BACK),
    ],
)
def test_the_clock_of_a_step(
    source_ms: int | None, kept_ms: int | None, moved: bool, expected: int | None, told: str | None
) -> None:
    lines: list[str] = []
    clock = ViewClock(lines.append)
    for _ in range(2):
        assert clock.next(source_ms, kept_ms, moved=moved) == expected
    assert len(lines) == {None: 0, STILL: 1, BACK: 2}[told]  # that it stands is told once
    assert all((told or "") in line for line in lines)
