"""Aggregates and window functions, as far as both give the same value whatever the order of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, as_type, call, case, cast, integer, shown
from spark_apply.views.sql.expressions.guards import only_where
from spark_apply.views.sql.expressions.rules.ordered import listed, refuse_other_forms
from spark_apply.views.sql.expressions.types import (
    FLOATS,
    INSTANTS,
    INTEGERS,
    MAX_PRECISION,
    NULL,
    common_type,
    decimal,
    is_decimal,
    is_number,
    precision_scale,
)
from spark_apply.views.sql.reading.blocks import operand
from spark_apply.views.sql.reading.written import kept_as

AGGREGATES: Final = Rules()


class Aggregate(NamedTuple):
    """An aggregate as the engine has it, before what is done with its result."""

    function: exp.Expr
    type: str
    finish: Callable[..., exp.Expr]
    second: exp.Expr | None = None
    """Another one that `finish` takes too."""

    def made(self, around: Callable[[exp.Expr], exp.Expr]) -> Typed:
        """Return the value, with FILTER or OVER put around each function."""
        functions = [each for each in (self.function, self.second) if each is not None]
        return Typed(self.finish(*(around(each) for each in functions)), self.type)


def _function(name: str, *arguments: exp.Expr) -> exp.Expr:
    """A function of the engine that is still known as an aggregate."""
    return exp.AnonymousAggFunc(this=name, expressions=list(arguments))


def _same(value: exp.Expr) -> exp.Expr:
    return value


def _aggregate(carry: Carrier, node: exp.Expr) -> Aggregate:
    """Return an aggregate function."""
    if isinstance(node, exp.Count):
        return _count(carry, node)
    if isinstance(node, exp.GroupConcat):
        return _listed(carry, node)
    if isinstance(node, exp.ArgMax | exp.ArgMin):
        return _by(carry, node)
    distinct = isinstance(node.this, exp.Distinct)
    argument = node.this.expressions[0] if distinct else node.this
    if isinstance(node, exp.CountIf | exp.LogicalAnd | exp.LogicalOr):
        if distinct:
            raise carry.differs(node, "it is DISTINCT")
        condition = carry.boolean(argument).sql
        if isinstance(node, exp.CountIf):  # the engine's own gives NULL, not 0, where all conditions are NULL
            return Aggregate(_function("count", case((condition, integer(1)))), "bigint", _same)
        return Aggregate(
            _function("bool_and" if isinstance(node, exp.LogicalAnd) else "bool_or", condition), "boolean", _same
        )
    found = carry(argument)

    def function(name: str, value: exp.Expr = found.sql) -> exp.Expr:
        return _function(name, exp.Distinct(expressions=[value]) if distinct else value)

    if isinstance(node, exp.Min | exp.Max):
        _require_order(carry, node, found.type)
        return Aggregate(function("min" if isinstance(node, exp.Min) else "max"), found.type, _same)
    if not is_number(found.type):
        carry.wrong(argument, found.type, "a number")
    if found.type in FLOATS:
        carry.warnings[_ROUNDED.format(node.sql("spark"))] = None
    return _sum(found, function) if isinstance(node, exp.Sum) else _average(carry, node, found, function)


_ROUNDED: Final = (
    "{}: a sum of floats depends on the order of addition, so its last digits may differ from Spark's; "
    "cast it to DECIMAL to have one value"
)


def _sum(found: Typed, function: Callable[..., exp.Expr]) -> Aggregate:
    if found.type in INTEGERS:
        return Aggregate(function("sum"), "bigint", lambda value: cast(value, "bigint"))
    if is_decimal(found.type):
        precision, scale = precision_scale(found.type)
        of = decimal(min(precision + 10, MAX_PRECISION), scale)
        return Aggregate(function("sum"), of, lambda value: cast(value, of))
    return Aggregate(function("sum", cast(found.sql, "double")), "double", _same)


def _average(carry: Carrier, node: exp.Expr, found: Typed, function: Callable[..., exp.Expr]) -> Aggregate:
    if is_decimal(found.type):
        precision, scale = precision_scale(found.type)
        if precision + 4 > MAX_PRECISION:
            raise carry.differs(node, "its value would need more than 38 digits; cast its argument to fewer")
        of = decimal(precision + 4, scale + 4)

        def exact(total: exp.Expr, count: exp.Expr) -> exp.Expr:
            return cast(exp.Mul(this=_rounded(total, count), expression=_power(scale + 4)), of)

        return Aggregate(function("sum"), of, exact, function("count"))
    if found.type in FLOATS:
        return Aggregate(function("avg", cast(found.sql, "double")), "double", _same)
    if found.type == "bigint":
        carry.warnings[_ADDED.format(node.sql("spark"))] = None
    return Aggregate(function("sum"), "double", _quotient, function("count"))


_ADDED: Final = (
    "{}: Spark adds BIGINTs as floats, so where their sum is beyond 2^53 its last digits may differ from the exact "
    "average here; cast it to DECIMAL to have one value"
)


def _quotient(total: exp.Expr, count: exp.Expr) -> exp.Expr:
    """Return an average of integers by their exact sum: one of floats would depend on the order of addition."""
    of = call("nullif", count, integer(0))
    return exp.paren(exp.Div(this=exp.paren(cast(total, "double")), expression=cast(of, "double")))


def _rounded(total: exp.Expr, count: exp.Expr) -> exp.Expr:
    """Return a sum of decimals by a count, rounded half away from zero, in units of four more digits, or NULL.

    The engine divides decimals as floats. So it is done in integers of 128 bits: the sum's digits without its point.
    """
    digits = call("replace", cast(total, "string"), exp.Literal.string("."), exp.Literal.string(""))
    unscaled = exp.Cast(this=digits, to=exp.DataType.build("HUGEINT", dialect="duckdb"))
    twice = exp.Mul(this=exp.Literal.number(2), expression=call("nullif", count.copy(), integer(0)))
    half = exp.Mul(this=call("sign", unscaled.copy()), expression=count.copy())
    sum_ = exp.Add(this=exp.Mul(this=unscaled, expression=exp.Literal.number(20000)), expression=half)
    return cast(exp.IntDiv(this=exp.paren(sum_), expression=exp.paren(twice)), decimal(MAX_PRECISION, 0))


def _power(scale: int) -> exp.Expr:
    """Return one unit of the last digit."""
    return cast(exp.Literal.string(f"0.{'0' * (scale - 1)}1"), decimal(scale + 1, scale))


def _count(carry: Carrier, node: exp.Expr) -> Aggregate:
    if isinstance(node.this, exp.Star):
        return Aggregate(exp.Count(this=exp.Star()), "bigint", _same)
    distinct = isinstance(node.this, exp.Distinct)
    parts = node.this.expressions if distinct else [node.this, *node.expressions]
    values = [carry(each).sql for each in parts]
    value = values[0]
    if len(values) > 1:
        whole = call("row", *values) if distinct else integer(1)
        missing = exp.or_(*(exp.Is(this=operand(each.copy()), expression=exp.Null()) for each in values))
        value = case((exp.Not(this=exp.paren(missing)), whole))
    return Aggregate(_function("count", exp.Distinct(expressions=[value]) if distinct else value), "bigint", _same)


def _require_order(carry: Carrier, node: exp.Expr, of: str) -> None:
    if of not in ("string", "boolean", "date", NULL, *INSTANTS) and not is_number(of):
        raise carry.differs(node, f"of {of}")


def _by(carry: Carrier, node: exp.ArgMax | exp.ArgMin) -> Aggregate:
    """Return the value of the row with the greatest, or least, of something that is not NULL."""
    refuse_other_forms(node, carry.written)
    value, by = carry(node.this), carry(node.expression)
    for each in (value, by):
        _require_order(carry, node, each.type)
    most = isinstance(node, exp.ArgMax)
    order = [
        exp.Ordered(this=by.sql, desc=most, nulls_first=False),
        exp.Ordered(this=value.sql.copy(), desc=most, nulls_first=not most),
    ]

    def first(rows: exp.Expr, count: exp.Expr) -> exp.Expr:
        found = exp.Bracket(this=exp.paren(rows), expressions=[integer(1)], offset=1)
        return exp.paren(case((exp.GT(this=count, expression=integer(0)), found)))

    rows = _function("array_agg", _in_order(value.sql, order))
    return Aggregate(rows, value.type, first, _function("count", by.sql.copy()))


def _listed(carry: Carrier, node: exp.GroupConcat) -> Aggregate:
    found = listed(node, carry.written)
    value, separator = carry.text(found.value).sql, carry(found.separator).sql
    order = [_ordered(carry, each) for each in found.order]
    first = exp.Distinct(expressions=[value]) if found.distinct else value
    return Aggregate(_function("string_agg", first, _in_order(separator, order)), "string", _same)


def _in_order(argument: exp.Expr, order: Sequence[exp.Expr]) -> exp.Expr:
    """Return an aggregate's last argument with an order, but for what is the same in all rows: DuckDB refuses it."""
    telling = [each for each in order if each.find(exp.Column)]
    return exp.Order(this=argument, expressions=telling) if telling else argument


