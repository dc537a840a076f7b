"""Two real servers: the primary is gone, a replica goes on, and so does the connector; or it says why it cannot."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.conftest import MySQLDatabase
from tests.faults.proxy import Proxy
from tests.integration.mysql_servers import OwnServer, own_servers
from tests.integration.mysql_work import connector_of, filled, same, writing
from tests.integration.running import Running, eventually, standing, unbroken
from tests.pushes import some_each_push

KEYS = 2_000


@dataclass
class Pair:
    """A primary, and a replica that follows it by GTIDs and logs what it is sent."""

    primary: OwnServer
    replica: OwnServer

    @property
    def mariadb(self) -> bool:
        return self.primary.kind == "mariadb"

    def follow(self) -> None:
        """Both have no history but what comes now."""
        parts = urlsplit(self.primary.server.url)
        user, password = unquote(parts.username or ""), unquote(parts.password or "")
        if self.mariadb:
            self.primary.database.execute("RESET MASTER")
            self.replica.database.execute(
                "RESET MASTER", "SET GLOBAL gtid_slave_pos = ''",
                f"CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT={self.primary.port}, MASTER_USER='{user}', "
                f"MASTER_PASSWORD='{password}', MASTER_USE_GTID=slave_pos",
                "START SLAVE",
            )  # fmt: skip
        else:
            self.primary.database.execute("RESET BINARY LOGS AND GTIDS")
            self.replica.database.execute(
                "RESET BINARY LOGS AND GTIDS",
                f"CHANGE REPLICATION SOURCE TO SOURCE_HOST='127.0.0.1', SOURCE_PORT={self.primary.port}, "
                f"SOURCE_USER='{user}', SOURCE_PASSWORD='{password}', SOURCE_AUTO_POSITION=1, GET_SOURCE_PUBLIC_KEY=1",
                "START REPLICA",
            )  # fmt: skip

    def cut(self) -> None:
        """The replica hears no more of the primary."""
        self.replica.database.execute("STOP SLAVE" if self.mariadb else "STOP REPLICA")

    def await_all(self) -> None:
        """Until the replica has done all that the primary has done by now."""
        if self.mariadb:
            ((end,),) = self.primary.database.rows("SELECT @@GLOBAL.gtid_binlog_pos")
            wait = f"SELECT MASTER_GTID_WAIT('{end}', 60)"
        else:
            ((end,),) = self.primary.database.rows("SELECT @@GLOBAL.gtid_executed")
            wait = f"SELECT WAIT_FOR_EXECUTED_GTID_SET('{end}', 60)"
        assert self.replica.database.rows(wait) == [(0,)]

    def promote(self) -> MySQLDatabase:
        """The primary is gone."""
        self.primary.server.kill()
        self.cut()
        self.replica.database.execute("RESET SLAVE ALL" if self.mariadb else "RESET REPLICA ALL")
        return self.replica.database

    def fill(self) -> None:
        """A table whose creation both tell alike, in seconds: else its rows are read again at the other server."""
        made = "SELECT create_time FROM information_schema.tables WHERE table_schema = 'dev' AND table_name = 't'"

        def made_alike() -> bool:
            self.primary.database.execute("DROP TABLE IF EXISTS t")
            filled(self.primary.database, "t", keys=KEYS)
            self.await_all()
            return self.primary.database.rows(made) == self.replica.database.rows(made)

        eventually(made_alike, "it is made in the same second at both")


@contextlib.contextmanager
def paired(kind: str, folder: Path) -> Iterator[Pair]:
    updates = {"log_slave_updates": "ON"} if kind == "mariadb" else {}
    servers = (OwnServer(kind, folder / name, **updates) for name in ("one", "two"))
    with own_servers(*servers) as (one, two):
        pair = Pair(one, two)
        pair.follow()
        yield pair


@pytest.fixture(params=["mysql", "mariadb"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with paired(request.param, tmp_path) as made:
        yield made


@pytest.mark.every_server
def test_the_connector_goes_on_at_the_replica(pair: Pair, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Killed under load, moved to a server whose files have other numbers, it loses and doubles nothing; and back."""
    primary = pair.primary.database
    pair.fill()
    connector = connector_of(tmp_path, prefix, primary, kafka, "t")
    with writing(primary, "t", keys=KEYS), Running(connector) as running:
        running.await_line("following the log")
        pair.replica.database.execute("FLUSH BINARY LOGS", "FLUSH BINARY LOGS")
        began = standing(connector).commit
        eventually(lambda: standing(connector).commit > began, "it follows the primary")
    first = standing(connector)
    pair.await_all()
    replica = pair.promote()
    with writing(replica, "t", keys=KEYS):
        connector.moved(replica.url)
        with Running(connector) as running:
            running.await_line("following the log")
            eventually(lambda: standing(connector).epoch > first.epoch, "a new epoch")
    connector.catch_up()
    same(connector, replica, "t")
    unbroken(connector, "dev.t")
    checked = connector.here("check", "FILE")
    assert checked.returncode == 0, checked.stdout
    replica.execute("UPDATE t SET v = 'last'")
    connector.catch_up()  # by the place in the new server's own log
    same(connector, replica, "t")
    unbroken(connector, "dev.t")


