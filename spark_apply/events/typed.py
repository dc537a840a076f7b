"""Turns the newest events of one table into typed rows. DataFrame -> DataFrame."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.model.source_key import texts_of
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.model.types import may_misfit, spark_type, value
from spark_apply.spark.json_reader import LEVELS_OF_VARIANTS, read_json

KEY, POSITION, OP = "_cdc_key", "_cdc_position", "_cdc_op"
PARTITION, OFFSET, MISFITS = "_cdc_partition", "_cdc_offset", "_cdc_misfits"
SOURCE_MS = "_cdc_source_ms"


def row_type(table: TargetTable) -> T.StructType:
    """Return the Spark type of the table's own columns, in order, all nullable."""
    return T.StructType([T.StructField(column.name, spark_type(column.kind)) for column in table.columns])


def typed(events: DataFrame, table: TargetTable, *also: str, parsed: bool = False) -> DataFrame:
    """Return newest events of `table` (as `events.latest` gives them) with typed values, and `also` unchanged.

    `parsed` says that ``after`` has the columns' texts, as `spark_apply.events.envelope.parse` gives them when
    asked. Returns ``_cdc_key STRING`` (the key's JSON), ``_cdc_position STRING``, ``_cdc_op STRING`` (``d`` deletes,
    others write), ``_cdc_partition INT, _cdc_offset BIGINT, _cdc_source_ms BIGINT`` (when it was committed),
    ``_cdc_misfits ARRAY<STRING>`` (columns whose value did not fit and is null here, as one of the key must never be; a
    row with any must not be applied), `also`, then the table's columns. In a delete only the key columns are set. A
    column that the event's version of the table did not have is null. Events under a key that the source's table has no
    more are left out (`spark_apply.model.source_key`): their rows have come again under the newest one.
    """
    if table.keys:
        events = events.where(_under_newest_key(table))
    return events.select(*_read(table, parsed=parsed), *also).select(*_OURS, _misfits(table), *also, *_values(table))


@functools.lru_cache
def _under_newest_key(table: TargetTable) -> Column:
    """Return a condition: false for an event under another key than the newest, as `spark_apply.model.source_key` says.

    What is no event, and what is of a version that `table` does not know yet, is for who looks at those.
    """
    key, version = table.keys[-1], F.col("schema_version")
    of_columns = [column for column in table.columns if column.name in key.names]
    continued = {number for column in of_columns for _, numbers in column.versions for number in numbers}
    unread = F.coalesce(F.col("position").isNull() | version.isNull() | (version > table.version), F.lit(True))  # noqa: FBT003
    wanted = F.array(*(F.lit(name) for name in key.names))
    text = read_json("key", texts(key.names))
    tagged = read_json("key", _as(T.VariantType(), key.names), levels=LEVELS_OF_VARIANTS)
    of_key = F.json_object_keys("key") == wanted
    for name, form in zip(key.names, key.forms, strict=True):
        is_string = F.schema_of_variant(tagged.getField(name)) == "STRING"
        of_key &= _is_of(form, text.getField(name), is_string)
    counts = F.when(F.col("op") == "d", of_key).otherwise(version.isin(*continued))
    return unread | F.coalesce(counts, F.lit(True))  # noqa: FBT003 - a literal column


def _is_of(form: str, text: Column, is_string: Column) -> Column:
    patterns = texts_of(form)
    if patterns is None:
        return F.lit(True)  # noqa: FBT003 - a literal column
    bare, string = (F.lit(False) if of is None else text.rlike(rf"^({of})\z") for of in patterns)  # noqa: FBT003
    return F.when(text.isNull(), F.lit(True)).when(is_string, string).otherwise(bare)  # noqa: FBT003


_PLAIN_NAME = re.compile("[A-Za-z0-9_]+")  # the same in JSON and in a regular expression
_INTEGERS = {"int16", "int32", "int64"}
_OURS = (KEY, POSITION, OP, PARTITION, OFFSET, SOURCE_MS)

