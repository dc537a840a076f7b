"""Adds events to a history in an Iceberg table: read, fold, MERGE, as if it were one step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from cdc.errors import OperatorError
from spark_apply.history import changed, merge
from spark_apply.store import Batch

_VIEW: Final = "_cdc_versions"
_TRIES: Final = 20


def add_versions(batch: Batch, table: str, copy: str, head: Callable[[], Any]) -> None:
    """Fold a batch into `copy`, a branch of the Iceberg table `table`: `head` gives its newest snapshot, or None.

    Again, if another writer's commit came between reading the versions that are there and adding to them: what those
    said of their neighbours was not known yet. Whatever comes in between, the events themselves are added once.
    """
    spark = batch.rows.sparkSession
    for _ in range(_TRIES):
        found = head()
        before = None if found is None else found.snapshotId()
        spark.catalog.refreshTable(table)
        changed(spark.table(copy), batch.rows, batch.table).createOrReplaceTempView(_VIEW)
        spark.sql(merge(batch.table, copy, _VIEW))
        spark.catalog.dropTempView(_VIEW)
        after = head()
        if after is None or before in (after.snapshotId(), after.parentId()):
            return
    msg = f"Iceberg table {table}: others write to it all the while"
    raise OperatorError(msg, hint="let one job write to a history")
