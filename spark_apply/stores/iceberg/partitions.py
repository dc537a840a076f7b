"""Sets the partition spec of an Iceberg table. A change moves no row; it applies to rows written from then on."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import astuple
from typing import Any, Final

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from spark_apply.model.target_table import Partition, TargetTable
from spark_apply.model.types import spark_type

_NOTED: Final = "cdc.partitioned-by"
_IN_PATHS: Final = "write.object-storage.partitioned-paths"
_SUFFIXES: Final = {"bucket": "bucket_{}", "truncate": "trunc_{}"}


def partition(loaded: Any, expressions: Any, table: TargetTable) -> None:  # noqa: ANN401 - Java's Table, Expressions
    """Partition the table as `table` says, in one commit; do nothing if it is."""
    had, wanted = noted_of(loaded), noted(table)
    if had == wanted:
        return
    transaction = loaded.newTransaction()
    spec, columns = transaction.updateSpec(), {str(field.name()) for field in loaded.schema().columns()}
    for one in json.loads(had):
        spec.removeField(_term(expressions, Partition(*one)))
    for one in table.partition_by:
        spec.addField(_name(one, columns), _term(expressions, one))
    spec.commit()
    transaction.updateProperties().set(_NOTED, wanted).commit()
    transaction.commitTransaction()


def fields_of(loaded: Any) -> set[str]:  # noqa: ANN401 - Java's Table
    """Return the names that fields of partitions have, or had, and no column: Iceberg takes none of such a name."""
    columns = {str(field.name()) for field in loaded.schema().columns()}
    return {str(field.name()) for spec in loaded.specs().values() for field in spec.fields()} - columns


def partitioned_by(loaded: Any) -> set[str]:  # noqa: ANN401 - Java's Table
    """Return the columns of which partitions are made, or were."""
    schema = loaded.schema()
    return {str(schema.findColumnName(field.sourceId())) for spec in loaded.specs().values() for field in spec.fields()}


def sorted_by(loaded: Any) -> set[str]:  # noqa: ANN401 - Java's Table
    """Return the columns by which another hand has rows sorted where they are written, or had: ``WRITE ORDERED BY``."""
    schema = loaded.schema()
    return {str(schema.findColumnName(of.sourceId())) for by in loaded.sortOrders().values() for of in by.fields()}


def noted(table: TargetTable) -> str:
    """Return the property value for this partitioning."""
    return json.dumps([astuple(one) for one in table.partition_by])


def noted_of(loaded: Any) -> str:  # noqa: ANN401 - Java's Table
    """Return the partitioning that the table's property names."""
    return str(loaded.properties().get(_NOTED) or "[]")


def lie_by_hash(loaded: Any, table: TargetTable) -> bool:  # noqa: ANN401 - Java's Table
    """Have files lie in folders by a hash from now on; return whether partitions' texts were the names of folders.

    A long text is no name of a folder, and its row would stop the table.
    """
    whole = {one.column for one in table.partition_by if one.function in (None, "truncate")}
    kinds = [spark_type(column.kind) for column in table.columns if column.name in whole]
    texts = any(isinstance(kind, T.StringType | T.BinaryType) for kind in kinds)
    if not texts or loaded.properties().get(_IN_PATHS) == "false":
        return False
    loaded.updateProperties().set(_IN_PATHS, "false").set("write.object-storage.enabled", "true").commit()
    return True


def _name(by: Partition, columns: Collection[str]) -> str:
    """Return the name that Iceberg itself gives a partition's field, or one like it that no column has."""
    if by.function is None:
        return by.column
    name = f"{by.column}_{_SUFFIXES.get(by.function, by.function.removesuffix('s')).format(by.width)}"
    while name in columns:
        name += "_"
    return name


def _term(expressions: Any, by: Partition) -> Any:  # noqa: ANN401 - Java's org.apache.iceberg.expressions.Term
    if by.function is None:
        return expressions.ref(by.column)
    function = getattr(expressions, by.function.removesuffix("s"))
    return function(by.column) if by.width is None else function(by.column, by.width)
