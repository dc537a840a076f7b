"""From a pattern of views.yaml to the plan of a view: each condition is checked on its own, then the SQL is planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from cdc.config.view_pattern import PatternConfig
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import TableUse
from spark_apply.views.pattern.lowered import pattern_sql
from spark_apply.views.sql.expressions.types import INSTANTS, type_of
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.reading.names import find
from spark_apply.views.sql.reading.written import SparkSql, Written, as_written, did_you_mean
from spark_apply.views.sql.view_plan import Division, Relation, ViewPlan

_BROKEN = (SqlglotError, AttributeError, LookupError, TypeError, ValueError, RecursionError)


def plan_pattern(
    name: str,
    pattern: PatternConfig,
    key: Sequence[str],
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
    *,
    divided: Division,
    engine: str,
) -> tuple[ViewPlan, str]:
    """Return how a pattern is kept up to date, and the SELECT that it is. Raises ConfigError."""
    relation = _relation(name, pattern.of, relations)
    for column in pattern.by:
        if find(column, relation.columns) is None:
            msg = f"views.{name}.pattern.by: {relation.name} has no column {column}"
            raise ConfigError(msg, hint=did_you_mean(column, relation.columns))
    use = uses.get(relation.name)
    time = _time(name, pattern.time or (use.time if use is not None else None), relation)
    for element, condition in pattern.define.items():
        _check(name, element, condition, relation, engine)
    for column in key:
        if column not in pattern.columns:
            msg = f"views.{name}.key: {column} is no column of the view"
            raise ConfigError(msg, hint=did_you_mean(column, pattern.columns))
    sql = pattern_sql(replace(pattern, of=relation.name), time, relation.change_columns)
    return plan_view(name, sql, key, relations, uses=uses, divided=divided, part="pattern", engine=engine), sql


def _relation(name: str, asked: str, relations: Mapping[str, Relation]) -> Relation:
    found = find(asked, relations)
    if found is None:
        near = [each for each in relations if each.rpartition(".")[2].casefold() == asked.casefold()]
        msg = f"views.{name}.pattern.of: the table {asked} is not captured"
        raise ConfigError(msg, hint=f"did you mean {near[0]}?" if near else did_you_mean(asked, relations))
    return relations[found]


def _time(name: str, asked: str | None, relation: Relation) -> str:
    """Return the column by which rows are in order."""
    times = [column for column, kind in relation.columns.items() if type_of(kind) in INSTANTS]
    if asked is not None:
        found = find(asked, relation.columns)
        if found is None:
            msg = f"views.{name}.pattern.time: {relation.name} has no column {asked}"
            raise ConfigError(msg, hint=did_you_mean(asked, times or relation.columns))
        if found not in times:
            msg = f"views.{name}.pattern.time: column {found} of {relation.name} is no timestamp"
            raise ConfigError(msg, hint=f"timestamps of it are: {', '.join(times)}" if times else "it has none")
        return found
    if len(times) != 1:
        said = f"{', '.join(times)} are timestamps" if times else "it has no timestamp"
        msg = f"views.{name}.pattern.time: it is not known when a row of {relation.name} happened: {said}"
        hint = f"time: {times[0]}" if times else "a pattern needs a column that says when a row happened"
        raise ConfigError(msg, hint=hint)
    return times[0]


def _check(name: str, element: str, condition: str, relation: Relation, engine: str) -> None:
    """Refuse what is no condition over the columns of one row. Raises ConfigError."""
    part = f"pattern.define.{element}"
    written = Written(name, condition, part)
    try:
        trees = sqlglot.parse(condition, read=SparkSql)
    except _BROKEN as exc:
        raise written.refuse("this is no condition in Spark's SQL", hint=_EXAMPLE) from exc
    tree = trees[0] if len(trees) == 1 else None
    if ";" in condition and sqlglot.tokenize(condition, read="spark")[-1].text == ";":
        tree = None
    if not isinstance(tree, exp.Condition):
        raise written.refuse("this is no condition over the columns of a row", hint=_EXAMPLE)
    wrong = tree.find(exp.Query, exp.AggFunc, exp.Window)
    if wrong is not None:
        raise written.refuse(f"{as_written(wrong)} is not of one row", hint="make it a column in a view, and read that")
    if any(each.name.casefold() == "clock" for each in tree.find_all(exp.Anonymous)):
        raise written.refuse("clock() is not of a row", hint="say durations in the pattern: placed !paid{10m}")
    key = ", ".join("`" + column.replace("`", "``") + "`" for column in relation.change_columns)
    table = ".".join("`" + word.replace("`", "``") + "`" for word in relation.name.split(".", 1))
    sql = f"SELECT {key}, CASE WHEN ({condition}\n) THEN 1 ELSE 0 END AS _is FROM {table}"
    plan_view(name, sql, relation.change_columns, {relation.name: relation}, part=part, engine=engine)


_EXAMPLE = "as in: status = 'paid'"
