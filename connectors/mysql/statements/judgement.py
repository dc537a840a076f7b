"""Judges every statement of the binlog: known DDL, harmless, or one that may have changed rows of tables. Pure.

A server whose format is ROW logs rows as rows, but any session may set another format, and then its statements stand
in their place. So nothing passes because it is not known: prefixes are stripped (version comments, `SET STATEMENT …
FOR`, `ANALYZE`, `WITH`), `connectors.mysql.statements.ddl` reads DDL, `HARMLESS` lists what both servers document to
change no rows of tables, and everything else is `ChangesRows` with the tables that it names, or with None where that
cannot be told: a procedure, a function that is not the server's own, a statement that is not known here.

https://dev.mysql.com/doc/refman/8.4/en/sql-statements.html and https://mariadb.com/kb/en/sql-statements/
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from connectors.mysql.statements import ddl
from connectors.mysql.statements.ddl import (
    Altered,
    ChangesRows,
    Dropped,
    Emptied,
    Filled,
    Meaning,
)
from connectors.mysql.statements.native_functions import NATIVE
from connectors.mysql.statements.tokens import MOST_TOKENS, Name, Token
from connectors.mysql.statements.tokens import name as name_at
from connectors.mysql.statements.tokens import tokens as read

_END: Final = Token("")

HARMLESS: Final = frozenset(
    {
        *("BACKUP", "CACHE", "CHANGE", "CHECK", "CHECKSUM", "CLONE", "DEALLOCATE", "FLUSH", "GET", "GRANT", "HANDLER"),
        *("HELP", "INSTALL", "KILL", "LOCK", "OPTIMIZE", "PREPARE", "PURGE", "RELEASE", "REPAIR", "RESET", "RESIGNAL"),
        *("RESTART", "REVOKE", "SAVEPOINT", "SHOW", "SHUTDOWN", "SIGNAL", "STOP", "UNINSTALL", "UNLOCK", "USE"),
    }
)
"""Verbs whose statements change no row of any table that can be captured, whatever follows."""
_EXPLAINS: Final = frozenset({"DESC", "DESCRIBE", "EXPLAIN"})
_OBJECTS: Final = frozenset(
    {
        *("CATALOG", "DATABASE", "EVENT", "FUNCTION", "INDEX", "INSTANCE", "LIBRARY", "LOGFILE", "PACKAGE", "PREPARE"),
        *("PROCEDURE", "RESOURCE", "ROLE", "SCHEMA", "SEQUENCE", "SERVER", "SPATIAL", "TABLESPACE", "TRIGGER", "UNDO"),
        *("COMPRESSION_DICTIONARY", "USER", "VIEW"),
    }
)
"""What CREATE, ALTER and DROP are about besides tables."""
_BEFORE_AN_OBJECT: Final = frozenset(
    {
        *("AGGREGATE", "ALGORITHM", "CURRENT_ROLE", "CURRENT_USER", "DEFINER", "FULLTEXT", "INVOKER", "JSON", "MERGE"),
        *("OFFLINE", "ONLINE", "OR", "RELATIONAL", "DUALITY", "REPLACE", "SECURITY", "SQL", "TEMPTABLE", "UNDEFINED"),
        *("UNIQUE", "VECTOR", "IGNORE", "=", "@", "(", ")", "'", "-", ".", "%"),
    }
)
_MODIFIERS: Final = ("LOW_PRIORITY", "DELAYED", "HIGH_PRIORITY", "QUICK", "IGNORE", "CONCURRENT", "LOCAL", "HISTORY")
_JOINS: Final = ("JOIN", "STRAIGHT_JOIN")
_ENDS: Final = ("SET", "WHERE", "ORDER", "LIMIT", "RETURNING")
_QUERIES: Final = ("SELECT", "WITH", "VALUES", "TABLE")
_NOT_NAMES: Final = frozenset(
    {
        *("ADD", "ALL", "AND", "ANY", "AS", "ASC", "BETWEEN", "BY", "CASE", "COLUMNS", "CROSS", "DESC", "DISTINCT"),
        *("DIV", "DUAL", "DUPLICATE", "ELSE", "END", "ESCAPE", "EXCEPT", "EXISTS", "FIELDS", "FOR", "FORCE", "FROM"),
        *("FULL", "GROUP", "HAVING", "IGNORE", "IN", "INDEX", "INNER", "INTERSECT", "INTERVAL", "INTO", "IS", "JOIN"),
        *(
            "KEY",
            "LATERAL",
            "LEFT",
            "LIKE",
            "LIMIT",
            "LINES",
            "MATERIALIZED",
            "MEMBER",
            "MOD",
            "NATURAL",
            "NOT",
            "NULL",
        ),
        *("OF", "OFFSET", "ON", "OR", "ORDER", "OUTER", "OUTFILE", "OVER", "PARTITION", "RECURSIVE", "REGEXP", "RIGHT"),
        *("RLIKE", "ROLLUP", "ROW", "ROWS", "SELECT", "SET", "SOME", "SOUNDS", "STRAIGHT_JOIN", "TABLE", "THEN"),
        *("UNION", "UPDATE", "USE", "USING", "VALUE", "VALUES", "WHEN", "WHERE", "WINDOW", "WITH", "XOR"),
    }
)
"""Words before a bracket that call nothing."""


@dataclass(frozen=True, slots=True)
class Temporary:
    """Says that a session has made temporary tables, or dropped them: what it does to them is nobody's rows."""

    tables: tuple[Name, ...]
    made: bool


