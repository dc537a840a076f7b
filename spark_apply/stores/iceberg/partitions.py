"""What an Iceberg table is partitioned by. Changing it moves no row: what is written from then on lies the new way."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

from spark_apply.model.target_table import Partition, TargetTable

_NOTED = "cdc.partitioned-by"


def partition(loaded: Any, expressions: Any, table: TargetTable) -> None:  # noqa: ANN401 - Java's Table, Expressions
    """Let the table be partitioned as `table` says, in one commit; nothing where it is."""
    had, wanted = noted_of(loaded), noted(table)
    if had == wanted:
        return
    transaction = loaded.newTransaction()
    spec = transaction.updateSpec()
    for one in json.loads(had):
        spec.removeField(_term(expressions, Partition(*one)))
    for one in table.partition_by:
        spec.addField(_term(expressions, one))
    spec.commit()
    transaction.updateProperties().set(_NOTED, wanted).commit()
    transaction.commitTransaction()


def noted(table: TargetTable) -> str:
    """What a table that is partitioned so says of itself."""
    return json.dumps([astuple(one) for one in table.partition_by])


def noted_of(loaded: Any) -> str:  # noqa: ANN401 - Java's Table
    """What the table says of itself."""
    return str(loaded.properties().get(_NOTED) or "[]")


def _term(expressions: Any, by: Partition) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.expressions.Term
    if by.function is None:
        return expressions.ref(by.column)
    function = getattr(expressions, by.function.removesuffix("s"))
    return function(by.column) if by.width is None else function(by.column, by.width)
