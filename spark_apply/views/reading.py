"""Reads a table's events as a view reads them, in Spark: what views are verified by. DataFrame -> DataFrame.

It computes from all events at once what `spark_apply.views.fold` keeps up to date; `spark_apply.views.uses` says what
that is. A topic that compaction has taken events from may have too few of them to tell what was late.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.spark.names import quoted
from spark_apply.views.uses import (
    ARRIVAL,
    FROM_POSITION,
    SINCE_ALWAYS,
    TO_POSITION,
    VALID_FROM,
    VALID_TO,
    TableUse,
    Way,
)

_BEGIN, _TIME, _OWN, _READS, _OVER = "_cdc_begin", "_cdc_time", "_cdc_own", "_cdc_reads", "_cdc_over"
_SEEN, _GOES_ON, _ALWAYS, _SINCE, _DONE = "_cdc_seen", "_cdc_goes_on", "_cdc_always", "_cdc_since", "_cdc_done"
_NO: Final = False
_EVERY: Final = Window.unboundedPreceding


def as_used(events: DataFrame, use: TableUse, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return the rows of a relation, with its hidden columns, out of all typed events of the table.

    `events` are as `spark_apply.events.typed` gives them, each position once.
    """
    if use.way is Way.HISTORY:
        return _versions(events, columns, key)
    if use.way is Way.STREAM:
        events = _in_time(events, use)
    order = Window.partitionBy(KEY).orderBy(F.col(POSITION).desc())
    newest = events.withColumn(_SEEN, F.row_number().over(order)).where((F.col(_SEEN) == 1) & (F.col(OP) != "d"))
    arrival = [F.col(POSITION).alias(ARRIVAL)] if use.arrival else []
    return newest.select(*(F.col(quoted(name)) for name in columns), *arrival)


def _instant(milliseconds: Column) -> Column:
    return F.timestamp_millis(milliseconds).cast("timestamp_ntz")


def _in_time(events: DataFrame, use: TableUse) -> DataFrame:
    order = Window.partitionBy(KEY).orderBy(POSITION)
    begin = _instant(F.col(SOURCE_MS) - F.lit(use.keep_ms))
    time = F.col(quoted(use.time or "")).cast("timestamp_ntz")
    own = ~F.col(OP).isin("r", "d") & F.coalesce(F.col(_TIME) <= F.col(_BEGIN), F.lit(_NO))
    found = events.withColumns({_BEGIN: begin, _TIME: time}).withColumn(_OWN, own).where(~F.col(_OWN))
    over = (F.col(OP) != "r") & F.coalesce(F.lag(_TIME).over(order) <= F.col(_BEGIN), F.lit(_NO))
    reads = F.sum((F.col(OP) == "r").cast("int")).over(order.rowsBetween(_EVERY, 0))
    found = found.withColumns({_OVER: over, _READS: reads})
    so_far = Window.partitionBy(KEY, _READS).orderBy(POSITION).rowsBetween(_EVERY, 0)
    return found.withColumn(_OVER, F.bool_or(_OVER).over(so_far)).where(~F.col(_OVER))


def _versions(events: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    order = Window.partitionBy(KEY).orderBy(POSITION)
    values = F.struct(*(quoted(name) for name in columns if name not in key), F.lit(1))
    same = (F.col(OP) != "d") & (F.lag(OP).over(order) != "d") & values.eqNullSafe(F.lag(values).over(order))
    always = (F.col(OP) == "r") & (F.row_number().over(order) == 1)
    marked = events.withColumns({_GOES_ON: F.coalesce(same, F.lit(_NO)), _ALWAYS: always}).where(~F.col(_GOES_ON))
    at = F.when(~F.col(_ALWAYS), _instant(F.col(SOURCE_MS)))
    timed = marked.withColumn(_SINCE, F.max(at).over(order.rowsBetween(_EVERY, 0)))
    ended = timed.withColumns({_DONE: F.lead(POSITION).over(order), VALID_TO: F.lead(_SINCE).over(order)})
    return ended.where(F.col(OP) != "d").select(
        *(F.col(quoted(name)) for name in columns),
        F.when(F.col(_ALWAYS), SINCE_ALWAYS).otherwise(F.col(POSITION)).alias(FROM_POSITION),
        F.col(_DONE).alias(TO_POSITION),
        F.when(~F.col(_ALWAYS), F.col(_SINCE)).alias(VALID_FROM),
        F.col(VALID_TO),
    )
