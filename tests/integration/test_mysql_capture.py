"""MySQL and MariaDB, from snapshot to stream, killed and resumed: the topic folds to the table."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from cdc.model.change import Row
from connectors.mysql import session
from connectors.mysql.catalog.catalog import Catalog
from snapshot.handover import key_of
from snapshot.mysql import selects
from snapshot.mysql.rows import all_rows
from snapshot.mysql.selects import Relation
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


def test_keys_that_a_collation_does_not_pad(mariadb: MySQLDatabase) -> None:
    """MariaDB does not find all of CHAR in its own index: 'a' behind a tab, letters of another character set."""
    mariadb.execute(
        "CREATE TABLE t (k CHAR(8) CHARACTER SET latin1 COLLATE latin1_swedish_nopad_ci NOT NULL, m INT NOT NULL,"
        " PRIMARY KEY (k, m))"
    )
    values = ["", "a", "b", "a b", "é", "a\t", "\t", "?", "zz", "a\x01", "ß"]
    mariadb.execute(*(f"INSERT INTO t VALUES (_utf8mb4 x'{v.encode().hex()}', {m})" for v in values for m in (1, 2)))
    with closing(session.connect(session.address(f"{mariadb.url}?ssl_mode=disabled"))) as connection:
        found = Catalog(connection).find(mariadb.name, "t", {})
        assert found is not None
        table, relation = found.table, Relation(found.columns)

        def read(statement: str) -> list[Row]:
            return all_rows(connection, "reading", statement, ())

        there, windows = read(selects.chunk_statement(table, relation, after=None, upto=None)), list[Row]()
        while len(windows) < len(there):
            after = key_of(table, windows[-1]) if windows else None
            more = read(selects.window_statement(table, relation, after=after, rows=3))
            assert more
            windows += more
        named = read(selects.keys_statement(table, relation, [key_of(table, row) for row in there]))
    assert len(there) == 2 * len(values)
    assert sorted(windows) == sorted(named) == sorted(there)
