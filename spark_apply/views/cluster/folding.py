"""Folds the events of a table that wait into what changes in a relation, whichever way views read the table.

Few events are folded by the driver, by the very statements of the other engine, with the rows that they are of at hand:
these alone come from the executors. Many events, and a table that is read from its beginning, are folded by the
executors, where the rows are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.spark import names
from spark_apply.views.cluster.counted_events import (
    AT,
    BEGUN,
    NEW,
    OPEN,
    WAS,
    committed,
    late_events,
    newest,
    versions,
)
from spark_apply.views.cluster.kept_rows import MOST_OVER, Change, Kept
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.values import arrow, collected, frame, nothing, schema_of, some
from spark_apply.views.cluster.waiting_events import in_lake, waiting
from spark_apply.views.embedded.fold import SourceTable, count_late, counted_to, find_changes, taken, unchanged
from spark_apply.views.embedded.state import KEY, OP, POSITION, place
from spark_apply.views.model.uses import ARRIVAL, FROM_POSITION, TO_POSITION, VALID_FROM, VALID_TO, Way
from spark_apply.views.model.values import engine_type, quoted
from spark_apply.views.planning.streams import earliest, late_by, time_of

_MANY: Final = 1 << 60
_UNTIL, _LEAST, _THERE, _DIFFERS = "_cdc_until", "_cdc_least", "_cdc_there", "_cdc_differs"
_MADE: Final = ("before", "changed", "coming", "work")


@dataclass(frozen=True, slots=True)
class Folded:
    """What waiting events make of a relation."""

    change: Change | None
    """None: nothing of it changes."""
    moved: pa.Table | DataFrame | None = None
    """The rows of which the position alone is another."""
    late: int = 0
    """How many events came too late to count."""


def rows_schema(table: SourceTable) -> T.StructType:
    """Return the schema of a relation's rows."""
    return T.StructType([*schema_of([*table.columns, *table.use.hidden]), T.StructField(POSITION, T.StringType())])


def fold(on: Running, kept: Kept, table: SourceTable, *, clock_ms: int | None, reload: bool) -> Folded:
    """Return what changes by the events that wait; with `reload` the table's topic was read from its beginning."""
    reload = reload and table.use.way is not Way.EVENTS  # they come again as they were
    at = place("pending", table.relation)
    ((few,),) = on.state.rows(f"SELECT count(*) FROM {at} WHERE {taken(table, on.limit)}")
    many = in_lake(on.state, table, on.limit)
    if not (few or many or reload):
        return Folded(None)
    is_much = many is not None or few > MOST_OVER
    on.sized(_MANY if many else few + kept.number, whole=is_much or reload)
    if is_much or (reload and kept.base is not None):
        return _on_executors(on, kept, table, many, clock_ms=clock_ms if reload else None, reload=reload)
    return _here(on, kept, table, clock_ms=clock_ms, reload=reload)


def _here(on: Running, kept: Kept, table: SourceTable, *, clock_ms: int | None, reload: bool) -> Folded:
    """Fold few events: the executors are asked for the rows that they are of alone."""
    state, relation = on.state, table.relation
    before, changed, coming = (place(schema, relation) for schema in ("before", "changed", "coming"))
    columns = [
        *((name, engine_type(kind)) for name, kind in (*table.columns, *table.use.hidden)),
        (POSITION, "VARCHAR"),
    ]
    made = ", ".join(f"{quoted(name)} {kind}" for name, kind in columns)
    read = ", ".join(f"CAST({quoted(name)} AS {kind}) AS {quoted(name)}" for name, kind in columns)
    with state.registered("rows_before", _of_waiting(on, kept, table)):
        state.execute(f"CREATE OR REPLACE TABLE {before} ({made})")
        state.execute(f"INSERT INTO {before} SELECT {read} FROM rows_before")
    late = find_changes(table, state, limit=on.limit, clock_ms=clock_ms, reload=reload)
    same = " AND ".join(f"c.{quoted(name)} = b.{quoted(name)}" for name in table.row_key)
    keys, rows, gone = (
        arrow(state.arrow(statement), schema)
        for statement, schema in (
            (f"SELECT * FROM {changed}", some(kept.schema, table.row_key)),
            (f"SELECT * FROM {coming}", kept.schema),
            (f"SELECT * FROM {before} b WHERE EXISTS (SELECT 1 FROM {changed} c WHERE {same})", kept.schema),
        )
    )
    moving = unchanged(table)
    moved = arrow(state.arrow(moving), kept.schema) if moving is not None else nothing(kept.schema)
    for name in (relation, f"{relation} late", f"{relation} events"):
        for schema in _MADE:
            state.execute(f"DROP TABLE IF EXISTS {place(schema, name)}")
    change = Change(keys.num_rows, rows.num_rows - gone.num_rows, (keys, rows, gone)) if keys.num_rows else None
    return Folded(change, moved if moved.num_rows else None, late)


