"""Approximate aggregates: distinct values by HyperLogLog, quantiles, the most frequent values.

Whatever the order of rows, and however often they are read, a group's value is the same: it is a function of its rows.
A HyperLogLog sketch is one: it keeps the greatest rank of each register. It is estimated from its registers alone,
which is what the estimate of a union is. So a sketch that grew row by row says what one of all rows says, and what
Spark's own functions of the same library say.

Quantiles and frequent values are not estimated here: the rows of a group are at hand, and their exact answer costs less
than a sketch of them. See docs/adr/0028.
"""

from __future__ import annotations

import importlib.util
import math
import re
from collections.abc import Callable
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, call, case, integer, shown
from spark_apply.views.sql.expressions.guards import only_where
from spark_apply.views.sql.expressions.rules.aggregates import AGGREGATES, Aggregate
from spark_apply.views.sql.expressions.rules.casts import CASTS
from spark_apply.views.sql.expressions.types import FLOATS, INSTANTS, NULL, SKETCH, is_number
from spark_apply.views.sql.reading.written import HllSketchAgg, HllSketchEstimate, HllUnionAgg, Written

APPROXIMATE: Final = Rules()

LG_K: Final = 12
"""A sketch has two to the power of this registers, where nothing else is asked for: as Spark's have."""

AS: Final = "as"
"""In the meta of a sketch: how what it stands for is written."""

_LEAST_LG_K, _MOST_LG_K = 4, 21
_MOST_K: Final = 1000
SKETCHED: Final = (exp.ApproxDistinct, HllSketchAgg)
"""Aggregates that are kept as a sketch of each group."""
_AGGREGATES: Final = (*SKETCHED, HllUnionAgg, exp.ApproxQuantile, exp.ApproxTopK)
OURS: Final = (*_AGGREGATES, HllSketchEstimate)
"""All approximate functions, and those of sketches."""


def check_approximate(node: exp.Expr, written: Written) -> None:
    """Raise ConfigError for an approximate function with arguments that it cannot have."""
    if not isinstance(node, OURS):
        return
    if isinstance(node.this, exp.Distinct):
        way = "leave DISTINCT out: it counts distinct values" if isinstance(node, SKETCHED) else "make the distinct "
        way += "" if isinstance(node, SKETCHED) else "rows in a CTE: SELECT DISTINCT …"
        raise written.refuse(f"{shown(node)} has DISTINCT in it", at=node, hint=way)
    if _is_windowed(node):
        raise written.refuse(
            f"{shown(node)} OVER (…): an approximate value is a group's, not a window's",
            at=node,
            hint="make it in a CTE with GROUP BY, and join it",
        )
    if isinstance(node, exp.ApproxQuantile):
        quantile_of(node, written)
    elif isinstance(node, exp.ApproxTopK):
        most_of(node, written)
    elif isinstance(node, SKETCHED):
        lg_k_of(node, written)


def _require_datasketches(node: exp.Expr, written: Written) -> None:
    if importlib.util.find_spec("datasketches") is None:
        raise written.refuse(
            f"{node.meta.get(AS) or shown(node)} takes the package datasketches, which is not installed here",
            at=node,
            hint="pip install 'cdc-toolkit[sketches]', or count(DISTINCT x), which needs none",
        )


def _is_windowed(node: exp.Expr) -> bool:
    parent = node.parent
    if isinstance(parent, exp.Filter):
        node, parent = parent, parent.parent
    return isinstance(parent, exp.Window) and parent.this is node


def quantile_of(node: exp.Expr, written: Written) -> str:
    """Return which part of the values lies at or below the value, as it is written."""
    quantile = node.args["quantile"]
    text: str = quantile.sql("spark")
    if not re.fullmatch(r"\d*\.?\d+", text) or not 0 <= float(text) <= 1:
        several = isinstance(quantile, exp.Array)
        raise written.refuse(
            f"{shown(node)}: the second argument should be a number from 0 to 1, written out",
            at=node,
            hint="write a column for each of them: approx_percentile(x, 0.5) AS p50, approx_percentile(x, 0.9) AS p90"
            if several
            else "as 0.95: 95 of 100 values lie at or below",
        )
    return text


def most_of(node: exp.Expr, written: Written) -> int:
    """Return how many of the most frequent values are asked for."""
    given = node.args.get("expression")
    text = "" if given is None else given.sql("spark")
    if not re.fullmatch(r"\d{1,4}", text) or not 1 <= int(text) <= _MOST_K:
        raise written.refuse(
            f"{shown(node)}: the second argument should say how many values, from 1 to {_MOST_K}, written out",
            at=node,
            hint="approx_top_k(x, 10)",
        )
    return int(text)


def lg_k_of(node: exp.Expr, written: Written) -> int:
    """Return the logarithm of the number of registers."""
    given = node.args.get("accuracy" if isinstance(node, exp.ApproxDistinct) else "expression")
    if given is None:
        return LG_K
    text = given.sql("spark")
    if isinstance(node, HllSketchAgg):
        if not re.fullmatch(r"\d{1,2}", text) or not _LEAST_LG_K <= int(text) <= _MOST_LG_K:
            raise written.refuse(
                f"{shown(node)}: the second argument should be a whole number from {_LEAST_LG_K} to {_MOST_LG_K}",
                at=node,
                hint="a sketch has two to the power of it registers; left out, it is 12",
            )
        return int(text)
    error = float(text) if re.fullmatch(r"\d*\.?\d+", text) else 0.0
    lg_k = math.ceil(math.log2((1.04 / error) ** 2)) if error else _MOST_LG_K + 1
    if not lg_k <= _MOST_LG_K or error > 1.04 / 2 ** (_LEAST_LG_K / 2):
        raise written.refuse(
            f"{shown(node)}: the second argument should be a relative standard error from 0.001 to 0.26",
            at=node,
            hint="as 0.01; left out, it is 0.016",
        )
    return max(lg_k, _LEAST_LG_K)


