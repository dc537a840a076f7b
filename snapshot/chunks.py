r"""Reading a table in key order with COPY: the statement, and its text format to rows. Pure.

COPY's text format (https://www.postgresql.org/docs/current/sql-copy.html): columns apart by tabs, rows by newlines,
NULL is ``\N``, and a backslash before b, f, n, r, t, v or itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from psycopg2 import sql

from cdc.change import Row, Table
from cdc.errors import ProtocolError
from snapshot.handover import INTEGERS

_ESCAPED: Final = re.compile(rb"\\(.)", re.DOTALL)
_CHARACTERS: Final = {b"b": b"\b", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t", b"v": b"\v", b"\\": b"\\"}


def copy_statement(table: Table, *, partitioned: bool, after: Sequence[str] | None) -> sql.Composable:
    """COPY of all columns in the order of `handover.sort_key`, from behind the key `after`.

    Integers order by number, which their index gives; other types by the bytes of the text the log would carry.
    """
    columns = {column.name: column for column in table.columns}
    order = [_order(name, integer=columns[name].type in INTEGERS) for name in table.key]
    where: sql.Composable = sql.SQL("")
    if after is not None:
        bounds = [
            _bound(text, integer=columns[name].type in INTEGERS) for name, text in zip(table.key, after, strict=True)
        ]
        where = sql.SQL("WHERE ({}) > ({})").format(sql.SQL(", ").join(order), sql.SQL(", ").join(bounds))
    return sql.SQL("COPY (SELECT {} FROM {}{} {} ORDER BY {}) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.SQL("" if partitioned else "ONLY "),
        sql.Identifier(table.schema, table.name),
        where,
        sql.SQL(", ").join(order),
    )


def row_statement(table: Table, *, partitioned: bool, key: Sequence[bytes]) -> sql.Composable:
    """COPY of the one row with this key."""
    columns = {column.name: column for column in table.columns}
    return sql.SQL("COPY (SELECT {} FROM {}{} WHERE ({}) = ({})) TO STDOUT").format(
        sql.SQL(", ").join(sql.Identifier(column.name) for column in table.columns),
        sql.SQL("" if partitioned else "ONLY "),
        sql.Identifier(table.schema, table.name),
        sql.SQL(", ").join(_order(name, integer=columns[name].type in INTEGERS) for name in table.key),
        sql.SQL(", ").join(
            _bound(text.decode(), integer=columns[name].type in INTEGERS)
            for name, text in zip(table.key, key, strict=True)
        ),
    )


def _order(name: str, *, integer: bool) -> sql.Composable:
    if integer:
        return sql.Identifier(name)
    return sql.SQL("convert_to(format('%s', {}), 'UTF8')").format(sql.Identifier(name))


def _bound(text: str, *, integer: bool) -> sql.Composable:
    if integer:
        return sql.Literal(int(text))
    return sql.SQL("convert_to({}, 'UTF8')").format(sql.Literal(text))


def parse_row(line: bytes, columns: int) -> Row:
    """One line of COPY's text format, newline included. Raises ProtocolError."""
    fields = line[:-1].split(b"\t")
    if len(fields) != columns or not line.endswith(b"\n"):
        raise ProtocolError(0, f"a COPY row of {len(fields)} columns where {columns} belong")
    if b"\\" not in line:
        return tuple(fields)
    return tuple(None if field == b"\\N" else _unescape(field) if b"\\" in field else field for field in fields)


def _unescape(field: bytes) -> bytes:
    return _ESCAPED.sub(lambda match: _CHARACTERS.get(match.group(1), match.group(1)), field)
