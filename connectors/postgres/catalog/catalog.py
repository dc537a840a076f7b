"""Asks PostgreSQL's catalog about the server, the captured tables, their types. Reads only."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import compress
from types import MappingProxyType
from typing import Any, Final, Protocol

import psycopg2
import psycopg2.extensions
from psycopg2 import errors, sql

from cdc.config.findings import Finding
from cdc.config.table_patterns import is_pattern
from cdc.model.change import Column, Table
from cdc.model.errors import OperatorError, RetryableError, raise_first
from cdc.model.table_schema import Description
from connectors import captured_tables
from connectors.postgres.catalog import capturable, identities, queries
from connectors.postgres.catalog.capturable import FoundRelation
from connectors.postgres.lsn import lsn_number
from connectors.postgres.pgoutput.changes import Today, table_of, tells_apart
from connectors.postgres.pgoutput.messages import Relation, RelationColumn
from connectors.postgres.session import DRIVER_ERRORS, identifier, is_standby, key_encoding, translate
from connectors.postgres.values.mapping import TypeInfo, column, printed_as

OLDEST: Final = 140000


@dataclass(frozen=True, slots=True)
class Captured:
    """Holds a captured table and the number the log calls it by."""

    oid: int
    table: Table
    partitioned: bool
    warning: Finding | None = None
    """What is to be said of it, though it can be captured."""


@dataclass(frozen=True, slots=True)
class CurrentTable:
    """Describes a table as the catalog has it now."""

    columns: Mapping[str, Column]
    partitioned: bool


class Writable(Protocol):
    """Takes a COPY's rows from psycopg2: each is one call."""

    def write(self, line: bytes, /) -> object:
        """Take one row."""


_FILLED: Final = "SELECT oid::int8, pg_relation_size(oid) > 0 FROM unnest(%s::oid[]) AS each(oid)"
_SIZE_MS: Final = 500
_LOOKS: Final = 10
"""So often tables are looked for again, where one of them was dropped meanwhile: it is left out then."""