def _texts(carry: Carrier, node: exp.Expr) -> exp.Expr:
    """Return what a value is in a sketch: its text behind an underscore, since sketches leave empty texts out."""
    found = carry(node.this)
    if found.type in FLOATS or found.type in ("binary", "struct", "array", NULL):
        why = "NaN and minus zero have texts of their own" if found.type in FLOATS else "it has no text"
        raise carry.written.refuse(
            f"{node.meta.get(AS) or shown(node)} is of {found.type}: {why}",
            at=node,
            hint="cast it to DECIMAL, BIGINT or STRING" if found.type in FLOATS else "count what its rows are known by",
        )
    text = found.sql if found.type == "string" else CASTS[exp.Cast](carry, exp.cast(node.this.copy(), "string")).sql
    return exp.DPipe(this=exp.Literal.string("_"), expression=exp.paren(text))


def values_of(sketch: exp.Expr) -> exp.Expr | None:
    """Return the values that an expression of the engine makes a sketch of; None where it is of other sketches."""
    made = sketch.expressions[0]
    listed = made.this if isinstance(made, exp.Filter) else made
    if not isinstance(listed.expressions[0], exp.Distinct):
        return None
    value = listed.expressions[0].expressions[0]
    return case((made.expression.this, value)) if isinstance(made, exp.Filter) else value


def _list(value: exp.Expr) -> exp.Expr:
    return exp.AnonymousAggFunc(this="list", expressions=[value])


def _aggregate(carry: Carrier, node: exp.Expr) -> Aggregate:
    check_approximate(node, carry.written)
    if isinstance(node, SKETCHED):
        _require_datasketches(node, carry.written)
        lg_k = lg_k_of(node, carry.written)
        values = _list(exp.Distinct(expressions=[_texts(carry, node)]))
        finish: Callable[[exp.Expr], exp.Expr] = lambda of: call("cdc_hll_sketch", of, integer(lg_k))  # noqa: E731
        if isinstance(node, HllSketchAgg):
            return Aggregate(values, f"{SKETCH}{lg_k}", finish)
        return Aggregate(values, "bigint", lambda of: call("cdc_hll_estimate", finish(of)))
    if isinstance(node, HllUnionAgg):
        sketch = carry.sketch(node.this)
        lg = integer(int(sketch.type.removeprefix(SKETCH)))
        return Aggregate(_list(sketch.sql), sketch.type, lambda of: call("cdc_hll_union", of, lg))
    found = carry(node.this)
    if isinstance(node, exp.ApproxQuantile):
        if not (is_number(found.type) or found.type in ("date", *INSTANTS)):
            carry.wrong(node.this, found.type, "a number, a date or a timestamp")
        quantile = exp.Literal.number(quantile_of(node, carry.written))
        ranked = exp.AnonymousAggFunc(this="quantile_disc", expressions=[found.sql, quantile])
        return Aggregate(ranked, found.type, lambda of: of)
    if found.type not in ("int", "bigint", "string", "boolean"):
        carry.wrong(node.this, found.type, "a whole number, a boolean or a text, as the list's elements")
    most = most_of(node, carry.written)
    counted = exp.AnonymousAggFunc(this="histogram", expressions=[found.sql])
    return Aggregate(counted, "array", lambda of: _most_frequent(of, most))


def _most_frequent(histogram: exp.Expr, most: int) -> exp.Expr:
    """Return the most frequent ones of a map of values to counts, of equally frequent ones the smaller first."""

    def each(value: exp.Expr, made: str) -> exp.Expr:
        return call("list_transform", value, exp.Var(this=f"lambda _e: {made}"))

    ranked = each(call("map_entries", histogram), "{'n': -CAST(_e.value AS BIGINT), 'v': _e.key}")
    first = call("list_slice", call("list_sort", ranked), integer(1), integer(most))
    return call("coalesce", each(first, "_e.v"), exp.Array())


@APPROXIMATE.of(*_AGGREGATES, knows="this expression quantile accuracy")
def _plain(carry: Carrier, node: exp.Expr) -> Typed:
    return _aggregate(carry, node).made(lambda function: function)


@APPROXIMATE.of(exp.Filter)
def _filtered(carry: Carrier, node: exp.Expr) -> Typed:
    if not isinstance(node.this, _AGGREGATES):
        return AGGREGATES[exp.Filter](carry, node)
    found = _aggregate(carry, node.this)
    condition = carry.boolean(node.expression.this).sql
    return found.made(lambda function: only_where(function, condition))


@APPROXIMATE.of(exp.Window, knows="this partition_by order spec over")
def _windowed(carry: Carrier, node: exp.Expr) -> Typed:
    check_approximate(node.this.this if isinstance(node.this, exp.Filter) else node.this, carry.written)
    return AGGREGATES[exp.Window](carry, node)


@APPROXIMATE.of(HllSketchEstimate)
def _estimate(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(call("cdc_hll_estimate", carry.sketch(node.this).sql), "bigint")
