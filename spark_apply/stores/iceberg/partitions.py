"""Sets the partition spec of an Iceberg table. A change moves no row; it applies to rows written from then on."""

from __future__ import annotations

import json
from dataclasses import astuple
from typing import Any

from spark_apply.model.target_table import Partition, TargetTable

_NOTED = "cdc.partitioned-by"


def partition(loaded: Any, expressions: Any, table: TargetTable) -> None:  # noqa: ANN401 - Java's Table, Expressions
    """Partition the table as `table` says, in one commit; do nothing if it is."""
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
    """Return the property value for this partitioning."""
    return json.dumps([astuple(one) for one in table.partition_by])


def noted_of(loaded: Any) -> str:  # noqa: ANN401 - Java's Table
    """Return the partitioning that the table's property names."""
    return str(loaded.properties().get(_NOTED) or "[]")


def _term(expressions: Any, by: Partition) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.expressions.Term
    if by.function is None:
        return expressions.ref(by.column)
    function = getattr(expressions, by.function.removesuffix("s"))
    return function(by.column) if by.width is None else function(by.column, by.width)
