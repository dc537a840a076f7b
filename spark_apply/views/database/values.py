"""Values as PostgreSQL has them: a type, and the JSON of docs/values.md, by kind. Pure.

As `spark_apply.views.model.values` has it for the embedded engine, and with the same bytes of JSON: a view may go over
from one engine to the other, and only rows that differ are published again. Lower-case digits of control characters
alone are others.
"""

from __future__ import annotations

from typing import Final

import orjson

from cdc.model.change import Kind
from spark_apply.views.model.values import Columns, quoted, text
from spark_apply.views.model.values import engine_type as embedded_type
from spark_apply.views.planning.view import View
from spark_apply.views.sql.expressions.engines.postgres import SYSTEM_COLUMNS

_TYPES: Final = {
    "VARCHAR": "text",
    "FLOAT": "real",
    "DOUBLE": "double precision",
    "BLOB": "bytea",
}
_LEFT_OUT: Final = frozenset({"geometry", "vector", "array"})
WHOLE: Final = "[]"
"""The name of the unit of a view that has none, as the quarantine has it."""


def kept(columns: Columns) -> Columns:
    """Return the columns that the engine keeps: others, of its kinds or by their names, no view can read."""
    return [(name, kind) for name, kind in columns if kind.name not in _LEFT_OUT and name not in SYSTEM_COLUMNS]


def type_of(kind: Kind) -> str:
    """Return the type that holds values of a kind."""
    found = embedded_type(kind)
    return _TYPES.get(found, found.replace("DECIMAL", "numeric"))


def shown_type(kind: Kind) -> str:
    """Return the same as PostgreSQL writes it."""
    of = type_of(kind).lower()
    return "timestamp without time zone" if of == "timestamp" else of


def declared(name: str, kind: Kind) -> str:
    """Return a column as a table declares it."""
    of = type_of(kind)
    return f"{quoted(name)} {of}{_COLLATED if of == 'text' else ''}"


_COLLATED: Final = ' COLLATE "C"'


def converted(value: str, kind: Kind) -> str:
    """Return a value as its kind's type."""
    of = type_of(kind)
    made = f"CAST({value} AS {of})"
    return f"({made}{_COLLATED})" if of == "text" else made


def object_of(columns: Columns, row: str) -> str:
    """Return an expression for the JSON object of these columns of the table alias `row`, without white space."""
    parts = [text("{")]
    for number, (name, kind) in enumerate(columns):
        key = orjson.dumps(name).decode() + ":"
        parts += [text(("," if number else "") + key), _json_of(kind, f"{row}.{quoted(name)}")]
    return _collated(_concatenated([*parts, text("}")]))


def _concatenated(parts: list[str]) -> str:
    """Join parts, some at a time: a function takes a hundred arguments."""
    if len(parts) <= _ARGUMENTS:
        return f"concat({', '.join(parts)})"
    some = [_concatenated(parts[at : at + _ARGUMENTS]) for at in range(0, len(parts), _ARGUMENTS)]
    return _concatenated(some)


_ARGUMENTS: Final = 90


def _collated(value: str) -> str:
    return f"({value}{_COLLATED})"


def _json_of(kind: Kind, column: str) -> str:
    return f"CASE WHEN {column} IS NULL THEN 'null' ELSE {_value_of(kind, column)} END"


def _value_of(kind: Kind, column: str) -> str:
    cast = f"{column}::text"
    match kind.name:
        case "boolean" | "int16" | "int32" | "int64":
            return cast
        case "float32" | "float64":
            digits = f"({cast})::numeric::text"
            return (
                f"CASE WHEN {column} = 'NaN' THEN '\"NaN\"' WHEN {column} = 'Infinity' THEN '\"Infinity\"' "
                f"WHEN {column} = '-Infinity' THEN '\"-Infinity\"' WHEN {column} = 0 THEN '0.0' "
                f"WHEN abs({column}) >= 1e16 OR abs({column}) < 1e-4 THEN {cast} "
                f"WHEN strpos({digits}, '.') > 0 THEN {digits} ELSE {digits} || '.0' END"
            )
        case "decimal" | "uint64":
            return f"'\"' || {cast} || '\"'"
        case "bytes":
            return f"'\"' || translate(encode({column}, 'base64'), E'\\n', '') || '\"'"
        case "date":
            return f"({column} - DATE '1970-01-01')::text"
        case "timestamp_millis" | "timestamp_micros":
            return f"(extract(epoch FROM {column}) * 1000000)::bigint::text"
        case "timestamptz":
            return _instant(column)
        case _:
            return f"to_json({column})::text"


def _instant(column: str) -> str:
    year = f"(extract(year FROM {column}) + CASE WHEN {column} < DATE '0001-01-01' THEN 1 ELSE 0 END)::int"
    sign = f"CASE WHEN {year} < 0 THEN '-' WHEN {year} > 9999 THEN '+' ELSE '' END"
    digits = f"CASE WHEN abs({year}) > 9999 THEN abs({year})::text ELSE lpad(abs({year})::text, 4, '0') END"
    micros = f"CASE WHEN to_char({column}, 'US') = '000000' THEN '' ELSE to_char({column}, '.US') END"
    return f"'\"' || {sign} || {digits} || to_char({column}, '-MM-DD\"T\"HH24:MI:SS') || {micros} || 'Z\"'"


def unit_name(view: View, row: str) -> str:
    """Return an expression for the name of a row's unit, as the quarantine has it, by the view's types."""
    by = view.last.units
    if not by:
        return text(WHOLE)
    kinds = dict(view.columns)
    units = (f"{_one_zero(converted(f'{row}.{quoted(n)}', kinds[n]), kinds[n])}::text" for n in by)
    return _collated(f"to_json(ARRAY[{', '.join(units)}])::text")


def _one_zero(value: str, kind: Kind) -> str:
    """Return a value whose text is the same where it is equal: minus zero is zero."""
    return f"(CASE WHEN {value} = 0 THEN 0 ELSE {value} END)" if kind.name in ("float32", "float64") else value
