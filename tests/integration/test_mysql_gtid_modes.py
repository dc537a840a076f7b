"""gtid_mode switched step by step, around a connector and under one: nothing is missing in silence."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import pytest

from tests.conftest import MySQLDatabase
from tests.integration.mysql_servers import own_server
from tests.integration.mysql_work import connector_of, same
from tests.integration.running import Running, eventually

OFF: Final = ("ON_PERMISSIVE", "OFF_PERMISSIVE", "OFF")
ON: Final = ("OFF_PERMISSIVE", "ON_PERMISSIVE", "ON")


class Switched:
    """A table, and a server whose gtid_mode goes up and down; each step writes a row."""

    def __init__(self, database: MySQLDatabase) -> None:
        self.database = database
        self.rows = 0

    def write(self) -> None:
        self.rows += 1
        self.database.execute(f"INSERT INTO dev.t VALUES ({self.rows}, 1)")

    def step(self, mode: str) -> None:
        self.database.execute(f"SET GLOBAL gtid_mode = {mode}")
        self.write()


def test_switched_while_the_connector_is_stopped(tmp_path: Path, prefix: str, kafka: str) -> None:
    """What was written without GTIDs in between is a gap, by name; a permissive mode closes it, or reading again."""
    with own_server("mysql", tmp_path) as own:
        database = own.database
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        of = Switched(database)
        of.write()
        one, two = (connector_of(tmp_path, f"{prefix}{n}", database, kafka, "t") for n in "ab")
        one.catch_up()
        two.catch_up()
        of.write()
        one.catch_up()
        two.catch_up()
        for mode in (*OFF, *ON):
            of.step(mode)
        for connector in (one, two):
            done = connector.here("run", "FILE", "--until-caught-up")
            assert done.returncode == 4, done.stderr
            assert "gtid_mode was switched before all was read" in done.stderr
            assert "ON_PERMISSIVE" in done.stderr
        one.close_the_gap()
        same(one, database, "t")
        of.step("ON_PERMISSIVE")
        two.catch_up()
        same(two, database, "t")
        of.step("ON")
        two.catch_up()
        one.catch_up()
        same(two, database, "t")
        same(one, database, "t")


@pytest.mark.full  # switched while it is stopped, above
def test_switched_while_the_connector_runs(tmp_path: Path, prefix: str, kafka: str) -> None:
    """It keeps up through all modes; a position of any of them is one to go on from in the next."""
    with own_server("mysql", tmp_path) as own:
        database = own.database
        database.execute("CREATE TABLE t (id INT PRIMARY KEY, v INT)")
        of = Switched(database)
        of.write()
        connector = connector_of(tmp_path, prefix, database, kafka, "t")
        with Running(connector) as running:
            running.await_following()
            for mode in (*OFF, *ON):
                of.step(mode)
                eventually(lambda: len(connector.fold("dev.t")) == of.rows, f"the row of mode {mode}")
        for mode in (*OFF, *ON):
            of.step(mode)
            connector.catch_up()
            same(connector, database, "t")
        assert connector.here("check", "FILE").returncode == 0
