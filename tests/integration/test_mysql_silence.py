"""Connections that died without a word, or with one: noticed in time, and nothing is lost or doubled."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pymysql
import pytest

from tests.conftest import MySQLDatabase
from tests.faults.proxy import Proxy
from tests.integration.connector import Connector
from tests.integration.impatient import SILENT_S
from tests.integration.mysql_work import connector_of, filled, same, writing
from tests.integration.running import Running, eventually, unbroken

KEYS = 500


class Impatient(Connector):
    """Its process takes a silent server for dead after SILENT_S."""

    def start(self, *flags: str) -> subprocess.Popen[str]:
        self.put_right()
        command = [sys.executable, "-m", "tests.integration.impatient", "run", str(self.file), *flags]
        return subprocess.Popen(
            command, env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )


def through(proxy: Proxy, connector: Connector, database: MySQLDatabase) -> None:
    """The connector reaches its server by the proxy alone."""
    port = urlsplit(database.url).port or 0
    proxy.lead_to(port)
    url = connector.environment["TEST_DATABASE_URL"]
    connector.environment["TEST_DATABASE_URL"] = url.replace(f":{port}", f":{proxy.port}")


def goes_on(connector: Connector, database: MySQLDatabase) -> None:
    """Until more of what is written has come."""
    before = len(connector.records(f"{database.name}.t"))
    eventually(lambda: len(connector.records(f"{database.name}.t")) > before, "it follows")


def dumps(database: MySQLDatabase) -> list[int]:
    """The server's sessions that send its log to the connector."""
    found = database.rows(
        "SELECT id FROM information_schema.processlist "
        f"WHERE command LIKE 'Binlog Dump%' AND user = 'cdc_capture_{database.name}'"
    )
    return [number for (number,) in found]


@pytest.mark.full  # tests/integration/test_postgres_upkeep.py, tests/unit/test_wire.py
def test_a_half_open_connection(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Frozen on the way, open at both ends: taken for dead after the stated silence, and followed on where it was."""
    database = mysql_database
    filled(database, "t", keys=KEYS)
    usual = connector_of(tmp_path, prefix, database, kafka, "t")
    connector = Impatient(tmp_path, prefix, database.url, kafka, [f"{database.name}.t"])
    assert connector.file == usual.file
    with Proxy(kafka=False) as proxy:
        through(proxy, connector, database)
        with Running(connector) as running, writing(database, "t", keys=KEYS):
            running.await_line("following the log")
            goes_on(connector, database)
            proxy.freeze()
            frozen_s = time.monotonic()
            running.await_line("trying again")  # the log has said nothing, or a statement had no answer: which is first
            assert time.monotonic() - frozen_s > SILENT_S - 1
            proxy.thaw()
            goes_on(connector, database)
    usual.catch_up()
    same(usual, database, "t")
    unbroken(usual, f"{database.name}.t")


@pytest.mark.full  # test_an_idle_server_and_its_rotations_are_no_reason_to_stop
def test_an_idle_server_is_not_taken_for_dead(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """What has nothing to tell says so: the same connection, long after."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Impatient(tmp_path, prefix, database.url, kafka, [f"{database.name}.t"])
    with Running(connector) as running:
        running.await_line("following the log")
        time.sleep(2.5 * SILENT_S)
        database.execute("INSERT INTO t VALUES (2)")
        eventually(lambda: len(connector.fold(f"{database.name}.t")) == 2, "the row")
        assert "said nothing" not in running.stderr
        assert "trying again" not in running.stderr


@pytest.mark.parametrize("server", ["mysql", "mariadb"])
def test_connections_that_are_cut_and_killed(
    server: str, request: pytest.FixtureRequest, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """By the network and by the server's administrator, under load: the position goes on."""
    database: MySQLDatabase = request.getfixturevalue(server)
    filled(database, "t", keys=KEYS)
    connector = connector_of(tmp_path, prefix, database, kafka, "t")
    with Proxy(kafka=False) as proxy:
        through(proxy, connector, database)
        with Running(connector) as running, writing(database, "t", keys=KEYS):
            running.await_line("following the log")
            for n in range(1, 3):
                goes_on(connector, database)
                proxy.cut()
                running.await_line("trying again", times=2 * n - 1)
                goes_on(connector, database)
                for number in dumps(database):
                    with contextlib.suppress(pymysql.OperationalError):  # the one that was cut may be ending
                        database.execute(f"KILL {number}")
                running.await_line("trying again", times=2 * n)
            goes_on(connector, database)
    connector.moved(database.url)
    connector.catch_up()
    same(connector, database, "t")
    unbroken(connector, f"{database.name}.t")


@pytest.mark.parametrize("limit", ["offline_mode", pytest.param("MAX_USER_CONNECTIONS", marks=pytest.mark.full)])
def test_a_server_that_admits_nobody_for_a_while(
    limit: str, mysql: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """An administrator's doing, or connections of before that are not ended yet: it waits, and goes on by itself."""
    mysql.execute("CREATE TABLE t (id INT PRIMARY KEY)")
    connector = connector_of(tmp_path, prefix, mysql, kafka, "t")
    with Running(connector) as running:
        running.await_following()
        eventually(lambda: dumps(mysql), "the log is sent")
        user = f"'cdc_capture_{mysql.name}'@'%'"
        if limit == "offline_mode":
            mysql.execute("SET GLOBAL offline_mode = ON")
        else:
            mysql.execute(f"ALTER USER {user} WITH MAX_USER_CONNECTIONS 1", *(f"KILL {n}" for n in dumps(mysql)))
        try:
            words = "offline mode" if limit == "offline_mode" else "max_user_connections"
            eventually(lambda: words in running.stderr, "it was refused")
        finally:
            mysql.execute("SET GLOBAL offline_mode = OFF", f"ALTER USER {user} WITH MAX_USER_CONNECTIONS 0")
        mysql.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: len(connector.fold(f"{mysql.name}.t")) == 1, "the row")
