"""Reads the few statements of the binlog that say something of rows or of what tables are called. Pure.

A Query event holds a statement as a session wrote it. Read here is only its beginning: comments, quotes and names, in
the grammar of https://dev.mysql.com/doc/refman/8.4/en/lexical-structure.html.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from cdc.model.errors import ProtocolError

Name: TypeAlias = tuple[str, str]
"""Database and table."""

XaId: TypeAlias = tuple[int, bytes, bytes]
"""Format, global part, branch."""

_TOKENS: Final = re.compile(
    r"""
    (?P<space>[\s\ufeff]+|\#[^\n]*|--(?=[\s]|\Z)[^\n]*|/\*(?![!M])(?:[^*]|\*(?!/))*+(?:\*/|\Z))
  | (?P<open>/\*M?!(?:\d{5,6})?)  # what follows is for the servers to read that are so new
  | (?P<close>\*/)
  | `(?P<quoted>(?:[^`]|``)*+)(?:`|\Z)
  | "(?P<double>(?:[^"\\]|""|\\.)*+)(?:"|\\?\Z)
  | '(?P<string>(?:[^'\\]|''|\\.)*+)(?:'|\\?\Z)
  | (?P<word>[0-9A-Za-z_$\u0080-\U0010ffff]+)
  | (?P<other>.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""What is not closed goes on to the end: it is looked for once, not again from each character of it."""
_ROW_STATEMENTS: Final = frozenset({"INSERT", "UPDATE", "DELETE", "REPLACE", "LOAD", "WITH", "CALL", "DO", "HANDLER"})
_XID: Final = re.compile(r"XA\s+(COMMIT|ROLLBACK)\s+X'([0-9a-f]*)'\s*,\s*X'([0-9a-f]*)'\s*,\s*(\d+)", re.IGNORECASE)
MOST_TOKENS: Final = 10_000
"""No more of a statement is read."""


@dataclass(frozen=True, slots=True)
class Token:
    """Is a word in capitals, a name as it is, or one character."""

    text: str
    quoted: bool = False

    def says(self, *words: str) -> bool:
        return not self.quoted and self.text.upper() in words


@dataclass(frozen=True, slots=True)
class Emptied:
    """Says that tables have no rows any more: TRUNCATE TABLE and DROP TABLE."""

    tables: tuple[Name, ...]
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Renamed:
    """Says from what to what tables are renamed, in order: RENAME TABLE and ALTER TABLE … RENAME."""

    tables: tuple[tuple[Name, Name], ...]


@dataclass(frozen=True, slots=True)
class Dropped:
    """Says that all tables of a database are gone: DROP DATABASE."""

    database: str


@dataclass(frozen=True, slots=True)
class Altered:
    """Says that a table may have other columns by now: ALTER TABLE, CREATE TABLE."""

    table: Name


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
    | None
)


def meaning(statement: str, database: str) -> Meaning:
    """Return what a statement says, run in `database`; None: nothing of rows or tables, or it is not known here."""
    head = statement[:10].upper()
    if head == "BEGIN":
        return BEGAN
    if head == "COMMIT":
        return Ended(committed=True)
    found = tokens(statement)
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
        case verb if verb in _ROW_STATEMENTS:
            return ChangesRows(verb)
    return None


def tokens(statement: str, server: str = "") -> list[Token]:
    """Read a statement as a server of this version does, or any if it is not told."""
    found: list[Token] = []
    end = 0
    for match in _TOKENS.finditer(statement):
        kind = match.lastgroup
        if match.start() < end:
            continue  # in a comment for other servers
        if kind in ("space", "open", "close"):
            if kind == "open" and server and not _is_read(match["open"], server):
                closes = statement.find("*/", match.end())
                end = len(statement) if closes < 0 else closes + 2
            continue
        text = match[kind] if kind else ""
        if kind == "quoted":
            found.append(Token(text.replace("``", "`"), quoted=True))
        elif kind == "double":
            found.append(Token(text.replace('""', '"'), quoted=True))
        elif kind == "string":
            found.append(Token("'"))
        else:
            found.append(Token(text))
        if len(found) >= MOST_TOKENS:
            break
    return found


def _is_read(comment: str, server: str) -> bool:
    """Tell whether a server reads what such a comment holds: MySQL none of MariaDB's, MariaDB not all of MySQL's."""
    digits = comment.lstrip("/*M!")
    mariadb = "mariadb" in server.lower()
    if comment.startswith("/*M") and not mariadb:
        return False
    if not digits:
        return True
    version = [int(part) for part in re.findall(r"\d+", server.replace("5.5.5-", "", 1))[:3]]
    number = sum(part * scale for part, scale in zip(version, (10_000, 100, 1), strict=False))
    of_mysql = mariadb and comment.startswith("/*!") and int(digits) in _NEWER_MYSQL
    return int(digits) <= number and not of_mysql


_NEWER_MYSQL: Final = range(50_700, 100_000)
"""Versions of MySQL that MariaDB does not claim to be."""


def name_at(tokens: Sequence[Token], at: int, database: str) -> tuple[Name, int]:
    """Read ``[database.]table`` beginning at `at`; return also where the next token is."""
    name, behind = _name(list(tokens[at : at + 3]), 0, database)
    return name, at + behind


def _name(tokens: list[Token], at: int, database: str) -> tuple[Name, int]:
    """Read ``[database.]table`` beginning at `at`; return also where the next token is."""
    if at >= len(tokens):
        return (database, ""), at
    first = tokens[at].text
    if at + 2 < len(tokens) and tokens[at + 1] == Token("."):
        return (first, tokens[at + 2].text), at + 3
    return (database, first), at + 1


def _after(tokens: list[Token], at: int, *words: str) -> int:
    """Skip `words`, if they stand at `at`."""
    there = [token.text.upper() for token in tokens[at : at + len(words)] if not token.quoted]
    return at + len(words) if there == list(words) else at


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
    at = 1
    while at < len(tokens) and tokens[at].says("ONLINE", "OFFLINE", "IGNORE"):
        at += 1
    if at >= len(tokens) or not tokens[at].says("TABLE"):
        return None
    at = _after(tokens, at + 1, "IF", "EXISTS")
    old, at = _name(tokens, at, database)
    depth, begins, partitions = 0, True, False
    while at < len(tokens):
        token = tokens[at]
        if token == Token("("):
            depth += 1
        elif token == Token(")"):
            depth -= 1
        elif depth == 0 and begins and token.says("RENAME"):
            following = tokens[at + 1] if at + 1 < len(tokens) else Token("")
            if not following.says("COLUMN", "INDEX", "KEY"):
                at += 2 if following.says("TO", "AS") or following == Token("=") else 1
                new, _ = _name(tokens, at, database)
                return Renamed(((old, new),))
        elif depth == 0 and begins and token.says("TRUNCATE", "DROP", "EXCHANGE", "CONVERT"):
            partitions = partitions or (at + 1 < len(tokens) and tokens[at + 1].says("PARTITION"))
        elif depth == 0 and begins and token.says("IMPORT"):
            partitions = True
        begins = token == Token(",") and depth == 0
        at += 1
        if at and not begins and depth == 0 and tokens[at - 1].text.isdigit():
            begins = True  # behind WAIT n
    return Partitions(old) if partitions else Altered(old)


def _create(tokens: list[Token], database: str) -> Meaning:
    at = _after(tokens, 1, "OR", "REPLACE")
    replaces = at > 1
    if at >= len(tokens) or not tokens[at].says("TABLE"):
        return None
    at = _after(tokens, at + 1, "IF", "NOT", "EXISTS")
    name, at = _name(tokens, at, database)
    if any(_queries(tokens, n) for n in range(at, len(tokens))):
        return Filled(name)
    return Emptied((name,), dropped=True) if replaces else Altered(name)


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