@dataclass(frozen=True, slots=True)
class Hangs:
    """Says that something else may hang on tables from now on, or no longer: a trigger or a view."""

    dropped: bool


@dataclass(frozen=True, slots=True)
class Both:
    """Says that a table is filled by a query whose functions may write other tables."""

    filled: Filled
    written: ChangesRows


Judgement: TypeAlias = Meaning | Temporary | Hangs | Both


def judge(statement: str, database: str, server: str = "", sql_mode: int = 0) -> Judgement:
    """Return what a statement says, run in `database` by a server of this version; None: it is harmless."""
    if statement == "BEGIN":
        return ddl.BEGAN
    tokens = _stripped(read(statement, server, sql_mode))
    if not tokens:
        return None
    begins = tokens[0].says("BEGIN", "START")
    if begins and not (tokens[0].says("BEGIN") and len(tokens) == 1):
        return _begins(tokens)
    said = ddl.of_tokens(tokens, statement, database)
    if isinstance(said, ChangesRows) or said is None:
        return _judged(tokens, database)
    if isinstance(said, Filled):
        behind = 4 if tokens[1].says("OR") else 2  # CREATE OR REPLACE TABLE, CREATE TABLE
        query = next((at for at in range(behind, len(tokens)) if tokens[at].says(*_QUERIES)), 0)
        if not _only_native(tokens, query):
            return Both(said, ChangesRows("CREATE", None))
    return said


def tables_of(said: Judgement) -> tuple[Name, ...]:
    """Return the tables that DDL names."""
    match said:
        case Emptied(tables, _):
            return tables
        case ddl.Renamed(pairs):
            return tuple(name for pair in pairs for name in pair)
        case ddl.Partitions(name, others, gone):
            return (name, *others, *gone)
        case Altered(name) | Filled(name):
            return (name,)
    return ()


def relinked(said: Judgement) -> bool:
    """Tell whether foreign keys of the tables that DDL names, or that refer to them, may not be those of before it."""
    match said:
        case Emptied(_, dropped):
            return dropped
        case Altered(_, _, links):
            return links
        case ddl.Renamed() | Filled() | Dropped():
            return True
    return False


def _at(tokens: Sequence[Token], at: int) -> Token:
    return tokens[at] if at < len(tokens) else _END


def _stripped(tokens: list[Token]) -> list[Token]:
    """Drop what may stand before a statement that is carried out all the same."""
    while tokens:
        first = tokens[0]
        if first == Token("(") or first == Token(";"):
            tokens = tokens[1:]
        elif first.says("SET") and _at(tokens, 1).says("STATEMENT"):
            ends = [at for at, depth in _depths(tokens) if depth == 0 and tokens[at].says("FOR")]
            if not ends:
                return tokens
            tokens = tokens[ends[0] + 1 :]
        elif first.says("ANALYZE") and not _at(tokens, 1).says("TABLE", "TABLES", "LOCAL", "NO_WRITE_TO_BINLOG"):
            tokens = tokens[4:] if _at(tokens, 1).says("FORMAT") else tokens[1:]  # MariaDB carries it out
        elif first.says(*_EXPLAINS) and _at(tokens, 1).says("ANALYZE"):
            tokens = tokens[1:]
        else:
            break
    return tokens


def _begins(tokens: Sequence[Token]) -> Judgement:
    """Judge BEGIN and START: a transaction, or a block of statements, or something of replicas."""
    second = _at(tokens, 1)
    if second.says("TRANSACTION", "WORK"):
        return ddl.BEGAN
    if tokens[0].says("START") and second.says("REPLICA", "SLAVE", "GROUP_REPLICATION", "ALL"):
        return None
    return ChangesRows(tokens[0].text.upper(), None)


