"""A state is the one that was published, or it is made again; nothing is published back in time, or beside its key."""

from __future__ import annotations

import shutil
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.views import ViewConfig, ViewsConfig
from cdc.model.errors import FencedError, OperatorError
from cdc.model.state import Phase
from spark_apply.job.job import run_apply
from spark_apply.views.job import run_views
from spark_apply.views.proof.verify import verify_views
from spark_apply.views.publishing.output import ViewOutput
from spark_apply.views.running.running_views import RunningViews
from tests.views.bench import EACH, ViewBench
from tests.views.cases import OUTCOME, TABLES, at

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
_ROWS = ViewConfig(sql="SELECT id, g FROM public.x", key=("id",))
STATES = pytest.mark.parametrize("engine", ["duckdb", pytest.param("postgres", marks=pytest.mark.full)])


def _copied(bench: ViewBench, name: str) -> ViewsConfig:
    """Copy the state to another place, as somebody may who moves a job; return the file of the job there."""
    state = str(bench.folder / name)
    if bench.store is None:
        shutil.copytree(bench.folder / "state", state)
        return replace(bench.config, state=state)
    of, _, database = bench.store.rpartition("/")
    _run(bench.store, f"CREATE DATABASE {name}_{database} TEMPLATE {database}")
    return replace(bench.config, state=state, store=f"{of}/{name}_{database}")


def _lost(bench: ViewBench) -> None:
    shutil.rmtree(bench.folder / "state")
    if bench.store is not None:
        _run(bench.store, "DROP SCHEMA cdc_views_shop_views CASCADE")


def _run(url: str, statement: str) -> None:
    with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(statement)


@pytest.mark.full  # tests/unit/test_view_output.py
@STATES
def test_two_states_that_came_to_one_step(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """The state was copied to another machine, where the job took a step; the first one did so, too, and was fenced.

    Both are at the same number, the first one with more rows: it must not take them for published.
    """
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, {"rows": _ROWS}, engine=engine)
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}))
    bench.run()
    moved = _copied(bench, "moved")
    bench.transaction(("x", "c", {"id": 2, "g": "a", "v": 1}))
    begin = ViewOutput.begin

    def begin_while_another_goes_on(output: ViewOutput) -> object:
        found = begin(output)
        patched.setattr(ViewOutput, "begin", begin)
        run_views(moved, once=True)
        bench.transaction(("x", "c", {"id": 3, "g": "a", "v": 1}))
        return found

    with monkeypatch.context() as patched:
        patched.setattr(ViewOutput, "begin", begin_while_another_goes_on)
        with pytest.raises(FencedError):
            bench.run()
    assert bench.run().events == 1
    assert bench.signs("rows") == ["+1", "+2", "+3"]


