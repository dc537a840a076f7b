"""An instant is asked for where the comparison with it is: CASE, AND and OR may keep it from rows for which it fails.

Deadlines are looked for among all rows, so what these say stands around them, too. A condition that cannot be asked
there is left out: then the instant is asked for in more rows than it need be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import case
from spark_apply.views.sql.expressions.engines.dialects import DUCKDB, current
from spark_apply.views.sql.expressions.guards import may_fail
from spark_apply.views.sql.reading.blocks import aliases, has_clock

_OF_ROWS = (exp.AggFunc, exp.AnonymousAggFunc, exp.Window)


def where_asked(instant: exp.Expr, comparison: exp.Expr, timed: frozenset[str]) -> exp.Expr:
    """Return an instant, or NULL where the expression that `comparison` is a part of does not ask for it.

    `timed` are sources whose rows are not at hand.
    """
    if not may_be_wrong(instant):
        return instant
    found, node = instant.copy(), comparison
    while (around := node.parent) is not None and not isinstance(node, _OF_ROWS):
        if isinstance(around, exp.If):
            whole = around.parent if isinstance(around.parent, exp.Case) else None
            branches = whole.args["ifs"] if whole is not None else [around]
            before = branches[: next(number for number, each in enumerate(branches) if each is around)]
            if node.arg_key == "false":
                before = [around]
            subject = whole.this if whole is not None else None
            found = _behind(before, around if node.arg_key == "true" else None, subject, found, timed)
            node = whole if whole is not None else around
        elif isinstance(around, exp.Case) and node.arg_key == "default":
            found = _behind(around.args["ifs"], None, around.this, found, timed)
            node = around
        elif isinstance(around, exp.And | exp.Or) and node.arg_key == "expression":
            found = _behind(list(_deciding(around)), None, None, found, timed)
            node = around
        else:
            node = around
    return found


def _deciding(connected: exp.Expr) -> Iterator[exp.If]:
    """Yield what has AND or OR ask no further, as branches."""
    left = connected.this
    for part in left.flatten() if type(left) is type(connected) else (left,):
        yield exp.If(this=exp.not_(part) if isinstance(connected, exp.And) else part.copy())


def may_be_wrong(value: exp.Expr) -> bool:
    """Whether a value may not be computed for some row."""
    if current() is DUCKDB:
        return may_fail(value)
    return value.find(exp.Cast, exp.Div, exp.IntDiv, exp.Mod, exp.Func) is not None


def _behind(
    before: Sequence[exp.Expr],
    own: exp.Expr | None,
    subject: exp.Expr | None,
    instant: exp.Expr,
    timed: frozenset[str],
) -> exp.Expr:
    """Return an instant as CASE has it in the branch `own`, or else in its last one, behind others."""

    def can_be_asked(branch: exp.Expr) -> bool:
        parts = [each for each in (branch.this, subject) if each is not None]
        return not any(has_clock(each) or each.find(*_OF_ROWS) or aliases(each) & timed for each in parts)

    branches = [(each.this.copy(), exp.null()) for each in before if can_be_asked(each)]
    if own is not None and can_be_asked(own):
        made = case(*branches, (own.this.copy(), instant))
    elif branches:
        made = case(*branches, default=instant)
    else:
        return instant
    if subject is not None:
        made.set("this", subject.copy())
    return made
