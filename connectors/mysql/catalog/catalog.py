"""Asks information_schema about the captured tables. Reads only."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from types import MappingProxyType
from typing import Final

from cdc.config.findings import Finding
from cdc.config.table_patterns import LEFT_OUT, is_pattern, matches
from cdc.model.change import Column, Table
from cdc.model.errors import ChangedError, LeftOutError, OperatorError, raise_first
from cdc.model.table_schema import Description
from cdc.rules.row_filter import equality_of
from connectors import captured_tables
from connectors.mysql import session
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.catalog import for_triggers
from connectors.mysql.catalog.foreign_keys import ForeignKey, written_in
from connectors.mysql.catalog.names import as_compared
from connectors.mysql.catalog.reach import Reach
from connectors.mysql.values import mapping

_ROW_END: Final = b"ROW END"
_OF_VERSIONS: Final = (b"ROW START", _ROW_END)
"""How the columns of a versioned table (MariaDB) are made, where its definition names them."""
_GENERATED: Final = ("VIRTUAL GENERATED", "STORED GENERATED")
_SYSTEM: Final = ("mysql", "sys", "information_schema", "performance_schema")
_LATELY_S: Final = 5
"""How long what was done to a table may be a part of something: it may have no key for a moment."""
_SETTLE_S: Final = 1.0
_TABLES: Final = f"""
SELECT t.TABLE_SCHEMA, t.TABLE_NAME, t.TABLE_TYPE, COALESCE(t.ENGINE, ''), COALESCE(t.TABLE_ROWS, 0),
       COALESCE(e.TRANSACTIONS, 'NO'), COALESCE(t.CREATE_TIME, ''), COALESCE(t.CREATE_OPTIONS, ''),
       COALESCE(t.CREATE_TIME > NOW() - INTERVAL {_LATELY_S} SECOND, 0)
FROM information_schema.TABLES t LEFT JOIN information_schema.ENGINES e ON e.ENGINE = t.ENGINE
WHERE t.TABLE_SCHEMA = %s AND LEFT(COALESCE(t.TABLE_COMMENT, ''), 25) <> 'cdc: changes of connector'
"""  # noqa: S608 - a number of ours
_COLUMNS: Final = """
SELECT COLUMN_NAME, COLUMN_TYPE, CHARACTER_SET_NAME, IS_NULLABLE, EXTRA, COLUMN_DEFAULT, GENERATION_EXPRESSION,
       COLLATION_NAME
FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s ORDER BY ORDINAL_POSITION
"""
_ALL_COLUMNS: Final = "SELECT TABLE_NAME, COLUMN_NAME FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s"
_KEY: Final = """
SELECT COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND INDEX_NAME = 'PRIMARY' ORDER BY SEQ_IN_INDEX
"""
_UNIQUE: Final = """
SELECT INDEX_NAME, COLUMN_NAME FROM information_schema.STATISTICS
WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND NON_UNIQUE = 0
"""
_NAMES: Final = "SELECT TABLE_SCHEMA, TABLE_NAME FROM information_schema.TABLES"
"""Of which the servers tell without opening a table: of all else they open each, which takes minutes of many."""
_OF_NAME: Final = "AND t.TABLE_NAME = %s"
_FEW: Final = 4
"""Tables are asked for one by one where their database has more than so many times as many."""
_OPENED_S: Final = 3.0
"""How long a table may be without an engine: while DDL is at it, MariaDB's catalog says nothing of it but its name."""
_PAUSE_S: Final = 0.1
_GONE: Final = (1049, 1146)
"""Those for a database and a table that do not exist."""
_NO_COLUMN: Final = 1054
"""The servers' number for a column that does not exist."""
_DENIED: Final = (1044, 1142)
"""Those for a database and a table that the user has no right to."""
_BASE: Final = frozenset({"BASE TABLE", "SYSTEM VERSIONED"})


@dataclass(frozen=True, slots=True)
class Found:
    """Is a row of information_schema.TABLES."""

    schema: str
    name: str
    type: str
    engine: str
    rows: int
    """About how many."""
    transactional: bool
    made_at: str
    """When the table was made, altered, truncated or swapped for another, in seconds; empty where it is not told."""
    partitioned: bool = False
    lately: bool = False
    """That was made a few seconds ago: more may be done to it at once."""
    hint: str = ""
    """Of a table that may not be read: what helps."""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return f"{mapping.quoted_name(self.schema)}.{mapping.quoted_name(self.name)}"


