"""Statements that read a table of MySQL in key order. Pure.

Names are quoted by `mapping.quoted_name`; values stand in hexadecimal, so nothing in them needs an escape.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.change import Column, Table
from cdc.model.state import Key
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.values import mapping
from snapshot.handover import INTEGERS, key_columns

_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?").fullmatch
_TIME: Final = re.compile(rb"[0-9 :.-]+").fullmatch
_DAYS: Final = ("date", "datetime", "timestamp")
_BY_TEXT: Final = (*_DAYS, "binary", "varbinary")
"""Types whose own order is the order of their text's bytes."""
_OWN_ORDER: Final = (*_BY_TEXT, "char", "varchar")
"""Types whose index can be compared with a text in the type's own order."""


@dataclass(frozen=True, slots=True)
class Relation:
    """What SQL that reads a table needs to know of it besides its columns."""

    columns: tuple[TableColumn, ...]

    def expression(self, name: str) -> str:
        """Make SQL whose text is the column's value as the log gives it."""
        column = next(of for of in self.columns if of.name == name)
        return mapping.select_expression(column) or mapping.quoted_name(name)


def documents(table: Table) -> list[int]:
    """Return the places of JSON columns among a table's."""
    return [at for at, column in enumerate(table.columns) if column.type == "json"]


def chunk_statement(table: Table, relation: Relation, *, after: Key | None, upto: Key | None) -> str:
    """Select all columns in the order of `handover.sort_key`, behind the key `after` up to and including `upto`."""
    order = [_bytewise(column, relation) for column in key_columns(table)]
    bounds = []
    if after is not None:
        bounds.append(_beyond(_compared(table, relation, after), ">"))
    if upto is not None:
        bounds.append(_beyond(_compared(table, relation, upto), "<"))
    where = f" WHERE {' AND '.join(bounds)}" if bounds else ""
    return f"{_select(table, relation)}{where} ORDER BY {', '.join(order)}"


def window_statement(table: Table, relation: Relation, *, after: Key | None, rows: int) -> str:
    """Select the next rows in the order of the key's own index, where texts can be compared with it."""
    order = [_own(column, relation) for column in key_columns(table)]
    where = ""
    if after is not None:
        where = f" WHERE {_beyond(_compared(table, relation, after, own=True), '>', strict=True)}"
    return f"{_select(table, relation)}{where} ORDER BY {', '.join(order)} LIMIT {rows}"


def row_statement(table: Table, relation: Relation, key: Sequence[bytes]) -> str:
    """Select the one row with this key."""
    same = " AND ".join(f"{column} = {part}" for column, part in _compared(table, relation, key))
    return f"{_select(table, relation)} WHERE {same}"


def keys_statement(table: Table, relation: Relation, keys: Sequence[Key]) -> str:
    """Select the rows with these keys, by the key's own index where texts can be compared with it."""
    columns = key_columns(table)
    one_of = ", ".join(
        f"({', '.join(_own_literal(column, part) for column, part in zip(columns, key, strict=True))})" for key in keys
    )
    by = ", ".join(_own(column, relation) for column in columns)
    return f"{_select(table, relation)} WHERE ({by}) IN ({one_of})"


def ends_statement(table: Table) -> str:
    """Select the least and the greatest key of a table with a key of one integer."""
    name = mapping.quoted_name(table.key[0])
    return f"SELECT MIN({name}), MAX({name}) FROM {_from(table)}"  # noqa: S608 - quoted


def lock_by_reading(table: Table) -> str:
    """Read nothing of a table: until the transaction lets go of it, no DDL gives its columns other names."""
    return f"SELECT 1 FROM {_from(table)} LIMIT 0"  # noqa: S608 - quoted


def lock_statement(tables: Sequence[Table]) -> str:
    """Lock the tables: wait for all open writers, and block new ones."""
    return "LOCK TABLES " + ", ".join(f"{_from(table)} READ" for table in tables)


