"""Parses records to events, by the contract of `cdc.encode.envelope`."""

from __future__ import annotations

import functools
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.events.typed import texts
from spark_apply.spark.json_reader import read_json

POSITION: Final = r"[0-9a-f]{8}\.[0-9a-f]{16}\.[0-9a-f]{8}"
"""How a position is written (`cdc.model.change.Position`). Another text, as of another producer's record, would stand
behind all positions as a text, and no store could read it."""


def parse(records: DataFrame, columns: tuple[str, ...] | None = None) -> DataFrame:
    """Parse Kafka records (``key, value, topic, partition, offset``) to events; tombstones are left out.

    Returns ``topic STRING, partition INT, offset BIGINT, key STRING, op STRING, position STRING, schema_version INT,
    source_ms BIGINT, after STRING`` (JSON of the new row, null in a delete), ``valid BOOLEAN`` (false: this is no event
    of the contract, other columns may be null). Inside `after`, strings are untouched and numbers keep their value.
    With `columns`, `after` is ``STRUCT<column STRING, …>``, their texts: the JSON is read once instead of twice.
    """
    read, event = _columns(columns)
    return records.where(read[0]).select(*read[1:]).select(*event)


@functools.lru_cache
def _columns(columns: tuple[str, ...] | None) -> tuple[list[Column], list[Column]]:
    """Return columns: a condition and what is read from a record; then those of an event."""
    event = read_json(F.col("value").cast("string"), _envelope(columns))
    after, op = F.col("event.after"), F.col("event.op")
    is_row = after.startswith("{") if columns is None else after.isNotNull()
    position, version = F.col("event.source.position"), F.col("event.source.schema_version")
    whole = (op == "d") | (op.isin("r", "c", "u") & is_row)
    known = F.col("key").isNotNull() & position.rlike(rf"^{POSITION}\z") & version.isNotNull()
    at = [F.col("topic"), F.col("partition"), F.col("offset")]
    return (
        [F.col("value").isNotNull(), *at, F.col("key").cast("string").alias("key"), event.alias("event")],
        [
            *at,
            F.col("key"),
            op.alias("op"),
            position.alias("position"),
            version.alias("schema_version"),
            F.col("event.source.ts_ms").alias("source_ms"),
            after.alias("after"),
            F.coalesce(whole & known, F.lit(False)).alias("valid"),  # noqa: FBT003 - a literal column
        ],
    )


def _envelope(columns: tuple[str, ...] | None) -> T.StructType:
    """Return the type that an event's value is read as; leaving out what is not needed saves time."""
    row = T.StringType() if columns is None else texts(columns)
    position = T.StructField("position", T.StringType())
    source = [position, T.StructField("schema_version", T.IntegerType()), T.StructField("ts_ms", T.LongType())]
    fields = {"op": T.StringType(), "after": row, "source": T.StructType(source)}
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])
