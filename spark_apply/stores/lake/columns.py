"""Says which columns a lake table has, and how those of one that is there must change."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from cdc.model.errors import OperatorError
from spark_apply.events.history import history_type
from spark_apply.events.typed import POSITION, row_type
from spark_apply.model.target_table import TargetTable, rebuilt


def lake_row_type(table: TargetTable) -> T.StructType:
    """Return the table's columns with ``_cdc_position``, the position that wrote the row; or those of a history."""
    if table.history:
        return history_type(table)
    return T.StructType([*row_type(table), T.StructField(POSITION, T.StringType())])


Change = tuple[T.StructField, T.DataType | None]
"""A column as it must be, and the type that it has; None: it is missing."""


def column_changes(there: T.StructType, wanted: T.StructType, table: TargetTable, copy: str) -> Iterator[Change]:
    """Yield the columns that are missing or too narrow; `copy` names the lake table.

    Raises OperatorError for one that cannot be altered in place.
    """
    for field, before in _changes(there, wanted):
        if before is not None and not widens(before, field.dataType):
            found, kind = before.simpleString(), field.dataType.simpleString()
            msg = f"{copy}, column {field.name}: it is {found} and would have to be {kind}"
            raise OperatorError(msg, hint=rebuilt(table))
        yield field, before


def made_again(there: T.StructType, wanted: T.StructType) -> list[T.StructField]:
    """Return the columns that a copy beside the live one must have otherwise: those that cannot be altered in place."""
    return [of for of, before in _changes(there, wanted) if before is not None and not widens(before, of.dataType)]


def _changes(there: T.StructType, wanted: T.StructType) -> Iterator[Change]:
    had = {field.name: field.dataType for field in there}
    for field in wanted:
        before = had.get(field.name)
        if before is None or (before != field.dataType and not holds(before, field.dataType)):
            yield field, before


def without(of: T.StructType, fields: Iterable[T.StructField]) -> T.StructType:
    """Return the columns of `of` that have other names than `fields`."""
    names = {field.name for field in fields}
    return T.StructType([field for field in of if field.name not in names])


def refuse_taken(
    table: TargetTable, taken: Collection[str], copy: str, by: str = "a column of the format's own"
) -> None:
    """Raise OperatorError for columns whose names `by` has: the format's own columns, which each MERGE reads, say.

    The first load of a copy, which only adds rows, would pass, and nothing after it.
    """
    names = [column.name for column in table.columns if column.name in taken]
    if names:
        shaped = f"rename: {{{names[0]}: …}} under tables.{table.qualified}, or columns: […] without it"
        away = "leave it out in connector.yaml (source.columns)" if table.history else shaped
        msg = f"{copy}, column {', '.join(names)}: {by} has this name"
        raise OperatorError(msg, hint=f"{away}; where a copy is there already, also target: {table.copy_name}_2")


def holds(there: T.DataType, wanted: T.DataType) -> bool:
    """Whether a column that another hand has widened to type `there` has each value just as `wanted` would."""
    return widens(wanted, there) and not isinstance(wanted, T.FloatType)


def widens(there: T.DataType, wanted: T.DataType) -> bool:
    """Whether a column can be altered in place from type `there` to `wanted`."""
    if isinstance(there, T.DecimalType) and isinstance(wanted, T.DecimalType):
        return there.scale == wanted.scale and there.precision <= wanted.precision
    pairs = ((T.IntegerType, T.LongType), (T.FloatType, T.DoubleType))
    return any(isinstance(there, narrow) and isinstance(wanted, wide) for narrow, wide in pairs)
