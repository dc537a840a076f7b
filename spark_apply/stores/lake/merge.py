"""Merges a batch into a lake table: what is newer than the row that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import OP, POSITION, row_type
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import quoted
from spark_apply.spark.plans import planned_for_many
from spark_apply.stores.lake.keys import can_differ, gone_since, one_of_each_key, several_texts

BATCH_VIEW = "_cdc_batch"

_FEW: Final = 5_000
"""At most so many keys are listed in a MERGE; with 20,000, planning takes as long as the shuffle that it saves."""


def merge(table: TargetTable, name: str, rows: DataFrame, keys: int, others: Sequence[str] = ()) -> None:
    """Merge `rows`, which have so many keys, into the table whose quoted name is `name`.

    An event that is older than the row changes nothing. `others` are further columns of the table, of an earlier shape.
    """
    spark = rows.sparkSession
    hashes = _hashes(table, rows) if keys <= _FEW else None  # without them, the whole table is shuffled and sorted
    if can_differ(table) or (several_texts(table) and (hashes is None or len(set(hashes)) < len(hashes))):
        rows = one_of_each_key(rows, table)
    rows.createOrReplaceTempView(BATCH_VIEW)
    only = None if hashes is None else ", ".join(f"{found}L" for found in dict.fromkeys(hashes)) or "NULL"
    with planned_for_many(spark):
        spark.sql(merge_statement(table, name, others, only))
    spark.catalog.dropTempView(BATCH_VIEW)


def merge_statement(table: TargetTable, name: str, others: Sequence[str], only: str | None) -> str:
    """Return the SQL of `merge`; `only` lists the hashes of the batch's keys."""
    columns = [quoted(column.name) for column in table.columns]
    same_key = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in table.key)
    if only is not None:
        same_key += f" AND xxhash64({_key_as_in(table)}) IN ({only})"
    newer = f"NOT coalesce(t.{POSITION} >= s.{POSITION}, false)"  # a row that something else wrote may have none
    values = ", ".join(f"{column} = s.{column}" for column in (*columns, POSITION))
    gone = gone_since(table) if can_differ(table) else f"{newer} AND s.{OP} = 'd'"
    steps = (f"{newer} AND s.{OP} <> 'd' THEN UPDATE SET {values}", f"{gone} THEN DELETE")
    return (  # every name in it is quoted; no value is
        f"MERGE INTO {name} t USING {BATCH_VIEW} s ON {same_key} "  # noqa: S608
        f"WHEN MATCHED AND {steps[0]} WHEN MATCHED AND {steps[1]} "
        f"WHEN NOT MATCHED AND s.{OP} <> 'd' THEN INSERT ({', '.join((*columns, POSITION, *map(quoted, others)))}) "
        f"VALUES ({', '.join((*(f's.{column}' for column in (*columns, POSITION)), *('NULL' for _ in others)))})"
    )


def _key_as_in(table: TargetTable) -> str:
    """Return SQL of the table's key with the types that a batch has: another hand may have widened it there.

    A wider type has other hashes. A key that does not fit the narrower one is of no row of the batch.
    """
    kinds = {field.name: field.dataType.simpleString() for field in row_type(table)}
    return ", ".join(f"TRY_CAST(t.{quoted(key)} AS {kinds[key]})" for key in table.key)


def _hashes(table: TargetTable, rows: DataFrame) -> list[int]:
    """Return the key hashes of `rows`; keys that Spark treats as equal have one hash, 0.0 and -0.0 too."""
    found = rows.select(F.xxhash64(*map(quoted, table.key)).alias("hash")).collect()
    return [row["hash"] for row in found]
