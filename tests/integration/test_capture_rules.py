"""`source.columns` and `source.where` on real servers: the fold is SELECT … WHERE, masked; nothing else gets out."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import re
import sqlite3
import uuid
from collections.abc import Callable, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from cdc.rules.flat import is_flat
from sinks.topics.records.read_back import read_to_end
from tests.canary import Watch
from tests.cloud_events import attributes
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import is_mysql
from tests.integration.running import Running
from tests.integration.running import rows as selected

SALT: Final = "pepper"
RULES: Final = {
    "exclude": ["password"],
    "mask": ["email", "born"],
    "hash": {"columns": ["phone"], "salt": "${file:%s}"},
    "truncate": {"bio": 5},
}
SHOWN: Final = ("id", "status", "total", "email", "born", "phone", "bio", "wide")


def _expected(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """What of rows, as SELECT gives them, is published."""
    return [
        {
            **row,
            "email": row["email"] and "********",
            "born": row["born"] and "********",
            "phone": row["phone"] and hmac.new(SALT.encode(), row["phone"].encode(), hashlib.sha256).hexdigest(),
            "bio": row["bio"] and row["bio"][:5],
            "total": row["total"] and str(row["total"]),
        }
        for row in rows
    ]


def _by_id(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: int(row["id"]))


class Rows:
    """Statements for both servers: the canary is in everything that must not get out."""

    def __init__(self, secret: str) -> None:
        self.secret = secret

    def insert(self, table: str, number: int, status: str, total: str, *, wide: str = "''") -> str:
        s = self.secret
        return (
            f"INSERT INTO {table} (id, status, total, password, email, born, phone, bio, wide) VALUES ({number}, "
            f"{status}, {total}, '{s}', '{s}@x', '1971-11-0{number % 9 + 1}', '{s}', 'biogr{s}', {wide})"
        )

    def before(self, table: str) -> list[str]:
        return [
            self.insert(table, 1, "'paid'", "10"), self.insert(table, 2, "'draft'", "10"),
            self.insert(table, 3, "NULL", "10"), self.insert(table, 4, "'paid'", "0.5"),
            self.insert(table, 5, "'draft'", "10"), self.insert(table, 6, "'paid'", "10"),
        ]  # fmt: skip

    def stream(self, table: str) -> list[str]:
        return [
            f"UPDATE {table} SET status = 'draft' WHERE id = 1",  # leaves
            f"UPDATE {table} SET status = 'paid' WHERE id = 2",  # enters
            f"UPDATE {table} SET total = 11 WHERE id = 3",  # unknown
            f"UPDATE {table} SET total = 1.5 WHERE id = 4",  # enters by its total
            f"UPDATE {table} SET id = 7, status = 'paid' WHERE id = 5",  # enters, under another key
            f"UPDATE {table} SET id = 8, status = 'draft' WHERE id = 6",  # leaves, under another key
            f"UPDATE {table} SET id = 6 WHERE id = 8",  # stays out
            self.insert(table, 9, "'draft'", "1"),
            f"DELETE FROM {table} WHERE id = 9",
            self.insert(table, 10, "'paid'", "3", wide=f"'{'w' * 9000}'"),
            f"UPDATE {table} SET status = 'draft', wide = '{'v' * 9000}' WHERE id = 10",
            f"UPDATE {table} SET status = 'open' WHERE id = 10",
        ]


def _check(connector: Connector, table: str, select: Callable[[str], list[dict[str, Any]]]) -> None:
    columns = ", ".join(SHOWN)
    found = select(f"SELECT {columns} FROM {table.rpartition('.')[2]} WHERE status <> 'draft' AND total >= 1")
    assert _by_id(list(connector.fold(table).values())) == _by_id(_expected(found))


def _ops(connector: Connector, table: str) -> list[str]:
    """Operations of the stream, each with the row's number."""
    events = [e for e in connector.events(table) if e["op"] != "r"]
    return [f"{e['op']}{(e['after'] or e['before'])['id']}" for e in events]


def _source(tables: Sequence[str], folder: Path, where: str) -> dict[str, Any]:
    (folder / "salt").write_text(SALT)
    hashed = {"columns": ["phone"], "salt": "${file:%s}" % (folder / "salt")}
    return {"columns": {t: {**RULES, "hash": hashed} for t in tables}, "where": dict.fromkeys(tables, where)}


