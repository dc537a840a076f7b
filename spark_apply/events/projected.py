"""Turns the newest events of one table into rows of its copies. DataFrame -> DataFrame."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import KEY, MISFITS, OFFSET, OP, PARTITION, POSITION, in_row, typed
from spark_apply.model.document import DOCUMENT, document, with_document
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted

_INPUT = (
    "key string, position string, op string, partition int, offset bigint, schema_version int, source_ms bigint,"
    " after string"
)
_AT_ONCE = 50_000


def columns_read(table: TargetTable) -> tuple[str, ...]:
    """Return the source's columns that a copy is made of."""
    return in_row(table.projection.reads if table.projection else table)


def project(events: DataFrame, table: TargetTable, *also: str, parsed: bool = False) -> DataFrame:
    """Return the newest events of `table` as `typed` gives them, with the copy's columns instead of the source's.

    A row for which ``where`` is not true becomes a delete, which removes the key's row from the copy. Expressions are
    not computed for deletes, and those of computed columns not for rows that ``where`` leaves out.
    """
    projection = table.projection
    if projection is None:
        return typed(events, table, *also, parsed=parsed)
    rows = typed(events, projection.reads, *also, parsed=parsed)
    if projection.where is not None:
        kept = F.when(F.coalesce(F.expr(projection.where), F.lit(False)), F.col(OP)).otherwise("d")  # noqa: FBT003
        rows = rows.withColumn(OP, F.when(F.col(OP) == "d", "d").otherwise(kept))
    return rows.select(*(KEY, POSITION, OP, PARTITION, OFFSET, MISFITS), *also, *_values(table))


@functools.lru_cache
def _values(table: TargetTable) -> list[Column]:
    return [_value(column, table) for column in table.columns]


def _value(column: TargetColumn, table: TargetTable) -> Column:
    if column.name in table.key:
        return F.col(quoted(column.source or "")).alias(column.name)
    made = F.col(quoted(column.source)) if column.source else F.expr(str(column.computed))
    return F.when(F.col(OP) != "d", made.cast(spark_type(column.kind))).alias(column.name)


class SourceImage(NamedTuple):
    """A whole row of the source, as an event has it."""

    key: str
    after: str
    version: int


def key_documents(spark: SparkSession, table: TargetTable, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield keys of events, each with the document that copies make of it; in any order, without those that misfit."""
    every = list(keys)
    for begin in range(0, len(every), _AT_ONCE):
        part = [(key, "", "d", 0, 0, table.version, 0, None) for key in every[begin : begin + _AT_ONCE]]
        rows = project(spark.createDataFrame(part, _INPUT), table).where(F.size(MISFITS) == 0)
        for row in rows.select(KEY, document(rows, table, only=table.key).alias(DOCUMENT)).collect():
            yield row[KEY], row[DOCUMENT]


def documents(spark: SparkSession, table: TargetTable, rows: Iterable[SourceImage]) -> Iterator[str | None]:
    """Yield the document that copies hold of each row, in order; None for a row that ``where`` leaves out."""
    numbered = [(row.key, "", "c", 0, number, row.version, 0, row.after) for number, row in enumerate(rows)]
    for begin in range(0, len(numbered), _AT_ONCE):
        part = numbered[begin : begin + _AT_ONCE]
        made = with_document(project(spark.createDataFrame(part, _INPUT), table), table).select(OFFSET, OP, DOCUMENT)
        found = {row[OFFSET]: row[DOCUMENT] for row in made.collect() if row[OP] != "d"}
        yield from (found.get(number) for number in range(begin, begin + len(part)))
