"""What a server of today does to slots: it waits for standbys that are away, and gives up slots that nobody uses."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cdc.dev.servers import postgres as dev_postgres
from cdc.dev.servers.process import Server
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[Database]:
    """A server that no other test shares."""
    server = Server("alone", tmp_path / "alone", partial(dev_postgres.prepare, major=18))
    try:
        yield Database(server.start(), "postgres")
    finally:
        server.stop()


def hints(connector: Connector, about: str) -> set[str]:
    """What `cdc check` and `cdc status` advise about the slot."""
    findings = json.loads(connector.here("check", "FILE", "--json").stdout)["findings"]
    status = json.loads(connector.here("status", "FILE", "--json").stdout)
    slot = status["slot"]
    assert about in slot["warning"]
    return {slot["hint"], *(f["fix"] for f in findings if about in f["message"])}


def test_a_standby_that_is_away_and_a_slot_that_nobody_uses(
    alone: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Each is told by its name, and by all commands with the same hint."""

    def set_to(name: str, value: str) -> None:
        alone.execute(f"ALTER SYSTEM SET {name} = '{value}'", "SELECT pg_reload_conf()")

    alone.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "SELECT pg_create_physical_replication_slot('north', true)",
    )
    connector = Connector(tmp_path, prefix, alone.url, kafka, ["public.t"])
    connector.catch_up()
    set_to("synchronized_standby_slots", "north")
    with Running(connector) as running:
        running.await_line("waits for standbys: north in synchronized_standby_slots is away")
        (hint,) = hints(connector, "waits for standbys: north")
        assert hint in running.stderr
        alone.execute("INSERT INTO t VALUES (1)")
        set_to("synchronized_standby_slots", "")
        eventually(lambda: connector.events("public.t"), "the server sends again")
        running.kill()

    set_to("idle_replication_slot_timeout", "1s")

    def given_up() -> bool:
        alone.execute("CHECKPOINT")
        return alone.rows(f"SELECT invalidation_reason FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'") == [
            ("idle_timeout",)
        ]

    eventually(given_up, "the server gives the slot up")
    done = connector.here("run", "FILE", "--until-caught-up")
    assert done.returncode == 4
    (hint,) = hints(connector, "slot lost: ")
    assert hint in done.stderr
    assert "idle_replication_slot_timeout = 0" in hint
    set_to("idle_replication_slot_timeout", "0")
    connector.close_the_gap()
    same(connector, alone, "public.t")
