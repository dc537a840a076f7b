"""Views that Spark's executors compute: the cases of the other engine, and what this one has of its own."""

from __future__ import annotations

import itertools
import json
import math
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_apply.views.embedded.step
from cdc.config.views import ReadConfig, ViewConfig
from cdc.model.errors import CdcError
from spark_apply.views.cluster.kept_rows import Kept
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.status import view_status
from tests.conftest import FULL
from tests.integration.running import eventually
from tests.spark.cluster import Submitted, cluster, executors
from tests.spark.records import position
from tests.stores.test_cluster import submitted
from tests.views.bench import ViewBench, most_over, oracle
from tests.views.cases import CASES, TABLES, at, lookup
from tests.views.one_job import BATCHES, COMMITS, LONG, Cases, killed, named

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

_FEW = (
    "5 sender changed",
    "16 min and max go back",
    "22 outer join: matches come and go",
    "28 a deadline passes while nothing happens, 29 a straggler",
    "the best two of each group",
    "a deadline moves a row from one group to another",
    "38 an alert once, while nothing happens, and taken back by a straggler",
    "30 what comes later than keep is left out",
    "37 at: event",
    "37 at: arrival",
    "a search that is none keeps what it had, and stops no other",
)

_FEWEST = (_FEW[2], _FEW[3], _FEW[9])
"""With each push: an outer join, a deadline, rows as they were."""

_EVERY = tuple(CASES)


@pytest.mark.parametrize(
    ("names", "killed_at"),
    [(_FEW, ""), pytest.param(_EVERY, "", marks=LONG), *(pytest.param(_FEW, at, marks=LONG) for at in COMMITS)],
    ids=["few", "all", *COMMITS],
)
def test_cases_batch_by_batch(  # noqa: PLR0917 - what a server and a job take
    apply_spark: SparkSession,
    kafka: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    killed_at: str,
) -> None:
    """Unit by unit, wherever the job dies in each batch; then nothing, whether the state is lost or not."""
    cases = Cases(kafka, tmp_path, {name: CASES[name] for name in names if FULL or name in _FEWEST}, engine="spark")
    with monkeypatch.context() as patched:
        patched.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", math.inf)
        for batch in cases.killed_before_each(killed_at):
            found, expected = cases.found(), cases.expected(batch)
            assert {name: of for name, of in found.items() if of != expected[name]} == {}, batch
    status = view_status(cases.bench.config)
    assert status["engine"] == "spark"
    assert {of["computed"] for of in status["views"].values()} <= {"units", None}
    shutil.rmtree(cases.bench.folder / "state")
    assert cases.bench.run().events == 0


@pytest.mark.full
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("names", [_FEW, _EVERY], ids=["few", "all"])
def test_cases_at_once_in_any_order_again_and_without_the_tables(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...]
) -> None:
    """One batch of everything, in another order that Kafka may have, every row in a table of the lake."""
    most_over(monkeypatch, 0)
    cases = Cases(kafka, tmp_path, {name: CASES[name] for name in names}, engine="spark")
    cases.publish(*range(BATCHES), shuffled=5)
    cases.bench.run()
    rows, keys = cases.rows(), cases.keys()
    assert {name: of for name, of in rows.items() if name not in keys} == cases.answers(apply_spark)
    assert {name: {",".join(map(str, key)) for key in rows[name]} for name in keys} == keys
    cases.found()
    cases.bench.commit = 10  # every event comes again, under its old position
    cases.publish(*range(BATCHES), shuffled=6)
    assert cases.bench.run().events == 0
    shutil.rmtree(cases.bench.folder / "state" / "tables")
    assert cases.bench.run().events == 0
    assert {name: signs for name, signs in cases.found().items() if signs} == {}
    for number, name in enumerate(names):
        if name in keys:
            (verified,) = verify_views(cases.bench.config, only=named(number))
            assert verified.agrees, (name, verified)


