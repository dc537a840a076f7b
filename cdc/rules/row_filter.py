"""Judges rows by a condition of `source.where`, exactly as the server would, or refuses the condition. Pure.

Only comparisons that have one meaning everywhere are taken: whole numbers and decimals by their value, booleans, dates
and timestamps, and whether two texts are equal where the column's collation compares them character by character.
Everything else (the order of texts, floating-point numbers, times, JSON, arrays) depends on the server's collations,
rounding or settings, and is refused with the reason.

A judgement has four outcomes: true, false, unknown (NULL, as in SQL), and UNCHANGED: the log left out a value that
decides. Only rows for which the condition is true are published.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any, Final, TypeAlias

import orjson

from cdc.config.published.where import Comparison, Condition, Every, IsNull, IsTrue, Literal, Name, Not, Some
from cdc.model.change import UNCHANGED, Column, Row, Table, Unsent
from cdc.model.errors import OperatorError

Judge: TypeAlias = Callable[[Row], bool | Unsent | None]
"""Whether a row is published: only if it is True. UNCHANGED: a value that decides was not sent."""

_Read: TypeAlias = Callable[[bytes], object]

_COMPARE: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_SHOWN: Final = 20
"""So many labels of an enum are shown."""
_WHOLE: Final = frozenset({"int16", "int32", "int64", "uint64"})
_MOMENTS: Final = frozenset({"date", "timestamp_millis", "timestamp_micros", "timestamptz"})
_BYTEWISE: Final = frozenset({"C", "POSIX", "ucs_basic"})
_NO_PAD: Final = ("_0900_bin", "_nopad_bin")
_UUID: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").fullmatch
_MOMENT: Final = re.compile(
    r"(\d{4,})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?(?:Z|\+00(?::?00)?)?( BC)?"
).fullmatch
_BEHIND: Final = float("inf")
_ENDS: Final = {"infinity": (float("inf"),), "-infinity": (float("-inf"),)}


def judge_of(condition: Condition, table: Table) -> Judge:
    """Return what judges rows of a table. Raises OperatorError for what cannot be judged as the server does."""
    match condition:
        case Comparison(name, sign, literal):
            index, column = _column(name, table)
            return _comparison(index, *_compared(column, name, sign, literal, table), _COMPARE[sign])
        case IsNull(name):
            index, _ = _column(name, table)
            return lambda row: UNCHANGED if row[index] is UNCHANGED else row[index] is None
        case IsTrue(name):
            index, column = _column(name, table)
            if column.kind.name != "boolean":
                raise _refused(table, column, "it is not a boolean, and stands alone")
            return _comparison(index, _json(column), True, operator.eq)  # noqa: FBT003 - a value
        case Not(inner):
            return _not(judge_of(inner, table))
        case Every(conditions):
            return _every([judge_of(one, table) for one in conditions])
        case Some(conditions):
            return _some([judge_of(one, table) for one in conditions])


def _column(name: Name, table: Table) -> tuple[int, Column]:
    """Find a column by its name, in the letters that it has or, as servers do, in others."""
    named = [(index, column) for index, column in enumerate(table.columns) if column.name == name.text]
    folded = [(i, column) for i, column in enumerate(table.columns) if column.name.lower() == name.text.lower()]
    found = named or folded
    if len(found) != 1:
        raise OperatorError(
            f"source.where: table {table.qualified} has no column {name.text}",
            hint=f"its columns: {', '.join(column.name for column in table.columns)}; text stands in single quotes",
        )
    return found[0]


def _comparison(index: int, read: _Read, literal: object, compare: Callable[[object, object], bool]) -> Judge:
    def judge(row: Row) -> bool | Unsent | None:
        value = row[index]
        if value is None or value is UNCHANGED:
            return value
        return compare(read(value), literal)

    return judge


def _not(inner: Judge) -> Judge:
    def judge(row: Row) -> bool | Unsent | None:
        found = inner(row)
        return not found if isinstance(found, bool) else found

    return judge


def _every(judges: list[Judge]) -> Judge:
    def judge(row: Row) -> bool | Unsent | None:
        found = [judge(row) for judge in judges]
        return False if False in found else UNCHANGED if UNCHANGED in found else None if None in found else True

    return judge


def _some(judges: list[Judge]) -> Judge:
    def judge(row: Row) -> bool | Unsent | None:
        found = [judge(row) for judge in judges]
        return True if True in found else UNCHANGED if UNCHANGED in found else None if None in found else False

    return judge


def _compared(column: Column, name: Name, sign: str, literal: Literal, table: Table) -> tuple[_Read, object]:
    """Return what reads a value of the column, and the literal as the same kind of value."""
    kind = column.kind.name
    if name.collation is not None and kind != "string":
        raise _refused(table, column, "only text has a collation")
    if kind == "boolean":
        if not isinstance(literal, bool) or sign not in ("=", "<>"):
            raise _refused(table, column, "a boolean is compared by = and <> with true or false")
        return _json(column), literal
    if kind not in _WHOLE | _MOMENTS | {"decimal", "string"} or column.type == "money":
        raise _refused(table, column, f"values of type {column.type} are not compared alike everywhere")
    if isinstance(literal, bool):
        raise _refused(table, column, "it is not a boolean")
    if kind in _WHOLE or kind == "decimal":
        if not isinstance(literal, Decimal):
            raise _refused(table, column, "it is a number: write the literal without quotes")
        return (_whole, literal) if kind in _WHOLE else (_decimal, (0, literal))
    if not isinstance(literal, str):
        raise _refused(table, column, "write the literal as 'text'")
    if kind in _MOMENTS:
        return _moment, _moment_literal(literal, column, table)
    return _texts(column, name, sign, literal, table)


def _texts(column: Column, name: Name, sign: str, literal: str, table: Table) -> tuple[_Read, object]:
    if sign not in ("=", "<>"):
        raise _refused(table, column, "the order of texts depends on the server's collations: only = and <> are known")
    if column.type == "uuid":
        if not _UUID(literal):
            raise _refused(table, column, "write the uuid in small letters, with its dashes")
        return _json(column), literal
    if column.labels and literal not in column.labels:
        raise _refused(
            table, column, f"'{literal}' is no label of its type",
            f"its labels: {_some_of(column.labels)}; where one was renamed, the condition has its new name",
        )  # fmt: skip
    equality = column.equality
    if name.collation is not None:
        equality = _equality_of(name.collation) if column.type[-1] != "]" else ""
        if column.equality == "padded":
            equality = equality and "padded"
    if not equality:
        raise _refused(
            table, column, "its collation takes different texts for equal, or is not known",
            f"name one that compares the bytes: {column.name} COLLATE utf8mb4_bin = '…' (PostgreSQL: COLLATE \"C\")",
        )  # fmt: skip
    read = _json(column)
    if equality == "padded":
        return lambda value: _without_spaces(read(value)), literal.rstrip(" ")
    return read, literal


def _some_of(labels: Sequence[str]) -> str:
    shown = ", ".join(labels[:_SHOWN])
    return f"{shown}, …" if len(labels) > _SHOWN else shown


def _without_spaces(value: object) -> object:
    return value.rstrip(" ") if isinstance(value, str) else value


def _equality_of(collation: str) -> str:
    """Return how a collation takes texts for equal, as `Column.equality` says it."""
    if collation in _BYTEWISE or collation.endswith(_NO_PAD):
        return "exact"
    return "padded" if collation.endswith("_bin") else ""


def equality_of(collation: str | None) -> str:
    """Return `Column.equality` of a column of MySQL or MariaDB with this collation."""
    return "" if collation is None else _equality_of(collation)


def _json(column: Column) -> _Read:
    """Read a value as its JSON. A text that is not in any encoding equals no literal: it stays the bytes that it is."""
    encode = column.encode

    def read(value: bytes) -> object:
        try:
            return orjson.loads(encode(value))
        except ValueError:
            return value

    return read


def _whole(value: bytes) -> object:
    try:
        return int(value)
    except ValueError:  # of SQLite, where columns hold what they are given
        return _number(value)


def _decimal(value: bytes) -> object:
    """Return a decimal in the server's order, where NaN equals itself and is greater than all numbers."""
    try:
        found = Decimal(value.decode())
    except (ArithmeticError, ValueError):
        return (0, _number(value))
    return (1, Decimal(0)) if found.is_nan() else (0, found)


