"""MySQL and MariaDB, from snapshot to stream, killed and resumed: the topic folds to the table."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from connectors.mysql import session
from connectors.mysql.catalog.catalog import Catalog
from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import connector_of, filled, same, writing
from tests.integration.running import Running, eventually, standing, unbroken


@pytest.mark.full  # the soak of MySQL
@pytest.mark.parametrize(
    "key", [pytest.param("id INT", marks=pytest.mark.full), "id VARCHAR(20) CHARACTER SET utf8mb4"], ids=["int", "text"]
)
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
            asked = connector.here("snapshot", "start", "FILE")
            assert asked.returncode == 0, asked.stderr
            eventually(lambda: standing(connector).reading, "the reading has begun")
        with Running(connector) as again:
            again.await_line("was read while the log was followed")
    connector.catch_up()
    same(connector, database, "t")
    unbroken(connector, f"{database.name}.t", read_again=True)


@pytest.mark.full  # test_a_day_that_there_is_not_is_compared_as_a_text
def test_days_that_there_are_not_in_a_key(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Sessions that allow them write such days, and a window may end with one: the next begins behind it."""
    days = ["0000-00-00", "2023-02-30", "2024-00-00", "2024-02-28", "2024-02-31", "2024-04-31", "2024-05-01"]
    with closing(mysql.connect(database=mysql.name)) as connection, connection.cursor() as cursor:
        cursor.execute("SET SESSION sql_mode = 'ALLOW_INVALID_DATES'")
        cursor.execute("CREATE TABLE t (d DATE PRIMARY KEY, v INT)")
        cursor.execute(f"INSERT INTO t VALUES {', '.join(f'({day!r}, 1)' for day in days)}")
        connector = connector_of(tmp_path, prefix, mysql, kafka, "t", snapshot={"chunk_rows": 1})
        connector.catch_up()
        cursor.execute("SET SESSION sql_log_bin = 0")
        cursor.execute("UPDATE t SET v = 2")
    assert connector.here("snapshot", "start", "FILE").returncode == 0
    connector.catch_up()
    last = {record.raw_key: record.value for record in connector.records(f"{mysql.name}.t")}
    assert [event and event["after"]["v"] for event in last.values()] == [2] * len(days)


def test_a_look_opens_no_tables_but_those_that_are_wanted(mysql_database: MySQLDatabase) -> None:
    """Of a server with tens of thousands of tables, a look that opens each takes minutes, and the server's memory."""
    others = [f"{mysql_database.name}.other_{n}" for n in range(30)]
    mysql_database.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY)" for name in ("t", *others)), "FLUSH TABLES")
    with closing(session.connect(session.address(f"{mysql_database.url}?ssl_mode=disabled"))) as connection:
        look = Catalog(connection)
        (captured,) = look.captured([f"{mysql_database.name}.t"])
        ((_, opened),) = session.texts(connection, "looking", "SHOW SESSION STATUS LIKE 'Opened_tables'")
    assert captured.table.key == ("id",)
    assert int(opened) < len(others)
