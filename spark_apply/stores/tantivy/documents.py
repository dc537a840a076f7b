"""Makes documents of rows: which field a column is, and what the engine indexes of a value."""

from __future__ import annotations

import base64
import math
import re
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson
import tantivy

from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.model.document import alike
from spark_apply.model.target_table import TargetTable, rebuilt
from spark_apply.model.types import spark_type

FIELD_KEY, FIELD_ROW, FIELD_TEXT = "_cdc_key", "_cdc_row", "_cdc_text"

_DATE_YEARS = range(1678, 2262)  # the engine counts nanoseconds in 64 bits
_YEAR = re.compile(r"\d{4}-")
_DATE_LENGTH = len("2024-02-29")
_GREATEST = sys.float_info.max


def fields_of(table: TargetTable) -> dict[str, str]:
    """Return the searchable columns, and the types of their fields."""
    found = {column.name: _field_type(column.kind) for column in table.columns}
    return {name: kind for name, kind in found.items() if kind and tantivy.SchemaBuilder.is_valid_field_name(name)}


def require_same_values(table: TargetTable, had: Mapping[str, str], where: str) -> None:
    """Raise OperatorError if rows of the index have a column's values in another form than new ones would.

    Those of a column that has become wider are as new ones, as for `spark_apply.model.document.require_same_forms`.
    """
    now = fields_of(table)
    for column in table.columns:
        before, after = had.get(column.name), now.get(column.name)
        known = {_field_type(kind) for kind in alike(column)}
        if before is not None and before != after and column.versions and before not in known:
            msg = f"{where}, column {column.name}: it is {before} and would have to be {after or 'not searchable'}"
            raise OperatorError(msg, hint=rebuilt(table))


def _field_type(kind: Kind) -> str | None:
    if kind.name == "array" and kind.element is not None:
        return _field_type(kind.element) if kind.element.name != "array" else None
    if kind.name == "decimal":
        return "float"
    if kind.name in ("geometry", "vector", "bytes"):
        return None
    stored_as = spark_type(kind).typeName()
    by_type = {"integer": "integer", "long": "integer", "decimal": "unsigned", "float": "float", "double": "float"}
    by_type |= {"boolean": "boolean", "date": "date", "timestamp": "date", "timestamp_ntz": "date", "string": "text"}
    return by_type[stored_as]


def schema(fields: Mapping[str, str]) -> tantivy.Schema:
    """Return the schema of an index with these fields."""
    builder = tantivy.SchemaBuilder()
    builder.add_text_field(FIELD_KEY, stored=True, tokenizer_name="raw", index_option="basic")
    builder.add_bytes_field(FIELD_ROW, stored=True)
    builder.add_text_field(FIELD_TEXT)
    for name, kind in fields.items():
        if kind == "text":
            builder.add_text_field(name)
        else:
            getattr(builder, f"add_{kind}_field")(name, indexed=True, fast=True)
    return builder.build()


def document_of(id_: str, position: str, document: str, fields: Mapping[str, str]) -> str:
    """Return what the engine indexes of a row, in its own JSON: faster than a call for each value."""
    texts: list[str] = []
    row = base64.b64encode(orjson.dumps([position, document])).decode()
    made: dict[str, object] = {FIELD_KEY: id_, FIELD_ROW: row, FIELD_TEXT: texts}
    values = orjson.loads(document)
    for name, kind in fields.items():
        value = values.get(name)
        if value is None:
            continue
        read = _READ_AS.get(kind)
        if isinstance(value, list):
            value = [item for item in value if item is not None]
            made[name] = value if read is None else [item for item in map(read, value) if item is not None]
            if kind == "text":
                texts += value
        elif kind == "text":
            made[name] = value
            texts.append(value)
        elif (found := value if read is None else read(value)) is not None:
            made[name] = found
    return orjson.dumps(made).decode()


def _number(text: str | float) -> float | None:
    """Return a float that JSON can hold: the greatest one for infinity; None for NaN, which has no order."""
    number = float(text)
    return None if math.isnan(number) else max(-_GREATEST, min(number, _GREATEST))


def _moment(text: str) -> str | None:
    """Return a date or a time as RFC 3339, if it is in the engine's range."""
    if not _YEAR.match(text) or int(text[:4]) not in _DATE_YEARS:
        return None
    return f"{text}T00:00:00Z" if len(text) == _DATE_LENGTH else f"{text.removesuffix('Z')}Z"


_READ_AS: Final[Mapping[str, Callable[[Any], object]]] = {"float": _number, "date": _moment}
