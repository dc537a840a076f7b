"""Reads a table's events as a view reads them, in Spark: what views are verified by. DataFrame -> DataFrame.

It computes from all events at once what `spark_apply.views.embedded.fold` keeps up to date; what that is, says
`spark_apply.views.model.uses`. A topic that compaction has taken events from may have too few of them to tell what was
late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import OP, POSITION, SOURCE_MS
from spark_apply.spark.names import quoted
from spark_apply.views.model.uses import (
    ARRIVAL,
    FROM_POSITION,
    SINCE_ALWAYS,
    TO_POSITION,
    VALID_FROM,
    VALID_TO,
    TableUse,
    Way,
)

_SEEN, _SAME, _ALWAYS, _SINCE, _DONE = "_cdc_seen", "_cdc_same", "_cdc_always", "_cdc_since", "_cdc_done"
_NO: Final = False
_EVERY: Final = Window.unboundedPreceding


def as_used(events: DataFrame, use: TableUse, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return the rows of a relation, with its hidden columns, out of all typed events of the table.

    `events` are as `spark_apply.events.typed` gives them, each position once.
    """
    if use.way is Way.HISTORY:
        return _versions(events, columns, key)
    if use.way is Way.STREAM:
        events = _in_time(events, use, key)
    order = Window.partitionBy(*map(quoted, key)).orderBy(F.col(POSITION).desc())
    newest = events.withColumn(_SEEN, F.row_number().over(order)).where((F.col(_SEEN) == 1) & (F.col(OP) != "d"))
    arrival = [F.col(POSITION).alias(ARRIVAL)] if use.arrival else []
    return newest.select(*(F.col(quoted(name)) for name in columns), *arrival)


def _instant(milliseconds: Column) -> Column:
    return F.timestamp_millis(milliseconds).cast("timestamp_ntz")


def _in_time(events: DataFrame, use: TableUse, key: Sequence[str]) -> DataFrame:
    """Return events without late ones: of each key one after the other, as times of commit may go back."""
    begin = _instant(F.col(SOURCE_MS) - F.lit(use.keep_ms))
    time = F.col(quoted(use.time or "")).cast("timestamp_ntz")
    event = F.struct(F.col(POSITION).alias("at"), F.col(OP).alias("op"), begin.alias("begin"), time.alias("time"))
    nothing = F.struct(F.lit(None).cast("timestamp_ntz").alias("was"), F.array().cast("array<string>").alias("late"))

    def next_one(so_far: Column, one: Column) -> Column:
        over = F.coalesce(so_far["was"] <= one["begin"], F.lit(_NO))
        own = (one["op"] != "d") & F.coalesce(one["time"] <= one["begin"], F.lit(_NO))
        late = (one["op"] != "r") & (over | own)
        was = F.when(late, so_far["was"]).otherwise(F.when(one["op"] != "d", one["time"]))
        found = F.when(late, F.concat(so_far["late"], F.array(one["at"]))).otherwise(so_far["late"])
        return F.struct(was.alias("was"), found.alias("late"))

    in_turn = events.groupBy(*map(quoted, key)).agg(F.array_sort(F.collect_list(event)).alias("events"))
    late = in_turn.select(F.explode(F.aggregate("events", nothing, next_one)["late"]).alias(POSITION))
    return events.join(late, [POSITION], "left_anti")


def _versions(events: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    order = Window.partitionBy(*map(quoted, key)).orderBy(POSITION)
    values = F.struct(*(quoted(name) for name in columns if name not in key), F.lit(1))
    before = F.coalesce(F.lag(OP).over(order), F.lit("d"))
    equal = (before != "d") & values.eqNullSafe(F.lag(values).over(order))
    same = F.when(F.col(OP) == "d", before == "d").otherwise(F.coalesce(equal, F.lit(_NO)))
    marked = events.withColumn(_SAME, same).where(~F.col(_SAME))
    begun = marked.withColumn(_ALWAYS, (F.col(OP) == "r") & (F.row_number().over(order) == 1))
    at = F.when(~F.col(_ALWAYS), _instant(F.col(SOURCE_MS)))
    timed = begun.withColumn(_SINCE, F.max(at).over(order.rowsBetween(_EVERY, 0)))
    ended = timed.withColumns({_DONE: F.lead(POSITION).over(order), VALID_TO: F.lead(_SINCE).over(order)})
    return ended.where(F.col(OP) != "d").select(
        *(F.col(quoted(name)) for name in columns),
        F.when(F.col(_ALWAYS), SINCE_ALWAYS).otherwise(F.col(POSITION)).alias(FROM_POSITION),
        F.col(_DONE).alias(TO_POSITION),
        F.when(~F.col(_ALWAYS), F.col(_SINCE)).alias(VALID_FROM),
        F.col(VALID_TO),
    )