# Each part of a column costs a call into the JVM; all batches of a table use the same columns.


@functools.lru_cache
def _read(table: TargetTable, *, parsed: bool) -> list[Column]:
    return [
        F.col("key").alias(KEY),
        F.col("position").alias(POSITION),
        F.col("op").alias(OP),
        F.col("partition").alias(PARTITION),
        F.col("offset").alias(OFFSET),
        F.col("source_ms").alias(SOURCE_MS),
        F.col("schema_version").alias("version"),
        _key(table).alias("key"),
        F.col("after") if parsed else read_json("after", texts(in_row(table))).alias("after"),
    ]


def _key(table: TargetTable) -> Column:
    """Return the key's columns as text. A single integer is cut out by a pattern, in a tenth of the time."""
    parsed = read_json("key", texts(table.key))
    name, *others = table.key
    kinds = {kind.name for column in table.columns if column.name == name for kind, _ in column.versions}
    if others or not kinds <= _INTEGERS or _PLAIN_NAME.fullmatch(name) is None:
        return parsed
    digits = F.regexp_extract("key", rf'^\{{"{name}":(0|-?[1-9][0-9]*)\}}$', 1)
    return F.struct(F.when(digits != "", digits).otherwise(parsed.getField(name)).alias(name))


@functools.lru_cache
def _misfits(table: TargetTable) -> Column:
    misfit: dict[str, Column] = {}
    for column in table.columns:
        text, is_null = _text(column, table), _value(column, table).isNull()
        if column.name in table.key:
            misfit[column.name] = is_null
        elif any(may_misfit(kind) for kind, _ in column.versions):
            misfit[column.name] = is_null & text.isNotNull()
    found = F.array_compact(F.array(*(F.when(is_one, F.lit(name)) for name, is_one in misfit.items())))
    how_many = _sum([is_one.cast("int") for is_one in misfit.values()])
    # Few rows have any, and Spark interprets functions of arrays. `is_null` comes first above, and so always: only
    # then does Spark parse a text once, for this and for the row.
    return F.when(how_many > 0, found).otherwise(F.array()).cast("array<string>").alias(MISFITS)


def _sum(numbers: Sequence[Column]) -> Column:
    """Add numbers, half to half: Spark goes down an expression by recursion, and a table can have 1,600 columns."""
    middle = len(numbers) // 2
    return _sum(numbers[:middle]) + _sum(numbers[middle:]) if middle else next(iter(numbers), F.lit(0))


@functools.lru_cache
def _values(table: TargetTable) -> list[Column]:
    return [_value(column, table).alias(column.name) for column in table.columns]


def in_row(table: TargetTable) -> tuple[str, ...]:
    """Return the columns that are read from an event's row; key columns are read from its key, as of deletes."""
    return tuple(column.name for column in table.columns if column.name not in table.key)


def texts(names: Iterable[str]) -> T.StructType:
    """Return the type that a row's JSON is read as: the text of each column."""
    return _as(T.StringType(), names)


def _as(kind: T.DataType, names: Iterable[str]) -> T.StructType:
    return T.StructType([T.StructField(name, kind) for name in names])


def _text(column: TargetColumn, table: TargetTable) -> Column:
    return F.col("key" if column.name in table.key else "after").getField(column.name)


def _value(column: TargetColumn, table: TargetTable) -> Column:
    """Convert the column's text by the kind that it had in the event's version of the table."""
    text, stored_as = _text(column, table), spark_type(column.kind)
    parsed = [
        (value(kind, text, stored_as=stored_as, key=column.name in table.key), numbers)
        for kind, numbers in column.versions
    ]
    newest, _ = parsed[-1]
    return functools.reduce(
        lambda rest, older: F.when(F.col("version").isin(*older[1]), older[0]).otherwise(rest), parsed[:-1], newest
    )
