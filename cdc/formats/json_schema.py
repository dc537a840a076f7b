"""JSON Schema of a table's records: plain JSON as docs/events.md has it. Pure. https://json-schema.org/draft-07

A record has no other members than its schema, so that registries take a new column for the compatible change it is.
For the same reason a column that is gone leaves its member, marked ``deprecated`` and never written: a registry refuses
a closed schema that has no room for what the one before it had.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cdc.formats.schema import KIND, TOLD, Schema
from cdc.formats.schema_text import gone
from cdc.formats.typed import SPECIAL
from cdc.model.change import Column, Table

_INTEGERS: Final = ("int16", "int32", "int64", "uint64", "time_micros")
_DRAFT: Final = "http://json-schema.org/draft-07/schema#"


def of_key(table: Table, title: str) -> dict[str, Any]:
    """Describe a table's keys."""
    columns = [table.columns[index] for index in table.key_indexes]
    properties = {c.name: {"type": _types(c), "title": c.type, **_kind(c)} for c in columns}
    return {"$schema": _DRAFT, "title": title, **_closed(properties), "required": [c.name for c in columns]}


def of_row(table: Table, title: str, metadata: Schema, newest: str | None) -> dict[str, Any]:
    """Describe a table's rows, with the members that `metadata` has, and those of the subject's `newest` schema."""
    properties: dict[str, dict[str, Any]] = {
        c.name: {"type": [*_types(c), "null"], **_title(c), **_kind(c)} for c in table.columns
    }
    known = set(properties)
    properties |= {name: {"type": ["string", "integer"]} for name, _ in metadata.fields if name not in known}
    properties |= gone(newest, properties)
    return {"$schema": _DRAFT, "title": title, **_closed(properties)}


def of_event(row: Mapping[str, Any], event: Schema) -> dict[str, Any]:
    """Describe the events of a table with such rows."""
    image = {"oneOf": [{"type": "null"}, {name: of for name, of in row.items() if name != "$schema"}]}
    members = {name: image if name in ("before", "after") else _described(of) for name, of in event.fields}
    return {"$schema": _DRAFT, "title": event.name, **_closed(members)}


def _described(schema: Schema) -> dict[str, Any]:
    if schema.type == "struct":
        inner = _closed({name: _described(of) for name, of in schema.fields})
        return {"oneOf": [{"type": "null"}, inner]} if schema.optional else inner
    type_ = "string" if schema.type == "string" else "integer"
    return {"type": [type_, "null"] if schema.optional else type_}


def _closed(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": dict(properties), "additionalProperties": False}


def _title(column: Column) -> dict[str, str]:
    """Say the type of a column whose values are of it; that of another one may have labels of values."""
    return {} if column.changed else {"title": column.type}


def _kind(column: Column) -> dict[str, str]:
    """Say what the values of a column are where their JSON's type does not: microseconds, base64."""
    return {KIND: column.kind.name} if column.kind.name in TOLD else {}


def _types(column: Column) -> list[str]:
    kind = column.kind.name
    if kind in _INTEGERS:
        return ["integer"]
    if kind in SPECIAL:
        return ["integer", "string"]
    if kind in ("float32", "float64"):
        return ["number", "string"]
    if kind == "geometry":
        return ["object"]
    if kind == "vector":
        return ["array"]
    if kind == "array":
        return ["array", "string"]
    return ["boolean"] if kind == "boolean" else ["string"]
