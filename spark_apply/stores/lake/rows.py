"""Reads the rows of a lake table as documents."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.events.history import CURRENT
from spark_apply.events.typed import row_type
from spark_apply.model.document import DOCUMENT, document, with_document
from spark_apply.model.store import StoredRow
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.json_reader import read_json

_ID = "_cdc_id"


def no_rows(spark: SparkSession, of: T.StructType) -> DataFrame:
    """Return an empty frame; unlike one made of a list, it needs no Python on the executors."""
    return spark.range(0).select(*(F.lit(None).cast(field.dataType).alias(field.name) for field in of))


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
