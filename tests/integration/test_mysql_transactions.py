"""Transactions of MySQL and MariaDB: prepared, rolled back in part, compressed, with tables made in them, large."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import SEQUENCE, connector_of, same
from tests.integration.running import unbroken


def test_prepared_transactions(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Rows at the commit, in its place; kept over a restart of the connector between; none of what is rolled back."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    name = f"{database.name}.a"

    def prepared(xid: str, row: str) -> None:
        database.execute(f"XA START '{xid}'", f"INSERT INTO a VALUES {row}", f"XA END '{xid}'", f"XA PREPARE '{xid}'")

    prepared(f"{prefix}-kept", "(2, 2), (3, 3)")
    prepared(f"{prefix}-lost", "(4, 4)")
    database.execute("INSERT INTO a VALUES (5, 5)")
    connector.catch_up()
    assert len(connector.fold(name)) == 2
    database.execute("INSERT INTO a VALUES (6, 6)")
    connector.catch_up()  # begins behind the preparing, which it needs
    database.execute(f"XA COMMIT '{prefix}-kept'", f"XA ROLLBACK '{prefix}-lost'")
    connector.catch_up()
    same(connector, database, "a")
    unbroken(connector, name)
    assert [event["after"]["id"] for event in connector.events(name)] == [1, 5, 6, 2, 3]
    connector.catch_up()
    assert len(connector.records(name)) == 5


def test_savepoints_and_tables_made_in_a_transaction(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (1)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    database.execute(
        "BEGIN", "INSERT INTO a VALUES (2)", "SAVEPOINT s", "INSERT INTO a VALUES (3)", "ROLLBACK TO s",
        "INSERT INTO a VALUES (4)", "COMMIT",
        "CREATE TABLE b (PRIMARY KEY (id)) AS SELECT id, id * 10 AS n FROM a",
        "DROP TABLE a", "CREATE TABLE a (id INT PRIMARY KEY)", "INSERT INTO a VALUES (9)",
    )  # fmt: skip
    connector.catch_up()
    same(connector, database, "a")
    same(connector, database, "b")


def test_a_large_transaction_that_is_compressed(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Any session may switch compression on; the same rows come."""
    mysql.execute("CREATE TABLE a (id INT PRIMARY KEY, v VARCHAR(99))")
    connector = connector_of(tmp_path, prefix, mysql, kafka)
    connector.catch_up()
    fill = f"INSERT INTO a SELECT x, CONCAT('value ', x) FROM {SEQUENCE.format(last=19_999)}"
    mysql.execute(
        "SET SESSION binlog_transaction_compression = ON", "SET SESSION cte_max_recursion_depth = 100000", fill,
        "UPDATE a SET v = 'x' WHERE id < 10",
    )  # fmt: skip
    connector.catch_up()
    same(connector, mysql, "a")
    assert len({event["transaction"]["id"] for event in connector.events(f"{mysql.name}.a")}) == 2


def test_a_format_that_a_session_sets(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A statement in the place of rows, a row that is not whole: a stop that says where and what to set."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT, w INT)", "INSERT INTO a VALUES (1, 1, 1)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    connector.catch_up()
    database.execute("SET SESSION binlog_row_image = MINIMAL", "UPDATE a SET v = 2 WHERE id = 1")
    done = connector.cdc("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert "binlog_row_image" in done.stderr
    assert "SET GLOBAL binlog_row_image = FULL" in done.stderr
    assert len(connector.records(f"{database.name}.a")) == 1
