"""MySQL and MariaDB, from snapshot to stream, killed and resumed: the topic folds to the table."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import connector_of, filled, rows, same, writing
from tests.integration.running import Running, eventually, standing, unbroken


def test_rows_and_changes(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Snapshot, changes of all kinds, key changes, a truncate; a second run adds nothing."""
    database = mysql_database
    database.execute(
        "CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(20))",
        "CREATE TABLE p (x VARCHAR(10), y INT, v TEXT, PRIMARY KEY (y, x))",
        "CREATE TABLE gone (id INT PRIMARY KEY)",
        "INSERT INTO a VALUES (1, 'one'), (2, NULL), (3, 'three')",
        "INSERT INTO p VALUES ('b', 1, 'x'), ('B2', 1, ''), ('a', -2, 'é')",
        "INSERT INTO gone VALUES (1), (2)",
    )
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    for table in ("a", "p", "gone"):
        same(connector, database, table)
    assert {event["op"] for event in connector.events(f"{database.name}.a")} == {"r"}
    database.execute(
        "BEGIN", "UPDATE a SET v = 'two' WHERE id = 2", "DELETE FROM a WHERE id = 3",
        "UPDATE a SET id = 7 WHERE id = 1",
        "INSERT INTO p VALUES ('c', 5, 'new')", "COMMIT",
        "BEGIN", "DELETE FROM a", "ROLLBACK",
        "TRUNCATE TABLE `gone` /* all of it */", "INSERT INTO gone VALUES (9)",
    )  # fmt: skip
    connector.catch_up()
    for table in ("a", "p", "gone"):
        same(connector, database, table)
        unbroken(connector, f"{database.name}.{table}")
    (moved,) = [e for e in connector.events(f"{database.name}.a") if e["op"] == "c"]
    source = moved["source"]
    assert source["connector"] == "mysql"
    assert source["db"] == database.name
    assert source["file"].startswith("binlog.")
    assert source["gtid"] in (moved["transaction"]["id"], None)  # where the server has them
    assert source["pos"] > 0
    before = len(connector.records(f"{database.name}.a"))
    connector.catch_up()
    assert len(connector.records(f"{database.name}.a")) == before


@pytest.mark.parametrize("key", ["id INT", "id VARCHAR(20) CHARACTER SET utf8mb4"])
def test_kills_during_snapshot_and_stream(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path, key: str
) -> None:
    """SIGKILL again and again while rows are read and changes followed: fold = source, nothing doubled."""
    database, keys = mysql_database, 30_000
    filled(database, "t", keys=keys, key=key)
    connector = connector_of(tmp_path, prefix, database, kafka, "t", snapshot={"chunk_rows": 1_000, "workers": 3})
    # Without a pause of the writers, what is committed while a view is taken may be told twice: the lock makes one.
    database.execute(f"GRANT LOCK TABLES ON {database.name}.* TO 'cdc_capture_{database.name}'@'%'")
    with writing(database, "t", keys=keys, key=key):
        for pause_s in (1.2, 1.4, 1.6, 2.0, 2.4):
            with Running(connector):
                time.sleep(pause_s)
        with Running(connector) as last:
            last.await_line("following the log")
            time.sleep(1)
    connector.catch_up()
    same(connector, database, "t")
    unbroken(connector, f"{database.name}.t")


def test_read_again_while_followed(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`cdc snapshot start` under load, killed in its middle: no row is older than what was there."""
    database, keys = mysql_database, 8_000
    filled(database, "t", keys=keys)
    connector = connector_of(tmp_path, prefix, database, kafka, "t", snapshot={"chunk_rows": 500})
    connector.catch_up()
    with writing(database, "t", keys=keys):
        with Running(connector):
            asked = connector.cdc("snapshot", "start", "FILE")
            assert asked.returncode == 0, asked.stderr
            eventually(lambda: standing(connector).reading, "the reading has begun")
        with Running(connector) as again:
            again.await_line("was read while the log was followed")
    connector.catch_up()
    same(connector, database, "t")
    unbroken(connector, f"{database.name}.t", read_again=True)


def test_a_table_that_is_added(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """One made while the connector runs, of a pattern it has, is taken up with all its rows."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    database.execute("CREATE TABLE b (id INT PRIMARY KEY, n INT)", "INSERT INTO b VALUES (1, 1), (2, 2)")
    with Running(connector) as running:
        running.await_line("table")
        database.execute("UPDATE b SET n = 5 WHERE id = 2")
        eventually(lambda: len(connector.fold(f"{database.name}.b")) == 2, "rows of b")
    connector.catch_up()
    same(connector, database, "b")


def test_columns_that_change(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Each event has the columns of its own time, by what the log says."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(9))", "INSERT INTO a VALUES (1, 'x')")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    database.execute(
        "INSERT INTO a VALUES (2, 'y')",
        "ALTER TABLE a ADD COLUMN first INT FIRST",
        "INSERT INTO a VALUES (3, 3, 'z')",
        "ALTER TABLE a CHANGE v w VARCHAR(9), ADD COLUMN d INT NOT NULL DEFAULT 4 AFTER id",
        "INSERT INTO a (first, id, w) VALUES (4, 4, 'w')",
        "ALTER TABLE a DROP COLUMN first",
        "INSERT INTO a VALUES (5, 5, 'v')",
    )
    connector.catch_up()
    same(connector, database, "a")
    images = [sorted(e["after"]) for e in connector.events(f"{database.name}.a") if e["op"] == "c"]
    assert images == [["id", "v"], ["first", "id", "v"], ["d", "first", "id", "w"], ["d", "id", "w"]]


def test_a_swap_by_rename(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """As online schema tools cut over: the other table's rows are read."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    connector = connector_of(tmp_path, prefix, database, kafka, "a")
    connector.catch_up()
    time.sleep(1.1)  # when a table was made is told in seconds
    database.execute(
        "CREATE TABLE _a_gho (id INT PRIMARY KEY, v BIGINT, more INT)",
        "INSERT INTO _a_gho SELECT id, v * 10, 0 FROM a",
        "RENAME TABLE a TO _a_del, _a_gho TO a",
        "UPDATE a SET v = 7 WHERE id = 1",
    )
    connector.catch_up()
    connector.catch_up()
    same(connector, database, "a")
    assert len(rows(database, "SELECT * FROM a")) == 2


def test_a_column_that_is_dropped_and_made_again(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The columns are what they were, and their values are not, of which no event tells."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    connector = connector_of(tmp_path, prefix, database, kafka, "a")
    connector.catch_up()
    time.sleep(1.1)  # when a table was altered is told in seconds
    database.execute("ALTER TABLE a DROP COLUMN v, ADD COLUMN v INT")
    assert "read again" in connector.catch_up()
    same(connector, database, "a")