_FUNCTIONS: Final = (
    exp.Count,
    exp.CountIf,
    exp.LogicalAnd,
    exp.LogicalOr,
    exp.Min,
    exp.Max,
    exp.Sum,
    exp.Avg,
    exp.GroupConcat,
    exp.ArgMax,
    exp.ArgMin,
)


@AGGREGATES.of(*_FUNCTIONS, knows="this expression expressions big_int separator count on_overflow")
def _plain(carry: Carrier, node: exp.Expr) -> Typed:
    found = _aggregate(carry, node)
    return found.made(_same)


@AGGREGATES.of(exp.Filter)
def _filtered(carry: Carrier, node: exp.Expr) -> Typed:
    if not isinstance(node.this, _FUNCTIONS):
        raise carry.unknown(node.this)
    found = _aggregate(carry, node.this)
    condition = carry.boolean(node.expression.this).sql
    return found.made(lambda function: only_where(function, condition))


@AGGREGATES.of(exp.Window, knows="this partition_by order spec over")
def _window(carry: Carrier, node: exp.Expr) -> Typed:
    found = _ranked(carry, node.this) or _windowed(carry, node.this)
    order = node.args.get("order")
    spec = node.args.get("spec")
    ordered = None if order is None else exp.Order(expressions=[_ordered(carry, each) for each in order.expressions])
    whole = exp.Window(
        partition_by=[kept_as(carry(each).sql, each) for each in node.args.get("partition_by") or ()],
        order=ordered,
        spec=None if spec is None else _frame(carry, node, spec),
        over="OVER",
    )

    def windowed(function: exp.Expr) -> exp.Expr:
        made = whole.copy()
        made.set("this", function)
        return kept_as(made, node)

    return found.made(windowed)


