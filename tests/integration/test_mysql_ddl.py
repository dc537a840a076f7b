"""DDL on servers of their own, which compare names in small letters; and what no case as data can do."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from cdc.model.errors import RetryableError
from connectors.mysql.catalog.names import folded
from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_servers import OwnServer, own_server
from tests.integration.mysql_work import connector_of, rows, same
from tests.integration.running import Running, eventually, ordered


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def own(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnServer]:
    """lower_case_table_names = 1; and InnoDB carries out foreign keys, as MariaDB's and older MySQL's do."""
    native = {"loose_innodb_native_foreign_keys": "ON"}
    with own_server(
        request.param, tmp_path_factory.mktemp(request.param), lower_case_table_names="1", **native
    ) as made:
        yield made


def becomes(running: Running, connector: Connector, database: MySQLDatabase, table: str) -> None:
    """Sooner or later, without a restart and without another write."""

    def is_there() -> bool:
        try:
            last = ordered(connector.fold(f"{database.name}.{table}").values())
        except RetryableError:  # its topic is not made yet
            return False
        return last == ordered(rows(database, f"SELECT * FROM {table}"))

    try:
        eventually(is_there, "")
    except AssertionError:
        pytest.fail(f"the topic of {table} is not the table:\n{running.stderr}")


def test_names_in_other_letters(own: OwnServer, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The server takes them for the same table, in the configuration and in every statement."""
    database = own.database
    database.execute(
        "CREATE TABLE Orders (id INT PRIMARY KEY)", "INSERT INTO orders VALUES (1), (2)",
        "CREATE TABLE Items (id INT PRIMARY KEY, code INT NOT NULL UNIQUE)",
        "INSERT INTO items VALUES (1, 11), (2, 12)",
        "CREATE TABLE `É` (id INT PRIMARY KEY)", "INSERT INTO é VALUES (1)",
        "CREATE TABLE Going (id INT PRIMARY KEY)", "INSERT INTO going VALUES (1)",
        "CREATE TABLE Gate (id INT PRIMARY KEY)",
        "CREATE TABLE Parents (Id INT PRIMARY KEY, n INT)", "INSERT INTO parents VALUES (1, 1), (2, 2), (3, 3), (4, 4)",
        "CREATE TABLE Gone (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES PARENTS (ID) ON DELETE CASCADE)",
        "INSERT INTO gone VALUES (11, 1), (12, 2), (13, 3), (14, 4)",
    )  # fmt: skip
    tables = ["DEV.ORDERS", {"table": "Dev.Items", "key": ["code"]}, "dev.É", "DEV.G*", "dev.New*"]
    connector = connector_of(tmp_path, prefix, database, kafka, source={"tables": tables})
    assert connector.here("check", "FILE").returncode == 1, "nothing has the name new*"
    database.execute("CREATE TABLE NEWS (id INT PRIMARY KEY)")
    with Running(connector) as running:
        running.await_following()
        database.execute(
            "TRUNCATE TABLE DEV.ORDERS", "INSERT INTO Orders VALUES (3)", "ALTER TABLE ITEMS ADD n INT DEFAULT 5",
            "TRUNCATE TABLE `é`", "DROP TABLE GOING", "CREATE TABLE Newer (id INT PRIMARY KEY)",
            "INSERT INTO NEWER VALUES (8)", "DELETE FROM PARENTS WHERE id = 1", "UPDATE parents SET n = 9 WHERE id = 2",
        )  # fmt: skip
        for table in ("orders", "items", "é", "newer", "gone"):
            becomes(running, connector, database, table)
        read = running.stderr.count("table dev.gone was read")
        database.execute(
            "CREATE TABLE Late (id INT PRIMARY KEY)", "INSERT INTO LATE VALUES (12), (13), (14)",
            "ALTER TABLE GONE ADD FOREIGN KEY (id) REFERENCES Late (id) ON UPDATE CASCADE",
        )  # fmt: skip
        running.await_line("table dev.gone was read", times=read + 1)
        database.execute("UPDATE late SET id = 22 WHERE id = 12")
        becomes(running, connector, database, "gone")
        eventually(lambda: connector.fold("dev.going") == {}, "the rows of a table that is gone are gone")
        database.execute(
            "RENAME TABLE NEWER TO Newest", "CREATE TABLE Newer LIKE NEWEST", "INSERT INTO newer VALUES (9)"
        )
        for table in ("newest", "newer"):
            becomes(running, connector, database, table)
        assert running.process.poll() is None
    assert {*connector.fold("dev.items")} == {b'{"code":11}', b'{"code":12}'}
    connector.catch_up()
    for table in ("orders", "items", "newest", "newer"):
        same(connector, database, table)


