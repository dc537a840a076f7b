"""The clock in a view: comparisons that change by time alone, the units they touch, and when the next one changes.

``e <= clock()`` and ``e > clock()`` change when the clock comes to e, so between clocks c0 and c1 if c0 < e <= c1.
``e < clock()`` and ``e >= clock()`` change when it has passed e: if c0 <= e < c1. The clock counts microseconds, so
that is one microsecond later.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import shown
from spark_apply.views.sql.expressions.engines.dialects import DUCKDB, current
from spark_apply.views.sql.expressions.guards import may_fail
from spark_apply.views.sql.reading.blocks import CLOCK, Block, aliases, has_clock
from spark_apply.views.sql.reading.written import Written
from spark_apply.views.sql.statements import block as to
from spark_apply.views.sql.statements.asked import where_asked
from spark_apply.views.sql.statements.rule import Units, conditions_over, connected, select_units

ALLOWED = (
    "compare clock(), or clock() less an interval, by <, <=, >, >= or BETWEEN with an expression over columns, "
    "as in `o.placed_at + INTERVAL 10 MINUTES <= clock()`"
)

_PASSES: Final[dict[type[exp.Expr], type[exp.Expr]]] = {
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
}
"""A comparison, and the same one with its sides exchanged."""

_MICROSECOND: Final = "INTERVAL '1 MICROSECOND'"
_BY_MONTHS = ("MONTH", "YEAR", "QUARTER")


@dataclass(frozen=True, slots=True)
class Deadline:
    """An instant of each row of FROM, at which the clock changes what a block makes of the row."""

    at: exp.Expr
    passed: bool
    """It changes when the clock has passed the instant, not when it comes to it."""


def deadlines(block: Block, written: Written, needed: frozenset[str]) -> tuple[Deadline, ...]:
    """Return the deadlines of a block; raises where the clock is used in a way that has none."""
    timed = frozenset(source.alias for source in block.sources if source.optional and any(map(has_clock, source.on)))
    found = dict.fromkeys(
        deadline
        for expression in block.expressions()
        if has_clock(expression)
        for deadline in _of(expression, written, timed, aggregated=block.group is not None)
    )
    _check_optional(block, written, needed | {alias for each in found for alias in aliases(each.at)})
    return tuple(found)


def due(block: Block, units: Units, deadline: Deadline) -> Iterator[str]:
    """Yield statements for the units that this deadline touches between the two clocks."""
    after, until = ("<=", "<") if deadline.passed else ("<", "<=")
    instant = _instant(deadline)
    passing = f"{current().clock_before} {after} {instant} AND {instant} {until} {current().clock_after}"
    sources = connected(block, aliases(deadline.at, *(value for _, value in units)))
    rows = to.from_clause(sources, to.AFTER, keep=lambda each: not has_clock(each))
    for select in select_units(units, to.BOTH) if units else ("SELECT DISTINCT TRUE AS _whole",):
        yield select + rows + to.where([*conditions_over(block, sources), passing])


def next_due(block: Block, deadline: Deadline) -> str:
    """Return the statement for the first instant after the clock at which this deadline touches a unit.

    Or an earlier one: a deadline of one source is read from that alone, since the statement runs at each step.
    """
    instant = _instant(deadline)
    own = aliases(deadline.at)
    sources = tuple(source for source in block.sources if source.alias in own)
    if len(sources) != 1:
        sources = connected(block, own)
    rows = to.from_clause(sources, to.AFTER, keep=lambda each: not has_clock(each))
    later = f"{instant} {'>=' if deadline.passed else '>'} {current().clock_after}"
    first = f"min({instant}) + {_MICROSECOND}" if deadline.passed else f"min({instant})"
    return f"SELECT {first} AS next_due{rows}{to.where([*conditions_over(block, sources), later])}"


def _instant(deadline: Deadline) -> str:
    """Return the instant of a row. A row that has none, as a value in it is wrong, is in quarantine with its unit."""
    found = to.text(deadline.at)
    if current() is DUCKDB and may_fail(deadline.at):
        found = f"TRY({to.text(to.without_error(deadline.at))})"
    return f"CAST({found} AS {current().instant})"


def _of(expression: exp.Expr, written: Written, timed: frozenset[str], *, aggregated: bool) -> Iterator[Deadline]:
    """Yield the deadlines of one expression. The rows of `timed` sources may be others at another time."""
    for clock in expression.find_all(exp.Var):
        if clock.name != CLOCK:
            continue
        comparison = clock.find_ancestor(exp.LT, exp.LTE, exp.GT, exp.GTE)
        found = None if comparison is None else _compared(comparison, clock)
        if comparison is None or found is None:
            context = comparison or clock.parent or clock
            raise written.refuse(
                f"clock() is used in a way of which it is not known when it changes: {shown(context)}",
                at=clock,
                hint=ALLOWED,
            )
        _check_instant(found.at, comparison, written, aggregated=aggregated)
        yield replace(found, at=where_asked(found.at, comparison, timed))


def _check_instant(at: exp.Expr, comparison: exp.Expr, written: Written, *, aggregated: bool) -> None:
    inside_an_aggregate = comparison.find_ancestor(exp.AggFunc, exp.Filter, exp.AnonymousAggFunc) is not None
    if at.find(exp.Window) or (aggregated and not inside_an_aggregate and at.find(exp.AggFunc)):
        raise written.refuse(
            f"clock() is compared with an aggregate or a window: {shown(comparison)}",
            at=comparison,
            hint="make the aggregate in a CTE, and compare its column with clock() in a query over the CTE",
        )
    if not any(at.find_all(exp.Column)):
        raise written.refuse(
            f"clock() is compared with what is no column: {shown(comparison)}", at=comparison, hint=ALLOWED
        )


def _compared(comparison: exp.Expr, clock: exp.Expr) -> Deadline | None:
    """Return what a comparison says, if it is of clock() with a value that does not depend on it."""
    kind: type[exp.Expr] = type(comparison)
    side, other = comparison.this, comparison.expression
    if not _within(clock, side):
        side, other, kind = other, side, _PASSES[kind]
    if has_clock(other):
        return None
    # now: side (of the clock) <kind> other
    while not (isinstance(side, exp.Var) and side.name == CLOCK):
        if isinstance(side, exp.Paren):
            side = side.this
        elif isinstance(side, exp.Sub) and _within(clock, side.this) and _fixed(other):
            other = exp.Add(this=exp.paren(side.expression.copy()), expression=other.unnest().copy())
            side = side.this
        elif isinstance(side, exp.Sub | exp.Add) and _fixed(side.expression):
            opposite = exp.Add if isinstance(side, exp.Sub) else exp.Sub
            other = opposite(this=exp.paren(other.copy()), expression=side.expression.copy())
            side = side.this
        else:
            return None
    return Deadline(at=other, passed=kind in (exp.GT, exp.LTE))


def _fixed(interval: exp.Expr) -> bool:
    """Whether this is an interval that is as long wherever it begins, so that it can change sides."""
    interval = interval.unnest()
    if isinstance(interval, exp.Add):  # of several units
        return _fixed(interval.this) and _fixed(interval.expression)
    if not isinstance(interval, exp.Interval):
        return False
    unit = str(interval.args.get("unit") or "").upper()
    value = interval.this.name.upper() if interval.this else ""
    return not any(word in unit or word in value for word in _BY_MONTHS) and not interval.find(exp.Column)


def _within(node: exp.Expr, root: exp.Expr) -> bool:
    return any(each is node for each in root.walk())


def _check_optional(block: Block, written: Written, needed: frozenset[str]) -> None:
    """Refuse a clock in the ON of an optional source whose rows are needed: it would have to be known as it was."""
    there = {source.alias for source in connected(block, needed)}
    for source in block.sources:
        timed = next((each for each in source.on if has_clock(each)), None)
        if timed is not None and source.optional and source.alias in there:
            raise written.refuse(
                f"clock() stands in the ON of a LEFT JOIN, or in EXISTS, NOT EXISTS or IN: {shown(timed)}",
                at=timed,
                hint=f"make a column of a CTE of it, SELECT DISTINCT …, {shown(timed)} AS due FROM …, and join that",
            )
