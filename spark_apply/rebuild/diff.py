"""Counts how two copies of a table differ: by Spark if both are Spark tables, otherwise row by row."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import orjson
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.events.history import CURRENT
from spark_apply.events.typed import row_type
from spark_apply.model.store import Store
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import quoted

_OLD, _NEW = "_cdc_old", "_cdc_new"


@dataclass(frozen=True, slots=True)
class Differences:
    """The numbers of rows in which a live copy and a new one differ; a change between the two reads counts, too."""

    rows: int = 0
    """The number of rows of the new copy."""
    only_old: int = 0
    """Keys of the live copy alone, and the surplus rows of a key that has more than one."""
    only_new: int = 0
    different: int = 0


@runtime_checkable
class FrameStore(Protocol):
    """A store whose copies are Spark tables."""

    def read(self, table: TargetTable) -> DataFrame:
        """Return the whole copy as it is now: the table's columns, except those it does not have yet, and others."""


def compare(live: Store, beside: Store, table: TargetTable) -> Differences:
    """Count how a live copy differs from another, by hashes of 8 bytes a row; keeps no value."""
    if isinstance(live, FrameStore) and isinstance(beside, FrameStore):
        return _compare_frames(live.read(table), beside.read(table), table)
    old: dict[bytes, bytes] = {}
    rows = only_new = different = doubled = 0
    for key, row in _digests(live, table):
        doubled += key in old
        old[key] = row
    for key, row in _digests(beside, table):
        rows += 1
        found = old.pop(key, None)
        only_new += found is None
        different += found is not None and found != row
    return Differences(rows, len(old) + doubled, only_new, different)


def without_live(beside: Store, table: TargetTable) -> Differences:
    """Count the rows of a copy beside a live one that cannot be read: all are new."""
    if not isinstance(beside, FrameStore):
        return Differences()
    rows = beside.read(table)
    return _compare_frames(rows.limit(0), rows, table)


def _digests(store: Store, table: TargetTable) -> Iterator[tuple[bytes, bytes]]:
    for stored in store.rows(table):
        found = orjson.loads(stored.document)
        key = orjson.dumps([found.get(name) for name in table.key])
        row = orjson.dumps([found.get(column.name) for column in table.columns])
        yield hashlib.blake2b(key, digest_size=16).digest(), hashlib.blake2b(row, digest_size=8).digest()


def _compare_frames(live: DataFrame, beside: DataFrame, table: TargetTable) -> Differences:
    none = F.lit(None).cast("bigint")
    old = _hashed(live, table).withColumns({_OLD: F.col("row"), _NEW: none})
    new = _hashed(beside, table).withColumns({_OLD: none, _NEW: F.col("row")})
    had, has = F.count(_OLD), F.count(_NEW)  # aggregates of numbers: Spark hashes keys instead of sorting them
    differs = (F.min(_OLD) != F.max(_NEW)) | (F.max(_OLD) != F.max(_NEW))
    keys = old.unionByName(new).groupBy(*(f"key{number}" for number in range(len(table.key))))
    told = keys.agg(had.alias("had"), has.alias("has"), differs.alias("differs"))
    row = told.agg(
        F.sum("has"),
        F.sum(F.greatest(F.col("had") - F.when(F.col("has") > 0, 1).otherwise(0), F.lit(0))),
        F.count_if(F.col("had") == 0),
        F.count_if((F.col("had") > 0) & (F.col("has") > 0) & F.col("differs")),
    ).first()
    return Differences(*(found or 0 for found in row or ()))


def _hashed(rows: DataFrame, table: TargetTable) -> DataFrame:
    """Return key columns, named by number, and ``row BIGINT``: a hash of all columns."""
    if table.history:
        rows = rows.where(CURRENT)
    there = {field.name: field.dataType for field in rows.schema}
    columns = {field.name: _cast(field, there.get(field.name)) for field in row_type(table)}
    keys = (columns[name].alias(f"key{number}") for number, name in enumerate(table.key))
    parts = (part for field in row_type(table) for part in _parts(columns[field.name], field.dataType))
    return rows.select(*keys, F.xxhash64(*parts).alias("row"))


def _cast(field: T.StructField, there: T.DataType | None) -> Column:
    """Return a column with the type that it has in the new copy; null where a live one has a value that is none."""
    if there is None:
        return F.lit(None).cast(field.dataType)
    found = F.col(quoted(field.name))
    if there.simpleString() == field.dataType.simpleString():
        return found
    nested = any(isinstance(of, T.ArrayType | T.StructType) for of in (there, field.dataType))
    return (F.lit(None) if nested else found.try_cast("string").try_cast(field.dataType)).cast(field.dataType)


def _parts(value: Column, kind: T.DataType) -> tuple[Column, Column]:
    """Return what is hashed of a value; a null flag is added, because Spark's hash skips nulls."""
    nested = isinstance(kind, T.ArrayType | T.StructType)
    return value.isNull(), F.to_json(value, {"ignoreNullFields": "false"}) if nested else value
