"""Keeps every version of a row in PostgreSQL: `spark_apply.events.history` as one SQL statement. Pure.

A history's table has the columns that are listed there, in that order, and the primary key (key, ``_cdc_position``).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from psycopg2 import sql

from spark_apply.events.history import AT, CURRENT, DERIVED, FROM_POSITION, SAID, TO_POSITION, VALID_FROM, VALID_TO
from spark_apply.events.typed import OP, POSITION
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.stores.postgres.copies.tables import listed
from spark_apply.stores.postgres.values.types import pg_type

_WAS: Final = {name: f"{name}_was" for name in DERIVED}
_AS_TEXT: Final = ("json", "numeric")
"""Types without equality, or in which equal values may be written differently."""

_FOLD: Final = """
WITH touched AS (SELECT DISTINCT {key} FROM {stage} WHERE {position} < {limit}),
once AS (
    SELECT DISTINCT ON ({key}, {position}) * FROM (
        SELECT {said}, true AS _cdc_known, {derived_as_was} FROM {own} JOIN touched USING ({key})
        UNION ALL
        SELECT {said}, false, {nothing} FROM {stage} WHERE {position} < {limit}
    ) events ORDER BY {key}, {position}, _cdc_known DESC
),
runs AS (
    SELECT *,
        ({op} <> 'd' AND lag({op}) OVER of_key <> 'd' AND {tracked} IS NOT DISTINCT FROM lag({tracked}) OVER of_key)
            IS NOT TRUE AS _cdc_begins,
        min({at}) OVER (PARTITION BY {key} ORDER BY {position} DESC ROWS UNBOUNDED PRECEDING) AS _cdc_time
    FROM once WINDOW of_key AS (PARTITION BY {key} ORDER BY {position})
),
placed AS (
    SELECT *,
        {op} <> 'd' AND coalesce(lead(_cdc_begins) OVER of_key, true) AS _cdc_shown,
        max({position}) FILTER (WHERE _cdc_begins) OVER so_far AS _cdc_first_position,
        max(_cdc_time) FILTER (WHERE _cdc_begins) OVER so_far AS _cdc_first_time,
        lead({position}) OVER of_key AS _cdc_next_position,
        lead(_cdc_time) OVER of_key AS _cdc_next_time
    FROM runs WINDOW of_key AS (PARTITION BY {key} ORDER BY {position}), so_far AS (of_key ROWS UNBOUNDED PRECEDING)
),
found AS (
    SELECT {said}, _cdc_known, {was},
        CASE WHEN _cdc_shown THEN _cdc_first_position END AS {from_position},
        CASE WHEN _cdc_shown THEN _cdc_next_position END AS {to_position},
        CASE WHEN _cdc_shown THEN _cdc_first_time END AS {valid_from},
        CASE WHEN _cdc_shown THEN _cdc_next_time END AS {valid_to},
        _cdc_shown AND _cdc_next_position IS NULL AS {current}
    FROM placed
)
INSERT INTO {rows} ({said}, {derived})
SELECT {said}, {derived} FROM found WHERE NOT _cdc_known OR ({derived}) IS DISTINCT FROM ({was})
ON CONFLICT ({key}, {position}) DO UPDATE SET {changes}
"""
"""Positions ascend and times do not decrease, so the maximum so far is that of the run's first event."""


def fold_statement(
    table: TargetTable, rows: sql.Identifier, own: sql.Composable, stage: sql.Identifier, limit: str
) -> sql.Composed:
    """Add the events of `stage` before `limit` to the history `rows`, and update the intervals of the keys' other rows.

    Unchanged rows are not written. `own` are the rows that it has itself, as `FROM` names them.
    """
    columns = [column.name for column in table.columns]
    return sql.SQL(_FOLD).format(
        rows=rows,
        own=own,
        stage=stage,
        limit=sql.Literal(limit),
        key=listed(table.key),
        said=listed([*columns, *SAID]),
        tracked=_tracked(table),
        derived=listed(DERIVED),
        was=listed(_WAS.values()),
        derived_as_was=_joined("{} AS {}", _WAS.items()),
        nothing=sql.SQL(", ").join([sql.NULL] * len(DERIVED)),
        changes=_joined("{} = excluded.{}", ((name, name) for name in DERIVED)),
        position=sql.Identifier(POSITION),
        op=sql.Identifier(OP),
        at=sql.Identifier(AT),
        from_position=sql.Identifier(FROM_POSITION),
        to_position=sql.Identifier(TO_POSITION),
        valid_from=sql.Identifier(VALID_FROM),
        valid_to=sql.Identifier(VALID_TO),
        current=sql.Identifier(CURRENT),
    )


def _tracked(table: TargetTable) -> sql.Composed:
    """Return the tracked columns as one value, equal for equal versions; null is a value like any other."""
    columns = [column for column in table.columns if column.name not in (*table.key, *table.untracked)]
    return sql.SQL("ROW({})").format(sql.SQL(", ").join(map(_comparable, columns)))


def _comparable(column: TargetColumn) -> sql.Composable:
    named = sql.Identifier(column.name)
    return sql.SQL("{}::text").format(named) if pg_type(column) in _AS_TEXT else named


def _joined(each: str, pairs: Iterable[tuple[str, str]]) -> sql.Composed:
    return sql.SQL(", ").join(sql.SQL(each).format(sql.Identifier(one), sql.Identifier(two)) for one, two in pairs)
