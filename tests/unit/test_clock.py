"""A clock that is set back or forward while a job runs removes no file too early, and hides no delete that is gone."""

from __future__ import annotations

import pytest

from spark_apply.model import clock
from spark_apply.model.clock import Clock

HOUR_MS = 3_600_000


@pytest.mark.parametrize(("set_by_ms", "earlier", "later"), [(0, 0, 0), (-HOUR_MS, -1, 0), (HOUR_MS, 0, 1)])
def test_two_times(monkeypatch: pytest.MonkeyPatch, set_by_ms: int, earlier: int, later: int) -> None:
    monkeypatch.setattr(clock, "_wall_ms", lambda: 1_000 * HOUR_MS)
    monkeypatch.setattr(clock, "_passed_ms", lambda: 5 * HOUR_MS)
    of_process = Clock()
    now_ms = 1_002 * HOUR_MS
    monkeypatch.setattr(clock, "_wall_ms", lambda: now_ms + set_by_ms)
    monkeypatch.setattr(clock, "_passed_ms", lambda: 7 * HOUR_MS)
    assert of_process.earlier_ms() == now_ms + earlier * HOUR_MS
    assert of_process.later_ms() == now_ms + later * HOUR_MS
    assert of_process.ahead_ms() == max(0, set_by_ms)
