"""The soak: faults of every kind by a fresh seed, on servers of its own."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import FULL
from tests.everything import SOAKED
from tests.faults.soak import Plan, soak

_SECONDS: Final = 600 if FULL else 20
_PUSHED: Final = ("postgres18-own", "mysql-own")


@pytest.mark.every_server
@pytest.mark.timeout(_SECONDS + 600)
@pytest.mark.parametrize(
    ("source", "producer"),
    [
        pytest.param(*what.rsplit("-", 1), id=what, marks=[pytest.mark.full] if what not in _PUSHED else [])
        for what in SOAKED
    ],
)
def test_minutes_of_faults(source: str, producer: str, tmp_path: Path) -> None:
    """Whatever breaks, in whatever order: nothing is lost, doubled, torn or out of order, the slot never ahead."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"again by make soak SOURCE={source} SECONDS={_SECONDS} SEED={seed} PRODUCER={producer}")
    size = {} if FULL else {"accounts": 4_000, "opening": 3}
    report = soak(Plan(seconds=_SECONDS, seed=seed, folder=tmp_path, source=source, producer=producer, **size))
    print(report.table())
    assert report.good
    assert report.faults.total() >= 2
    if source.startswith("postgres"):
        assert report.slot_samples > _SECONDS
    else:
        assert not report.slot_samples
    if FULL:  # a short one may be over before its snapshot is, where others keep the machine busy
        assert report.faults.total() >= _SECONDS / 8
        assert report.live_rounds > 10