def _of_waiting(on: Running, kept: Kept, table: SourceTable) -> pa.Table:
    """Return the rows that waiting events are of; of a history the newest version of each, as the others stay."""
    if kept.base is None:  # the driver has all rows there are
        return arrow(kept.over, kept.schema) if kept.over is not None else nothing(kept.schema)
    key = ", ".join(quoted(name) for name in table.key)
    waiting_keys = f"SELECT DISTINCT {key} FROM {place('pending', table.relation)} WHERE {taken(table, on.limit)}"
    keys = some(kept.schema, table.key)
    found = arrow(on.state.arrow(waiting_keys), keys)
    rows = kept.frame(on.spark)
    for name in table.key:
        rows = rows.where(_within(name, found.column(name)))
    return collected(_newest_of(kept, table, rows, F.broadcast(frame(on.spark, found, keys))))


def _within(name: str, values: pa.ChunkedArray) -> Column:
    """Return the condition that a column lies between values of a key: files without such rows are not read."""
    of = values.type
    if not len(values) or not (pa.types.is_integer(of) or pa.types.is_string(of) or pa.types.is_date(of)):
        return F.lit(True)  # noqa: FBT003 - a literal column
    ends = pc.min_max(values).as_py()
    return F.col(names.quoted(name)).between(F.lit(ends["min"]), F.lit(ends["max"]))


def _newest_of(kept: Kept, table: SourceTable, rows: DataFrame, keys: DataFrame) -> DataFrame:
    """Return the rows with these keys; of a history the newest version of each key."""
    found = rows.alias("_cdc_b").join(keys.alias("_cdc_k"), kept.same("_cdc_b", "_cdc_k", table.key), "left_semi")
    if table.use.way is not Way.HISTORY:
        return found
    return newest(found, table.key).select(*(F.col(names.quoted(name)) for name in kept.schema.names))


def _on_executors(
    on: Running,
    kept: Kept,
    table: SourceTable,
    many: tuple[int, str] | None,
    *,
    clock_ms: int | None,
    reload: bool,
) -> Folded:
    """Fold many events, which stay with the executors."""
    events = waiting(on, table, many)
    match table.use.way:
        case Way.HISTORY:
            return _versions(on, kept, table, events, reload=reload)
        case Way.EVENTS:
            return _events(on, kept, table, events)
        case _:
            return _rows(on, kept, table, events, clock_ms=clock_ms, reload=reload)


