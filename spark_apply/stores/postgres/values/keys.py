"""Holds the equality of keys in PostgreSQL: which events of a batch are of one key, and which row a delete removes.

The rule is that of `spark_apply.stores.lake.keys`, by PostgreSQL's own equality: 0.0 and -0.0 are one key, and so are
the numerics 1.0 and 1.00. A delete removes the row of its own text only, and of a key's rows the newest is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from spark_apply.events.typed import OP, POSITION
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.model.types import ONE_TEXT
from spark_apply.stores.postgres.values.types import pg_type

_BY_TEXT: Final = ("integer", "bigint", "text", "boolean", "date", "timestamp without time zone")
"""Types of which each value has one text in the key of an event."""
_UNLIKE: Final = ("real", "double precision", "numeric", "jsonb")
"""Types of which two values can be equal and still differ."""
_BY_ID: Final = ("integer", "bigint", "text", "numeric", "boolean")
"""Types of which a value can be looked for by its JSON."""


def column_type(table: TargetTable, column: TargetColumn) -> str:
    """Return a column's type in a table: json has no equality, so it is text in a key."""
    kind = pg_type(column)
    return "text" if kind == "json" and column.name in table.key else kind


@dataclass(frozen=True, slots=True)
class Stage:
    """The staging table of a copy; `columns` and `key` are its lists of names."""

    table: TargetTable
    name: sql.Identifier
    columns: sql.Composed
    key: sql.Composed


def newest_events(stage: Stage, limit: str, *, distinct: bool) -> sql.Composed:
    """Return the query of the events in the stage before `limit`: of each key its deletes by text, and the newest row.

    Without `distinct`, the stage has one event of each text of a key.
    """
    several = any(kind not in _BY_TEXT for kind in _key_types(stage.table).values())
    parts = {
        "columns": stage.columns,
        "op": sql.Identifier(OP),
        "position": sql.Identifier(POSITION),
        "stage": stage.name,
        "limit": sql.Literal(limit),
        "key": stage.key,
    }
    if not distinct and not several:
        return sql.SQL("SELECT {columns}, {op} FROM {stage} WHERE {position} < {limit}").format(**parts)
    texts = [sql.SQL("{}::text").format(sql.Identifier(name)) for name in _unlike(stage.table)]
    found = sql.SQL(
        "SELECT DISTINCT ON ({same}) {columns}, {op} FROM {stage} WHERE {position} < {limit}"
        " ORDER BY {same}, {position} DESC"
    ).format(same=sql.SQL(", ").join([stage.key, *texts]), **parts)
    if not texts:
        return found
    return sql.SQL(
        "SELECT {columns}, {op} FROM (SELECT *, row_number()"
        " OVER (PARTITION BY {key}, {op} = 'd' ORDER BY {position} DESC) AS cdc_place FROM ({found}) e) e"
        " WHERE {op} = 'd' OR cdc_place = 1"
    ).format(found=found, **parts)


def same_text(table: TargetTable, one: str, other: str) -> sql.Composable:
    """Return the condition that two rows have the same key, not only equal ones."""
    pairs = [
        sql.SQL("{}::text = {}::text").format(sql.Identifier(one, name), sql.Identifier(other, name))
        for name in _unlike(table)
    ]
    return sql.SQL(" AND ").join(pairs) if pairs else sql.SQL("true")


def _key_types(table: TargetTable) -> dict[str, str]:
    of_key = [column for column in table.columns if column.name in table.key]
    return {c.name: "bigint" if c.kind.name in ONE_TEXT else column_type(table, c) for c in of_key}


def _unlike(table: TargetTable) -> list[str]:
    return [name for name, kind in _key_types(table).items() if kind in _UNLIKE]


def having(keys: Sequence[TargetColumn], key: sql.Composed) -> sql.Composed:
    """Return a condition for the ids of `asked`; it uses the primary key if JSON round-trips the key's types."""
    if not all(pg_type(column).split("(")[0] in _BY_ID for column in keys):
        return sql.SQL("{} = ANY (%s)").format(key)
    fields = sql.SQL(", ").join(
        sql.SQL("{} {}").format(sql.Identifier(column.name), sql.SQL(pg_type(column))) for column in keys
    )
    named = sql.SQL(", ").join(sql.Identifier(column.name) for column in keys)
    of_row = sql.SQL(", ").join(sql.Identifier("t", column.name) for column in keys)
    return sql.SQL("({}) IN (SELECT {} FROM json_to_recordset(%s::json) AS a({}))").format(of_row, named, fields)


def asked(ids: Collection[str], keys: Sequence[TargetColumn]) -> object:
    """Return the parameter of that condition."""
    if not all(pg_type(column).split("(")[0] in _BY_ID for column in keys):
        return list(ids)
    return f"[{','.join(ids)}]"
