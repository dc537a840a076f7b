"""Settings of a Spark session come from apply.yaml, else from spark-submit, else from our defaults."""

from __future__ import annotations

import pytest

from spark_apply.spark.session import LOOPBACK, SETTINGS, java_options, settings_of

ICEBERG = SETTINGS["spark.sql.extensions"]


def test_alone_all_is_ours_and_on_loopback() -> None:
    assert settings_of({}, {}) == {**SETTINGS, **LOOPBACK}


def test_the_file_wins_over_spark_submit_and_that_over_us() -> None:
    submitted = {"spark.master": "spark://m:7077", "spark.sql.shuffle.partitions": "16", "spark.cores.max": "8"}
    found = settings_of(submitted, {"spark.cores.max": "4"})
    assert {name: found[name] for name in submitted} == {**submitted, "spark.cores.max": "4"}
    assert found["spark.sql.session.timeZone"] == "UTC"


@pytest.mark.parametrize("master", ["spark://m:7077", "yarn", "k8s://https://m:443"])
def test_executors_elsewhere_can_reach_the_driver(master: str) -> None:
    """However the master is set: Spark then chooses the driver's address itself, unless one is given."""
    for found in (settings_of({"spark.master": master}, {}), settings_of({}, {"spark.master": master})):
        assert not LOOPBACK.keys() & found.keys()
    given = settings_of({"spark.master": master, "spark.driver.host": "10.0.0.7"}, {})
    assert given["spark.driver.host"] == "10.0.0.7"


def test_a_local_master_stays_on_loopback() -> None:
    found = settings_of({"spark.master": "local[2]"}, {})
    assert {name: found[name] for name in LOOPBACK} == LOOPBACK


@pytest.mark.parametrize("given", ["org.example.Mine", f"{ICEBERG}, org.example.Mine", f"{ICEBERG},org.example.Mine,"])
def test_extensions_are_added_to_those_that_the_stores_need(given: str) -> None:
    assert settings_of({"spark.sql.extensions": given}, {})["spark.sql.extensions"] == f"{ICEBERG},org.example.Mine"


def test_a_collector_that_is_asked_for_is_the_only_one() -> None:
    assert java_options("").count("-XX:+Use") == 1
    found = java_options("-XX:+UseZGC -Xss8m")
    assert "ParallelGC" not in found
    assert found.endswith("-XX:+UseZGC -Xss8m")
