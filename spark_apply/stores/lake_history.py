"""Adds events to a history in a table of a lake: read, fold, MERGE, as if it were one step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from cdc.model.errors import OperatorError
from spark_apply.events.history import changed, merge
from spark_apply.model.target_table import TargetTable

_VIEW: Final = "_cdc_versions"
_TRIES: Final = 20

Head = tuple[int, int | None]
"""A state of a table, and the one that it was made from."""


@dataclass(frozen=True, slots=True)
class HistoryTable:
    """A table of a lake that holds one."""

    table: TargetTable
    """With the names that its columns have there."""
    name: str
    """Quoted for Spark's SQL."""
    read: Callable[[SparkSession], DataFrame]
    """Its newest state, in a session: a batch has one of its own."""
    head: Callable[[], Head | None]
    """The same; None where nothing was ever written."""


def add_versions(events: DataFrame, to: HistoryTable) -> None:
    """Fold `events`, as `spark_apply.events.typed` gives them, into a history.

    Again, if another writer's commit came between reading the versions that are there and adding to them: what those
    said of their neighbours was not known yet. Whatever comes in between, the events themselves are added once.
    """
    spark = events.sparkSession
    for _ in range(_TRIES):
        found = to.head()
        before = None if found is None else found[0]
        changed(to.read(spark), events, to.table).createOrReplaceTempView(_VIEW)
        spark.sql(merge(to.table, to.name, _VIEW))
        spark.catalog.dropTempView(_VIEW)
        after = to.head()
        if after is None or before in after:
            return
    msg = f"table {to.name}: others write to it all the while"
    raise OperatorError(msg, hint="let one job write to a history")
