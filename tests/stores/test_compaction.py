"""What compaction has removed before it was read: copies that would keep rows for good are set aside, no other."""

from __future__ import annotations

import shutil
import threading
import time
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource, StoreConfig
from cdc.config.views import ViewConfig
from cdc.model.state import Phase
from spark_apply.job.topics.retention import Extent, extents
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.views.job import run_views
from spark_apply.views.proof.verify import verify_views
from tests.conftest import Database
from tests.spark.laws import Setting, forget, order, until
from tests.spark.records import SourceTable, position
from tests.views.bench import ViewBench
from tests.views.cases import TABLES

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


@pytest.fixture
def warehouse(apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="postgres", url=postgres18.url))


def keep_deletes(setting: Setting, table: SourceTable, kept_ms: int) -> None:
    admin = AdminClient({"bootstrap.servers": setting.bootstrap})
    entry = ConfigEntry("delete.retention.ms", str(kept_ms), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, table.topic, incremental_configs=[entry])
    for future in admin.incremental_alter_configs([change]).values():
        future.result(30)


def test_a_running_job_notices_deletes_that_are_gone(warehouse: Setting) -> None:
    """A tombstone without its delete sets a copy aside that has the row, as at a start; no other copy, no other table.

    Keys that the copy never had, that came back, or whose delete is there, are no reason. Of a table that the job reads
    later than its topic keeps deletes, the tombstones may be gone, too.
    """
    setting, publisher = warehouse, warehouse.publisher()
    table, other, slow = tables = [setting.table(name) for name in ("orders", "other", "slow")]
    publisher.create(tables, partitions=1)
    records = {of.name: [r for n in range(4) for r in of.event("c", order(n), position(10 + n))] for of in tables}
    publisher.stand(Phase.STREAM, 15, tables, [r for of in records.values() for r in of])
    keep_deletes(setting, slow, 1_000)
    with setting.running("checkpoints") as job:
        until(lambda: job.said("batch 1"))
        late = []
        for of in (table, other):
            gone = {n: of.event("d", order(n), position(20))[1:] for n in (0, 2, 3, 9)}
            more = [*of.event("u", order(1, "paid"), position(20)), *gone[3], *gone[9], *gone[2]]
            more += [*of.event("c", order(3, "again"), position(21)), *of.event("d", order(2), position(22))]
            records[of.name] += [*more, *(gone[0] if of is table else [])]
            late += [*more, *(gone[0] if of is table else [])]
        with publisher.transaction():  # readers see it once it is committed, long after it was written
            publisher.write(slow.event("u", order(1, "x"), position(20)))
            time.sleep(2)
        publisher.stand(Phase.STREAM, 30, tables, late)
        for of, why in ((table, "compaction removed their deletes"), (slow, "longer than its topic keeps deletes")):
            until(lambda of=of: job.said(f"warning: {of.qualified} in copy is set aside"))
            assert why in next(line for line in job.lines if f"{of.qualified} in copy is set aside" in line)
        until(lambda: setting.marks(other)[0].complete.position == position(30, 0))
        assert setting.contents(other) == setting.folded(other, records["other"])
        del records["orders"][0]  # as compaction has done
        forget(setting.bootstrap, table.topic, before=1)
        run_rebuild(setting.config(), table=table.qualified)
        until(lambda: setting.marks(table)[0].complete.position == position(30, 0))
        assert setting.contents(table) == setting.folded(table, records["orders"])
        assert job.failure is None


