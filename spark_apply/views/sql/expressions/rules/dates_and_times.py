"""Functions of dates and timestamps, as far as both give the same value. The time zone is UTC."""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rule, Rules, Typed, call, cast, integer
from spark_apply.views.sql.expressions.types import INSTANTS
from spark_apply.views.sql.reading.blocks import operand

INSTANT_FUNCTIONS: Final = Rules()


def _inner(node: exp.Expr) -> exp.Expr:
    """Return the argument as it was written: sqlglot wraps it in conversions to a date."""
    while isinstance(node, exp.TsOrDsToDate | exp.TsOrDsToTimestamp | exp.TsOrDsToDatetime) and not node.args.get(
        "format"
    ):
        node = node.this
    return node


def _moment(carry: Carrier, node: exp.Expr, *, timed: bool = False) -> Typed:
    """Carry over a date or a timestamp."""
    inner = _inner(node)
    found = carry(inner)
    wanted = INSTANTS if timed else ("date", *INSTANTS)
    if found.type not in wanted:
        carry.wrong(inner, found.type, "a timestamp" if timed else "a date or a timestamp")
    return found


def _date(carry: Carrier, node: exp.Expr) -> exp.Expr:
    found = _moment(carry, node)
    return operand(found.sql) if found.type == "date" else cast(found.sql, "date")


_PARTS: Final[dict[type[exp.Expr], str]] = {
    exp.Year: "year",
    exp.Month: "month",
    exp.Day: "day",
    exp.DayOfMonth: "day",
    exp.Quarter: "quarter",
    exp.DayOfYear: "dayofyear",
    exp.WeekOfYear: "weekofyear",
    exp.Week: "weekofyear",
}
_TIME_PARTS: Final[dict[type[exp.Expr], str]] = {exp.Hour: "hour", exp.Minute: "minute", exp.Second: "second"}
_EXTRACTED: Final = {
    "YEAR": "year",
    "QUARTER": "quarter",
    "MONTH": "month",
    "WEEK": "weekofyear",
    "DAY": "day",
    "DOY": "dayofyear",
    "HOUR": "hour",
    "MINUTE": "minute",
}


