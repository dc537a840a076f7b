"""Of two jobs on one copy, one that is killed behind the other leaves no rows that the mark of the other hides."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka import stream
from spark_apply.events.projection import projected_table
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.typed import KEY, OFFSET, OP, PARTITION, POSITION, SOURCE_MS
from spark_apply.job import batch_loop
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.copies.route import Route
from spark_apply.job.job import run_apply
from spark_apply.job.retry import fold_batch
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.altered import AlteredError
from spark_apply.model.completeness import Barrier, Barriers, Mark
from spark_apply.model.ownership import Ownership
from spark_apply.model.store import Batch, open_store
from spark_apply.model.target_table import Version
from tests.pushes import some_each_push
from tests.spark.laws import Record, Setting, order, until
from tests.spark.records import Publisher, SourceTable, position
from tests.stores.test_containment import _applied, _is_complete

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

KILLED = "killed"
VERSION = Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), (("id", Kind("int64")),))
TABLE = projected_table([VERSION], ApplyTable(stores=("copy",)))
SCHEMA = (
    f"{KEY} string, {POSITION} string, {OP} string, {PARTITION} int, {OFFSET} bigint, {SOURCE_MS} bigint, id bigint"
)


@dataclass
class Lake:
    """A store with a copy of three rows, and the records of its topic."""

    setting: Setting
    publisher: Publisher
    table: SourceTable
    records: list[Record]

    def happens(self, commit: int, *changes: tuple[str, int]) -> None:
        """Publish changes of rows, each an operation and a key, and that the connector stands behind them."""
        more = [r for op, key in changes for r in self.table.event(op, order(key, f"at {commit}"), position(commit))]
        self.publisher.stand(Phase.STREAM, commit + 1, [self.table], more)
        self.records += more

    def await_complete(self, commit: int) -> None:
        """Wait until the copy says that it has everything."""
        until(partial(_is_complete, self.setting, self.table, position(commit + 1, 0)), within_s=150)

    def other_job(self) -> None:
        """Run a job with a checkpoint of its own up to now."""
        config = self.setting.config()
        run_apply(replace(config, checkpoint=str(self.setting.folder / "other")), once=True)


@pytest.fixture
def lake(apply_spark: SparkSession, kafka: str, tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> Lake:
    """A copy in a store of the test's kind."""
    url = request.getfixturevalue("opensearch") if kind == "opensearch" else None
    return Lake(*_applied(apply_spark, kafka, tmp_path, kind, url))


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other job ends where a batch is in the stores, and no mark says so yet."""
    real = WatermarkPublisher.applied

    def applied(self: WatermarkPublisher, *batch: Any) -> None:
        if _is_other(self._applier):
            raise OperatorError(KILLED)
        real(self, *batch)

    monkeypatch.setattr(WatermarkPublisher, "applied", applied)


@pytest.mark.full("two whole jobs: test_the_mark_of_another_run_stays has the law")
@pytest.mark.usefixtures("killed")
@pytest.mark.parametrize("kind", ["iceberg", "delta", "opensearch"])
def test_a_job_from_offset_0_that_is_killed_halfway(lake: Lake, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Its batch brings rows back that the live job has deleted: that one reads again before its mark says complete."""
    with lake.setting.running("checkpoints") as job:
        lake.happens(30, ("u", 1), ("d", 0))
        lake.await_complete(30)
        with monkeypatch.context() as patched:
            patched.setattr(stream, "MAX_EVENTS_PER_BATCH", 3)
            with pytest.raises(OperatorError, match=KILLED):
                lake.other_job()
        if kind != "opensearch":  # whose tombstones are there for a minute
            assert lake.setting.rows(lake.table) == 3, "the row is back"
        lake.happens(50)
        lake.await_complete(50)
        assert lake.setting.contents(lake.table) == lake.setting.folded(lake.table, lake.records)
        assert job.failure is None
    assert any("is written by another job too" in line for line in job.lines)


