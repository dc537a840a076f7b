"""Says to compiled code how a table's records become Avro straight from the server's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from cdc.encode.envelope.row_codegen import Encode, compiled
from cdc.encode.json_text import FORMS, PACKED
from cdc.formats import avro
from cdc.formats.schema import DECIMAL, Schema
from cdc.model.change import Column, Table

_ALIKE: Final = (
    "text", "t_or_f", "one_or_zero", "micros", "millis", "with_zone", "instant", "days", "clock",
)  # fmt: skip
"""Forms of JSON whose code in Avro has the same name."""


def avro_table(
    table: Table, heads: tuple[bytes, bytes], *, encoders: Sequence[Encode], key: Schema, row: Schema, placed: bool
) -> Any:  # noqa: ANN401 - compiled code has no types
    """Make the table's compiled writer; None where nothing is compiled.

    `placed`: the source block has the members of a transaction's `where`.
    """
    if compiled is None:
        return None
    columns = list(zip(table.columns, encoders, strict=True))
    whole = [_column(c, encode, of) for (c, encode), (_, of) in zip(columns, row.fields, strict=False)]
    of_key = [_column(*columns[index], of) for index, (_, of) in zip(table.key_indexes, key.fields, strict=True)]
    of_row = compiled.AvroColumns(whole)
    return compiled.AvroTable(*heads, compiled.AvroColumns(of_key, table.key_indexes), of_row, placed)


def _column(column: Column, encode: Encode, of: Schema) -> tuple[str, int, Encode]:
    """Give the code of a column's values, their scale, and what packs those of which the code does not tell."""
    pack = avro.packer(of.required())
    scale = int(of.parameters["scale"]) if of.name == DECIMAL else 0
    return _code(column, of), scale, lambda value: pack(orjson.loads(encode(value)))


def _code(column: Column, of: Schema) -> str:
    form = FORMS.get(column.encode, "")
    if of.name == DECIMAL:
        return "decimal" if form in ("quoted", "as_is") else ""
    if of.type == "string":
        return {"quoted": "raw"}.get(form, form if form in ("text", "with_zone", "instant") else "")
    if form in ("floating", "double"):
        return "float" if of.type == "float32" else "double"
    if form == "as_is":
        return "whole" if of.type in ("int16", "int32", "int64") else ""
    return form if form in _ALIKE else PACKED.get(column.encode, "")
