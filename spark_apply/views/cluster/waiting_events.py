"""Keeps many events that wait in a table of the lake: the driver has those few that came since in its file."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.spark import names
from spark_apply.views.cluster.kept_rows import aligned
from spark_apply.views.cluster.lake import WAITING, Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.values import frame, schema_of
from spark_apply.views.embedded.fold import SourceTable, taken
from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, place
from spark_apply.views.model.uses import Way
from spark_apply.views.model.values import Columns

_OURS: Final = [
    *(T.StructField(name, T.StringType()) for name in (KEY, POSITION, OP)),
    T.StructField(SOURCE_MS, T.LongType()),
]


def _schema(columns: Columns) -> T.StructType:
    return T.StructType([*_OURS, *schema_of(columns)])


def wait(lake: Lake, state: ClusterState, relation: str, rows: DataFrame, columns: Columns) -> None:
    """Add events to those of a relation that wait in the lake; they count once the open transaction is committed."""
    schema = _schema(columns)
    rows = rows.select(*(F.col(names.quoted(field.name)) for field in schema))
    found = state.rows("SELECT snapshot, floor FROM lake.waiting WHERE name = ?", [relation])
    snapshot, floor = found[0] if found else (None, "")
    named = snapshot is not None
    if snapshot is not None:
        before = lake.read(WAITING, relation, snapshot)
        if before.schema.names != schema.names:
            rows, snapshot = aligned(before, schema).unionByName(rows), None
    made = (lake.write if snapshot is None else lake.append)(WAITING, relation, rows)
    if not named:  # the state has let go of all that was there before
        lake.forget(WAITING, relation)
    state.execute("DELETE FROM lake.waiting WHERE name = ?", [relation])
    state.execute("INSERT INTO lake.waiting VALUES (?, ?, ?)", [relation, made, floor])


def in_lake(state: ClusterState, table: SourceTable, limit: str) -> tuple[int, str] | None:
    """Return the snapshot with events that a step takes, and up to where earlier steps have; None: there is none."""
    found = state.rows(
        "SELECT snapshot, floor FROM lake.waiting WHERE name = ? AND snapshot IS NOT NULL", [table.relation]
    )
    if not found or (table.use.way is not Way.EVENTS and found[0][1] >= limit):
        return None
    return int(found[0][0]), str(found[0][1])


def waiting(on: Running, table: SourceTable, many: tuple[int, str] | None) -> DataFrame:
    """Return the events that a step takes, those in the driver's file and those in the lake."""
    schema = _schema(table.columns)
    few = on.state.arrow(f"SELECT * FROM {place('pending', table.relation)} WHERE {taken(table, on.limit)}")
    found = frame(on.spark, few, schema)
    if many is None:
        return found
    snapshot, floor = many
    more = aligned(on.lake.read(WAITING, table.relation, snapshot), schema)
    if table.use.way is not Way.EVENTS:
        more = more.where((F.col(POSITION) >= floor) & (F.col(POSITION) < on.limit))
    return found.union(more)


def done(on: Running, table: SourceTable) -> None:
    """Note up to where events that wait are folded in, and let go of those in the lake when all are."""
    on.state.execute(f"DELETE FROM {place('pending', table.relation)} WHERE {taken(table, on.limit)}")
    found = in_lake(on.state, table, on.limit)
    if found is None:
        return
    snapshot, floor = found
    if table.use.way is Way.EVENTS:
        left, floor = None, ""
    else:
        events = on.lake.read(WAITING, table.relation, snapshot)
        left, floor = None if events.where(F.col(POSITION) >= on.limit).isEmpty() else snapshot, on.limit
    on.state.execute("UPDATE lake.waiting SET floor = ?, snapshot = ? WHERE name = ?", [floor, left, table.relation])
