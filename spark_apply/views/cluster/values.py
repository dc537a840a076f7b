"""Carries values between Spark, Arrow and events: types, and the JSON of docs/values.md by kind, as columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same
from pyspark.sql.pandas.types import to_arrow_schema

from cdc.model.change import Kind
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted
from spark_apply.stores.lake.rows import no_rows
from spark_apply.views.model.values import Columns

_LAST_YEAR: Final = 9999


def schema_of(columns: Columns) -> T.StructType:
    """Return the schema that Spark has for these columns."""
    return T.StructType([T.StructField(name, spark_type(kind)) for name, kind in columns])


def some(schema: T.StructType, names: Sequence[str]) -> T.StructType:
    """Return the schema of some columns, in the order of their names."""
    return T.StructType([schema[name] for name in names])


def frame(spark: SparkSession, rows: pa.Table, schema: T.StructType) -> DataFrame:
    """Return an Arrow table as a frame that the driver ships with each plan: its size is known to the planner."""
    if not rows.num_rows:
        return no_rows(spark, schema)
    made: Any = spark.createDataFrame(arrow(rows, schema), schema)
    return cast("DataFrame", made)


def arrow(rows: pa.Table, schema: T.StructType) -> pa.Table:
    """Return an Arrow table with the types that Spark has for a schema; instants without a zone are in UTC."""
    wanted = to_arrow_schema(schema)
    wanted = pa.schema([pa.field(of.name, _in_utc(of.type)) for of in wanted])
    rows = rows.select(wanted.names)
    for number, of in enumerate(wanted):
        if pa.types.is_string(of.type) and pa.types.is_nested(rows.field(number).type):
            texts = [None if value is None else str(value) for value in rows.column(number).to_pylist()]
            rows = rows.set_column(number, of.name, pa.array(texts, pa.string()))
    return rows.cast(wanted)


def nothing(schema: T.StructType) -> pa.Table:
    """Return no rows of a schema."""
    wanted = to_arrow_schema(schema)
    return pa.schema([pa.field(of.name, _in_utc(of.type)) for of in wanted]).empty_table()


def _in_utc(of: pa.DataType) -> pa.DataType:
    return pa.timestamp(of.unit, "UTC") if pa.types.is_timestamp(of) and of.tz else of


def collected(rows: DataFrame) -> pa.Table:
    """Run a query, and return its rows."""
    return arrow(rows.toArrow(), T.StructType(rows.schema.fields))


def json_object(columns: Columns) -> Column:
    """Return the JSON object of these columns, without white space."""
    members = [_member(kind, F.col(quoted(name))).alias(name) for name, kind in columns]
    return F.to_json(F.struct(*members), {"ignoreNullFields": "false"})


def _member(kind: Kind, column: Column) -> Column:
    """Return a column whose JSON is that of a value of this kind."""
    match kind.name:
        case "decimal" | "uint64":
            return column.cast("string")
        case "bytes":
            return F.base64(column)
        case "date":
            return F.unix_date(column)
        case "timestamp_millis" | "timestamp_micros":
            return F.unix_micros(column.cast("timestamp"))
        case "timestamptz":
            return _instant(column)
        case "float32" | "float64":  # minus zero is equal to zero, so it must not be another text
            return F.when(column == 0, F.lit(0).cast(spark_type(kind))).otherwise(column)
        case _:
            return column


def _instant(column: Column) -> Column:
    year = F.year(column)
    digits = F.abs(year).cast("string")
    sign = F.when(year < 0, "-").when(year > _LAST_YEAR, "+").otherwise("")
    shown = F.concat(sign, F.when(F.abs(year) > _LAST_YEAR, digits).otherwise(F.lpad(digits, 4, "0")))
    whole = F.unix_micros(column) % 1_000_000 == 0
    fraction = F.when(whole, "").otherwise(F.date_format(column, ".SSSSSS"))
    return F.concat(shown, F.date_format(column, "-MM-dd'T'HH:mm:ss"), fraction, F.lit("Z"))
