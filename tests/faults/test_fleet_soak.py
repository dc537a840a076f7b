"""The soak of a fleet: a short one on the servers that other tests use, a long one on its own in make test-all."""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import Database
from tests.faults.fleet_faults import FAULTS, QUICK
from tests.faults.fleet_soak import Plan, soak_fleet, soak_on_own_servers

_SECONDS: Final = 600


def test_a_member_is_frozen_and_comes_back(
    postgres18: Database, kafka: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its connectors go on elsewhere, the zombies end, and nothing is lost, doubled or torn."""
    caplog.set_level(logging.INFO, "soak")
    seed = random.SystemRandom().randrange(1_000_000)
    plan = Plan(
        folder=tmp_path,
        kafka=kafka,
        postgres=postgres18.url,
        seed=seed,
        seats=2,
        of_postgres=4,
        pause_s=0.2,
        recent_s=1.5,
        deck=QUICK,
    )
    found = soak_fleet(plan)
    print(found.table())
    assert found.good
    assert json.loads(found.to_json())["faults"]["frozen"]["taken_over_s"]["p50"] > 0
    assert len(found.moved_s["frozen"]) == len(found.moved_s["frozen, back"]) == 2
    assert found.laws.events > 100


@pytest.mark.full
@pytest.mark.timeout(_SECONDS + 900)
def test_minutes_of_faults(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(1_000_000)
    print(f"again by make soak-fleet SECONDS={_SECONDS} SEED={seed}")
    found = soak_on_own_servers(tmp_path, seconds=_SECONDS, seed=seed, of_postgres=18, of_mysql=3)
    print(found.table())
    assert found.good
    assert found.faults.total() >= len(FAULTS)
