"""From what views.yaml says of a view, in any of its forms, to its plan and the SQL that stands for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import TableUse
from spark_apply.views.pattern.plan import plan_pattern
from spark_apply.views.planning.kept_in_postgres import refuse_elsewhere
from spark_apply.views.search.plan import Match, match_of, plan_match
from spark_apply.views.sql.expressions.engines.dialects import POSTGRES
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.reading.written import tables_named
from spark_apply.views.sql.view_plan import Division, Relation, ViewPlan


class PlannedView(NamedTuple):
    """How a view is kept up to date, and what it is."""

    plan: ViewPlan
    sql: str
    """A SELECT in Spark's SQL: what the view is; of a match, all pairs that there could be."""
    match: Match | None = None


def relations_named(name: str, view: ViewConfig) -> frozenset[str]:
    """Return ``schema.table`` of what a view names, without looking further into it. Raises ConfigError."""
    if view.pattern is not None:
        return frozenset({view.pattern.of})
    if view.match is not None:
        return frozenset({view.match.queries, view.match.docs})
    return tables_named(name, view.sql or "")


def plan_config(
    name: str,
    view: ViewConfig,
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
    *,
    engine: str = "duckdb",
) -> PlannedView:
    """Plan a view over relations, and what `uses` make of them, for an engine.

    Raises ConfigError where it cannot be kept up to date, with the way out.
    """
    if engine == POSTGRES.name:
        refuse_elsewhere(name, view, uses)
    own = f"view.{name}"
    if view.sql is None and own in relations_named(name, view):
        raise ConfigError(f"views.{name}: the view reads itself: {own}", hint="read captured tables or other views")
    if view.pattern is not None:
        return PlannedView(
            *plan_pattern(name, view.pattern, view.key, relations, uses, divided=division_of(view), engine=engine)
        )
    if view.match is not None:
        match = match_of(name, view.match, view.key, relations)
        return PlannedView(plan_match(match, view.key, engine=engine), match.sql, match)
    sql = view.sql or ""
    plan = plan_view(name, sql, view.key, relations, uses=uses, divided=division_of(view), engine=engine)
    return PlannedView(plan, sql)


def division_of(view: ViewConfig) -> Division:
    """Return what a view's file says of its units."""
    return Division(view.refresh == "full", view.unit, view.unit_limit)
