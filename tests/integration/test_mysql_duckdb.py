"""MySQL into a DuckDB file."""

from __future__ import annotations

import datetime as dt
import random
from pathlib import Path

from tests.conftest import MySQLDatabase
from tests.integration.copies import Copy, killed


def test_mysql_by_kills(mysql: MySQLDatabase, tmp_path: Path) -> None:
    """Key changes, all at once; a column of another name; TIME beyond a day; a file that is named as its database."""
    mysql.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int, late time, big bigint unsigned)",
        "INSERT INTO t VALUES (1, 0, '-838:59:59', 18446744073709551615), (2, 0, '24:00:00', 0)",
    )
    name = mysql.name
    source = {"type": "mysql", "url": mysql.url, "tables": [f"{name}.t"]}
    copy, at = Copy(tmp_path, source), random.Random(5)
    killed(copy, at)
    mysql.execute("UPDATE t SET id = id + 10 ORDER BY id DESC", "ALTER TABLE t RENAME COLUMN n TO m")
    killed(copy, at)
    mysql.execute("INSERT INTO t VALUES (3, 5, NULL, NULL)", "DELETE FROM t WHERE id = 11")
    copy.catch_up()
    hours = dt.timedelta(days=1)
    assert copy.sql(f"SELECT id, m, late, big FROM {name}.t ORDER BY id") == [(3, 5, None, None), (12, 0, hours, 0)]
