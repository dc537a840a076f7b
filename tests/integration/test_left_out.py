"""A captured table that cannot be captured any more: the others go on, and it is read again once it is right."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import same as same_in_mysql
from tests.integration.running import Running, eventually, rows, same
from tests.pushes import some_each_push

_AWAY: Final = {
    "postgres18": {
        "keyless": "ALTER TABLE keyless DROP CONSTRAINT keyless_pkey",
        "anonymous": "ALTER TABLE anonymous REPLICA IDENTITY NOTHING",
        "postponed": "ALTER TABLE postponed DROP CONSTRAINT postponed_pkey, ADD PRIMARY KEY (id) DEFERRABLE",
        "dropped": "DROP TABLE dropped",
        "made": "DROP TABLE made; CREATE TABLE made (id int)",
        "some_1": "DROP TABLE some_1",
    },
    "mysql": {
        "keyless": "ALTER TABLE keyless DROP PRIMARY KEY",
        "plain": "ALTER TABLE plain ENGINE=MyISAM",
        "dropped": "DROP TABLE dropped",
        "made": "DROP TABLE made; CREATE TABLE made (id int)",
        "some_1": "DROP TABLE some_1",
    },
}
_BACK: Final = {
    "postgres18": {
        "keyless": "ALTER TABLE keyless ADD PRIMARY KEY (id)",
        "anonymous": "ALTER TABLE anonymous REPLICA IDENTITY DEFAULT",
        "postponed": "ALTER TABLE postponed DROP CONSTRAINT postponed_pkey, ADD PRIMARY KEY (id)",
        "dropped": "CREATE TABLE dropped (id int PRIMARY KEY)",
        "made": "ALTER TABLE made ADD PRIMARY KEY (id)",
        "some_1": "CREATE TABLE some_1 (id int PRIMARY KEY)",
    },
    "mysql": {
        "keyless": "ALTER TABLE keyless ADD PRIMARY KEY (id)",
        "plain": "ALTER TABLE plain ENGINE=InnoDB",
        "dropped": "CREATE TABLE dropped (id int PRIMARY KEY)",
        "made": "ALTER TABLE made ADD PRIMARY KEY (id)",
        "some_1": "CREATE TABLE some_1 (id int PRIMARY KEY)",
    },
}


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("server", some_each_push(["postgres18", "mysql", "mariadb"], "postgres18"))
def test_one_that_cannot_be_captured_any_more_stops_no_other(
    *, server: str, runs: bool, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """By its name or a pattern, at a start and while it runs; rows that are gone by then are deleted."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    kind = "postgres18" if server == "postgres18" else "mysql"
    away, back = _AWAY[kind], _BACK[kind]
    schema = "public" if kind == "postgres18" else database.name
    tables = ("t", *away)
    written = [
        f"TRUNCATE TABLE {name}; INSERT INTO {name} VALUES (2), (3)"
        for name in away
        if name not in ("dropped", "some_1")
    ]

    def do(*scripts: str) -> None:
        database.execute(*(statement for script in scripts for statement in script.split("; ")))

    def all_same() -> None:
        for name in tables:
            if isinstance(database, MySQLDatabase):
                same_in_mysql(connector, database, name)
            else:
                same(connector, database, f"{schema}.{name}")

    def left_out() -> set[str]:
        return set(json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"])

    do(*(f"CREATE TABLE {name} (id int PRIMARY KEY); INSERT INTO {name} VALUES (1)" for name in tables))
    named = [f"{schema}.{name}" for name in tables if name != "some_1"]
    connector = Connector(
        tmp_path, prefix, database.url, kafka, [*named, f"{schema}.some_*"], as_owner=kind == "postgres18"
    )
    connector.catch_up()
    do("INSERT INTO t VALUES (2)", *away.values(), *written)
    said = connector.catch_up()
    gone = {f"{schema}.some_*", *named} - {f"{schema}.t"}
    assert left_out() == gone
    for name in named[1:]:
        assert re.search(rf" ERROR .*table {name}\b.*: the table is captured no more for now", said)
    check = connector.here("check", "FILE")
    assert check.returncode == 0, check.stdout
    assert {name for name in gone if f"table {name}: " in check.stdout} == gone
    if runs:
        with Running(connector) as run:
            run.await_following()
            do(*back.values(), "INSERT INTO t VALUES (3)")
            for name in away:
                run.await_line(f"table {schema}.{name} was read while the log was followed: ")
            all_same()
            do(*away.values(), *written, "INSERT INTO t VALUES (4)")
            eventually(lambda: len(connector.fold(f"{schema}.t")) == 4, "the others go on")
            for name in ("keyless", "made"):
                run.await_line(
                    f"table {schema}.{name} has no primary key: its rows cannot be told apart in a topic: the"
                )
            do(*back.values())
            for name in away:
                run.await_line(f"table {schema}.{name} was read while the log was followed: ", times=2)
    else:
        do(*back.values())
    connector.catch_up()
    all_same()


@pytest.mark.full  # test_one_that_cannot_be_captured_any_more_stops_no_other, and those of rules
def test_one_that_comes_back_otherwise(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Under another key, and with a hidden column under another name, which stays hidden."""
    tables = ("keyed", "swapped")
    postgres18.execute(
        *(f"CREATE TABLE {name} (id int PRIMARY KEY, n int, email text)" for name in (*tables, "t")),
        *(f"INSERT INTO {name} VALUES (1, 10, 'canary'), (2, 20, 'canary')" for name in tables),
    )

    def connector(*hidden: str) -> Connector:
        source = {"columns": {"public.keyed": {"exclude": ["email"]}, "public.swapped": {"exclude": [*hidden]}}}
        names = [f"public.{name}" for name in (*tables, "t")]
        return Connector(tmp_path, prefix, postgres18.url, kafka, names, as_owner=True, source=source)

    connector("email").catch_up()
    postgres18.execute(*(f"ALTER TABLE {name} DROP CONSTRAINT {name}_pkey" for name in tables))
    connector("email").catch_up()
    postgres18.execute(
        "ALTER TABLE keyed ADD PRIMARY KEY (n); DELETE FROM keyed WHERE id = 1",
        "ALTER TABLE swapped RENAME COLUMN email TO mail; ALTER TABLE swapped ADD COLUMN email text",
        "ALTER TABLE swapped ADD PRIMARY KEY (id)",
    )
    done = connector("email").here("run", "FILE", "--until-caught-up")
    assert (done.returncode, "table public.swapped has mail, which nobody knows" in done.stderr) == (1, True)
    ruled = connector("email", "mail")
    ruled.catch_up()
    assert ruled.fold("public.keyed") == {b'{"n":20}': {"id": 2, "n": 20}}
    assert list(ruled.fold("public.swapped").values()) == rows(postgres18, "SELECT id, n FROM swapped ORDER BY id")
    assert b"canary" not in b"".join(of.raw_value or b"" for name in tables for of in ruled.records(f"public.{name}"))


_RULED_AWAY: Final = {
    "renamed": "ALTER TABLE renamed RENAME TO elsewhere",
    "p_dropped": "DROP TABLE p_dropped",
    "p_kept": "DROP TABLE p_kept",
    "p_out": "ALTER TABLE p_out RENAME TO away",
    "p_within": "ALTER TABLE p_within RENAME TO p_other",
    "judged": "ALTER TABLE judged RENAME COLUMN n TO m",
}
_RULED_BACK: Final = {
    "renamed": "ALTER TABLE elsewhere RENAME TO renamed",
    "p_dropped": "CREATE TABLE p_dropped (id int PRIMARY KEY, n int, s varchar(40))",
    "p_kept": "CREATE TABLE p_kept (id int PRIMARY KEY, n int, s varchar(40))",
    "p_out": "ALTER TABLE away RENAME TO p_out",
    "p_within": "ALTER TABLE p_other RENAME TO p_within",
    "judged": "ALTER TABLE judged RENAME COLUMN m TO n",
}


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.full)])
@pytest.mark.parametrize("server", some_each_push(["postgres18", "mysql", "mariadb"], "postgres18"))
def test_one_with_rules_that_goes_stops_no_other(
    *, server: str, runs: bool, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Renamed or dropped, at each start and while it runs; what its rules hide is published under no name."""
    database: Database | MySQLDatabase = request.getfixturevalue(server)
    schema = "public" if server == "postgres18" else database.name
    for name in ("t", *_RULED_AWAY):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, n int, s varchar(40))",
            f"INSERT INTO {name} VALUES (1, 1, 'canary')",
        )
    rules = {
        "columns": {
            f"{schema}.{name}": {"exclude": ["s"]} for name in ("t", "renamed", "p_dropped", "p_out", "p_within")
        },
        "where": {f"{schema}.judged": "n > 0", f"{schema}.p_kept": "n > 0"},
    }
    connector = Connector(
        tmp_path, prefix, database.url, kafka, [f"{schema}.{name}" for name in ("t", "renamed", "judged", "p_*")],
        as_owner=server == "postgres18", source=rules,
    )  # fmt: skip
    connector.catch_up()
    if runs:
        with Running(connector) as run:
            run.await_following()
            database.execute(*_RULED_AWAY.values(), "INSERT INTO t VALUES (2, 2, 'canary')")
            eventually(lambda: len(connector.fold(f"{schema}.t")) == 2, lambda: f"the others go on:\n{run.stderr}")
            run.await_line(f"table {schema}.p_other is left out until the next start")
            run.await_line(f"table renamed: {schema}.p_out is {schema}.away now, which source.tables does not name")
            database.execute("INSERT INTO t VALUES (3, 3, 'canary')")
            eventually(lambda: len(connector.fold(f"{schema}.t")) == 3, lambda: f"the others go on:\n{run.stderr}")
    else:
        database.execute(*_RULED_AWAY.values(), "INSERT INTO t VALUES (2, 2, 'canary')")
    for at in range(2):
        connector.catch_up()
        database.execute(f"INSERT INTO t VALUES ({10 + at}, 2, 'canary')")
        left_out = json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"]
        assert {f"{schema}.{name}" for name in ("renamed", "p_other", "judged")} <= left_out.keys()
        check = connector.here("check", "FILE")
        assert check.returncode == 0, check.stdout
    database.execute(*_RULED_BACK.values())
    connector.catch_up()
    for name in ("t", *_RULED_AWAY):
        there = [row[0] for row in database.rows(f"SELECT id FROM {name} ORDER BY id")]
        assert sorted(row["id"] for row in connector.fold(f"{schema}.{name}").values()) == there
    published = [connector.records(f"{schema}.{name}") for name in ("t", "renamed", "p_dropped", "p_out", "p_within")]
    assert not any(b"canary" in (record.raw_value or b"") for of in published for record in of)
    assert not connector.records(f"{schema}.p_other")


def test_one_renamed_by_triggers_does_not_escape_its_rules(kafka: str, prefix: str, tmp_path: Path) -> None:
    """A pattern brings the new name: it is left out, at each start, and the others go on."""
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA journal_mode = WAL")
        for name in ("t", "u"):
            database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, s TEXT)")
            database.execute(f"INSERT INTO {name} VALUES (1, 'canary')")
    source = {"type": "triggers", "columns": {f"main.{name}": {"exclude": ["s"]} for name in ("t", "u")}}
    tables = ["main.t", "main.u", "main.u*"]
    connector = Connector(tmp_path, prefix, f"sqlite:///{path}", kafka, tables, as_owner=True, source=source)
    connector.catch_up()
    with sqlite3.connect(path) as database:
        database.execute("ALTER TABLE u RENAME TO u2")
    for at in (2, 3):
        with sqlite3.connect(path) as database:
            database.execute("INSERT INTO t VALUES (?, 'canary')", (at,))
        said = connector.catch_up()
        assert "table main.u2 is left out until the next start" in said
        assert len(connector.fold("main.t")) == at
        assert {"main.u", "main.u2"} == {*json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"]}
        assert not connector.records("main.u2")
