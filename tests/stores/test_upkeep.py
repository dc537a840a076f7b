"""Upkeep of lake tables: contents, position, mark and the copy before stay, files go."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import OperatorError
from cdc.model.state import Phase
from spark_apply.model import clock
from spark_apply.model.store import Due, open_store
from spark_apply.model.upkeep import HOUR_MS
from spark_apply.rebuild.rebuild import run_rollback
from spark_apply.stores.iceberg.store import IcebergStore
from spark_apply.verify.contents import contents
from tests.spark.laws import Setting, order
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


def _live_files(store: Any, made: Any) -> int:
    if isinstance(store, IcebergStore):
        return store._tables.spark.table(f"{store.table_name(made)}.files").count()
    return len(store.read(made).inputFiles())


@contextmanager
def _nothing_printed(spark: SparkSession) -> Iterator[None]:
    """By Java, on stdout, which is for data; no capture of pytest's sees that."""
    jvm: Any = spark.sparkContext._jvm
    console, heard = getattr(getattr(jvm.scala, "Console$"), "MODULE$"), jvm.java.io.ByteArrayOutputStream()
    before = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(heard))
    try:
        yield
    finally:
        console.setOutDirect(before)
    assert heard.size() == 0


def _leaves_files_to_others(store: IcebergStore, made: Any, home: Path) -> None:
    """As a catalog may set for each table: Nessie does, whose branches share files."""
    on_disk, off = _on_disk(home), "ALTER TABLE {} SET TBLPROPERTIES ('gc.enabled' = '{}')"
    store._tables.spark.sql(off.format(store.table_name(made), "false"))
    with pytest.raises(OperatorError, match="its old states and files stay until others remove them"):
        store.maintain(made)
    assert _on_disk(home) == on_disk
    assert not store._cleaned.is_due(made), "else it would be told each hour"
    store._tables.spark.sql(off.format(store.table_name(made), "true"))
    store._cleaned.at.clear()


def _on_disk(folder: Path) -> set[Path]:
    return set(folder.rglob("*.parquet"))


@pytest.mark.parametrize("kind", ["iceberg", pytest.param("delta", marks=pytest.mark.full)])
def test_a_worn_table_is_mended(
    kind: str, apply_spark: SparkSession, kafka: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(path: Path) -> StoreConfig:
        return StoreConfig(type=kind, path=str(path), options={"upkeep": "off"})

    setting = Setting(apply_spark, kafka, tmp_path, config)
    rules = {"files": 2, "keep_hours": 0, "orphan_hours": 1}
    worn = replace(config(tmp_path / "copy"), options={"upkeep": rules})
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    records = [r for n in range(9) for r in table.event("c", order(n), position(20 + n))]
    publisher.stand(Phase.STREAM, 30, [table], records)
    setting.apply()
    before = setting.contents(table)

    made = setting.target(table)
    store = open_store(worn, name="copy", prefix=setting.prefix, spark=apply_spark.newSession())
    store.beside(made)
    store.swap(made, Due("mended", {}))
    batches = (
        table.event("u", order(3, "paid"), position(41)) + table.event("d", order(4), position(42)),
        [r for n in (1, 3, 5) for r in table.event("u", order(n, "sent"), position(50 + n))],
    )
    for commit, batch in zip((45, 61), batches, strict=True):
        publisher.stand(Phase.STREAM, commit, [table], batch)
        records += batch
        setting.apply()
    folded = setting.folded(table, records)
    assert setting.contents(table) == folded
    (mark,) = setting.marks(table)
    assert mark.complete.position == position(61, 0)
    home = Path(worn.path or "") / "public" / "orders"
    orphan = (home / "data" if kind == "iceberg" else home) / "part-orphan.parquet"
    orphan.write_bytes(b"x")
    old = time.time() - 2 * 3600
    os.utime(orphan, (old, old))
    if kind == "delta":
        store._spark.sql(f"ALTER TABLE {store.table_name(made)} SET TBLPROPERTIES (delta.checkpointInterval = 3)")
    files, on_disk = _live_files(store, made), _on_disk(home)

    store.open(made)
    with _nothing_printed(apply_spark):
        store.maintain(made)
    assert contents(store, made) == folded
    assert _live_files(store, made) < files
    assert not orphan.exists()
    assert store.position(made) == position(55)
    assert setting.marks(table) == [mark]
    more = table.event("u", order(7, "last"), position(70)) + table.event("d", order(8), position(71))
    publisher.stand(Phase.STREAM, 80, [table], more)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records + more)
    (mark,) = setting.marks(table)
    assert mark.complete.position == position(80, 0)
    store._cleaned.at.clear()  # as if a day had passed
    if kind == "iceberg":
        _leaves_files_to_others(store, made, home)
    store.maintain(made)
    assert on_disk - _on_disk(home)
    assert setting.marks(table) == [mark]
    assert store.position(made) == position(71)
    assert setting.contents(table) == setting.folded(table, records + more)
    orphan.write_bytes(b"x")  # of a rebuild that runs, say
    if kind == "delta":
        os.utime(orphan, (old, old))  # Delta goes by the machine's clock, which stands as it is: it is not asked then
    with monkeypatch.context() as set_forward:
        month_ms, wall_ms = 30 * 24 * HOUR_MS, clock._wall_ms
        set_forward.setattr(clock, "_wall_ms", lambda: wall_ms() + month_ms)
        store._cleaned.at.clear()
        store.maintain(made)
    assert orphan.exists(), "the clock was set forward, and the file is no older for that"
    assert len(run_rollback(setting.config())) == 1
    assert setting.contents(table) == before
    assert store.position(made) == position(28)
