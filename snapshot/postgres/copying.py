"""COPY statements that read a table in key order. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from psycopg2 import sql

from cdc.model.change import Column, Table
from cdc.model.state import Key
from snapshot.handover import INTEGERS, key_columns

_BYTEWISE: Final = frozenset({"uuid", "bytea", "boolean"})
"""Types whose own order is the order of their text's bytes: hexadecimal of one case, and ``f`` before ``t``."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What SQL that reads a table needs to know of it besides its columns."""

    oid: int
    partitioned: bool = False
    indexed: frozenset[str] = frozenset()
    """Key columns of text whose collation orders by bytes in UTF-8, as `handover.sort_key` does."""
    encoding: str = "UTF8"
    """The encoding that a key's text is converted to before its bytes are compared; SQL_ASCII if unknown."""
    shape: frozenset[tuple[str, int, int]] = frozenset()
    """What its columns are under the view: name, attnum, type (of a domain that which it is of)."""


def copy_statement(table: Table, relation: Relation, *, after: Key | None, upto: Key | None) -> sql.Composable:
    """Copy all columns in the order of `handover.sort_key`, behind the key `after` up to and including `upto`.

    Where the type's own order is that order, its index is used; else rows are sorted by the bytes of the log's text.
    """
    order = [_order(column, relation) for column in key_columns(table)]
    bounds = [
        sql.SQL("({}) {} ({})").format(
            sql.SQL(", ").join(order), sql.SQL(how), sql.SQL(", ").join(_bounds(table, relation, key))
        )
        for how, key in ((">", after), ("<=", upto))
        if key is not None
    ]
    return sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        _from(table, relation),
        sql.SQL(" WHERE {}").format(sql.SQL(" AND ").join(bounds)) if bounds else sql.SQL(""),
        sql.SQL(", ").join(order),
    )


def sample_statement(table: Table, relation: Relation, *, percent: float) -> sql.Composable:
    """Copy the keys in `percent` of the table's pages, taken at random."""
    return sql.SQL("COPY (SELECT {} FROM {} TABLESAMPLE SYSTEM ({})) TO STDOUT").format(
        sql.SQL(", ").join(map(sql.Identifier, table.key)), _from(table, relation), sql.Literal(percent)
    )


def lock_statement(table: Table, relation: Relation) -> sql.Composable:
    """Take the lock that reading takes, before it."""
    return sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(_from(table, relation))


def shape_statement(table: Table, relation: Relation) -> sql.Composable:
    """Select no row of all columns: the answer says which columns of which table their names mean by now."""
    return sql.SQL("SELECT {} FROM {} LIMIT 0").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns), _from(table, relation)
    )


def plan_statement(table: Table, relation: Relation) -> sql.Composable:
    """Ask the planner for its estimate of a full read."""
    return sql.SQL("EXPLAIN (FORMAT JSON) SELECT FROM {}").format(_from(table, relation))


def row_statement(table: Table, relation: Relation, key: Key, *, writer: bool = False) -> sql.Composable:
    """Copy the one row with this key; `writer`: and behind its columns the transaction that has written it last."""
    near = [
        sql.SQL("{} = {}").format(sql.Identifier(column.name), sql.Literal(part.decode()))  # which the index finds
        for column, part in zip(key_columns(table), key, strict=True)
        if _comparable(column, relation)
    ]
    exact = sql.SQL("({}) = ({})").format(  # the one, of those that its collation takes for equal
        sql.SQL(", ").join(_order(column, relation) for column in key_columns(table)),
        sql.SQL(", ").join(_bounds(table, relation, key)),
    )
    columns = [sql.Identifier(column.name) for column in table.columns]
    return sql.SQL("COPY (SELECT {} FROM {} WHERE {}) TO STDOUT").format(
        sql.SQL(", ").join([*columns, sql.SQL("xmin")] if writer else columns),
        _from(table, relation),
        sql.SQL(" AND ").join([*near, exact]),
    )


def window_statement(table: Table, relation: Relation, *, after: Key | None, rows: int) -> sql.Composable:
    """Copy the next rows in the order of the key's own index.

    Operators of types outside pg_catalog are not in the session's search_path: such keys, which are rare, are ordered
    by their text, which costs a sort for each window.
    """
    ordered = _by_index(table, relation)
    order = sql.SQL(", ").join(_order(column, ordered) for column in key_columns(table))
    where: sql.Composable = sql.SQL("")
    if after is not None:
        where = sql.SQL(" WHERE ({}) > ({})").format(order, sql.SQL(", ").join(_bounds(table, ordered, after)))
    return sql.SQL("COPY (SELECT {} FROM {}{} ORDER BY {} LIMIT {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        _from(table, relation),
        where,
        order,
        sql.Literal(rows),
    )


def keys_statement(table: Table, relation: Relation, keys: Sequence[Key]) -> sql.Composable:
    """Copy the rows with these keys, found by the key's own index."""
    found_by = _by_index(table, relation)
    one_of = sql.SQL(", ").join(
        sql.SQL("({})").format(sql.SQL(", ").join(_bounds(table, found_by, key))) for key in keys
    )
    return sql.SQL("COPY (SELECT {} FROM {} WHERE ({}) IN ({})) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        _from(table, relation),
        sql.SQL(", ").join(_order(column, found_by) for column in key_columns(table)),
        one_of,
    )


def _by_index(table: Table, relation: Relation) -> Relation:
    """Make a `relation` whose keys are compared by their own operators wherever those are in the search_path."""
    return Relation(
        relation.oid,
        relation.partitioned,
        frozenset(column.name for column in key_columns(table) if _comparable(column, relation)),
        relation.encoding,
    )


def _comparable(column: Column, relation: Relation) -> bool:
    """Whether the type's operators are in the search_path, and its text can be sent as text."""
    return "." not in column.type and relation.encoding == "UTF8"


def _from(table: Table, relation: Relation) -> sql.Composable:
    return sql.SQL("" if relation.partitioned else "ONLY ") + sql.Identifier(table.schema, table.name)


def _indexed(column: Column, relation: Relation) -> bool:
    return column.type in INTEGERS or column.type in _BYTEWISE or column.name in relation.indexed


def _order(column: Column, relation: Relation) -> sql.Composable:
    if _indexed(column, relation):
        return sql.Identifier(column.name)
    return sql.SQL("convert_to(format('%s', {}), {})").format(
        sql.Identifier(column.name), sql.Literal(relation.encoding)
    )


def _bounds(table: Table, relation: Relation, key: Sequence[bytes]) -> Iterator[sql.Composable]:
    for column, part in zip(key_columns(table), key, strict=True):
        if _indexed(column, relation):
            yield sql.Literal(part.decode())  # its type is taken from what it is compared with
        else:
            yield sql.SQL("decode({}, 'hex')").format(sql.Literal(part.hex()))