def _nowhere(connector: Connector, watch: Watch, said: str, segments: Path, secret: str) -> None:
    assert secret not in said
    assert not watch.in_topics()
    files = [f for f in segments.glob(f"kafka*/data/{connector.name}.*/*.log") if f.stat().st_size]
    assert not [f for f in files if secret.encode() in f.read_bytes()]


def test_postgres(
    database: Database, kafka: str, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Snapshot, stream, key changes, TOAST, rows read again, a row too large, TRUNCATE; with and without old rows."""
    secret = f"canary-{uuid.uuid4().hex}"
    rows = Rows(secret)
    for name, identity in (("d", "DEFAULT"), ("f", "FULL")):
        database.execute(
            f"CREATE TABLE {name} (password text, id int PRIMARY KEY, status text, total numeric(10,2), email text,"
            " born date, phone varchar(60), bio text, wide text)",
            f"ALTER TABLE {name} REPLICA IDENTITY {identity}",
            *rows.before(name),
        )
    tables = ["public.d", "public.f"]
    rules = _source(tables, tmp_path, "status <> 'draft' AND total >= 1")
    connector = Connector(
        tmp_path, prefix, database.url, kafka, tables, source=rules, on_error="dead_letter",
        sink={"options": {"compression.type": "none"}},
    )  # fmt: skip
    watch = Watch(secret)
    watch.publishes(kafka, prefix)
    said = connector.catch_up()
    for table in tables:
        _check(connector, table, partial(selected, database))
    for name in ("d", "f"):
        database.execute(*rows.stream(name))
    said += connector.catch_up()
    for table in tables:
        _check(connector, table, partial(selected, database))
    assert _ops(connector, "public.f") == ["d1", "c2", "c4", "c7", "d6", "c10", "d10", "c10"]
    assert [op for op in _ops(connector, "public.d") if op[0] != "d"] == ["u2", "u4", "c7", "c10", "c10"]
    for name in ("d", "f"):
        database.execute(
            f"UPDATE {name} SET wide = repeat('w', 3000000) WHERE id = 4",
            f"UPDATE {name} SET total = 9 WHERE id = 10",
            rows.insert(name, 11, "'paid'", "3", wide="NULL"),
            f"ALTER TABLE {name} ADD COLUMN more int DEFAULT 7",
            f"UPDATE {name} SET status = 'paid' WHERE id = 1",
        )
        connector.here("snapshot", "start", "FILE", "--table", f"public.{name}")
    said += connector.catch_up()
    assert "went to the dead letters" not in said or secret not in said
    for table in tables:
        assert {row["id"] for row in connector.fold(table).values()} == {1, 2, 4, 7, 10, 11}
    for name in ("d", "f"):
        database.execute(f"TRUNCATE {name}", rows.insert(name, 1, "'paid'", "1"), rows.insert(name, 2, "'draft'", "1"))
    said += connector.catch_up()
    for table in tables:
        assert [row["id"] for row in connector.fold(table).values()] == [1]
    _nowhere(connector, watch, said, tmp_path_factory.getbasetemp(), secret)


@pytest.mark.full  # test_postgres, and the laws in tests/property/test_capture_rules.py
def test_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The same, where the log has whole rows and texts are compared by a collation that the condition names."""
    secret = f"canary-{uuid.uuid4().hex}"
    rows = Rows(secret)
    mysql_database.execute(
        "CREATE TABLE f (password text, id int PRIMARY KEY, status varchar(20), total decimal(10,2), email text,"
        " born date, phone varchar(60), bio text, wide text) CHARACTER SET utf8mb4",
        *rows.before("f"),
    )
    table = f"{mysql_database.name}.f"
    rules = _source([table], tmp_path, "status COLLATE utf8mb4_bin <> 'draft' AND total >= 1")
    connector = Connector(
        tmp_path,
        prefix,
        mysql_database.url,
        kafka,
        [table],
        source=rules,
        sink={"options": {"compression.type": "none"}},
    )
    watch = Watch(secret)
    watch.publishes(kafka, prefix)

    def select(statement: str) -> list[dict[str, Any]]:
        with closing(mysql_database.connect(database=mysql_database.name)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0] for column in cursor.description or ()]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]

    said = connector.catch_up()
    _check(connector, table, select)
    mysql_database.execute(*rows.stream("f"))
    said += connector.catch_up()
    _check(connector, table, select)
    assert _ops(connector, table) == ["d1", "c2", "c4", "c7", "d6", "c10", "d10", "c10"]
    mysql_database.execute(
        "UPDATE f SET total = 9 WHERE id = 10", "ALTER TABLE f MODIFY born datetime", rows.insert("f", 11, "NULL", "3")
    )
    connector.here("snapshot", "start", "FILE", "--table", table)
    said += connector.catch_up()
    _check(connector, table, select)
    connector.file.write_text(connector.file.read_text().replace("total >= 1", "total >= 5"))
    said += connector.catch_up()
    assert "source.columns or source.where have changed for it: its rows are read again" in said
    assert {row["id"] for row in connector.fold(table).values()} == {2, 7, 10}
    _nowhere(connector, watch, said, tmp_path_factory.getbasetemp(), secret)