def test_a_database_dropped_and_a_tablespace_exchanged(own: OwnServer, kafka: str, prefix: str, tmp_path: Path) -> None:
    """No event tells of a row; two tables are dropped while nobody follows, too."""
    database = own.database
    database.execute(
        "CREATE DATABASE Second", "CREATE TABLE second.b (id INT PRIMARY KEY)", "INSERT INTO second.b VALUES (1), (2)",
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY, v INT)" for t in ("sp_a", "sp_b", "sp_c", "other")),
        *(f"INSERT INTO {t} VALUES (1, 1), (2, 2)" for t in ("sp_a", "sp_b", "sp_c")),
        "INSERT INTO other VALUES (7, 7), (8, 8)",
    )  # fmt: skip
    connector = connector_of(tmp_path, prefix, database, kafka, source={"tables": ["SECOND.*", "dev.sp_*"]})
    user = f"cdc_capture_{database.name}"
    database.execute(f"GRANT SELECT ON second.* TO '{user}'@'%'")
    data = Path(database.rows("SELECT @@datadir")[0][0]) / database.name
    with Running(connector) as running:
        running.await_following()
        with closing(database.connect()) as session, session.cursor() as cursor:
            cursor.execute("FLUSH TABLES other FOR EXPORT")
            for ending in ("ibd", "cfg"):
                shutil.copy(data / f"other.{ending}", tmp_path / f"sp_a.{ending}")
            cursor.execute("UNLOCK TABLES")
        database.execute("ALTER TABLE sp_a DISCARD TABLESPACE")
        eventually(lambda: connector.fold("dev.sp_a") == {}, "no row of it can be read")
        for ending in ("ibd", "cfg"):
            shutil.copy(tmp_path / f"sp_a.{ending}", data)
            shutil.chown(data / f"sp_a.{ending}", (data / "other.ibd").owner(), (data / "other.ibd").group())
        database.execute("ALTER TABLE SP_A IMPORT TABLESPACE", "DROP DATABASE SECOND")
        becomes(running, connector, database, "sp_a")
        eventually(lambda: connector.fold("second.b") == {}, "all tables of the database are gone")
        assert running.process.poll() is None
    database.execute("DROP TABLE sp_b", "RENAME TABLE SP_C TO sp_d", "CREATE DATABASE second",
                     "CREATE TABLE second.b (id INT PRIMARY KEY)")  # fmt: skip
    connector.catch_up()
    assert connector.fold("dev.sp_b") == connector.fold("dev.sp_c") == {}
    same(connector, database, "sp_d")


def test_small_letters_are_the_servers(mysql_database: MySQLDatabase) -> None:
    """Of every letter that a name may have."""
    letters = [chr(code) for code in range(1, 0x10000) if not 0xD800 <= code < 0xE000]
    with closing(mysql_database.connect()) as session, session.cursor() as cursor:
        for at in range(0, len(letters), 1000):
            some = letters[at : at + 1000]
            each = (f"HEX(LOWER(_utf8mb3 x'{letter.encode().hex()}' COLLATE utf8mb3_general_ci))" for letter in some)
            cursor.execute(f"SELECT {', '.join(each)}")
            theirs = [bytes.fromhex(small).decode() for small in cursor.fetchone() or ()]
            assert [folded(letter) for letter in some] == theirs
