"""Views that Spark's executors compute: the cases of the other engine, and what this one has of its own."""

from __future__ import annotations

import itertools
import math
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_apply.views.step
from cdc.model.errors import CdcError
from spark_apply.views.cluster.kept import Kept
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.status import view_status
from tests.stores.test_views import _BATCHES, Cases, _killed
from tests.view_bench import ViewBench
from tests.view_cases import CASES, TABLES

pytest_plugins = ["tests.spark_fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_FEW = (
    "5 sender changed",
    "16 min and max go back",
    "22 outer join: matches come and go",
    "28 a deadline passes while nothing happens, 29 a straggler",
    "the best two of each group",
)


_ROWS = tuple(
    name
    for name, case in CASES.items()
    if case.view.sql is not None and not any(of.keep or of.at != "now" for of in case.view.reads.values())
)
"""Those of tables as they are now: the others are refused."""


@pytest.mark.parametrize("names", [_FEW, pytest.param(_ROWS, marks=[pytest.mark.full, pytest.mark.timeout(3000)])])
def test_cases_batch_by_batch(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """Unit by unit, however much of these small tables has changed; then nothing, whether the state is lost or not."""
    cases = Cases(kafka, tmp_path, {name: CASES[name] for name in names}, engine="spark")
    with monkeypatch.context() as patched:
        patched.setattr(spark_apply.views.step, "MOST_TOUCHED", math.inf)
        for batch in range(_BATCHES):
            cases.publish(batch)
            assert cases.bench.run().stopped == {}
            found, expected = cases.found(), cases.expected(batch)
            assert {name: of for name, of in found.items() if of != expected[name]} == {}, batch
    status = view_status(cases.bench.config)
    assert status["engine"] == "spark"
    assert {of["computed"] for of in status["views"].values()} <= {"units", None}
    shutil.rmtree(cases.bench.folder / "state")
    assert cases.bench.run().events == 0


@pytest.mark.full
@pytest.mark.timeout(3000)
def test_cases_at_once_in_any_order_again_and_without_the_tables(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One batch of everything, in another order that Kafka may have, every row in a table of the lake."""
    _most_over(monkeypatch, 0)
    cases = Cases(kafka, tmp_path, {name: CASES[name] for name in _ROWS}, engine="spark")
    cases.publish(*range(_BATCHES), shuffled=5)
    cases.bench.run()
    assert cases.rows() == cases.answers(apply_spark)
    cases.found()
    cases.bench.commit = 10  # every event comes again, under its old position
    cases.publish(*range(_BATCHES), shuffled=6)
    assert cases.bench.run().events == 0
    shutil.rmtree(cases.bench.folder / "state" / "tables")
    assert cases.bench.run().events == 0
    assert {name: signs for name, signs in cases.found().items() if signs} == {}


@pytest.mark.full
@pytest.mark.parametrize(
    "at",
    list(itertools.product(("in a snapshot", "before the state", "before Kafka", "after Kafka"), (0, 150_000))),
    ids=str,
)
def test_killed_at_each_commit(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[str, int]
) -> None:
    """What a killed step has written to the lake is named nowhere; what the state holds is published once."""
    point, most = at
    _most_over(monkeypatch, most)
    views = {"timeline": CASES["1 tweet first"].view, "counts": CASES["20 count distinct"].view}
    bench = ViewBench(kafka, tmp_path, {name: TABLES[name] for name in ("t", "f", "x")}, views, engine="spark")
    bench.transaction(("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("x", "c", {"id": 1, "g": "g", "v": 1}))
    bench.run()
    bench.transaction(
        ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}), ("x", "c", {"id": 2, "g": "g", "v": 2})
    )
    with monkeypatch.context() as patched:
        if point == "in a snapshot":
            written = Kept.written

            def written_and_killed(self: Kept, *given: object) -> Kept:
                written(self, *given)  # type: ignore[arg-type]
                raise RuntimeError("killed")

            patched.setattr(Kept, "written", written_and_killed)
        elif point == "before the state":
            patched.setattr(ClusterStep, "apply", _die)
        else:
            _killed(patched, point)
        with suppress(CdcError):  # what is done again in the same process has to find out, too
            bench.run()
    bench.run()
    bench.transaction(("f", "d", {"id": 1}), ("x", "d", {"id": 2}))
    bench.run()
    assert [op for op, _, _ in bench.events("timeline")] == ["c", "d"]
    assert [(op, row["d"]) for op, _, row in bench.events("counts")] == [("c", 1), ("u", 2), ("u", 1)]


def _most_over(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    for module in ("kept", "folding", "publishing", "step", "store"):
        monkeypatch.setattr(f"spark_apply.views.cluster.{module}.MOST_OVER", rows)


def _die(*_: object) -> None:
    raise RuntimeError("killed")
