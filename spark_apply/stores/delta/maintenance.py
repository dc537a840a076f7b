"""Maintains a Delta table: OPTIMIZE when needed, VACUUM of all but the live, the new and the previous copy.

At a checkpoint, Delta itself removes log entries older than ``delta.logRetentionDuration``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.model.upkeep import SMALL_BYTES, Upkeep
from spark_apply.stores.delta.log import DeltaLog

_FORMAT_CHECK = "spark.databricks.delta.formatCheck.enabled"
_VIEW = "_cdc_inventory"


def retention(upkeep: Upkeep) -> dict[str, str]:
    """Return the properties that say how long earlier states are kept."""
    keep = f"interval {upkeep.keep_hours} hours"
    return {"delta.logRetentionDuration": keep, "delta.deletedFileRetentionDuration": keep}


def compact_if_worn(log: DeltaLog, files: int) -> bool:
    """Compact small files and those with deleted rows, if there are so many; return whether there were."""
    if log.snapshot().numOfFiles() < files:
        return False
    found = log.file_table().where((F.col("size") < SMALL_BYTES) | F.col("deletionVector").isNotNull())
    if found.count() < files:
        return False
    log.spark.sql(f"OPTIMIZE {log.name}").collect()
    return True


def clean(log: DeltaLog, kept: Iterable[str], making: Iterable[str]) -> None:
    """Remove files that no kept state has, except `kept` (absolute) and those in the folders `making`."""
    spark = log.spark
    spark.conf.set(_FORMAT_CHECK, "false")  # Delta insists on reading its folder as a table
    try:
        found = spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(log.path)
        needed = F.col("path").isin(*kept)
        for folder in making:
            needed |= F.col("path").contains(f"/{folder}/")
        found = found.where(~needed).select(
            _nullable(F.col("path")).alias("path"),
            _nullable(F.col("length")).alias("length"),
            _nullable(F.lit(False)).alias("isDir"),  # noqa: FBT003 - a literal column
            _nullable(F.unix_millis("modificationTime")).alias("modificationTime"),
        )
        found.createOrReplaceTempView(_VIEW)
        with _silent(spark):
            spark.sql(f"VACUUM {log.name} USING INVENTORY (SELECT * FROM {_VIEW})").collect()  # noqa: S608
    finally:
        spark.conf.unset(_FORMAT_CHECK)
        spark.catalog.dropTempView(_VIEW)


@contextmanager
def _silent(spark: SparkSession) -> Iterator[None]:
    """Drop what VACUUM prints to stdout, which is for data; in this thread alone."""
    context: Any = spark.sparkContext
    jvm = context._jvm  # noqa: SLF001
    console = getattr(getattr(jvm.scala, "Console$"), "MODULE$")
    before = console.out()
    console.setOutDirect(jvm.java.io.PrintStream(jvm.java.io.OutputStream.nullOutputStream()))
    try:
        yield
    finally:
        console.setOutDirect(before)


def _nullable(column: Column) -> Column:
    """Make a column nullable, because Delta compares types exactly."""
    return F.when(F.length("path") > 0, column)
