"""Views that Spark's executors compute: the cases of the other engine, and what this one has of its own."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_apply.views.step
from tests.stores.test_views import _BATCHES, Cases
from tests.view_cases import CASES

pytest_plugins = ["tests.spark_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_FEW = (
    "5 sender changed",
    "16 min and max go back",
    "22 outer join: matches come and go",
    "28 a deadline passes while nothing happens, 29 a straggler",
    "the best two of each group",
)


def test_cases_batch_by_batch(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_apply.views.step, "MOST_TOUCHED", math.inf)
    cases = Cases(kafka, tmp_path, {name: CASES[name] for name in _FEW}, engine="spark")
    bad = {}
    for batch in range(_BATCHES):
        cases.publish(batch)
        assert cases.bench.run().stopped == {}
        found, expected = cases.found(), cases.expected(batch)
        bad |= {name: (batch, of, expected[name]) for name, of in found.items() if of != expected[name]}
    assert bad == {}
