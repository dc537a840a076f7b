"""A copy whose folder is taken away, or whose files are gone or damaged, is told right, comes back, stops no other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.events.projection import projected_table
from spark_apply.events.set_aside import read_set_aside
from spark_apply.events.typed import OP, POSITION, SOURCE_MS
from spark_apply.job.watermarks.progress import Reader
from spark_apply.model.altered import AlteredError
from spark_apply.model.store import Batch, open_store
from spark_apply.model.target_table import Version
from spark_apply.rebuild.rebuild import run_rebuild
from spark_apply.stores.delta.log import DeltaLog
from tests.pushes import some_each_push
from tests.spark.laws import ORDERS, Setting, order, until
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

NAMES = ("cut", "fine", "instead", "lost", "removed")
NEWEST = {"delta": "_delta_log/*.json", "iceberg": "metadata/v*.metadata.json"}
GONE = "was removed, renamed or made again by another hand while the job runs"


def spoil(folder: Path, kind: str) -> None:
    """Take a table's folder away, cut its newest metadata, take its data, put a file in its place."""
    shutil.rmtree(folder / "removed")
    newest = max((folder / "cut").glob(NEWEST[kind]), key=lambda path: path.stat().st_mtime_ns)
    newest.write_bytes(newest.read_bytes()[:40])
    for file in (folder / "lost").rglob("*.parquet"):
        file.unlink()
    shutil.rmtree(folder / "instead")
    (folder / "instead").write_text("a file")


