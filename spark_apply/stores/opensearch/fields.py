"""Maps columns to fields of an OpenSearch index: names one-to-one, and types.

A column's name is the field's name, except that OpenSearch would take some names for something else: a dot makes an
object, ``*`` is a wildcard, fields of its own begin with ``_``, and a name of white space alone is refused. Each such
character is percent-encoded, and so is ``%``, so that two columns never share a field: ``a.b`` is ``a%2Eb``, ``_id`` is
``%5Fid``, a blank is ``%20``, and the empty name is ``%``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import unquote

from cdc.model.change import Kind
from spark_apply.model.target_table import TargetTable
from spark_apply.model.types import spark_type

NAMES: Final = "cdc_names"
"""The key in an index's ``_meta`` that says how its fields are named; it is missing in those of earlier releases."""
ENCODED: Final = "percent-encoded"

_EMPTY = "%"
_SPECIAL = frozenset(".*?%")

_MAPPINGS: dict[str, dict[str, Any]] = {
    "boolean": {"type": "boolean"},
    "integer": {"type": "long"},  # as wide as the column may become: a mapping cannot be widened
    "long": {"type": "long"},
    "decimal": {"type": "double", "ignore_malformed": True},
    "float": {"type": "double", "ignore_malformed": True},
    "double": {"type": "double", "ignore_malformed": True},
    "date": {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True},
    "timestamp": {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True},
    "timestamp_ntz": {"type": "date", "format": "strict_date_optional_time", "ignore_malformed": True},
    "binary": {"type": "binary"},
    "string": {"type": "text", "fields": {"keyword": {"type": "keyword", "ignore_above": 256}}},
    "struct": {"type": "object", "enabled": False},
}


def field_name(column: str) -> str:
    """Return the name of a column's field."""
    if not column.strip():
        return _encoded(column) or _EMPTY
    first = _encoded(column[0]) if column[0] == "_" else ""
    return first + "".join(_encoded(c) if c in _SPECIAL else c for c in column[bool(first) :])


def column_name(field: str) -> str:
    """Return the column of a field: what `field_name` has encoded."""
    return "" if field == _EMPTY else unquote(field)


def _encoded(text: str) -> str:
    return "".join(f"%{byte:02X}" for byte in text.encode())


def mapping(table: TargetTable) -> dict[str, Any]:
    """Return the mapping of a table's index."""
    fields = {field_name(column.name): _field(column.kind) for column in table.columns}
    return {"dynamic": False, "properties": fields}


def fields_needed(properties: dict[str, Any]) -> int:
    """Count the fields of a mapping as ``index.mapping.total_fields.limit`` does, at most."""
    more = (fields_needed(of.get("properties", {}) | of.get("fields", {})) for of in properties.values())
    return len(properties) + sum(more)


def _field(kind: Kind) -> dict[str, Any]:
    if kind.name == "array" and kind.element is not None:
        return _field(kind.element)
    if kind.name == "vector":
        return {"type": "float", "index": False}
    if kind.name == "decimal":
        return _MAPPINGS["decimal"]
    if kind.name == "uint64":
        return {"type": "unsigned_long"}
    return _MAPPINGS[spark_type(kind).typeName()]


def type_of_field(field: Mapping[str, Any]) -> str:
    """Return the type of a field in a mapping."""
    return str(field.get("type", "object"))
