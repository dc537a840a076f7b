"""Binlogs that are gone, reset, or another server's; rights that are missing: each named, with what to do."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of, is_mysql, same
from tests.integration.running import Running, eventually, unbroken


def _refused(connector: Connector, verdict: str) -> str:
    """Run and check stop with the same words."""
    run, check = connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")
    assert run.returncode == (4 if verdict.startswith("binlog ") and verdict != "binlog off" else 1), run.stderr
    assert check.returncode == 1, check.stdout
    assert verdict in run.stderr
    assert verdict in check.stdout
    assert "hint" in run.stderr
    return run.stderr


def _begun(database: MySQLDatabase, kafka: str, prefix: str, folder: Path, **more: object) -> Connector:
    database.execute("CREATE TABLE a (id INT PRIMARY KEY, v INT)", "INSERT INTO a VALUES (1, 1), (2, 2)")
    connector = connector_of(folder, prefix, database, kafka, **more)
    connector.catch_up()
    return connector


def test_an_idle_server_and_its_rotations_are_no_reason_to_stop(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Files come and go behind the position, with checksums and without; what was between is there."""
    database = mysql_database
    connector = _begun(database, kafka, prefix, tmp_path)
    for n, checksum in enumerate(("NONE", "CRC32", "CRC32")):
        database.execute(
            *("FLUSH BINARY LOGS", f"INSERT INTO a VALUES ({10 + n}, 0)", f"SET GLOBAL binlog_checksum = {checksum}"),
            *(f"INSERT INTO a VALUES ({20 + n}, 0)", "FLUSH BINARY LOGS"),
        )
        connector.catch_up()
    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    same(connector, database, "a")
    unbroken(connector, f"{database.name}.a")
    status = connector.here("status", "FILE")
    assert "binlog" in status.stdout


def _purged(database: MySQLDatabase, file: str) -> bool:
    """Whether the log begins with `file`: what the thread of a connection just closed still reads is not removed."""
    database.execute(f"PURGE BINARY LOGS TO '{file}'")
    return str(database.rows("SHOW BINARY LOGS")[0][0]) == file


