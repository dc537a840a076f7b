"""Reads the few statements of the binlog that say something of rows or of what tables are called. Pure.

A Query event holds a statement as a session wrote it. Read here is only its beginning: comments, quotes and names, in
the grammar of https://dev.mysql.com/doc/refman/8.4/en/lexical-structure.html.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

from cdc.model.errors import ProtocolError
from connectors.mysql.statements.column_moves import NO_MOVES, ColumnMoves, column_moves, is_of_an_index
from connectors.mysql.statements.tokens import Name, Token
from connectors.mysql.statements.tokens import after as _after
from connectors.mysql.statements.tokens import name as _name
from connectors.mysql.statements.tokens import tokens as _tokens

XaId: TypeAlias = tuple[int, bytes, bytes]
"""Format, global part, branch."""

_ROW_STATEMENTS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "HANDLER"})
_XID: Final = re.compile(r"XA\s+(COMMIT|ROLLBACK)\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Emptied:
    """Says that tables have no rows any more: TRUNCATE TABLE and DROP TABLE."""

    tables: tuple[Name, ...]
    dropped: bool = False
    like: Name | None = field(default=None, compare=False, repr=False)
    """The table whose columns they have now: MariaDB's CREATE OR REPLACE TABLE … LIKE."""


@dataclass(frozen=True, slots=True)
class Renamed:
    """Says from what to what tables are renamed, in order: RENAME TABLE and ALTER TABLE … RENAME."""

    tables: tuple[tuple[Name, Name], ...]
    moves: ColumnMoves | None = field(default=None, compare=False, repr=False)
    """What the same ALTER TABLE does to the columns, before the table has its new name."""


@dataclass(frozen=True, slots=True)
class Dropped:
    """Says that all tables of a database are gone: DROP DATABASE."""

    database: str


@dataclass(frozen=True, slots=True)
class Altered:
    """Says that a table may have other columns by now: ALTER TABLE, CREATE TABLE."""

    table: Name
    values: bool = False
    """Its rows may have other values too, which no event tells of."""
    links: bool = False
    """Its foreign keys may be gone, or its columns that others refer to may have other names."""
    moves: ColumnMoves = field(default=NO_MOVES, compare=False, repr=False)
    made: bool = field(default=False, compare=False, repr=False)
    """It is made: CREATE TABLE."""
    unless_there: bool = field(default=False, compare=False, repr=False)
    """It is made only if there was none of its name, which the log does not tell: … IF NOT EXISTS."""
    like: Name | None = field(default=None, compare=False, repr=False)
    """The table whose columns it has: CREATE TABLE … LIKE."""


@dataclass(frozen=True, slots=True)
class Filled:
    """Says that a table has rows the log has not: CREATE TABLE … SELECT, logged so where binlog_format was not ROW."""

    table: Name


@dataclass(frozen=True, slots=True)
class ChangesRows:
    """Is a statement in the place of rows: binlog_format was not ROW."""

    verb: str
    tables: tuple[Name, ...] | None = None
    """Those that it may write itself, besides what triggers and foreign keys do; None: that cannot be told."""


@dataclass(frozen=True, slots=True)
class Ended:
    """Ends a transaction: COMMIT, ROLLBACK."""

    committed: bool


@dataclass(frozen=True, slots=True)
class Began:
    """Begins a transaction: BEGIN, START TRANSACTION, XA START."""


BEGAN: Final = Began()


@dataclass(frozen=True, slots=True)
class RolledBackTo:
    """Rolls back to a savepoint, which is in the log only where tables without transactions were written too."""


@dataclass(frozen=True, slots=True)
class XaEnded:
    """Ends what was prepared before: XA COMMIT, XA ROLLBACK."""

    xid: XaId
    committed: bool


@dataclass(frozen=True, slots=True)
class Partitions:
    """Says that rows are gone or others without events: ALTER TABLE … TRUNCATE, DROP, EXCHANGE PARTITION, IMPORT."""

    table: Name
    others: tuple[Name, ...] = ()
    """Tables that its rows went to or came from, and that are there: EXCHANGE, CONVERT PARTITION … TO TABLE."""
    gone: tuple[Name, ...] = ()
    """Tables that have become a part of it: CONVERT TABLE … TO PARTITION."""
    both: bool = False
    """Rows of `others` are in it now, too: EXCHANGE."""


@dataclass(frozen=True, slots=True)
class Granted:
    """Says that the connector's user may read other columns by now: GRANT, REVOKE, FLUSH PRIVILEGES."""


