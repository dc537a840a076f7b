"""Asks a SQLite file what its tables are. Reads only."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from shlex import quote
from types import MappingProxyType
from typing import Any, Final

from cdc.model.change import Column, Table
from cdc.model.errors import LeftOutError, OperatorError
from connectors import captured_tables
from connectors.triggers.sqlite.session import OLDEST, Session, literal, quoted
from connectors.triggers.sqlite.values import affinity, column

SCHEMA: Final = "main"
MOST_KEY_COLUMNS: Final = 8
_OURS: Final = re.compile(r"cdc_.+_(changes|shapes|replaced|last)").fullmatch
_IGNORES: Final = re.compile(r"\bRAISE\s*\(\s*IGNORE\s*\)", re.IGNORECASE).search
_BEFORE: Final = re.compile(r"\b(BEFORE|INSTEAD\s+OF)\s+(INSERT|UPDATE|DELETE)\b", re.IGNORECASE).search
_LITERAL: Final = re.compile(
    r"([+-]?\s*(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|0x[0-9a-f]+|'([^']|'')*'|x'([0-9a-f]{2})*'|CURRENT_(DATE|TIME|TIMESTAMP))",
    re.IGNORECASE | re.ASCII,
).fullmatch
_NAME: Final = re.compile(r"""([^\W\d][\w$]*)|"((?:[^"]|"")*)"|`((?:[^`]|``)*)`|\[([^\]]*)\]""").fullmatch
_TRUTHS: Final = {"NULL": "NULL", "TRUE": "1", "FALSE": "0"}
_TEXTS: Final = re.compile(r"'[^']*'").sub
_KINDS: Final = {"view": "a view", "virtual": "a virtual table", "shadow": "a part of a virtual table"}


@dataclass(frozen=True, slots=True)
class Unique:
    """Is an index that no two rows share."""

    name: str
    collations: Mapping[str, str]
    """By column: an index may take other values for equal than its column does. Empty: it is of expressions, or of
    some rows only."""


@dataclass(frozen=True, slots=True)
class Shape:
    """Describes a table's columns at one time: all that reading a row's image needs."""

    columns: tuple[tuple[str, str, bool], ...]
    """Name, declared type, and whether the column can hold nothing but integers."""
    key: tuple[str, ...]

    def to_json(self) -> str:
        return json.dumps({"columns": self.columns, "key": self.key})

    @classmethod
    def from_json(cls, text: bytes | str) -> Shape:
        of = json.loads(text)
        return cls(tuple((name, declared, integers) for name, declared, integers in of["columns"]), tuple(of["key"]))

    def table(self, name: str) -> Table:
        made = tuple(column(*of[:2], integers=of[2], key=of[0] in self.key) for of in self.columns)
        return Table(SCHEMA, name, made, self.key)


_COLLATIONS: Final = frozenset((b"BINARY", b"NOCASE", b"RTRIM"))


@dataclass(frozen=True, slots=True)
class Found:
    """Is a table, or something of that name, in the file."""

    name: str
    kind: str
    shape: Shape
    strict: bool = False
    nullable: tuple[str, ...] = ()
    """Columns of the key that may be NULL."""
    collations: Mapping[str, str] | None = None
    """Of the key's columns, in the order of its index."""
    unique: tuple[Unique, ...] = ()
    """The other indexes that are unique."""
    defaults: Mapping[str, str] = field(default_factory=dict)
    """What REPLACE puts in place of NULL, as a literal of SQL, by column."""
    computed: tuple[str, ...] = ()
    """Columns whose default is no literal: what REPLACE puts there is not known before."""
    generated: frozenset[str] = frozenset()
    """Columns that no statement sets."""
    numbers: tuple[str, ...] = ()
    """Columns of the key that hold numbers, declared ANY in a STRICT table, where 1 and '1' are two values."""
    mixed: tuple[str, ...] = ()
    """Columns of the key that hold texts and blobs and are declared to hold blobs, or may: only an index tells soon."""
    ignoring: tuple[str, ...] = ()
    """Triggers of the application that may end a statement's others: RAISE(IGNORE) after a row was changed."""
    writing: tuple[str, ...] = ()
    """Triggers of the application that write what is unique in their own table."""
    foreign: tuple[tuple[str, str], ...] = ()
    """Indexes in the order of a collation that the application brings, each with it."""
    schema: str = SCHEMA

    @property
    def qualified(self) -> str:
        return f"{SCHEMA}.{self.name}"

    @property
    def sql(self) -> str:
        return quoted(self.name)

    @property
    def table(self) -> Table:
        return self.shape.table(self.name)

    def is_bytewise(self, name: str) -> bool:
        """Whether the key's index takes no other values of a column for equal than those of the same bytes."""
        return (self.collations or {}).get(name, "BINARY") == "BINARY"


