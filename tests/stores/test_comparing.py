"""Two copies compared by Spark: what differs in any column, of any kind, is counted."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import StoreConfig
from spark_apply.model.store import Store, open_store
from spark_apply.model.target_table import TargetTable
from spark_apply.rebuild.diff import Differences, compare
from tests.spark.kinds import EVERY_KIND, every_kind_rows
from tests.spark.laws import Setting
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

ROWS = every_kind_rows()


@dataclass
class Frame:
    """As much of a store as is compared."""

    rows: DataFrame

    def read(self, _table: TargetTable) -> DataFrame:
        return self.rows


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="iceberg", path=str(path)))


def test_rows_that_differ_are_counted(setting: Setting) -> None:
    table, publisher = setting.table("kinds", EVERY_KIND), setting.publisher()
    publisher.create([table])
    publisher.publish([r for row in ROWS for r in table.event("c", row, position(10 + row["id"]))])
    setting.apply()
    made = setting.target(table)
    spark = setting.spark.newSession()
    store = open_store(setting.store(setting.folder / "copy"), name="copy", prefix=setting.prefix, spark=spark)
    there = cast("Any", store).read(made).cache()

    def found(old: DataFrame, new: DataFrame) -> Differences:
        return compare(cast("Store", Frame(old)), cast("Store", Frame(new)), made)

    def changed(number: int, **columns: Any) -> DataFrame:
        of_row = F.col("id") == number
        return there.withColumns(
            {name: F.when(of_row, F.lit(value)).otherwise(F.col(name)) for name, value in columns.items()}
        )

    assert found(there, there) == compare(store, store, made) == Differences(rows=len(ROWS))
    others = [name for name in EVERY_KIND if name != "id"]
    row = there.where("id = 0").drop("id").crossJoin(spark.range(len(others))).select(F.col("id").cast("int"), *others)
    blank = [F.when(F.col("id") != at, F.col(name)).alias(name) for at, name in enumerate(others)]
    assert found(row, row.select("id", *blank)) == Differences(len(others), different=len(others))  # one in each
    first = changed(4, c_string="x")
    assert found(first, changed(4, c_json="x")) == Differences(len(ROWS), different=1)  # the same value, elsewhere
    swapped = (F.array(*(F.lit(n).cast("bigint") for n in items)) for items in ((None, 1), (1, None)))
    assert found(*(changed(0, c_ints=items) for items in swapped)) == Differences(len(ROWS), different=1)
    without = there.where("id <> 1")
    assert found(there, without) == Differences(len(ROWS) - 1, only_old=1)
    assert found(without, there) == Differences(len(ROWS), only_new=1)
    assert found(there.union(there.where("id = 2")), there) == Differences(len(ROWS), only_old=1)
    assert found(there.drop("c_date"), changed(0, c_date=None).where("id = 0")).different == 0
    assert found(there.where("false"), there.where("false")) == Differences()
