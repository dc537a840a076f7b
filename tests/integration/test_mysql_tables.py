"""Tables that change places, go, and come, while a connector follows the log: the topic folds to what is there."""

from __future__ import annotations

import signal
import time
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cdc.encode.truncates import TRUNCATED_AT_ONCE
from cdc.model.change import Table
from cdc.model.errors import RetryableError
from connectors.mysql import session
from connectors.mysql.catalog import server
from snapshot.mysql import selects, views
from tests.cases.copying import Copying
from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of, filled, rows, same, writing
from tests.integration.running import Running, eventually, ordered, unbroken

KEYS = 1_000
_NO_LOCKS = "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED"  # else copying a busy table may be a deadlock


def becomes(connector: Connector, database: MySQLDatabase, table: str) -> None:
    """Sooner or later, without a restart and without another write."""

    def is_there() -> bool:
        folded = ordered(connector.fold(f"{database.name}.{table}").values())
        return folded == ordered(rows(database, f"SELECT * FROM {table}"))

    eventually(is_there, f"the topic of {table} is the table")


@pytest.mark.full  # cases of cut-overs, and the soak of MySQL
def test_a_cut_over_under_load(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """As gh-ost and pt-online-schema-change end: the other table takes the name between two writes."""
    database = mysql_database
    filled(database, "t", keys=KEYS)
    connector = connector_of(tmp_path, prefix, database, kafka, "t")
    with Running(connector) as running:
        running.await_line("following the log")
        with writing(database, "t", keys=KEYS):
            time.sleep(0.5)
            database.execute(
                _NO_LOCKS,
                "CREATE TABLE _t_gho (id INT PRIMARY KEY, n BIGINT, v TEXT)",
                "INSERT INTO _t_gho SELECT id, n * 10, v FROM t WHERE id % 3",
                "RENAME TABLE t TO _t_del, _t_gho TO t",
            )
            time.sleep(0.5)
        running.await_line("was read while the log was followed")
        becomes(connector, database, "t")
        assert running.process.poll() is None
    connector.catch_up()
    same(connector, database, "t")
    unbroken(connector, f"{database.name}.t", read_again=True)


def test_a_name_that_is_given_up_and_taken_back(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It stops and says what to do; done, what was written under the other name is there too."""
    database = mysql_database
    database.execute(*(f"CREATE TABLE {t} (id INT PRIMARY KEY)" for t in "ab"), "INSERT INTO a VALUES (1)")
    connector = connector_of(tmp_path, prefix, database, kafka, "a", "b")
    with Running(connector) as running:
        running.await_line("following the log")
        database.execute("RENAME TABLE a TO other", "INSERT INTO other VALUES (2)")
        assert running.ended() == 4
        assert f"table renamed: {database.name}.a is {database.name}.other now" in running.stderr
        assert f"RENAME TABLE {database.name}.other TO {database.name}.a" in running.stderr
    again = connector.here("run", "FILE", "--until-caught-up")
    assert (again.returncode, "table renamed: " in again.stderr) == (4, True), "a start does not pass it over"
    assert connector.fold(f"{database.name}.a").keys() == {b'{"id":1}'}, "and the topic keeps its rows"
    assert f"table {database.name}.a" in connector.here("check", "FILE").stdout
    database.execute("RENAME TABLE other TO a", "INSERT INTO a VALUES (3)")
    connector.catch_up()
    connector.catch_up()
    same(connector, database, "a")


@pytest.mark.full  # cases of such tables, and the soak of MySQL
def test_tables_emptied_dropped_and_made_under_load(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """TRUNCATE between writes; DROP and CREATE with other columns; CREATE TABLE … AS SELECT."""
    database = mysql_database
    filled(database, "t", keys=KEYS)
    database.execute("CREATE TABLE d (id INT PRIMARY KEY, v INT)", "INSERT INTO d VALUES (1, 1), (2, 2)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    with Running(connector) as running:
        running.await_line("following the log")
        with writing(database, "t", keys=KEYS):
            for n in range(3):
                time.sleep(0.3)
                database.execute(
                    "TRUNCATE TABLE t", f"INSERT INTO t VALUES ({n}, 0, 'after')",
                    "DROP TABLE d", f"CREATE TABLE d (id INT PRIMARY KEY, w{n} VARCHAR(9))",
                    f"INSERT INTO d VALUES (1, 'x'), ({n + 5}, 'y')",
                )  # fmt: skip
            select = "SELECT id, n FROM t WHERE id < 50"
            database.execute(_NO_LOCKS, "DROP TABLE d", f"CREATE TABLE d (PRIMARY KEY (id)) AS {select}")
            database.execute("CREATE TABLE made (PRIMARY KEY (id)) AS SELECT id, v FROM d JOIN t USING (id)")
        for table in ("t", "d", "made"):
            becomes(connector, database, table)
        assert running.process.poll() is None
    connector.catch_up()
    for table in ("t", "d", "made"):
        same(connector, database, table)
        unbroken(connector, f"{database.name}.{table}", read_again=True)


@pytest.mark.full
def test_tables_that_go_while_the_first_snapshot_reads(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nobody need act: the others are read, and one that got another name is, under that."""
    database = mysql_database
    database.execute(
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(60))",
        "CREATE TABLE zero (n INT)",
        "INSERT INTO zero VALUES (0)",
        *(f"INSERT INTO zero SELECT n + {1 << bit} FROM zero" for bit in range(18)),
        "INSERT INTO a SELECT n, 'x' FROM zero",
        "DROP TABLE zero",
        *(f"CREATE TABLE {name} AS SELECT * FROM a WHERE id < 500" for name in "mnoz"),
        *(f"ALTER TABLE {name} ADD PRIMARY KEY (id)" for name in "mnoz"),
    )
    connector = connector_of(tmp_path, prefix, database, kafka, "*", snapshot={"workers": 1})
    with Running(connector) as run:
        run.await_line("reading the tables")
        database.execute("DROP TABLE m", "RENAME TABLE n TO n_new", "ALTER TABLE o DROP COLUMN v")
        run.await_following()
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 0, run.stderr
        assert "left out" not in run.stderr
    connector.catch_up()
    for table in ("a", "n_new", "o", "z"):
        same(connector, database, table)


@pytest.mark.full  # the test of this name in test_schema_changes.py
def test_another_key_by_the_file_where_nothing_is_written(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """No event and no statement says so: its rows are read again, and records under the old key deleted."""
    database, name = mysql_database, f"{mysql_database.name}.t"
    database.execute("CREATE TABLE t (a INT PRIMARY KEY, b INT NOT NULL UNIQUE)", "INSERT INTO t VALUES (1, 10)")
    Connector(tmp_path, prefix, database.url, kafka, [name]).catch_up()
    table: Any = {"table": name, "key": ["b"]}
    second = Connector(tmp_path, prefix, database.url, kafka, [table])
    assert f"table {name}: its key is now (b), it was (a): its rows are read again" in second.catch_up()
    assert second.fold(name) == {b'{"b":10}': {"a": 1, "b": 10}}
    assert "read again" not in second.catch_up()


@pytest.mark.full  # where it can be killed: test_the_rows_of_a_large_table_that_is_dropped_are_deleted
@pytest.mark.parametrize("away", [False, True])
def test_a_large_table_that_is_dropped(
    away: bool, mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Its rows are deleted in its topic, too, and not at once: it stopped the connector, or they stayed."""
    database = mysql_database
    filled(database, "t", keys=TRUNCATED_AT_ONCE + 10)
    database.execute("CREATE TABLE u (id INT PRIMARY KEY)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    dropped = ("DROP TABLE t", "INSERT INTO u VALUES (1)")
    if away:
        database.execute(*dropped)
        connector.catch_up()
    else:
        with Running(connector) as running:
            running.await_following()
            database.execute(*dropped)
            running.await_line("was read while the log was followed")
            running.process.send_signal(signal.SIGTERM)
            assert running.ended() == 0, running.stderr
    assert connector.fold(f"{database.name}.t") == {}
    same(connector, database, "u")


@pytest.mark.parametrize("most", [2, TRUNCATED_AT_ONCE])
def test_the_deletes_of_a_table_that_was_dropped_have_what_its_topic_held(
    mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, most: int
) -> None:
    """`sink.before: topic` asks a topic that no captured table has any more: it ended each start."""
    monkeypatch.setattr("cdc.encode.truncates.TRUNCATED_AT_ONCE", most)
    filled(mysql, "t", keys=5)
    filled(mysql, "u", keys=1)
    connector = connector_of(tmp_path, prefix, mysql, kafka, sink={"before": "topic"})
    connector.catch_up()
    mysql.execute("DROP TABLE t", "INSERT INTO u VALUES (1, 1, 'more')")
    connector.catch_up()
    deletes = [event["before"] for event in connector.events(f"{mysql.name}.t") if event["op"] == "d"]
    assert ordered(deletes) == [{"id": n, "n": 0, "v": "seed"} for n in range(5)]
    same(connector, mysql, "u")


@pytest.mark.parametrize("most", [2, TRUNCATED_AT_ONCE])
def test_a_dropped_table_with_a_column_that_is_not_published(
    mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, most: int
) -> None:
    """Nobody has its name any more but the rule, which was told that it may have been renamed."""
    monkeypatch.setattr("cdc.encode.truncates.TRUNCATED_AT_ONCE", most)
    filled(mysql, "t", keys=5)
    filled(mysql, "u", keys=1)
    rules = {"columns": {f"{mysql.name}.*": {"exclude": ["n"]}}}
    connector = connector_of(tmp_path, prefix, mysql, kafka, source=rules)
    connector.catch_up()
    mysql.execute("DROP TABLE t", "INSERT INTO u VALUES (1, 1, 'more')")
    connector.catch_up()
    assert connector.fold(f"{mysql.name}.t") == {}
    assert len(connector.fold(f"{mysql.name}.u")) == 2


def test_a_table_that_goes_as_its_keys_are_looked_at(
    mysql_database: MySQLDatabase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and its first and last key: the others are read, and nobody need act."""
    database = mysql_database
    for table in "ab":
        filled(database, table, keys=50)
    ends = selects.ends_statement

    def dropped(table: Table) -> str:
        if table.name == "a":
            database.execute("DROP TABLE a")
        return ends(table)

    monkeypatch.setattr(selects, "ends_statement", dropped)
    copying = Copying(tmp_path, f"c{database.name}", database.url, [f"{database.name}.?"], chunk_rows=3)
    said = copying.catch_up()
    assert f"sampling table {database.name}.a: it was altered or dropped meanwhile" in said
    assert "left out" not in said
    assert len(copying.rows(f"{database.name}.b")) == 50


def test_a_table_that_goes_before_it_is_locked(mysql: MySQLDatabase) -> None:
    """Without GTIDs, a view is taken under a lock of all tables: it ended the connector, and no restart was tried."""
    gone = Table(mysql.name, "gone", (), ())
    connect = partial(session.connect, session.address(f"{mysql.url}?ssl_mode=disabled"))
    with closing(connect()) as connection:
        found = server.look(connection)
        with pytest.raises(RetryableError, match="of which one is gone: it was altered or dropped meanwhile"):
            views._under_lock([connection], found, [gone], connect, lambda: False, within_s=5)
