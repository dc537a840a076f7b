"""The warehouse tables on a real broker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.kafka import topics
from spark_apply.events.projection import projected_table
from spark_apply.job.batch import size
from spark_apply.job.job import run_apply
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable, Version
from spark_apply.stores.iceberg import copies
from spark_apply.stores.iceberg.store import IcebergStore, open_store
from spark_apply.stores.lake import merge
from tests.spark.kinds import SPARK_TYPES
from tests.spark.laws import ORDERS, Law, Setting, applied_kinds, laws_of, merges_by_any_key, order
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.fixture(autouse=True)
def _shuffled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, batches are read and folded by several tasks, as only large ones are otherwise."""
    monkeypatch.setattr(size, "EVENTS_ALONE", -1)


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))


def _store(setting: Setting) -> IcebergStore:
    return open_store(
        setting.store(setting.folder / "copy"), name="copy", prefix=setting.prefix, spark=setting.spark.newSession()
    )


@pytest.mark.parametrize("law", laws_of("iceberg"))
def test_law(law: Law, setting: Setting) -> None:
    law(setting)


_FEW = [pytest.param(0, id="as many are"), pytest.param(merge._FEW, id="as few are")]


@pytest.mark.parametrize("few", _FEW)
def test_a_batch_is_merged_by_keys_of_any_kind(few: int, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merge, "_FEW", few)
    merges_by_any_key(setting)


def test_every_kind_keeps_its_value_and_has_its_type(setting: Setting) -> None:
    table, records = applied_kinds(setting)
    assert setting.contents(table) == setting.folded(table, records)
    setting.spark._jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(setting.spark._jsparkSession)
    store, made = _store(setting), setting.target(table)
    assert store.mark(made) is not None, "also where the thread has last used a session without the catalog"
    types = {field.name: field.dataType.simpleString() for field in store.read(made).schema}
    assert types == {**SPARK_TYPES, "_cdc_position": "string"}
    properties = {
        row["key"]: row["value"]
        for row in store.read(made).sparkSession.sql(f"SHOW TBLPROPERTIES {store.table_name(made)}").collect()
    }
    assert properties["write.merge.mode"] == "merge-on-read"
    assert properties["format-version"] == "2"
    assert store.position(made) == position(10 + 4)


@pytest.mark.full  # test_more_bad_events_than_the_limit_stop_the_job
@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ({"kind": "decimal", "precision": 10, "scale": 2}, "NaN"),
        pytest.param({"kind": "array", "element": {"kind": "string"}}, [["1947114711", "b"]], marks=pytest.mark.full),
        pytest.param({"kind": "array", "element": {"kind": "int32"}}, "[0:1]={1947114711,2}", marks=pytest.mark.full),
    ],
    ids=["nan", "dimensions", "lower_bound"],
)
def test_a_value_that_does_not_fit_stops_and_can_be_kept_as_text(setting: Setting, kind: object, value: object) -> None:
    table, publisher = setting.table(columns={"id": {"kind": "int64"}, "odd": kind}), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish(table.event("c", {"id": 4712, "odd": None}, position(9)))
    publisher.publish(table.event("c", {"id": 1947114711, "odd": value}, position(10)))
    with pytest.raises(OperatorError) as caught:
        setting.apply(setting.config(limit=0))
    text = str(caught.value)
    for part in ("public.orders", "column odd", f"topic {table.topic}", "partition 0", "offset 2", "key column id"):
        assert part in text
    assert "types: {odd: string}" in text
    assert "1947114711" not in text
    assert setting.contents(table) == {}
    kept = setting.config(types={"odd": "string"}, copy="elsewhere")
    setting.apply(kept)
    text = value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
    assert setting.contents(table, kept)['{"id":1947114711}'] == {"id": 1947114711, "odd": text}


def test_what_is_refused_is_refused_before_anything_is_made(setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    table, publisher = setting.table(), setting.publisher()
    with pytest.raises(OperatorError, match=r"schema does not exist .* no connector has written there"):
        setting.apply()
    publisher.create([table])
    with pytest.raises(ConfigError, match=r"did you mean public\.orders"):
        setting.apply(setting.config("public.order"))
    with pytest.raises(ConfigError, match=r"types.statu: the table has no such column"):
        setting.apply(setting.config(types={"statu": "string"}))
    nobody = ApplyConfig(
        name="law",
        source=ApplySource(bootstrap_servers="127.0.0.1:1", topic_prefix="x"),
        stores={"copy": StoreConfig(type="iceberg", path=str(setting.folder / "copy"))},
        tables={"public.orders": ApplyTable(stores=("copy",))},
        checkpoint=str(setting.folder / "checkpoints"),
    )
    monkeypatch.setattr(topics, "ANSWER_WITHIN_S", 1.0)
    with pytest.raises(OperatorError, match=r"Kafka at 127.0.0.1:1 does not answer"):
        run_apply(nobody, once=True)
    assert list(setting.folder.iterdir()) == []


def test_more_bad_events_than_the_limit_stop_the_job(setting: Setting) -> None:
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table], partitions=1)
    publisher.publish([*table.event("c", order(1), position(10)), (table.topic, b'{"id":1}', b'{"secret":1947114711}')])
    with pytest.raises(OperatorError, match=r"partition 0, offset 1: this record is not an event") as caught:
        setting.apply(setting.config(limit=0))
    assert "1947114711" not in str(caught.value)
    publisher.publish([(table.topic, b'{"id":2}', b"[]")])
    with pytest.raises(OperatorError, match=r"not an event: [^\n]*\s.*1 in quarantine, more than quarantine\.limit 1"):
        setting.apply(setting.config(limit=1))
    assert setting.apply(setting.config(limit=2)).tables[table.qualified]["copy"].quarantined == 1
    assert setting.contents(table) == setting.folded(table, table.event("c", order(1), position(10)))


