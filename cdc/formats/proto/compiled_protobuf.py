"""Says to compiled code how a table's records become Protobuf straight from the server's text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from cdc.encode.envelope.row_codegen import Encode, compiled
from cdc.encode.json_text import FORMS, PACKED
from cdc.formats import tables
from cdc.formats.proto import protobuf
from cdc.formats.proto.proto_message import DECIMAL_MESSAGE, Field, Message, source_number
from cdc.model.change import Column, Table

_ALIKE: Final = ("t_or_f", "one_or_zero", "micros", "millis", "days", "clock")
"""Forms of JSON whose code has the same name."""


def protobuf_table(
    table: Table,
    heads: tuple[bytes, bytes],
    *,
    encoders: Sequence[Encode],
    key: Message,
    row: Message,
    places: tuple[str, ...],
) -> Any:  # noqa: ANN401 - compiled code has no types
    """Make the table's compiled writer; None where nothing is compiled."""
    if compiled is None:
        return None
    of_row, of_key = {of.name: of for of in row.fields}, {of.name: of for of in key.fields}
    columns = list(zip(table.columns, encoders, strict=True))
    whole = [_column(column, encode, of_row[column.name], bare=False) for column, encode in columns]
    keys = [_column(*columns[i], of_key[columns[i][0].name], bare=True) for i in table.key_indexes]
    metadata = {of.name.removeprefix("__"): protobuf.tag(of) for of in row.fields[len(columns) :] if not of.deprecated}
    members = tables.places(places, packed=True)
    return compiled.ProtobufTable(
        *heads,
        compiled.ProtobufColumns(keys, table.key_indexes),
        compiled.ProtobufColumns(whole),
        metadata,
        source_number(members[0][0]) if members else 0,
    )


def _column(column: Column, encode: Encode, of: Field, *, bare: bool) -> tuple[bytes, str, int, bytes, Encode]:
    """Give what stands before a value, its code, its scale, what stands behind it, and what packs other values.

    `bare`: the field is left out where it is 0 or empty.
    """
    pack = protobuf.value_packer(of)
    before = protobuf.tag(of)
    decimal = of.type == DECIMAL_MESSAGE
    scale, end = (int(of.params["scale"]), protobuf.decimal_end(of)) if decimal else (0, b"")

    def packed(value: bytes) -> bytes:
        found: Any = orjson.loads(encode(value))
        return b"" if found is None or (bare and found in ("", 0, False)) else before + pack(found)

    return before, _code(column, of), scale, end, packed


def _code(column: Column, of: Field) -> str:
    form = FORMS.get(column.encode, "")
    if of.type == DECIMAL_MESSAGE:
        return "decimal" if form in ("quoted", "as_is") else ""
    if of.type == "string":
        return {"quoted": "raw"}.get(form, form if form in ("text", "with_zone", "instant") else "")
    if form in ("floating", "double"):
        return of.type
    if form == "as_is":
        return "whole" if of.type in ("int32", "int64", "uint64") else ""
    return form if form in _ALIKE else PACKED.get(column.encode, "")
