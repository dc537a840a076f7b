"""Reads a view's tables as its ``from:`` says: by the relation that has them so, and as they were at a time. Pure.

A table that is looked up ``at: event`` or ``at: arrival`` is replaced by its history, and the join gets a condition
more: the version's interval holds the time, or the position, of the row that looks it up.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlglot
from sqlglot import exp

from spark_apply.views.model.uses import ARRIVAL, FROM_POSITION, TO_POSITION, VALID_FROM, VALID_TO, TableUse, Way
from spark_apply.views.sql.reading.names import find
from spark_apply.views.sql.reading.written import Written, as_written

_NAMES = frozenset(("this", "db", "catalog", "alias", "joins"))
"""Parts of a table in FROM that say which one it is; others, as TABLESAMPLE, say what of it is read."""
_WAY_OUT = "FROM public.sales s JOIN public.rates r ON r.country = s.country, with the table that has time: first"


def as_read(query: exp.Query, uses: Mapping[str, TableUse], written: Written) -> exp.Query:
    """Return the query over the relations of `uses`, by table. Raises ConfigError for a lookup that has no time."""
    if not uses:
        return query
    query = query.copy()
    found: set[str] = set()
    for select in list(query.find_all(exp.Select)):
        found |= _read(select, uses, written)
    missing = next((table for table in uses if table not in found), None)
    if missing is not None:
        raise written.refuse(
            f"from: {missing} is not read by the SQL", hint="leave it out of from:, or read it as schema.table"
        )
    return query


def _read(select: exp.Select, uses: Mapping[str, TableUse], written: Written) -> set[str]:
    """Change one SELECT in place; return the tables of `uses` that it reads."""
    clause = select.args.get("from_")
    if clause is None:
        return set()
    joins: list[exp.Join] = select.args.get("joins") or []
    items = [(clause.this, None), *((join.this, join) for join in joins)]
    tables = [(what, join, uses[name]) for what, join in items if (name := _name(what, uses)) is not None]
    timed = [(what.alias_or_name, use) for what, _, use in tables if use.time is not None]
    star = next((each for each in select.expressions if each.find(exp.Star) and not each.find(exp.AggFunc)), None)
    for _, _, use in tables:
        if star is not None and (use.hidden or use.sent is not None):
            why = "that looks up rows as they were" if use.hidden else f"of {use.table}, whose time is corrected"
            raise written.refuse(f"{as_written(star)} in a SELECT {why}", at=star, hint="write the columns out")
    for what, join, use in tables:
        if use.way is Way.HISTORY:
            _look_up(what, join, use, timed, written)
    for what, _, use in tables:
        _rename(select, what, use, written)
    return {use.table for _, _, use in tables}


def _name(what: exp.Expr, uses: Mapping[str, TableUse]) -> str | None:
    if not isinstance(what, exp.Table) or not what.db:
        return None
    return find(f"{what.db}.{what.name}", uses)


def _look_up(
    what: exp.Expr,
    join: exp.Join | None,
    use: TableUse,
    timed: list[tuple[str, TableUse]],
    written: Written,
) -> None:
    """Add the condition of a lookup to its join."""
    if len(timed) != 1:
        raise written.refuse(
            f"{use.table} is looked up at: {use.at}, and "
            f"{'no table' if not timed else 'more than one table'} beside it has a time",
            at=what,
            hint="say in from: which column is the time of the rows that look it up: {public.sales: {time: sold_at}}",
        )
    if join is None or join.args.get("on") is None or join.side not in ("", "LEFT"):
        raise written.refuse(
            f"{use.table} is looked up at: {use.at}: it is joined by JOIN or LEFT JOIN, with ON", at=what, hint=_WAY_OUT
        )
    (other, stream), own = timed[0], what.alias_or_name
    if use.at == "arrival" and stream.way is Way.EVENTS:
        raise written.refuse(
            f"{use.table} is looked up at: arrival by {stream.table}, whose events are not in the source's log",
            at=what,
            hint="look it up at: event",
        )
    time = stream.time or ""

    def column(table: str, name: str) -> exp.Expr:
        return exp.column(exp.to_identifier(name, quoted=True), table=exp.to_identifier(table, quoted=True))

    if use.at == "event":
        begin, end, at = column(own, VALID_FROM), column(own, VALID_TO), column(other, time)
        always = exp.and_(exp.Is(this=begin, expression=exp.null()), exp.not_(exp.Is(this=at, expression=exp.null())))
        begins = exp.or_(always, exp.LTE(this=begin.copy(), expression=at.copy()))
    else:
        begin, end, at = column(own, FROM_POSITION), column(own, TO_POSITION), column(other, ARRIVAL)
        begins = exp.LTE(this=begin, expression=at)
    ends = exp.or_(exp.Is(this=end, expression=exp.null()), exp.GT(this=end.copy(), expression=at.copy()))
    join.set("on", exp.and_(join.args["on"], exp.paren(begins), exp.paren(ends)))


def _rename(select: exp.Select, what: exp.Expr, use: TableUse, written: Written) -> None:
    """Let a table of FROM be the relation, under the name that it had."""
    if use.relation == use.table and use.sent is None:
        return
    if any(value for name, value in what.args.items() if name not in _NAMES):
        raise written.refuse(f"{as_written(what)} is not known here", at=what, hint="read the table as it is now")
    called, schema = what.alias_or_name, use.table.partition(".")[0]
    for each in select.find_all(exp.Column):
        if each.args.get("db") is not None and each.table == called:
            each.set("db", None)
    made = exp.table_(use.relation.removeprefix(f"{schema}."), db=schema, quoted=True)
    made.set("alias", what.args.get("alias") or exp.TableAlias(this=exp.to_identifier(called, quoted=True)))
    made.meta.update(what.meta)
    line = next((node.meta["line"] for node in what.walk() if "line" in node.meta), None)
    if line is not None:
        made.this.meta["line"] = line
    what.replace(made if use.sent is None else _corrected(made, use))


def _corrected(table: exp.Table, use: TableUse) -> exp.Subquery:
    """Return a table whose time is the instant that the clock of its server would have told."""
    time = use.times[0]

    def value(column: str) -> str:
        return exp.column(exp.to_identifier(column, quoted=True)).sql("spark")

    instant = sqlglot.parse_one(use.instant(value), read="spark")
    every = exp.Star(except_=[exp.column(exp.to_identifier(time, quoted=True))])
    made = exp.select(every, exp.alias_(instant, exp.to_identifier(time, quoted=True))).from_(table)
    return made.subquery(exp.to_identifier(table.alias, quoted=True))
