"""The benchmark of the apply job: its events are events, its figures what they say."""

from __future__ import annotations

import json

import pytest

from bench.derived.backlog import records, row
from bench.derived.backlog import table as made_table
from bench.derived.freshness import Moment, waited
from bench.derived.targets import BARS, CHANGES, P99, VERIFY, Figure, percentile, table
from tests.spark.records import position


def test_a_template_gives_what_a_connector_would_have_written() -> None:
    of = made_table("bench")
    found = list(records(of, "u", [3, 1_000_000], 41))
    for (key, value), number, commit in zip(found, (3, 1_000_000), (42, 43), strict=True):
        ((_, wanted_key, wanted),) = of.event("u", row(number, f"status {commit % 7}"), position(commit))
        assert (key, value) == (wanted_key, wanted)
        assert json.loads(value)["after"]["id"] == number
    ((_, value),) = records(of, "u", [3], 41, with_before=True)
    assert json.loads(value)["before"] == json.loads(value)["after"] == row(3, "status 0")


def test_a_commit_is_seen_where_the_store_is_first_complete_up_to_it() -> None:
    seen = [Moment(10, 1.0), Moment(20, 2.0), Moment(30, 3.0)]
    assert waited([Moment(5, 0.5), Moment(20, 1.5), Moment(21, 1.75), Moment(31, 2.0)], seen) == [0.5, 0.5, 1.25]


@pytest.mark.parametrize(("share", "value"), [(0.5, 2.0), (0.51, 3.0), (0.99, 4.0), (1.0, 4.0), (0.01, 1.0)], ids=str)
def test_a_percentile_is_one_of_the_values(share: float, value: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == value


def test_a_rate_is_to_be_reached_and_a_delay_is_not_to_be_passed() -> None:
    asked = BARS[CHANGES, "iceberg"]
    assert [Figure(CHANGES, "iceberg", asked + more, "x").reached for more in (-1, 0, 1)] == [False, True, True]
    asked = BARS[P99, "postgres"]
    assert [Figure(P99, "postgres", asked + more, "x").reached for more in (-1, 0, 1)] == [True, True, False]
    assert Figure(VERIFY, "postgres", 1, "x").reached is None


def test_the_table_names_what_was_missed() -> None:
    lines = table([Figure(CHANGES, "iceberg", 60_000, "x"), Figure(CHANGES, "delta", 20, "x")]).splitlines()
    assert [line.split("  ")[0] for line in lines[1:]] == [CHANGES, CHANGES]
    assert "reached" in lines[1]
    assert "MISSED" in lines[2]
