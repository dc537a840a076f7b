"""MySQL without Kafka: `cdc.follow`, and a file of JSON lines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import cdc
from tests.conftest import MySQLDatabase
from tests.integration.test_jsonl import Lines


def _follow(url: str, position: Path, *tables: str, create: bool = True) -> list[tuple[str, Any]]:
    found = []
    with cdc.follow(url, tables=tables, position=position, create=create, until_caught_up=True) as following:
        for transaction in following:
            found += [(change.op, change.key and change.key["id"]) for change in transaction]
            transaction.done()
    return found


def test_mysql_is_followed_too(mysql: MySQLDatabase, tmp_path: Path) -> None:
    """With types that Python has and the server's text where it has none; a truncate is one change."""
    position = tmp_path / "shop.pos"
    mysql.execute(
        "CREATE TABLE t (id INT PRIMARY KEY, n DECIMAL(5,2), at DATETIME(3), d TIME, b BLOB)",
        "INSERT INTO t VALUES (1, 1.50, '2024-02-29 12:00:00.5', '-25:00:00', x'00ff')",
    )
    table = f"{mysql.name}.t"
    with pytest.raises(cdc.OperatorError, match="create=True"):
        _follow(mysql.url, position, table, create=False)
    with cdc.follow(mysql.url, tables=[table], position=position, create=True, until_caught_up=True) as following:
        (transaction,) = following
        (change,) = transaction
        transaction.done()
    assert change.table == table
    assert change.after is not None
    assert [repr(value) for value in change.after.values()] == [
        "1",
        "Decimal('1.50')",
        "datetime.datetime(2024, 2, 29, 12, 0, 0, 500000)",
        "datetime.timedelta(days=-2, seconds=82800)",
        "b'\\x00\\xff'",
    ]
    mysql.execute(
        "BEGIN", "INSERT INTO t (id) VALUES (2), (3)", "COMMIT", "TRUNCATE t", "INSERT INTO t (id) VALUES (4)"
    )
    assert _follow(mysql.url, position, table) == [("c", 2), ("c", 3), ("t", None), ("c", 4)]
    with pytest.raises(cdc.ConfigError, match=r"“b” is not schema\.table"):
        _follow(mysql.url, position, "b")


def test_a_file_of_lines(mysql: MySQLDatabase, tmp_path: Path) -> None:
    mysql.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    lines = Lines(tmp_path, mysql.url, [f"{mysql.name}.t"])
    lines.catch_up()
    mysql.execute("INSERT INTO t VALUES (2)", "DELETE FROM t WHERE id = 1")
    lines.catch_up()
    assert lines.fold() == [{"id": 2}]
    mysql.execute("TRUNCATE t", "INSERT INTO t VALUES (3)")
    lines.catch_up()
    assert lines.fold() == [{"id": 3}]
