"""Columns as formats with schemas have them: one type for a column, whatever the value. Pure.

Plain JSON has strings where a number would not do: ``"infinity"`` for a date, ``"0000-00-00"``. A field of a schema has
one type, so such values are numbers that no other value has, as in Debezium where it has them. Arrays are their JSON in
a string, because the same column of PostgreSQL may hold arrays of any depth, and with any lower bound.

`written` turns the plain JSON of a value into the typed one; `plainly` turns it back. docs/formats.md has the table.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, TypeAlias

from orjson import dumps, loads

from cdc.encode import json_text
from cdc.encode.dead_letters import UnwritableError
from cdc.formats.schema import DECIMAL, Schema
from cdc.model.change import Column, Kind

Encode: TypeAlias = Callable[[bytes], bytes]

INT32: Final = (-(2**31), 2**31 - 1)
INT64: Final = (-(2**63), 2**63 - 1)
_DAYS: Final = {"infinity": INT32[1], "-infinity": INT32[0]}
_INSTANTS: Final = {"infinity": 9_223_372_036_825_200_000, "-infinity": -9_223_372_036_832_400_000}
"""As in Debezium."""
SPECIAL: Final[Mapping[str, Mapping[str, int]]] = {
    "date": _DAYS, "timestamp_millis": _INSTANTS, "timestamp_micros": _INSTANTS,
}  # fmt: skip
"""By kind, the numbers of values that are strings in plain JSON."""
_UNREAL: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d)(?: (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?)?").fullmatch
"""A day of MySQL that is in no calendar: ``0000-00-00``, ``2024-02-30 12:00:00``."""
_UNREAL_DAY: Final = -2_000_000_000
_UNREAL_INSTANT: Final = -8_000_000_000_000_000_000
"""Below them are no days, and no instants, of a calendar."""
_DAY_MICROS: Final = 86_400_000_000
_MONTHS: Final = 13
_DAYS_OF_MONTH: Final = 32

_OF_TYPE: Final = {"uuid": "io.debezium.data.Uuid", "xml": "io.debezium.data.Xml"}
_STRINGS: Final = {
    "json": "io.debezium.data.Json",
    "timetz": "io.debezium.time.ZonedTime",
    "timestamptz": "io.debezium.time.ZonedTimestamp",
    "interval": "io.debezium.time.Interval",
    "array": "io.debezium.data.Json",
}
_NUMBERS: Final = {
    "date": ("int32", "io.debezium.time.Date"),
    "time_micros": ("int64", "io.debezium.time.MicroTime"),
    "timestamp_millis": ("int64", "io.debezium.time.Timestamp"),
    "timestamp_micros": ("int64", "io.debezium.time.MicroTimestamp"),
}
_GEOMETRY: Final = Schema(
    type="struct", name="io.debezium.data.geometry.Geometry", version=1,
    fields=(("wkb", Schema(type="bytes")), ("srid", Schema(type="int32", optional=True))),
)  # fmt: skip
_UINT64_DIGITS: Final = 20
_PLAIN: Final = frozenset({"boolean", "int16", "int32", "int64", "float32", "float64", "bytes"})


def schema_of(column: Column, *, precise: bool) -> Schema:
    """Return the schema of a column's values. `precise`: numbers of a declared precision are Connect's Decimal."""
    kind = column.kind
    if kind.name in _PLAIN:
        return Schema(type=kind.name)
    if kind.name == "uint64":
        return decimal(_UINT64_DIGITS, 0)
    if kind.name == "decimal" and precise and kind.precision is not None:
        return decimal(*_digits(kind))
    if kind.name in _NUMBERS:
        type_, semantic = _NUMBERS[kind.name]
        return Schema(type=type_, name=semantic, version=1)
    if kind.name == "geometry":
        return _GEOMETRY
    if kind.name == "vector":
        return Schema(type="array", name="io.debezium.data.DoubleVector", version=1, items=Schema(type="float64"))
    named = kind.name == "string" and not column.changed  # a hash is no uuid
    name: str | None = _STRINGS.get(kind.name) or (_OF_TYPE.get(column.type) if named else None)
    return Schema(type="string", name=name, version=1 if name is not None else None)


def decimal(precision: int, scale: int) -> Schema:
    """Return Connect's Decimal."""
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return Schema(type="bytes", name=DECIMAL, version=1, parameters=parameters)