@pytest.mark.parametrize("written", some_each_push([0, 50], 50), ids=["idle", "written"])
def test_a_replica_that_lacks_what_kafka_has(pair: Pair, kafka: str, prefix: str, tmp_path: Path, written: int) -> None:
    """It was promoted too early: said by `cdc check` and `cdc run`, however much it has written since."""
    primary = pair.primary.database
    primary.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v TEXT)", "INSERT INTO t VALUES (1, 1, '')")
    connector = connector_of(tmp_path, prefix, primary, kafka, "t")
    connector.catch_up()
    pair.await_all()
    pair.cut()
    primary.execute(*(f"INSERT INTO t VALUES ({n}, 0, 'lost')" for n in range(10, 15)))
    connector.catch_up()
    replica = pair.promote()
    replica.execute(*(f"INSERT INTO t VALUES ({n}, 0, 'other')" for n in range(10, 10 + written)))
    connector.moved(replica.url)
    before = len(connector.records("dev.t"))
    run, check = connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")
    for done, said in ((run, run.stderr), (check, check.stdout)):
        assert done.returncode in ((1, 4) if done is run else (1,)), said
        assert "another server under the same name" in said
        assert "--after-gap" in said
    assert len(connector.records("dev.t")) == before
    connector.close_the_gap()
    same(connector, replica, "t")


@pytest.mark.every_server
def test_a_replica_that_wrote_on_its_own(pair: Pair, kafka: str, prefix: str, tmp_path: Path) -> None:
    """MySQL sends such rows, by their GTIDs; MariaDB sends nothing before the position, so that is a verdict."""
    primary, replica = pair.primary.database, pair.replica.database
    primary.execute("CREATE TABLE t (id INT PRIMARY KEY, n INT, v TEXT)", "INSERT INTO t VALUES (1, 1, '')")
    connector = connector_of(tmp_path, prefix, primary, kafka, "t")
    connector.catch_up()
    pair.await_all()
    replica.execute("INSERT INTO t VALUES (100, 1, 'its own')", "FLUSH BINARY LOGS")
    primary.execute("INSERT INTO t VALUES (2, 2, '')", "UPDATE t SET n = 3 WHERE id = 1")
    pair.await_all()
    connector.catch_up()
    replica.execute("FLUSH BINARY LOGS")
    replica = pair.promote()
    replica.execute("INSERT INTO t VALUES (3, 3, '')")
    connector.moved(replica.url)
    if pair.mariadb:
        run, check = connector.here("run", "FILE", "--until-caught-up"), connector.here("check", "FILE")
        for done, said in ((run, run.stderr), (check, check.stdout)):
            assert done.returncode == (4 if done is run else 1), said
            assert "it was written to while it was a replica" in said
        connector.close_the_gap()
    connector.catch_up()
    same(connector, replica, "t")


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_replica_that_does_not_log_what_it_is_sent(kind: str, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Its own log would be silent for ever; as a server of its own it is as good as any."""
    off = {"log_slave_updates": "OFF"} if kind == "mariadb" else {"log_replica_updates": "OFF"}
    with own_servers(OwnServer(kind, tmp_path / "one"), OwnServer(kind, tmp_path / "two", **off)) as (one, two):
        two.database.execute("CREATE TABLE own (id INT PRIMARY KEY)")
        connector = connector_of(tmp_path, prefix, two.database, kafka, "own")
        connector.catch_up()
        made = Pair(one, two)
        made.follow()
        one.database.execute("CREATE TABLE t (id INT PRIMARY KEY)")
        made.await_all()
        late = connector_of(tmp_path, f"{prefix}b", two.database, kafka, "t")
        run, check = late.here("run", "FILE", "--until-caught-up"), late.here("check", "FILE")
        for done, said in ((run, run.stderr), (check, check.stdout)):
            assert done.returncode == 1, said
            assert f"{next(iter(off))} is OFF" in said
            assert "point source.url at the server it replicates" in said
        made.cut()
        if kind == "mariadb":  # that it is one which stands still, its user may not see
            checked = late.here("check", "FILE")
            assert "whether it is a replica may not be known" in checked.stdout
            assert "GRANT REPLICA MONITOR" in checked.stdout
            two.database.execute("GRANT REPLICA MONITOR ON *.* TO cdc_capture_dev@'%'")
        assert late.here("check", "FILE").returncode == 1
        two.database.execute("RESET SLAVE ALL" if kind == "mariadb" else "RESET REPLICA ALL")
        assert "is OFF" not in late.here("check", "FILE").stdout


def test_rows_are_read_where_the_log_is(pair: Pair, kafka: str, prefix: str, tmp_path: Path) -> None:
    """An address with two servers behind it: rows of a replica that is behind would come for newer ones."""
    primary = pair.primary.database
    pair.fill()
    with Proxy(kafka=False) as proxy:
        proxy.lead_to(pair.primary.port)
        connector = connector_of(tmp_path, prefix, primary, kafka, "t")
        connector.moved(primary.url.replace(f":{pair.primary.port}/", f":{proxy.port}/"))
        connector.catch_up()
        with Running(connector) as running:
            running.await_line("following the log")
            pair.cut()
            primary.execute("UPDATE t SET v = 'newer' WHERE id < 100", "DELETE FROM t WHERE id >= 1900")
            eventually(lambda: len(connector.fold("dev.t")) == 1900, "it follows")
            proxy.lead_to(pair.replica.port)
            assert connector.here("snapshot", "start", "FILE", "--table", "dev.t").returncode == 0
            running.await_line("a connection has reached another server than the first")
            proxy.lead_to(pair.primary.port)
        connector.catch_up()
        same(connector, primary, "t")
