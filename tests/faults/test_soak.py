"""The soak for CI: three minutes of faults by a fresh seed, on servers of its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.soak import Plan, soak


@pytest.mark.timeout(600)
def test_three_minutes_of_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever breaks, in whatever order: nothing is lost, doubled, torn or out of order, the slot never ahead."""
    seed = random.SystemRandom().randrange(1_000_000)
    with capsys.disabled():
        print(f"\n  soak with seed {seed}: again by make soak SECONDS=180 SEED={seed}")
    report = soak(Plan(seconds=180, seed=seed, folder=tmp_path))
    with capsys.disabled():
        print(report.table())
    assert report.good, report.table()
    assert report.faults.total() >= 20
    assert report.slot_samples > 100
    assert report.live_rounds > 10
