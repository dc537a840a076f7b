"""The expressions of a block for Spark itself, which takes them as they are written.

What is refused are functions whose value can differ each time, those that make several rows of one, and names of which
it is not known here whether they are aggregates: the rule must know those.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import (
    NEVER,
    NEVER_BY_NAME,
    OF_A_WINDOW,
    ONE_ROW,
    SEVERAL,
    UNKNOWN,
    UNORDERED,
    UNSTABLE,
    several,
    shown,
)
from spark_apply.views.sql.expressions.engines.spark import as_spark
from spark_apply.views.sql.expressions.rules.approximate import check_approximate
from spark_apply.views.sql.expressions.rules.ordered import listed, refuse_other_forms
from spark_apply.views.sql.reading.blocks import Block
from spark_apply.views.sql.reading.written import (
    ABBREVIATED,
    HllSketchAgg,
    HllSketchEstimate,
    HllUnionAgg,
    Written,
)

ANY: Final = "of Spark"
"""The type of every output: Spark says which it is, when it is asked for the view's columns."""

_COLLECTED: Final = (exp.ArrayAgg, exp.ArrayUniqueAgg)
_ORDERING: Final = (exp.ArraySort, exp.ArraySize, exp.ArrayMin, exp.ArrayMax)
"""What makes one value of an array, whatever the order of its elements; of `expression`, another order."""
_SKETCHES: Final = (
    "is a sketch, which `engine: spark` does not keep",
    "write approx_count_distinct(x) over the rows, or say `engine: duckdb`",
)


def checked(block: Block, written: Written) -> tuple[Block, tuple[str, ...]]:
    """Return a block as it is, with the types of its outputs left to Spark; raises for what is refused."""
    for expression in block.expressions():
        for node in expression.walk():
            check_approximate(node, written)
            if isinstance(node, exp.GroupConcat):
                listed(node, written)
            if isinstance(node, exp.ArgMax | exp.ArgMin):
                refuse_other_forms(node, written)
            reason = _reason(node)
            if reason is not None:
                raise written.refuse(f"{shown(node)} {reason[0]}", at=node, hint=reason[1])
    made = replace(
        block,
        outputs={name: as_spark(value) for name, value in block.outputs.items()},
        having=tuple(map(as_spark, block.having)),
        order=tuple(map(as_spark, block.order)),
        types=dict.fromkeys(block.outputs, ANY),
    )
    return made, ()


def _in_no_order(node: exp.Expr) -> bool:
    """Whether the values of several rows are collected for what is the same in whichever order they are."""
    around, part = node.parent, node.arg_key
    while isinstance(around, exp.Filter | exp.Window | exp.ArrayDistinct) and part == "this":
        part = around.arg_key
        around = around.parent
    if isinstance(around, exp.Anonymous):
        return around.name.casefold() == "cardinality"
    return isinstance(around, _ORDERING) and part == "this" and not around.args.get("expression")


def _has_window(node: exp.Expr) -> bool:
    around = node.parent
    while isinstance(around, exp.Filter | exp.IgnoreNulls | exp.RespectNulls):
        around = around.parent
    return isinstance(around, exp.Window)


def _reason(node: exp.Expr) -> tuple[str, str] | None:
    if ABBREVIATED in node.meta:
        return f"has the unit {node.meta[ABBREVIATED]}, which Spark does not know", "write it out, as DAY or MONTH"
    if type(node) in NEVER and not (isinstance(node, _COLLECTED) and _in_no_order(node)):
        return NEVER[type(node)]
    if isinstance(node, OF_A_WINDOW) and not _has_window(node):
        return UNORDERED
    if isinstance(node, HllSketchAgg | HllUnionAgg | HllSketchEstimate):
        return _SKETCHES
    now = isinstance(node, exp.StrToUnix) and node.this is None
    if now or type(node).__name__.startswith(("Current", "Localtime")):
        return UNSTABLE
    if several(node):
        return SEVERAL
    if not isinstance(node, exp.Anonymous):
        return None
    name = node.name.casefold()
    return NEVER_BY_NAME.get(name, None if name in ONE_ROW else UNKNOWN)