class Catalog:
    """Answers from one SQL connection, which stays the caller's."""

    def __init__(
        self, connection: psycopg2.extensions.connection, publication: str = "", *, by_triggers: bool = False
    ) -> None:
        """`publication` decides which columns events have: one of PostgreSQL 18 may carry generated ones.

        `by_triggers`: what can be captured is what triggers can tell of, and not what the log can.
        """
        self._connection = connection
        self._by_triggers = by_triggers
        self._judge = capturable.refusals_by_triggers if by_triggers else capturable.refusals
        self._publication = publication
        self._types: dict[int, TypeInfo] = {}
        self._had_rows: dict[tuple[int, str], bool] = {}
        self._seen_at = 0
        """Where the log ended before `_seen` was."""
        self._seen: Mapping[int, Today] = {}

    def rows(self, doing: str, statement: Any, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - psycopg2.sql or str
        """Run one statement. Raises what `session.translate` makes of an error, with `doing` in front."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return cursor.fetchall() if cursor.description else []
        except DRIVER_ERRORS as exc:
            raise translate(exc, doing, standby=is_standby(self._connection)) from exc

    def answer_of(self, doing: str, statement: Any) -> list[tuple[str, int, int, int]]:  # noqa: ANN401 - as for `rows`
        """Run a statement; return of each column of its answer its name, its table's oid, its attnum and its type."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement)
                of = cursor.description or ()
                return [(c.name, c.table_oid or 0, c.table_column or 0, c.type_code) for c in of]
        except DRIVER_ERRORS as exc:
            raise translate(exc, doing, standby=is_standby(self._connection)) from exc

    def marks(self, oid: int) -> tuple[str, str] | None:
        """Return a relation's marks, as its table's description has them: see `Today`."""
        now = self._today([oid]).get(oid)
        return None if now is None else now.marks

    def had_rows(self, attached: Iterable[tuple[int, str]]) -> set[int]:
        """Return which partitions had rows, or the room of rows, when they were first asked for in this session.

        Each is an oid, and what tells one time of being attached from another. It is asked for once.
        """
        asked = set(attached)
        if new := {oid for oid, _ in asked - self._had_rows.keys()}:
            filled = self._filled(new)
            self._had_rows |= {each: each[0] in filled for each in asked if each[0] in new}
        return {each[0] for each in asked if self._had_rows[each]}

    def _filled(self, oids: set[int]) -> set[int]:
        """Return those that have the room of rows, or all where one is locked: its size waits for who has locked it."""
        self.rows("beginning", "BEGIN")
        try:
            self.rows("limiting waits for locks", f"SET LOCAL lock_timeout = '{_SIZE_MS}ms'")
            return {oid for oid, is_filled in self.rows("asking for sizes", _FILLED, ([*oids],)) if is_filled}
        except RetryableError as exc:
            if not isinstance(exc.__cause__, errors.LockNotAvailable):
                raise
            return oids
        finally:
            self.rows("rolling back", "ROLLBACK")

    def copy(self, doing: str, statement: sql.Composable, into: Writable) -> None:
        """Run one COPY … TO STDOUT. Raises as `rows` does.

        A SQL_ASCII database's bytes come as they are: the server would check them for a UTF-8 client, and refuse the
        whole table for one row.
        """
        if key_encoding(self._connection) == "SQL_ASCII":
            statement = sql.SQL("{} WITH (ENCODING 'SQL_ASCII')").format(statement)
        try:
            with self._connection.cursor() as cursor:
                cursor.copy_expert(statement, into)
        except DRIVER_ERRORS as exc:
            raise translate(exc, doing) from exc

    def text(self, statement: sql.Composable) -> str:
        """Return a statement as SQL."""
        return statement.as_string(self._connection)

    def captured(
        self,
        patterns: Sequence[str],
        keys: Mapping[str, Sequence[str]] = MappingProxyType({}),
        leave: captured_tables.Leave = captured_tables.refuse,
    ) -> tuple[Captured, ...]:
        """Return the tables the patterns name, sorted by name; `keys` has those the configuration gives by table.

        `leave` is called for those that cannot be captured.
        """
        for _ in range(_LOOKS):
            self._seen_at = self.end()
            chosen = captured_tables.chosen(self._matched(patterns), self._judge, leave)
            self._seen = self._today([found.oid for found in chosen])
            if all(found.oid in self._seen for found in chosen):  # none was dropped between the two statements
                break
        return self._describe(chosen, self._seen, keys, leave)

    def brought(self, patterns: Sequence[str]) -> list[str]:
        """Return the tables of these names, whether or not they can be captured: one statement, whatever there is."""
        return [
            found.qualified for found in self._matched(patterns) if not isinstance(found, captured_tables.Unmatched)
        ]

    def end(self) -> int:
        """Return where the log ends, which may be inside a record's padding or a page's header."""
        ((text,),) = self.rows("reading the log's end", "SELECT pg_current_wal_insert_lsn()::text")
        return lsn_number(text)

    def refusals(
        self, patterns: Sequence[str], keys: Mapping[str, Sequence[str]] = MappingProxyType({})
    ) -> Iterator[tuple[str, OperatorError | None]]:
        """Give every pattern or table, and each reason why it cannot be captured; None where there is none."""

        def judge(found: FoundRelation) -> Iterator[OperatorError]:
            yield from self._judge(found)
            if found.kind in "rp":
                try:
                    self._describe([found], self._today([found.oid]), keys)
                except OperatorError as exc:
                    yield exc

        return captured_tables.refusals(self._matched(patterns), judge)

    def _matched(self, patterns: Sequence[str]) -> Iterator[FoundRelation | captured_tables.Unmatched]:
        everything = [FoundRelation(*row) for row in self.rows("reading the catalog", queries.RELATIONS)]

        def nothing(pattern: str) -> captured_tables.Unmatched:
            there = [] if is_pattern(pattern) else self.rows("reading the catalog", queries.NAMED, (pattern,))
            names = [found.qualified for found in everything if found.kind in "rp"]
            return captured_tables.Unmatched(
                pattern,
                partial(capturable.no_table, pattern, *there[0])
                if there
                else partial(captured_tables.nothing_matches, pattern, names),
            )

        return captured_tables.matched(patterns, everything, lambda found: found.kind in "rp", nothing)

    def find(self, schema: str, name: str, keys: Mapping[str, Sequence[str]]) -> Captured | None:
        """Return a table as it is now; None if there is none. Raises OperatorError if it can no longer be captured."""
        rows = self.rows("reading the catalog", queries.RELATIONS)
        found = [f for f in (FoundRelation(*row) for row in rows) if (f.schema, f.name) == (schema, name)]
        for one in found:
            raise_first(self._judge(one))
        return next(iter(self._describe(found, self._today([f.oid for f in found]), keys)), None)

    def _describe(
        self,
        found: Sequence[FoundRelation],
        today: Mapping[int, Today],
        keys: Mapping[str, Sequence[str]],
        leave: captured_tables.Leave = captured_tables.refuse,
    ) -> tuple[Captured, ...]:
        captured = []
        parts = identities.identities(self.rows, [f.oid for f in found])
        generated = self._carries_generated_columns()
        for f in found:
            if f.oid not in today:  # it has just been dropped
                continue
            try:
                captured.append(self._describe_one(f, today[f.oid], keys.get(f.qualified, ()), parts[f.oid], generated))
            except OperatorError as exc:
                leave(f, exc)
        return tuple(captured)

    def _describe_one(
        self,
        found: FoundRelation,
        now: Today,
        key: Sequence[str],
        parts: Sequence[identities.Identity],
        generated: bool,  # noqa: FBT001
    ) -> Captured:
        if self._by_triggers:
            return self._describe_for_triggers(found, now, key, parts)
        warning = self._must_tell_rows_apart(found, now, key) if key else None
        if not key and not now.primary_key and found.identity != "i":
            raise captured_tables.no_primary_key(found, [c.name for c in now.columns])
        relation = Relation(found.oid, found.schema, found.name, found.identity, now.columns)
        table = table_of(relation, self._types, now, wanted=key)
        if found.identity == "i":  # its columns are NOT NULL, but rows from before that may have nulls
            captured_tables.check_key(found, table.key, table.key, now.nullable, partial(_not_null, found))
        raise_first(identities.refusals(table, parts, generated=generated))
        return Captured(found.oid, table, found.kind == "p", warning)

    def _describe_for_triggers(
        self, found: FoundRelation, now: Today, key: Sequence[str], parts: Sequence[identities.Identity]
    ) -> Captured:
        if key:
            raise captured_tables.no_key_of_its_own(found.qualified)
        if not now.primary_key:
            raise captured_tables.no_primary_key_for_triggers(found)
        relation = Relation(found.oid, found.schema, found.name, "d", _identified(now.columns, now.primary_key))
        table = table_of(relation, self._types, replace(now, identity_key=now.primary_key))
        raise_first(identities.refusals_by_triggers(table, parts))
        return Captured(found.oid, table, found.kind == "p")

    def _must_tell_rows_apart(self, found: FoundRelation, now: Today, key: Sequence[str]) -> Finding | None:
        """Raise OperatorError unless the configuration's `key` is there, never null, and in the log of old rows.

        Returns what is to be said of it.
        """
        relation = Relation(found.oid, found.schema, found.name, found.identity, now.columns)
        whole = found.identity == "f"
        parts = self.rows("reading the catalog", queries.LEAVES, (found.oid,)) if whole and found.kind == "p" else []
        without = [identifier(*p) for p in parts] or ([] if tells_apart(relation, key) else [found.sql])
        full = [f"ALTER TABLE {name} REPLICA IDENTITY FULL" for name in without]
        captured_tables.check_key(
            found, key, [c.name for c in now.columns], now.nullable,
            lambda null: "; ".join([_not_null(found, null), *full]),
        )  # fmt: skip
        if full:
            shown = ", ".join(key)
            raise OperatorError(
                f"table {found.qualified}: the log does not carry its key ({shown}) of the old row of an update",
                hint="; ".join(full),
            )
        ((unique,),) = self.rows("reading the catalog", queries.UNIQUE, (found.oid, list(key)))
        return None if unique else captured_tables.not_unique(found.qualified, key)

    def table(
        self, relation: Relation, known: Sequence[Description], wanted: Sequence[str], *, commit: int | None
    ) -> Table:
        """Return the table a relation message describes; types it has not met are looked up.

        `commit` is the LSN of the message's transaction, if it is in one. For a transaction from before the session,
        what the session saw at its start is late enough, and is not looked up again.
        """
        if commit is None or commit >= self._seen_at:
            self._seen = {}
        today = self._seen.get(relation.id) or self._today([relation.id]).get(relation.id)
        self.learn_types(c.type_oid for c in relation.columns)
        return table_of(relation, self._types, today, known=known, wanted=wanted)

    def names(self, oids: Sequence[int]) -> dict[int, tuple[str, str]]:
        """Return schema and name that relations have now; one that was dropped is not there."""
        statement = (
            "SELECT c.oid::int8, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE c.oid = ANY (%s::oid[])"
        )
        return {oid: (schema, name) for oid, schema, name in self.rows("reading names", statement, (list(oids),))}

    def places(self, oids: Sequence[int]) -> dict[int, tuple[tuple[str, str], tuple[str, str] | None]]:
        """Return, as `names` does, the name of each, and that of the partitioned table that it is a part of."""
        rows = self.rows("reading names", queries.PLACES, (list(oids),))
        return {oid: ((s, n), None if root is None else (of, root)) for oid, s, n, of, root in rows}

    def relation(self, schema: str, name: str) -> tuple[int, bool] | None:
        """Return the number of the table that has this name now, and whether it is partitioned; None: there is none."""
        statement = (
            "SELECT c.oid::int8, c.relkind = 'p' FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s AND c.relkind IN ('r', 'p')"
        )
        for oid, partitioned in self.rows("reading the catalog", statement, (schema, name)):
            return oid, partitioned
        return None

    def now(self, schema: str, name: str) -> CurrentTable | None:
        """Describe what has this name now, if it is a table."""
        there = self.relation(schema, name)
        today = self._today([there[0]]) if there is not None else {}
        if there is None or there[0] not in today:
            return None
        made = [column(c.name, c.type_oid, c.typmod, self._types) for c in today[there[0]].columns]
        return CurrentTable({c.name: c for c in made}, there[1])

    def exists(self, schema: str, name: str) -> bool:
        """Tell whether a relation has this name now."""
        statement = (
            "SELECT EXISTS (SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
            " WHERE n.nspname = %s AND c.relname = %s)"
        )
        ((there,),) = self.rows("reading names", statement, (schema, name))
        return bool(there)

    def _carries_generated_columns(self) -> bool:
        ((carries,),) = self.rows("reading the publication", queries.GENERATED_COLUMNS, (self._publication,))
        return bool(carries)

    def _today(self, oids: Sequence[int]) -> dict[int, Today]:
        """Look up what relations are now; types of their columns are learnt."""
        found = {}
        rows = self.rows("reading the catalog", queries.TODAY, (list(oids), self._carries_generated_columns()))
        for oid, identity, primary_key, identity_key, unique, files, made, *columns in rows:
            names, types, typmods, in_identity, filled, not_null, loose, collations = (of or () for of in columns)
            found[oid] = Today(
                identity=identity,
                columns=tuple(map(RelationColumn, names, types, typmods, in_identity)),
                primary_key=tuple(primary_key or ()),
                identity_key=tuple(identity_key or ()),
                unique=tuple(map(frozenset, unique or ())),
                marks=(files, self._made(oid, made or "")),
                filled=frozenset(compress(names, filled)),
                nullable=frozenset(names) - set(compress(names, not_null)),
                loose=frozenset(compress(names, loose)),
                collations=dict(zip(names, collations, strict=True)),
            )
        self.learn_types(c.type_oid for today in found.values() for c in today.columns)
        return found

    def _made(self, oid: int, made: str) -> str:
        """Return one word for the transactions that made a table's columns, and for which table these are of.

        Of two that one transaction has made, as a restore does, these are the same. Triggers are of a table by its oid.
        """
        text = made if self._by_triggers else f"{oid} {made}"
        return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()

    def printed(self, columns: Iterable[tuple[int, int]]) -> dict[tuple[int, int], str]:
        """Return, by type and modifier, a word that is the same for two types if they print the same values."""
        wanted = set(columns)
        types = self.learn_types(oid for oid, _ in wanted)
        return {(oid, typmod): printed_as(oid, typmod, types) for oid, typmod in wanted}

    def learn_types(self, oids: Iterable[int]) -> Mapping[int, TypeInfo]:
        unknown = sorted(set(oids) - self._types.keys())
        if unknown:
            for row in self.rows("reading pg_type", queries.TYPES, (unknown,)):
                info = TypeInfo(*row)
                self._types[info.oid] = info
        return self._types


def _not_null(found: FoundRelation, names: Sequence[str]) -> str:
    return "; ".join(f"ALTER TABLE {found.sql} ALTER COLUMN {identifier(name)} SET NOT NULL" for name in names)


def _identified(columns: Sequence[RelationColumn], key: Sequence[str]) -> tuple[RelationColumn, ...]:
    """Return columns of which those of the primary key tell old rows apart."""
    return tuple(column._replace(in_identity=column.name in key) for column in columns)
