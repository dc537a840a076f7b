"""Approximate aggregates and listed texts as Spark 4.0 has them: the same value as the embedded engine's.

A sketch of a union of a sketch with itself is estimated from its registers alone, whatever the order in which it grew.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import call, case, integer
from spark_apply.views.sql.expressions.rules.approximate import lg_k_of, most_of, quantile_of
from spark_apply.views.sql.expressions.rules.ordered import listed
from spark_apply.views.sql.reading.written import HllSketchAgg, HllSketchEstimate, Written, is_called

_OURS: Final = (exp.ApproxDistinct, exp.ApproxQuantile, exp.ApproxTopK, HllSketchAgg, HllSketchEstimate)
_SKETCHES: Final = {"hll_sketch_agg": HllSketchAgg, "hll_sketch_estimate": HllSketchEstimate}

_MOST_FREQUENT: Final = """_l -> get(transform(array(
filter(transform(_l, (_v, _i) -> _i), _i -> _i = 0 OR get(_l, _i) <> get(_l, _i - 1))), _s ->
transform(slice(array_sort(transform(_s, (_p, _j) ->
struct(_p - coalesce(get(_s, _j + 1), size(_l)) AS n, get(_l, _p) AS v))), 1, {}), _r -> _r.v)), 0)"""
"""Of a sorted list, the values of its longest runs: where each begins is `_s`. A list of one element names a value."""


def as_spark(tree: exp.Expr) -> exp.Expr:
    """Return an expression or a query with its approximate functions written for Spark."""
    return _with_likes_apart(tree.transform(_known).transform(_written))


def _with_likes_apart(tree: exp.Expr) -> exp.Expr:
    """Put functions that are written as operators into parentheses: ``b = like(s, 'x')`` is not ``b = s LIKE 'x'``."""
    for node in list(tree.find_all(exp.Like, exp.ILike, exp.RegexpLike, exp.Escape)):
        if is_called(node) and isinstance(node.parent, exp.Predicate):
            apart = exp.Paren()
            node.replace(apart)
            apart.set("this", node)
    return tree


def _known(node: exp.Expr) -> exp.Expr:
    """Return what Spark's dialect has parsed without knowing it."""
    kind = _SKETCHES.get(node.name.lower()) if isinstance(node, exp.Anonymous) else None
    return node if kind is None else kind.from_arg_list(node.expressions)


def _framed(spec: exp.WindowSpec) -> exp.Expr:
    """Write an interval of several units as one literal, for Spark takes no other value in a frame."""
    for side in ("start", "end"):
        bound = spec.args.get(side)
        parts = list(bound.this.flatten()) if isinstance(bound, exp.Paren) and isinstance(bound.this, exp.Add) else []
        if parts and all(isinstance(part, exp.Interval) and isinstance(part.this, exp.Literal) for part in parts):
            text = " ".join(f"{part.name} {part.args['unit']}" for part in parts)
            spec.set(side, exp.Interval(this=exp.Literal.string(text)))
    return spec


def _listed(node: exp.GroupConcat, only: exp.Expr | None) -> exp.Expr:
    """Return listed texts by arrays: Spark's own listagg fails beside other DISTINCT aggregates."""
    found = listed(node, Written("", ""))
    known = exp.Not(this=exp.Is(this=exp.paren(found.value.copy()), expression=exp.Null()))
    counted = known if only is None else case((only.copy(), known))  # AND asks for both sides where the first is NULL
    keys = [exp.alias_(each.this.copy(), f"k{number}") for number, each in enumerate(found.order)]
    row = exp.Struct(expressions=[*keys, exp.alias_(found.value.copy(), "v")])
    rows = exp.ArrayAgg(this=case((counted, row)), nulls_excluded=True)
    in_order = call("array_sort", rows, exp.Var(this=f"(_a, _b) -> {_compared(found.order)}"))
    texts = call("transform", in_order, exp.Var(this="_r -> _r.v"))
    joined = call("array_join", call("array_distinct", texts) if found.distinct else texts, found.separator.copy())
    return exp.paren(case((exp.GT(this=call("count_if", counted.copy()), expression=integer(0)), joined)))


def _by(node: exp.ArgMax | exp.ArgMin) -> exp.Expr:
    """Return max_by or min_by in an order that tells apart what differs."""
    value, by = node.this, node.expression
    known = exp.Not(this=exp.Is(this=exp.paren(by.copy()), expression=exp.Null()))
    made = node.copy()
    made.set("expression", case((known, exp.Struct(expressions=[by.copy(), value.copy()]))))
    return made


def _compared(order: Sequence[exp.Expr], number: int = 0) -> str:
    """Return what is below zero where the row `_a` comes before `_b`, by keys from one on."""
    if number == len(order):
        return "0"
    descends = bool(order[number].args.get("desc"))
    given = order[number].args.get("nulls_first")
    null = -1 if (not descends if given is None else given) else 1
    a, b, less = f"_a.k{number}", f"_b.k{number}", 1 if descends else -1
    return (
        f"CASE WHEN {a} <=> {b} THEN {_compared(order, number + 1)} WHEN {a} IS NULL THEN {null} "
        f"WHEN {b} IS NULL THEN {-null} WHEN {a} < {b} THEN {less} ELSE {-less} END"
    )


def _written(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.WindowSpec):
        return _framed(node)
    if isinstance(node, exp.GroupConcat):
        return _listed(node, None)
    if isinstance(node, exp.ArgMax | exp.ArgMin):
        return _by(node)
    if isinstance(node, exp.Filter) and isinstance(node.this, exp.GroupConcat):
        return _listed(node.this, node.expression.this)
    if isinstance(node, exp.Filter) and isinstance(node.this, _OURS):
        only = case((node.expression.this.copy(), node.this.this.copy()))
        made = node.this.copy()
        made.set("this", only)
        return _written(made)
    if not isinstance(node, _OURS):
        return node
    value, sql = node.this.copy(), Written("", "")
    if isinstance(node, HllSketchEstimate):
        value = as_spark(value)
        return call("hll_sketch_estimate", call("hll_union", value, value.copy()))
    if isinstance(node, exp.ApproxDistinct | HllSketchAgg):
        text = call("concat", exp.Literal.string("_"), value)
        sketch = HllSketchAgg(this=text, expression=integer(lg_k_of(node, sql)))
        if isinstance(node, HllSketchAgg):
            return sketch
        found = call("hll_sketch_estimate", call("hll_union", sketch, sketch.copy()))
        none = exp.EQ(this=exp.Count(this=value.copy()), expression=integer(0))
        return case(
            (none, integer(0)), default=found
        )  # Spark plans NULL for a sketch of a table that it knows is empty
    values = call("array_sort", exp.ArrayAgg(this=value, nulls_excluded=True))
    if isinstance(node, exp.ApproxQuantile):
        rank = exp.Mul(this=exp.Count(this=value.copy()), expression=exp.Literal.number(quantile_of(node, sql)))
        place = call("greatest", exp.Sub(this=call("ceil", rank), expression=integer(1)), integer(0))
        return call("get", values, exp.cast(place, "int"))
    longest = exp.Var(this=_MOST_FREQUENT.format(most_of(node, sql)).replace("\n", " "))
    return call("get", call("transform", call("array", values), longest), integer(0))
