"""Prints a type as the server's format_type does with an empty search_path: ``numeric(10,2)``. Pure.

Two differences, both outside pg_catalog: names are quoted by their shape alone, so a type named by an SQL keyword is
quoted by the server and not here; and a modifier that its type prints in words (PostGIS) is printed as its number.
https://www.postgresql.org/docs/current/functions-info.html#FUNCTIONS-INFO-CATALOG
"""

from __future__ import annotations

import re
from typing import Final

_HEADER: Final = 4
"""What character and numeric types add to their modifier: VARHDRSZ."""

_SQL_NAMES: Final = {
    "int2": "smallint",
    "int4": "integer",
    "int8": "bigint",
    "float4": "real",
    "float8": "double precision",
    "bool": "boolean",
    "varchar": "character varying{}",
    "varbit": "bit varying{}",
    "time": "time{} without time zone",
    "timetz": "time{} with time zone",
    "timestamp": "timestamp{} without time zone",
    "timestamptz": "timestamp{} with time zone",
}

_MONTH, _YEAR, _DAY, _HOUR, _MINUTE, _SECOND = (1 << bit for bit in (1, 2, 3, 10, 11, 12))
_INTERVAL_FIELDS: Final = {
    _YEAR: " year",
    _MONTH: " month",
    _DAY: " day",
    _HOUR: " hour",
    _MINUTE: " minute",
    _SECOND: " second",
    _YEAR | _MONTH: " year to month",
    _DAY | _HOUR: " day to hour",
    _DAY | _HOUR | _MINUTE: " day to minute",
    _DAY | _HOUR | _MINUTE | _SECOND: " day to second",
    _HOUR | _MINUTE: " hour to minute",
    _HOUR | _MINUTE | _SECOND: " hour to second",
    _MINUTE | _SECOND: " minute to second",
}
_ANY_PRECISION: Final = 0xFFFF

_PLAIN_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*").fullmatch


def printed(schema: str, name: str, typmod: int) -> str:
    """Print the type of that name in pg_type, which is not an array."""
    modifier = _modifier(schema, name, typmod)
    if schema != "pg_catalog":
        return f"{identifier(schema)}.{identifier(name)}{modifier}"
    if name == "bpchar":
        return f"character{modifier}" if modifier else "bpchar"
    if name in ("bit", "char") and not modifier:  # the bare keywords would mean bit(1) and character(1)
        return f'"{name}"'
    return _SQL_NAMES.get(name, name + "{}").format(modifier)


def precision_scale(typmod: int) -> tuple[int, int] | None:
    """Return both of numeric(p,s). The scale has eleven bits and a sign since PostgreSQL 15."""
    if typmod < _HEADER:
        return None
    packed = typmod - _HEADER
    return packed >> 16 & 0xFFFF, ((packed & 0x7FF) ^ 0x400) - 0x400


def _modifier(schema: str, name: str, typmod: int) -> str:
    if typmod < 0:
        return ""
    if schema == "pg_catalog" and name == "interval":
        fields, precision = _INTERVAL_FIELDS.get(typmod >> 16 & 0x7FFF, ""), typmod & 0xFFFF
        return fields if precision == _ANY_PRECISION else f"{fields}({precision})"
    if schema == "pg_catalog" and name in ("bpchar", "varchar"):
        return f"({typmod - _HEADER})"
    if schema == "pg_catalog" and name == "numeric":
        return "({},{})".format(*(precision_scale(typmod) or ("?", "?")))
    return f"({typmod})"


def identifier(name: str) -> str:
    """Write a name as SQL does, quoted where its shape asks for it."""
    return name if _PLAIN_NAME(name) else '"{}"'.format(name.replace('"', '""'))
