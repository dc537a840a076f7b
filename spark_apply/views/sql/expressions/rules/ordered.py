"""Aggregates of an order that is the same each time: `listagg` (`string_agg`), `max_by`, `min_by`.

Rows that are equal in what they are ordered by could come in any order. So the value itself is put behind it, for all
engines: what is still equal then is the same value, and changes places unseen.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import LISTAGG, shown
from spark_apply.views.sql.reading.written import Written


class Listed(NamedTuple):
    """What is listed, and in which order."""

    value: exp.Expr
    distinct: bool
    separator: exp.Literal
    order: list[exp.Expr]
    """Each an `exp.Ordered`, in Spark's words; with the value itself among them."""


_MORE: Final = {
    "count": "a number of values: keep the first rows of row_number() OVER (PARTITION BY … ORDER BY … a key)",
    "on_overflow": "ON OVERFLOW: leave it out",
}


def refuse_other_forms(node: exp.Expr, written: Written) -> None:
    """Raise ConfigError for an aggregate of an order that is one of a window, or has parts that Spark has not."""
    for part, way_out in _MORE.items():
        if node.args.get(part):
            said, _, hint = way_out.partition(": ")
            raise written.refuse(f"{shown(node)} has {said}, which Spark does not know", at=node, hint=hint)
    around = node.parent.parent if isinstance(node.parent, exp.Filter) else node.parent
    if isinstance(around, exp.Window):
        raise written.refuse(
            f"{shown(node)} OVER (…) is not known here: it is a group's, not a window's",
            at=node,
            hint="make it in a CTE with GROUP BY, and join it",
        )


def listed(node: exp.GroupConcat, written: Written) -> Listed:
    """Take a listagg apart. Raises ConfigError for one whose value is not the same each time, or none of Spark's."""
    inner, order = node.this, list[exp.Expr]()
    if isinstance(inner, exp.Order):
        inner, order = inner.this, inner.expressions
    if not order:
        raise written.refuse(f"{shown(node)} depends on the order in which rows are read", at=node, hint=LISTAGG)
    refuse_other_forms(node, written)
    distinct = isinstance(inner, exp.Distinct)
    value = inner.expressions[0] if distinct else inner
    separator = node.args.get("separator")
    if not isinstance(separator, exp.Literal) or not separator.is_string:
        raise written.refuse(f"{shown(node)}: its separator should be a text, written out", at=node, hint=LISTAGG)
    if distinct and [each.this for each in order] != [value]:
        raise written.refuse(
            f"{shown(node)} is DISTINCT, and ordered by something else",
            at=node,
            hint=f"ORDER BY {shown(value)}, or list the rows of a CTE with GROUP BY",
        )
    if value not in [each.this for each in order]:
        order = [*order, exp.Ordered(this=value.copy(), nulls_first=True)]
    return Listed(value, distinct, separator, order)
