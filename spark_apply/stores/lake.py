"""Holds what the tables of a lake (Delta, Iceberg) share: rows, the MERGE of a batch, table properties."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import OperatorError, RetryableError
from spark_apply.events.history import CURRENT, history_type
from spark_apply.events.typed import OP, POSITION, row_type
from spark_apply.model.document import DOCUMENT, document, with_document
from spark_apply.model.store import Due, StoredRow
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.spark.json_reader import read_json
from spark_apply.spark.names import quoted
from spark_apply.spark.paths import located
from spark_apply.stores.lake_keys import can_differ, gone_since, one_of_each_key, several_texts

IDENTITY, APPLIED, MARK = "cdc.identity", "cdc.position", "cdc.mark"
PREVIOUS_IDENTITY = "cdc.previous-identity"
DUE, CAUGHT_UP, REPLACED_AT = "cdc.due", "cdc.caught-up", "cdc.replaced-at"
"""The keys of the table properties that we keep."""

BATCH_VIEW = "_cdc_batch"

_FEW: Final = 5_000
"""At most so many keys are listed in a MERGE; with 20,000, planning takes as long as the shuffle that it saves."""

_ID = "_cdc_id"
_CATALOG = re.compile(r"[A-Za-z][A-Za-z0-9_]*")


def is_catalog_name(name: str) -> bool:
    """Whether Spark accepts it as a catalog's name."""
    return _CATALOG.fullmatch(name) is not None


def location(config: StoreConfig) -> str | None:
    """Return the folder of `config`: an absolute path, or a URI of a Hadoop file system."""
    return None if config.path is None else located(config.path)


def no_rows(spark: SparkSession, of: T.StructType) -> DataFrame:
    """Return an empty frame; unlike one made of a list, it needs no Python on the executors."""
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in of))


def lake_row_type(table: TargetTable) -> T.StructType:
    """Return the table's columns with ``_cdc_position``, the position that wrote the row; or those of a history."""
    if table.history:
        return history_type(table)
    return T.StructType([*row_type(table), T.StructField(POSITION, T.StringType())])


def due_in(properties: Any) -> Due | None:  # noqa: ANN401 - a dict, or Java's Map
    """Return the catch-up that a table's properties say is due."""
    found = properties.get(DUE)
    due = None if found is None else Due.from_json(found)
    return None if due is None or properties.get(CAUGHT_UP) == due.id else due


def mark_in(properties: Any) -> str | None:  # noqa: ANN401 - a dict, or Java's Map
    """Return the mark as it was written; None while a catch-up is due."""
    found = properties.get(MARK)
    return None if found is None or due_in(properties) is not None else str(found)


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
    spark.sql(merge_statement(table, name, others, only))
    spark.catalog.dropTempView(BATCH_VIEW)


def merge_statement(table: TargetTable, name: str, others: Sequence[str], only: str | None) -> str:
    """Return the SQL of `merge`; `only` lists the hashes of the batch's keys."""
    columns = [quoted(column.name) for column in table.columns]
    same_key = " AND ".join(f"t.{quoted(key)} = s.{quoted(key)}" for key in table.key)
    if only is not None:
        same_key += f" AND xxhash64({', '.join(f't.{quoted(key)}' for key in table.key)}) IN ({only})"
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


def _hashes(table: TargetTable, rows: DataFrame) -> list[int]:
    """Return the key hashes of `rows`; keys that Spark treats as equal have one hash, 0.0 and -0.0 too."""
    found = rows.select(F.xxhash64(*map(quoted, table.key)).alias("hash")).collect()
    return [row["hash"] for row in found]


def stored_rows(rows: DataFrame, table: TargetTable, ids: Collection[str] | None) -> Iterator[StoredRow]:
    """Return `rows` of a copy as documents, all or those with these ids (a key's JSON); of a history the current."""
    if table.history:
        rows = rows.where(CURRENT)
    for column in row_type(table):
        if column.name not in rows.columns:  # of a version that the job has not read yet
            rows = rows.withColumn(column.name, F.lit(None).cast(column.dataType))
    if ids is not None:
        key = T.StructType([field for field in row_type(table) if field.name in table.key])
        asked = rows.sparkSession.createDataFrame(pa.table({"id": pa.array(list(ids), pa.string())}))
        asked = asked.select(read_json("id", key).alias("key")).select("key.*")
        rows = rows.join(F.broadcast(asked), [*table.key], "left_semi")
    found = with_document(rows, table).withColumn(_ID, document(rows, table, only=table.key))
    return (StoredRow(row[_ID], row[DOCUMENT]) for row in found.select(_ID, DOCUMENT).toLocalIterator())


def put_back(what: str) -> RetryableError:
    """Return the error of a table that another hand has put back while a job follows it, as a rollback does."""
    msg = f"{what} was put back to an earlier state while the job runs"
    return RetryableError(msg, hint="nothing has to be done: what that state does not have is read again")


def not_widened(copy: str, table: TargetTable, wanted: T.StructField, there: T.DataType) -> OperatorError:
    """Return the error of a column that cannot be altered in place; `copy` names the lake table."""
    found, kind = there.simpleString(), wanted.dataType.simpleString()
    msg = f"{copy}, column {wanted.name}: it is {found} and would have to be {kind}"
    return OperatorError(msg, hint=other_target(table))


def widens(there: T.DataType, wanted: T.DataType) -> bool:
    """Whether a column can be altered in place from type `there` to `wanted`."""
    if isinstance(there, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return there.scale == wanted.scale and there.precision <= wanted.precision
    pairs = ((T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
    return any(isinstance(there, narrow) and isinstance(wanted, wide) for narrow, wide in pairs)
