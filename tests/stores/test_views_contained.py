"""What cannot be computed of a view are some of its units: they keep what they had, and the others go on."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from cdc.config.views import ViewConfig
from spark_apply.views.cluster.containment import computed, is_of_values
from spark_apply.views.embedded.containment import WHY
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.job import run_views
from spark_apply.views.planning.view import View
from spark_apply.views.publishing.status import view_status
from spark_apply.views.running import running_views
from tests.pushes import some_each_push
from tests.spark.laws import until
from tests.spark.records import position
from tests.views.bench import EITHER, Stores, ViewBench, most_over
from tests.views.cases import TABLES
from tests.views.contained import BATCHES, HALF, LARGEST, ROWS, cases_of, configs_of, planned
from tests.views.database import DatabaseSteps
from tests.views.steps import ClusterSteps, Steps

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def _steps(engine: str, folder: Path, spark: SparkSession, views: list[View]) -> Steps:
    if engine == "postgres":
        return DatabaseSteps(Stores.url or "", [ROWS], views)
    return Steps(folder, [ROWS], views) if engine == "duckdb" else ClusterSteps(folder, [ROWS], views, spark=spark)


_SPARK = (pytest.mark.full, pytest.mark.timeout(1800))
WAYS = pytest.mark.parametrize(
    ("engine", "how"),
    [
        ("duckdb", "by units"),
        pytest.param("duckdb", "whole", marks=pytest.mark.full),
        *(pytest.param("postgres", how, marks=pytest.mark.full) for how in ("by units", "whole")),
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
    steps = _steps(engine, tmp_path, apply_spark, planned(apply_spark, engine, configs_of(engine)))
    steps.write("public.m", BATCHES[0])
    steps.step()
    cases, signs = cases_of(engine), {"c": "+", "u": "~", "d": "-"}
    for number, batch in enumerate(BATCHES[1:]):
        steps.write("public.m", batch)
        events = steps.step()
        found = {
            name: (
                sorted(f"{signs[op]}{key[0]}" for of, op, key, _ in events if of == name),
                dict(steps.quarantined(name)),
            )
            for name in cases
        }
        expected = {name: (sorted(case.steps[number][0]), case.steps[number][1]) for name, case in cases.items()}
        assert {n: (of, expected[n]) for n, of in found.items() if of != expected[n]} == {}, number
        assert not any(value in str(found) for value in (LARGEST, str(HALF)))
    assert engine != "postgres" or steps.tries == 0  # each half is a query behind a savepoint, not the step again
    steps.close()


@pytest.mark.parametrize("engine", some_each_push(("duckdb", "postgres", "spark"), "duckdb"))
def test_rows_of_several_units_and_too_many_stop_a_view_and_no_other(
    apply_spark: SparkSession, tmp_path: Path, engine: str
) -> None:
    """Rows that `unit:` does not divide, found beside a unit that no row of the step is of; a unit above its limit."""
    sql = (
        "SELECT g, id, rank() OVER (PARTITION BY n ORDER BY id) AS r, count(*) OVER (PARTITION BY s) AS c FROM public.m"
    )
    ranks = ViewConfig(sql=sql, key=("g", "id"), unit=("g",))
    few = ViewConfig(sql="SELECT g, count(*) AS c FROM public.m GROUP BY g", key=("g",), unit_limit=3)
    views = planned(apply_spark, engine, {"ranks": ranks, "few": few})
    steps = _steps(engine, tmp_path, apply_spark, views)

    def write(events: int, **rows: tuple[str, int, str] | None) -> None:
        steps.write("public.m", {(int(key[1:]),): of and (of[0], "1.00", *of[1:]) for key, of in rows.items()})
        assert len(steps.step()) == events

    write(5, _1=("x", 1, "a"), _2=("x", 1, "b"), _3=("y", 2, "c"))
    steps.write("public.m", {(4,): ("z", "1.00", 2, "d")})
    with pytest.raises(ViewError, match=r"view ranks: rows of one RANK\(\) .* have several values of g"):
        steps.step()
    write(4, _3=None)  # the other row of it comes with that: they are one unit now
    write(2, _3=("y", 3, "c"), _1=("x", 1, "e"))
    steps.write("public.m", {(n,): ("x", "1.00", 1, "f") for n in (5, 6)})
    with pytest.raises(ViewError, match=r"view few: one of its units \(by g\) is of more than 3 rows"):
        steps.step()
    steps.close()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("CAST(s AS BIGINT)", True),
        ("n * n", True),
        ("1 div (id - 1)", True),
        ("date'2026-01-01' + INTERVAL '200000000' DAY", True),  # Java's, without a condition
        ("unix_micros(timestamp_micros(n) + INTERVAL 1 DAY)", True),
        ("s RLIKE concat('(', s)", True),
        ("raise_error(s)", True),
        ("(SELECT a.id FROM range(2) a)", True),  # more than one row: that depends on the rows, too
        ("no_such_function(s)", False),
        ("no_such_column", False),
    ],
)
def test_what_is_wrong_with_a_value_is_told_from_other_failures(
    apply_spark: SparkSession, value: str, expected: bool
) -> None:
    """Spark says so by an SQLSTATE, or passes on what Java has raised."""
    rows = "SELECT id, 'SQLSTATE' || id AS s, id + 9223372036854775800 AS n FROM range(4)"
    with pytest.raises((PySparkException, Py4JJavaError)) as raised:
        computed(apply_spark.sql(f"SELECT {value} AS v FROM ({rows})"))
    assert is_of_values(raised.value) == expected


@EITHER
def test_what_is_mended_goes_on_without_a_restart(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Units, a view that is one, and one that was stopped: each is told once, whatever else comes meanwhile."""
    monkeypatch.setattr(running_views, "_FIRST_WAIT_S", 0.1)
    views = {
        "number": ViewConfig(sql="SELECT id, CAST(sender AS INT) AS n FROM public.t", key=("id",)),
        "total": ViewConfig(sql="SELECT 'all' AS k, sum(CAST(sender AS INT)) AS s FROM public.t", key=("k",)),
        "positive": ViewConfig(sql="SELECT id FROM public.t WHERE CAST(sender AS INT) > 0", key=("id",)),
    }
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"]}, views, engine=engine)
    stop, told, failed = threading.Event(), list[str](), list[BaseException]()

    def follow() -> None:
        try:
            run_views(bench.config, once=False, stop=stop, progress=told.append)
        except BaseException as exc:  # noqa: BLE001 - shown by the test
            failed.append(exc)

    def write(op: str, number: int, sender: str) -> None:
        bench.transaction(("t", op, {"id": number, "sender": sender, "likes": 1}))
        goal = position(bench.commit + 1, 0)
        until(lambda: bool(failed) or (view_status(bench.config)["position"] or "") >= goal, within_s=180)

    job = threading.Thread(target=follow)
    job.start()
    write("c", 1, "7")
    write("c", 2, "secret")
    write("c", 3, "9")
    write("u", 2, "8")
    until(
        lambda: bool(failed) or not any(of["stopped"] for of in view_status(bench.config)["views"].values()),
        within_s=180,
    )
    stop.set()
    job.join(120)
    assert failed == []
    assert [row["n"] for _, _, row in bench.events("number")] == [7, 9, 8]
    assert [row["s"] for _, _, row in bench.events("total")] == [7, 24]
    assert bench.signs("positive") == ["+1", "+2", "+3"]
    assert "secret" not in str(told)
    kept = ", with the rows it had; the others go on"
    assert sorted(line for line in told if "view number" in line or "view total" in line) == [
        "view number: no unit is in quarantine any more",
        "view total: no unit is in quarantine any more",
        f"warning: view number: {WHY}; units in quarantine: 1{kept}",
        f"warning: view total: {WHY}; it has no units, so all of it is in quarantine{kept}",
    ]
    assert [line for line in told if "view positive" in line] == [
        f"warning: view positive: {WHY}; it is stopped, the others go on",
        "view positive goes on",
    ]
