"""Delta Lake tables on a real broker."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase
from spark_apply.model.store import Batch, Due
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.model.upkeep import Upkeep
from spark_apply.rebuild.rebuild import run_rebuild, run_rollback
from spark_apply.stores.delta.copies import previous_files
from spark_apply.stores.delta.log import DeltaLog
from spark_apply.stores.delta.store import DeltaStore, open_store
from spark_apply.stores.lake import merge as lake
from spark_apply.verify.contents import contents
from tests.conftest import FULL
from tests.spark.kinds import EVERY_KIND, SPARK_TYPES, every_kind_rows
from tests.spark.laws import Law, Setting, laws_of, merges_by_any_key, order
from tests.spark.records import SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="delta", path=str(path)))


def _store(setting: Setting) -> DeltaStore:
    spark = setting.spark.newSession()
    return open_store(setting.store(setting.folder / "copy"), name="copy", prefix=setting.prefix, spark=spark)


@pytest.mark.parametrize("law", laws_of("delta"))
def test_law(law: Law, setting: Setting) -> None:
    law(setting)


_FEW = [pytest.param(0, id="as many are"), pytest.param(lake._FEW, id="as few are")]


@pytest.mark.full  # Iceberg's: the lakes share their MERGE
@pytest.mark.parametrize("few", _FEW)
def test_a_batch_is_merged_by_keys_of_any_kind(few: int, setting: Setting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lake, "_FEW", few)
    merges_by_any_key(setting)


@pytest.mark.full  # Iceberg's, and the same of the settings from outside
def test_every_kind_keeps_its_value_and_has_its_type(setting: Setting) -> None:
    """Also as columns that are added to a table, with names of which files can have none."""
    columns = {**EVERY_KIND, "an odd, (name)": {"kind": "string"}}
    begin, publisher = setting.table("kinds", {"id": {"kind": "int32"}}), setting.publisher()
    publisher.create([begin])
    records = begin.event("c", {"id": 9}, position(1))
    publisher.publish(records)
    setting.apply()
    table = setting.table("kinds", columns, version=2)
    publisher.versions([table])
    rows = [{**row, "an odd, (name)": "x"} for row in every_kind_rows()]
    more = [r for row in rows for r in table.event("c", row, position(10 + row["id"]))]
    publisher.publish(more)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + more)
    store, made = _store(setting), setting.target(table)
    types = {field.name: field.dataType.simpleString() for field in store.read(made).schema}
    assert types == {**SPARK_TYPES, "an odd, (name)": "string", "_cdc_position": "string"}
    properties = store._log(made).properties()
    assert properties["delta.enableDeletionVectors"] == "true"
    assert store.position(made) == position(10 + 4)


@pytest.mark.full  # test_what_is_refused_is_refused_before_anything_is_made of Iceberg
def test_what_is_refused(setting: Setting) -> None:
    """A folder that holds something else, a table of another hand, a store without a folder."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    folder = setting.folder / "copy" / "public" / "orders"
    folder.mkdir(parents=True)
    (folder / "letter.txt").write_text("x")
    with pytest.raises(OperatorError, match="is there already and holds no Delta table"):
        setting.apply()
    (folder / "letter.txt").unlink()
    setting.spark.range(3).write.format("delta").save(str(folder))
    with pytest.raises(OperatorError, match="was not made by this toolkit"):
        setting.apply()
    with pytest.raises(ConfigError, match=r"stores\.copy: path is missing"):
        open_store(StoreConfig(type="delta"), name="copy", prefix="p", spark=None)


def _marked(setting: Setting, table: SourceTable) -> Any:
    """The mark, read without Spark and with it."""
    with_spark = _store(setting).mark(setting.target(table))
    (found,) = setting.marks(table)
    assert found == with_spark
    return found


