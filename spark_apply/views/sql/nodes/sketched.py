"""Divides a block with sketches into nodes: one keeps a sketch of each group, another one the group's exact aggregates.

A sketch that is kept grows by the rows that come, where its group loses no value: see
`spark_apply.views.sql.statements.growing`. What the block gives is then made of one row of each node.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import integer, shown
from spark_apply.views.sql.expressions.rules.approximate import AS, SKETCHED, check_approximate, lg_k_of, values_of
from spark_apply.views.sql.expressions.types import is_sketch
from spark_apply.views.sql.nodes.node import Branch
from spark_apply.views.sql.reading.blocks import Block, Input, Side, Source, column
from spark_apply.views.sql.reading.written import HllSketchAgg, HllSketchEstimate, Written
from spark_apply.views.sql.statements.growing import can_grow, grown
from spark_apply.views.sql.view_plan import Node

_SKETCHES, _EXACT = "_sketches", "_exact"


def has_sketches(block: Block) -> bool:
    """Whether a block has groups with sketches, that can be kept: it is no window, and not one row of all."""
    parts = [*block.outputs.values(), *block.having, *block.order]
    return bool(block.group) and not block.windows and any(each.find(*SKETCHED) for each in parts)


def over_sketches(block: Block, node: Callable[[Block], Input], written: Written) -> Block:
    """Return a block over kept sketches that gives what `block` gives; `node` makes a node of a block."""
    known = {value: name for name, value in reversed(list(block.outputs.items()))}
    groups = {known.get(value, f"_g{number}"): value for number, value in enumerate(block.group or ())}
    parts = _Parts(dict(groups), written)
    outputs = {name: parts.replaced(value) for name, value in block.outputs.items()}
    having = tuple(parts.replaced(value) for value in block.having)
    order = tuple(parts.replaced(value) for value in block.order)
    inner = replace(block, having=(), distinct=False, order=(), limit=None)
    kept = node(replace(inner, outputs={**groups, **parts.sketches}))
    sources: tuple[Source, ...] = (Source(_SKETCHES, kept, Side.INNER, ()),)
    if parts.exact:
        exact = node(replace(inner, outputs={**groups, **parts.exact}))
        same = tuple(exp.NullSafeEQ(this=column(_SKETCHES, name), expression=column(_EXACT, name)) for name in groups)
        sources = (*sources, Source(_EXACT, exact, Side.INNER, same))
    return Block(sources, outputs, {}, having, distinct=block.distinct, order=order, limit=block.limit, groups=True)


def growing(node: Node, branches: Sequence[Branch]) -> Node:
    """Return a node whose sketches grow, if it is one of groups and their sketches."""
    block, units = branches[0].block, branches[0].units
    sketches = {name: value for name, value in block.outputs.items() if is_sketch(block.types[name])}
    values = [of for value in sketches.values() if (of := values_of(value)) is not None]
    others = block.outputs.keys() - sketches.keys() - {name for name, _ in units}
    made_of_values = bool(values) and len(values) == len(sketches) and not others
    if len(branches) != 1 or not made_of_values or not units or not can_grow(block, units):
        return node
    return replace(node, restricted=grown(node.name, block, units, values))


@dataclass(slots=True)
class _Parts:
    """What is taken out of a block's expressions, by the names of the nodes' columns."""

    groups: dict[str, exp.Expr]
    written: Written
    sketches: dict[str, exp.Expr] = field(default_factory=dict)
    exact: dict[str, exp.Expr] = field(default_factory=dict)

    def replaced(self, value: exp.Expr) -> exp.Expr:
        """Return an expression over the nodes' columns."""
        group = next((name for name, of in self.groups.items() if of == value), None)
        if group is not None:
            return _placed(column(_SKETCHES, group), value)
        bare = value.this if isinstance(value, exp.Filter) else value
        if isinstance(bare, SKETCHED):
            return self._sketch(value, bare)
        if isinstance(bare, exp.AggFunc):
            return _placed(column(_EXACT, self._named(self.exact, "_e", value)), value)
        made = value.copy()
        for child, own in zip(list(made.iter_expressions()), list(value.iter_expressions()), strict=True):
            child.replace(self.replaced(own))
        return made

    def _sketch(self, value: exp.Expr, bare: exp.Expr) -> exp.Expr:
        check_approximate(bare, self.written)
        lg_k = lg_k_of(bare, self.written)
        made = HllSketchAgg(this=bare.this.copy(), expression=integer(lg_k))
        made.meta.update(bare.meta, **{AS: shown(bare)})
        kept: exp.Expr = made
        if value is not bare:
            kept = exp.Filter(this=made, expression=value.args["expression"].copy())
        found = _placed(column(_SKETCHES, self._named(self.sketches, "_s", kept)), bare)
        return found if isinstance(bare, HllSketchAgg) else HllSketchEstimate(this=found)

    def _named(self, known: dict[str, exp.Expr], prefix: str, value: exp.Expr) -> str:
        found = next((name for name, of in known.items() if of == value), None)
        if found is None:
            found = f"{prefix}{len(known)}"
            while found in {name.casefold() for name in self.groups}:
                found = f"_{found}"
            known[found] = value
        return found


def _placed(made: exp.Expr, at: exp.Expr) -> exp.Expr:
    """Return a part in the place of another one, whose line an error names."""
    first = next((part.meta for part in at.walk() if "line" in part.meta), {})
    made.meta.update(first)
    return made