@dataclass(frozen=True, slots=True)
class Captured:
    """Holds a captured table and what reading it by SQL needs."""

    table: Table
    columns: tuple[TableColumn, ...]
    rows: int
    """About how many."""
    filled: frozenset[str] = frozenset()
    """Columns in which rows older than they are have a value."""
    row_end: str | None = None
    """The column that says until when a row was true, where the definition of a versioned table names it (MariaDB)."""
    key_wanted: tuple[str, ...] = ()
    """The configuration's key, where it gives one."""
    generated: frozenset[str] = frozenset()
    """Columns that the server computes."""
    warning: Finding | None = None
    """What is to be said of it, though it can be captured."""


class Catalog:
    """Answers from one SQL connection, which stays the caller's."""

    def __init__(self, connection: session.Connection, *, by_triggers: bool = False) -> None:
        """`by_triggers`: what can be captured is what triggers can tell of, and not what the log can."""
        self._connection = connection
        self._by_triggers = by_triggers

    def captured(
        self,
        patterns: Sequence[str],
        keys: Mapping[str, Sequence[str]] = MappingProxyType({}),
        leave: captured_tables.Leave = captured_tables.refuse,
    ) -> tuple[Captured, ...]:
        """Return the tables the patterns name, sorted by name. `leave` is called for those that cannot be captured."""
        until_s = time.monotonic() + _LATELY_S
        while True:
            left: list[tuple[captured_tables.Qualified, OperatorError]] = []
            captured = list(self._captured(patterns, keys, lambda *of, left=left: left.append(of)))
            if not left or time.monotonic() > until_s or not self._any_lately([found.qualified for found, _ in left]):
                break
            time.sleep(_SETTLE_S)  # a key is often dropped and made again by two statements
        for found, exc in left:
            leave(found, exc)
        return tuple(captured)

    def _any_lately(self, names: Sequence[str]) -> bool:
        """Tell whether one of these tables was made a few seconds ago, if only since the look at it has begun."""
        return any(found.lately for found in self._named_by(names) if found.qualified in names)

    def _captured(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]], leave: captured_tables.Leave
    ) -> Iterator[Captured]:
        for found in captured_tables.chosen(self._matched(patterns), self._refusals, leave):
            try:
                yield self.describe(found, self._key_of(found, keys))
            except OperatorError as exc:
                leave(found, exc)

    def brought(self, patterns: Sequence[str]) -> list[str]:
        """Return the tables of these names, whether or not they can be captured."""
        return [
            found.qualified for found in self._matched(patterns) if not isinstance(found, captured_tables.Unmatched)
        ]

    def refusals(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Iterator[tuple[str, OperatorError | None]]:
        """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""

        def judge(found: Found) -> Iterator[OperatorError]:
            yield from self._refusals(found)
            if found.type in _BASE:
                try:
                    self.describe(found, self._key_of(found, keys))
                except OperatorError as exc:
                    yield exc

        return captured_tables.refusals(self._matched(patterns), judge)

    def _matched(self, patterns: Sequence[str]) -> Iterator[Found | captured_tables.Unmatched]:
        def nothing(pattern: str) -> Found | captured_tables.Unmatched:
            names = [f"{schema}.{name}" for schema, name in self._names()]
            meant = [name for name in names if name not in patterns]
            hidden = None if is_pattern(pattern) else self._hidden(pattern, meant)
            return hidden or captured_tables.Unmatched(pattern, partial(_nothing_matches, pattern, names))

        everything, compared = tuple(self._named_by(patterns)), partial(as_compared, folds=self.folds)
        return captured_tables.matched(patterns, everything, lambda found: found.type in _BASE, nothing, compared)

    def _named_by(self, items: Iterable[str]) -> Iterator[Found]:
        """Yield the tables that items of `tables` name, also those that others of them leave out."""
        wanted = {as_compared(item, folds=self.folds) for item in items if not item.startswith(LEFT_OUT)}
        patterns = [*filter(is_pattern, wanted)]
        there: dict[str, int] = {}
        named: dict[str, set[str]] = {}
        for schema, name in self._names():
            there[schema] = there.get(schema, 0) + 1
            qualified = as_compared(f"{schema}.{name}", folds=self.folds)
            if qualified in wanted or any(matches(pattern, qualified) for pattern in patterns):
                named.setdefault(schema, set()).add(name)
        for schema, names in named.items():
            for of in sorted(names) if len(names) * _FEW < there[schema] else [None]:
                yield from (found for found in self._tables(schema, of) if found.name in names)

    def _names(self) -> list[list[str]]:
        """Return the databases and names of all tables; to a condition of MariaDB's catalog, SYS would be sys."""
        return [of for of in session.texts(self._connection, "reading the catalog", _NAMES) if of[0] not in _SYSTEM]

    def _hidden(self, named: str, names: Sequence[str]) -> Found | None:
        """Return what is known of a table that this user may not read, which the catalog does not show; None: no table.

        Where nothing of its database may be read, the servers do not tell whether there is such a table.
        """
        schema, _, name = named.partition(".")
        found = Found(schema, name, "", "", 0, transactional=True, made_at="")
        try:
            session.rows(self._connection, "asking for a table", f"SELECT 1 FROM {found.sql} LIMIT 0")  # noqa: S608
        except OperatorError as exc:
            if session.code_of_exception(exc.__cause__) in _DENIED:
                ((me,),) = session.texts(self._connection, "reading the user", "SELECT CURRENT_USER()")
                user, _, host = me.rpartition("@")
                near = captured_tables.did_you_mean(named, names)
                grant = f"GRANT SELECT ON {found.sql} TO '{user}'@'{host}'"
                return replace(found, hint=f"{grant}; or {near}" if near else grant)
        return None

    @cached_property
    def folds(self) -> bool:
        """Whether the server compares names of tables in small letters."""
        ((names,),) = session.texts(self._connection, "reading settings", "SELECT @@lower_case_table_names")
        return names != "0"

    def _key_of(self, found: Found, keys: Mapping[str, Sequence[str]]) -> Sequence[str]:
        """Return the configuration's key of a table, which may be named there in other letters."""
        if found.qualified in keys or not keys or not self.folds:
            return keys.get(found.qualified, ())
        name = as_compared(found.qualified, folds=True)
        return next((key for of, key in keys.items() if as_compared(of, folds=True) == name), ())

    def _tables(self, schema: str, name: str | None) -> list[Found]:
        """Return a database's tables, or the one of a name, as it is written, whatever the catalog takes for it."""
        more, parameters = ("", (schema,)) if name is None else (_OF_NAME, (schema, name))
        until_s = time.monotonic() + _OPENED_S
        while True:
            rows = session.texts(self._connection, "reading the catalog", _TABLES + more, parameters)
            found = [
                Found(of, name_, type_, engine, int(count), acid == "YES", made, "partitioned" in options, new == "1")
                for of, name_, type_, engine, count, acid, made, options, new in rows
                if of not in _SYSTEM
            ]
            if all(one.engine for one in found if one.type in _BASE) or time.monotonic() > until_s:
                break
            time.sleep(_PAUSE_S)  # the server could not open one of them, as happens in the midst of DDL
        exact = [f for f in found if f.schema == schema and name in (None, f.name)]
        if exact or not found or not self.folds:
            return exact
        wanted = as_compared(f"{schema}.{name}", folds=True)
        return [f for f in found if as_compared(f.qualified, folds=True) == wanted]

    def restricted(self, schema: str, name: str) -> bool | None:
        """Tell whether the user may not read all columns of a table, so that the catalog does not show all of them.

        None: there is no such table any more. The servers do not say so. But both refuse to show the definition of such
        a table, and MySQL to say of a column that it does not exist.
        """
        of = f"{mapping.quoted_name(schema)}.{mapping.quoted_name(name)}"
        for statement in (
            f"SHOW CREATE TABLE {of}",
            f"SELECT * FROM {of} LIMIT 0",  # noqa: S608 - quoted
            f"SELECT `no such column` FROM {of} LIMIT 0",  # noqa: S608
        ):
            try:
                session.rows(self._connection, "asking which columns may be read", statement)
            except OperatorError as exc:
                code = session.code_of_exception(exc.__cause__)
                if code in _GONE:
                    return None
                if code != _NO_COLUMN:
                    return True
        return False

    def columns_shown(self, tables: Iterable[Table]) -> dict[tuple[str, str], set[str]]:
        """Return the columns that the user may read of these tables, and of all others of their databases."""
        found: dict[tuple[str, str], set[str]] = {}
        for of in sorted({table.schema for table in tables}):
            for table, column in session.texts(self._connection, "reading the catalog", _ALL_COLUMNS, (of,)):
                found.setdefault((of, table), set()).add(column)
        return found

    def find(self, schema: str, name: str, keys: Mapping[str, Sequence[str]]) -> Captured | None:
        """Return a table as it is now; None if there is none. Raises OperatorError if it can no longer be captured."""
        for found in self._tables(schema, name):
            raise_first(self._refusals(found))
            return self.describe(found, self._key_of(found, keys))
        return None

    def exists(self, schema: str, name: str) -> bool:
        """Tell whether a table has this name now; a view is none, nor is a sequence."""
        return any(found.type in _BASE for found in self._tables(schema, name))

    def foreign_keys(self, table: tuple[str, str]) -> list[ForeignKey] | None:
        """Return the foreign keys that write to a table's rows; None where it is gone, or may not be read."""
        try:
            return self._foreign_keys_of(table)
        except ChangedError:
            return None

    def _foreign_keys_of(self, table: tuple[str, str]) -> list[ForeignKey] | None:
        """Return them; None where they may not be read. Raises ChangedError where the table is gone."""
        quoted = f"{mapping.quoted_name(table[0])}.{mapping.quoted_name(table[1])}"
        try:
            ((_, made, *_),) = session.texts(self._connection, "reading the catalog", f"SHOW CREATE TABLE {quoted}")
        except OperatorError as exc:
            if session.code_of_exception(exc.__cause__) in _GONE:
                raise _changed(".".join(table)) from exc
            return None
        return list(written_in(made, table))

    def reach(self, captured: Iterable[tuple[str, str]]) -> Reach:
        """Return what tells which of the captured tables hang on others."""
        return Reach(self._connection, captured)

    def describe(self, found: Found, wanted: Sequence[str]) -> Captured:
        """Describe a table with its columns and key. Raises OperatorError where it has no key."""
        parameters = (found.schema, found.name)
        told, columns = [], list[Column]()
        filled, nullable, generated = set[str](), set[str](), set[str]()
        row_end = None
        rows = session.rows(self._connection, "reading the catalog", _COLUMNS, parameters)
        for name_, type_, charset, null, extra_, default, made_of, collation_ in rows:
            name, extra = name_.decode(), extra_.decode().upper()
            one = mapping.from_catalog(
                name,
                type_.decode(),
                None if charset is None else charset.decode(),
                nullable=null == b"YES",
                visible="INVISIBLE" not in extra,
            )
            told.append(one)
            collation = None if collation_ is None else collation_.decode()
            equality = equality_of(collation)
            columns.append(replace(mapping.column(one), equality=equality, collation=collation or ""))
            if made_of in _OF_VERSIONS and one.type == table_map.LONGLONG:
                raise _versioned_by_transactions(found)
            row_end = name if made_of == _ROW_END else row_end
            if null == b"YES":
                nullable.add(name)
            if extra.startswith(_GENERATED):
                generated.add(name)
            if (default is not None and default != b"NULL") or null != b"YES" or "GENERATED" in extra:
                filled.add(name)
        primary = [name for (name,) in session.texts(self._connection, "reading the catalog", _KEY, parameters)]
        key = tuple(wanted or [name for name in primary if name != row_end])  # of which it is a part by itself
        unseen = set(primary) - {c.name for c in columns}
        hidden = told and not wanted and (unseen or not primary) and self.restricted(found.schema, found.name)
        if hidden:
            raise unreadable_key(found.qualified)  # MySQL shows such a key, MariaDB does not
        if not told or hidden is None or (unseen and not wanted):
            raise _changed(found.qualified)
        if self._by_triggers and wanted:
            raise captured_tables.no_key_of_its_own(found.qualified)
        if not key and self._by_triggers:
            raise captured_tables.no_primary_key_for_triggers(found)
        if not key:
            raise captured_tables.no_primary_key(found, [c.name for c in columns])
        warning = self._must_tell_rows_apart(found, [c.name for c in columns], nullable, wanted) if wanted else None
        columns = [replace(column, filled=column.name in filled) for column in columns]
        table = Table(found.schema, found.name, tuple(columns), key, (found.made_at,) if found.made_at else ())
        of_columns = frozenset(filled), row_end, tuple(wanted), frozenset(generated)
        return Captured(table, tuple(told), found.rows, *of_columns, warning)

    def _refusals(self, found: Found) -> Iterator[OperatorError]:
        yield from _refusals(found)
        if self._by_triggers and found.type in _BASE:
            yield from for_triggers.refusals(found, self._foreign_keys_of((found.schema, found.name)))

    def _must_tell_rows_apart(
        self, found: Found, names: Sequence[str], nullable: set[str], key: Sequence[str]
    ) -> Finding | None:
        captured_tables.check_key(
            found, key, names, nullable,
            lambda null: "; ".join(f"ALTER TABLE {found.sql} MODIFY {mapping.quoted_name(c)} … NOT NULL" for c in null),
        )  # fmt: skip
        unique: dict[str, set[str]] = {}
        for index, name in session.texts(self._connection, "reading the catalog", _UNIQUE, (found.schema, found.name)):
            unique.setdefault(index, set()).add(name)
        is_unique = any(of <= set(key) for of in unique.values())
        return None if is_unique else captured_tables.not_unique(found.qualified, key)


def _refusals(found: Found) -> Iterator[OperatorError]:
    if found.hint:
        what = f"table {found.qualified} may not be read by this user, or does not exist"
        yield LeftOutError(what, hint=found.hint)
    elif found.type not in _BASE:
        yield OperatorError(f"{found.qualified} is a view: it has no rows of its own", hint="name the tables it reads")
    elif not found.transactional:
        yield OperatorError(
            f"table {found.qualified} is of engine {found.engine}, which has no transactions: no view of it can be "
            "read, and what is rolled back around it stays",
            hint=f"ALTER TABLE {found.sql} ENGINE=InnoDB",
        )


def unreadable_key(qualified: str) -> OperatorError:
    """Return the error of a table whose rows the connector's user cannot tell apart."""
    return OperatorError(
        f"table {qualified}: its primary key has columns that the connector's user may not read",
        hint=f"GRANT SELECT on these columns; or tables: [{{table: {qualified}, key: […]}}] with columns that it may "
        "read, which tell rows apart",
    )


def _versioned_by_transactions(found: Found) -> OperatorError:
    return OperatorError(
        f"table {found.qualified} is versioned by numbers of transactions: the server logs statements in the place of "
        "its rows",
        hint="leave it out of tables; or let its ROW START and ROW END be TIMESTAMP(6), by which rows are logged",
    )


def _changed(name: str) -> ChangedError:
    return ChangedError(f"table {name} was altered, renamed or dropped while the catalog was read")


def _nothing_matches(pattern: str, names: Sequence[str]) -> OperatorError:
    near = captured_tables.did_you_mean(pattern, names, most=3)
    return OperatorError(
        f"tables: there is no table {pattern}, or it may not be read",
        hint=near or "SHOW TABLES; is SELECT granted on it to the connector's user?",
    )


def comes_back(table: Table, catalog: Callable[[], Catalog], within_s: float) -> bool:
    """Tell whether there is a table of this name again, or in a moment: what was renamed is often replaced."""
    until_s = time.monotonic() + within_s
    while not (found := catalog().exists(table.schema, table.name)) and time.monotonic() < until_s:
        time.sleep(_PAUSE_S)
    return found


def recalled(name: tuple[str, str], description: Description) -> Table:
    """Make a table of what the topics say of it: enough to delete its rows there."""
    columns = tuple(
        mapping.column(mapping.from_catalog(column, type_, mapping.charset_of(type_), nullable=True))
        for column, type_ in description.columns
    )
    return Table(*name, columns, description.key, description.marks)