def _select(table: Table, relation: Relation) -> str:
    return f"SELECT {', '.join(relation.expression(column.name) for column in table.columns)} FROM {_from(table)}"  # noqa: S608


def _from(table: Table) -> str:
    return f"{mapping.quoted_name(table.schema)}.{mapping.quoted_name(table.name)}"


def _base(column: Column) -> str:
    return column.type.partition("(")[0]


def _bytewise(column: Column, relation: Relation) -> str:
    if column.type in INTEGERS or _base(column) in _BY_TEXT:
        return mapping.quoted_name(column.name)
    if column.kind.name in ("string", "json"):
        return f"CAST(CONVERT({relation.expression(column.name)} USING utf8mb4) AS BINARY)"
    return f"CAST({relation.expression(column.name)} AS BINARY)"


def _literal(column: Column, part: bytes) -> str:
    if column.type in INTEGERS:
        return str(int(part))
    if _base(column) in _DAYS:
        if not _TIME(part):
            raise ValueError("a key that is no date and no time")
        return f"'{part.decode('ascii')}'"
    return f"x'{part.hex()}'"


def _compared(table: Table, relation: Relation, key: Sequence[bytes], *, own: bool = False) -> list[tuple[str, str]]:
    """Return the key's columns with its parts, as they are compared; `own`: as `_own` orders them.

    A day that there is not, which sessions may write, is compared as a text, whose order is the same: MySQL refuses it
    where it is to be a date.
    """
    made = []
    for column, part in zip(key_columns(table), key, strict=True):
        if _base(column) in _DAYS and not _is_a_day(part):
            made.append((f"CAST({mapping.quoted_name(column.name)} AS BINARY)", f"x'{part.hex()}'"))
        elif own:
            made.append((_own(column, relation), _own_literal(column, part)))
        else:
            made.append((_bytewise(column, relation), _literal(column, part)))
    return made


def _is_a_day(part: bytes) -> bool:
    try:
        dt.date.fromisoformat(part[:10].decode("ascii"))
    except ValueError:
        return False
    return True


def _has_own(column: Column) -> bool:
    """Tell whether a column can be compared in its own order.

    Where a collation of MariaDB does not pad, the server looks into an index of CHAR for values that are padded, and
    compares those that are not: rows are missing in what it finds.
    """
    if _base(column) == "char" and "_nopad_" in column.collation:
        return False
    return column.type in INTEGERS or _base(column) in _OWN_ORDER or column.kind.name == "decimal"


def _own(column: Column, relation: Relation) -> str:
    return mapping.quoted_name(column.name) if _has_own(column) else _bytewise(column, relation)


def _own_literal(column: Column, part: bytes) -> str:
    if not _has_own(column):
        return _literal(column, part)
    if _base(column) in ("char", "varchar"):
        return f"_utf8mb4 x'{part.hex()}'"
    if column.kind.name == "decimal" and _NUMBER(part):
        return part.decode()
    return _literal(column, part)


def _beyond(compared: Sequence[tuple[str, str]], how: str, *, strict: bool = False) -> str:
    """Spell out ``(a, b) > (x, y)``, or ``<=``: only then does the server use an index for it."""
    alternatives = list(_steps(compared, how, how if how == ">" or strict else "<="))
    return alternatives[0] if len(alternatives) == 1 else f"({' OR '.join(alternatives)})"


def _steps(compared: Sequence[tuple[str, str]], how: str, last: str) -> Iterator[str]:
    for at, (column, part) in enumerate(compared):
        same = [f"{other} = {its}" for other, its in compared[:at]]
        by = last if at == len(compared) - 1 else how
        term = " AND ".join([*same, f"{column} {by} {part}"])
        yield f"({term})" if len(compared) > 1 else term


def interpolated(first: int, last: int, count: int) -> Iterator[Key]:
    """Give keys at equal distances, because the distribution of an integer key is not known."""
    step: Callable[[int], int] = lambda n: first + (last - first) * n // count  # noqa: E731
    for n in range(1, count):
        yield (b"%d" % step(n),)