def test_flat(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Beside a table with envelopes: the same rows by snapshot, stream, restart, re-read, TRUNCATE, changed format."""
    rows = Rows("x")
    for name in ("flat", "whole"):
        postgres18.execute(
            f"CREATE TABLE {name} (password text, id int PRIMARY KEY, status text, total numeric(10,2), email text,"
            " born date, phone varchar(60), bio text, wide text)",
            *rows.before(name),
        )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.flat", "public.whole"],
        sink={"formats": {"public.f*": "flat"}, "headers": ["key_change", "cloudevents"]},
    )  # fmt: skip

    def compare() -> list[dict[str, Any]]:
        last = {r.raw_key: r.value for r in connector.records("public.flat")}
        found = {key: value for key, value in last.items() if value is not None}
        assert found == connector.fold("public.whole")
        assert len(found) == len(postgres18.rows("SELECT FROM flat"))
        return list(found.values())

    connector.catch_up()
    compare()
    for name in ("flat", "whole"):
        postgres18.execute(*rows.stream(name))
    connector.catch_up()
    compare()
    for name in ("flat", "whole"):  # their wide values are in the topic alone
        postgres18.execute(
            f"UPDATE {name} SET total = 12 WHERE id = 10", f"UPDATE {name} SET id = 12 WHERE id = 10",
            f"UPDATE {name} SET total = 13 WHERE id = 12",
        )  # fmt: skip
        connector.here("snapshot", "start", "FILE", "--table", f"public.{name}")
    connector.catch_up()
    assert {row["wide"][:2] for row in compare()} == {"", "vv"}
    for name in ("flat", "whole"):
        postgres18.execute(f"TRUNCATE {name}", rows.insert(name, 3, "'a'", "1"))
    connector.catch_up()
    assert [row["id"] for row in compare()] == [3]
    connector.file.write_text(connector.file.read_text().replace('"flat"}', '"envelope"}'))
    assert "sink.format has changed for it: its rows are read again" in connector.catch_up()
    assert connector.fold("public.flat") == connector.fold("public.whole")
    _cloud_events(connector)


def _cloud_events(connector: Connector) -> None:
    """Each record but tombstones behind a `d` has valid attributes, and no other has its identity."""
    identities = []
    for table in ("public.flat", "public.whole"):
        for message in read_to_end(connector.kafka, {}, f"{connector.name}.{table}", "read_committed"):
            told = attributes(message.headers() or [], message.value())
            assert (told is None) == (message.value() is None and not is_flat(message.headers()))
            if told is None:
                continue
            assert told["type"] == "io.debezium.connector.postgresql.DataChangeEvent"
            assert (told["source"], told["subject"]) == (f"/debezium/postgresql/{connector.name}", table)
            assert (told["iodebeziumop"] == "r") <= (told["iodebeziumsnapshot"] != "false")
            identities.append((told["source"], told["id"]))
    assert len(set(identities)) == len(identities) > 20


def test_what_is_refused_by_collation(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Text is compared where the collation compares characters, or where the condition names one that does."""
    postgres18.execute(
        "CREATE COLLATION loose (locale = 'C')",
        "UPDATE pg_collation SET collisdeterministic = false WHERE collname = 'loose'",  # what ICU has, which may lack
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE TABLE t (id int PRIMARY KEY, a text COLLATE loose, b text, c varchar(9), d char(5), e mood)",
        "INSERT INTO t VALUES (1, 'X', 'x', 'x', 'x', 'ok'), (2, 'x', 'X', 'X', 'X', 'sad')",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], as_owner=True, source={"where": {"public.t": "W"}}
    )
    text = connector.file.read_text()
    for condition, fits in (("a = 'x'", ()), ("a COLLATE \\\"C\\\" = 'x' OR b = 'y'", (2,))):
        connector.file.write_text(text.replace('"W"', f'"{condition}"'))
        checked = connector.here("check", "FILE")
        assert ("takes different texts for equal" in checked.stdout) == (not fits), checked.stdout
        if not fits:
            assert connector.here("run", "FILE", "--until-caught-up").returncode == 1
    connector.catch_up()
    assert [row["id"] for row in connector.fold("public.t").values()] == [2]
    rest = "b = 'x' AND c = 'x' AND d = 'x' AND e = 'ok' AND e <> 'sad'"
    connector.file.write_text(text.replace('"W"', f'"{rest}"'))
    connector.catch_up()
    assert [row["id"] for row in connector.fold("public.t").values()] == [1]


