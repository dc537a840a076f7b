"""The soak of views, by a fresh seed, in make test-all alone: a job takes a good part of a minute to start."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Final

import pytest

from tests.faults.view_soak import FAULTS, soak_views

_SECONDS: Final = 600


@pytest.mark.full
@pytest.mark.timeout(_SECONDS + 900)
def test_minutes_of_faults(tmp_path: Path) -> None:
    """Each view is Spark's answer in the end, no sum was torn, and no event was published twice."""
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"again by make soak-views SECONDS={_SECONDS} SEED={seed}")
    found = soak_views(seconds=_SECONDS, seed=seed, folder=tmp_path)
    print(found.table())
    assert found.violations == []
    assert set(found.faults) == set(FAULTS)
    assert found.reads > _SECONDS / 4