@STATES
def test_nothing_goes_back_without_the_state(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """Neither the clock, where the source's was set back, nor the position, where its topics have lost their end.

    But a clock that was a day ahead has been wrong: deadlines that passed by it are to come.
    """
    views = {"outcome": ViewConfig(sql=OUTCOME, key=("id",))}
    bench = ViewBench(kafka, tmp_path, {"s": TABLES["s"], "c": TABLES["c"]}, views, engine=engine)
    bench.transaction(("s", "c", {"id": 1, "at": at("10:00")}), at_ms=at("10:01") // 1000)
    bench.transaction(at_ms=at("10:50") // 1000)
    bench.run()
    assert bench.signs("outcome") == ["+1"]
    bench.transaction(at_ms=at("10:20") // 1000)
    _lost(bench)
    assert bench.run().events == 0
    assert verify_views(bench.config)[0].agrees
    reached, bench.commit = bench.commit, 12
    bench.stand(at_ms=at("10:20") // 1000)
    _lost(bench)
    told: list[str] = []
    assert run_views(bench.config, once=True, progress=told.append).steps == 0
    assert sum("and views are published up to" in line for line in told) == 1
    bench.commit = reached
    click = ("c", "c", {"id": 1, "search_id": 1, "at": at("10:20")})
    bench.transaction(click, ("s", "c", {"id": 2, "at": at("10:50")}), at_ms=at("34:00") // 1000)
    bench.run()
    assert bench.signs("outcome") == ["+2", "~1"]
    bench.transaction(at_ms=at("10:56") // 1000)
    bench.run()
    assert bench.signs("outcome") == ["-2"], "the source's clock was wrong for a moment: by a day"


@pytest.mark.full
def test_a_views_topic_with_more_partitions_is_refused_with_a_way_out(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """A key's next record would be in another partition than its last: under another name the view goes on."""
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, {"rows": _ROWS})
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}))
    bench.run()
    topic = f"{bench.prefix}.view.rows"
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.create_partitions([NewPartitions(topic, 12)])[topic].result(30)
    with pytest.raises(OperatorError, match="a key must stay in its partition") as refused:
        bench.run()
    assert "give the view another name" in (refused.value.hint or "")
    bench.views = {"rows_2": _ROWS}
    bench.run()
    assert bench.signs("rows_2") == ["+1"]


@pytest.mark.full
@STATES
def test_a_state_that_is_not_of_its_checkpoint_is_read_again(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, engine: str
) -> None:
    """Of the same step, but older than what Spark has read since; then with a checkpoint that a crash has cut."""
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, {"rows": _ROWS}, engine=engine, partitions=1)
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}))
    bench.run()
    state = tmp_path / "state"
    older = _copied(bench, "older")
    at = bench.commit + 1
    early = bench.records([("x", "c", {"id": 2, "g": "b", "v": 1})])
    bench.publisher.stand(Phase.STREAM, at, bench.tables.values(), early)  # behind the position: it waits in the state
    assert bench.run().steps == 0
    if engine == "duckdb":
        shutil.copy(tmp_path / "older" / "state.duckdb", state)
    bench.store = older.store
    bench.stand()
    bench.run()
    assert bench.signs("rows") == ["+1", "+2"]
    newest = max(state.glob("checkpoint/*/commits/[0-9]*"), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(b"")
    bench.transaction(("x", "d", {"id": 1}))
    told: list[str] = []
    run_views(bench.config, once=True, progress=told.append)
    assert any("the checkpoint is damaged" in line and "read again" in line for line in told)
    assert bench.signs("rows") == ["-1"]


@EACH
def test_a_row_of_the_last_transaction_that_went_in_it_does_not_come_back(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    """Power was cut, and the checkpoint has lost its end: events come again, each in a batch and a step of its own.

    No position tells that of the last commit from a row that an incremental snapshot reads after it: offsets do.
    """
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"]}, {"rows": _ROWS}, engine=engine, partitions=1)
    copies = ApplyConfig(
        name="copies",
        source=bench.config.source,
        checkpoint=str(tmp_path / "copies" / "checkpoint"),
        stores={"copy": StoreConfig(type="tantivy", path=str(tmp_path / "copy"))},
        tables={"public.x": ApplyTable(stores=("copy",))},
    )
    bench.transaction(("x", "c", {"id": 1, "g": "a", "v": 1}))
    bench.run()
    run_apply(copies, once=True)
    checkpoints = (tmp_path / "state" / "checkpoint", tmp_path / "copies" / "checkpoint")
    for number, checkpoint in enumerate(checkpoints):
        shutil.copytree(checkpoint, tmp_path / f"older-{number}")
    gone = [("x", "c", {"id": 2, "g": "a", "v": 1}), ("x", "u", {"id": 2, "g": "b", "v": 1}), ("x", "d", {"id": 2})]
    bench.transaction(*gone)
    bench.run()
    run_apply(copies, once=True)
    assert bench.signs("rows") == ["+1"]
    for number, checkpoint in enumerate(checkpoints):
        shutil.rmtree(checkpoint)
        shutil.copytree(tmp_path / f"older-{number}", checkpoint)
    monkeypatch.setattr("spark_apply.events.kafka.stream.MAX_EVENTS_PER_BATCH", 1)
    monkeypatch.setattr(RunningViews, "is_due", lambda *_: True)  # a stopped view has each batch tried
    assert bench.run().events == 0
    assert bench.signs("rows") == []
    count = run_apply(copies, once=True).tables["public.x"]["copy"]
    assert (count.written, count.deleted, count.stale) == (0, 0, 3)
