"""Keeps the catalog of copies in PostgreSQL, the table ``cdc_apply.copies``. Nothing here commits."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from psycopg2 import sql

from cdc.model.errors import OperatorError
from spark_apply.model.completeness import Mark
from spark_apply.model.identity import stamp
from spark_apply.model.kept_mark import kept_mark
from spark_apply.model.store import Due
from spark_apply.model.target_table import TargetTable, other_target
from spark_apply.stores.postgres.copies import tables
from spark_apply.stores.postgres.copies.tables import OURS, Tables, check_names, columns_of
from spark_apply.stores.postgres.session.server import Cursor

LIVE, BESIDE, PREVIOUS = "live", "beside", "previous"
"""The roles of a table's copies."""

_META: Final = sql.Identifier(OURS, "copies")
_TABLES: Final = """
CREATE TABLE IF NOT EXISTS cdc_apply.copies (
    number integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    prefix text NOT NULL,
    schema text NOT NULL,
    name text NOT NULL,
    role text NOT NULL,
    relation oid,
    identity text NOT NULL,
    position text,
    mark text,
    reload boolean NOT NULL DEFAULT true,
    due text,
    replaced_at timestamptz,
    UNIQUE (schema, name, role)
)
"""


@dataclass(frozen=True, slots=True)
class Copy:
    """A row of ``cdc_apply.copies``."""

    number: int
    relation: int | None
    identity: str
    position: str | None
    mark: Mark | None
    reload: bool
    due: Due | None
    replaced_at: dt.datetime | None
    columns: int | None = None
    """A hash of its columns, their types, whether it and what is ours beside it are logged, and which rows are hidden
    of whom, of a live copy that is there."""
    numbers: Mapping[str, int] = field(default_factory=dict)
    """Those of its columns, as they were then."""
    partitioned: bool = False


