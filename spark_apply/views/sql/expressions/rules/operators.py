"""Operators and conditions, for types of which both give the same value. Spark is as the job has it: ANSI, UTC."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, as_type, call, case, cast, failing, shown
from spark_apply.views.sql.expressions.guards import is_refused, may_fail, where_known
from spark_apply.views.sql.expressions.types import (
    DAYS,
    FLOATS,
    INSTANTS,
    INTEGERS,
    INTERVALS,
    MAX_PRECISION,
    MONTHS,
    NULL,
    TIME,
    common_type,
    decimal,
    is_decimal,
    is_number,
    precision_scale,
)
from spark_apply.views.sql.reading.blocks import CLOCK, operand
from spark_apply.views.sql.reading.written import is_called

OPERATORS: Final = Rules()


@OPERATORS.of(exp.Column, knows="this table")
def _column(carry: Carrier, node: exp.Expr) -> Typed:
    assert isinstance(node, exp.Column)  # noqa: S101 - for the type checker
    return carry.column(node)


@OPERATORS.of(exp.Var)
def _clock(carry: Carrier, node: exp.Expr) -> Typed:
    if node.name != CLOCK:
        raise carry.unknown(node)
    return Typed(node.copy(), "timestamp")


@OPERATORS.of(exp.Literal, knows="this is_string")
def _literal(_: Carrier, node: exp.Expr) -> Typed:
    text = node.name
    if node.is_string:
        return Typed(node.copy(), "string")
    if re.fullmatch(r"\d+", text):
        if int(text) < 2**63:
            return Typed(node.copy(), "int" if int(text) < 2**31 else "bigint")
        return Typed(node.copy(), decimal(len(text), 0))
    found = re.fullmatch(r"(\d*)\.(\d*)", text)
    if found is None:
        return Typed(cast(node.copy(), "double"), "double")
    scale = len(found[2])
    return Typed(node.copy(), decimal(max(len(found[1].lstrip("0")) + scale, 1), scale))


@OPERATORS.of(exp.Boolean)
def _boolean(_: Carrier, node: exp.Expr) -> Typed:
    return Typed(node.copy(), "boolean")


@OPERATORS.of(exp.Null)
def _null(_: Carrier, node: exp.Expr) -> Typed:
    return Typed(node.copy(), NULL)


@OPERATORS.of(exp.Paren)
def _paren(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry(node.this)
    return Typed(exp.Paren(this=found.sql), found.type)


@OPERATORS.of(exp.Not)
def _not(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(exp.Not(this=carry.boolean(node.this).sql), "boolean")


@OPERATORS.of(exp.And, exp.Or)
def _logic(carry: Carrier, node: exp.Expr) -> Typed:
    """Return AND or OR. Spark looks at a part only where those before it leave the answer open; the engine at all."""
    kind, rest = type(node), node
    parts: list[exp.Expr] = []
    while type(rest) is kind:
        parts.insert(0, carry.boolean(rest.args["expression"]).sql)
        rest = rest.this
    parts.insert(0, carry.boolean(rest).sql)
    found = parts.pop()
    fails = may_fail(found)
    while parts:
        part = parts.pop()
        joined: exp.Expr = kind(this=part, expression=found)
        if fails:
            decided = exp.Boolean(this=kind is exp.Or)
            answered = exp.Is(this=operand(part.copy()), expression=decided)
            joined = case((answered, decided.copy()), default=joined)
        found, fails = joined, fails or may_fail(part)
    return Typed(found, "boolean")


@OPERATORS.of(exp.Is)
def _is(carry: Carrier, node: exp.Expr) -> Typed:
    if not isinstance(node.expression, exp.Null | exp.Boolean):
        raise carry.unknown(node)
    value = carry(node.this) if isinstance(node.expression, exp.Null) else carry.boolean(node.this)
    return Typed(exp.Is(this=_one_part(value.sql), expression=node.expression.copy()), "boolean")


_ISO_DATE: Final = r"\d{4}-\d{2}-\d{2}"
_ISO_INSTANT: Final = _ISO_DATE + r"([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)?"


def comparable(carry: Carrier, whole: exp.Expr, *nodes: exp.Expr) -> list[exp.Expr]:
    """Carry over values that are compared with each other: as Spark casts them for it."""
    found = [carry(node) for node in nodes]
    moment = next((each.type for each in found if each.type in ("date", *INSTANTS)), None)
    if moment is not None:
        found = [_moment(carry, whole, node, each, moment) for node, each in zip(nodes, found, strict=True)]
    joint = found[0].type
    for each in found[1:]:
        common = common_type(joint, each.type)
        if common is None:
            raise carry.differs(whole, f"it compares {joint} with {each.type}; cast one of them")
        joint = common
    if joint in ("struct", "array", MONTHS):
        raise carry.differs(whole, f"it compares values of the type {joint}")
    numbers = {each.type for each in found if each.type != NULL}
    if joint == "double" and numbers != {"double"}:
        return [as_type(each, "double") for each in found]
    return [_one_part(each.sql if is_number(joint) else as_type(each, joint)) for each in found]


def _one_part(value: exp.Expr) -> exp.Expr:
    """Put a condition into parentheses: the engines take no two comparisons in a row."""
    return operand(value) if isinstance(value, exp.Predicate | exp.Not) else value


def _refuse_in_a_row(carry: Carrier, node: exp.Expr, *right: exp.Expr) -> None:
    """Refuse operators in a row that Spark reads in another way than the parser, or not at all.

    Spark reads comparisons from left to right, and takes no operator behind IN, BETWEEN and LIKE.
    """
    left = node.this if isinstance(node.this, exp.In | exp.Between | exp.Like | exp.Not) else None
    for part in (left, *right):
        if isinstance(part, exp.Predicate | exp.Not) and not is_called(part):
            why = f"Spark reads comparisons from left to right; write parentheses around {shown(part)}"
            raise carry.differs(node, why)


def _moment(carry: Carrier, whole: exp.Expr, node: exp.Expr, found: Typed, moment: str) -> Typed:
    """Read a text that is compared with a date or a timestamp, if it is written out."""
    if found.type != "string":
        return found
    text = node.name if isinstance(node, exp.Literal) else ""
    if not re.fullmatch(_ISO_DATE if moment == "date" else _ISO_INSTANT, text):
        raise carry.differs(whole, f"it compares {moment} with a text; write DATE'2026-01-31', or cast it")
    return Typed(cast(found.sql, moment), moment)


@OPERATORS.of(exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ)
def _comparison(carry: Carrier, node: exp.Expr) -> Typed:
    _refuse_in_a_row(carry, node, node.expression)  # which Spark takes for `(a = b) > c`
    left, right = comparable(carry, node, node.this, node.expression)
    made = type(node)(this=left, expression=right)
    return Typed(
        made if isinstance(node, exp.NullSafeEQ | exp.NullSafeNEQ) else where_known(left, right, made), "boolean"
    )


@OPERATORS.of(exp.Between, knows="this low high")
def _between(carry: Carrier, node: exp.Expr) -> Typed:
    """Return BETWEEN. Spark asks for the end where the value is not below the beginning."""
    _refuse_in_a_row(carry, node)
    value, low, high = comparable(carry, node, node.this, node.args["low"], node.args["high"])
    below = [] if is_refused(low) or not is_refused(high) else [(exp.LT(this=value, expression=low), exp.false())]
    made = exp.Between(this=value, low=low, high=high)
    return Typed(_where_asked(value, (low, high), below, made), "boolean")


@OPERATORS.of(exp.In, knows="this expressions")
def _in(carry: Carrier, node: exp.Expr) -> Typed:
    """Return IN. Spark asks no further than to the first that is equal; this, for no more once one may be refused."""
    _refuse_in_a_row(carry, node)
    value, *others = comparable(carry, node, node.this, *node.expressions)
    before = list(itertools.takewhile(lambda each: not is_refused(each), others))
    equal = [(exp.In(this=value, expressions=before), exp.true())] if before else []
    return Typed(_where_asked(value, others, equal, exp.In(this=value, expressions=others)), "boolean")


def _where_asked(
    value: exp.Expr, others: Sequence[exp.Expr], decided: Sequence[tuple[exp.Expr, exp.Expr]], made: exp.Expr
) -> exp.Expr:
    """Return a condition that asks for the others where the value is known and what is asked first decides nothing."""
    known = where_known(value, exp.Tuple(expressions=[each.copy() for each in others]), made)
    if known is made:
        return made
    return case(*((condition.copy(), answer) for condition, answer in decided), *_branches(known))


def _branches(found: exp.Expr) -> Iterator[tuple[exp.Expr, exp.Expr]]:
    return ((each.this, each.args["true"]) for each in found.args["ifs"])


@OPERATORS.of(exp.Like, knows="this expression negate")
def _like(carry: Carrier, node: exp.Expr) -> Typed:
    pattern = node.expression
    if not (isinstance(pattern, exp.Literal) and pattern.is_string) or "\\" in pattern.name:
        raise carry.differs(node, "its pattern must be written out, without a backslash")
    made = exp.Like(this=carry.text(node.this).sql, expression=pattern.copy())
    return Typed(exp.Not(this=exp.paren(made)) if node.args.get("negate") else made, "boolean")


@OPERATORS.of(exp.Case, knows="this ifs default")
def _case(carry: Carrier, node: exp.Expr) -> Typed:
    ifs, default = node.args["ifs"], node.args.get("default")
    subject = node.this
    conditions = []
    for each in ifs:
        if subject is None:
            conditions.append(carry.boolean(each.this).sql)
        else:
            left, right = comparable(carry, node, subject, each.this)
            conditions.append(where_known(left, right, exp.EQ(this=operand(left), expression=operand(right))))
    values, joint = carry.together(node, [each.args["true"] for each in ifs] + ([default] if default else []))
    branches = zip(conditions, values, strict=False)
    return Typed(case(*branches, default=values[-1] if default else None), joint)


@OPERATORS.of(exp.If, knows="this true false")
def _if(carry: Carrier, node: exp.Expr) -> Typed:
    condition = carry.boolean(node.this).sql
    values, joint = carry.together(node, [node.args["true"], node.args.get("false") or exp.Null()])
    return Typed(case((condition, values[0]), default=values[1]), joint)


@OPERATORS.of(exp.Nvl2, knows="this true false")
def _nvl2(carry: Carrier, node: exp.Expr) -> Typed:
    condition = exp.Not(this=exp.Is(this=operand(carry(node.this).sql), expression=exp.Null()))
    values, joint = carry.together(node, [node.args["true"], node.args.get("false") or exp.Null()])
    return Typed(case((condition, values[0]), default=values[1]), joint)


@OPERATORS.of(exp.Coalesce, knows="this expressions")
def _coalesce(carry: Carrier, node: exp.Expr) -> Typed:
    values, joint = carry.together(node, [node.this, *node.expressions])
    return Typed(exp.Coalesce(this=values[0], expressions=values[1:]), joint)


@OPERATORS.of(exp.Greatest, exp.Least, knows="this expressions ignore_nulls")
def _greatest(carry: Carrier, node: exp.Expr) -> Typed:
    values, joint = carry.together(node, [node.this, *node.expressions])
    if joint not in ("string", "date", *INSTANTS) and not is_number(joint):
        raise carry.differs(node, f"its values are {joint}")
    name = "greatest" if isinstance(node, exp.Greatest) else "least"
    return Typed(call(name, *values), joint)


@OPERATORS.of(exp.Nullif)
def _nullif(carry: Carrier, node: exp.Expr) -> Typed:
    value = carry(node.this)
    left, right = comparable(carry, node, node.this, node.expression)
    same = where_known(left, right, exp.EQ(this=operand(left), expression=operand(right)))
    return Typed(case((same, exp.Null()), default=value.sql), value.type)


@OPERATORS.of(exp.Neg)
def _negative(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry.number(node.this)
    return Typed(exp.Neg(this=found.sql), found.type)


@OPERATORS.of(exp.Interval, knows="this unit")
def _interval(carry: Carrier, node: exp.Expr) -> Typed:
    unit = str(node.args.get("unit") or "").upper().rstrip("S")
    kind = _UNITS.get(unit)
    text = node.this.name if isinstance(node.this, exp.Literal) else node.this.sql() if node.this is not None else ""
    if kind is None or not re.fullmatch(r"-?\d{1,9}", text):
        raise carry.differs(node, "an interval is a whole number of one unit, from YEAR to MICROSECOND")
    return Typed(exp.Interval(this=exp.Literal.string(text), unit=exp.Var(this=unit)), kind)


_UNITS: Final = {
    **dict.fromkeys(("YEAR", "MONTH"), MONTHS),
    **dict.fromkeys(("WEEK", "DAY"), DAYS),
    **dict.fromkeys(("HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"), TIME),
}


@OPERATORS.of(exp.Add, exp.Sub)
def _sum(carry: Carrier, node: exp.Expr) -> Typed:
    left, right = carry(node.this), carry(node.expression)
    if isinstance(node, exp.Add) and left.type in INTERVALS and right.type not in INTERVALS:
        left, right = right, left
    made = type(node)(this=left.sql, expression=right.sql)
    if right.type in INTERVALS:
        if left.type in INSTANTS:
            return Typed(made, left.type)
        if left.type == "date" and right.type != TIME:
            return Typed(cast(made, "date"), "date")
        if left.type in INTERVALS and MONTHS not in {left.type, right.type} - {left.type}:
            return Typed(made, common_type(left.type, right.type) or left.type)
    if left.type == "date" and right.type == "int":
        return Typed(where_known(left.sql, right.sql, cast(made, "date")), "date")
    if isinstance(node, exp.Sub) and left.type in INSTANTS and right.type in INSTANTS:
        return Typed(made, TIME)
    return _arithmetic(carry, node, left, right)


@OPERATORS.of(exp.Mul)
def _product(carry: Carrier, node: exp.Expr) -> Typed:
    return _arithmetic(carry, node, carry(node.this), carry(node.expression))


def _arithmetic(carry: Carrier, node: exp.Expr, left: Typed, right: Typed) -> Typed:
    """Return +, - or * of numbers."""
    found = _of_numbers(carry, node, left, right)
    return Typed(where_known(left.sql, right.sql, found.sql), found.type)


def _of_numbers(carry: Carrier, node: exp.Expr, left: Typed, right: Typed) -> Typed:
    kinds = {left.type, right.type} - {NULL}
    if not all(is_number(each) for each in kinds):
        raise carry.differs(node, f"its sides are {left.type} and {right.type}")
    if kinds & set(FLOATS):
        joint = "float" if kinds == {"float"} else "double"
        return Typed(type(node)(this=as_type(left, joint), expression=as_type(right, joint)), joint)
    if not any(is_decimal(each) for each in kinds):
        joint = "bigint" if "bigint" in kinds else "int"
        return Typed(type(node)(this=as_type(left, joint), expression=as_type(right, joint)), joint if kinds else NULL)
    (p1, s1), (p2, s2) = (_as_decimal(side, each) for side, each in ((node.this, left), (node.expression, right)))
    if isinstance(node, exp.Mul):
        precision, scale = p1 + p2 + 1, s1 + s2
    else:
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale + 1
    if precision > MAX_PRECISION:  # Spark would cut the scale
        raise carry.differs(node, f"its value would need {precision} digits; cast its sides to fewer")
    joint = decimal(precision, scale)
    wide = [precision if isinstance(node, exp.Mul) else p1, p2]  # the engine would take 18 digits for a product of two
    scales = (s1, s2)
    sides = [
        cast(each.sql, decimal(digits, scale)) if each.type != NULL else each.sql
        for each, digits, scale in zip((left, right), wide, scales, strict=True)
    ]
    return Typed(cast(type(node)(this=sides[0], expression=sides[1]), joint), joint)


def _as_decimal(node: exp.Expr, found: Typed) -> tuple[int, int]:
    if isinstance(node, exp.Literal) and found.type in INTEGERS:
        return len(node.name), 0
    return (1, 0) if found.type == NULL else precision_scale(found.type)


def guarded(left: Typed, right: Typed, of: str, made: exp.Expr) -> exp.Expr:
    """Return a quotient that is an error where Spark's is: by zero, unless the other side is NULL.

    Spark asks for the divisor first.
    """
    if isinstance(right.sql, exp.Literal) and float(right.sql.name) != 0:
        return made
    zero = exp.and_(
        exp.EQ(this=operand(right.sql.copy()), expression=exp.Literal.number(0)),
        exp.Not(this=exp.Is(this=operand(left.sql.copy()), expression=exp.Null())),
    )
    found = case(
        (zero, failing("division by zero", of)),
        (exp.EQ(this=operand(right.sql.copy()), expression=exp.Literal.number(0)), exp.Null()),
        default=made,
    )
    return where_known(right.sql, left.sql, found)


@OPERATORS.of(exp.Div, knows="this expression safe typed")
def _quotient(carry: Carrier, node: exp.Expr) -> Typed:
    left, right = carry.number(node.this), carry.number(node.expression)
    if any(is_decimal(each.type) for each in (left, right)) and not {left.type, right.type} & set(FLOATS):
        raise carry.differs(node, "it divides decimals; cast one side to DOUBLE")
    made = exp.Div(this=exp.paren(cast(left.sql, "double")), expression=cast(right.sql, "double"))
    return Typed(guarded(left, right, "double", made), "double")


@OPERATORS.of(exp.SafeDivide)
def _try_divide(carry: Carrier, node: exp.Expr) -> Typed:
    left, right = carry.number(node.this), carry.number(node.expression)
    if any(is_decimal(each.type) for each in (left, right)):
        raise carry.differs(node, "it divides decimals; cast them to DOUBLE")
    divisor = call("nullif", cast(right.sql, "double"), exp.Literal.number(0))
    return Typed(exp.paren(exp.Div(this=cast(left.sql, "double"), expression=divisor)), "double")


@OPERATORS.of(exp.IntDiv, exp.Mod)
def _remainder(carry: Carrier, node: exp.Expr) -> Typed:
    left, right = carry(node.this), carry(node.expression)
    if not {left.type, right.type} <= set(INTEGERS):
        raise carry.differs(node, f"its sides are {left.type} and {right.type}, no integers")
    joint = "bigint" if isinstance(node, exp.IntDiv) or "bigint" in (left.type, right.type) else "int"
    sides = [exp.paren(each.sql) if isinstance(each.sql, exp.Binary) else each.sql for each in (left, right)]
    made = type(node)(this=cast(sides[0], joint), expression=cast(sides[1], joint))
    return Typed(guarded(left, right, joint, made), joint)
