"""What of a table's events counts, as a view reads the table, in Spark. DataFrame -> DataFrame.

The rules are those of `spark_apply.views.model.uses`, as `spark_apply.views.embedded.fold` has them for few events. The
executors fold many events by what is here, beside what a state has of their keys; and all events of a table at once
tell by it what a view is verified with.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.spark.names import quoted
from spark_apply.views.model.uses import (
    FROM_POSITION,
    SINCE_ALWAYS,
    TO_POSITION,
    VALID_FROM,
    VALID_TO,
    TableUse,
)
from spark_apply.views.planning.streams import time_of

WAS: Final = "_cdc_was"
"""Of a stream's event: the time of the row that there was of its key before all events that are looked at."""
AT, NEW, BEGUN = "_cdc_at", "_cdc_new", "_cdc_begun"
"""Of a history's event: when it counts as committed, and whether it is of a key that has no version yet. Of the newest
version that there was of a key, which stands among the events with `OPEN`: `FROM_POSITION`."""
OPEN: Final = "o"

_SAME, _ALWAYS, _SINCE, _DONE, _NUMBER = "_cdc_same", "_cdc_always", "_cdc_since", "_cdc_done", "_cdc_number"
_NO: Final = False
_EVERY: Final = Window.unboundedPreceding


def committed() -> Column:
    """Return when an event was committed."""
    return F.timestamp_millis(F.coalesce(F.col(SOURCE_MS), F.lit(0))).cast("timestamp_ntz")


def newest(events: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the newest event of each key."""
    order = Window.partitionBy(*map(quoted, key)).orderBy(F.col(POSITION).desc())
    return events.withColumn(_NUMBER, F.row_number().over(order)).where(F.col(_NUMBER) == 1).drop(_NUMBER)


def late_events(events: DataFrame, use: TableUse, key: Sequence[str]) -> DataFrame:
    """Return late events of a stream, by position and key: of each key in turn, as times of commit may go back.

    Each event must be there once; events have `WAS`.
    """
    begin = F.timestamp_millis(F.col(SOURCE_MS) - F.lit(use.keep_ms)).cast("timestamp_ntz")
    event = F.struct(
        F.struct(POSITION, KEY).alias("told"), F.col(OP).alias("op"), begin.alias("begin"), time_of(use).alias("time")
    )

    def next_one(so_far: Column, one: Column) -> Column:
        over = F.coalesce(so_far["was"] <= one["begin"], F.lit(_NO))
        own = (one["op"] != "d") & F.coalesce(one["time"] <= one["begin"], F.lit(_NO))
        late = (one["op"] != "r") & (over | own)
        was = F.when(late, so_far["was"]).otherwise(F.when(one["op"] != "d", one["time"]))
        found = F.when(late, F.concat(so_far["late"], F.array(one["told"]))).otherwise(so_far["late"])
        return F.struct(was.alias("was"), found.alias("late"))

    none = F.array().cast(f"array<struct<{POSITION}: string, {KEY}: string>>")
    first = F.struct(F.col(WAS).alias("was"), none.alias("late"))
    listed = F.array_sort(F.collect_list(event)).alias("events")
    in_turn = events.groupBy(*map(quoted, key)).agg(listed, F.max(WAS).alias(WAS))
    return in_turn.select(F.inline(F.aggregate("events", first, next_one)["late"]))


def versions(sequence: DataFrame, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return the versions that events begin and end, with `POSITION`: those that they change, where a key has some.

    Each event must be there once; events have `AT`, `NEW` and `BEGUN`.
    """
    order = Window.partitionBy(*map(quoted, key)).orderBy(POSITION)
    values = F.struct(*(quoted(name) for name in columns if name not in key), F.lit(1))
    before = F.coalesce(F.lag(OP).over(order), F.lit("d"))
    equal = (before != "d") & values.eqNullSafe(F.lag(values).over(order))
    same = F.when(F.col(OP) == "d", before == "d").otherwise(F.coalesce(equal, F.lit(_NO)))
    marked = sequence.withColumn(_SAME, same).where(~F.col(_SAME))
    begun = marked.withColumn(_ALWAYS, F.col(NEW) & (F.col(OP) == "r") & (F.row_number().over(order) == 1))
    at = F.when(~F.col(_ALWAYS), F.col(AT))
    timed = begun.withColumn(_SINCE, F.max(at).over(order.rowsBetween(_EVERY, 0)))
    ended = timed.withColumns({_DONE: F.lead(POSITION).over(order), VALID_TO: F.lead(_SINCE).over(order)})
    was_open = F.col(OP) == OPEN
    since = F.when(was_open, F.col(BEGUN)).otherwise(F.col(POSITION))
    return ended.where((F.col(OP) != "d") & (~was_open | F.col(_DONE).isNotNull())).select(
        *(F.col(quoted(name)) for name in columns),
        F.when(F.col(_ALWAYS), SINCE_ALWAYS).otherwise(since).alias(FROM_POSITION),
        F.col(_DONE).alias(TO_POSITION),
        F.when(was_open, F.col(AT)).when(~F.col(_ALWAYS), F.col(_SINCE)).alias(VALID_FROM),
        F.col(VALID_TO),
        F.col(POSITION),
    )