def _number(value: bytes) -> float:
    """Return a number, or what is greater than all: SQLite sorts texts and blobs behind numbers."""
    try:
        found = float(value)
    except ValueError:
        return _BEHIND
    return _BEHIND if found != found else found  # noqa: PLR0124 - the text “nan”


def _moment(value: bytes) -> object:
    """Return a date or timestamp in the server's order; MySQL's zeros come before all others."""
    text = value.decode()
    if text in _ENDS:
        return _ENDS[text]
    found = _MOMENT(text)
    if found is None:
        raise ValueError("a date or timestamp in a form that is not known")
    year, *rest = (int(part or 0) for part in found.groups()[:6])
    return (1 - year if found[8] else year, *rest, int((found[7] or "").ljust(6, "0")))


def _moment_literal(literal: str, column: Column, table: Table) -> object:
    kind = column.kind.name
    try:
        if kind == "date":
            found = datetime.combine(date.fromisoformat(literal), datetime.min.time())
        else:
            found = datetime.fromisoformat(literal)
    except ValueError:
        raise _refused(table, column, f"“{literal}” is not a moment of its type", _MOMENTS_HINT) from None
    if (found.tzinfo is not None) != (kind == "timestamptz"):
        what = "write the literal's time zone: it may not depend on a session's" if kind == "timestamptz" else (
            "it has no time zone, and the literal has"
        )  # fmt: skip
        raise _refused(table, column, what, _MOMENTS_HINT)
    at = found.astimezone(UTC) if found.tzinfo is not None else found
    return (at.year, at.month, at.day, at.hour, at.minute, at.second, at.microsecond)


_MOMENTS_HINT: Final = (
    "'2026-01-31' for a date, '2026-01-31 12:00:00' for a timestamp, with Z behind it if it has a zone"
)


def _refused(table: Table, column: Column, why: str, hint: str | None = None) -> OperatorError:
    return OperatorError(
        f"source.where: table {table.qualified}, column {column.name}: the condition cannot be judged as the server "
        f"does: {why}",
        hint=hint or "compare another column, or filter where the events are read: where of apply.yaml takes any SQL",
    )
