"""Folds the events of a captured table that wait into what changes in its rows."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.spark import names
from spark_apply.views.cluster.kept import MOST_OVER, Change, Kept, aligned
from spark_apply.views.cluster.lake import WAITING
from spark_apply.views.cluster.running import Running
from spark_apply.views.cluster.values import arrow, collected, frame, nothing, some
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import KEY, OP, POSITION, place
from spark_apply.views.model.values import quoted

_THERE, _DIFFERS = "_cdc_there", "_cdc_differs"
_IN_LAKE: Final = "lake.waiting WHERE name = ? AND snapshot IS NOT NULL"
_MANY: Final = 1 << 60
_WAITING_TYPE: Final = T.StructType([T.StructField(name, T.StringType()) for name in (KEY, POSITION, OP)])


def fold(
    on: Running, kept: Kept, table: SourceTable, *, reload: bool
) -> tuple[Change | None, pa.Table | DataFrame | None] | None:
    """Return what changes, and the rows of which the position alone does; None where nothing waits."""
    state, waiting = on.state, place("pending", table.relation)
    ((few,),) = state.rows(f"SELECT count(*) FROM {waiting} WHERE {POSITION} < ?", [on.limit])
    found = state.rows(
        "SELECT snapshot, floor FROM lake.waiting WHERE name = ? AND snapshot IS NOT NULL", [table.relation]
    )
    many = found and found[0][1] < on.limit
    if not (few or many or reload):
        return None
    large = bool(many) or reload or few > MOST_OVER
    on.sized(_MANY if many else few + kept.number, whole=large)
    if large:
        return _on_executors(on, kept, table, found[0] if many else None, reload=reload)
    return _here(on, kept, table)


def _here(on: Running, kept: Kept, table: SourceTable) -> tuple[Change | None, pa.Table | None]:
    """Fold few events: the executors are asked for the rows that they are of alone."""
    state, spark = on.state, on.spark
    waiting, newest = place("pending", table.relation), place("work", table.relation)
    key = [quoted(name) for name in table.key]
    every = [quoted(name) for name, _ in table.columns]
    state.execute(
        f"CREATE OR REPLACE TABLE {newest} AS SELECT * FROM {waiting} WHERE {POSITION} < ? "
        f"QUALIFY row_number() OVER (PARTITION BY {', '.join(key)} ORDER BY {POSITION} DESC) = 1",
        [on.limit],
    )
    keys = arrow(state.arrow(f"SELECT {', '.join(key)} FROM {newest}"), some(kept.schema, table.key))
    if kept.base is None:  # the driver has all rows there are
        old = arrow(kept.over, kept.schema) if kept.over is not None else nothing(kept.schema)
    else:
        rows = kept.frame(spark).alias("_cdc_b")
        asked = F.broadcast(frame(spark, keys, some(kept.schema, table.key)))
        old = collected(rows.join(asked.alias("_cdc_k"), kept.same("_cdc_b", "_cdc_k"), "left_semi"))
    joined = " AND ".join(f"n.{name} = b.{name}" for name in key)
    differs = " OR ".join(f"n.{name} IS DISTINCT FROM b.{name}" for name in every if name not in key) or "false"
    with state.registered("rows_before", old):
        state.execute(
            f"CREATE OR REPLACE TABLE {place('work', 'folded')} AS SELECT n.*, b.{POSITION} IS NOT NULL AS there, "
            f"CASE WHEN n.{OP} = 'd' THEN b.{POSITION} IS NOT NULL "
            f"ELSE b.{POSITION} IS NULL OR {differs} END AS differs FROM {newest} n "
            f"LEFT JOIN rows_before b ON {joined} WHERE b.{POSITION} IS NULL OR n.{POSITION} >= b.{POSITION}"
        )
        folded = place("work", "folded")
        listed = ", ".join([*every, POSITION])
        changed = state.arrow(f"SELECT {', '.join(key)} FROM {folded} WHERE differs")
        coming = state.arrow(f"SELECT {listed} FROM {folded} WHERE differs AND {OP} <> 'd'")
        moved = state.arrow(f"SELECT {listed} FROM {folded} WHERE there AND NOT differs")
        gone = state.arrow(
            f"SELECT {', '.join(f'b.{name}' for name in [*every, POSITION])} FROM rows_before b "
            f"JOIN {folded} n ON {joined} WHERE n.differs"
        )
    state.execute(f"DROP TABLE {newest}")
    changed, coming, gone, moved = (
        arrow(of, shape)
        for of, shape in (
            (changed, some(kept.schema, table.key)), (coming, kept.schema), (gone, kept.schema), (moved, kept.schema),
        )
    )  # fmt: skip
    change = None
    if changed.num_rows:
        more = coming.num_rows - gone.num_rows
        change = Change(changed.num_rows, more, (changed, coming, gone))
    return change, moved if moved.num_rows else None


def _on_executors(
    on: Running, kept: Kept, table: SourceTable, many: tuple[int, str] | None, *, reload: bool
) -> tuple[Change | None, DataFrame | None]:
    """Fold many events, which stay with the executors."""
    spark = on.spark
    schema = T.StructType([*_WAITING_TYPE, *(field for field in kept.schema if field.name != POSITION)])
    few = on.state.arrow(f"SELECT * FROM {place('pending', table.relation)} WHERE {POSITION} < ?", [on.limit])
    waiting = frame(spark, few, schema)
    if many is not None:
        snapshot, floor = many
        more = aligned(on.lake.read(WAITING, table.relation, snapshot), schema)
        waiting = waiting.union(more.where((F.col(POSITION) >= floor) & (F.col(POSITION) < on.limit)))
    newest = waiting.withColumn(
        "_cdc_number",
        F.row_number().over(Window.partitionBy(*map(names.quoted, table.key)).orderBy(F.col(POSITION).desc())),
    ).where("_cdc_number = 1")
    others = [name for name, _ in table.columns if name not in table.key]
    before = kept.frame(spark)
    joined = newest.alias("_cdc_n").join(before.alias("_cdc_b"), kept.same("_cdc_n", "_cdc_b"), "left")
    joined = joined.where(
        F.col(f"_cdc_b.{POSITION}").isNull() | (F.col(f"_cdc_n.{POSITION}") >= F.col(f"_cdc_b.{POSITION}"))
    )
    there = F.col(f"_cdc_b.{POSITION}").isNotNull()
    differs = F.lit(False)  # noqa: FBT003 - a literal column
    for name in map(names.quoted, others):
        differs |= ~F.col(f"_cdc_n.{name}").eqNullSafe(F.col(f"_cdc_b.{name}"))
    listed = [F.col(f"_cdc_n.{names.quoted(field.name)}") for field in kept.schema]
    gone = F.col(f"_cdc_n.{OP}") == "d"
    folded = on.hold(
        joined.select(
            *listed,
            gone.alias(OP),
            there.alias(_THERE),
            F.when(gone, there).otherwise(~there | differs).alias(_DIFFERS),
        )
    )
    columns = [F.col(names.quoted(field.name)) for field in kept.schema]
    key = [F.col(names.quoted(name)) for name in table.key]
    keys = folded.where(_DIFFERS).select(*key)
    if reload:
        unseen = before.alias("_cdc_b").join(newest.alias("_cdc_n"), kept.same("_cdc_b", "_cdc_n"), "left_anti")
        keys = keys.unionByName(unseen.select(*key))
    keys = on.hold(keys)
    rows = folded.where(F.col(_DIFFERS) & ~F.col(OP)).select(*columns)
    old = on.hold(before.alias("_cdc_b").join(keys.alias("_cdc_c"), kept.same("_cdc_b", "_cdc_c"), "left_semi"))
    count, coming, went = keys.count(), rows.count(), old.count()
    moved = folded.where(F.col(_THERE) & ~F.col(_DIFFERS)).select(*columns)
    change = None
    if count:
        small = max(count, coming, went) <= MOST_OVER
        few_of = (collected(keys), collected(rows), collected(old)) if small else None
        change = Change(count, coming - went, few_of, None if small else (keys, rows, old))
    return change, None if moved.isEmpty() else moved


def moved_on(on: Running, kept: Kept, moved: pa.Table | DataFrame) -> Kept:
    """Note the position of events that have changed nothing: an older one that comes again is then known as old."""
    if isinstance(moved, DataFrame):
        if moved.count() > MOST_OVER:
            keys = moved.select(*(F.col(names.quoted(name)) for name in kept.by))
            return kept.after(on.spark, on.state, Change(0, 0, None, (keys, moved, moved)))
        moved = collected(moved)
    few = (moved.select(list(kept.by)), moved, moved)
    return kept.after(on.spark, on.state, Change(0, 0, few))


def done(on: Running, table: SourceTable) -> None:
    """Note up to where the events that wait in the lake are folded in, and let go of them when all are."""
    found = on.state.rows(f"SELECT snapshot FROM {_IN_LAKE}", [table.relation])
    if found:
        waiting = on.lake.read(WAITING, table.relation, found[0][0])
        over = waiting.where(F.col(POSITION) >= on.limit).isEmpty()
        left = None if over else found[0][0]
        on.state.execute(
            "UPDATE lake.waiting SET floor = ?, snapshot = ? WHERE name = ?", [on.limit, left, table.relation]
        )