def _rows(
    on: Running, kept: Kept, table: SourceTable, events: DataFrame, *, clock_ms: int | None, reload: bool
) -> Folded:
    before, number = kept.frame(on.spark), 0
    in_time = events
    if table.use.way is Way.STREAM:
        events = on.hold(events.dropDuplicates([POSITION, KEY]))
        late = on.hold(_late(kept, table, before, events))
        number = late.where(F.col(POSITION) >= counted_to(on.state, reload=reload)).count()
        count_late(table.relation, number, on.state)
        in_time = events.join(late, [POSITION, KEY], "left_anti")
    joined = (
        newest(in_time, table.key).alias("_cdc_n").join(before.alias("_cdc_b"), kept.same("_cdc_n", "_cdc_b"), "left")
    )
    new, old = F.col(f"_cdc_n.{POSITION}"), F.col(f"_cdc_b.{POSITION}")
    there, gone = old.isNotNull(), F.col(f"_cdc_n.{OP}") == "d"
    differs = new != old if table.use.arrival else F.lit(False)  # noqa: FBT003 - a literal column
    for name in (name for name, _ in table.columns if name not in table.key):
        differs |= ~F.col(f"_cdc_n.{names.quoted(name)}").eqNullSafe(F.col(f"_cdc_b.{names.quoted(name)}"))
    own = [F.col(f"_cdc_n.{names.quoted(name)}") for name, _ in table.columns]
    arrival = [new.alias(ARRIVAL)] if table.use.arrival else []
    folded = on.hold(
        joined.where(~there | (new >= old)).select(
            *own, *arrival, new,
            gone.alias(OP),
            F.coalesce(new > old, F.lit(False)).alias(_THERE),  # noqa: FBT003 - a literal column
            F.when(gone, there).otherwise(~there | differs).alias(_DIFFERS),
        )
    )  # fmt: skip
    columns, key = _columns(kept.schema.names), _columns(table.key)
    keys = folded.where(_DIFFERS).select(*key)
    if reload:
        unseen = before.alias("_cdc_b").join(events.alias("_cdc_n"), kept.same("_cdc_b", "_cdc_n"), "left_anti")
        if table.use.way is Way.STREAM and clock_ms is not None:  # what the source has cleared away since stays
            end = F.timestamp_millis(F.lit(clock_ms - (table.use.keep_ms or 0))).cast("timestamp_ntz")
            unseen = unseen.where(F.coalesce(time_of(table.use) > end, F.lit(True)))  # noqa: FBT003 - the same
        keys = keys.unionByName(unseen.select(*key))
    rows = folded.where(F.col(_DIFFERS) & ~F.col(OP)).select(*columns)
    moved = None
    if not table.use.arrival:
        moved = folded.where(F.col(_THERE) & ~F.col(_DIFFERS)).select(*columns)
    is_moved = moved is not None and not moved.isEmpty()
    return Folded(_change(on, kept, keys, rows), moved if is_moved else None, number)


def _late(kept: Kept, table: SourceTable, before: DataFrame, events: DataFrame) -> DataFrame:
    """Return late events of a stream, by position and key."""
    was = before.select(*_columns(table.key), F.col(POSITION).alias(_UNTIL), time_of(table.use).alias(WAS))
    known = events.alias("_cdc_n").join(was.alias("_cdc_b"), kept.same("_cdc_n", "_cdc_b"), "left")
    new = known.where(F.col(_UNTIL).isNull() | (F.col(f"_cdc_n.{POSITION}") > F.col(_UNTIL)))
    return late_events(new.select("_cdc_n.*", WAS), table.use, table.key)


def _versions(on: Running, kept: Kept, table: SourceTable, events: DataFrame, *, reload: bool) -> Folded:
    """Find the versions that events begin and end; with `reload` also those with other values than their events."""
    events = on.hold(events.dropDuplicates([POSITION, KEY]))
    last = on.hold(_newest_of(kept, table, kept.frame(on.spark), events.select(*_columns(table.key)).distinct()))
    known = last.select(
        *_columns(table.key),
        F.greatest(F.col(POSITION), F.coalesce(TO_POSITION, F.lit(""))).alias(_UNTIL),
        F.coalesce(VALID_TO, VALID_FROM).alias(_LEAST),
    )
    beside = events.alias("_cdc_n").join(known.alias("_cdc_b"), kept.same("_cdc_n", "_cdc_b", table.key), "left")
    new = beside.where(F.col(_UNTIL).isNull() | (F.col(f"_cdc_n.{POSITION}") > F.col(_UNTIL)))
    own = [name for name, _ in table.columns]
    coming = new.select("_cdc_n.*", _UNTIL, _LEAST).select(
        *_columns([*own, POSITION, OP]),
        F.greatest(committed(), F.col(_LEAST)).alias(AT),
        F.col(_UNTIL).isNull().alias(NEW),
        F.lit(None).cast("string").alias(BEGUN),
    )
    still = last.where(F.col(TO_POSITION).isNull()).select(
        *_columns([*own, POSITION]),
        F.lit(OPEN).alias(OP),
        F.col(VALID_FROM).alias(AT),
        F.lit(False).alias(NEW),  # noqa: FBT003 - a literal column
        F.col(FROM_POSITION).alias(BEGUN),
    )
    found = on.hold(versions(coming.unionByName(still), own, table.key))
    rows = found.select(*_columns(kept.schema.names))
    if reload:
        rows = on.hold(_with_values_of_events(on, kept, table, rows, events))
    return Folded(_change(on, kept, rows.select(*_columns(table.row_key)), rows))


