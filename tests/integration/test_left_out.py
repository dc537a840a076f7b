"""A captured table that cannot be captured any more: the others go on, and it is read again once it is right."""

from __future__ import annotations

import json
import re
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