Meaning: TypeAlias = (
    Emptied
    | Renamed
    | Dropped
    | Altered
    | Filled
    | ChangesRows
    | Ended
    | Began
    | RolledBackTo
    | XaEnded
    | Partitions
    | Granted
    | None
)


def meaning(statement: str, database: str, server: str = "", sql_mode: int = 0) -> Meaning:
    """Return what a statement says, run in `database`; None: nothing of rows or tables, or it is not known here."""
    head = statement[:10].upper()
    if head == "BEGIN":
        return BEGAN
    if head == "COMMIT":
        return Ended(committed=True)
    found = _tokens(statement, server, sql_mode)
    return of_tokens(found, statement, database) if found else None


def of_tokens(tokens: list[Token], statement: str, database: str) -> Meaning:
    """Return the same of a statement whose tokens were read, and its prefixes stripped."""
    first = tokens[0].text.upper()
    second = tokens[1] if len(tokens) > 1 else Token("")
    match first:
        case "BEGIN" | "START":
            return Began()
        case "COMMIT":
            return Ended(committed=True)
        case "ROLLBACK":
            return RolledBackTo() if any(t.says("TO") for t in tokens[1:3]) else Ended(committed=False)
        case "XA":
            return _xa(statement, second)
        case "TRUNCATE":
            at = 2 if second.says("TABLE") and len(tokens) > 2 else 1  # noqa: PLR2004 - TRUNCATE TABLE name
            return Emptied((_name(tokens, at, database)[0],))
        case "DROP":
            return _drop(tokens, database)
        case "RENAME" if second.says("TABLE", "TABLES"):
            return _rename(tokens, database)
        case "ALTER":
            return _alter(tokens, database)
        case "CREATE":
            return _create(tokens, database)
        case "GRANT" | "REVOKE":
            return Granted()
        case "FLUSH" if any(token.says("PRIVILEGES") for token in tokens):
            return Granted()
        case verb if verb in _ROW_STATEMENTS:
            return ChangesRows(verb)
    return None


def _drop(tokens: list[Token], database: str) -> Meaning:
    second = tokens[1] if len(tokens) > 1 else Token("")
    if second.says("DATABASE", "SCHEMA"):
        at = _after(tokens, 2, "IF", "EXISTS")
        return Dropped(tokens[at].text) if at < len(tokens) else None
    if not second.says("TABLE", "TABLES"):
        return None  # temporary ones, views, indexes, …
    at = _after(tokens, 2, "IF", "EXISTS")
    found = []
    while at < len(tokens):
        name, at = _name(tokens, at, database)
        found.append(name)
        if at < len(tokens) and tokens[at] == Token(","):
            at += 1
            continue
        break
    return Emptied(tuple(found), dropped=True)


def _rename(tokens: list[Token], database: str) -> Meaning:
    at = _after(tokens, 2, "IF", "EXISTS")
    found = []
    while at < len(tokens):
        old, at = _name(tokens, at, database)
        if at < len(tokens) and tokens[at].says("WAIT", "NOWAIT"):  # MariaDB
            at += 1 if tokens[at].says("NOWAIT") else 2
        at = _after(tokens, at, "TO")
        new, at = _name(tokens, at, database)
        found.append((old, new))
        if at < len(tokens) and tokens[at] == Token(","):
            at += 1
            continue
        break
    return Renamed(tuple(found))


def _alter(tokens: list[Token], database: str) -> Meaning:
    at, ignores = 1, False
    while at < len(tokens) and tokens[at].says("ONLINE", "OFFLINE", "IGNORE"):
        ignores = ignores or tokens[at].says("IGNORE")  # rows that are in the way of a key go
        at += 1
    if at >= len(tokens) or not tokens[at].says("TABLE"):
        return None
    at = _after(tokens, at + 1, "IF", "EXISTS")
    table, at = _name(tokens, at, database)
    if at < len(tokens) and tokens[at].says("WAIT", "NOWAIT"):  # MariaDB
        at += 1 if tokens[at].says("NOWAIT") else 2
    values, links = ignores, False
    clauses = list(_clauses(tokens, at))
    moves = column_moves(clauses)
    for clause in clauses:
        found = _clause(table, clause, database)
        if isinstance(found, Renamed):
            return replace(found, moves=moves)
        if found is not None and not isinstance(found, Altered):
            return found
        values = values or found is not None
        links = links or _relinks(clause)
    return Altered(table, values, links, moves)


def _relinks(clause: list[Token]) -> bool:
    """Tell whether a clause takes a foreign key away, or gives a column another name."""
    if not clause:
        return False
    second = clause[1] if len(clause) > 1 else Token("")
    drops = clause[0].says("DROP") and second.says("FOREIGN", "CONSTRAINT")
    return drops or clause[0].says("CHANGE") or (clause[0].says("RENAME") and second.says("COLUMN"))