@INSTANT_FUNCTIONS.of(*_PARTS)
def _part(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(cast(call(_PARTS[type(node)], _date(carry, node.this)), "int"), "int")


@INSTANT_FUNCTIONS.of(*_TIME_PARTS)
def _time_part(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(cast(call(_TIME_PARTS[type(node)], _moment(carry, node.this, timed=True).sql), "int"), "int")


@INSTANT_FUNCTIONS.of(exp.Extract)
def _extract(carry: Carrier, node: exp.Expr) -> Typed:
    part = _EXTRACTED.get(node.this.name.upper())
    if part is None:
        raise carry.differs(node, f"the part {node.this.name}")
    found = _moment(carry, node.expression, timed=part in ("hour", "minute"))
    return Typed(cast(call(part, found.sql), "int"), "int")


@INSTANT_FUNCTIONS.of(exp.DayOfWeek)
def _day_of_week(carry: Carrier, node: exp.Expr) -> Typed:
    day = call("dayofweek", _date(carry, node.this))
    return Typed(cast(exp.Add(this=day, expression=integer(1)), "int"), "int")


@INSTANT_FUNCTIONS.of(exp.TsOrDsAdd, exp.DateAdd, exp.DateSub, knows="this expression unit")
def _date_add(carry: Carrier, node: exp.Expr) -> Typed:
    if str(node.args.get("unit") or "DAY").upper().rstrip("S") != "DAY":
        raise carry.differs(node, "its unit is not DAY; add an INTERVAL")
    days = carry(node.expression)
    if days.type != "int":
        raise carry.differs(node, f"the number of days is {days.type}, not INT")
    kind = exp.Sub if isinstance(node, exp.DateSub) else exp.Add
    return Typed(cast(kind(this=_date(carry, node.this), expression=exp.paren(days.sql)), "date"), "date")


@INSTANT_FUNCTIONS.of(exp.DateDiff, knows="this expression unit")
def _date_diff(carry: Carrier, node: exp.Expr) -> Typed:
    if node.args.get("unit") is not None:
        if str(node.args["unit"]).upper() != "DAY":
            raise carry.differs(node, "its unit is not DAY")
        return _whole_units(carry, node, "DAY", timed=False)
    made = call("date_diff", exp.Literal.string("day"), _date(carry, node.expression), _date(carry, node.this))
    return Typed(cast(made, "int"), "int")


@INSTANT_FUNCTIONS.of(exp.TimestampAdd, knows="this expression unit")
def _timestamp_add(carry: Carrier, node: exp.Expr) -> Typed:
    number = carry.literal(node.expression, node, -(10**8))
    moment = _moment(carry, node.this, timed=True)
    interval = exp.Interval(this=exp.Literal.string(str(number)), unit=node.args.get("unit"))
    return Typed(exp.Add(this=operand(moment.sql), expression=carry(interval).sql), moment.type)


@INSTANT_FUNCTIONS.of(exp.AddMonths)
def _add_months(carry: Carrier, node: exp.Expr) -> Typed:
    months = carry.literal(node.expression, node, -(10**5))
    interval = exp.Interval(this=exp.Literal.string(str(months)), unit=exp.Var(this="MONTH"))
    return Typed(cast(exp.Add(this=_date(carry, node.this), expression=interval), "date"), "date")


@INSTANT_FUNCTIONS.of(exp.LastDay)
def _last_day(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(call("last_day", _date(carry, node.this)), "date")


@INSTANT_FUNCTIONS.of(exp.TsOrDsToDate, knows="this safe")
def _to_date(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(_date(carry, node.this), "date")


_TRUNCATED: Final = {
    **dict.fromkeys(("YEAR", "YYYY", "YY"), "year"),
    "QUARTER": "quarter",
    **dict.fromkeys(("MONTH", "MON", "MM"), "month"),
    "WEEK": "week",
    **dict.fromkeys(("DAY", "DD"), "day"),
    "HOUR": "hour",
    "MINUTE": "minute",
    "SECOND": "second",
    "MILLISECOND": "milliseconds",
}


def _unit(carry: Carrier, node: exp.Expr) -> str:
    unit = node.args.get("unit")
    name = _TRUNCATED.get(unit.name.upper() if unit is not None else "")
    if name is None:
        raise carry.differs(node, "its unit must be written out, from YEAR to MILLISECOND")
    return name


@INSTANT_FUNCTIONS.of(exp.TimestampTrunc, knows="this unit")
def _date_trunc(carry: Carrier, node: exp.Expr) -> Typed:
    found = _moment(carry, node.this)
    return Typed(call("date_trunc", exp.Literal.string(_unit(carry, node)), cast(found.sql, "timestamp")), "timestamp")


@INSTANT_FUNCTIONS.of(exp.DateTrunc, knows="this unit")
def _trunc(carry: Carrier, node: exp.Expr) -> Typed:
    unit = _unit(carry, node)
    if unit not in ("year", "quarter", "month", "week"):
        raise carry.differs(node, f"a date has no {unit}")
    return Typed(cast(call("date_trunc", exp.Literal.string(unit), _date(carry, node.this)), "date"), "date")


def _from_epoch(micros: int) -> Rule:
    def made(carry: Carrier, node: exp.Expr) -> Typed:
        found = carry(node.expressions[0])
        if found.type not in ("int", "bigint"):
            raise carry.differs(node, f"its argument is {found.type}")
        value = exp.Mul(this=exp.paren(cast(found.sql, "bigint")), expression=integer(micros))
        return Typed(call("make_timestamp", value), "timestamp")

    return made


def _to_epoch(micros: int) -> Rule:
    def made(carry: Carrier, node: exp.Expr) -> Typed:
        found = call("epoch_us", cast(_moment(carry, node.this, timed=True).sql, "timestamp"))
        if micros == 1:
            return Typed(found, "bigint")
        rest = exp.Mod(
            this=exp.paren(
                exp.Add(this=exp.Mod(this=found.copy(), expression=integer(micros)), expression=integer(micros))
            ),
            expression=integer(micros),
        )
        return Typed(
            exp.paren(exp.IntDiv(this=exp.paren(exp.Sub(this=found, expression=rest)), expression=integer(micros))),
            "bigint",
        )

    return made


@INSTANT_FUNCTIONS.of(exp.Anonymous, knows="this expressions")
def _by_name(carry: Carrier, node: exp.Expr) -> Typed:
    """Functions that sqlglot knows by their name alone."""
    made, arguments = _BY_NAME.get(node.name.casefold(), (None, 0))
    if made is None or len(node.expressions) != arguments:
        raise carry.unknown(node)
    return made(carry, node)


def _is_null(carry: Carrier, node: exp.Expr) -> Typed:
    found = carry(exp.Is(this=exp.paren(node.expressions[0].copy()), expression=exp.Null()))
    return Typed(exp.paren(found.sql), found.type)


def _is_not_null(carry: Carrier, node: exp.Expr) -> Typed:
    return Typed(exp.paren(exp.Not(this=_is_null(carry, node).sql)), "boolean")


_MICROS: Final = {
    "MICROSECOND": 1,
    "MILLISECOND": 1_000,
    "SECOND": 1_000_000,
    "MINUTE": 60_000_000,
    "HOUR": 3_600_000_000,
    "DAY": 86_400_000_000,
    "WEEK": 604_800_000_000,
}


@INSTANT_FUNCTIONS.of(exp.TimestampDiff, knows="this expression unit")
def _difference(carry: Carrier, node: exp.Expr) -> Typed:
    """Return the whole units between two instants: those of a fixed length."""
    return _whole_units(carry, node, str(node.args.get("unit") or "").upper(), timed=True)


def _whole_units(carry: Carrier, node: exp.Expr, unit: str, *, timed: bool) -> Typed:
    micros = _MICROS.get(unit)
    if micros is None:
        raise carry.differs(node, "its unit has no fixed length")
    moments = [_moment(carry, each, timed=timed) for each in (node.this, node.expression)]
    sides = [call("epoch_us", cast(each.sql, "timestamp")) for each in moments]
    between = exp.paren(exp.Sub(this=sides[0], expression=sides[1]))
    return Typed(exp.paren(exp.IntDiv(this=between, expression=integer(micros))), "bigint")


def _weekday(carry: Carrier, node: exp.Expr) -> Typed:
    day = call("isodow", _date(carry, node.expressions[0]))
    return Typed(cast(exp.Sub(this=day, expression=integer(1)), "int"), "int")


_BY_NAME: Final[dict[str, tuple[Rule, int]]] = {
    "isnull": (_is_null, 1),
    "isnotnull": (_is_not_null, 1),
    "weekday": (_weekday, 1),
    "timestamp_seconds": (_from_epoch(1_000_000), 1),
    "timestamp_millis": (_from_epoch(1_000), 1),
    "timestamp_micros": (_from_epoch(1), 1),
}
"""With the number of their arguments."""

INSTANT_FUNCTIONS.update(
    {
        exp.UnixSeconds: _to_epoch(1_000_000),
        exp.UnixMillis: _to_epoch(1_000),
        exp.UnixMicros: _to_epoch(1),
    }
)