@pytest.mark.full("two whole jobs: test_the_mark_of_another_run_stays has the law")
@pytest.mark.parametrize("kind", ["iceberg", "delta", "opensearch"])
def test_a_job_from_its_own_checkpoint_that_is_killed_behind_the_other(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Its batch, which was read before the live job went on, brings no row back that this one has deleted."""
    lake.other_job()
    request.getfixturevalue("killed")
    reads, real_fold, real_call = threading.Event(), fold_batch, Applier.__call__

    def fold(applier: Applier, *given: Any, **more: Any) -> Any:
        if not _is_other(applier):
            reads.wait(120)
        return real_fold(applier, *given, **more)

    def apply(self: Applier, *batch: Any) -> None:
        if _is_other(self) and not reads.is_set():
            reads.set()
            lake.await_complete(30)
            lake.happens(50, ("d", 5))
            lake.await_complete(50)
        real_call(self, *batch)

    monkeypatch.setattr(batch_loop, "fold_batch", fold)
    monkeypatch.setattr(Applier, "__call__", apply)
    with lake.setting.running("checkpoints") as job:
        with lake.setting.running("other") as other:
            until(lambda: job.said("following") and other.said("following"))
            lake.happens(30, ("c", 5))
            until(lambda: not other.is_alive(), within_s=240)
        lake.happens(70)
        lake.await_complete(70)
        assert lake.setting.contents(lake.table) == lake.setting.folded(lake.table, lake.records)
        assert (job.failure, str(other.failure)) == (None, KILLED)


class Run:
    """What a job does to its copy, by its store and its publisher, without a query of Spark's and a broker."""

    def __init__(self, config: StoreConfig, spark: SparkSession, since: int | None) -> None:
        """`since` is where its checkpoint is; None: it begins at offset 0."""
        self.store = open_store(config, name="copy", prefix="shop", spark=spark)
        self.spark = spark
        self.store.open(TABLE)
        self.barriers = Barriers()
        watcher: Any = SimpleNamespace(barriers=self.barriers, failure=None, seen={"shop"})
        routes = {TABLE.topic: Route(TABLE, {"copy": self.store})}
        self.publisher = WatermarkPublisher(Applier(routes, lambda route: route, cast("Quarantine", None)), watcher)
        self.publisher.begin(None if since is None else {TABLE.topic: {0: since}}, checkpoint="c")

    def applies(self, op: str, key: int, at: int) -> None:
        """Apply the event of an offset."""
        self.publisher.claim({TABLE.topic: {0: at + 1}})
        row = (f'{{"id":{key}}}', position(10 + at), op, 0, at, 1, key)
        rows = self.spark.createDataFrame([row], SCHEMA)
        self.store.apply(Batch(TABLE, rows, 1, position(10 + at)))

    def marks(self, end: int, commit: int) -> None:
        """Note that all before an offset is applied, and that no more comes before a commit."""
        highs = {TABLE.topic: {0: end}}
        self.barriers.add(Barrier("shop", frozenset([TABLE.qualified]), position(commit, 0), 1, highs))
        self.publisher.applied(highs, {})

    def stands(self) -> tuple[dict[int, int], bool]:
        """How far the copy says to be, and whether it is complete."""
        mark = self.store.mark(TABLE)
        assert mark is not None
        return {**mark.ends}, mark.complete is not None

    def keys(self) -> list[str]:
        return sorted(row.id for row in self.store.rows(TABLE))


@pytest.mark.parametrize("kind", some_each_push(["iceberg", "delta", "opensearch"], "iceberg"))
def test_the_mark_of_another_run_stays(
    apply_spark: SparkSession, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    """A job that begins at offset 0 brings a row back; the live one neither marks it as complete, nor writes to it."""
    url = request.getfixturevalue("opensearch") if kind == "opensearch" else None
    config = StoreConfig(type=kind, path=None if url else str(tmp_path), url=url)
    live = Run(config, apply_spark.newSession(), None)
    for at, (op, key) in enumerate([("c", 0), ("c", 1), ("d", 0)]):
        live.applies(op, key, at)
    live.marks(3, 20)
    assert (live.keys(), live.stands()) == (['{"id":1}'], ({0: 3}, True))
    other = Run(config, apply_spark.newSession(), None)
    if kind != "opensearch":  # whose tombstones are there for a minute
        other.applies("c", 0, 0)
        assert live.keys() == ['{"id":0}', '{"id":1}'], "killed here, its mark would not have been written"
    live.store.open(TABLE)  # as with a new version of the table, while the job goes on
    with pytest.raises(AlteredError, match="is written by another job too"):
        live.marks(3, 30)
    with pytest.raises(AlteredError):
        live.applies("c", 3, 3)
    assert live.stands() == ({}, False)

    live.store.open(TABLE)  # as what is set aside is opened again, and goes on from that mark
    live.applies("d", 0, 2)
    live.store.set_mark(TABLE, Mark({0: 3}, None))
    with pytest.raises(AlteredError):
        other.applies("c", 1, 1)
    assert (live.keys(), live.stands()) == (['{"id":1}'], ({0: 3}, False))

    late = Run(config, apply_spark.newSession(), 3)
    for at, (op, key) in enumerate([("c", 5), ("d", 5)], 3):
        live.applies(op, key, at)
    live.store.set_mark(TABLE, Mark({0: 5}, None))
    late.applies("c", 5, 3)  # it had read that before the other one went on
    assert late.stands() == ({0: 3}, False), "the other one would not read again what deletes this row"
    for run in (live, other, late):
        run.store.close()


@pytest.mark.parametrize("kind", some_each_push(["iceberg", "delta", "opensearch"], "opensearch"))
def test_a_mark_takes_the_place_of_the_one_that_was_read_alone(
    apply_spark: SparkSession,
    tmp_path: Path,
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another run takes over between the look at its mark and the new one: that one would hide what it does next."""
    url = request.getfixturevalue("opensearch") if kind == "opensearch" else None
    config = StoreConfig(type=kind, path=None if url else str(tmp_path), url=url)
    live = Run(config, apply_spark.newSession(), None)
    live.applies("c", 0, 0)
    live.marks(1, 20)
    other = Run(config, apply_spark.newSession(), 1)
    real, looked = Ownership.wanted, list[str]()

    def wanted(self: Ownership, table: str, there: Mark | None, mark: Mark) -> Mark | None:
        made = real(self, table, there, mark)
        if not looked:
            looked.append(table)
            other.publisher.claim({TABLE.topic: {0: 2}})
        return made

    monkeypatch.setattr(Ownership, "wanted", wanted)
    with pytest.raises(AlteredError, match="is written by another job too"):
        live.marks(1, 30)
    assert live.stands() == ({0: 1}, True)
    other.applies("d", 0, 1)
    for run in (live, other):
        run.store.close()


def _is_other(applier: Applier) -> bool:
    return applier.quarantine.config.checkpoint.endswith("other")