def _depths(tokens: Sequence[Token]) -> Iterator[tuple[int, int]]:
    """Give each token's number and how many brackets are open around it."""
    depth = 0
    for at, token in enumerate(tokens):
        if token == Token(")"):
            depth -= 1
        yield at, depth
        if token == Token("("):
            depth += 1


def _judged(tokens: list[Token], database: str) -> Judgement:
    """Judge what is no DDL of a table that is kept."""
    verb = tokens[0].text.upper()
    if tokens[0].quoted or _at(tokens, 1) == Token(":"):
        return ChangesRows("label", None)
    if verb in HARMLESS or (verb in _EXPLAINS):
        return None
    if verb in ("CREATE", "ALTER", "DROP"):
        return _of_object(tokens, verb, database)
    if verb == "WITH":
        tokens = _behind_with(tokens)
        verb = tokens[0].text.upper() if tokens else "WITH"
    match verb:
        case "ANALYZE":
            return None  # TABLE
        case "RENAME":
            return None if _at(tokens, 1).says("USER") else ChangesRows(verb, None)
        case "XA":
            return None if _at(tokens, 1).says("END", "PREPARE", "RECOVER") else ChangesRows(verb, None)
        case "LOAD" if _at(tokens, 1).says("INDEX"):
            return None
        case "SELECT" | "SET" | "DO" | "VALUES" | "TABLE":
            return None if _only_native(tokens, 1) else ChangesRows(verb, None)
        case "INSERT" | "REPLACE" | "UPDATE" | "DELETE" | "LOAD":
            return ChangesRows(verb, _written(tokens, verb, database))
    return ChangesRows(verb, None)


def _of_object(tokens: Sequence[Token], verb: str, database: str) -> Judgement:
    """Judge CREATE, ALTER and DROP of what is not a table that is kept."""
    at = 1
    while at < len(tokens):
        token = tokens[at]
        if token.says("TEMPORARY") and verb in ("CREATE", "DROP"):
            return _temporary(tokens, at + 1, verb, database)
        if token.says("TABLE", "TABLES"):
            break
        if token.says("TRIGGER", "VIEW"):
            return Hangs(dropped=verb != "CREATE" or _at(tokens, 1).says("OR"))
        if token.says(*_OBJECTS):
            return _of_schema(tokens, at, verb) if token.says("DATABASE", "SCHEMA") else None
        if token.says("DEFAULT") and _at(tokens, at + 1).says("ROLE"):
            return None
        of_definer = _at(tokens, at - 1) in (Token("="), Token("@"))
        if not (token.quoted or of_definer or token.text.upper() in _BEFORE_AN_OBJECT):
            break
        at += 1
    return ChangesRows(verb, None)


def _of_schema(tokens: Sequence[Token], at: int, verb: str) -> Judgement:
    if verb == "CREATE" and _at(tokens, 1).says("OR"):
        return Dropped(_at(tokens, at + 1).text)  # MariaDB: CREATE OR REPLACE DATABASE drops its tables
    return ChangesRows(verb, None) if any(token.says("UPGRADE") for token in tokens) else None


def _temporary(tokens: Sequence[Token], at: int, verb: str, database: str) -> Judgement:
    if _at(tokens, at).says("SEQUENCE"):
        at -= 1
    if not _at(tokens, at).says("TABLE", "TABLES", "TEMPORARY"):
        return ChangesRows(verb, None)
    at += 1
    while _at(tokens, at).says("IF", "NOT", "EXISTS"):
        at += 1
    if verb == "CREATE":
        name, behind = name_at(tokens, at, database)
        made = Temporary((name,), made=True)
        columns = not any(token.says("SELECT", "WITH") for token in tokens[behind:])
        return made if columns or _only_native(tokens, behind) else ChangesRows(verb, None)
    found = []
    while at < len(tokens):
        name, at = name_at(tokens, at, database)
        found.append(name)
        if _at(tokens, at) != Token(","):
            break
        at += 1
    return Temporary(tuple(found), made=False)


def _behind_with(tokens: list[Token]) -> list[Token]:
    """Return the statement behind its common table expressions."""
    for at, depth in _depths(tokens):
        if at and depth == 0 and tokens[at].says("SELECT", "UPDATE", "DELETE", "INSERT", "REPLACE", "VALUES", "TABLE"):
            calls = _only_native(tokens[:at], 1)
            return [*tokens[at:], *(() if calls else (Token("cdc"), Token(".")))]
    return []


