"""The soak for CI: some minutes of faults by a fresh seed, on servers of its own."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.soak import Plan, soak


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("source", "seconds"), [("postgres18", 180), ("mysql", 60), ("mariadb", 60)])
def test_minutes_of_faults(source: str, seconds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever breaks, in whatever order: nothing is lost, doubled, torn or out of order, the slot never ahead."""
    seed = random.SystemRandom().randrange(1_000_000)
    with capsys.disabled():
        print(f"\n  soak with seed {seed}: again by make soak SOURCE={source} SECONDS={seconds} SEED={seed}")
    report = soak(Plan(seconds=seconds, seed=seed, folder=tmp_path, source=source))
    with capsys.disabled():
        print(report.table())
    assert report.good, report.table()
    assert report.faults.total() >= seconds / 8
    assert (report.slot_samples > 100) is source.startswith("postgres")
    if seconds > 60:  # a shorter one may be over before its snapshot is, where others keep the machine busy
        assert report.live_rounds > 10