@dataclass(frozen=True, slots=True)
class Copies:
    """The copies of the topics with this prefix."""

    prefix: str

    def prepare(self, cur: Cursor) -> None:
        """Create ``cdc_apply.copies`` if it does not exist."""
        cur.execute("SELECT pg_advisory_xact_lock(hashtextextended('cdc_apply', 0))")
        cur.execute("SELECT to_regclass('cdc_apply.copies') IS NULL")
        ((missing,),) = cur.fetchall()
        if missing:
            _make_schema(cur, OURS)
            cur.execute(_TABLES)

    def find(self, cur: Cursor, table: TargetTable, role: str = LIVE) -> Copy | None:
        """Find a copy; its `relation` is None if its table does not exist. Raises OperatorError for names too long."""
        check_names(table)
        place = sql.Identifier(table.schema, table.copy_name).as_string(cur)
        cur.execute(
            sql.SQL(
                "SELECT number, CASE WHEN role <> 'live' OR relation = to_regclass(%s) THEN coalesce(relation, 0) END,"
                " identity, position, mark, reload, due, replaced_at, prefix, columns, numbers, partitioned FROM {},"
                " LATERAL (SELECT hashtextextended(string_agg(concat_ws(' ', attnum, atttypid, atttypmod, attname), ','"
                " ORDER BY attnum) || (SELECT concat_ws(' ', relpersistence, relforcerowsecurity, relowner, CASE WHEN"
                " relrowsecurity THEN ARRAY(SELECT concat(oid, ' ', xmin) FROM pg_policy WHERE polrelid = relation"
                " ORDER BY 1)::text END) FROM pg_class WHERE oid = relation) || (SELECT coalesce(string_agg("
                "relpersistence, '' ORDER BY oid), '') FROM pg_class WHERE oid IN"
                " (to_regclass('cdc_apply.waiting_' || number), to_regclass('cdc_apply.gone_' || number))), 0) AS"
                " columns,"
                " json_object_agg(attname, attnum) AS numbers,"
                " coalesce((SELECT relkind = 'p' FROM pg_class WHERE oid = relation), false) AS partitioned"
                " FROM pg_attribute"
                " WHERE attrelid = relation AND attnum > 0 AND NOT attisdropped) seen"
                " WHERE schema = %s AND name = %s AND role = %s"
            ).format(_META),
            (place, table.schema, table.copy_name, role),
        )
        for number, relation, identity, position, mark, reload, due, replaced_at, prefix, *seen in cur.fetchall():
            if prefix != self.prefix:
                msg = f"PostgreSQL table {table.schema}.{table.copy_name} is a copy of other topics ({prefix}.…)"
                raise OperatorError(msg, hint="give the store a database of its own")
            return Copy(
                number,
                relation,
                identity,
                position,
                kept_mark(mark, f"PostgreSQL table {table.schema}.{table.copy_name}") if mark else None,
                reload,
                Due.from_json(due) if due else None,
                replaced_at,
                seen[0],
                seen[1] or {},
                seen[2],
            )
        return None

    def known(self, cur: Cursor, table: TargetTable, role: str = LIVE) -> Copy | None:
        """Do what `find` does, also if ``cdc_apply.copies`` does not exist."""
        check_names(table)
        cur.execute("SELECT to_regclass('cdc_apply.copies') IS NULL")
        ((missing,),) = cur.fetchall()
        return None if missing else self.find(cur, table, role)

    def required(self, cur: Cursor, table: TargetTable, role: str = LIVE) -> Copy:
        """Do what `find` does; raise OperatorError if there is no copy."""
        found = self.find(cur, table, role)
        if found is None:
            msg = f"PostgreSQL has no copy of {table.qualified}"
            raise OperatorError(msg, hint="cdc apply APPLY.yaml makes it, and fills it from the topics")
        return found

    def create(self, cur: Cursor, table: TargetTable) -> Copy:
        """Create a live copy without rows. Raises OperatorError if something else has created a table of that name."""
        if columns_of(cur, sql.Identifier(table.schema, table.copy_name)):
            raise self.foreign(table)
        self.remove(cur, table, LIVE)
        number = self.note(cur, table, LIVE, stamp(table), None)
        made = Tables(table, number, (OURS, f"copy_{number}"))
        tables.create(cur, made, like=None)
        _make_schema(cur, table.schema)
        self.put_in_place(cur, table, self.required(cur, table), None)
        return self.required(cur, table)

    @staticmethod
    def tables(table: TargetTable, copy: Copy, role: str = LIVE) -> Tables:
        """Return the tables of a copy."""
        place = (table.schema, table.copy_name) if role == LIVE else (OURS, f"copy_{copy.number}")
        return Tables(table, copy.number, place, copy.partitioned)

    def note(self, cur: Cursor, table: TargetTable, role: str, identity: str, mark: Mark | None) -> int:
        """Insert a new copy; returns its number."""
        cur.execute(
            sql.SQL(
                "INSERT INTO {} (prefix, schema, name, role, identity, mark) VALUES (%s, %s, %s, %s, %s, %s)"
                " RETURNING number"
            ).format(_META),
            (self.prefix, table.schema, table.copy_name, role, identity, mark and mark.to_json()),
        )
        ((number,),) = cur.fetchall()
        return int(number)

    def write(
        self, cur: Cursor, number: int, mark: Mark | None, *, position: str | None = None, reload: bool | None = None
    ) -> None:
        """Set a copy's mark, and if given, its position and whether it must be filled again."""
        cur.execute(
            sql.SQL(
                "UPDATE {} SET mark = %s, position = coalesce(%s, position), reload = coalesce(%s, reload)"
                " WHERE number = %s"
            ).format(_META),
            (mark and mark.to_json(), position, reload, number),
        )

    def adopt(self, cur: Cursor, table: TargetTable, number: int) -> None:
        """Take the table that has the name now as the copy, without a mark."""
        cur.execute(
            sql.SQL("UPDATE {} SET relation = to_regclass(%s), mark = NULL WHERE number = %s").format(_META),
            (sql.Identifier(table.schema, table.copy_name).as_string(cur), number),
        )

    def caught_up(self, cur: Cursor, number: int, due: Due) -> None:
        """Clear the catch-up that is due, if it is this one."""
        cur.execute(
            sql.SQL("UPDATE {} SET due = NULL WHERE number = %s AND due = %s").format(_META), (number, due.to_json())
        )

    def remove(self, cur: Cursor, table: TargetTable, role: str) -> None:
        """Remove a copy, and drop its tables in our schema."""
        cur.execute(
            sql.SQL("DELETE FROM {} WHERE schema = %s AND name = %s AND role = %s RETURNING number").format(_META),
            (table.schema, table.copy_name, role),
        )
        for (number,) in cur.fetchall():
            tables.drop(cur, Tables(table, number, (OURS, f"copy_{number}")))

    def set_aside(self, cur: Cursor, table: TargetTable, live: Copy, role: str) -> None:
        """Move the live copy to our schema and give it `role`; its name becomes free."""
        aside = sql.Identifier(f"copy_{live.number}")
        place = sql.Identifier(table.schema, table.copy_name)
        cur.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(place, aside))
        moved = sql.SQL("{}.{}").format(sql.Identifier(table.schema), aside)
        cur.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(moved, sql.Identifier(OURS)))
        cur.execute(
            sql.SQL("UPDATE {} SET role = %s, replaced_at = now() WHERE number = %s").format(_META), (role, live.number)
        )

    def put_in_place(
        self, cur: Cursor, table: TargetTable, copy: Copy, mark: Mark | None, due: Due | None = None
    ) -> None:
        """Move a copy from our schema to the table's name; it becomes the live one."""
        beside, place = sql.Identifier(OURS, f"copy_{copy.number}"), sql.Identifier(table.schema, table.copy_name)
        cur.execute(sql.SQL("ALTER TABLE {} SET SCHEMA {}").format(beside, sql.Identifier(table.schema)))
        moved = sql.Identifier(table.schema, f"copy_{copy.number}")
        cur.execute(sql.SQL("ALTER TABLE {} RENAME TO {}").format(moved, sql.Identifier(table.copy_name)))
        cur.execute(
            sql.SQL(
                "UPDATE {} SET role = %s, relation = to_regclass(%s), mark = %s, due = %s, replaced_at = NULL"
                " WHERE number = %s"
            ).format(_META),
            (LIVE, place.as_string(cur), mark and mark.to_json(), due and due.to_json(), copy.number),
        )

    @staticmethod
    def foreign(table: TargetTable) -> OperatorError:
        """Return the error of a table that something else has created."""
        msg = f"PostgreSQL table {table.schema}.{table.copy_name} is there already and was not made by this toolkit"
        return OperatorError(msg, hint=f"give the store another database; or {other_target(table)}")


def _make_schema(cur: Cursor, name: str) -> None:
    """Create a schema that is not there.

    PostgreSQL asks for the right to create one before it looks whether it exists, so that ``IF NOT EXISTS`` alone would
    fail for a user for whom somebody else has made it.
    """
    schema = sql.Identifier(name)
    cur.execute("SELECT to_regnamespace(%s) IS NULL", (schema.as_string(cur),))
    ((missing,),) = cur.fetchall()
    if missing:
        cur.execute(sql.SQL("CREATE SCHEMA IF NOT EXISTS {}").format(schema))
