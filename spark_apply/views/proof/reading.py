"""Reads a table's events as a view reads them, in Spark: what views are verified by. DataFrame -> DataFrame.

It computes from all events at once what an engine keeps up to date step by step; what that is, says
`spark_apply.views.model.uses`. A topic that compaction has taken events from may have too few of them to tell what was
late.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, OP, POSITION
from spark_apply.spark.names import quoted
from spark_apply.views.cluster.counted_events import AT, BEGUN, NEW, WAS, committed, late_events, newest, versions
from spark_apply.views.model.uses import ARRIVAL, TableUse, Way


def as_used(events: DataFrame, use: TableUse, columns: Sequence[str], key: Sequence[str]) -> DataFrame:
    """Return the rows of a relation, with its hidden columns, out of all typed events of the table.

    `events` are as `spark_apply.events.typed` gives them, each once.
    """
    if use.way is Way.HISTORY:
        first = {AT: committed(), NEW: F.lit(True), BEGUN: F.lit(None).cast("string")}  # noqa: FBT003 - a column
        return versions(events.withColumns(first), columns, key).drop(POSITION)
    if use.way is Way.STREAM:
        first_ever = events.withColumn(WAS, F.lit(None).cast("timestamp_ntz"))
        events = events.join(late_events(first_ever, use, key), [POSITION, KEY], "left_anti")
    rows = newest(events, key).where(F.col(OP) != "d")
    arrival = [F.col(POSITION).alias(ARRIVAL)] if use.arrival else []
    return rows.select(*(F.col(quoted(name)) for name in columns), *arrival)
