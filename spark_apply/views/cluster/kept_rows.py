"""The rows of a relation at a position: a snapshot of its table, less what is gone, and what is over it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.spark import names
from spark_apply.stores.lake.rows import no_rows
from spark_apply.views.cluster.lake import ROWS, Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.values import frame, some
from spark_apply.views.embedded.state import POSITION, place
from spark_apply.views.model.values import quoted

MOST_OVER = 50_000
"""With so many rows over a snapshot, or keys gone from it, a new one is written."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a step makes of a relation's rows.

    Three tables: the change columns of rows that differ, all rows with these after the step, and all before it.
    """

    count: int
    """Of keys; a superset may be counted."""
    more: int
    """How many rows more there are after the step; of `everything`, how many there are."""
    few: tuple[pa.Table, pa.Table, pa.Table] | None = None
    """Keys, rows and old rows, where the driver has them."""
    many: tuple[DataFrame, DataFrame, DataFrame] | None = None
    """The same, where it does not. They are read more than once, so they are persisted."""
    everything: bool = False
    """Whether `rows` is all that there is after the step."""

    def frames(self, spark: SparkSession, kept: Kept) -> tuple[DataFrame, DataFrame, DataFrame]:
        """Return keys, rows and old rows."""
        if self.few is None:
            return self.many or (no_rows(spark, some(kept.schema, kept.by)), *(no_rows(spark, kept.schema),) * 2)
        keys, rows, old = self.few
        return (
            frame(spark, keys, some(kept.schema, kept.by)),
            frame(spark, rows, kept.schema),
            frame(spark, old, kept.schema),
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """A relation's rows."""

    relation: str
    schema: T.StructType
    by: tuple[str, ...]
    """The change columns; empty where all rows are replaced together."""
    null_safe: bool
    """Whether a change column may be null."""
    base: DataFrame | None = None
    over: pa.Table | None = None
    gone: pa.Table | None = None
    number: int = 0
    changed: DataFrame | None = None
    """The rows, where a change was too large to lie over the snapshot: a new one is to be written."""
    _frame: list[DataFrame] = field(init=False, default_factory=list, compare=False)
    """The frame of the rows, once it is made: to ship rows to Spark costs more than to plan with them."""

    def same(self, one: str, other: str, by: Sequence[str] = ()) -> Column:
        """Return the condition that rows of two aliases have the same change columns, or the same ones of them."""
        found = F.lit(True)  # noqa: FBT003 - a literal column
        for name in by or self.by:
            left, right = (F.col(f"{alias}.{names.quoted(name)}") for alias in (one, other))
            found &= left.eqNullSafe(right) if self.null_safe else left == right
        return found

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return the rows."""
        if not self._frame:
            self._frame.append(self._made(spark))
        return self._frame[0]

    def _made(self, spark: SparkSession) -> DataFrame:
        if self.changed is not None:
            return self.changed
        parts = []
        if self.base is not None:
            base = self.base
            if self.gone is not None and self.gone.num_rows:
                gone = F.broadcast(frame(spark, self.gone, some(self.schema, self.by)))
                base = base.alias("_cdc_b").join(gone.alias("_cdc_g"), self.same("_cdc_b", "_cdc_g"), "left_anti")
            parts.append(aligned(base, self.schema))
        if self.over is not None and self.over.num_rows:
            parts.append(frame(spark, self.over, self.schema))
        if not parts:
            return no_rows(spark, self.schema)
        return parts[0] if len(parts) == 1 else parts[0].union(parts[1])

    def after(self, spark: SparkSession, state: ClusterState, change: Change) -> Kept:
        """Return the rows after a change. The transaction that is open holds what lies over the snapshot."""
        number = change.more + (0 if change.everything else self.number)
        if change.everything:
            if change.few is None:
                return replace(self, changed=change.frames(spark, self)[1], number=number)
            return self._alone(state, change.few[1], number)
        if change.few is None or self.changed is not None:
            keys_changed, rows_changed, _ = change.frames(spark, self)
            same = self.same("_cdc_b", "_cdc_c")
            kept = self.frame(spark).alias("_cdc_b").join(keys_changed.alias("_cdc_c"), same, "left_anti")
            return replace(self, changed=kept.unionByName(rows_changed), number=number)
        keys, rows, _ = change.few
        gone = self._gone(state, keys) if self.base is not None else None
        return replace(self, gone=gone, number=number).over_by(state, keys, rows)

    def _alone(self, state: ClusterState, rows: pa.Table, number: int) -> Kept:
        """Return these rows, few as they are, and no others."""
        state.execute(f"DROP TABLE IF EXISTS {place('gone', self.relation)}")
        made = replace(self, base=None, changed=None, gone=None, over=None, number=number)
        made.note(state)
        return made.over_by(state, rows, rows)

    def _gone(self, state: ClusterState, keys: pa.Table) -> pa.Table:
        at = place("gone", self.relation)
        known = f"SELECT * FROM {at} UNION " if self.gone is not None else ""
        with state.registered("keys_changed", keys):
            state.execute(f"CREATE OR REPLACE TABLE {at} AS {known}SELECT * FROM keys_changed")
        return state.arrow(f"SELECT * FROM {at}")

    def over_by(self, state: ClusterState, keys: pa.Table, rows: pa.Table) -> Kept:
        """Return this with rows over it, in place of all that have these keys."""
        at = place("over", self.relation)
        with state.registered("keys_changed", keys), state.registered("rows_changed", rows):
            if self.over is None:
                state.execute(f"CREATE OR REPLACE TABLE {at} AS SELECT * FROM rows_changed")
            else:
                same = " AND ".join(f"c.{quoted(name)} IS NOT DISTINCT FROM o.{quoted(name)}" for name in self.by)
                gone = f"SELECT 1 FROM keys_changed c WHERE {same}"
                there, coming = state.types(at), state.types("rows_changed")
                if there == coming:
                    state.execute(f"DELETE FROM {at} o WHERE EXISTS ({gone})")
                    state.execute(f"INSERT INTO {at} BY NAME SELECT * FROM rows_changed")
                else:  # columns are new, or have another type now, which holds the values that they had
                    listed, before = ", ".join(quoted(name) for name in there if name in coming), place("work", "over")
                    kept = f"SELECT {listed} FROM {at} o WHERE NOT EXISTS ({gone})"
                    state.execute(f"CREATE OR REPLACE TABLE {before} AS {kept}")
                    state.execute(f"CREATE OR REPLACE TABLE {at} AS SELECT * FROM rows_changed")
                    state.execute(f"INSERT INTO {at} BY NAME SELECT * FROM {before}")
                    state.execute(f"DROP TABLE {before}")
        return replace(self, over=_complete(state.arrow(f"SELECT * FROM {at}"), self.schema))

    @property
    def worn(self) -> bool:
        """Whether a new snapshot is due."""
        much = max((of.num_rows for of in (self.over, self.gone) if of is not None), default=0)
        return self.changed is not None or much > MOST_OVER

    def written(self, spark: SparkSession, lake: Lake, state: ClusterState) -> Kept:
        """Return the same rows in a new snapshot, which counts once the open transaction is committed.

        Rows of tables are in the order of their keys: a search for keys reads those parts alone that may have them.
        """
        snapshot = self._changed_in_place(spark, lake, state)
        if snapshot is None:
            rows = self.frame(spark)
            if POSITION in self.schema.names:
                key = [F.col(names.quoted(name)) for name in self.by]
                rows = rows.repartitionByRange(*key).sortWithinPartitions(*key)
            snapshot = lake.write(ROWS, self.relation, rows)
        for schema in ("over", "gone"):
            state.execute(f"DROP TABLE IF EXISTS {place(schema, self.relation)}")
        made = replace(self, over=None, gone=None, changed=None, base=None)
        if snapshot is not None:
            made = replace(made, base=lake.read(ROWS, self.relation, snapshot))
        made.note(state, snapshot)
        return made

    def _changed_in_place(self, spark: SparkSession, lake: Lake, state: ClusterState) -> int | None:
        """Write what is gone and what is over the snapshot alone, where it is a part of all rows; return the new one.

        None: all rows are to be written.
        """
        if self.changed is not None or self.base is None or self.base.schema != self.schema:
            return None
        ((snapshot,),) = state.rows("SELECT snapshot FROM lake.kept WHERE name = ?", [self.relation])
        gone, over = (of if of is not None and of.num_rows else None for of in (self.gone, self.over))
        going = gone.num_rows if gone is not None else 0
        if not lake.can_change(ROWS, self.relation, int(snapshot), going=going, number=self.number):
            return None
        keys = None if gone is None else frame(spark, gone, some(self.schema, self.by))
        rows = None if over is None else frame(spark, over, self.schema)
        if rows is not None and POSITION in self.schema.names:
            rows = rows.coalesce(1).sortWithinPartitions(*(F.col(names.quoted(name)) for name in self.by))
        return lake.change(ROWS, self.relation, keys, rows, null_safe=self.null_safe)

    def note(self, state: ClusterState, snapshot: int | None = None, *, new: bool = True) -> None:
        """Note the snapshot, or that its rows are as many now."""
        name, columns = self.relation, self.schema.json()
        if new:
            state.execute("DELETE FROM lake.kept WHERE name = ?", [name])
            state.execute("INSERT INTO lake.kept VALUES (?, ?, ?, ?)", [name, snapshot, self.number, columns])
        else:
            state.execute("INSERT INTO lake.kept VALUES (?, NULL, ?, ?) ON CONFLICT DO NOTHING", [name, 0, columns])
            state.execute("UPDATE lake.kept SET number = ?, columns = ? WHERE name = ?", [self.number, columns, name])


def opened(
    lake: Lake, state: ClusterState, relation: str, schema: T.StructType | None, by: Sequence[str], *, null_safe: bool
) -> Kept | None:
    """Return a relation as the state has it, in a schema or its own; None where it has neither."""
    found = state.rows("SELECT snapshot, number, columns FROM lake.kept WHERE name = ?", [relation])
    snapshot, number, columns = found[0] if found else (None, 0, None)
    if schema is None:
        if columns is None:
            return None
        schema = T.StructType.fromJson(json.loads(columns))
    made = Kept(relation, schema, tuple(by), null_safe, number=number)
    if snapshot is not None:
        made = replace(made, base=lake.read(ROWS, relation, snapshot))
    there = {name for (name,) in state.rows("SELECT schema_name FROM duckdb_tables() WHERE table_name = ?", [relation])}
    if "over" in there:
        made = replace(made, over=_complete(state.arrow(f"SELECT * FROM {place('over', relation)}"), schema))
    if "gone" in there:
        made = replace(made, gone=state.arrow(f"SELECT * FROM {place('gone', relation)}"))
    return made


def _complete(rows: pa.Table, schema: T.StructType) -> pa.Table:
    """Return rows with the columns of a schema that they do not have yet."""
    for name in schema.names:
        if name not in rows.column_names:
            rows = rows.append_column(name, pa.nulls(rows.num_rows))
    return rows


def aligned(rows: DataFrame, schema: T.StructType) -> DataFrame:
    """Return rows with the columns of a schema, in its order and types; those that they do not have are null."""
    there = {of.name: of.dataType for of in rows.schema}
    columns = []
    for of in schema:
        name = names.quoted(of.name)
        if of.name not in there:
            columns.append(F.lit(None).cast(of.dataType).alias(of.name))
        elif there[of.name] != of.dataType:
            columns.append(F.col(name).cast(of.dataType).alias(of.name))
        else:
            columns.append(F.col(name))
    return rows.select(*columns)