def refuse_library() -> Iterator[OperatorError]:
    """Give why the library that Python has cannot be used."""
    if sqlite3.sqlite_version_info < OLDEST:
        yield OperatorError(
            f"Python's SQLite is {sqlite3.sqlite_version}, and {'.'.join(map(str, OLDEST))} is needed",
            hint="a Python built with a newer SQLite; the application may keep an older one",
        )


def refuse_file(session: Session) -> Iterator[OperatorError]:
    """Give why a file cannot be captured."""
    ((mode,),) = session.rows("reading the journal's mode", "PRAGMA journal_mode")
    if mode != b"wal":
        yield OperatorError(
            f"SQLite file {session.path} is in journal mode {mode.decode()}: the application and the connector would "
            "lock each other out",
            hint=f"sqlite3 {quote(str(session.path))} 'PRAGMA journal_mode = WAL'",
        )
    ((encoding,),) = session.rows("reading the encoding", "PRAGMA encoding")
    if encoding != b"UTF-8":
        yield OperatorError(
            f"SQLite file {session.path} holds texts in {encoding.decode()}", hint="copy it into a file of UTF-8"
        )


class Catalog:
    """Answers from one session, which stays the caller's."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def captured(
        self,
        patterns: Sequence[str],
        keys: Mapping[str, Sequence[str]],
        leave: captured_tables.Leave = captured_tables.refuse,
    ) -> tuple[Found, ...]:
        """Return the tables the patterns name, sorted by name; `leave` is called for those that cannot be captured."""
        for name in keys:
            raise captured_tables.no_key_of_its_own(name)
        return tuple(captured_tables.chosen(self._matched(patterns), refusals, leave))

    def brought(self, patterns: Sequence[str]) -> list[str]:
        """Return the tables of these names, whether or not they can be captured."""
        return [
            found.qualified for found in self._matched(patterns) if not isinstance(found, captured_tables.Unmatched)
        ]

    def refusals(
        self,
        patterns: Sequence[str],
        keys: Mapping[str, Sequence[str]] = MappingProxyType({}),  # noqa: ARG002 - `captured` refuses them
    ) -> Iterator[tuple[str, OperatorError | None]]:
        """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""
        return captured_tables.refusals(self._matched(patterns), refusals)

    def find(self, name: str) -> Found | None:
        """Return a table as it is now; None: there is none."""
        return next((self._describe(*of) for of in self._listed() if of[0] == name), None)

    def _matched(self, patterns: Sequence[str]) -> Iterator[Found | captured_tables.Unmatched]:
        everything = [self._describe(*of) for of in self._listed()]

        def nothing(pattern: str) -> captured_tables.Unmatched:
            names = [found.qualified for found in everything if found.kind == "table"]
            return captured_tables.Unmatched(pattern, partial(captured_tables.nothing_matches, pattern, names))

        return captured_tables.matched(patterns, everything, lambda found: found.kind == "table", nothing)

    def _listed(self) -> Iterator[tuple[str, str, bool, bool]]:
        for schema, name, kind, _columns, without_rowid, strict in self._ask("PRAGMA table_list"):
            shown = name.decode()
            if schema == b"main" and not shown.startswith("sqlite_") and _OURS(shown) is None:
                yield shown, kind.decode(), bool(without_rowid), bool(strict)

    def _ask(self, statement: str) -> list[tuple[Any, ...]]:
        return self._session.rows("reading the schema", statement)

    def _describe(self, name: str, kind: str, without_rowid: bool, strict: bool) -> Found:  # noqa: FBT001 - a row
        columns = (
            [of for of in self._ask(f"PRAGMA table_xinfo({quoted(name)})") if of[6] != 1] if kind == "table" else []
        )
        key = tuple(of[1].decode() for of in sorted(columns, key=lambda of: of[5]) if of[5])
        indexes = self._ask(f"PRAGMA index_list({quoted(name)})") if kind == "table" else []
        own = [of for of in indexes if of[3] == b"pk"]
        defaults = {of[1].decode(): constant(of[4].decode()) for of in columns if of[3] and of[4] is not None}
        is_rowid = bool(key) and not own and not without_rowid
        shape = Shape(
            tuple(
                (
                    of[1].decode(),
                    "" if strict and of[2].upper() == b"ANY" else of[2].decode(),  # elsewhere it makes numbers of texts
                    (is_rowid and bool(of[5])) or (strict and "INT" in of[2].decode().upper()),
                )
                for of in columns
            ),
            key,
        )
        declared = {of: type_ for of, type_, _ in shape.columns}
        unique = tuple(
            Unique(of[1].decode(), {} if of[4] else self._collations_of(of[1].decode()))
            for of in indexes
            if of[2] and of[3] != b"pk"
        )
        collations = self._collations_of(own[0][1].decode()) if own else None
        shared = {of for one in unique for of in one.collations}
        shared |= {of for of, collation in (collations or {}).items() if collation != "BINARY"}
        made = self._triggers(name)
        return Found(
            name,
            kind,
            shape,
            strict=strict,
            nullable=tuple(of[1].decode() for of in columns if of[5] and not (of[3] or without_rowid or is_rowid)),
            collations=collations,
            unique=unique,
            defaults={of: default for of, default in defaults.items() if default is not None},
            computed=tuple(of for of, default in defaults.items() if default is None),
            generated=frozenset(of[1].decode() for of in columns if of[6]),
            numbers=tuple(of for of in key if strict and not declared[of] and self._holds(name, of, "< ''")),
            mixed=tuple(
                of
                for of in key
                if not strict
                and column(of, declared[of], integers=False).kind.name == "bytes"
                and (of != key[0] or all(self._holds(name, of, how) for how in (">= '' AND {0} < x''", ">= x''")))
            ),
            ignoring=tuple(of for of, sql in made if _IGNORES(sql) and not _BEFORE(sql)),
            writing=tuple(of for of, sql in made if writes(sql, name, shared)),
            foreign=self._foreign(of[1].decode() for of in indexes),
        )

    def _foreign(self, indexes: Iterable[str]) -> tuple[tuple[str, str], ...]:
        parts = [
            (index, of[4]) for index in indexes for of in self._ask(f"PRAGMA index_xinfo({quoted(index)})") if of[5]
        ]
        return tuple((index, collation.decode()) for index, collation in parts if collation.upper() not in _COLLATIONS)

    def _holds(self, table: str, column: str, how: str) -> bool:
        """Whether a column of the key holds values of a class; SQLite sorts numbers before texts before blobs."""
        of = f"{quoted(column)} COLLATE BINARY"
        return bool(self._ask(f"SELECT 1 FROM {quoted(table)} WHERE {of} {how.format(of)} LIMIT 1"))

    def _triggers(self, table: str) -> list[tuple[str, str]]:
        """Return the names and statements of the triggers on a table, without texts in them."""
        rows = self._session.rows(
            "reading the schema",
            "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE ORDER BY name",
            (table,),
        )
        return [(name.decode(), _TEXTS("", statement.decode(errors="replace"))) for name, statement in rows]

    def _collations_of(self, index: str) -> dict[str, str]:
        found = [of for of in self._ask(f"PRAGMA index_xinfo({quoted(index)})") if of[5]]
        return {} if any(of[2] is None for of in found) else {of[2].decode(): of[4].decode() for of in found}