def test_a_copy_of_an_earlier_time_is_read_again_only_where_that_brings_back_no_row(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Restored without its mark while the job is away, or put back by a rollback while it runs.

    Of one table compaction has removed a delete, one topic keeps deletes for a second, of the third all is there.
    """
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    tables, publisher = [setting.table(name) for name in ("buried", "old", "fine")], setting.publisher()
    publisher.create(tables, partitions=1)
    records = {of.name: [r for n in range(3) for r in of.event("c", order(n), position(10 + n))] for of in tables}
    publisher.stand(Phase.STREAM, 15, tables, [r for of in records.values() for r in of])
    setting.apply()
    live, backup = tmp_path / "copy", tmp_path / "backup"
    shutil.copytree(live, backup, symlinks=True)
    for of in tables:
        publisher.stand(Phase.STREAM, 25, [of], of.event("d", order(1), position(20)))
        more = [r for n in (0, 2) for r in of.event("u", order(n, "paid"), position(30 + n))]
        publisher.stand(Phase.STREAM, 45, [of], more)
        records[of.name] = [r for r in records[of.name] if r[1] != b'{"id":1}'] + more
    setting.apply()
    shutil.rmtree(live)
    backup.rename(live)
    for of in tables:
        (live / "public" / of.name / "cdc-mark.json").unlink()
    shutil.rmtree(tmp_path / "checkpoints")  # as a start says that it must be
    forget(kafka, tables[0].topic, before=5)  # the delete, and what was before it
    keep_deletes(setting, tables[1], 1_000)
    why = {"public.buried": "compaction removed their deletes", "public.old": "is of an earlier time"}
    told = {of: stores["copy"] for of, stores in setting.apply().aside.items()}
    assert {of: reason in told[of] for of, reason in why.items()} == dict.fromkeys(told, True)
    assert setting.contents(tables[2]) == setting.folded(tables[2], records["fine"])
    run_rebuild(setting.config())
    with setting.running("checkpoints") as job:
        until(lambda: job.said("following the topics"))
        until(lambda: all(setting.marks(*tables)))
        for of in tables:
            assert setting.contents(of) == setting.folded(of, records[of.name]), of.name
        run_rollback(setting.config())
        for name, reason in why.items():
            until(lambda name=name: job.said(f"warning: {name} in copy is set aside"))
            assert any(line.startswith(f"warning: {name} in copy") and reason in line for line in job.lines)
        until(lambda: setting.marks(tables[2])[0] is not None)
        assert job.failure is None
    assert setting.contents(tables[2]) == setting.folded(tables[2], records["fine"])


@pytest.mark.full  # the test before asks the same of a copy
def test_a_running_view_job_notices_deletes_that_are_gone(
    apply_spark: SparkSession, kafka: str, tmp_path: Path
) -> None:
    """Views of that table stop, the others go on; a new start reads the topics again, and they are right."""
    views = {
        name: ViewConfig(sql=f"SELECT id, g FROM public.{table}", key=("id",))
        for name, table in (("rows", "x"), ("others", "y"))
    }
    bench = ViewBench(kafka, tmp_path, {"x": TABLES["x"], "y": TABLES["x"]}, views, partitions=1)
    bench.transaction(*((table, "c", {"id": n, "g": "g", "v": n}) for n in range(3) for table in ("x", "y")))
    lines, stop, failed = list[str](), threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            run_views(bench.config, once=False, progress=lines.append, stop=stop)
        except BaseException as exc:  # noqa: BLE001 - asserted below
            failed.append(exc)

    job = threading.Thread(target=follow)
    job.start()
    try:
        until(lambda: failed != [] or any(line.startswith("batch 1") for line in lines), 240)
        until(lambda: len(bench.events("rows")) == 3)
        changes = bench.records([("x", "u", {"id": 2, "g": "h", "v": 2}), ("x", "d", {"id": 0, "g": "g", "v": 0})])
        del changes[1]
        forget(kafka, bench.tables["x"].topic, before=1)  # as compaction has done
        bench.stand([*changes, *bench.records([("y", "d", {"id": 1, "g": "g", "v": 1})])])
        until(lambda: any("public.x in views is set aside" in line for line in lines), 120)
        until(lambda: "-1" in bench.signs("others"), 120)
    finally:
        stop.set()
        job.join(180)
    assert (failed, bench.signs("rows")) == ([], [])
    bench.run()
    assert bench.signs("rows") == ["-0", "~2"]
    assert all(of.agrees for of in verify_views(bench.config))


@pytest.mark.parametrize("kept_ms", [3_153_600_000_000, 2**63 - 1])
def test_deletes_may_be_kept_for_longer_than_there_is_time(kafka: str, prefix: str, kept_ms: int) -> None:
    """No job waits for a broker that is there: all deletes are."""
    topic, admin = f"{prefix}.public.t", AdminClient({"bootstrap.servers": kafka})
    settings = {"cleanup.policy": "compact", "delete.retention.ms": str(kept_ms)}
    for made in admin.create_topics([NewTopic(topic, 1, 1, config=settings)]).values():
        made.result(30)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, b"{}", b"{}")
    producer.flush(30)
    source = ApplySource(bootstrap_servers=kafka, topic_prefix=prefix)
    assert extents(source, [topic]) == {topic: {0: Extent(first=0, end=1, kept=0, retention_ms=kept_ms)}}