def _clauses(tokens: list[Token], at: int) -> Iterator[list[Token]]:
    """Give what stands between the commas of an ALTER TABLE."""
    depth, clause = 0, list[Token]()
    for token in tokens[at:]:
        depth += (token == Token("(")) - (token == Token(")"))
        if depth == 0 and token == Token(","):
            yield clause
            clause = []
        else:
            clause.append(token)
    yield clause


_FILLS: Final = ("DEFAULT", "NOT", "AS", "GENERATED", "AUTO_INCREMENT", "SERIAL", "PRIMARY", "TIMESTAMP", "PERIOD")
"""Words of a new column that gives rows a value which are older than it is."""
_PARTS: Final = ("TRUNCATE", "DROP", "EXCHANGE", "CONVERT", "DISCARD")


def _clause(table: Name, clause: list[Token], database: str) -> Meaning:
    """Return what one clause says; None: nothing of rows, nor of their values."""
    first = clause[0] if clause else Token("")
    second = clause[1] if len(clause) > 1 else Token("")
    if first.says("RENAME") and not second.says("COLUMN", "INDEX", "KEY"):
        named = second.says("TO", "AS") or second == Token("=")
        return Renamed(((table, _name(clause, 2 if named else 1, database)[0]),))
    if first.says("IMPORT") or (second.says("PARTITION") and first.says(*_PARTS)):
        return _partitions(table, clause, database)
    if first.says("DISCARD"):
        return Emptied((table,))
    if first.says("CONVERT") and second.says("TABLE"):  # MariaDB: … TO PARTITION
        return Partitions(table, gone=(_name(clause, 2, database)[0],))
    if first.says("MODIFY", "CHANGE", "CONVERT"):
        return Altered(table, values=True)
    if is_of_an_index(clause, 1) or not first.says("DROP", "ADD", "RENAME"):
        return None  # another primary key shows in the table's description
    if first.says("ADD") and not any(token.says(*_FILLS) for token in clause):
        return None
    return Altered(table, values=True)


def _partitions(table: Name, clause: list[Token], database: str) -> Meaning:
    """Read … EXCHANGE PARTITION p WITH TABLE t, CONVERT PARTITION p TO TABLE t, and those that name no other table."""
    if clause[0].says("DISCARD"):
        return None  # what is left cannot be read until IMPORT
    at = next((at for at, token in enumerate(clause) if token.says("TABLE")), 0)
    others = (_name(clause, at + 1, database)[0],) if at and clause[0].says("EXCHANGE", "CONVERT") else ()
    return Partitions(table, others, both=clause[0].says("EXCHANGE"))


def _create(tokens: list[Token], database: str) -> Meaning:
    at = _after(tokens, 1, "OR", "REPLACE")
    replaces = at > 1
    if at >= len(tokens) or not tokens[at].says("TABLE"):
        return None
    unless_there = tokens[at + 1].says("IF") if at + 1 < len(tokens) else False
    at = _after(tokens, at + 1, "IF", "NOT", "EXISTS")
    name, at = _name(tokens, at, database)
    if any(_queries(tokens, n) for n in range(at, len(tokens))):
        return Filled(name)
    bracket = at + 1 if at < len(tokens) and tokens[at] == Token("(") else at  # CREATE TABLE t (LIKE o)
    like = _name(tokens, bracket + 1, database)[0] if bracket < len(tokens) and tokens[bracket].says("LIKE") else None
    if replaces:
        return Emptied((name,), dropped=True, like=like)
    return Altered(name, made=True, unless_there=unless_there, like=like)


def _queries(tokens: list[Token], at: int) -> bool:
    """Tell whether a query begins there; a definition of columns has no such words unless they are quoted."""
    rows = tokens[at].says("VALUES") and at + 1 < len(tokens) and tokens[at + 1].says("ROW")
    return rows or tokens[at].says("SELECT", "TABLE")


def _xa(statement: str, second: Token) -> Meaning:
    if second.says("START", "BEGIN"):
        return Began()
    found = _XID.search(statement)
    if found is None:
        return None  # XA END, XA PREPARE
    try:
        xid = (int(found[4]), bytes.fromhex(found[2]), bytes.fromhex(found[3]))
    except ValueError as exc:
        raise ProtocolError(found.start(), "a prepared transaction whose name cannot be read") from exc
    return XaEnded(xid, committed=found[1].upper() == "COMMIT")