def constant(default: str) -> str | None:
    """Return a column's default as a literal that means the same in any place; None: it is an expression.

    After DEFAULT a name is a text; elsewhere it is a column, which a trigger looks for when the application writes.
    """
    if _LITERAL(default):
        return default
    name = _NAME(default)
    if name is None:
        return None
    bare, double, back, bracketed = name.groups()
    if bare is not None:
        return _TRUTHS.get(bare.upper(), literal(bare))
    if double is not None:
        return literal(double.replace('""', '"'))
    return literal(back.replace("``", "`") if back is not None else bracketed)


def writes(trigger: str, table: str, unique: Collection[str]) -> bool:
    """Whether a trigger, without its texts, seems to write what is unique in a table."""
    if not unique:
        return False
    of = rf"""["`\[]?{re.escape(table)}["`\]]?(?![\w$])"""
    columns = "|".join(rf"""["`\[]?(?<![\w$]){re.escape(column)}["`\]]?(?![\w$])""" for column in unique)
    found = re.compile(
        rf"\bINTO\s+(main\.)?{of}|\bUPDATE\s+(OR\s+\w+\s+)?(main\.)?{of}\s+SET\b((?!\bWHERE\b)[^;])*({columns})\s*[=,)]",
        re.IGNORECASE,
    )
    return found.search(trigger) is not None


