"""Refuses what PostgreSQL does not keep or compute for views, by name, before anything is touched."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.sql.expressions.engines.postgres import LONGEST_NAME, SYSTEM_COLUMNS
from spark_apply.views.sql.view_plan import Relation, ViewPlan

_WAY_OUT: Final = "say `engine: duckdb`, or write the view into a views.yaml of its own, with that engine"
_MOST_COLUMNS: Final = 1_590
"""A table has 1,600, some of which are the engine's."""
_WAYS: Final = {
    Way.STREAM: "{}.keep: PostgreSQL leaves out nothing that comes late",
    Way.HISTORY: "{}.at: PostgreSQL keeps rows as they are now, not as they were",
    Way.EVENTS: "{}: PostgreSQL reads captured tables, no topics of other applications",
}


def refuse_elsewhere(name: str, view: ViewConfig, uses: Mapping[str, TableUse]) -> None:
    """Raise ConfigError for a view of a form, or over tables read in a way, that PostgreSQL does not have."""
    if view.match is not None:
        raise ConfigError(f"views.{name}.match: PostgreSQL finds no searches", hint=_WAY_OUT)
    for table, use in uses.items():
        if use.way in _WAYS:
            where = f"from.{table}" if use.way is not Way.EVENTS else table
            raise ConfigError(f"views.{name}.{_WAYS[use.way].format(where)}", hint=_WAY_OUT)


def refuse_columns(plan: ViewPlan, read: Collection[Relation]) -> None:
    """Raise ConfigError for columns that no table of PostgreSQL can have: of the view, of what it reads, and between.

    A column of a table that is called as one of PostgreSQL's own is left out: only where it is read it is refused.
    """
    own = {column for node in plan.nodes for column in (*node.columns, *node.units)}
    own.update(column for of in read for column in of.change_columns)
    _refuse(plan.name, next(iter(sorted(own & SYSTEM_COLUMNS)), None), "has a name that each table of PostgreSQL uses")
    own.update(column for of in read for column in of.columns)
    long = next((column for column in sorted(own) if len(column.encode()) > LONGEST_NAME), None)
    _refuse(plan.name, long, f"has a name of more than {LONGEST_NAME} bytes, which PostgreSQL cuts off")
    most = max(map(len, [*(node.columns for node in plan.nodes), *(of.columns for of in read)]))
    if most > _MOST_COLUMNS:
        msg = f"views.{plan.name}: PostgreSQL keeps no table of {most:,} columns, as this view has, or what it reads"
        raise ConfigError(msg, hint=_WAY_OUT)


def _refuse(view: str, column: str | None, why: str) -> None:
    if column is not None:
        hint = f"give it another name in the SQL, or {_WAY_OUT}"
        raise ConfigError(f"views.{view}: the column {column} {why}", hint=hint)
