"""What lies over a snapshot is written beside it, where it is a part of all rows: the others are not written again."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812 - the name everyone uses

from spark_apply.views.cluster.kept_rows import Change, Kept, opened
from spark_apply.views.cluster.lake import ROWS, Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.values import arrow
from tests.views.bench import most_over

pytest_plugins = ["tests.spark.fixtures"]

_TAKEN = "_pos"
"""A name that Iceberg has for what it knows of a row."""
_SCHEMA = T.StructType(
    [
        T.StructField("a`b", T.LongType()),
        T.StructField(_TAKEN, T.StringType()),
        T.StructField("v", T.DoubleType()),
        T.StructField("_cdc_position", T.StringType()),
    ]
)
Row = tuple[Any, ...]


class _Killed(Exception):  # noqa: N818 - it is no error
    pass


class _Relation:
    """One that is kept in steps, and what it should be."""

    def __init__(self, spark: SparkSession, folder: Path, *, null_safe: bool) -> None:
        self.spark, self.folder = spark, folder
        self.state, self.lake = ClusterState(folder / "state", memory="200MB"), Lake(spark, str(folder / "tables"))
        self.kept = Kept("view.r", _SCHEMA, ("a`b", _TAKEN), null_safe)
        self.rows: list[Row] = []

    def step(self, *keys: Row, rows: list[Row]) -> set[str]:
        """Put rows in the place of all that have these keys; return the files of rows that are there after it."""
        more = len(rows) - sum(row[:2] in keys for row in self.rows)
        self.rows = [*(row for row in self.rows if row[:2] not in keys), *rows]
        few = (_table(keys, _SCHEMA[:2]), _table(rows, _SCHEMA), _table([], _SCHEMA))
        with self.state.transaction():
            self.kept = self.kept.after(self.spark, self.state, Change(len(keys), more, few))
            self.kept = self.kept.written(self.spark, self.lake, self.state)
        self.lake.forget(ROWS, "view.r")
        assert self.found(self.kept) == Counter(self.rows)
        again = opened(self.lake, self.state, "view.r", None, self.kept.by, null_safe=self.kept.null_safe)
        assert again is not None
        assert (self.found(again), again.number) == (Counter(self.rows), len(self.rows))
        return self.files()

    def found(self, kept: Kept) -> Counter[Row]:
        return Counter(tuple(row) for row in kept.frame(self.spark).collect())

    def files(self) -> set[str]:
        """Those that are there, whether the snapshot has them or not."""
        found = (path.name for path in self.folder.rglob("*.parquet"))
        return {name for name in found if not name.endswith("-deletes.parquet")}


def _table(rows: Any, schema: T.StructType) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [[] for _ in schema]
    return arrow(pa.table({of.name: list(each) for of, each in zip(schema, columns, strict=True)}), schema)


def _row(number: int, key: str | None = "k") -> Row:
    return number, key, float(number), f"{number:04}"


@pytest.fixture
def relation(apply_spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> _Relation:
    most_over(monkeypatch, 0)
    return _Relation(apply_spark, tmp_path, null_safe=True)


def test_what_is_gone_and_what_comes_is_written_alone(relation: _Relation) -> None:
    """Keys may be null, several rows may have one; a row may go that has come in such a step."""
    many = [_row(number) for number in range(200)]
    null: Row = (None, None, None, "0000")
    first = relation.step(rows=[*many, null, null, (7, None, 1.0, "0007")])
    second = relation.step((7, "k"), (7, None), rows=[(7, "k", 0.0, "0300"), (7, "k", 0.5, "0300")])
    assert first < second
    assert first < relation.step((7, "k"), (None, None), (999, "none"), rows=[])
    assert first < relation.step(rows=[null])
    assert first < relation.step((None, None), rows=[])


def test_everything_is_written_again_where_much_is_gone(relation: _Relation) -> None:
    first = relation.step(rows=[_row(number) for number in range(100)])
    assert first <= relation.step(*((number, "k") for number in range(20)), rows=[]), "20 notes beside 80 rows"
    assert not first & relation.step(*((number, "k") for number in range(20, 40)), rows=[]), "it would be 40 and 60"


def test_what_a_killed_step_has_written_does_not_count(relation: _Relation) -> None:
    first = relation.step(rows=[_row(number) for number in range(100)])
    few = (_table([(1, "k")], _SCHEMA[:2]), _table([_row(1, "other")], _SCHEMA), _table([], _SCHEMA))
    with suppress(_Killed), relation.state.transaction():
        killed = relation.kept.after(relation.spark, relation.state, Change(1, 0, few))
        killed.written(relation.spark, relation.lake, relation.state)
        raise _Killed
    assert first < relation.files()
    assert not first & relation.step((2, "k"), rows=[_row(2, "new")])
    second = relation.files()
    assert second < relation.step((3, "k"), rows=[_row(3, "new")]), "from then on as before"


def test_a_file_that_notes_what_is_gone_is_missed(relation: _Relation) -> None:
    relation.step(rows=[_row(number) for number in range(100)])
    relation.step((1, "k"), rows=[])
    assert relation.lake.has(relation.state.named())
    (notes,) = (path for path in relation.folder.rglob("*-deletes.parquet"))
    notes.unlink()
    assert not relation.lake.has(relation.state.named())