@pytest.mark.parametrize("back", [False, pytest.param(True, marks=pytest.mark.full)])
def test_rebuilt_under_readers_then_put_back(setting: Setting, *, back: bool) -> None:
    """Readers see the old copy or the new one; each keeps the position it had; both are caught up with what is due."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records = [r for n in range(20) for r in table.event("c", order(n), position(20 + n))]
    publisher.stand(Phase.STREAM, 40, [table], records)
    setting.apply()
    assert _marked(setting, table).complete.position == position(40, 0)
    store, made, config = _store(setting), setting.target(table), setting.config()
    name, sql = store.table_name(made), store._spark.sql
    sql(f"UPDATE {name} SET status = 'wrong' WHERE id = 1")
    sql(f"DELETE FROM {name} WHERE id = 2")
    right, wrong = setting.folded(table, records), setting.contents(table)
    assert (len(right), len(wrong), wrong['{"id":1}']["status"]) == (20, 19, "wrong")
    with pytest.raises(OperatorError, match="there is no earlier copy to put back"):
        run_rollback(config)

    seen: list[bool] = []
    stop, failed = threading.Event(), []

    def read() -> None:
        reader = _store(setting)
        while not stop.wait(0.5 if FULL else 2):  # each look is a query
            found = contents(reader, made)
            if found not in (right, wrong):
                failed.append(found)
            seen.append(found == right)

    reading = threading.Thread(target=read)
    reading.start()
    try:
        (done,) = run_rebuild(config)
    finally:
        stop.set()
        reading.join(60)
    assert not failed
    assert seen == sorted(seen)
    found = done.differences
    assert (found.rows, found.only_old, found.only_new, found.different) == (20, 0, 1, 1)
    assert setting.contents(table) == right
    assert _marked(setting, table) is None  # until it has what is due

    more = table.event("u", order(3, "newer"), position(50)) + table.event("d", order(4), position(51))
    publisher.stand(Phase.STREAM, 60, [table], more)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + more)
    assert store.position(made) == position(51)
    assert _marked(setting, table).complete.position == position(60, 0)
    if not back:
        return

    aside = Path(store.path(made)) / previous_files(store._log(made))[0].path()
    aside.rename(tmp := aside.with_suffix(".aside"))
    with pytest.raises(OperatorError, match="files of the copy before are gone"):
        run_rollback(config)
    assert setting.contents(table) == setting.folded(table, records + more)
    tmp.rename(aside)
    assert [copy.store for copy in run_rollback(config)] == ["copy"]
    assert setting.contents(table) == wrong
    assert store.position(made) == position(39)
    assert store.previous(made) is None
    setting.apply()
    changed = setting.folded(table, records + more)
    assert setting.contents(table) == {**changed, '{"id":1}': wrong['{"id":1}']}  # 2 is read again from the topic


@pytest.mark.full
def test_a_mark_comes_back_with_the_state_it_was_of(setting: Setting) -> None:
    """`RESTORE` to an earlier state brings its mark and its position back; so do checkpoints of the log alone."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.stand(Phase.STREAM, 20, [table], table.event("c", order(1), position(10)))
    setting.apply()
    store, made = _store(setting), setting.target(table)
    log = store._log(made)
    first, version = _marked(setting, table), log.snapshot().version()
    publisher.stand(Phase.STREAM, 40, [table], table.event("u", order(1, "paid"), position(30)))
    setting.apply()
    assert (_marked(setting, table).complete.position, store.position(made)) == (position(40, 0), position(30))
    store._spark.sql(f"RESTORE {store.table_name(made)} TO VERSION AS OF {version}").collect()
    assert (_marked(setting, table), store.position(made)) == (first, position(10))
    with pytest.raises(OperatorError, match="is older than the checkpoint"):
        setting.apply()
    log._java.checkpoint()
    for path in (Path(store.path(made)) / "_delta_log").glob("*.json"):
        path.unlink()
    assert setting.marks(table) == [first]


def _orders(spark: SparkSession, folder: Path) -> tuple[Setting, TargetTable, DeltaStore, Path]:
    """A table that no topic has: its store, and the folder of its copy."""
    setting = Setting(spark, "", folder, lambda path: StoreConfig(type="delta", path=str(path)))
    version = Version("c", "public", "orders", "t", 1, ("id",), (("id", Kind("int64")),))
    return setting, target([version], {}), _store(setting), folder / "copy" / "public" / "orders"


