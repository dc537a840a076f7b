"""The schemas of a table's keys, rows and events, named as Debezium names them. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cdc.formats.schema import Schema
from cdc.formats.typed import schema_of
from cdc.model.change import Table

_TEXT: Final = Schema(type="string")
_NUMBER: Final = Schema(type="int64")
_SNAPSHOT: Final = Schema(
    type="string", name="io.debezium.data.Enum", version=1, parameters={"allowed": "true,incremental,false"}
)
_LOGS: Final = {
    ("txId", "lsn"): (_NUMBER, _NUMBER),
    ("server_id", "gtid", "file", "pos", "row"): (_NUMBER, _TEXT, _TEXT, _NUMBER, _NUMBER),
}
"""What tells an event's place in the log, by the names of a source's `places`."""
_OTHERS: Final = {
    ("txId", "change"): (_NUMBER, _NUMBER),
    ("round", "change"): (_NUMBER, _TEXT),
    ("change",): (_NUMBER,),
    ("revision",): (_NUMBER,),
}
"""The same where there is no log that Debezium knows: Avro and Protobuf leave them out, `position` is there."""
TRANSACTION: Final = Schema(
    type="struct",
    name="event.block",
    version=1,
    optional=True,
    fields=(("id", _TEXT), ("total_order", _NUMBER), ("data_collection_order", _NUMBER)),
)
_METADATA: Final = {"op": _TEXT, "position": _TEXT, "ts_ms": _NUMBER, "deleted": _TEXT}


def key_schema(table: Table, topic: str) -> Schema:
    """Return the schema of a table's keys. Numbers of a key are as text: so many digits may become more."""
    columns = [table.columns[index] for index in table.key_indexes]
    fields = tuple((c.name, schema_of(c, precise=False)) for c in columns)
    return Schema(type="struct", name=f"{topic}.Key", fields=fields)


def row_schema(table: Table, topic: str, *, precise: bool, metadata: Sequence[str] = ()) -> Schema:
    """Return the schema of a table's rows.

    Every column may be null, though the table's may not: of the old row an event may have the key alone, and no reader
    should take 0 for a value that was not sent. So is any change of a table's columns one that readers survive.
    """
    fields = [(c.name, schema_of(c, precise=precise).or_null()) for c in table.columns]
    fields += [(f"__{name}", _METADATA[name].or_null()) for name in metadata]
    return Schema(type="struct", name=f"{topic}.Value", fields=tuple(fields))


def places(names: tuple[str, ...], *, packed: bool) -> tuple[tuple[str, Schema], ...]:
    """Return the fields of a source's places in its log. `packed`: of Avro or Protobuf, which have a log's alone."""
    found = _LOGS.get(names, () if packed else _OTHERS.get(names, ()))
    return tuple((name, of.or_null()) for name, of in zip(names, found, strict=False))


def event_schema(row: Schema, topic: str, source: str, database: str, where: tuple[tuple[str, Schema], ...]) -> Schema:
    """Return the schema of events; `source` and `database` are as events have them, `where` are its places."""
    named = ("db", "schema", "table") if database else ("db", "table")
    place = Schema(
        type="struct",
        name=f"io.debezium.connector.{source}.Source",
        fields=(
            ("version", _TEXT), ("connector", _TEXT), ("name", _TEXT), ("ts_ms", _NUMBER), ("snapshot", _SNAPSHOT),
            *((name, _TEXT) for name in named), *where,
            ("position", _TEXT), ("schema_version", Schema(type="int32")),
        ),
    )  # fmt: skip
    return Schema(
        type="struct",
        name=f"{topic}.Envelope",
        version=1,
        fields=(
            ("before", row.or_null()), ("after", row.or_null()), ("source", place), ("transaction", TRANSACTION),
            ("op", _TEXT), ("ts_ms", _NUMBER.or_null()),
        ),
    )  # fmt: skip
