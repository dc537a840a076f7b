"""Maintenance runs by its rules and when it is due, and expires only snapshots that nothing needs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.job.copies.maintenance import MaintenanceSchedule
from spark_apply.job.copies.route import Route
from spark_apply.model.target_table import TargetTable
from spark_apply.model.upkeep import Upkeep, upkeep_of
from spark_apply.stores.iceberg.maintenance import ancestry, unneeded

TABLE = TargetTable("c", "public", "orders", "t", ("id",), (), 1)


def _config(upkeep: object) -> StoreConfig:
    return StoreConfig(type="iceberg", path="w", options={"upkeep": upkeep})


def test_rules() -> None:
    assert upkeep_of(StoreConfig(type="iceberg"), "w") == Upkeep()
    assert upkeep_of(_config({"files": 7, "keep_hours": 0}), "w") == Upkeep(files=7, keep_hours=0)
    assert upkeep_of(_config(False), "w") is None  # what YAML makes of off
    assert upkeep_of(_config("off"), "w") is None
    for wrong, message in (
        ({"fils": 7}, r"stores\.w\.options\.upkeep\.fils: unknown key"),
        ({"files": "7"}, r"upkeep\.files: a whole number is needed"),
        ({"files": True}, r"upkeep\.files: a whole number is needed"),
        ({"keep_hours": -1}, r"upkeep\.keep_hours: a whole number is needed"),
        ("on", r"stores\.w\.options\.upkeep: keys and values are needed, or off"),
    ):
        with pytest.raises(ConfigError, match=message):
            upkeep_of(_config(wrong), "w")


class _Worn:
    def __init__(self, upkeep: Upkeep | None, failure: Exception | None = None) -> None:
        self.upkeep, self.failure, self.tended = upkeep, failure, 0

    def maintain(self, table: TargetTable) -> None:
        self.tended += 1
        if self.failure is not None:
            raise self.failure


def test_a_store_is_tended_when_it_is_time_and_fails_no_job() -> None:
    soon, later, off = _Worn(Upkeep(every_minutes=0)), _Worn(Upkeep(every_minutes=60)), _Worn(None)
    broken, told = _Worn(Upkeep(every_minutes=0), ValueError("4711")), []
    gone = _Worn(Upkeep(every_minutes=0), OperatorError("its table is gone"))
    stores: dict[str, Any] = {"soon": soon, "later": later, "off": off, "broken": broken, "gone": gone}
    stores["other"] = object()
    care = MaintenanceSchedule({"t": Route(TABLE, stores)}, told.append)
    care.look()
    assert (soon.tended, later.tended, off.tended, broken.tended) == (1, 0, 0, 1)
    care.look(now=True)
    assert (soon.tended, later.tended, off.tended, broken.tended) == (2, 1, 0, 2)
    about = "upkeep of public.orders is left for later"
    assert told == [f"broken: {about}: ValueError", f"gone: {about}: its table is gone"] * 2


_STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.sampled_from(["go on", "branch", "tag", "mark"])))


def _applied(metadata: dict[str, Any], head: int) -> str | None:
    found = (each["summary"].get("cdc.position") for each in ancestry(metadata, head))
    return next((position for position in found if position is not None), None)


@given(_STEPS, st.integers(0, 40))
def test_no_name_loses_its_position_nor_the_mark_its_snapshot(
    steps: list[tuple[bool, int, str]], before_ms: int
) -> None:
    """In any history of branches, tags and marks, with snapshots of other hands; and what goes is old."""
    snapshots: list[dict[str, Any]] = [{"snapshot-id": 0, "timestamp-ms": 0, "summary": {}}]
    refs: dict[str, dict[str, int]] = {"main": {"snapshot-id": 0}}
    marked: int | None = None
    for number, (ours, back, what) in enumerate(steps, 1):
        name = "main" if what != "branch" else f"cdc_beside_{back}"
        parent = refs.get(name, refs["main"])["snapshot-id"]
        summary = {"cdc.position": str(number)} if ours else {}
        snapshots.append(
            {"snapshot-id": number, "parent-snapshot-id": parent, "timestamp-ms": number, "summary": summary}
        )
        refs[name] = {"snapshot-id": number}
        if what == "tag":
            refs["cdc_previous"] = {"snapshot-id": number}
        elif what == "mark":
            marked = number
    metadata = {"snapshots": snapshots, "refs": refs, "current-snapshot-id": refs["main"]["snapshot-id"]}
    gone = set(unneeded(metadata, marked, before_ms))
    left = {**metadata, "snapshots": [each for each in snapshots if each["snapshot-id"] not in gone]}
    for ref in refs.values():
        assert ref["snapshot-id"] not in gone
        assert _applied(left, ref["snapshot-id"]) == _applied(metadata, ref["snapshot-id"])
    line = [each["snapshot-id"] for each in ancestry(left, metadata["current-snapshot-id"])]
    assert marked is None or marked in line
    assert all(each["timestamp-ms"] < before_ms for each in snapshots if each["snapshot-id"] in gone)


def test_what_nobody_needs_goes() -> None:
    """A line of batches: the head alone stays; with a mark, the line back to it; young ones stay in any case."""
    snapshots = [
        {"snapshot-id": n, "parent-snapshot-id": n - 1, "timestamp-ms": n, "summary": {"cdc.position": str(n)}}
        for n in range(1, 6)
    ]
    metadata = {"snapshots": snapshots, "refs": {"main": {"snapshot-id": 5}}, "current-snapshot-id": 5}
    assert unneeded(metadata, None, 100) == [1, 2, 3, 4]
    assert unneeded(metadata, 3, 100) == [1, 2]
    assert unneeded(metadata, 3, 2) == [1]