@pytest.mark.full
@pytest.mark.parametrize(
    "killed_at",
    list(itertools.product(("in a snapshot", "before the state", "before Kafka", "after Kafka"), (0, 50_000))),
    ids=str,
)
def test_killed_at_each_commit(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: tuple[str, int]
) -> None:
    """What a killed step has written to the lake is named nowhere; what the state holds is published once."""
    point, most = killed_at
    most_over(monkeypatch, most)
    kept = {"public.s": ReadConfig(time="at", keep="30m")}
    views = {
        "timeline": CASES["1 tweet first"].view,
        "counts": CASES["20 count distinct"].view,
        "kept": ViewConfig(sql="SELECT id, at FROM public.s", key=("id",), reads=kept),
        "tax": lookup("event"),
    }
    tables = {name: TABLES[name] for name in ("t", "f", "x", "s", "sale", "rate")}
    bench = ViewBench(kafka, tmp_path, tables, views, engine="spark", logs=frozenset({"rate"}))
    now = at("10:00") // 1000
    bench.transaction(
        ("t", "c", {"id": 1, "sender": "bob", "likes": 0}), ("x", "c", {"id": 1, "g": "g", "v": 1}),
        ("s", "c", {"id": 1, "at": at("9:59")}), ("rate", "r", {"country": "de", "pct": 7}), at_ms=now,
    )  # fmt: skip
    bench.run()
    bench.transaction(
        ("f", "c", {"id": 1, "follower": "ann", "followee": "bob"}), ("x", "c", {"id": 2, "g": "g", "v": 2}),
        ("s", "c", {"id": 2, "at": at("9:30")}), ("s", "c", {"id": 3, "at": at("9:31")}),
        ("rate", "u", {"country": "de", "pct": 8}), ("sale", "c", {"id": 1, "country": "de", "at": at("9:00")}),
        at_ms=now,
    )  # fmt: skip
    with monkeypatch.context() as patched:
        if point == "in a snapshot":
            written = Kept.written

            def written_and_killed(self: Kept, *given: object) -> Kept:
                written(self, *given)  # type: ignore[arg-type]
                raise RuntimeError("killed")

            patched.setattr(Kept, "written", written_and_killed)
        else:
            killed(patched, point)
        with suppress(CdcError):  # what is done again in the same process has to find out, too
            bench.run()
    bench.run()
    bench.transaction(
        ("f", "d", {"id": 1}), ("x", "d", {"id": 2}), ("sale", "c", {"id": 2, "country": "de", "at": at("10:01")}),
        at_ms=now,
    )  # fmt: skip
    bench.run()
    assert [op for op, _, _ in bench.events("timeline")] == ["c", "d"]
    assert [(op, row["d"]) for op, _, row in bench.events("counts")] == [("c", 1), ("u", 2), ("u", 1)]
    assert [(op, key) for op, key, _ in bench.events("kept")] == [("c", (1,)), ("c", (3,))]
    assert view_status(bench.config)["views"]["kept"]["late"] == 1
    assert bench.signs("tax") == ["+1,7", "+2,8"]


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="/proc is missing: it tells processes")
def test_two_workers_compute_views_and_one_of_them_may_be_killed(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """On a cluster the executors compute, without being told; they have no Python, and one is lost on the way."""
    views = {"timeline": CASES["1 tweet first"].view, "groups": CASES["16 min and max go back"].view}
    bench = ViewBench(kafka, tmp_path, {name: TABLES[name] for name in ("t", "f", "x")}, views)
    rows: dict[str, dict[int, dict[str, object]]] = {"t": {}, "f": {}, "x": {}}

    def write(first: int, number: int) -> None:
        changes: list[tuple[str, str, dict[str, object]]] = []
        for id_ in range(first, first + number):
            changes.append(("t", "c", {"id": id_, "sender": f"s{id_ % 50}", "likes": id_}))
            changes.append(("x", "c", {"id": id_, "g": f"g{id_ % 20}", "v": id_}))
            if id_ % 20 == 0:
                changes.append(("f", "c", {"id": id_, "follower": f"f{id_}", "followee": f"s{id_ % 50}"}))
        for table, _, row in changes:
            rows[table][int(str(row["id"]))] = row
        bench.transaction(*changes)

    file = tmp_path / "views.yaml"
    source = {"bootstrap_servers": kafka, "topic_prefix": bench.prefix}
    listed = {name: {"sql": of.sql, "key": list(of.key)} for name, of in views.items()}
    made = {"name": bench.job, "source": source, "state": str(tmp_path / "state"), "views": listed}
    file.write_text(json.dumps(made))

    def reached(job: Submitted) -> Callable[[], bool]:
        goal = position(bench.commit + 1, 0)

        def is_there() -> bool:
            assert job.running, job.said
            return (view_status(bench.config)["position"] or "") >= goal

        return is_there

    write(0, 2_000)
    with cluster(tmp_path / "cluster", 2) as running, submitted(running, file, "view", "run") as job:
        eventually(reached(job), "the first step is published", within_s=600)
        assert [len(executors(worker)) for worker in running.workers] == [1, 1]
        for turn in range(1, 4):
            write(turn * 2_000, 200)
            if turn == 2:
                running.workers[0].kill()
            eventually(reached(job), "a step is published", within_s=600)
        assert job.end() == 0, job.said
    assert json.loads((tmp_path / "state" / "status.json").read_text())["engine"] == "spark"
    assert "/nonexistent/python" not in job.said
    for name, view in views.items():
        found: dict[object, object] = {}
        for op, key, row in bench.events(name):
            assert (op == "c") == (key not in found)
            found[key] = row
        tables = {table: list(of.values()) for table, of in rows.items() if f"public.{table}" in (view.sql or "")}
        assert found == oracle(apply_spark, view, tables, bench, 0)