def test_a_purge_and_closing_the_gap(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    database = mysql_database
    connector = _begun(database, kafka, prefix, tmp_path)
    database.execute("INSERT INTO a VALUES (3, 3)", "DELETE FROM a WHERE id = 1", "FLUSH BINARY LOGS")
    status = "SHOW BINARY LOG STATUS" if is_mysql(database) else "SHOW MASTER STATUS"
    ((file, *_),) = database.rows(status)
    eventually(lambda: _purged(database, str(file)), "the log is purged, once nobody reads it")
    _refused(connector, "binlog purged")
    connector.close_the_gap()
    same(connector, database, "a")
    database.execute("UPDATE a SET v = 9 WHERE id = 2")
    connector.catch_up()
    same(connector, database, "a")


@pytest.mark.full  # when, and when not: `tests/unit/test_mysql_continuity.py`
def test_gtid_purged_set_by_hand(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A dump that is loaded sets it, and switches the log off for its rows: tables are read again, once."""
    connector = _begun(mysql, kafka, prefix, tmp_path)
    mysql.execute(
        *("SET SESSION sql_log_bin = 0", "DELETE FROM a WHERE id = 1", "INSERT INTO a VALUES (3, 3)"),
        f"SET GLOBAL gtid_purged = '+{uuid.uuid4()}:1-7'",
    )
    assert f"table {mysql.name}.a: gtid_purged was set by hand" in connector.catch_up()
    same(connector, mysql, "a")
    assert "gtid_purged" not in connector.catch_up()


def test_a_reset(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A new binlog that starts at a lower number, also when it has grown past the position since."""
    database = mysql_database
    reset = "RESET BINARY LOGS AND GTIDS" if is_mysql(database) else "RESET MASTER"
    database.execute(reset)  # what other tests have left counts by tags and other servers
    connector = _begun(database, kafka, prefix, tmp_path)
    before = "SELECT REGEXP_SUBSTR(@@GLOBAL.gtid_executed, '[0-9]+$')" if is_mysql(database) else "SELECT 0"
    ((count,),) = database.rows(before)
    database.execute(reset, "INSERT INTO a VALUES (4, 4)")
    _refused(connector, "binlog reset")
    if is_mysql(database):  # where the numbers are known that it gives out again
        database.execute(*(f"UPDATE a SET v = {n} WHERE id = 4" for n in range(int(count))))
        _refused(connector, "binlog rewritten")


@pytest.mark.every_server  # MySQL noticed it at the next start, MariaDB never
@pytest.mark.parametrize("turns", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_reset_while_the_log_is_followed(
    turns: int, mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The dump goes on in the new log's second file: what is in the first one does not come, and nothing behind it.

    It ends at once where it is in a later file, which the new log does not have.
    """
    database = mysql_database
    reset = "RESET BINARY LOGS AND GTIDS" if is_mysql(database) else "RESET MASTER"
    database.execute(reset, *(["FLUSH BINARY LOGS"] * turns), "DO SLEEP(1)")  # files begin in seconds of their own
    connector = _begun(database, kafka, prefix, tmp_path)
    with Running(connector) as running:
        running.await_following()
        database.execute(reset, "INSERT INTO a VALUES (3, 3)", "FLUSH BINARY LOGS", "INSERT INTO a VALUES (4, 4)")
        assert running.ended() == 4, running.stderr
        assert turns or "the server has begun its log from the beginning: " in running.stderr
        assert "binlog reset" in running.stderr
    _refused(connector, "binlog reset")
    connector.close_the_gap()
    same(connector, database, "a")


def test_rights_that_are_missing(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """One by one, each with its GRANT."""
    database = mysql_database
    database.execute("CREATE TABLE a (id INT PRIMARY KEY)")
    connector = connector_of(tmp_path, prefix, database, kafka)
    user = f"'cdc_capture_{database.name}'@'%'"
    logs = "REPLICATION CLIENT" if is_mysql(database) else "BINLOG MONITOR"
    for right, of in ((logs, "*.*"), ("REPLICATION SLAVE", "*.*"), ("SELECT", f"`{database.name}`.*")):
        database.execute(f"REVOKE {right} ON {of} FROM {user}")
        run = connector.here("run", "FILE", "--until-caught-up")
        assert run.returncode == 1, run.stderr
        assert right in run.stderr
        check = connector.here("check", "FILE")
        assert check.returncode == 1
        assert right in check.stdout
        database.execute(f"GRANT {right} ON {of} TO {user}")
    connector.catch_up()


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_table_that_may_not_be_read_stops_no_other(
    *, runs: bool, mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It is left out at a start; once the right is back, it is read."""
    database, user = mysql_database, f"'cdc_capture_{mysql_database.name}'@'%'"
    database.execute(
        *(f"CREATE TABLE {t} (id INT PRIMARY KEY)" for t in "abc"), *(f"INSERT INTO {t} VALUES (1), (2)" for t in "abc")
    )
    connector = connector_of(tmp_path, prefix, database, kafka, "a", "b", "c")
    database.execute(
        f"REVOKE SELECT ON `{database.name}`.* FROM {user}",
        *(f"GRANT SELECT ON `{database.name}`.{t} TO {user}" for t in "abc"),
    )
    away = [f"REVOKE SELECT ON `{database.name}`.{t} FROM {user}" for t in "bc"]
    back = [statement.replace("REVOKE", "GRANT").replace("FROM", "TO") for statement in away]
    written = [
        f"{done} {t}{how}"
        for t in "abc"
        for done, how in (("DELETE FROM", " WHERE id = 1"), ("INSERT INTO", " VALUES (3)"))
    ]
    connector.catch_up()
    database.execute(*away, *written)
    said = connector.catch_up()
    for name in "bc":
        assert f"ERROR   table {database.name}.{name} may not be read by this user, or does not exist" in said
        assert f"GRANT SELECT ON `{database.name}`.`{name}` TO {user}" in said
    assert connector.here("check", "FILE").returncode == 0
    same(connector, database, "a")
    if runs:
        with Running(connector) as running:
            running.await_following()
            database.execute(*back)
            for name in "bc":
                running.await_line(f"table {database.name}.{name} was read while the log was followed")
    else:
        database.execute(*back)
    connector.catch_up()
    for name in "abc":
        same(connector, database, name)


@pytest.mark.full  # those of PostgreSQL in test_bad_input.py, and units of MySQL's catalog
def test_tables_that_cannot_be_captured(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    mysql.execute(
        "CREATE TABLE keyless (id INT)",
        "CREATE TABLE plain (id INT PRIMARY KEY) ENGINE=MyISAM",
        "CREATE VIEW seen AS SELECT 1 AS id",
    )
    for table, verdict in (
        ("keyless", "no primary key"),
        ("plain", "no transactions"),
        ("seen", "is a view"),
        ("missing", "there is no table"),
    ):
        _refused(connector_of(tmp_path, prefix, mysql, kafka, table), verdict)


def test_the_servers_own_number(mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    mysql.execute("CREATE TABLE a (id INT PRIMARY KEY)")
    ((number,),) = mysql.rows("SELECT @@GLOBAL.server_id")
    _refused(connector_of(tmp_path, prefix, mysql, kafka, source={"server_id": number}), "duplicate server_id")


def test_a_column_that_a_foreign_key_changes(mariadb: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Its changes never reach the log, which only `cdc check` can say."""
    mariadb.execute(
        "CREATE TABLE p (id INT PRIMARY KEY)",
        "CREATE TABLE c (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES p (id) ON DELETE CASCADE)",
    )
    checked = connector_of(tmp_path, prefix, mariadb, kafka).here("check", "FILE")
    assert "does not log that" in checked.stdout