def test_a_label_that_the_condition_names_is_there(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """PostgreSQL refuses another one. Renamed, it would hide no row any more: they would all be published."""
    postgres18.execute(
        "CREATE TYPE mood AS ENUM ('sad', 'ok')",
        "CREATE DOMAIN known AS mood",
        "CREATE TABLE t (id int PRIMARY KEY, m known)",
        "INSERT INTO t VALUES (1, 'ok'), (2, 'sad')",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], as_owner=True, source={"where": {"public.t": "W"}}
    )
    text = connector.file.read_text()

    def refuses(label: str) -> None:
        connector.file.write_text(text.replace('"W"', f"\"m <> '{label}'\""))
        for command in (["check", "FILE"], ["run", "FILE", "--until-caught-up"]):
            done = connector.here(*command)
            assert f"'{label}' is no label of its type" in done.stdout + done.stderr
            assert done.returncode == 1

    refuses("Sad")
    connector.file.write_text(text.replace('"W"', "\"m <> 'sad'\""))
    connector.catch_up()
    postgres18.execute("ALTER TYPE mood RENAME VALUE 'sad' TO 'low'")
    refuses("sad")
    connector.file.write_text(text.replace('"W"', "\"m <> 'low'\""))
    connector.catch_up()
    with Running(connector) as run:
        run.await_following()
        postgres18.execute("ALTER TYPE mood RENAME VALUE 'low' TO 'blue'")
        assert run.ended() == 1
        assert "'low' is no label of its type" in run.stderr
    assert [row["id"] for row in connector.fold("public.t").values()] == [1]


