"""Adds events to a history in a lake table: read, fold and MERGE, with the effect of one atomic step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import OperatorError
from spark_apply.events.history import changed, merge
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.plans import planned_for_many

_VIEW: Final = "_cdc_versions"
_TRIES: Final = 20

Head = tuple[int, int | None]
"""The version of a table, and the version before it."""


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A lake table that holds a history."""

    table: TargetTable
    """With the column names of the lake table."""
    name: str
    """Quoted for Spark's SQL."""
    read: Callable[[SparkSession], DataFrame]
    """Reads its newest state in the session of the batch."""
    head: Callable[[], Head | None]
    """Reads its newest version; None if nothing was ever written."""


def add_versions(events: DataFrame, to: HistoryTable) -> None:
    """Fold `events`, as `spark_apply.events.typed` gives them, into a history.

    Repeated if another writer has committed between the read and the MERGE, because the intervals depend on rows that
    were not read. The events themselves are added once in any case.
    """
    spark = events.sparkSession
    for _ in range(_TRIES):
        found = to.head()
        before = None if found is None else found[0]
        changed(to.read(spark), events, to.table).createOrReplaceTempView(_VIEW)
        with planned_for_many(spark):
            spark.sql(merge(to.table, to.name, _VIEW))
        spark.catalog.dropTempView(_VIEW)
        after = to.head()
        if after is None or before in after:
            return
    msg = f"table {to.name}: others write to it all the while"
    raise OperatorError(msg, hint="let one job write to a history")