def _only_native(tokens: Sequence[Token], begin: int) -> bool:
    """Tell whether no function is called but the server's own, which write no table, and it is all of one statement."""
    if len(tokens) >= MOST_TOKENS:
        return False
    for at in range(begin, len(tokens)):
        token, following = tokens[at], _at(tokens, at + 1)
        if token == Token(";") and following != _END:
            return False
        if following != Token("(") or not _is_word(token):
            if token == Token(".") and following == _END:
                return False
            continue
        if token.quoted or tokens[at - 1] == Token("."):
            if not (at > 1 and _is_list(tokens, at)):
                return False
        elif token.text.upper() not in NATIVE and token.text.upper() not in _NOT_NAMES and not _is_list(tokens, at):
            return False
    return True


def _is_word(token: Token) -> bool:
    return token.quoted or token.text[:1].isalnum() or token.text[:1] in ("_", "$") or token.text[:1] > "\x7f"


def _is_list(tokens: Sequence[Token], at: int) -> bool:
    """Tell whether what a name is followed by is a list of columns: WITH x (a), JOIN (…) AS x (a), WINDOW w AS (…)."""
    before = at - 1
    while tokens[before] == Token(".") and before > 1:
        before -= 2
    return tokens[before].says("WITH", "RECURSIVE", "AS", "INTO")


def _written(tokens: Sequence[Token], verb: str, database: str) -> tuple[Name, ...] | None:
    """Return the tables that a statement writes itself, and perhaps some that it reads; None: that cannot be told."""
    at = 1
    while _at(tokens, at).says(*_MODIFIERS, "DATA", "XML"):
        at += 1
    if verb == "LOAD":
        into = next((n for n in range(at, len(tokens)) if tokens[n].says("INTO")), len(tokens))
        if not _at(tokens, into + 1).says("TABLE"):
            return None
        name, behind = name_at(tokens, into + 2, database)
        return (name,) if _at(tokens, into + 2) != _END and _only_native(tokens, behind + 1) else None
    if verb in ("INSERT", "REPLACE"):
        if _at(tokens, at).says("INTO"):
            at += 1
        if not _is_word(_at(tokens, at)):
            return None
        name, behind = name_at(tokens, at, database)
        return (name,) if _only_native(tokens, behind + 1 if _at(tokens, behind) == Token("(") else behind) else None
    if verb == "DELETE":
        using = next((n for n, depth in _depths(tokens) if depth == 0 and tokens[n].says("USING")), None)
        from_ = next((n for n, depth in _depths(tokens) if depth == 0 and tokens[n].says("FROM")), None)
        if from_ is None:
            return None
        at = (from_ if using is None or not _lists_names(tokens, from_ + 1, using) else using) + 1
    found = _references(tokens, at, database)
    return found if found and _only_native(tokens, at) else None


def _lists_names(tokens: Sequence[Token], begin: int, end: int) -> bool:
    """Tell whether only names stand there: DELETE FROM a, b USING …, and not a join with USING (columns)."""
    return not any(tokens[at].says("WHERE", *_JOINS) for at in range(begin, end))


def _references(tokens: Sequence[Token], at: int, database: str) -> tuple[Name, ...] | None:
    """Return the tables of a list of table references that begins at `at`; None where it cannot be read."""
    found: list[Name] = []
    wanted, groups = True, 0
    while at < len(tokens):
        token = tokens[at]
        if token == Token("("):
            if wanted and not _at(tokens, at + 1).says(*_QUERIES):
                groups += 1
                at += 1
                continue
            at = _behind_bracket(tokens, at)
            wanted = False
        elif token == Token(")"):
            groups -= 1
            if groups < 0:
                return None
            at += 1
        elif wanted and token.says("LATERAL", "ONLY"):
            at += 1
        elif wanted:
            if not _is_word(token) or token.says("JSON_TABLE"):
                if not token.says("JSON_TABLE"):
                    return None
                at = _behind_bracket(tokens, at + 1)
            else:
                name, at = name_at(tokens, at, database)
                found.append(name)
            wanted = False
        elif token == Token(",") or token.says(*_JOINS):
            wanted = True
            at += 1
        elif token.says(*_ENDS):
            break
        else:
            at += 1
    return None if groups or wanted else tuple(dict.fromkeys(found))


def _behind_bracket(tokens: Sequence[Token], at: int) -> int:
    """Return what follows the bracket that closes the one at `at`."""
    depth = 0
    while at < len(tokens):
        depth += (tokens[at] == Token("(")) - (tokens[at] == Token(")"))
        at += 1
        if depth == 0:
            break
    return at