def test_a_table_that_is_captured_no_more_keeps_its_rules(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Whatever it is called when it comes back, or is part of: it is left out until its rules are there, and others
    go on. The rule is a pattern's, which other tables match, too; what the hint says is done, and helps."""
    made = "CREATE TABLE {0} (id int PRIMARY KEY, s text)"
    parts = " PARTITION BY RANGE (id); CREATE TABLE {0}_1 PARTITION OF {0} FOR VALUES FROM (0) TO (10)"
    filled = "INSERT INTO {0} VALUES (1, 'secret')"
    of_parts, plain = ("people", "pupils"), ("p", "pets", "pots", "t")
    postgres18.execute(*(f"{made}{parts}".format(name) for name in of_parts), *(made.format(name) for name in plain))
    divided = made.format("places") + " PARTITION BY RANGE (id); CREATE TABLE old PARTITION OF places DEFAULT"
    postgres18.execute(divided, *(filled.format(name) for name in (*of_parts, *plain, "places")))
    secret = {"exclude": ["s"]}

    def capturing(*without: str, **rules: Any) -> Connector:
        tables = ["public.*", "!public.*_1", *(f"!public.{name}" for name in without)]
        columns = {"public.p*": secret, **{f"public.{name}": of for name, of in rules.items()}}
        return Connector(tmp_path, prefix, postgres18.url, kafka, tables, as_owner=True, source={"columns": columns})

    def run(*without: str, **rules: Any) -> tuple[str, Connector]:
        connector = capturing(*without, **rules)
        postgres18.execute("INSERT INTO t SELECT max(id) + 1 FROM t")
        said = connector.catch_up()
        assert len(connector.fold("public.t")) == len(selected(postgres18, "SELECT id FROM t"))
        return said, connector

    run()
    postgres18.execute(*(f"ALTER TABLE {name}_1 SET UNLOGGED" for name in of_parts))
    run()
    postgres18.execute("ALTER TABLE people RENAME TO audience", "ALTER TABLE pupils RENAME TO class")
    run("pets")
    postgres18.execute(
        *(f"ALTER TABLE {name}_1 SET LOGGED" for name in of_parts),
        "ALTER TABLE places DETACH PARTITION old",
        "ALTER TABLE pets RENAME TO animals",
        f"{made} PARTITION BY RANGE (id)".format("beings"),
        "ALTER TABLE beings ATTACH PARTITION p FOR VALUES FROM (0) TO (10)",
    )
    for _ in range(2):
        foretold = capturing("pets").here("check", "FILE")
        assert foretold.returncode == 0, foretold.stdout
        (line,) = (line for line in foretold.stdout.splitlines() if "a pattern brings it, and it is left out" in line)
        assert re.search("for public.*, public.* are not all there for public.*, public.*", line)
        said, connector = run("pets")
        for name in re.findall(r"[\w.]+", line.partition("are not all there for")[2].partition(":")[0]):
            assert re.search(rf"{name}\b[^:]* is left out until the next start", said)
        for name in (
            "people, or a part of it, is public.audience",
            "places, or a part of it, is public.old",
            "p is a partition of public.beings",
        ):
            assert re.search(rf"public\.{name.rpartition('.')[2]}\b[^:]* is left out until the next start", said)
            assert re.search(rf"public\.{name} now[^:]*, which source\.tables names, and the rules", said)
        for name in ("audience", "class", "animals", "beings", "old"):
            assert connector.records(f"public.{name}") == []
    said, connector = run(*("pets", "class"), animals=secret, audience=secret, beings={"include": ["id"]}, old=secret)
    assert "is left out" not in said
    assert [list(connector.fold(f"public.{name}").values()) for name in ("audience", "old", "animals", "class")] == [
        [{"id": 1}],
        [{"id": 1}],
        [{"id": 1}],
        [],
    ]


def _in_events(connector: Connector, table: str) -> list[dict[str, Any]]:
    """All rows that any event of the table has, also those that are gone by now."""
    events = connector.events(table)
    return [row for event in events for row in (event["before"], event["after"]) if row is not None]


def test_a_condition_on_a_column_that_has_another_type(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Until the file has a condition of the new type it is refused; rows of before are then read as they are now."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, w int, v text)",
        "INSERT INTO t VALUES (1, 10, 'a'), (2, 30, 'b'), (3, 70, 'c')",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], source={"where": {"public.t": "w > 20"}}
    )
    connector.catch_up()
    postgres18.execute(
        "INSERT INTO t VALUES (4, 70, 'd'), (5, 30, 'e'); UPDATE t SET v = 'z'; DELETE FROM t WHERE id = 3",
        "ALTER TABLE t ALTER w TYPE text; INSERT INTO t VALUES (6, '70', 'f'), (7, '1', 'g')",
    )
    done = connector.here("run", "FILE", "--until-caught-up")
    assert "public.t, column w: the condition cannot be judged" in done.stderr
    connector.file.write_text(connector.file.read_text().replace("w > 20", "w = '70'"))
    connector.catch_up()
    wanted = _by_id(selected(postgres18, "SELECT * FROM t WHERE w = '70'"))
    assert _by_id(list(connector.fold("public.t").values())) == wanted


