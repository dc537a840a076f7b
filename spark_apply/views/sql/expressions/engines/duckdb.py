"""Aggregates that DuckDB takes in another form alone than PostgreSQL."""

from __future__ import annotations

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import call, case, integer
from spark_apply.views.sql.expressions.guards import is_refused


def in_duckdb(expression: exp.Expr) -> exp.Expr:
    """Return an expression with different texts that may be errors listed by arrays.

    Of DISTINCT with an order DuckDB asks that both are the same value, which nothing is to it that calls error().
    """
    for node in expression.find_all(exp.AnonymousAggFunc):
        first, last = node.expressions[0], node.expressions[-1]
        if isinstance(first, exp.Distinct) and isinstance(last, exp.Order) and is_refused(first):
            whole = node.parent if isinstance(node.parent, exp.Filter) else node
            made = _sorted(whole, first, last)
            if whole is expression:
                return made
            whole.replace(made)
            return in_duckdb(expression)
    return expression


def _sorted(whole: exp.Expr, values: exp.Distinct, order: exp.Order) -> exp.Expr:
    """Return a text as the aggregate `whole`, with its FILTER if it has one, makes it."""

    def aggregate(name: str, of: exp.Expr) -> exp.Expr:
        function = exp.AnonymousAggFunc(this=name, expressions=[of.copy()])
        only = whole.expression if isinstance(whole, exp.Filter) else None
        return function if only is None else exp.Filter(this=function, expression=only.copy())

    way = exp.Literal.string("DESC" if order.expressions[0].args.get("desc") else "ASC")
    texts = call("list_sort", aggregate("array_agg", values), way)
    joined = call("array_to_string", texts, order.this.copy())
    known = exp.GT(this=aggregate("count", values.expressions[0]), expression=integer(0))
    return exp.paren(case((known, joined)))
