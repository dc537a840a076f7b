"""Casts: pairs of types for which both give the same value, and fail for the same values."""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

from sqlglot import exp

from spark_apply.views.sql.expressions.carrier import Carrier, Rules, Typed, call, case, cast, failing, integer
from spark_apply.views.sql.expressions.types import (
    FLOATS,
    INSTANTS,
    INTEGERS,
    NULL,
    decimal,
    is_decimal,
    is_exact,
    precision_scale,
)
from spark_apply.views.sql.reading.blocks import operand

CASTS: Final = Rules()

_NAMES: Final = {
    exp.DType.BOOLEAN: "boolean",
    exp.DType.TINYINT: None,
    exp.DType.SMALLINT: None,
    exp.DType.INT: "int",
    exp.DType.BIGINT: "bigint",
    exp.DType.FLOAT: "float",
    exp.DType.DOUBLE: "double",
    exp.DType.TEXT: "string",
    exp.DType.DATE: "date",
    exp.DType.TIMESTAMPNTZ: "timestamp_ntz",
    exp.DType.TIMESTAMP: "timestamp",
    exp.DType.TIMESTAMPTZ: "timestamp",
    exp.DType.TIMESTAMPLTZ: "timestamp",
}

_AROUND: Final = r"[\x00-\x20\x7f]*"
"""What Spark leaves out around a text before it reads it."""
_NUMBER: Final = r"[+-]?[0-9]+"
_WITH_POINT: Final = r"[+-]?[0-9]{1,255}(\.[0-9]{1,255})?"
_PATTERNS: Final = {
    **dict.fromkeys(("int", "bigint"), f"{_AROUND}[+-]?0*[0-9]{{1,19}}{_AROUND}"),
    "date": r"[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "double": _WITH_POINT,
}
"""Texts that both read alike; of others one may read what the other does not."""


def _pattern(to: str) -> str | None:
    return _WITH_POINT if is_decimal(to) else _PATTERNS.get(to)


_ISO_INSTANT: Final = r"\d{4}-\d{2}-\d{2}([ T]\d{2}:\d{2}:\d{2}(\.\d{1,6})?)?"


def _target(carry: Carrier, node: exp.Expr) -> str:
    to = node.args["to"]
    if to.this is exp.DType.DECIMAL:
        sizes = [int(each.name) for each in to.expressions]
        return decimal(sizes[0], sizes[1] if len(sizes) > 1 else 0) if sizes else decimal(10, 0)
    name = _NAMES.get(to.this)
    if name is None or to.expressions:
        raise carry.differs(node, f"the type {to.sql('spark')}")
    return name


@CASTS.of(exp.Cast, knows="this to safe")
def _cast(carry: Carrier, node: exp.Expr) -> Typed:
    found, to = carry(node.this), _target(carry, node)
    if found.type == "string" and to in INSTANTS:
        return _written_instant(carry, node, found, to)
    if found.type == "string" and _pattern(to) is not None:
        if isinstance(node.this, exp.Literal) and not _is_one(node.this.name, to):
            raise carry.differs(node, f"the text is no {to.upper()}, or another one in Spark; a date is 2026-01-31")
        wrong = failing(f"a text is no {to.upper()}", to)
        missing = exp.Is(this=operand(found.sql.copy()), expression=exp.Null())
        return Typed(
            case((missing, exp.Null()), (_reads(found.sql, to), cast(_bare(found.sql, to), to)), default=wrong), to
        )
    return Typed(_converted(carry, node, found, to), to)


@CASTS.of(exp.TryCast, knows="this to safe")
def _try_cast(carry: Carrier, node: exp.Expr) -> Typed:
    found, to = carry(node.this), _target(carry, node)
    if found.type == "string" and to in ("int", "bigint"):
        made = exp.TryCast(this=_bare(found.sql, to), to=cast(found.sql, to).args["to"])
        return Typed(case((_reads(found.sql, to), made)), to)
    if found.type == to or (found.type in INTEGERS and to == "bigint"):
        return Typed(_converted(carry, node, found, to), to)
    raise carry.differs(node, f"try_cast of {found.type}")


