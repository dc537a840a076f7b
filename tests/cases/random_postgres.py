"""Random statements of PostgreSQL, for `tests.cases.random_changes`."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Mapping
from typing import Any, Final

import psycopg2

from tests.cases.postgres import PostgresCases
from tests.cases.random_changes import IDS, NAMES, TABLES, Found


class PostgresGrammar:
    """Statements of PostgreSQL 18."""

    begin: Final = ("CREATE TYPE mood AS ENUM ('m0', 'm1', 'm2')",)

    types: Final = {
        "integer": ("{n}", "-{n}", "NULL"),
        "bigint": ("{n}", "{n}000000000"),
        "text": ("'x{n}'", "NULL", "''", "repeat(md5('{n}'), 300)", "repeat(md5('{n}'), 200)"),
        "character varying": ("'v{n}'", "NULL"),
        "numeric": ("{n}.5", "NULL", "{n}"),
        "timestamp without time zone": ("'2024-01-02 03:04:05'::timestamp + interval '{n} hour'", "NULL"),
        "timestamp with time zone": ("'2024-01-02 03:04:05+00'::timestamptz + interval '{n} hour'", "NULL"),
        "boolean": ("{n} % 2 = 0", "NULL"),
        "integer[]": ("ARRAY[{n}, 1]", "NULL"),
        "mood": ("NULL", "(enum_range(NULL::mood))[1 + {n} % 2]"),
        "date": ("date '2024-01-01' + {n}", "NULL"),
    }
    declared: Final = {"character varying": "varchar(60)", "numeric": "numeric(9,2)"}
    into: Final = {
        "integer": ("bigint", "text USING {0} || '!'", "integer USING {0} + 1", "numeric(9,2)"),
        "bigint": ("text", "bigint USING {0} * 2", "integer USING 3"),
        "text": ("text USING upper({0})", "varchar(60) USING left({0}, 40)", "integer USING length({0})"),
        "character varying": ("text", "varchar(80)", "text USING {0} || '?'"),
        "numeric": ("numeric(12,2)", "numeric(9,3)", "text"),
        "timestamp without time zone": ("timestamptz", "text", "date"),
        "timestamp with time zone": ("timestamp", "timestamptz USING {0} + interval '1 day'"),
        "boolean": ("text", "integer USING {0}::int"),
        "integer[]": ("text", "bigint[]"),
        "date": ("timestamp", "date USING {0} + 1"),
        "mood": ("text",),
    }

    def create(self, of: random.Random, table: str) -> str:
        """Make a table with rows."""
        kind = of.choice(("plain", "plain", "plain", "two", "partitioned"))
        columns = [f"{name} {self._declared(of)}" for name in of.sample(NAMES, of.randint(1, 3))]
        key = "id" if kind != "two" else of.choice(("id, k", "k, id"))
        head = ["id int", *(["k int"] if kind == "two" else [])]
        of.shuffle(head)
        at = of.randint(0, len(columns))
        columns[at:at] = head
        made = f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY ({key}))"
        if kind == "partitioned":
            made += " PARTITION BY RANGE (id)"
            for n, (low, high) in enumerate(((0, 5), (5, 10), (10, 1000))):
                made += f"; DROP TABLE IF EXISTS {table}_{n}"
                made += f"; CREATE TABLE {table}_{n} PARTITION OF {table} FOR VALUES FROM ({low}) TO ({high})"
        return made

    def _declared(self, of: random.Random) -> str:
        type_ = of.choice(list(self.types))
        return self.declared.get(type_, type_)

    def value(self, of: random.Random, type_: str) -> str:
        return of.choice(self.types.get(type_, ("NULL",))).format(n=of.randint(1, 99))

    def insert(self, of: random.Random, table: str, found: Found) -> str:
        names = list(found.columns)
        rows = []
        for _ in range(of.randint(1, 4)):
            values = [
                str(of.randint(1, IDS)) if name in found.key else self.value(of, found.columns[name]) for name in names
            ]
            rows.append(f"({', '.join(values)})")
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES {', '.join(rows)} ON CONFLICT DO NOTHING"

    def write(self, of: random.Random, table: str, found: Found) -> str:
        kind = of.randint(0, 9)
        where = f"{found.key[0]} {of.choice(('=', '<', '>'))} {of.randint(1, IDS)}" if found.key else "true"
        if kind < 3:
            return self.insert(of, table, found)
        if kind < 7 and found.others:
            name = of.choice(found.others)
            return f"UPDATE {table} SET {name} = {self.value(of, found.columns[name])} WHERE {where}"
        if kind == 7 and found.key:
            return f"UPDATE {table} SET {found.key[0]} = {found.key[0]} + 20 WHERE {where}"
        if kind == 8:
            return f"DELETE FROM {table} WHERE {where}"
        return f"TRUNCATE {table}" if of.random() < 0.2 else self.insert(of, table, found)

    def change(self, of: random.Random, tables: Mapping[str, Found]) -> str:
        """One statement, or more in one string, that changes a table and not only its rows."""
        table = of.choice(list(tables))
        found = tables[table]
        names = found.others
        if not names:
            return self.create_more(of, table, found)
        name, type_ = (name := of.choice(names)), found.columns[name]
        free = [n for n in (*NAMES, "k") if n not in found.columns and n not in found.generated] or ["z"]
        new = of.choice(free)
        alter = f"ALTER TABLE {table}"
        default = self.value(of, added := of.choice(list(self.types)))
        declared = self.declared.get(added, added)
        choices = [
            f"{alter} ADD COLUMN {new} {declared}",
            f"{alter} ADD COLUMN {new} {declared} DEFAULT {default}",
            f"{alter} ADD COLUMN {new} float DEFAULT random()" if of.random() < 0.3 else f"VACUUM FULL {table}",
            f"{alter} DROP COLUMN {name}",
            f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {declared}",
            f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {declared} DEFAULT {default}",
            f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {self.declared.get(type_, type_)}",
            f"{alter} RENAME COLUMN {name} TO {new}",
            f"{alter} ALTER COLUMN {name} TYPE " + of.choice(self.into.get(type_, ("text",))).format(name),
            f"{alter} ALTER COLUMN {name} SET DEFAULT {self.value(of, type_)}",
            f"{alter} ALTER COLUMN {name} DROP DEFAULT",
            f"{alter} REPLICA IDENTITY {of.choice(('FULL', 'DEFAULT')) if not found.generated else 'DEFAULT'}",
            f"{alter} ALTER COLUMN {name} SET STORAGE {of.choice(('EXTERNAL', 'PLAIN', 'EXTENDED'))}",
            f"DROP TABLE {table}; {self.create(of, table)}",
            (
                f"{alter} RENAME TO x; ALTER TABLE {of.choice(list(tables))} RENAME TO {table}; "
                f"ALTER TABLE x RENAME TO {of.choice(list(tables))}"
            ),
            f"TRUNCATE {table}",
            f"ALTER TYPE mood RENAME VALUE 'm{of.randint(0, 3)}' TO 'm{of.randint(0, 3)}'",
        ]
        others = [n for n in names if n != name]
        if others:
            other = of.choice(others)
            swap = f"{alter} RENAME {name} TO zz; {alter} RENAME {other} TO {name}; {alter} RENAME zz TO {other}"
            choices += [swap, swap, f"{alter} RENAME {name} TO {new}; {alter} RENAME {other} TO {name}"]
        if not found.is_partitioned and found.key:
            keys = ["id", *(n for n in ("k", "a", "b") if n in found.columns)]
            key = ", ".join(of.sample(keys, of.randint(1, min(2, len(keys)))))
            choices.append(f"{alter} DROP CONSTRAINT {table}_pkey, ADD CONSTRAINT {table}_pkey PRIMARY KEY ({key})")
            choices.append(f"{alter} SET UNLOGGED; {self.insert(of, table, found)}; {alter} SET LOGGED")
            choices.append(f"{alter} RENAME COLUMN {found.key[0]} TO {new}")
        if not found.is_full:
            choices.append(f"{alter} ADD COLUMN g int GENERATED ALWAYS AS ({found.key[0]} * 2) STORED")
        if found.generated:
            choices.append(f"{alter} DROP COLUMN g")
        if found.is_partitioned:
            some = of.choice(found.partitions) if found.partitions else f"{table}_0"
            n = of.randint(0, 2)
            bounds = ((0, 5), (5, 10), (10, 1000))[n]
            choices += [
                f"{alter} DETACH PARTITION {some}",
                f"{alter} DETACH PARTITION {some}; DELETE FROM {some} WHERE id % 2 = 0",
                f"{alter} ATTACH PARTITION {table}_{n} FOR VALUES FROM ({bounds[0]}) TO ({bounds[1]})",
                f"{alter} ATTACH PARTITION {table}_{n} FOR VALUES FROM ({bounds[0]}) TO ({bounds[1]})",
                f"TRUNCATE {some}",
                f"DROP TABLE {some}",
                f"CREATE TABLE {table}_{n} PARTITION OF {table} FOR VALUES FROM ({bounds[0]}) TO ({bounds[1]})",
            ]
        return of.choice(choices)

    def create_more(self, of: random.Random, table: str, found: Found) -> str:
        return f"ALTER TABLE {table} ADD COLUMN {of.choice([n for n in NAMES if n not in found.columns])} int DEFAULT 3"

    def one(self, of: random.Random, tables: Mapping[str, Found]) -> str:
        """The next statement, or statements that are sent as one string."""
        table = of.choice(list(tables))
        if of.random() < 0.55:
            return self.write(of, table, tables[table])
        if of.random() < 0.75:
            return self.change(of, tables)
        parts = [self.write(of, table, tables[table]), self.change(of, tables), self.write(of, table, tables[table])]
        end = of.choice(("COMMIT", "COMMIT", "ROLLBACK"))
        if any("VACUUM" in part for part in parts):
            return parts[1]
        return "; ".join(("BEGIN", *parts, end))


class PostgresRooms:
    """Is `tests.cases.random_changes.Rooms`."""

    def __init__(self, source: PostgresCases, publication: str | None = None) -> None:
        """`publication` gets the tables that are made, as by an owner whose connector's user may not put them there."""
        self.source, self._publication = source, publication
        self._cursor: Any = source._database.connect().cursor()

    def close(self) -> None:
        self._cursor.connection.close()

    def send(self, room: str, statement: str) -> bool:
        self._cursor.execute(f'SET search_path = "case_{room}"')
        try:
            self._cursor.execute(statement)
        except psycopg2.Error:
            self._cursor.execute("ROLLBACK")
            return False
        if self._publication is not None and "CREATE TABLE" in statement:
            self._publish()
        return True

    def _publish(self) -> None:
        for table in TABLES:
            # there is no publication yet, or no such table, or it is in it
            with contextlib.suppress(psycopg2.Error):
                self._cursor.execute(f"ALTER PUBLICATION {self._publication} ADD TABLE ONLY {table}")

    def look(self, room: str) -> dict[str, Found]:
        cursor = self._cursor
        cursor.execute(f'SET search_path = "case_{room}"')
        cursor.execute(
            "SELECT relname, relkind = 'p', (SELECT array_agg(inhrelid::regclass::text) FROM pg_inherits WHERE"
            " inhparent = c.oid), ARRAY(SELECT attname::text FROM pg_index i, unnest(indkey[:indnkeyatts - 1])"
            " WITH ORDINALITY k (n, o) JOIN pg_attribute ON attnum = k.n"
            " WHERE i.indrelid = c.oid AND attrelid = c.oid AND indisprimary ORDER BY o), c.oid,"
            " relreplident = 'f' OR EXISTS (SELECT 1 FROM pg_inherits JOIN pg_class p ON p.oid = inhrelid"
            " WHERE inhparent = c.oid AND p.relreplident = 'f')"
            " FROM pg_class c WHERE relnamespace = current_schema()::regnamespace AND relname = ANY (%s)"
            " ORDER BY relname",
            (list(TABLES),),
        )
        found = {}
        for name, is_partitioned, parts, key, oid, is_full in cursor.fetchall():
            cursor.execute(
                "SELECT attname, format_type(atttypid, NULL), attgenerated <> '' FROM pg_attribute"
                " WHERE attrelid = %s AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
                (oid,),
            )
            rows = cursor.fetchall()
            found[name] = Found(
                {n: t.rpartition(".")[2] for n, t, g in rows if not g},
                tuple(key),
                tuple(n for n, _, g in rows if g),
                tuple(sorted(p.rpartition(".")[2] for p in parts or ())),
                is_partitioned,
                is_full,
            )
        return found
