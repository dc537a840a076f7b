"""What cannot be computed of a view are some of its units: they keep what they had, and the others go on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from tests.views.bench import most_over
from tests.views.contained import BATCHES, CASES, HALF, LARGEST, ROWS, planned
from tests.views.steps import ClusterSteps, Steps

pytest_plugins = ["tests.spark.fixtures"]


def _steps(engine: str, folder: Path, spark: SparkSession) -> Steps:
    views = planned(spark, engine)
    return Steps(folder, [ROWS], views) if engine == "duckdb" else ClusterSteps(folder, [ROWS], views, spark=spark)


_SPARK = (pytest.mark.full, pytest.mark.timeout(1800))
WAYS = pytest.mark.parametrize(
    ("engine", "how"),
    [
        ("duckdb", "by units"),
        ("duckdb", "whole"),
        *(pytest.param("spark", how, marks=_SPARK) for how in ("by units", "whole", "in the lake")),
    ],
)


@WAYS
def test_only_units_that_cannot_be_computed_stay_as_they_were(
    apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str, how: str
) -> None:
    """Until their rows are right: then they are published again, by themselves."""
    monkeypatch.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", math.inf if how == "by units" else 0.0)
    if how == "in the lake":
        most_over(monkeypatch, 0)
    steps = _steps(engine, tmp_path, apply_spark)
    steps.write("public.m", BATCHES[0])
    steps.step()
    signs = {"c": "+", "u": "~", "d": "-"}
    for number, batch in enumerate(BATCHES[1:]):
        steps.write("public.m", batch)
        events = steps.step()
        found = {
            name: (
                sorted(f"{signs[op]}{key[0]}" for of, op, key, _ in events if of == name),
                dict(steps.quarantined(name)),
            )
            for name in CASES
        }
        expected = {name: (sorted(case.steps[number][0]), case.steps[number][1]) for name, case in CASES.items()}
        assert {n: (of, expected[n]) for n, of in found.items() if of != expected[n]} == {}, number
        assert not any(value in str(found) for value in (LARGEST, str(HALF)))
    steps.close()
