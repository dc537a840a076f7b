"""One event of each key: the newest by position. Of a log, every event, once. DataFrame -> DataFrame."""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

_KEPT = ("partition", "offset", "op", "position", "schema_version", "source_ms", "after", "valid")
_LAST = "~"
"""Sorts after every position: something that is no event is never hidden by one that is."""


def latest(events: DataFrame, logs: Collection[str] = ()) -> DataFrame:
    """The newest event of each topic and key; in the topics of `logs`, all of them; of an event that came twice, one.

    `events` is what `spark_apply.source.parse` gives. Returns its columns and ``events BIGINT``: how many of the key's
    events were seen.
    """
    told_apart = [F.when(F.col("topic").isin(*logs), F.col("position"))] if logs else []
    order = F.when(F.col("valid"), F.col("position")).otherwise(_LAST)
    newest = events.groupBy("topic", "key", *told_apart).agg(
        F.max_by(F.struct(*_KEPT), order).alias("newest"), F.count(F.lit(1)).alias("events")
    )
    return newest.select("topic", "key", "newest.*", "events")