def _with_values_of_events(
    on: Running, kept: Kept, table: SourceTable, rows: DataFrame, events: DataFrame
) -> DataFrame:
    """Return what `spark_apply.views.embedded.fold` makes of versions that have other values than their events."""
    own = [name for name, _ in table.columns if name not in table.key]
    begun = events.where(F.col(OP) != "d").alias("_cdc_n")
    is_of = kept.same("_cdc_b", "_cdc_n", (*table.key, POSITION))
    differs = F.lit(False)  # noqa: FBT003 - a literal column
    for name in own:
        differs |= ~F.col(f"_cdc_n.{names.quoted(name)}").eqNullSafe(F.col(f"_cdc_b.{names.quoted(name)}"))
    there = kept.frame(on.spark).alias("_cdc_b").join(begun, is_of).where(differs).select("_cdc_b.*").alias("_cdc_b")
    more = there.join(rows.alias("_cdc_c"), kept.same("_cdc_b", "_cdc_c"), "left_anti")
    every = rows.unionByName(more).alias("_cdc_b").join(begun, is_of, "left")
    values = {
        name: F.when(F.col(f"_cdc_n.{POSITION}").isNull(), F.col(f"_cdc_b.{names.quoted(name)}")).otherwise(
            F.col(f"_cdc_n.{names.quoted(name)}")
        )
        for name in own
    }
    return every.select(
        *(values.get(name, F.col(f"_cdc_b.{names.quoted(name)}")).alias(name) for name in kept.schema.names)
    )


def _events(on: Running, kept: Kept, table: SourceTable, events: DataFrame) -> Folded:
    """Find the events of a stream of others that are new."""
    is_late = late_by(table.use)
    number = events.where(is_late).count() if table.use.keep_ms is not None else 0
    count_late(table.relation, number, on.state)
    first = earliest(events.where(~is_late), table.key).alias("_cdc_n")
    before = kept.frame(on.spark).select(*_columns(table.key), F.col(POSITION).alias(_UNTIL)).alias("_cdc_b")
    new = first.join(before, kept.same("_cdc_n", "_cdc_b"), "left")
    new = new.where(F.col(_UNTIL).isNull() | (F.col(f"_cdc_n.{POSITION}") < F.col(_UNTIL)))
    rows = on.hold(new.select("_cdc_n.*").select(*_columns(kept.schema.names)))
    return Folded(_change(on, kept, rows.select(*_columns(table.key)), rows), None, number)


def _change(on: Running, kept: Kept, keys: DataFrame, rows: DataFrame) -> Change | None:
    """Return what changes by the rows with these keys that come; None where there are none."""
    keys = on.hold(keys)
    before = kept.frame(on.spark).alias("_cdc_b")
    old = on.hold(before.join(keys.alias("_cdc_c"), kept.same("_cdc_b", "_cdc_c"), "left_semi"))
    count, coming, went = keys.count(), rows.count(), old.count()
    if not count:
        return None
    if max(count, coming, went) <= MOST_OVER:
        return Change(count, coming - went, (collected(keys), collected(rows), collected(old)))
    return Change(count, coming - went, None, (keys, rows, old))


def _columns(of: Sequence[str]) -> list[Column]:
    return [F.col(names.quoted(name)) for name in of]


def moved_on(on: Running, kept: Kept, moved: pa.Table | DataFrame) -> Kept:
    """Note the position of events that have changed nothing: an older one that comes again is then known as old."""
    if isinstance(moved, DataFrame):
        if moved.count() > MOST_OVER:
            keys = moved.select(*(F.col(names.quoted(name)) for name in kept.by))
            return kept.after(on.spark, on.state, Change(0, 0, None, (keys, moved, moved)))
        moved = collected(moved)
    few = (moved.select(list(kept.by)), moved, moved)
    return kept.after(on.spark, on.state, Change(0, 0, few))