@pytest.mark.full  # the other one is the quick one
@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_lake_table_is_spoilt_while_the_job_runs(
    apply_spark: SparkSession, kafka: str, tmp_path: Path, kind: str
) -> None:
    """What is gone is made again; what lost its data is rebuilt; what cannot be opened is made again where it lay."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type=kind, path=str(path)))
    tables, publisher = {name: setting.table(name) for name in NAMES}, setting.publisher()
    publisher.create(tables.values(), partitions=1)
    records = [r for of in tables.values() for n in (1, 2) for r in of.event("c", order(n), position(10))]
    publisher.stand(Phase.STREAM, 20, tables.values(), records)
    config, folder = setting.config(), tmp_path / "copy" / "public"

    def reached(*names: str) -> bool:
        marks = setting.marks(*(tables[name] for name in names))
        return all(mark and mark.complete and mark.complete.position == position(40, 0) for mark in marks)

    with setting.running("checkpoints", config) as job:
        until(lambda: job.said("batch 1"), 120)
        spoil(folder, kind)
        more = [r for of in tables.values() for r in of.event("u", order(1, "x"), position(30))]
        publisher.stand(Phase.STREAM, 40, tables.values(), more)
        records += more
        until(lambda: reached("fine", "removed"), 120)
        said = [line for line in job.lines if "public.removed in copy is set aside" in line]
        assert len(said) == 1, said
        assert GONE in said[0]
        told = {of.table.partition(".")[2]: of for of in read_set_aside(config).values()}
        assert set(told) == {"cut", "instead", "lost"}
        for name in ("cut", "lost"):
            assert "files that it needs are gone or damaged" in told[name].reason
            assert f"cdc rebuild APPLY.yaml --table public.{name} --store copy" in (told[name].hint or "")
        with pytest.raises(OperatorError, match=r"public\.cut in copy: files .*damaged.*Rebuilt are: public\.fine"):
            run_rebuild(config)
        until(lambda: reached("lost"), 120)
        for name in ("cut", "instead"):
            (folder / name).rename(folder / f"{name}_away")
        until(lambda: reached(*NAMES), 120)
        assert job.failure is None
    for name, of in tables.items():
        assert setting.contents(of) == setting.folded(of, records), name
    assert setting.apply().aside == {}


DAMAGED = "the note of what is due to a copy since its rebuild is damaged"


def test_an_index_of_a_table_is_spoilt(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Its files are gone while the job runs, or a file is in its place at a start: the others go on."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))
    names, publisher = ("damaged", "fine", "instead", "removed", "unreadable"), setting.publisher()
    tables = {name: setting.table(name) for name in names}
    publisher.create(tables.values(), partitions=1)
    records = [r for of in tables.values() for n in (1, 2) for r in of.event("c", order(n), position(10))]
    publisher.stand(Phase.STREAM, 20, tables.values(), records)
    folder = tmp_path / "copy" / "public"

    def publish(at: int) -> None:
        more = [r for of in tables.values() for r in of.event("u", order(1, f"at {at}"), position(at))]
        publisher.stand(Phase.STREAM, at + 10, tables.values(), more)
        records.extend(more)

    with setting.running("checkpoints") as job:
        until(lambda: job.said("batch 1"), 120)
        shutil.rmtree((folder / "removed").resolve())
        publish(30)
        marks = lambda: setting.marks(*tables.values())  # noqa: E731
        until(lambda: all(m and m.complete and m.complete.position == position(40, 0) for m in marks()), 60)
        assert any("public.removed in copy is set aside" in line and "cannot be written" in line for line in job.lines)
        assert job.failure is None
    (folder / "instead").unlink()
    (folder / "instead").write_text("a file")
    (folder / "unreadable" / "cdc-due.json").mkdir()
    (folder / "damaged" / "cdc-due.json").write_text('{"id": ')
    publish(50)
    with Reader(setting.config()) as reader:
        told = reader.read("copy", setting.prefix).refused
    assert {name: of.message for name, of in told.items()} == {
        "public.damaged": DAMAGED,
        "public.unreadable": f"the index in {folder / 'unreadable'} cannot be read (Is a directory)",
    }  # fmt: skip
    aside = {table.partition(".")[2]: of["copy"] for table, of in setting.apply().aside.items()}
    assert aside.keys() == {"instead", "unreadable", "damaged"}
    assert "instead is there and holds no index that can be opened" in aside["instead"]
    assert (aside["damaged"], aside["unreadable"]) == tuple(of.message for _, of in sorted(told.items()))
    assert (folder / "instead").read_text() == "a file", "it stays where it is"
    (folder / "instead").rename(folder / "instead_away")
    (folder / "unreadable" / "cdc-due.json").rmdir()
    (folder / "damaged" / "cdc-due.json").unlink()
    assert setting.apply().aside == {}
    for name, of in tables.items():
        assert setting.contents(of) == setting.folded(of, records), name


@pytest.mark.full  # of PostgreSQL's copies in test_others_go_on.py
@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_column_that_another_hand_narrows_while_the_job_runs(
    apply_spark: SparkSession, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No batch is cut to the columns that are there: the copy is opened again, which gives it back what it can.

    Delta's log is looked at once for a batch before it is written: each look lists its folder.
    """
    config, looks = StoreConfig(type=kind, path=str(tmp_path / kind)), list[DeltaLog]()
    store: Any = open_store(config, name="copy", prefix="shop", spark=apply_spark.newSession())
    spark = store._tables.spark if kind == "iceberg" else store._spark
    columns, snapshot = (("id", Kind("int64")), ("n", Kind("int64"))), DeltaLog.snapshot

    def counted(log: DeltaLog) -> Any:
        looks.append(log)
        return snapshot(log)

    monkeypatch.setattr(DeltaLog, "snapshot", counted)
    version = Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), columns)
    table = projected_table([version], ApplyTable(stores=("copy",)))
    schema = f"{OP} string, {SOURCE_MS} bigint, id bigint, n bigint, {POSITION} string"
    rows = spark.createDataFrame([("c", 1, 1, 2**40, position(10))], schema)
    batch, place = Batch(table, rows, 1, position(10)), store.table_name(table)
    store.open(table)
    if kind == "delta":
        spark.sql(f"ALTER TABLE {place} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {place} DROP COLUMN n")
    spark.sql(f"ALTER TABLE {place} ADD COLUMN n int")
    with pytest.raises(AlteredError, match="another hand has altered it"):
        store.apply(batch)
    store.open(table)
    looks.clear()
    store.apply(batch)
    assert len(looks) == (1 if kind == "delta" else 0)
    assert [(row["id"], row["n"]) for row in spark.table(place).collect()] == [(1, 2**40)]
    store.close()


