"""What PostgreSQL's catalog says: the server, the captured tables, their types. Reads only."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc.change import Table
from cdc.errors import OperatorError
from connectors.postgres.assemble import table_of
from connectors.postgres.pgoutput import Relation, RelationColumn
from connectors.postgres.session import identifier, translate
from connectors.postgres.values import TypeInfo

OLDEST: Final = 140000

_TYPES = """
WITH RECURSIVE wanted(oid) AS (
    SELECT unnest(%s::oid[])
    UNION
    SELECT needed.oid
    FROM wanted
    JOIN pg_type t ON t.oid = wanted.oid
    LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
    CROSS JOIN LATERAL (VALUES (t.typbasetype), (e.oid)) AS needed(oid)
    WHERE needed.oid <> 0
)
SELECT t.oid::int8, t.typname, n.nspname, t.typtype, t.typbasetype::int8, t.typtypmod,
       coalesce(e.oid, 0)::int8, coalesce(e.typdelim, t.typdelim), t.typstorage <> 'p'
FROM wanted
JOIN pg_type t ON t.oid = wanted.oid
JOIN pg_namespace n ON n.oid = t.typnamespace
LEFT JOIN pg_type e ON e.oid = t.typelem AND e.typarray = t.oid
"""

_RELATIONS = """
SELECT c.oid::int8, n.nspname, c.relname, c.relkind, c.relreplident, c.relpersistence,
       has_table_privilege(c.oid, 'SELECT') AND has_schema_privilege(n.oid, 'USAGE'),
       EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND NOT i.indimmediate)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition
  AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname !~ '^pg_(toast|temp)'
ORDER BY n.nspname COLLATE "C", c.relname COLLATE "C"
"""

_COLUMNS = """
SELECT a.attrelid::int8, a.attname, a.atttypid::int8, a.atttypmod,
       coalesce(a.attnum = ANY (ri.indkey), false)
FROM pg_attribute a
LEFT JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_index ri ON ri.indrelid = a.attrelid
     AND CASE c.relreplident WHEN 'd' THEN ri.indisprimary WHEN 'i' THEN ri.indisreplident ELSE false END
