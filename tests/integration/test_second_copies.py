"""Two copies of a connector on real servers: the later one stands by, and goes on when the first is gone."""

from __future__ import annotations

import json
import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from cdc.model.errors import FencedError
from connectors.mysql import session
from connectors.mysql.replication import claim
from connectors.mysql.replication.claim import Claim
from connectors.postgres.session import parameters
from connectors.postgres.slot.replication_stream import ReplicationConnection
from tests.conftest import Database, MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.mysql_work import connector_of, is_mysql
from tests.integration.running import Running, eventually


def _stands_by(connector: Connector, database: Database | MySQLDatabase, topic: str) -> None:
    """Also through SIGKILL: the server sees at once that a killed process is gone."""
    with Running(connector) as first:
        first.await_line("following the log")
        with Running(connector) as second:
            second.await_line("stands by: another copy is at work")
            database.execute("INSERT INTO t VALUES (2)")
            eventually(lambda: len(connector.fold(topic)) == 2, "the first goes on")
            found: dict[str, Any] = json.loads(connector.here("status", "FILE", "--json").stdout)
            assert found["standby"] in (1, None)
            assert found["lag_seconds"] < 20
            assert (first.process.poll(), second.process.poll()) == (None, None)
            first.process.send_signal(signal.SIGKILL)
            second.await_line("no other copy is at work any more: going on")
            database.execute("INSERT INTO t VALUES (3)")
            eventually(lambda: len(connector.fold(topic)) == 3, "the second goes on")
            second.process.send_signal(signal.SIGTERM)
            assert second.ended() == 0
    assert [event["op"] for event in connector.events(topic)] == ["r", "c", "c"]


def test_a_second_copy_stands_by(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _stands_by(Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"]), postgres18, "public.t")


def _takes_over_from_a_frozen_one(connector: Connector, database: Database | MySQLDatabase, topic: str) -> None:
    """Fence, read the position, free the log, follow; the one that thaws finds itself fenced."""
    with Running(connector) as first:
        first.await_line("following the log")
        there = len(connector.fold(topic))
        first.process.send_signal(signal.SIGSTOP)
        with Running(connector, "--take-over") as second:
            second.await_line("following the log")
            for n in range(100, 105):  # each seen before the next: as many positions
                database.execute(f"INSERT INTO t VALUES ({n})")
                eventually(lambda: len(connector.fold(topic)) == there + n - 99, "the second follows")  # noqa: B023 - at once
            assert "stands by" not in second.stderr
            first.process.send_signal(signal.SIGCONT)
            assert first.ended() == FencedError.exit_code
            database.execute("INSERT INTO t VALUES (105)")
            eventually(lambda: len(connector.fold(topic)) == there + 6, "the second is not disturbed")
            second.process.send_signal(signal.SIGTERM)
            assert second.ended() == 0


def _reader_of(url: str, slot: str) -> ReplicationConnection:
    """Somebody else's, who follows the slot under a name of his own."""
    reader = ReplicationConnection(parameters(url, "somebody else"))
    reader.start(slot, slot, 0, messages=False)
    return reader


def test_a_copy_that_is_told_to_takes_the_slot_of_a_frozen_one(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The server would keep the slot for it for ever; a slot of somebody else's is left alone."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    postgres18.execute(f"ALTER DATABASE {postgres18.name} SET wal_sender_timeout = 0")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    _takes_over_from_a_frozen_one(connector, postgres18, "public.t")
    assert [event["op"] for event in connector.events("public.t")] == ["r", *["c"] * 6]
    named = prefix.replace("-", "_")
    with closing(_reader_of(postgres18.url, f"cdc_{named}")), Running(connector, "--take-over") as third:
        third.await_line("is active for PID")


@pytest.mark.full  # a second copy stands by, on PostgreSQL
def test_a_second_copy_stands_by_at_mysql(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """There is no slot: a lock tells. One that is told to take over fences the first."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = connector_of(tmp_path, prefix, database, kafka, "t")
    _stands_by(connector, database, f"{database.name}.t")
    with Running(connector) as first:
        first.await_line("following the log")
        with Running(connector, "--take-over") as second:
            code = first.ended()
            # MariaDB may end the first one's dump, for its number, before Kafka fences it off.
            assert code in ({FencedError.exit_code} if is_mysql(database) else {1, FencedError.exit_code})
            second.await_line("following the log")


@pytest.mark.full
def test_a_copy_that_is_told_to_takes_the_lock_of_a_frozen_one(
    mysql_database: MySQLDatabase, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The server would hold it for two minutes."""
    database = mysql_database
    database.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    _takes_over_from_a_frozen_one(connector_of(tmp_path, prefix, database, kafka, "t"), database, f"{database.name}.t")


@pytest.mark.full  # the soak of MySQL: each line that breaks is begun again
def test_a_former_session_of_the_same_process_is_no_other_copy(
    mysql_database: MySQLDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the line broke, the server takes the former session to be alive for two minutes: nobody waits for it."""
    at = session.address(mysql_database.url)
    with (
        closing(Claim(at, uuid="a")) as former,
        closing(Claim(at, uuid="a")) as later,
        closing(Claim(at, uuid="b")) as b,
    ):
        assert former.follower() is None
        assert later.follower() is None
        assert b.follower() is None
        monkeypatch.setattr(claim, "_THIS_PROCESS", "another")
        with closing(Claim(at, uuid="a")) as other:
            found = other.follower()
            assert found is not None
            assert found.certain
            former.close()
            eventually(lambda: other.follower() is None, "the lock is free")