@pytest.mark.parametrize("kind", some_each_push(("iceberg", "delta"), "iceberg"))
def test_a_column_that_the_source_has_by_now(kind: str, apply_spark: SparkSession, kafka: str, tmp_path: Path) -> None:
    """Another hand has made one of that name before: its values do not pass for the source's."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type=kind, path=str(path)))
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records = [r for n in (1, 2) for r in table.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply()
    spark = apply_spark.newSession()
    open_store(setting.config().stores["copy"], name="copy", prefix=setting.prefix, spark=spark)
    name = "copy.public.orders" if kind == "iceberg" else f"delta.`{tmp_path}/copy/public/orders`"
    spark.sql(f"ALTER TABLE {name} ADD COLUMN segment string")
    spark.sql(f"UPDATE {name} SET segment = 'gold'")
    records += table.event("u", order(2, "paid"), position(15))
    publisher.publish(records[-1:])
    setting.apply()  # its mark knows of the column
    later = replace(table, columns={**ORDERS, "segment": {"kind": "string"}}, version=2, since=20)
    publisher.versions([later])
    more = later.event("u", {**order(1), "segment": "x"}, position(20))
    publisher.publish(more)
    with pytest.raises(OperatorError, match="has a column segment that another hand has made"):
        setting.apply()
    if kind == "delta":
        spark.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')")
    spark.sql(f"ALTER TABLE {name} RENAME COLUMN segment TO own")
    setting.apply()
    assert setting.contents(later) == setting.folded(later, records + more)


@pytest.mark.parametrize("kind", ["iceberg", "delta"])
def test_a_rebuild_alters_no_table_of_another_hand(kind: str, apply_spark: SparkSession, tmp_path: Path) -> None:
    """Nor one that has lost its stamp: `UNSET TBLPROPERTIES`."""
    config = StoreConfig(type=kind, path=str(tmp_path))
    spark = apply_spark.newSession()
    store: Any = open_store(config, name="copy", prefix="c", spark=spark)
    columns = (("id", Kind("int64")), ("v", Kind("string")))
    version = Version("c", "public", "theirs", "c.public.theirs", 1, ("id",), columns)
    table = projected_table([version], ApplyTable(stores=("copy",)))
    name = store.table_name(table)
    if kind == "iceberg":
        spark.sql("CREATE NAMESPACE IF NOT EXISTS copy.public")
    spark.sql(f"CREATE TABLE {name} (id bigint) USING {kind}")
    spark.sql(f"INSERT INTO {name} VALUES (1)")
    with pytest.raises(OperatorError, match="is there already and was not made by this toolkit"):
        store.beside(table)
    if kind == "iceberg":  # Delta looks into its log by itself, and Spark does not refresh what has a path for its name
        spark.catalog.refreshTable(name)
    assert spark.table(name).columns == ["id"]
    store.close()


def test_an_iceberg_table_that_takes_any_schema(apply_spark: SparkSession, tmp_path: Path) -> None:
    """As Iceberg's documents have it set for appends with other columns: the property is named, and what lifts it."""
    config, spark = StoreConfig(type="iceberg", path=str(tmp_path)), apply_spark.newSession()
    store: Any = open_store(config, name="copy", prefix="shop", spark=spark)
    columns = (("id", Kind("int64")), ("n", Kind("int64")))
    version = Version("shop", "public", "orders", "shop.public.orders", 1, ("id",), columns)
    table = projected_table([version], ApplyTable(stores=("copy",)))
    schema = f"{OP} string, {SOURCE_MS} bigint, id bigint, n bigint, {POSITION} string"

    def apply(n: int) -> None:
        store.apply(Batch(table, spark.createDataFrame([("u", 1, 1, n, position(n))], schema), 1, position(n)))

    store.open(table)
    apply(10)
    spark.sql("ALTER TABLE copy.public.orders SET TBLPROPERTIES ('write.spark.accept-any-schema' = 'true')")
    with pytest.raises(OperatorError, match="accept-any-schema, with which Spark takes no MERGE") as refused:
        apply(20)
    spark.sql(refused.value.hint or "")
    apply(30)
    assert [(row["id"], row["n"]) for row in spark.table("copy.public.orders").collect()] == [(1, 30)]
    store.close()
