"""One event of each key: the newest by position. Of a log, every event, once. DataFrame -> DataFrame."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_KEPT = ("partition", "offset", "op", "position", "schema_version", "source_ms", "after", "valid")


def latest(events: DataFrame, limits: Mapping[str, str] | None = None) -> DataFrame:
    """The newest event of each topic and key; of an event that came twice, one. What is no event stands by itself.

    `limits` gives positions by topic: there, it is the newest before the limit, and every one from it on.
    `events` is what `spark_apply.source.parse` gives. Returns its columns and ``events BIGINT``: how many of the key's
    events were seen.
    """
    apart, order, newest, counted = _columns()
    if limits:
        known = F.create_map(*(F.lit(part) for pair in limits.items() for part in pair))
        limit = F.try_element_at(known, F.col("topic"))
        apart = apart.when(order >= limit, order)
    found = events.groupBy("topic", "key", apart.alias("apart")).agg(newest, counted)
    return found.select("topic", "key", "newest.*", "events")


@functools.cache
def _columns() -> tuple[Column, Column, Column, Column]:
    """What tells apart what is no event, the order of events, the newest, how many there are."""
    order = F.when(F.col("valid"), F.col("position")).otherwise("")
    return (
        F.when(~F.col("valid"), F.concat_ws("/", "partition", "offset")),
        order,
        F.max_by(F.struct(*_KEPT), order).alias("newest"),
        F.count(F.lit(1)).alias("events"),
    )
