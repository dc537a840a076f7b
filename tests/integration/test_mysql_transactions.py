"""Transactions of MySQL and MariaDB: prepared, rolled back in part, compressed, with tables made in them, large."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import SEQUENCE, Life, connector_of, same
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


def test_prepared_and_compressed(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """XA PREPARE is the end of a compressed transaction as well: its rows come with XA COMMIT, or never."""
    mysql.execute("CREATE TABLE a (id INT PRIMARY KEY, v TEXT)", "INSERT INTO a VALUES (1, 'x')")
    connector = connector_of(tmp_path, prefix, mysql, kafka)
    connector.catch_up()
    for xid, number in (("kept", 2), ("lost", 3)):
        name = f"'{prefix}-{xid}'"
        row = f"INSERT INTO a VALUES ({number}, REPEAT('y', 1000))"
        compressed = "SET SESSION binlog_transaction_compression = ON"
        mysql.execute(compressed, f"XA START {name}", row, f"XA END {name}", f"XA PREPARE {name}")
    connector.catch_up()
    assert len(connector.fold(f"{mysql.name}.a")) == 1
    mysql.execute(f"XA COMMIT '{prefix}-kept'", f"XA ROLLBACK '{prefix}-lost'")
    connector.catch_up()
    same(connector, mysql, "a")
    assert len(connector.records(f"{mysql.name}.a")) == 2


@pytest.mark.full  # test_killed_in_the_middle_of_many_rows, test_memory_of_a_large_transaction
def test_memory_of_a_compressed_transaction(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """One event of 90 MB, in which nothing can be compressed, costs no 90 MB."""
    mysql.execute("CREATE TABLE t (id INT PRIMARY KEY, v VARBINARY(3000))")
    connector = connector_of(tmp_path, prefix, mysql, kafka, "t")
    connector.catch_up()
    mysql.execute(
        "SET SESSION binlog_transaction_compression = ON", "SET SESSION cte_max_recursion_depth = 100000",
        f"INSERT INTO t SELECT x, CONCAT({', '.join(['RANDOM_BYTES(1000)'] * 3)}) FROM {SEQUENCE.format(last=29_999)}",
    )  # fmt: skip
    life = Life(connector, "cdc", "run")
    assert life.code == 0, life.stderr
    assert 0 < life.peak_mb < 200, life.peak_mb
    keys = {int(r.raw_key.removeprefix(b'{"id":').removesuffix(b"}")) for r in connector.records(f"{mysql.name}.t")}
    assert keys == set(range(30_000))
