"""Types as Spark has them, by name, and what Spark makes of two of them."""

from __future__ import annotations

import re
from typing import Final

from cdc.model.change import Kind

_OF_KIND: Final = {
    "boolean": "boolean",
    "int16": "int",
    "int32": "int",
    "int64": "bigint",
    "uint64": "decimal(20,0)",
    "float32": "float",
    "float64": "double",
    "bytes": "binary",
    "date": "date",
    "timestamp_millis": "timestamp_ntz",
    "timestamp_micros": "timestamp_ntz",
    "timestamptz": "timestamp",
    "geometry": "struct",
    "vector": "array",
    "array": "array",
}
"""Other kinds are texts."""

MAX_PRECISION: Final = 38
INTEGERS: Final = ("int", "bigint")
FLOATS: Final = ("float", "double")
INSTANTS: Final = ("timestamp_ntz", "timestamp")
MONTHS, DAYS, TIME = "interval months", "interval days", "interval time"
SKETCH: Final = "sketch of 2^"
"""What the name of a sketch's type begins with; the logarithm of its registers follows."""
INTERVALS: Final = (MONTHS, DAYS, TIME)
"""Intervals by what they are measured in: whole months, whole days, or parts of a day."""
NULL: Final = "null"


def type_of(kind: Kind) -> str:
    """Return the type that a column of this kind has."""
    if kind.name == "decimal" and kind.precision is not None:
        scale = kind.scale or 0
        precision = max(kind.precision - min(scale, 0), scale)
        if precision <= MAX_PRECISION:
            return decimal(precision, max(scale, 0))
    return _OF_KIND.get(kind.name, "string")


def decimal(precision: int, scale: int) -> str:
    """Return the name of a decimal type."""
    return f"decimal({precision},{scale})"


def is_decimal(of: str) -> bool:
    """Whether this is a decimal type."""
    return of.startswith("decimal(")


def is_exact(of: str) -> bool:
    """Whether this is a number without rounding."""
    return of in INTEGERS or is_decimal(of)


def is_number(of: str) -> bool:
    """Whether this is a number."""
    return is_exact(of) or of in FLOATS


def precision_scale(of: str) -> tuple[int, int]:
    """Return the precision and the scale of an exact number, as Spark counts them."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", of)
    if found:
        return int(found[1]), int(found[2])
    return {"int": (10, 0), "bigint": (20, 0)}[of]


def is_sketch(of: str) -> bool:
    """Whether this is a sketch: values of a group, that can be merged and estimated, and nothing else."""
    return of.startswith(SKETCH)


def common_type(one: str, other: str) -> str | None:
    """Return the type that Spark gives to values of both without a cast of a text, or None."""
    if other in (one, NULL):
        return one
    if one == NULL:
        return other
    if {one, other} == set(INTEGERS):
        return "bigint"
    if is_exact(one) and is_exact(other):
        (p1, s1), (p2, s2) = precision_scale(one), precision_scale(other)
        scale = max(s1, s2)
        precision = max(p1 - s1, p2 - s2) + scale
        return decimal(precision, scale) if precision <= MAX_PRECISION else None
    if is_number(one) and is_number(other):
        return "double"
    if {one, other} <= {"date", *INSTANTS}:
        return "timestamp" if "timestamp" in (one, other) else "timestamp_ntz"
    if {one, other} == {DAYS, TIME}:
        return TIME
    return None


_ENGINE: Final = {
    "boolean": "BOOLEAN",
    "int": "INTEGER",
    "bigint": "BIGINT",
    "float": "FLOAT",
    "double": "DOUBLE",
    "string": "VARCHAR",
    "binary": "BLOB",
    "date": "DATE",
    "timestamp_ntz": "TIMESTAMP",
    "timestamp": "TIMESTAMP",
}


def engine_type(of: str) -> str:
    """Return the engine's type for values of a type; instants are kept in UTC."""
    return of.upper() if is_decimal(of) else _ENGINE[of]