@pytest.mark.parametrize("way", ["text", "dropped"])
@pytest.mark.parametrize("server", ["postgres18", "mysql", "mariadb"])
def test_a_column_of_a_condition_gets_another_type_while_it_is_followed(
    request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path, *, server: str, way: str
) -> None:
    """Or is dropped: that the condition does not fit is told, and nothing is deleted that it had let through."""
    database = request.getfixturevalue(server)
    postgres = server == "postgres18"
    schema = "public" if postgres else database.name
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, w int, v text)", "INSERT INTO t VALUES (1, 10, 'a'), (2, 30, 'b')"
    )
    table = f"{schema}.t"
    connector = Connector(tmp_path, prefix, database.url, kafka, [table], source={"where": {table: "w > 20"}})
    connector.catch_up()
    before = connector.fold(table)
    assert len(before) == 1
    with Running(connector) as run:
        run.await_following()
        alter = "DROP w" if way == "dropped" else "ALTER w TYPE text" if postgres else "MODIFY w varchar(20)"
        database.execute(f"ALTER TABLE t {alter}", "INSERT INTO t (id, v) VALUES (3, 'c')")
        run.await_line("has no column w" if way == "dropped" else "column w: the condition cannot be judged")
    assert connector.fold(table) == before


@pytest.mark.full  # the cases of partitions that are exchanged, and the laws in tests/property/test_capture_rules.py
def test_rows_that_come_and_go_by_partitions(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """EXCHANGE, and MariaDB's CONVERT, bring rows that no event tells of: those that do not match never come out."""
    name = mysql_database.name
    columns = "(id INT PRIMARY KEY, kept INT)"
    mysql_database.execute(
        f"CREATE TABLE p {columns} PARTITION BY RANGE (id)"
        " (PARTITION p0 VALUES LESS THAN (10), PARTITION p1 VALUES LESS THAN (20))",
        "INSERT INTO p VALUES (1, 1), (2, 0), (11, 1), (12, 0)",
        f"CREATE TABLE o {columns}", "INSERT INTO o VALUES (3, 1), (4, 0)",
        f"CREATE TABLE more {columns}", "INSERT INTO more VALUES (21, 1), (22, 0)",
    )  # fmt: skip
    rules = {"where": {f"{name}.p": "kept = 1"}}
    connector = Connector(tmp_path, prefix, mysql_database.url, kafka, [f"{name}.p"], source=rules)
    exchanged = "ALTER TABLE p EXCHANGE PARTITION p0 WITH TABLE o"
    steps = [
        (), (exchanged,), ("INSERT INTO p VALUES (5, 0), (6, 1)", exchanged, "UPDATE p SET kept = 0 WHERE id = 11"),
        (exchanged, "UPDATE p SET kept = 1 WHERE id IN (5, 12)"),
    ]  # fmt: skip
    if not is_mysql(mysql_database):
        steps += [
            ("ALTER TABLE p CONVERT PARTITION p0 TO TABLE apart",),
            ("ALTER TABLE p CONVERT TABLE more TO PARTITION p2 VALUES LESS THAN (30)", "INSERT INTO p VALUES (23, 0)"),
        ]
    for step in steps:
        mysql_database.execute(*step)
        connector.catch_up()
        there = sorted(row["id"] for row in connector.fold(f"{name}.p").values())
        assert there == [number for (number,) in mysql_database.rows("SELECT id FROM p WHERE kept = 1 ORDER BY id")]
        assert {row.get("kept", 1) for row in _in_events(connector, f"{name}.p")} == {1}  # deletes have the key alone


@pytest.mark.full  # tests/unit/test_mysql_kept_rules.py
def test_a_table_that_the_file_leaves_out_keeps_its_rules(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Under another name, which a pattern brings, it is left out, at each start; `cdc check` and the log say so."""
    name = mysql_database.name
    for table in ("t", "x"):
        mysql_database.execute(
            f"CREATE TABLE {table} (id INT PRIMARY KEY, s VARCHAR(9))", f"INSERT INTO {table} VALUES (1, 'secret')"
        )

    def capturing(**rules: Any) -> Connector:
        tables = [f"{name}.*", f"!{name}.x", f"!{name}.z"]
        columns = {f"{name}.{table}": {"exclude": ["s"]} for table in ("x", *rules)}
        return Connector(tmp_path, prefix, mysql_database.url, kafka, tables, source={"columns": columns})

    connector = capturing()
    connector.catch_up()
    mysql_database.execute("RENAME TABLE x TO z")
    connector.catch_up()
    mysql_database.execute("RENAME TABLE z TO y", "INSERT INTO t VALUES (2, 'b')", "INSERT INTO y VALUES (2, 'secret')")
    for _ in range(3):
        said = connector.catch_up()
        assert re.search(rf"table {name}\.y is left out[^:]*: .*{name}\.x.* {name}\.y now", said)
        assert connector.records(f"{name}.y") == []
    assert len(connector.fold(f"{name}.t")) == 2
    checked = connector.here("check", "FILE")
    assert (checked.returncode, "are not all there for" in checked.stdout) == (0, True), checked.stdout
    ruled = capturing(y={})
    assert "is left out" not in ruled.catch_up()
    assert sorted(row["id"] for row in ruled.fold(f"{name}.y").values()) == [1, 2]
    assert all("s" not in row for row in _in_events(ruled, f"{name}.y"))


_LENT: Final = {
    "n": ("RENAME COLUMN s TO m", "ADD COLUMN s text", "DROP COLUMN n", "RENAME COLUMN m TO n"),
    "t": ("RENAME COLUMN s TO m", "RENAME COLUMN t TO s", "RENAME COLUMN m TO t"),
}
"""What a hidden column s is called in the end, and how."""


@pytest.mark.parametrize("now", _LENT)
def test_a_column_under_the_name_of_a_published_one(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, now: str
) -> None:
    """Its old name is there again, so names say nothing; the catalog's numbers of columns do."""
    postgres18.execute(
        "CREATE TABLE users (id int PRIMARY KEY, n int, t text, s text)",
        "INSERT INTO users VALUES (1, 1, 'x', 'secret')",
    )

    def hiding(*names: str) -> Connector:
        rules = {"columns": {"public.users": {"exclude": names}}}
        return Connector(tmp_path, prefix, postgres18.url, kafka, ["public.users"], as_owner=True, source=rules)

    hiding("s").catch_up()
    postgres18.execute(*(f"ALTER TABLE users {step}" for step in _LENT[now]))
    said = f"column {now} is the one that was called s"
    assert said in hiding("s").here("check", "FILE").stdout
    for _ in range(2):
        assert said in hiding("s").here("run", "FILE", "--until-caught-up").stderr
    ((slot,),) = postgres18.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()")
    postgres18.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    assert not hiding("s").here("snapshot", "start", "FILE", "--after-gap").returncode
    assert said in hiding("s").here("run", "FILE", "--until-caught-up").stderr
    hiding("s", now).catch_up()
    assert not any(b"secret" in (record.raw_value or b"") for record in hiding("s", now).records("public.users"))


def test_rows_of_columns_that_had_swapped_their_names_for_a_time(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The catalog is as it was at every look; the log has their order. Then the table is read again, too."""
    postgres18.execute(
        "CREATE TABLE users (id int PRIMARY KEY, t text, s text)", "INSERT INTO users VALUES (1, 'x', 'secret')"
    )

    def hiding(*names: str) -> Connector:
        rules = {"columns": {"public.users": {"exclude": names}}}
        return Connector(tmp_path, prefix, postgres18.url, kafka, ["public.users"], as_owner=True, source=rules)

    hiding("s").catch_up()
    swap = [f"ALTER TABLE users RENAME COLUMN {names}" for names in ("s TO m", "t TO s", "m TO t")]
    postgres18.execute(*swap, "INSERT INTO users (id, s, t) VALUES (2, 'x', 'secret')", *swap)
    for more in ((), ("ALTER TABLE users ADD COLUMN more int DEFAULT 7",)):
        postgres18.execute(*more)
        said = hiding("s").here("run", "FILE", "--until-caught-up").stderr
        assert "what s must not show may be in there under the name of another" in said
    hiding("s", "t").catch_up()
    hiding("s").catch_up()
    there = _by_id(list(hiding("s").fold("public.users").values()))
    assert there == _by_id([{"id": number, "t": "x", "more": 7} for number in (1, 2)])
    assert not any(b"secret" in (record.raw_value or b"") for record in hiding("s").records("public.users"))


@pytest.mark.full  # test_a_table_under_another_name_by_triggers
@pytest.mark.parametrize("server", ["postgres18", "mysql", "mariadb"])
def test_a_table_under_another_name_whose_change_tables_are_lost(
    server: str, kafka: str, prefix: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Nothing is left that tells what it is called: what a pattern has brought since may be that table."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    space = "public" if isinstance(database, Database) else database.name
    lost = "SCHEMA {} CASCADE" if isinstance(database, Database) else "DATABASE {}"
    database.execute("CREATE TABLE u (id INT PRIMARY KEY, s VARCHAR(9))", "INSERT INTO u VALUES (1, 'secret')")

    def hiding(*names: str) -> Connector:
        source = {"type": "triggers", "columns": {f"{space}.{name}": {"exclude": ["s"]} for name in names}}
        tables = [f"{space}.u", f"{space}.u*"]
        return Connector(tmp_path, prefix, database.url, kafka, tables, as_owner=True, source=source)

    hiding("u").catch_up()
    database.execute("ALTER TABLE u RENAME TO u2", f"DROP {lost.format(f'cdc_{prefix}')}")
    assert "change tables missing" in hiding("u").here("run", "FILE", "--until-caught-up").stderr
    assert not hiding("u").here("snapshot", "start", "FILE", "--after-gap").returncode
    for _ in range(2):
        said = hiding("u").here("run", "FILE", "--until-caught-up").stderr
        assert f"{space}.u is gone, and so is what would tell whether it is called {space}.u2 now" in said
    hiding("u2").catch_up()
    records = hiding("u2").records(f"{space}.u2")
    assert len(records) == 1
    assert not any(b"secret" in (record.raw_value or b"") for record in records)


def test_a_table_under_another_name_by_triggers(kafka: str, prefix: str, tmp_path: Path) -> None:
    """A pattern brings the new name, for which there are no rules; a second rename makes no other table of it.

    Nor does a gap: the triggers are still there, or whatever is new may be that table.
    """
    path = tmp_path / "shop.db"

    def do(*statements: str) -> None:
        with closing(sqlite3.connect(path)) as database, database:
            for statement in statements:
                database.execute(statement)

    def triggers() -> list[tuple[str]]:
        with closing(sqlite3.connect(path)) as database:
            return database.execute("SELECT name FROM sqlite_schema WHERE type = 'trigger'").fetchall()

    made = "CREATE TABLE u (id INTEGER PRIMARY KEY, s TEXT)"
    do("PRAGMA journal_mode = WAL", made, "INSERT INTO u VALUES (1, 'secret')")

    def hiding(*names: str) -> Connector:
        source = {"type": "triggers", "columns": {f"main.{name}": {"exclude": ["s"]} for name in names}}
        tables = ["main.u", "main.u*"]
        return Connector(tmp_path, prefix, f"sqlite:///{path}", kafka, tables, as_owner=True, source=source)

    hiding("u").catch_up()
    for was, now in itertools.pairwise(("u", "u2", "u3")):
        do(f"ALTER TABLE {was} RENAME TO {now}", f"INSERT INTO {now} SELECT max(id) + 1, 'secret' FROM {now}")
        said = hiding("u").here("run", "FILE", "--until-caught-up")
        assert f"table renamed: main.u is main.{now} now" in said.stderr
        assert f"table renamed: main.u is main.{now} now" in hiding("u").here("check", "FILE").stdout
        assert said.returncode
    do(f"DROP TABLE cdc_{prefix}_shapes")
    assert not hiding("u").here("snapshot", "start", "FILE", "--after-gap").returncode
    assert "table renamed: main.u is main.u3 now" in hiding("u").here("run", "FILE", "--until-caught-up").stderr
    do(*(f"DROP TRIGGER {name!r}" for (name,) in triggers()))
    said = hiding("u").here("run", "FILE", "--until-caught-up").stderr
    assert "main.u is gone, and so is what would tell whether it is called main.u3 now" in said
    hiding("u", "u3").catch_up()
    records = [*hiding("u").records("main.u2"), *hiding("u").records("main.u3")]
    assert len(records) == 3
    assert not any(b"secret" in (record.raw_value or b"") for record in records)