def _is_one(text: str, to: str) -> bool:
    """Whether a text that is written out has the form that both read alike, and is a day that there is."""
    if not re.fullmatch((_pattern(to) or "").replace(_AROUND, ""), text):
        return False
    try:
        dt.date.fromisoformat(text) if to == "date" else float(text)
    except ValueError:
        return False
    return True


def _reads(text: exp.Expr, to: str) -> exp.Expr:
    return call("regexp_full_match", text.copy(), exp.Literal.string(_pattern(to) or ""))


def _bare(text: exp.Expr, to: str) -> exp.Expr:
    """Return a text without what stands around the number in it."""
    return call("regexp_extract", text.copy(), exp.Literal.string(_NUMBER)) if to in INTEGERS else text.copy()


def _written_instant(carry: Carrier, node: exp.Expr, found: Typed, to: str) -> Typed:
    if not (isinstance(node.this, exp.Literal) and re.fullmatch(_ISO_INSTANT, node.this.name)):
        raise carry.differs(node, "a text is cast to a timestamp only where it is written out, as 2026-01-31 10:00:00")
    try:
        dt.datetime.fromisoformat(node.this.name)
    except ValueError as error:
        raise carry.differs(node, "there is no such time") from error
    return Typed(cast(found.sql, to), to)


def _converted(carry: Carrier, node: exp.Expr, found: Typed, to: str) -> exp.Expr:
    """Return the cast of a value that is no text, or to a text."""
    value, of = found
    if of in (to, NULL) or (of in INSTANTS and to in INSTANTS):
        return cast(value, to)
    if to in INTEGERS and (of in FLOATS or is_decimal(of)):
        return cast(call("trunc", value), to)
    if of in FLOATS and is_decimal(to):
        return _decimal(cast(value, "double"), to)
    allowed = (
        (is_exact(of) and (is_exact(to) or to == "double"))
        or (of in INTEGERS and to == "string")
        or (is_decimal(of) and to == "string" and precision_scale(of)[1] <= 6)  # noqa: PLR2004 - 0.0000001 is 1E-7
        or (of == "boolean" and to in ("string", *INTEGERS))
        or (of in INTEGERS and to == "boolean")
        or (of == "float" and to == "double")
        or (of == "date" and to in INSTANTS)
        or (of in INSTANTS and to == "date")
    )
    if of in ("date", *INSTANTS) and to == "string":
        return _day_as_text(cast(value, of))
    if not allowed:
        raise carry.differs(node, f"{of} as {to}")
    if to == "string" and is_decimal(of):
        digits, places = precision_scale(of)
        if digits == places:  # DuckDB would write 0.5 as `.5`; others stay: views are made again by other statements
            value = cast(value, decimal(places + 1, places))
    return cast(value, to)


def _decimal(value: exp.Expr, to: str) -> exp.Expr:
    """Return a float as the decimal number that it is written as, as Java does; NULL for NaN and infinity."""
    infinity = cast(exp.Literal.string("Infinity"), "double")
    return case((exp.LT(this=call("abs", value.copy()), expression=infinity), cast(cast(value, "string"), to)))


def _day_as_text(value: exp.Expr) -> exp.Expr:
    """Return a date or a timestamp as a text; before year 1 and behind 9999, years have a sign, and there is a year 0.

    The engines write the year before 1 as 1 with BC behind the day or at the end, and give no plus.
    """
    text, year = cast(value, "string"), call("year", value.copy())
    digits = cast(call("abs", year), "string")
    length = call("greatest", call("length", digits.copy()), integer(4))
    padded = call("right", exp.DPipe(this=exp.Literal.string("000"), expression=digits), length)
    signs = (
        (exp.GT(this=year.copy(), expression=integer(9999)), "+"),
        (exp.LT(this=year.copy(), expression=integer(0)), "-"),
    )
    sign = case(*((when, exp.Literal.string(each)) for when, each in signs), default=exp.Literal.string(""))
    signed = exp.DPipe(this=sign, expression=padded)
    without_era = call("regexp_replace", text.copy(), exp.Literal.string(" [(]?BC[)]?"), exp.Literal.string(""))
    written = call("regexp_replace", without_era, exp.Literal.string("^[0-9]+"), signed)
    usual = exp.Between(this=year.copy(), low=integer(1), high=integer(9999))
    return case((usual, text), default=written)
