"""Makes the schema topic's record of one version of a table, by the contract of docs/events.md. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from cdc.model.change import Kind, Position, Table
from cdc.model.wire import Wire
from cdc.rules.capture_rules import Published
from cdc.rules.routes import KEY_TABLE


def schema_record(
    table: Table,
    *,
    connector: str,
    source: str,
    database: str,
    topic: str,
    version: int,
    position: Position,
    published: Published | None = None,
    format_: str = "",
    wire: Wire | None = None,
    routed: bool = False,
    names_source: bool = False,
) -> tuple[bytes, bytes]:
    """Make the schema topic's record of one version of a table: of what is published of it.

    `format_` and `wire` are the records' format: `cdc.model.wire` says what its forms are. `routed`: a route names the
    topic. `names_source`: the keys have the table's name, in the member `key_table`.
    """
    table, encrypts = (table, frozenset()) if published is None else (published.table, published.encrypts)
    key = {"schema": table.schema, "table": table.name, "version": version}
    value = {
        "connector": connector,
        "source": source,
        "db": database or table.schema,
        "schema": table.schema,
        "table": table.name,
        "topic": topic,
        "version": version,
        "position": position.text,
        "key": list(table.key),
        "columns": [
            {"name": c.name, "type": c.type, **_kind(c.kind), **({"encrypted": True} if c.name in encrypts else {})}
            for c in table.columns
        ],
        **({"marks": list(table.marks)} if table.marks else {}),
        **({"deferred_key": True} if table.deferred_key else {}),
        **({"format": format_} if format_ else {}),
        **({"routed": True} if routed else {}),
        **({"key_table": KEY_TABLE} if names_source else {}),
        **({"key_form": wire.key_form} if wire is not None and wire.key_form else {}),
        **({"value_form": wire.value_form} if wire is not None and wire.value_form else {}),
        **({"value_print": wire.value_print} if wire is not None and wire.value_print else {}),
        **({"numbers": wire.numbers} if wire is not None and wire.numbers is not None else {}),
        **({"rules": published.rules} if published is not None else {}),
        **({"subject": published.encrypted.subject} if published is not None and published.encrypted else {}),
        **(
            {"left_out": [list(of) for of in published.left_out]}
            if published is not None and published.left_out
            else {}
        ),
    }
    return orjson.dumps(key), orjson.dumps(value)


def kind_of(column: Mapping[str, Any]) -> Kind:
    """Read a column's kind, or an element's, from such a record."""
    element = column.get("element")
    return Kind(
        column["kind"], column.get("precision"), column.get("scale"), kind_of(element) if element is not None else None
    )


def _kind(kind: Kind) -> dict[str, object]:
    described: dict[str, object] = {"kind": kind.name}
    if kind.precision is not None:
        described |= {"precision": kind.precision, "scale": kind.scale or 0}
    if kind.element is not None:
        described["element"] = _kind(kind.element)
    return described
