"""The soak of an apply job, by a fresh seed, in make test-all alone: it needs minutes. Times are printed."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.faults.apply_soak import FAULTS, soak_apply

_SECONDS: Final = 300


@pytest.mark.full
@pytest.mark.timeout(_SECONDS + 1_200)
def test_minutes_of_faults(tmp_path: Path) -> None:
    """The job goes on, and each copy is the fold of its topic in the end; make soak-apply judges the times, too."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"again by make soak-apply SECONDS={_SECONDS} SEED={seed}")
    found = soak_apply(seconds=_SECONDS, seed=seed, folder=tmp_path)
    print(found.table())
    assert found.violations == []
    assert set(found.faults) == set(FAULTS)
    assert found.quarantined > 0