def refusals(found: Found) -> Iterator[OperatorError]:
    """Give why something that exists cannot be captured."""
    name = found.qualified
    if found.kind != "table":
        yield OperatorError(
            f"{name} is {_KINDS.get(found.kind, found.kind)}: it has no triggers", hint="name its tables"
        )
        return
    if not found.shape.key:
        yield OperatorError(
            f"table {name} has no primary key: its rows cannot be told apart in a topic",
            hint="make it again with one: https://www.sqlite.org/lang_altertable.html#otheralter; or leave it out",
        )
    if len(found.shape.key) > MOST_KEY_COLUMNS:
        yield OperatorError(
            f"the primary key of table {name} has more than {MOST_KEY_COLUMNS} columns", hint="leave it out"
        )
    for index, collation in found.foreign:
        yield LeftOutError(
            f"index {index} of table {name} is in the order of {collation}, a collation of the application's own: "
            "without it SQLite does not read the table",
            hint="give it an order of SQLite's own (BINARY, NOCASE, RTRIM); what it is made of: "
            f"SELECT sql FROM sqlite_schema WHERE tbl_name = {literal(found.name)}; or leave the table out",
        )
    declared = {of: type_ for of, type_, _ in found.shape.columns}
    for key in found.numbers:
        yield LeftOutError(
            f"key column {key} of table {name} is declared ANY and holds numbers, which a topic does not tell from "
            "texts of the same digits",
            hint=f"UPDATE {found.sql} SET {quoted(key)} = CAST({quoted(key)} AS TEXT) "
            f"WHERE typeof({quoted(key)}) <> 'blob'; or declare it INTEGER or TEXT; or leave the table out",
        )
    for key in found.shape.key:
        if affinity(declared[key]) == "real" or (not declared[key] and not found.strict):
            what = "numbers with a fraction" if declared[key] else "values of any kind"
            yield OperatorError(
                f"key column {key} of table {name} is declared to hold {what}, whose texts do not tell rows apart",
                hint="declare it INTEGER or TEXT; or leave the table out",
            )


def key_columns(table: Table) -> tuple[Column, ...]:
    """Return the key's columns in key order."""
    return tuple(table.columns[index] for index in table.key_indexes)
