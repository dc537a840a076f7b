"""Tables whose columns are all text: what most tests of the core need."""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import Column, Kind, Table


def text_column(name: str, type_: str = "text", *, toastable: bool = False) -> Column:
    """A column whose JSON is its text; bytes that are not UTF-8 are refused, as by every encoder."""
    return Column(name, type_, Kind("string"), lambda value: orjson.dumps(value.decode()), toastable=toastable)


def text_table(name: str, columns: Sequence[str | Column], key: Sequence[str] = ("id",), schema: str = "s") -> Table:
    """A table of text columns."""
    made = tuple(text_column(c) if isinstance(c, str) else c for c in columns)
    return Table(schema, name, made, tuple(key))


def encoder(table: Table, *, version: int = 1) -> TableEncoder:
    """Its encoder, under the prefix p."""
    return TableEncoder(
        table, connector="memory", prefix="p", database="d", version=version, topic=f"p.{table.qualified}"
    )
