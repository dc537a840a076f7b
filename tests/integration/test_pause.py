"""A connector is paused and resumed on real servers: its place is kept, the slot stays active, and no row is lost."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of
from tests.integration.running import Running, eventually, standing


def _status(connector: Connector) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(connector.here("status", "FILE", "--json").stdout)
    return found


def _pause(connector: Connector) -> dict[str, Any]:
    done = connector.here("pause", "FILE", "--json")
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    assert found["log"]
    return found


def _paused(connector: Connector, database: Database | MySQLDatabase, topic: str) -> None:
    """Over a kill and a start; what is written meanwhile comes once."""
    with Running(connector) as first:
        first.await_following()
        running = _status(connector)["running"]  # MariaDB does not tell every user
        _pause(connector)
        first.await_line("is paused: its place in the log is kept")
        place = standing(connector)
        database.execute("INSERT INTO t VALUES (2)")
        first.kill()
    with Running(connector) as second:
        second.await_line("is paused: its place in the log is kept")
        time.sleep(1)
        found = _status(connector)
        assert found["running"] is running
        assert found["paused_at"] is not None
        assert "paused since" in connector.here("status", "FILE").stdout
        assert (standing(connector).offset, len(connector.fold(topic))) == (place.offset, 1)
        database.execute("INSERT INTO t VALUES (3)", "DELETE FROM t WHERE id = 1")
        assert connector.here("resume", "FILE").returncode == 0
        second.await_line("is resumed")
        eventually(lambda: len(connector.fold(topic)) == 2, "what was written meanwhile comes")
        assert _status(connector)["paused_at"] is None
        second.process.send_signal(signal.SIGTERM)
        assert second.ended() == 0
    assert [event["op"] for event in connector.events(topic)] == ["r", "c", "c", "d"]


def test_paused_on_a_real_server(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    _paused(connector, postgres18, "public.t")
    assert connector.here("pause", "FILE").returncode == 0  # while it is down
    done = connector.here("run", "FILE", "--until-caught-up")
    postgres18.execute("INSERT INTO t VALUES (4)")
    assert done.returncode in (0, 1), done.stderr  # there may have been nothing to catch up with
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert f"connector {prefix} is paused" in done.stderr
    assert connector.here("resume", "FILE").returncode == 0
    connector.catch_up()
    assert len(connector.fold("public.t")) == 3


def test_a_long_backlog_does_not_make_the_server_give_up(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It cannot send what is not read, and is answered all the same: the same process of the server has the slot.

    Its patience is short here, and more is written than sockets hold; a row is larger than a message.
    """
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    postgres18.execute(f"ALTER ROLE cdc_capture_{postgres18.name} SET wal_sender_timeout = '1s'")
    who = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'"
    with Running(connector) as running:
        running.await_following()
        _pause(connector)
        running.await_line("is paused: its place in the log is kept")
        ((before,),) = postgres18.rows(who)
        for _ in range(4):
            postgres18.execute(
                "INSERT INTO t SELECT n + (SELECT max(id) FROM t), repeat(md5(n::text), 300)"
                " FROM generate_series(1, 2000) n"
            )
            time.sleep(1.5)
        assert postgres18.rows(who) == [(before,)]
        assert before is not None
        assert connector.here("resume", "FILE").returncode == 0
        eventually(lambda: len(connector.fold("public.t")) == 8001, "all comes")
        assert "trying again" not in running.stderr


@pytest.mark.every_server
def test_paused_at_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    _paused(connector, mysql_database, f"{mysql_database.name}.t")


def test_a_connector_that_has_never_run_is_not_paused(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    for command in ("pause", "resume"):
        done = connector.here(command, "FILE")
        assert done.returncode == 1
        assert "has never run" in done.stderr
