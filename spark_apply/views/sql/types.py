"""Types of columns as Spark has them, by name."""

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

_MAX_PRECISION = 38


def type_of(kind: Kind) -> str:
    """Return the type that a column of this kind has."""
    if kind.name == "decimal" and kind.precision is not None:
        scale = kind.scale or 0
        precision = max(kind.precision - min(scale, 0), scale)
        if precision <= _MAX_PRECISION:
            return decimal(precision, max(scale, 0))
    return _OF_KIND.get(kind.name, "string")


def decimal(precision: int, scale: int) -> str:
    """Return the name of a decimal type."""
    return f"decimal({precision},{scale})"


def precision_scale(of: str) -> tuple[int, int]:
    """Return the precision and the scale of a type that is a decimal or an integer."""
    found = re.fullmatch(r"decimal\((\d+),(\d+)\)", of)
    if found:
        return int(found[1]), int(found[2])
    return {"int": (10, 0), "bigint": (19, 0)}[of]


def common_type(one: str, other: str) -> str | None:
    """Return the type that Spark gives to values of both, or None where there is none without a cast."""
    if one == other or other == "null":
        return one
    if one == "null":
        return other
    return None