def _retyped() -> tuple[TargetTable, TargetTable]:
    """Return a table before and after its column `t` got a type to which no copy is altered in place."""
    columns = [(("id", Kind("int64")), ("t", Kind("decimal", *digits))) for digits in ((10, 2), (12, 4))]
    versions = [Version("law", "public", "t", "law.public.t", n, ("id",), of) for n, of in enumerate(columns, 1)]
    settings = ApplyTable(stores=("copy",))
    return projected_table(versions[:1], settings), projected_table(versions, settings)


def _names(store: IcebergStore, table: TargetTable) -> list[str]:
    store._tables.spark.catalog.refreshTable(store.table_name(table))
    return store._tables.spark.table(store.table_name(table)).schema.names


def test_a_rebuild_that_ends_without_a_swap_leaves_no_columns(apply_spark: SparkSession, tmp_path: Path) -> None:
    """Readers of the live copy would have them in `SELECT *`."""
    setting = Setting(apply_spark, "", tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    store, (was, now) = _store(setting), _retyped()
    store.open(was)
    store.beside(now)
    assert _names(store, now) == ["id", "t", "_cdc_position", "_cdc_beside_t"]
    store.close()
    assert _names(store, now) == ["id", "t", "_cdc_position"]


@pytest.mark.full  # the other one is the quick one
def test_columns_of_another_rebuild_and_of_the_live_copy_stay(
    apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setting = Setting(apply_spark, "", tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    store, other, (was, now) = _store(setting), _store(setting), _retyped()
    store.open(was)
    store.beside(now)
    other.beside(now)
    store.close()
    assert _names(other, now) == ["id", "t", "_cdc_position", "_cdc_beside_t"]
    with monkeypatch.context() as away:
        away.setattr(copies, "_exchange", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            other.swap(now, Due("one", {}))
    other.close()
    assert _names(other, now) == ["id", "t", "_cdc_position"]
    store.beside(now)
    store.swap(now, Due("two", {}))
    store.close()
    assert store.read(now).schema["t"].dataType.simpleString() == "decimal(12,4)"
    assert sorted(_names(other, now)) == ["_cdc_position", "id", "t"]


def test_a_column_that_sorts_the_table_keeps_its_type(apply_spark: SparkSession, tmp_path: Path) -> None:
    """Also one that has: Iceberg keeps the orders that a table had, and no task could write without their columns."""
    setting = Setting(apply_spark, "", tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    store, (was, now) = _store(setting), _retyped()
    store.open(was)
    for by in ("ORDERED BY id, t", "UNORDERED"):
        store._tables.spark.sql(f"ALTER TABLE {store.table_name(was)} WRITE {by}")
        with pytest.raises(OperatorError, match="column t: it sorts the table, with another type") as told:
            store.beside(now)
        assert "target: t_2 under tables.public.t" in (told.value.hint or "")
    assert _names(store, was) == ["id", "t", "_cdc_position"]


@pytest.mark.full  # test_a_column_that_sorts_the_table_keeps_its_type: before a rebuild
def test_a_column_that_sorts_the_table_since_a_rebuild_is_not_rolled_back(
    apply_spark: SparkSession, tmp_path: Path
) -> None:
    setting = Setting(apply_spark, "", tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))
    store, (was, now) = _store(setting), _retyped()
    store.open(was)
    store.beside(now)
    store.swap(now, Due("one", {}))
    for by in ("ORDERED BY id, t", "UNORDERED"):
        store._tables.spark.sql(f"ALTER TABLE {store.table_name(was)} WRITE {by}")
        with pytest.raises(OperatorError, match="column t: it sorts the table, with another type") as told:
            store.roll_back(now, Due("two", {}))
        assert "target: t_2 under tables.public.t" in (told.value.hint or "")
    assert store.previous(now) is not None
    assert store.read(now).schema["t"].dataType.simpleString() == "decimal(12,4)"


@pytest.mark.full  # test_a_kill_at_every_step: two tables in three stores
def test_two_tables_in_two_stores(setting: Setting) -> None:
    """One query, several topics; a store added later gets everything."""
    orders, other = setting.table(), setting.table("items", {"a": {"kind": "string"}, **ORDERS}, key=("a", "id"))
    publisher = setting.publisher()
    publisher.create([orders, other])
    rows = [r for n in range(4) for r in orders.event("c", order(n), position(10 + n))]
    items = [r for n in range(4) for r in other.event("c", {**order(n), "a": "x"}, position(20 + n))]
    publisher.publish(rows + items)
    first = setting.config("public.orders")
    setting.apply(first)
    both = ApplyConfig(
        name="law",
        source=first.source,
        stores={**first.stores, "index": StoreConfig(type="tantivy", path=str(setting.folder / "index"))},
        tables={"public.orders": ApplyTable(stores=("copy", "index")), "public.*": ApplyTable(stores=("index",))},
        checkpoint=first.checkpoint,
    )
    summary = setting.apply(both)
    assert {table: list(stores) for table, stores in summary.tables.items()} == {
        "public.items": ["index"],
        "public.orders": ["copy", "index"],
    }
    assert setting.contents(orders) == setting.folded(orders, rows)
    index = setting.config()
    index = ApplyConfig(
        name="law",
        source=first.source,
        stores={"copy": both.stores["index"]},
        tables=index.tables,
        checkpoint=first.checkpoint,
    )
    assert setting.contents(orders, index) == setting.folded(orders, rows)
    assert setting.contents(other, index) == setting.folded(other, items)