def _digits(kind: Kind) -> tuple[int, int]:
    """Precision and scale as Avro has them: no scale below zero, and none above the precision."""
    precision, scale = kind.precision or 0, kind.scale or 0
    return (precision - scale, 0) if scale < 0 else (max(precision, scale), scale)


def typed(column: Column) -> Encode:
    """Return the encoder of a column's typed JSON."""
    if column.kind.name in SPECIAL:
        return _special(column.encode, column.kind.name, column.name)
    return _in_string(column.encode) if column.kind.name == "array" else column.encode


@cache
def _special(encode: Encode, kind: str, name: str) -> Encode:
    taken = frozenset(SPECIAL[kind].values())
    least, most = (_UNREAL_DAY, INT32[1]) if kind == "date" else (_UNREAL_INSTANT, INT64[1])

    def write(value: bytes) -> bytes:
        json = encode(value)
        if json[:1] == b'"':
            return b"%d" % _number(kind, json[1:-1].decode())
        if json != b"null" and (int(json) in taken or not least < int(json) <= most):
            raise UnwritableError(f"the value of {name} is outside what numbers of its format hold", (name,))
        return json

    if encode in json_text.FORMS:  # compiled code writes years of four digits itself, and calls this for the rest
        json_text.FORMS[write] = json_text.FORMS[encode]
    return write


def _number(kind: str, text: str) -> int:
    """Return the number of a value that is a string in plain JSON."""
    found = SPECIAL[kind].get(text)
    match = _UNREAL(text)
    if found is not None or match is None:
        return SPECIAL[kind][text] if found is None else found
    year, month, day, hour, minute, second = (int(part or 0) for part in match.groups()[:6])
    if kind == "date":
        return _UNREAL_DAY - (year * 10_000 + month * 100 + day)
    micros = ((hour * 60 + minute) * 60 + second) * 1_000_000 + int((match[7] or "").ljust(6, "0"))
    return _UNREAL_INSTANT - ((year * _MONTHS + month) * _DAYS_OF_MONTH + day) * _DAY_MICROS - micros


def _text(kind: str, number: int, type_: str) -> str | None:
    """Return what plain JSON has for such a number, in a column of this type; None: the number itself."""
    for text, special in SPECIAL[kind].items():
        if special == number:
            return text
    if kind == "date":
        if not _UNREAL_DAY - 99_991_231 <= number <= _UNREAL_DAY:
            return None
        digits = f"{_UNREAL_DAY - number:08d}"
        return f"{digits[:4]}-{digits[4:6]}-{digits[6:]}"
    if number > _UNREAL_INSTANT:
        return None
    days, micros = divmod(_UNREAL_INSTANT - number, _DAY_MICROS)
    months, day = divmod(days, _DAYS_OF_MONTH)
    year, month = divmod(months, _MONTHS)
    seconds, micros = divmod(micros, 1_000_000)
    fraction = int(type_.partition("(")[2].rstrip(")") or 0)
    told = f"{year:04d}-{month:02d}-{day:02d} {seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}"
    return f"{told}.{micros:06d}"[: len(told) + 1 + fraction] if fraction else told


@cache
def _in_string(encode: Encode) -> Encode:
    def write(value: bytes) -> bytes:
        return dumps(encode(value).decode())

    return write


def plainly(kind: str, type_: str, value: Any) -> Any:  # noqa: ANN401 - JSON
    """Return what plain JSON has in place of a typed value."""
    if kind in SPECIAL and isinstance(value, int):
        text = _text(kind, value, type_)
        return value if text is None else text
    if value is not None and kind == "array":
        return loads(value)
    return int(value) if kind == "uint64" and isinstance(value, str) else value


def plain_row(columns: Sequence[Mapping[str, Any]], row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row, or part of one, as plain JSON has it; `columns` are as the schema topic has them."""
    kinds = {column["name"]: (column["kind"], column["type"]) for column in columns}
    return {name: plainly(*kinds.get(name, ("", "")), value) for name, value in row.items()}
