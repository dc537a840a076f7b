"""Expressions for PostgreSQL: which of those that the embedded engine takes, and how each is written there.

What is taken gives the values that the embedded engine gives, so those of Spark: a test runs every function of both
over one table. Everything else is refused by name. What PostgreSQL does in its own way:

    texts        compared and sorted by code point, as each text has the collation "C"
    case         upper and lower are not taken: in that collation they know ASCII alone
    floats       arithmetic and sums are not taken: a result beyond the range is an error, not infinity
    try_cast     not taken: there is none
    years        the year before 1 is -1 there, and 0 here
    seconds      they come with their fraction, which is cut off
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, call, case, integer
from spark_apply.views.sql.expressions.engines.dialects import PLACEHOLDER
from spark_apply.views.sql.expressions.types import FLOATS, INTEGERS, NULL

_PLAIN: Final = (
    exp.Column, exp.Var, exp.Literal, exp.Boolean, exp.Null, exp.Paren, exp.Not, exp.And, exp.Or, exp.Is,
    exp.EQ, exp.NEQ, exp.LT, exp.LTE, exp.GT, exp.GTE, exp.NullSafeEQ, exp.NullSafeNEQ, exp.Between, exp.In, exp.Like,
    exp.Case, exp.If, exp.Nvl2, exp.Coalesce, exp.Greatest, exp.Least, exp.Nullif, exp.Neg, exp.Interval, exp.Add,
    exp.Sub, exp.Mul, exp.Div, exp.SafeDivide, exp.IntDiv, exp.Mod, exp.Cast, exp.Concat, exp.DPipe, exp.ConcatWs,
    exp.Trim, exp.Length, exp.Substring, exp.Left, exp.Right, exp.Replace, exp.StrPosition, exp.StartsWith,
    exp.EndsWith, exp.Contains, exp.Reverse, exp.MD5, exp.Abs, exp.Round, exp.Floor, exp.Ceil, exp.Year, exp.Month,
    exp.Day, exp.DayOfMonth, exp.Quarter, exp.DayOfYear, exp.WeekOfYear, exp.Week, exp.Hour, exp.Minute, exp.Second,
    exp.Extract, exp.DayOfWeek, exp.TsOrDsAdd, exp.DateAdd, exp.DateSub, exp.DateDiff, exp.TimestampAdd, exp.AddMonths,
    exp.LastDay, exp.TsOrDsToDate, exp.TimestampTrunc, exp.DateTrunc, exp.Anonymous, exp.UnixSeconds, exp.UnixMillis,
    exp.UnixMicros, exp.TimestampDiff, exp.Ordered,
)  # fmt: skip
_AGGREGATES: Final = (
    exp.Count, exp.CountIf, exp.LogicalAnd, exp.LogicalOr, exp.Min, exp.Max, exp.Sum, exp.Avg, exp.GroupConcat,
    exp.ArgMax, exp.ArgMin,
)  # fmt: skip
_RANKS: Final = (
    exp.RowNumber, exp.Rank, exp.DenseRank, exp.Ntile, exp.FirstValue, exp.LastValue, exp.Lag, exp.Lead,
)  # fmt: skip

LONGEST_NAME: Final = 63
"""So many bytes of a name PostgreSQL keeps; the rest it cuts off without an error."""
SYSTEM_COLUMNS: Final = frozenset({"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"})
"""Columns that each table of PostgreSQL has: no other one can be called so."""

_BEYOND: Final = (
    "a float beyond the range is an error there, not infinity; cast to DECIMAL, or leave the sum to who reads the view"
)


def refusal(carry: Carrier, node: exp.Expr, found: str) -> str | None:
    """Say why an expression that the embedded engine takes is none for PostgreSQL; None where it is."""
    if found in ("struct", "array"):
        return f"the engine postgres keeps no {found}"
    if isinstance(node, exp.Column) and node.name in SYSTEM_COLUMNS:
        return "each of its tables has a column of that name already"
    if isinstance(node, exp.Literal) and any(each in node.name for each in (PLACEHOLDER, "\0")):
        return "a text with U+0000 or U+001A"
    if isinstance(node, exp.Filter | exp.Window):
        inner = node.this
        if isinstance(inner, _RANKS):
            return None
        return _of_aggregate(carry, inner) if isinstance(inner, _AGGREGATES) else "it is not on the list"
    if isinstance(node, _AGGREGATES):
        return _of_aggregate(carry, node)
    if not isinstance(node, _PLAIN) or isinstance(node, exp.TryCast):
        return "it is not on the list"
    if isinstance(node, exp.Add | exp.Sub | exp.Mul) and found in FLOATS:
        return _BEYOND
    if isinstance(node, exp.Div | exp.SafeDivide):
        sides = {carry.type_of(node.this), carry.type_of(node.expression)}
        return None if sides <= {*INTEGERS, NULL} else _BEYOND
    return _of_cast(carry, node, found) if isinstance(node, exp.Cast) else None


def _of_cast(carry: Carrier, node: exp.Expr, to: str) -> str | None:
    of = carry.type_of(node.this)
    if {of, to} == {"boolean", "bigint"}:
        return f"{of} as {to}; cast it to INT first"
    if of == "string" and to == "date" and not isinstance(node.this, exp.Literal):
        return "a text is cast to a date only where it is written out"
    return None


def _of_aggregate(carry: Carrier, node: exp.Expr) -> str | None:
    if isinstance(node, exp.Count | exp.GroupConcat | exp.ArgMax | exp.ArgMin):
        return None
    argument = node.this.expressions[0] if isinstance(node.this, exp.Distinct) else node.this
    of = carry.type_of(argument)
    if isinstance(node, exp.Sum | exp.Avg) and of in FLOATS:
        return _BEYOND
    if isinstance(node, exp.Min | exp.Max) and of == "boolean":
        return "of boolean; bool_or is its max, bool_and its min"
    return None


def in_postgres(expression: exp.Expr) -> exp.Expr:
    """Return an expression of the embedded engine as PostgreSQL writes it."""
    made = expression.copy()
    for node in reversed(list(made.walk(bfs=False))):  # the parts of an expression before itself
        new = _written(node)
        if new is node:
            continue
        if node is made:
            made = new
        else:
            node.replace(new)
    return made


def _written(node: exp.Expr) -> exp.Expr:
    if isinstance(node, exp.Literal) and node.is_string:
        unit = isinstance(node.parent, exp.Interval) or (
            isinstance(node.parent, exp.Anonymous) and node.parent.this in ("date_trunc", "date_diff")
        )
        return node if unit else text(node.copy())
    if isinstance(node, exp.Cast):
        return _cast(node)
    if isinstance(node, exp.IntDiv):
        sides = [numeric(exp.paren(each.copy())) for each in (node.this, node.expression)]
        whole = call("div", *sides)
        exact = any(is_numeric(each) for each in node.this.find_all(exp.Cast))  # an average's digits, of any length
        return whole if exact else exp.Cast(this=whole, to=exp.DataType.build("BIGINT"))
    if isinstance(node, exp.Anonymous):
        return _FUNCTIONS[str(node.this)](node.expressions)
    return node


def text(value: exp.Expr) -> exp.Expr:
    """A value as a text that is compared by code point."""
    return exp.paren(
        exp.Collate(
            this=exp.Cast(this=value, to=exp.DataType.build("TEXT")), expression=exp.to_identifier("C", quoted=True)
        )
    )


def numeric(value: exp.Expr) -> exp.Expr:
    """A value as a decimal number of any length."""
    return exp.Cast(this=value, to=exp.DataType.build("DECIMAL"))


def is_numeric(cast: exp.Cast) -> bool:
    """Whether this is a cast to a decimal number of any length."""
    return bool(cast.to.this is exp.DType.DECIMAL and not cast.to.expressions)


def _cast(node: exp.Cast) -> exp.Expr:
    to = node.to.this
    if to in (exp.DType.VARCHAR, exp.DType.TEXT):
        return text(node.this.copy())
    if to is exp.DType.INT128:
        return numeric(node.this.copy())
    return node


_Arguments = Sequence[exp.Expr]
_Made = Callable[[_Arguments], exp.Expr]


def _as(name: str) -> _Made:
    return lambda given: call(name, *(each.copy() for each in given))


def _error(given: _Arguments) -> exp.Expr:
    return call("cdc_error", given[0].copy())


def _part(name: str) -> _Made:
    def made(given: _Arguments) -> exp.Expr:
        return call("floor", exp.Extract(this=exp.Var(this=name), expression=given[0].copy()))

    return made


def _year(given: _Arguments) -> exp.Expr:
    first = exp.Cast(this=exp.Literal.string("0001-01-01"), to=exp.DataType.build("DATE"))
    before = case((exp.LT(this=exp.paren(given[0].copy()), expression=first), integer(1)), default=integer(0))
    return exp.paren(exp.Add(this=_part("YEAR")(given), expression=before))


def _timestamp(value: exp.Expr) -> exp.Expr:
    return exp.Cast(this=value, to=exp.DataType.build("TIMESTAMP"))


def _interval(amount: int, unit: str) -> exp.Expr:
    return exp.Interval(this=exp.Literal.string(str(amount)), unit=exp.Var(this=unit))


def _date_trunc(given: _Arguments) -> exp.Expr:
    return call("date_trunc", given[0].copy(), _timestamp(given[1].copy()))


def _last_day(given: _Arguments) -> exp.Expr:
    month = call("date_trunc", exp.Literal.string("month"), _timestamp(given[0].copy()))
    next_ = exp.Add(this=month, expression=_interval(1, "MONTH"))
    last = exp.Sub(this=exp.paren(next_), expression=_interval(1, "DAY"))
    return exp.Cast(this=exp.paren(last), to=exp.DataType.build("DATE"))


_DAY_MICROS: Final = 86_400_000_000


def _make_timestamp(given: _Arguments) -> exp.Expr:
    """Days and the rest of a day apart: a bigint by an interval goes through a float."""
    micros = exp.paren(given[0].copy())
    days = exp.Div(this=micros, expression=integer(_DAY_MICROS), typed=True)
    rest = exp.Mod(this=micros.copy(), expression=integer(_DAY_MICROS))
    first = _timestamp(exp.Literal.string("1970-01-01"))
    at = exp.Add(this=first, expression=exp.Mul(this=exp.paren(days), expression=_interval(1, "DAY")))
    return exp.paren(exp.Add(this=at, expression=exp.Mul(this=exp.paren(rest), expression=_interval(1, "MICROSECOND"))))


def _epoch_us(given: _Arguments) -> exp.Expr:
    seconds = exp.Extract(this=exp.Var(this="EPOCH"), expression=given[0].copy())
    micros = exp.Mul(this=seconds, expression=integer(1_000_000))
    return exp.Cast(this=exp.paren(micros), to=exp.DataType.build("BIGINT"))


def _date_diff(given: _Arguments) -> exp.Expr:
    return exp.paren(exp.Sub(this=exp.paren(given[2].copy()), expression=exp.paren(given[1].copy())))


def _isnan(given: _Arguments) -> exp.Expr:
    nan = exp.Cast(this=exp.Literal.string("NaN"), to=exp.DataType.build("DOUBLE"))
    return exp.paren(exp.EQ(this=exp.paren(given[0].copy()), expression=nan))


def _full_match(given: _Arguments) -> exp.Expr:
    pattern = next(iter(given[1].find_all(exp.Literal))).name
    whole = text(exp.Literal.string(f"^(?:{pattern})$".replace(r"\x00", r"\x01")))  # no text there has U+0000
    return exp.paren(exp.RegexpLike(this=exp.paren(given[0].copy()), expression=whole))


def _extract(given: _Arguments) -> exp.Expr:
    return call("substring", given[0].copy(), given[1].copy())


def _suffix(given: _Arguments) -> exp.Expr:
    end = call("right", given[0].copy(), call("length", given[1].copy()))
    return exp.paren(exp.EQ(this=end, expression=exp.paren(given[1].copy())))


def _contains(given: _Arguments) -> exp.Expr:
    found = call("strpos", *(each.copy() for each in given))
    return exp.paren(exp.GT(this=found, expression=integer(0)))


def _joined(given: _Arguments) -> exp.Expr:
    """A list of letters, joined: only a text that is reversed is written so."""
    return call("reverse", given[0].expressions[0].expressions[0].copy())


_FUNCTIONS: Final[dict[str, _Made]] = {
    **{
        name: _as(name)
        for name in (
            "concat_ws", "ltrim", "rtrim", "length", "substring", "left", "right", "replace", "strpos", "starts_with",
            "md5", "abs", "round", "trunc", "floor", "ceil", "nullif", "greatest", "least", "sign", "row_number",
            "rank", "dense_rank", "ntile", "first_value", "last_value", "lag", "lead", "row", "regexp_replace",
            # parts of what is written in another way
            "string_split", "list_reverse",
            # written here
            "cdc_error", "div", "reverse",
        )
    },
    "trim": _as("btrim"),
    "error": _error,
    "year": _year,
    "month": _part("MONTH"),
    "day": _part("DAY"),
    "quarter": _part("QUARTER"),
    "dayofyear": _part("DOY"),
    "weekofyear": _part("WEEK"),
    "hour": _part("HOUR"),
    "minute": _part("MINUTE"),
    "second": _part("SECOND"),
    "dayofweek": _part("DOW"),
    "isodow": _part("ISODOW"),
    "date_trunc": _date_trunc,
    "last_day": _last_day,
    "make_timestamp": _make_timestamp,
    "epoch_us": _epoch_us,
    "date_diff": _date_diff,
    "isnan": _isnan,
    "regexp_full_match": _full_match,
    "regexp_extract": _extract,
    "suffix": _suffix,
    "contains": _contains,
    "array_to_string": _joined,
}  # fmt: skip
"""How each function of the embedded engine is written; a part that is written already is met once more."""