def _windowed(carry: Carrier, function: exp.Expr) -> Aggregate:
    if isinstance(function, exp.Filter):
        inside = "write its condition into the aggregate: sum(CASE WHEN … THEN … END) OVER (…)"
        raise carry.written.refuse(f"{shown(function)} is not known here in a window", at=function, hint=inside)
    if not isinstance(function, _FUNCTIONS):
        raise carry.unknown(function)
    if isinstance(function.this, exp.Distinct):
        raise carry.differs(function, "Spark has no DISTINCT in a window")
    return _aggregate(carry, function)


_RANKS: Final[dict[type[exp.Expr], str]] = {
    exp.RowNumber: "row_number",
    exp.Rank: "rank",
    exp.DenseRank: "dense_rank",
}


def _ranked(carry: Carrier, function: exp.Expr) -> Aggregate | None:
    """Return a window function that is no aggregate."""
    name = _RANKS.get(type(function))
    if name is not None:
        return Aggregate(call(name), "int", lambda value: cast(value, "int"))
    if isinstance(function, exp.Ntile):
        number = carry.literal(function.this, function, 1)
        return Aggregate(call("ntile", integer(number)), "int", lambda value: cast(value, "int"))
    if isinstance(function, exp.FirstValue | exp.LastValue):
        value = carry(function.this)
        return Aggregate(
            call("first_value" if isinstance(function, exp.FirstValue) else "last_value", value.sql), value.type, _same
        )
    if not isinstance(function, exp.Lag | exp.Lead):
        return None
    value = carry(function.this)
    given = function.args.get("offset")
    arguments = [value.sql, integer(1 if given is None else carry.literal(given, function, 0))]
    of, default = value.type, function.args.get("default")
    if default is not None:
        other = carry(default)
        joint = common_type(value.type, other.type)
        if joint is None:
            raise carry.differs(function, f"it has values of the types {value.type} and {other.type}; cast one of them")
        of = joint
        arguments = [as_type(value, of), arguments[1], as_type(other, of)]
    return Aggregate(call("lag" if isinstance(function, exp.Lag) else "lead", *arguments), of, _same)


def _ordered(carry: Carrier, node: exp.Expr) -> exp.Expr:
    """Return an expression of ORDER BY: in Spark NULLs come first where it ascends, and last where it descends."""
    found = carry(node.this)
    if found.type in ("struct", "array") or node.args.get("with_fill"):
        raise carry.differs(node, f"it orders by {found.type}")
    descends = bool(node.args.get("desc"))
    first = node.args.get("nulls_first")
    return exp.Ordered(this=found.sql, desc=descends, nulls_first=not descends if first is None else bool(first))


AGGREGATES[exp.Ordered] = lambda carry, node: Typed(_ordered(carry, node), NULL)


def _frame(carry: Carrier, node: exp.Expr, spec: exp.Expr) -> exp.Expr:
    """Return ROWS or RANGE BETWEEN."""
    made = spec.copy()
    if str(made.args.get("kind")).upper() not in ("ROWS", "RANGE") or made.args.get("exclude"):
        raise carry.unknown(node)
    for side in ("start", "end"):
        bound = made.args.get(side)
        if bound is None or bound == "CURRENT ROW":
            continue
        if str(made.args.get(f"{side}_side")).upper() not in ("PRECEDING", "FOLLOWING"):
            raise carry.differs(node, "a side of its frame is neither PRECEDING nor FOLLOWING")
        if isinstance(bound, exp.Expr):
            made.set(side, carry(bound).sql)
    return made
