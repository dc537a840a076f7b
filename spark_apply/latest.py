"""One event of each key: the newest by position. Of a log, every event, once. DataFrame -> DataFrame."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_KEPT = ("partition", "offset", "op", "position", "schema_version", "source_ms", "after", "valid")
_LAST = "~"
"""Sorts after every position: something that is no event is never hidden by one that is."""


def latest(events: DataFrame, limits: Mapping[str, str] | None = None) -> DataFrame:
    """The newest event of each topic and key; of an event that came twice, one.

    `limits` gives positions by topic: there, it is the newest before the limit, and every one from it on.
    `events` is what `spark_apply.source.parse` gives. Returns its columns and ``events BIGINT``: how many of the key's
    events were seen.
    """
    order = F.when(F.col("valid"), F.col("position")).otherwise(_LAST)
    by = [F.col("topic"), F.col("key")]
    if limits:
        known = F.create_map(*(F.lit(part) for pair in limits.items() for part in pair))
        limit = F.try_element_at(known, F.col("topic"))
        by.append(F.when(order >= limit, order).alias("held"))
    newest = events.groupBy(*by).agg(
        F.max_by(F.struct(*_KEPT), order).alias("newest"), F.count(F.lit(1)).alias("events")
    )
    return newest.select("topic", "key", "newest.*", "events")