WHERE a.attrelid = ANY (%s::oid[]) AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attrelid, a.attnum
"""

_PRIMARY_KEYS = """
SELECT i.indrelid::int8, array_agg(a.attname::text ORDER BY k.n)
FROM pg_index i
CROSS JOIN LATERAL unnest(i.indkey) WITH ORDINALITY AS k(attnum, n)
JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
WHERE i.indisprimary AND i.indrelid = ANY (%s::oid[])
GROUP BY i.indrelid
"""

_NOT_TABLES = {"v": "a view", "m": "a materialized view", "f": "a foreign table"}


@dataclass(frozen=True, slots=True)
class _Found:
    """A row of pg_class."""

    oid: int
    schema: str
    name: str
    kind: str
    identity: str
    persistence: str
    readable: bool
    deferrable: bool
    """The primary key is."""

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    @property
    def sql(self) -> str:
        return identifier(self.schema, self.name)


@dataclass(frozen=True, slots=True)
class Captured:
    """A captured table and the number the log calls it by."""

    oid: int
    table: Table
    partitioned: bool


class Catalog:
    """Answers from one SQL connection, which stays the caller's."""

    def __init__(self, connection: psycopg2.extensions.connection) -> None:
        self._connection = connection
        self._types: dict[int, TypeInfo] = {}

    def rows(self, doing: str, statement: Any, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:  # noqa: ANN401 - psycopg2.sql or str
        """Run one statement. Raises what `session.translate` makes of an error, with `doing` in front."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters or None)
                return cursor.fetchall() if cursor.description else []
        except psycopg2.Error as exc:
            raise translate(exc, doing) from exc

    def text(self, statement: sql.Composable) -> str:
        """A statement as SQL."""
        return statement.as_string(self._connection)

    def captured(self, patterns: Sequence[str]) -> tuple[Captured, ...]:
        """The tables the patterns name, sorted by name. Raises OperatorError for one that cannot be captured."""
        everything = [_Found(*row) for row in self.rows("reading the catalog", _RELATIONS)]
        chosen: dict[int, _Found] = {}
        for pattern in patterns:
            matched = [f for f in everything if matches(pattern, f.qualified)]
            exact = not set("*?") & set(pattern)
            if not exact:
                matched = [f for f in matched if f.kind in "rp" and f.persistence == "p"]
            if not matched:
                raise _nothing_matches(pattern, [f.qualified for f in everything if f.kind in "rp"])
            chosen.update((f.oid, f) for f in matched)
        for found in chosen.values():
            _must_be_capturable(found)
        return self._describe(sorted(chosen.values(), key=lambda f: (f.schema, f.name)))

    def _describe(self, found: Sequence[_Found]) -> tuple[Captured, ...]:
        oids = [f.oid for f in found]
        columns: dict[int, list[RelationColumn]] = {}
        for oid, *column in self.rows("reading the catalog", _COLUMNS, (oids,)):
            columns.setdefault(oid, []).append(RelationColumn(*column))
        primary = self.primary_keys(oids)
        self.learn_types(c.type_oid for cs in columns.values() for c in cs)
        captured = []
        for f in found:
            if f.oid not in primary and f.identity != "i":
                raise OperatorError(
                    f"table {f.qualified} has no primary key: its rows cannot be told apart in a topic",
                    hint=f"ALTER TABLE {f.sql} ADD PRIMARY KEY (…); or leave it out of tables",
                )
            relation = Relation(f.oid, f.schema, f.name, f.identity, tuple(columns.get(f.oid, ())))
            table = table_of(relation, self._types, primary.get(f.oid, ()))
            captured.append(Captured(f.oid, table, f.kind == "p"))
        return tuple(captured)

    def table(self, relation: Relation) -> Table:
        """The table a relation message describes; types it has not met are looked up."""
        self.learn_types(c.type_oid for c in relation.columns)
        return table_of(relation, self._types, self.primary_keys([relation.id]).get(relation.id, ()))

    def primary_keys(self, oids: Sequence[int]) -> dict[int, list[str]]:
        return dict(
            cast("Iterable[tuple[int, list[str]]]", self.rows("reading the catalog", _PRIMARY_KEYS, (list(oids),)))
        )

    def learn_types(self, oids: Iterable[int]) -> Mapping[int, TypeInfo]:
        unknown = sorted(set(oids) - self._types.keys())
        if unknown:
            for row in self.rows("reading pg_type", _TYPES, (unknown,)):
                info = TypeInfo(*row)
                self._types[info.oid] = info
        return self._types


def matches(pattern: str, name: str) -> bool:
    """Whether `pattern` names ``schema.table``: ``*`` is any run of characters, ``?`` any one."""
    regex = "".join(".*" if c == "*" else "." if c == "?" else re.escape(c) for c in pattern)
    return re.fullmatch(regex, name, re.DOTALL) is not None


def _nothing_matches(pattern: str, names: Sequence[str]) -> OperatorError:
    near = difflib.get_close_matches(pattern, names, n=3, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"tables here: {', '.join(names[:10]) or 'none'}"
    what = "matches no table" if set("*?") & set(pattern) else "does not exist"
    return OperatorError(f"table {pattern} {what}", hint=hint)


def _must_be_capturable(found: _Found) -> None:
    name = found.qualified
    if found.kind not in "rp":
        raise OperatorError(f"{name} is {_NOT_TABLES[found.kind]}: the log has no rows of it", hint="name its tables")
    if found.persistence != "p":
        raise OperatorError(f"table {name} is not in the log (unlogged)", hint=f"ALTER TABLE {found.sql} SET LOGGED")
    if found.identity == "n":
        raise OperatorError(
            f"table {name} has REPLICA IDENTITY NOTHING: once published, its updates and deletes would fail",
            hint=f"ALTER TABLE {found.sql} REPLICA IDENTITY DEFAULT",
        )
    if found.identity == "d" and found.deferrable:
        raise OperatorError(
            f"the primary key of table {name} is DEFERRABLE, which identifies no row in the log: once published, its "
            "updates and deletes would fail",
            hint=f"ALTER TABLE {found.sql} REPLICA IDENTITY FULL",
        )
    if not found.readable:
        raise OperatorError(
            f"table {name} may not be read by this user",
            hint=f"GRANT USAGE ON SCHEMA {identifier(found.schema)} TO …; GRANT SELECT ON {found.sql} TO …",
        )
