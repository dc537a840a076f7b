"""A connector is paused and resumed on real servers: its place is kept, the slot stays active, and no row is lost."""

from __future__ import annotations

import json
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cdc.dev.servers import postgres as dev_postgres
from cdc.dev.servers.process import Launch, Server
from cdc.model.audit import asked_by
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
    acts = json.loads(connector.here("audit", "FILE", "--json").stdout)["acts"]
    assert [(act["action"], act["outcome"]) for act in acts] == [("pause", "done"), ("resume", "done")]
    assert {act["by"] for act in acts} == {asked_by()}
    assert acts[0]["position"] <= acts[1]["position"]
    assert all(act["asked_ms"] <= act["at_ms"] for act in acts)


def test_paused_on_a_real_server(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    _paused(connector, postgres18, "public.t")
    assert connector.here("pause", "FILE").returncode == 0  # while it is down
    (asked,) = _status(connector)["asked"]
    assert (asked["action"], asked["by"], asked["about"]) == ("pause", asked_by(), {})
    assert "the connector takes it up when it starts" in connector.here("status", "FILE").stdout
    done = connector.here("run", "FILE", "--until-caught-up")
    postgres18.execute("INSERT INTO t VALUES (4)")
    assert done.returncode in (0, 1), done.stderr  # there may have been nothing to catch up with
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 1
    assert f"connector {prefix} is paused" in done.stderr
    assert connector.here("resume", "FILE").returncode == 0
    connector.catch_up()
    assert len(connector.fold("public.t")) == 3


@pytest.mark.full  # test_paused_on_a_real_server
def test_a_long_backlog_does_not_make_the_server_give_up(kafka: str, prefix: str, tmp_path: Path) -> None:
    """It cannot send what is not read, and is answered all the same: the same process of the server has the slot.

    More is written than sockets hold, and the server's patience is short. That process would keep the server from
    being shut down while it is answered: the connector lets go of it, and is paused again behind the restart.
    """

    def prepare(folder: Path) -> Launch:
        launch = dev_postgres.prepare(folder, major=18)
        return replace(launch, argv=(*launch.argv, "--wal_sender_timeout=2s"))

    server = Server("paused", tmp_path / "server", prepare)
    database = Database(server.start(), "postgres")
    try:
        database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
        who = f"SELECT active_pid FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'"
        with Running(connector) as running:
            running.await_following()
            _pause(connector)
            running.await_line("is paused: its place in the log is kept")
            ((before,),) = database.rows(who)
            for _ in range(4):
                database.execute(
                    "INSERT INTO t SELECT n + (SELECT max(id) FROM t), repeat(md5(n::text), 300)"
                    " FROM generate_series(1, 2000) n"
                )
                time.sleep(1.5)
            assert database.rows(who) == [(before,)]
            assert before is not None
            server.stop(timeout_s=20)  # a walsender that is answered would keep it for longer
            logs = [file.read_text(errors="replace") for file in (tmp_path / "server").glob("*.log")]
            assert any("database system is shut down" in log for log in logs), "it had to be killed"
            server.start()
            eventually(lambda: database.rows(who)[0][0] is not None, "the slot is in use again")
            running.await_line("is paused: its place in the log is kept", times=2)
            assert connector.here("resume", "FILE").returncode == 0
            eventually(lambda: len(connector.fold("public.t")) == 8001, "all comes")
    finally:
        server.stop()


@pytest.mark.full  # test_paused_on_a_real_server
def test_paused_at_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    _paused(connector, mysql_database, f"{mysql_database.name}.t")


@pytest.mark.full
def test_a_long_backlog_at_mysql(mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The server gives up a dump that nobody reads, and another one is begun: nothing is lost, and nothing doubled."""
    mysql_database.execute("CREATE TABLE t (id INT PRIMARY KEY, v MEDIUMTEXT)", "INSERT INTO t VALUES (1, 'x')")
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t")
    topic = f"{mysql_database.name}.t"
    mysql_database.execute("SET GLOBAL net_write_timeout = 1")
    try:
        with Running(connector) as running:
            running.await_following()
            _pause(connector)
            running.await_line("is paused: its place in the log is kept")
            for n in range(2, 42):
                mysql_database.execute(f"INSERT INTO t VALUES ({n}, REPEAT('abcdefgh', 100000))")
            time.sleep(4)
            assert connector.here("resume", "FILE").returncode == 0
            eventually(lambda: len(connector.fold(topic)) == 41, "all comes")
            running.process.send_signal(signal.SIGTERM)
            assert running.ended() == 0
    finally:
        mysql_database.execute("SET GLOBAL net_write_timeout = 60")
    assert sorted(event["op"] for event in connector.events(topic)) == ["c"] * 40 + ["r"]


_SLOWLY: dict[str, Any] = {"max_rows_per_second": 50, "chunk_rows": 50}
_FILLED = ("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES " + ", ".join(f"({n})" for n in range(400)))


def _paused_in_a_first_snapshot(connector: Connector, topic: str) -> None:
    """It reads neither the slot nor a table then, and was shown as not running, with the command to run it."""
    with Running(connector) as running:
        eventually(lambda: any(at["rows"] for at in _shown(connector)["snapshot"].values()), "the first rows are read")
        _pause(connector)
        running.await_line("is paused: its place in the log is kept")
        found = _shown(connector)
        assert (found["phase"], found["running"], found["eta_seconds"]) == ("snapshot", True, None)
        running.kill()
    eventually(lambda: not _shown(connector)["running"], "it is seen gone")
    assert connector.here("resume", "FILE").returncode == 0
    connector.catch_up()
    assert len(connector.fold(topic)) == 400


def _shown(connector: Connector) -> dict[str, Any]:
    done = connector.here("status", "FILE", "--json")  # it may not have begun
    return json.loads(done.stdout) if done.returncode == 0 else {"snapshot": {}}


def test_paused_in_a_first_snapshot(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute(*_FILLED)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot=_SLOWLY)
    _paused_in_a_first_snapshot(connector, "public.t")


@pytest.mark.full  # test_paused_in_a_first_snapshot
def test_paused_in_a_first_snapshot_of_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    mysql_database.execute(*_FILLED)
    connector = connector_of(tmp_path, prefix, mysql_database, kafka, "t", snapshot=_SLOWLY)
    _paused_in_a_first_snapshot(connector, f"{mysql_database.name}.t")


def test_a_connector_that_has_never_run_is_not_paused(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    for command in ("pause", "resume"):
        done = connector.here(command, "FILE")
        assert done.returncode == 1
        assert "has never run" in done.stderr
