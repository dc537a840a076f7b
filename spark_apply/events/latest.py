"""One event of each key: the newest by position. Of a log, every event, once. DataFrame -> DataFrame."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_OF_EVENT = ("partition", "offset", "op", "position", "schema_version", "source_ms", "after")


def latest(events: DataFrame, limits: Mapping[str, str] | None = None) -> DataFrame:
    """The newest event of each topic and key; of an event that came twice, one. What is no event stands by itself.

    `limits` gives positions by topic: there, it is the newest before the limit, and every one from it on. `events` is
    what `spark_apply.events.kafka_source.parse` gives. Returns its columns and ``events BIGINT``: how many of the key's
    events were seen.
    """
    ahead, apart, order, newest, counted = _columns()
    if limits:
        known = F.create_map(*(F.lit(part) for pair in limits.items() for part in pair))
        limit = F.try_element_at(known, F.col("topic"))
        apart = apart.when(order >= limit, order)
    found = events.groupBy(ahead, "key", "topic", apart.alias("apart")).agg(newest, counted)
    return found.select("topic", "key", "newest.*", "events")


def latest_alone(events: DataFrame) -> DataFrame:
    """As `latest`, of events of one topic; but what is no event takes its key's events with it, none of them valid.

    To keep the two apart, as `latest` does, is a good part of what it costs.
    """
    ahead, newest, counted, valid = _columns_alone()
    return events.groupBy(ahead, "key").agg(newest, counted, valid).select("key", "newest.*", "events", "valid")


@functools.cache
def _columns() -> tuple[Column, Column, Column, Column, Column]:
    """What events are sorted by first, what tells apart what is no event, their order, the newest, how many there are.

    Spark compares the first eight bytes of the first column before all else: those of topics and keys are the same.
    """
    order = F.when(F.col("valid"), F.col("position")).otherwise("")
    return (
        F.xxhash64("key").alias("ahead"),
        F.when(~F.col("valid"), F.concat_ws("/", "partition", "offset")),
        order,
        F.max_by(F.struct(*_OF_EVENT, "valid"), order).alias("newest"),
        F.count(F.lit(1)).alias("events"),
    )


@functools.cache
def _columns_alone() -> tuple[Column, Column, Column, Column]:
    """What events are sorted by first, the newest, how many there are, whether they are."""
    return (
        F.xxhash64("key").alias("ahead"),
        F.max_by(F.struct(*_OF_EVENT), "position").alias("newest"),
        F.count(F.lit(1)).alias("events"),
        (F.count_if(~F.col("valid")) == 0).alias("valid"),
    )