@pytest.mark.parametrize("by", ["upkeep that compacts", "a rollback"])
def test_files_of_a_rebuild_that_was_killed_behind_its_swap_stay_for_their_readers(
    by: str, apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of its folder is live by then, but states that are kept have them: the next rebuild removes none."""
    setting, made, store, folder = _orders(apply_spark, tmp_path)
    store.open(made)
    filling = store.beside(made)
    for number in (1, 2):
        row = (number, position(1), "c")
        filling.fill(made, setting.spark.createDataFrame([row], "id bigint, _cdc_position string, _cdc_op string"))
    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "remove", lambda *_asked: None)  # killed before
        store.swap(made, Due("x", {}))
    files = [*folder.glob("cdc-copy-*/*.parquet")]
    assert len(files) >= 2
    if by == "a rollback":
        store.roll_back(made, Due("y", {}))
    else:
        store.upkeep = replace(store.upkeep or Upkeep(), files=2)
        store.maintain(made)
    assert not any("cdc-copy-" in one.path() for one in store._log(made).files(store._log(made).snapshot()))
    store.beside(made)
    assert all(file.exists() for file in files)
    store.close()


@pytest.mark.parametrize("by", ["a rebuild", "upkeep"])
def test_what_a_rebuild_that_was_killed_behind_its_swap_has_left(
    by: str, apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy's log goes, so that its files are those of a copy that is live; so do notes that nothing names."""
    setting, made, store, folder = _orders(apply_spark, tmp_path)
    rows = setting.spark.createDataFrame([(1, position(1), "c")], "id bigint, _cdc_position string, _cdc_op string")
    store.open(made)

    def swap() -> None:
        store.beside(made).fill(made, rows)
        store.swap(made, Due("x", {}))

    def logs() -> list[Path]:
        return [of for of in folder.glob("cdc-copy-*") if (of / "_delta_log").exists()]

    with monkeypatch.context() as patch:
        patch.setattr(DeltaLog, "remove", lambda *_asked: None)  # killed before
        swap()
        swap()
    assert (len(logs()), len([*folder.glob("_cdc_previous-*.json")])) == (2, 2)
    if by == "upkeep":
        store._cleaned.at.clear()  # its turn has come
        store.maintain(made)
    else:
        store.beside(made)
    assert len(logs()) == (by == "a rebuild")  # the new one's
    assert len([*folder.glob("_cdc_previous-*.json")]) == (2 if by == "upkeep" else 1)
    store.roll_back(made, Due("y", {}))
    assert [row["id"] for row in store.read(made).collect()] == [1]
    store.close()


def test_columns_called_as_delta_calls_its_own_beside_deletion_vectors(
    apply_spark: SparkSession, tmp_path: Path
) -> None:
    """Its MERGE fails beside them at the first row that it changes: such a table is kept without, from then on."""
    setting, was, store, _ = _orders(apply_spark, tmp_path)
    names = ("path", "filePath", "rowIndexCol", "deletionVectorId")
    columns = (("id", Kind("int64")), *((name, Kind("string")) for name in names))
    versions = [Version("c", "public", "orders", "t", 2, ("id",), columns)]
    now = target([Version("c", "public", "orders", "t", 1, ("id",), columns[:1]), *versions], {})

    def apply(made: TargetTable, at: int, *events: tuple[str, int]) -> None:
        more = (f"v{at}",) * (len(made.columns) - 1)
        rows = [(op, number, *more, position(at)) for op, number in events]
        fields = ", ".join(f"{column.name} {'bigint' if column.name == 'id' else 'string'}" for column in made.columns)
        frame = setting.spark.createDataFrame(rows, f"_cdc_op string, {fields}, _cdc_position string")
        store.apply(Batch(made, frame, len(rows), position(at)))

    store.open(was)
    apply(was, 1, *(("c", number) for number in range(5)))
    apply(was, 2, ("u", 0), ("d", 1))
    assert store._log(was).snapshot().numDeletedRecordsOpt().isDefined()
    store.open(now)
    apply(now, 3, ("u", 0), ("d", 2), ("c", 7))
    apply(now, 4, ("u", 3), ("u", 7), ("d", 4))
    found = {row["id"]: {row[name] for name in names} for row in store.read(now).collect()}
    assert found == {0: {"v3"}, 3: {"v4"}, 7: {"v4"}}
    columns = (("id", Kind("int64")), ("v", Kind("string")))
    other = target([Version("c", "public", "others", "u", 1, ("id",), columns)], {})
    store.open(other)
    apply(other, 1, *(("c", number) for number in range(5)))
    log = store._log(other)
    log.spark.sql(f"ALTER TABLE {log.name} ADD COLUMNS (path string)")
    store.open(other)  # as it is where it was set aside
    apply(other, 2, ("u", 0), ("d", 1))
    assert {row["id"]: row["v"] for row in store.read(other).collect()}.get(0) == "v2"
    store.close()
