"""What the demo counts as found and repaired."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.dev.demos.repair_demo import Repair

CLEAN: dict[str, Any] = {"differing": [], "missing": [], "extra": []}
WAREHOUSE = {"store": "warehouse", **CLEAN, "differing": [{"key": {"id": 107}, "columns": ["price"]}]}
SEARCH = {"store": "search", **CLEAN, "missing": [{"id": 108}]}
REPAIRED = [{"store": "warehouse", **CLEAN}, {"store": "search", **CLEAN}]


def test_all_found_and_all_mended() -> None:
    assert Repair([WAREHOUSE, SEARCH], {}, REPAIRED).wrong == 0


@pytest.mark.parametrize(
    ("found", "after"),
    [
        ([WAREHOUSE, REPAIRED[1]], REPAIRED),
        ([WAREHOUSE, {**SEARCH, "extra": [{"id": 5}]}], REPAIRED),
        ([{**WAREHOUSE, "differing": [{"key": {"id": 107}, "columns": ["name"]}]}, SEARCH], REPAIRED),
        ([WAREHOUSE, SEARCH], [REPAIRED[0], SEARCH]),
    ],
    ids=["not found", "another one found", "another column", "not repaired"],
)
def test_what_is_not_found_or_not_mended_counts(found: list[Any], after: list[Any]) -> None:
    assert Repair(found, {}, after).wrong > 0
