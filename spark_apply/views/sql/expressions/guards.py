"""Parts that can fail for a value where another part says that they are not asked for.

Of an operator Spark asks for one side where the other one, usually the left one, is not NULL; the engines for both. So
where the second side is an error for some of its values, the operator is asked where the first one is known, as CASE
says. A result beyond its type is not looked at: it would make a CASE of most arithmetic.

Conditions joined by AND may fail for a value that another one of them leaves out.

Spark asks them row by row in the order in which they are written, and asks no more where one is not true. The engines
ask what costs least first. So one that can fail is asked where those before it are true, as CASE says.

Only those over the same tables count: what is asked of fewer tables is asked before these are joined, by all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import case
from spark_apply.views.sql.reading.blocks import Block, Source, aliases, operand

_NARROW: Final = (exp.DType.INT, exp.DType.BIGINT, exp.DType.DECIMAL)


def may_fail(value: exp.Expr) -> bool:
    """Whether an expression of the engine may be an error: a division, a cast, a result beyond its type."""
    if is_refused(value):
        return True
    if any(each.to.this in _NARROW for each in value.find_all(exp.Cast)):
        return True
    return any(not each.find(exp.Interval) for each in value.find_all(exp.Add, exp.Sub, exp.Mul))


def is_refused(value: exp.Expr) -> bool:
    """Whether there are values for which an expression of the engine is an error as Spark's is."""
    return any(each.name == "error" for each in value.find_all(exp.Anonymous))


def where_known(first: exp.Expr, second: exp.Expr, made: exp.Expr) -> exp.Expr:
    """Return an operator of the engine that does not ask for its second side where the first one is NULL.

    A first side that may be refused itself is not asked for twice: a sum of quotients would double with each of them.
    """
    if not is_refused(second) or is_refused(first) or not aliases(first) or _joins(made):
        return made
    return case((exp.Not(this=exp.Is(this=operand(first.copy()), expression=exp.Null())), made))


def only_where(function: exp.Expr, condition: exp.Expr) -> exp.Filter:
    """Return an aggregate of the engine with FILTER, which asks for its argument in no other rows.

    DuckDB computes it for all rows first.
    """
    made = function.copy()
    for value in [each for part in made.expressions for each in _values(part)]:
        if may_fail(value):
            value.replace(case((condition.copy(), value.copy())))
    return exp.Filter(this=made, expression=exp.Where(this=condition.copy()))


def _values(argument: exp.Expr) -> list[exp.Expr]:
    """Return what an aggregate computes for each row of one of its arguments: it may be DISTINCT, or have an order."""
    if isinstance(argument, exp.Order):
        return [argument.this, *(each.this for each in argument.expressions)]
    return argument.expressions if isinstance(argument, exp.Distinct) else [argument]


def guarded(block: Block) -> Block:
    """Return a block of the embedded engine whose conditions are asked as if in their order."""
    sources, joined = list[Source](), list[exp.Expr]()
    for source in block.sources:
        sources.append(replace(source, on=_each(source.on, () if source.optional else joined)))
        if not source.optional:
            joined += source.on
    return replace(block, sources=tuple(sources), where=_each(block.where, joined), having=_each(block.having, ()))


def _each(conditions: Sequence[exp.Expr], before: Iterable[exp.Expr]) -> tuple[exp.Expr, ...]:
    known, found = list(before), list[exp.Expr]()
    for condition in conditions:
        of = aliases(condition)
        guards = [each for each in known if aliases(each) <= of and not _joins(each)]
        found.append(_behind(guards, condition) if may_fail(condition) and not _joins(condition) else condition)
        known.append(condition)
    return tuple(found)


def _joins(condition: exp.Expr) -> bool:
    """Whether an engine looks rows up by it: as part of a CASE it could not."""
    if not isinstance(condition, exp.EQ | exp.NullSafeEQ):
        return False
    sides = aliases(condition.this), aliases(condition.expression)
    return all(sides) and not sides[0] & sides[1]


def _behind(guards: Sequence[exp.Expr], condition: exp.Expr) -> exp.Expr:
    """Return a condition that is asked where each of the guards is true, each of which is asked so, too."""
    found = condition
    for guard in reversed(guards):
        found = case((guard.copy(), found), default=exp.false())
    return found
