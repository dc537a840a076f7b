"""Keeps every version of every row (SCD type 2), a function of the set of events. DataFrame -> DataFrame, and MERGE.

A history has a row for each event, identified by key and position. The event's own values never change; the rest
follows from the key's other events, as `spark_apply.events.intervals` defines it:

    the source's columns   as the event had them; in a delete the key's alone
    _cdc_position STRING   where the event stands
    _cdc_op STRING         r, c, u, d
    _cdc_at TIMESTAMP      when it was committed (a snapshot's row: read)
    _cdc_from_position     of the interval's first event: identifies the interval with the key; null: no interval
    _cdc_to_position       of the event that ended it; null: open, or no interval
    _cdc_valid_from, _cdc_valid_to TIMESTAMP   the same as times: from <= t < to
    _cdc_is_current BOOLEAN

Rows without an interval (deletes, and events that an update of the same interval followed) match no condition on
these columns. They are kept because a late event may turn them into intervals.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.events.typed import OP, POSITION, SOURCE_MS, row_type
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.names import quoted

AT: Final = "_cdc_at"
FROM_POSITION, TO_POSITION = "_cdc_from_position", "_cdc_to_position"
VALID_FROM, VALID_TO, CURRENT = "_cdc_valid_from", "_cdc_valid_to", "_cdc_is_current"

SAID: Final = (POSITION, OP, AT)
DERIVED: Final = (FROM_POSITION, TO_POSITION, VALID_FROM, VALID_TO, CURRENT)
_KNOWN, _TWICE, _BEGINS, _TIME = "_cdc_known", "_cdc_twice", "_cdc_begins", "_cdc_time"


def history_type(table: TargetTable) -> T.StructType:
    """Return the Spark type of a history: all its columns, in order."""
    text, time = T.StringType(), T.TimestampType()
    kinds = {AT: time, VALID_FROM: time, VALID_TO: time, CURRENT: T.BooleanType()}
    ours = [T.StructField(name, kinds.get(name, text)) for name in (*SAID, *DERIVED)]
    return T.StructType([*row_type(table), *ours])


def changed(known: DataFrame, events: DataFrame, table: TargetTable) -> DataFrame:
    """Return the rows of a history that `events` add or change, with the columns of `history_type`.

    `known` is the history as it is, `events` as `spark_apply.events.typed` gives them; any of them may be known
    already.
    """
    columns = [quoted(column.name) for column in table.columns]
    keys = [quoted(name) for name in table.key]
    derived = F.struct(*DERIVED).alias(_KNOWN)
    touched = events.select(*keys).distinct()
    of_keys = known.join(touched, [*table.key], "left_semi").select(*columns, *SAID, derived)
    at = F.timestamp_millis(F.col(SOURCE_MS)).alias(AT)
    nothing = F.lit(None).cast(of_keys.schema[_KNOWN].dataType).alias(_KNOWN)
    found = folded(of_keys.unionByName(events.select(*columns, POSITION, OP, at, nothing)), table)
    return found.where(F.col(_KNOWN).isNull() | (F.struct(*DERIVED) != F.col(_KNOWN))).drop(_KNOWN)


def folded(events: DataFrame, table: TargetTable) -> DataFrame:
    """Compute the history of events. Their columns are the plain ones and ``_cdc_known`` (null: a new event).

    Of an event that is there twice, the known row is kept.
    """
    tracked = [quoted(c.name) for c in table.columns if c.name not in (*table.key, *table.untracked)]
    by_key = Window.partitionBy(*(quoted(name) for name in table.key))
    ordered, reverse = by_key.orderBy(POSITION), by_key.orderBy(F.col(POSITION).desc())
    twice = F.lag(POSITION).over(by_key.orderBy(POSITION, F.col(_KNOWN).isNull())).eqNullSafe(F.col(POSITION))
    once = events.withColumn(_TWICE, twice).where(~F.col(_TWICE))
    live = F.col(OP) != "d"
    values = F.when(live, F.struct(*tracked, F.lit(1)))
    same = F.coalesce(values == F.lag(values).over(ordered), F.lit(False))  # noqa: FBT003 - a literal column
    later = reverse.rowsBetween(Window.unboundedPreceding, Window.currentRow)  # in ascending order it is quadratic
    marked = once.select("*", (~same).alias(_BEGINS), F.min(AT).over(later).alias(_TIME))
    begins = F.col(_BEGINS)
    so_far = ordered.rowsBetween(Window.unboundedPreceding, Window.currentRow)
    shown = live & F.coalesce(F.lead(begins).over(ordered), F.lit(True))  # noqa: FBT003 - a literal column

    def first(column: str) -> Column:
        return F.last(F.when(begins, F.col(column)), ignorenulls=True).over(so_far)

    def following(column: str) -> Column:
        return F.lead(column).over(ordered)

    return marked.select(
        *(quoted(column.name) for column in table.columns),
        *SAID,
        F.when(shown, first(POSITION)).alias(FROM_POSITION),
        F.when(shown, following(POSITION)).alias(TO_POSITION),
        F.when(shown, first(_TIME)).alias(VALID_FROM),
        F.when(shown, following(_TIME)).alias(VALID_TO),
        (shown & following(POSITION).isNull()).alias(CURRENT),
        _KNOWN,
    )


def merge(table: TargetTable, name: str, view: str) -> str:
    """Return the MERGE of the rows in `view`, as `changed` gives them, into the history `name`."""
    columns = [quoted(field.name) for field in history_type(table)]
    same = " AND ".join(f"t.{column} = s.{column}" for column in (*map(quoted, table.key), POSITION))
    return (  # every name in it is quoted; no value is
        f"MERGE INTO {name} t USING {view} s ON {same} "  # noqa: S608
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f'{column} = s.{column}' for column in DERIVED)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{c}' for c in columns)})"
    )
