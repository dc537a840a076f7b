"""Random statements of MySQL and MariaDB, for `tests.cases.random_changes`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any, Final

import pymysql

from tests.cases.mysql import MysqlCases
from tests.cases.random_changes import IDS, NAMES, Found


class MysqlGrammar:
    """Statements that MySQL and MariaDB both take, or one of them refuses."""

    begin: Final = ()

    types: Final = {
        "int": ("{n}", "-{n}", "NULL"),
        "bigint": ("{n}", "{n}000000000", "NULL"),
        "varchar": ("'x{n}'", "NULL", "''", "'é{n}'"),
        "text": ("'x{n}'", "NULL", "''", "repeat('{n}', 300)"),
        "decimal": ("{n}.5", "NULL", "{n}"),
        "datetime": ("'2024-01-02 03:04:05'", "'2024-01-{n}' ", "NULL"),
        "timestamp": ("'2024-01-02 03:04:{n}'", "NULL"),
        "date": ("'2024-01-{n}'", "NULL"),
        "enum": ("'l1'", "'l2'", "'l3'", "NULL"),
        "set": ("'l1'", "'l2,l3'", "NULL", "''"),
        "blob": ("x'00{n}'", "NULL"),
        "json": ("'{{\"a\": {n}}}'", "NULL"),
        "double": ("{n}.25", "NULL"),
    }
    _ENUMS: Final = ("enum('l1','l2','l3')", "enum('l3','l2','l1')", "enum('l0','l1','l2','l3')")
    declared: Final = {
        "varchar": (
            "varchar(60)",
            "varchar(300)",
            "varchar(60) CHARACTER SET latin1",
            "varchar(60) CHARACTER SET utf8mb3",
        ),
        "decimal": ("decimal(9,2)", "decimal(12,3)"),
        "datetime": ("datetime", "datetime(6)"),
        "timestamp": ("timestamp NULL", "timestamp(3) NULL"),
        "enum": _ENUMS,
        "set": ("set('l1','l2','l3')", "set('l3','l1','l2')"),
        "int": ("int", "int unsigned", "smallint"),
    }

    def _declared(self, of: random.Random, type_: str | None = None) -> str:
        type_ = type_ or of.choice(list(self.types))
        return of.choice(self.declared.get(type_, (type_,)))

    def value(self, of: random.Random, type_: str) -> str:
        return of.choice(self.types.get(type_, ("NULL",))).format(n=of.randint(10, 28))

    def create(self, of: random.Random, table: str) -> str:
        kind = of.choice(("plain", "plain", "plain", "two", "partitioned"))
        columns = [f"{name} {self._declared(of)}" for name in of.sample(NAMES, of.randint(1, 3))]
        key = "id" if kind != "two" else of.choice(("id, k", "k, id"))
        head = ["id int", *(["k int"] if kind == "two" else [])]
        of.shuffle(head)
        at = of.randint(0, len(columns))
        columns[at:at] = head
        made = f"CREATE TABLE {table} ({', '.join(columns)}, PRIMARY KEY ({key}))"
        if kind == "partitioned":
            made += (
                " PARTITION BY RANGE (id) (PARTITION p0 VALUES LESS THAN (5), PARTITION p1 VALUES LESS THAN (10),"
                " PARTITION p2 VALUES LESS THAN (100000))"
            )
        return made

    def insert(self, of: random.Random, table: str, found: Found) -> str:
        names, rows = list(found.columns), []
        for _ in range(of.randint(1, 4)):
            values = [
                str(of.randint(1, IDS)) if name in found.key else self.value(of, found.columns[name]) for name in names
            ]
            rows.append(f"({', '.join(values)})")
        how = of.choice(("INSERT IGNORE", "REPLACE"))
        return f"{how} INTO {table} ({', '.join(names)}) VALUES {', '.join(rows)}"

    def write(self, of: random.Random, table: str, found: Found) -> str:
        kind = of.randint(0, 9)
        where = f"{found.key[0]} {of.choice(('=', '<', '>'))} {of.randint(1, IDS)}"
        if kind < 3:
            return self.insert(of, table, found)
        if kind < 7 and found.others:
            name = of.choice(found.others)
            return f"UPDATE {table} SET {name} = {self.value(of, found.columns[name])} WHERE {where}"
        if kind == 7:
            return f"UPDATE IGNORE {table} SET {found.key[0]} = {found.key[0]} + 20 WHERE {where}"
        if kind == 8:
            return f"DELETE FROM {table} WHERE {where}"
        return f"TRUNCATE {table}" if of.random() < 0.2 else self.insert(of, table, found)

    def change(self, of: random.Random, tables: Mapping[str, Found]) -> str:
        table = of.choice(list(tables))
        found, other = tables[table], "u" if table == "t" else "t"
        free = [n for n in (*NAMES, "k") if n not in found.columns] or ["z"]
        new, alter, added = of.choice(free), f"ALTER TABLE {table}", of.choice(list(self.types))
        declared = self._declared(of, added)
        default = self.value(of, added if added not in ("text", "blob", "json") else "int")
        if added in ("text", "blob", "json"):
            default = "NULL"
        place = of.choice(("", "", " FIRST", f" AFTER {of.choice(list(found.columns))}"))
        instant = of.choice(("", "", ", ALGORITHM=INSTANT", ", ALGORITHM=COPY", ", ALGORITHM=INPLACE"))
        choices = [
            f"{alter} ADD COLUMN {new} {declared}{place}{instant}",
            f"{alter} ADD COLUMN {new} {declared} DEFAULT {default}{place}{instant}",
            f"{alter} ADD COLUMN {new} int NOT NULL DEFAULT {of.randint(1, 9)}{place}{instant}",
            f"DROP TABLE {table}; {self.create(of, table)}",
            "RENAME TABLE t TO x, u TO t, x TO u",
            f"RENAME TABLE {table} TO x; RENAME TABLE x TO {other}",
            f"RENAME TABLE {table} TO _old; CREATE TABLE {table} LIKE _old",
            (
                f"DROP TABLE IF EXISTS _old; CREATE TABLE _old LIKE {table}; INSERT INTO _old SELECT * FROM {table}; "
                f"UPDATE _old SET {found.key[0]} = {found.key[0]} + 40; DROP TABLE {table}; "
                f"ALTER TABLE _old RENAME {table}"
            ),
            f"TRUNCATE TABLE {table}",
            f"{alter} ENGINE=InnoDB",
            f"{alter} CONVERT TO CHARACTER SET {of.choice(('latin1', 'utf8mb4', 'utf8mb3'))}",
            "CREATE TABLE IF NOT EXISTS u SELECT * FROM t",
            f"CREATE OR REPLACE TABLE {table} LIKE {other}",
            f"{alter} ADD INDEX ({of.choice(list(found.columns))})",
            (
                f"UPDATE t, u SET t.{tables['t'].others[0] if 't' in tables and tables['t'].others else 'id'} = NULL"
                " WHERE t.id = u.id"
            ),
        ]
        if found.others:
            name = of.choice(found.others)
            type_ = found.columns[name]
            choices += [
                f"{alter} DROP COLUMN {name}{instant}",
                f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {declared}{place}",
                f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {declared} DEFAULT {default}{place}",
                f"{alter} DROP COLUMN {name}, ADD COLUMN {name} {self._declared(of, type_)}",
                f"{alter} DROP COLUMN {name}{instant}; {alter} ADD COLUMN {name} {self._declared(of, type_)}{instant}",
                f"{alter} RENAME COLUMN {name} TO {new}{instant}",
                f"{alter} CHANGE {name} {new} {self._declared(of, type_)}{place}",
                f"{alter} MODIFY {name} {self._declared(of, type_)}{place}",
                f"{alter} MODIFY {name} {of.choice(('text', 'varchar(400)', 'bigint', 'blob'))}",
                f"{alter} ALTER COLUMN {name} SET DEFAULT {self.value(of, type_)}",
                f"{alter} MODIFY {name} {self._declared(of, 'enum')}",
            ]
            others = [n for n in found.others if n != name]
            if others:
                two = of.choice(others)
                swap = f"{alter} RENAME COLUMN {name} TO {two}, RENAME COLUMN {two} TO {name}{instant}"
                choices += [
                    swap,
                    swap,
                    f"{alter} RENAME COLUMN {name} TO {new}, RENAME COLUMN {two} TO {name}",
                    f"{alter} DROP COLUMN {name}, RENAME COLUMN {two} TO {name}",
                ]
        keys = ["id", *(n for n in ("k", "a", "b") if found.columns.get(n) in ("int", "bigint", "smallint"))]
        keys = [n for n in keys if n in found.columns]
        if keys and not found.is_partitioned:
            key = ", ".join(of.sample(keys, of.randint(1, min(2, len(keys)))))
            choices.append(f"{alter} DROP PRIMARY KEY, ADD PRIMARY KEY ({key})")
            choices.append(f"{alter} RENAME COLUMN {found.key[0]} TO {new}")
        if found.is_partitioned:
            part = of.choice(("p0", "p1", "p2"))
            choices += [
                f"{alter} TRUNCATE PARTITION {part}",
                f"{alter} DROP PARTITION {part}",
                f"{alter} REMOVE PARTITIONING",
                (
                    f"DROP TABLE IF EXISTS apart; CREATE TABLE apart LIKE {table}; "
                    "ALTER TABLE apart REMOVE PARTITIONING; "
                    f"{alter} EXCHANGE PARTITION {part} WITH TABLE apart"
                ),
                f"{alter} REORGANIZE PARTITION p0, p1 INTO (PARTITION p1 VALUES LESS THAN (10))",
            ]
        return of.choice(choices)

    def one(self, of: random.Random, tables: Mapping[str, Found]) -> str:
        table = of.choice(list(tables))
        if of.random() < 0.45:
            return self.write(of, table, tables[table])
        if of.random() < 0.75:
            return self.change(of, tables)
        parts = [self.write(of, table, tables[table]) for _ in range(2)]
        if of.random() < 0.5:
            return "; ".join(("BEGIN", parts[0], self.change(of, tables), parts[1], "COMMIT"))  # committed by the DDL
        end = of.choice(("COMMIT", "ROLLBACK", "ROLLBACK TO SAVEPOINT s; COMMIT"))
        return "; ".join(("BEGIN", parts[0], "SAVEPOINT s", parts[1], end))


class MysqlRooms:
    """Is `tests.cases.random_changes.Rooms`."""

    def __init__(self, source: MysqlCases) -> None:
        self.source = source
        self._connection = source._database.connect()
        self._cursor: Any = self._connection.cursor()

    def close(self) -> None:
        self._connection.close()

    def send(self, room: str, statement: str) -> bool:
        """One after the other; of a transaction nothing is sent behind what is refused."""
        self._cursor.execute(f"USE {self.source._room(room)}")
        taken = False
        for part in statement.split("; "):
            try:
                self._cursor.execute(part)
                taken = True
            except pymysql.Error:
                self._cursor.execute("ROLLBACK")
                if statement.startswith("BEGIN"):
                    break
        return taken

    def look(self, room: str) -> dict[str, Found]:
        cursor = self._cursor
        cursor.execute(f"USE {self.source._room(room)}")
        cursor.execute(
            "SELECT t.table_name, t.create_options LIKE '%%partitioned%%', c.column_name, c.data_type,"
            " c.column_key = 'PRI'"
            " FROM information_schema.tables t JOIN information_schema.columns c USING (table_schema, table_name)"
            " WHERE t.table_schema = DATABASE() AND t.table_name IN ('t', 'u') AND t.table_type = 'BASE TABLE'"
            " ORDER BY 1, c.ordinal_position"
        )
        found = {}
        for name, parts, column, type_, key in cursor.fetchall():
            was = found.get(name, Found({}, ()))
            found[name] = Found(
                {**was.columns, column: type_.decode() if isinstance(type_, bytes) else type_},
                (*was.key, *((column,) if key else ())),
                is_partitioned=bool(parts),
            )
        return {name: table for name, table in found.items() if table.key}
