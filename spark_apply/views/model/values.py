"""Carries values between Spark, the engine's tables and events: a type, and the JSON of docs/values.md, by kind. Pure.

Instants are kept as TIMESTAMP without a zone, in UTC, so that no setting of a session can shift them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import orjson

from cdc.model.change import Kind
from spark_apply.model.types import MAX_DECIMAL_PRECISION

Columns = Sequence[tuple[str, Kind]]
"""Names and kinds, in order."""

_TYPES: Final = {
    "boolean": "BOOLEAN",
    "int16": "INTEGER",
    "int32": "INTEGER",
    "int64": "BIGINT",
    "uint64": "DECIMAL(20,0)",
    "float32": "FLOAT",
    "float64": "DOUBLE",
    "bytes": "BLOB",
    "date": "DATE",
    "timestamp_millis": "TIMESTAMP",
    "timestamp_micros": "TIMESTAMP",
    "timestamptz": "TIMESTAMP",
    "geometry": "STRUCT(wkb BLOB, srid INTEGER)",
    "vector": "FLOAT[]",
}


def quoted(name: str) -> str:
    """Quote an identifier of the engine."""
    return '"' + name.replace('"', '""') + '"'


def text(value: str) -> str:
    """Write a string as a literal of the engine."""
    return "'" + value.replace("'", "''") + "'"


def engine_type(kind: Kind) -> str:
    """Return the type that holds values of `kind` in the engine, as `spark_apply.model.types` does for Spark."""
    if kind.name == "decimal":
        if kind.precision is None or max(kind.precision, kind.scale or 0) > MAX_DECIMAL_PRECISION:
            return "VARCHAR"
        scale = kind.scale or 0
        return f"DECIMAL({max(kind.precision - min(scale, 0), scale)},{max(scale, 0)})"
    if kind.name == "array" and kind.element is not None:
        return engine_type(kind.element) + "[]"
    return _TYPES.get(kind.name, "VARCHAR")


def may_be_published(kind: Kind) -> bool:
    """Whether a view may have a column of this kind."""
    if kind.name == "array":
        return kind.element is not None and kind.element.name in ("boolean", "int32", "int64", "string")
    return kind.name not in ("geometry", "vector")


def is_fraction(kind: Kind) -> bool:
    """Whether all digits are behind the point: DuckDB writes none before it then, as all others do."""
    found = re.fullmatch(r"DECIMAL\((\d+),(\d+)\)", engine_type(kind))
    return found is not None and found[1] == found[2]


def json_of(kind: Kind, column: str) -> str:
    """Return an expression of the engine that gives a value's JSON; `column` is an expression."""
    return f"CASE WHEN {column} IS NULL THEN 'null' ELSE {_json_of(kind, column)} END"


def _json_of(kind: Kind, column: str) -> str:
    cast = f"CAST({column} AS VARCHAR)"
    match kind.name:
        case "boolean" | "int16" | "int32" | "int64":
            return cast
        case "float32" | "float64":
            return (
                f"CASE WHEN isnan({column}) THEN '\"NaN\"' WHEN {column} = 'Infinity' THEN '\"Infinity\"' "
                f"WHEN {column} = '-Infinity' THEN '\"-Infinity\"' WHEN {column} = 0 THEN '0.0' ELSE {cast} END"
            )
        case "decimal" | "uint64":
            digits = f"regexp_replace({cast}, '^(-?)[.]', '\\10.')" if is_fraction(kind) else cast
            return f"'\"' || {digits} || '\"'"
        case "bytes":
            return f"'\"' || to_base64({column}) || '\"'"
        case "date":
            return f"CAST(datediff('day', DATE '1970-01-01', {column}) AS VARCHAR)"
        case "timestamp_millis" | "timestamp_micros":
            return f"CAST(epoch_us({column}) AS VARCHAR)"
        case "timestamptz":
            sign = f"CASE WHEN year({column}) < 0 THEN '-' WHEN year({column}) > 9999 THEN '+' ELSE '' END"
            digits = f"CAST(abs(year({column})) AS VARCHAR)"
            year = f"CASE WHEN abs(year({column})) > 9999 THEN {digits} ELSE lpad({digits}, 4, '0') END"
            rest, fraction = f"strftime({column}, '-%m-%dT%H:%M:%S')", f"strftime({column}, '.%f')"
            micros = f"CASE WHEN microsecond({column}) % 1000000 = 0 THEN '' ELSE {fraction} END"
            return f"'\"' || {sign} || {year} || {rest} || {micros} || 'Z\"'"
        case _:
            return f"CAST(to_json({column}) AS VARCHAR)"


def object_of(columns: Columns, row: str) -> str:
    """Return an expression for the JSON object of these columns of the table alias `row`, without white space."""
    parts = ["'{'"]
    for number, (name, kind) in enumerate(columns):  # one call: so many `||` would be nested too deep for the engine
        parts += [text(("," if number else "") + _name(name)), json_of(kind, f"{row}.{quoted(name)}")]
    return f"concat({', '.join([*parts, text('}')])})"


def _name(name: str) -> str:
    return orjson.dumps(name).decode() + ":"
