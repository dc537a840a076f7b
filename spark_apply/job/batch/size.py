"""Plans a batch for its size."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame

from spark_apply.spark.plans import plan_for

TASKS: Final = "spark.sql.shuffle.partitions"
_ADAPTIVE = "spark.sql.adaptive.enabled"
_EVENTS_A_TASK = 50_000
EVENTS_ALONE = 10_000
"""One task reads and folds so few events without a shuffle, which would take longer."""


def sized(records: DataFrame, events: int, *, most: int) -> DataFrame:
    """Plan a batch for its size: in a small one, more tasks and code that is compiled cost more than they gain."""
    plan_for(records.sparkSession, few=events <= EVENTS_ALONE)
    records.sparkSession.conf.set(TASKS, max(1, min(most, events // _EVENTS_A_TASK)))
    records.sparkSession.conf.set(_ADAPTIVE, events >= _EVENTS_A_TASK)
    return records.coalesce(1) if events <= EVENTS_ALONE else records
