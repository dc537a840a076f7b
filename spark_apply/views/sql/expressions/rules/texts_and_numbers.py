"""Functions of texts and numbers, as far as both give the same value."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, call, case, cast, integer
from spark_apply.views.sql.expressions.guards import where_known
from spark_apply.views.sql.expressions.rules.casts import CASTS
from spark_apply.views.sql.expressions.types import FLOATS, INTEGERS, NULL, decimal, is_decimal, precision_scale
from spark_apply.views.sql.reading.blocks import operand

FUNCTIONS: Final = Rules()

_DIGITS: Final = 15
_SPACE: Final = exp.Literal.string(" ")


def _as_text(carry: Carrier, node: exp.Expr) -> exp.Expr:
    """Carry over what Spark casts to a text by itself."""
    found = carry(node)
    if found.type in ("string", NULL):
        return found.sql
    return CASTS[exp.Cast](carry, exp.cast(node.copy(), "string")).sql


@FUNCTIONS.of(exp.Concat, knows="expressions safe coalesce")
def _concat(carry: Carrier, node: exp.Expr) -> Typed:
    parts = [_as_text(carry, each) for each in node.expressions]
    whole = operand(parts[0])
    for each in parts[1:]:
        whole = where_known(whole, each, exp.DPipe(this=whole, expression=operand(each)))
    return Typed(exp.paren(cast(whole, "string")), "string")


@FUNCTIONS.of(exp.DPipe, knows="this expression safe")
def _pipes(carry: Carrier, node: exp.Expr) -> Typed:
    left, right = _as_text(carry, node.this), _as_text(carry, node.expression)
    return Typed(where_known(left, right, exp.DPipe(this=left, expression=right)), "string")


@FUNCTIONS.of(exp.ConcatWs, knows="expressions safe coalesce flatten")
def _concat_ws(carry: Carrier, node: exp.Expr) -> Typed:
    separator, *rest = node.expressions
    if not rest:
        raise carry.differs(node, "there is nothing to join")
    return Typed(call("concat_ws", carry.text(separator).sql, *(_as_text(carry, each) for each in rest)), "string")


@FUNCTIONS.of(exp.Trim, knows="this position")
def _trim(carry: Carrier, node: exp.Expr) -> Typed:
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(str(node.args.get("position") or ""), "trim")
    return Typed(call(name, carry.text(node.this).sql, _SPACE.copy()), "string")


@FUNCTIONS.of(exp.Length)
def _length(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(cast(call("length", carry.text(node.this).sql), "int"), "int")


@FUNCTIONS.of(exp.Substring, knows="this start length zero_start")
def _substring(carry: Carrier, node: exp.Expr) -> Typed:
    text = carry.text(node.this).sql
    length = node.args.get("length")
    start = carry.literal(node.args.get("start"), node, -(10**8))
    if start < 0 and length is not None:
        raise carry.differs(node, "it counts from the end, with a length")
    if start < 0:
        return Typed(call("right", text, integer(-start)), "string")
    arguments = [integer(max(start, 1))]
    if length is not None:
        arguments.append(integer(carry.literal(length, node, 0)))
    return Typed(call("substring", text, *arguments), "string")


@FUNCTIONS.of(exp.Left, exp.Right)
def _left(carry: Carrier, node: exp.Expr) -> Typed:
    name = "left" if isinstance(node, exp.Left) else "right"
    return Typed(call(name, carry.text(node.this).sql, integer(carry.literal(node.expression, node, 0))), "string")


@FUNCTIONS.of(exp.Replace, knows="this expression replacement")
def _replace(carry: Carrier, node: exp.Expr) -> Typed:
    what = node.expression
    if not (isinstance(what, exp.Literal) and what.name):
        raise carry.differs(node, "what it replaces must be written out")
    by = node.args.get("replacement")
    replacement = exp.Literal.string("") if by is None else carry.text(by).sql
    return Typed(call("replace", carry.text(node.this).sql, what.copy(), replacement), "string")


@FUNCTIONS.of(exp.StrPosition, knows="this substr")
def _position(carry: Carrier, node: exp.Expr) -> Typed:
    found = call("strpos", carry.text(node.this).sql, carry.text(node.args["substr"]).sql)
    return Typed(cast(found, "int"), "int")


@FUNCTIONS.of(exp.StartsWith, exp.EndsWith, exp.Contains)
def _starts_with(carry: Carrier, node: exp.Expr) -> Typed:
    names = {exp.StartsWith: "starts_with", exp.EndsWith: "suffix", exp.Contains: "contains"}
    name = next(name for kind, name in names.items() if isinstance(node, kind))
    return Typed(call(name, carry.text(node.this).sql, carry.text(node.expression).sql), "boolean")


@FUNCTIONS.of(exp.Reverse)
def _reverse(carry: Carrier, node: exp.Expr) -> Typed:
    text = carry.text(node.this).sql
    letters = call("list_reverse", call("string_split", text, exp.Literal.string("")))
    return Typed(call("array_to_string", letters, exp.Literal.string("")), "string")


@FUNCTIONS.of(exp.MD5)
def _md5(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(call("md5", carry.text(node.this).sql), "string")


@FUNCTIONS.of(exp.Abs)
def _abs(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry.number(node.this)
    return Typed(call("abs", found.sql), found.type)


@FUNCTIONS.of(exp.Round, knows="this decimals")
def _round(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry.number(node.this)
    digits = node.args.get("decimals")
    places = 0 if digits is None else carry.literal(digits, node, 0)
    if found.type in INTEGERS:
        return found
    if is_decimal(found.type):
        precision, scale = precision_scale(found.type)
        if places >= scale:
            return found
        to = decimal(min(precision - scale + places + 1, 38), places)
        return Typed(cast(call("round", found.sql, integer(places)), to), to)
    if found.type != "double" or places > _DIGITS:
        raise carry.differs(
            node, f"it is {found.type}; up to {_DIGITS} digits of a DOUBLE or a DECIMAL are rounded alike"
        )
    return Typed(_as_written(found.sql, places), found.type)


def _as_written(value: exp.Expr, places: int) -> exp.Expr:
    """Round a float as Java does: the decimal number that it is written as, half away from zero."""
    exact = exp.Cast(
        this=cast(value.copy(), "string"), to=exp.DataType.build(f"DECIMAL(38,{places})", dialect="duckdb")
    )
    whole = exp.GTE(this=call("abs", value.copy()), expression=exp.Literal.number(2**53))
    return case((exp.or_(call("isnan", value.copy()), whole), value), default=cast(exact, "double"))


def _saturated(value: exp.Expr, of: exp.Expr) -> exp.Expr:
    """Return a float as a BIGINT as Java has it: 0 where it is no number, the outermost ones beyond."""
    least, most = integer(-(2**63)), integer(2**63 - 1)
    return case(
        (call("isnan", of.copy()), integer(0)),
        (exp.GTE(this=operand(of.copy()), expression=cast(most.copy(), "double")), most),
        (exp.LTE(this=operand(of.copy()), expression=cast(least.copy(), "double")), cast(least, "bigint")),
        default=cast(value, "bigint"),
    )


@FUNCTIONS.of(exp.Floor, exp.Ceil, knows="this")
def _floor(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry.number(node.this)
    if found.type in INTEGERS:
        return Typed(cast(found.sql, "bigint"), "bigint")
    name = "floor" if isinstance(node, exp.Floor) else "ceil"
    if found.type in FLOATS:
        return Typed(_saturated(call(name, found.sql), found.sql), "bigint")
    if found.type == NULL:
        raise carry.differs(node, "of NULL")
    precision, scale = precision_scale(found.type)
    to = decimal(min(precision - scale + 1, 38), 0)
    return Typed(cast(call(name, found.sql), to), to)
