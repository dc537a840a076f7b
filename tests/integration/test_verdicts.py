"""Start-up verdicts on real servers: fail-over, restored servers, neighbours, settings, damage; and no false alarm."""

from __future__ import annotations

import contextlib
import functools
import json
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import psycopg2
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from psycopg2.extras import LogicalReplicationConnection

from cdc.dev.servers import postgres
from cdc.dev.servers.process import Launch, Server, free_port
from connectors.postgres.session import TO_THE_PRIMARY
from sinks.topics.names import position_topic, schema_topic
from tests.conftest import Database
from tests.faults.proxy import Proxy
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same, standing, unbroken
from tests.pushes import some_each_push


def refused(connector: Connector, *words: str) -> str:
    """It stops with exit 4, or 1 for what is put right at a server, these words and something to do; give stderr."""
    done = connector.here("run", "FILE", "--until-caught-up")
    assert (done.returncode in (1, 4), done.stdout) == (True, ""), done.stderr
    for word in (*words, "hint:"):
        assert word in done.stderr, done.stderr
    assert "Traceback" not in done.stderr
    return done.stderr


# --- Fail-over --------------------------------------------------------------------------------------------------------


def _answers_as_standby(launch: Launch, folder: Path) -> Launch:
    def ready(pid: int) -> bool:
        with contextlib.suppress(OSError, IndexError):
            lines = (folder / "data" / "postmaster.pid").read_text().splitlines()
            return lines[0] == str(pid) and lines[7].strip() in {"ready", "standby"}
        return False

    return replace(launch, ready=ready)


@contextlib.contextmanager
def held_slot(database: Database, slot: str) -> Iterator[None]:
    """Somebody has it inside the block, as the process of a standby that copies it: no copy of the connector."""
    with contextlib.closing(psycopg2.connect(database.url, connection_factory=LogicalReplicationConnection)) as reading:
        reading.cursor().start_replication(slot, options={"proto_version": "1", "publication_names": slot})
        assert database.rows(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{slot}'") == [(True,)]
        yield


class Primary:
    """A server of its own that is stopped, copied, promoted."""

    def __init__(self, folder: Path, major: int) -> None:
        self._folder, self._major = folder, major
        self.server = Server(folder.name, folder, functools.partial(postgres.prepare, major=major))

    @property
    def data(self) -> Path:
        return self._folder / "data"

    def database(self) -> Database:
        return Database(self.server.start(), "postgres")

    def copy(self, folder: Path) -> Primary:
        """Of a stopped server, with its slots, as a standby's data folder has them."""
        subprocess.run(["cp", "-a", self._folder, folder], check=True)
        settings = json.loads((folder / "settings.json").read_text())
        (folder / "settings.json").write_text(json.dumps({**settings, "port": str(free_port())}))
        return Primary(folder, self._major)

    def as_standby(self) -> Database:
        """Started as one, of nobody."""

        def prepare(folder: Path) -> Launch:
            return _answers_as_standby(postgres.prepare(folder, major=self._major), folder)

        (self._folder / "data" / "standby.signal").touch()
        self.server = Server(self._folder.name, self._folder, prepare)
        return Database(self.server.start(), "postgres")

    def promoted(self) -> Database:
        """Started as a standby, and told to take over."""
        database = self.as_standby()
        assert database.rows("SELECT pg_is_in_recovery(), pg_promote()") == [(True, True)]
        return database


@pytest.fixture(params=["postgres16", "postgres18"])
def primary(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Primary]:
    made = Primary(tmp_path / "primary", int(request.param.removeprefix("postgres")))
    yield made
    made.server.stop()


@contextlib.contextmanager
def serving(made: Primary) -> Iterator[Primary]:
    try:
        yield made
    finally:
        made.server.stop()


def test_fail_over_to_a_standby_that_has_it_all(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The promoted standby's history contains the position: it goes on there, in a new epoch, nothing lost or twice.

    The former primary, should it come back under the old address, is not followed.
    """
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    database.execute("INSERT INTO t VALUES (2)")
    primary.server.stop()
    with serving(primary.copy(tmp_path / "standby")) as standby:
        too_early = standby.as_standby()
        place = (urlsplit(of).netloc.rpartition("@")[2] for of in (database.url, too_early.url))
        connector.environment["TEST_DATABASE_URL"] = connector.environment["TEST_DATABASE_URL"].replace(*place)
        with held_slot(too_early, f"cdc_{prefix}"):
            refused(connector, "is a standby", "point source.url at the primary")
        assert "the server is a standby" in connector.here("token", "FILE").stderr
        assert "the server is a standby" in connector.here("status", "FILE").stdout
        findings = json.loads(connector.here("check", "FILE", "--json").stdout)["findings"]
        assert [of["fix"] for of in findings if of["level"] == "error"] == [TO_THE_PRIMARY]
        taken_over = standby.promoted()
        connector.moved(taken_over.url)
        taken_over.execute("INSERT INTO t VALUES (3)")
        said = connector.catch_up()
        assert "failed over from timeline 1 to 2" in said
        assert "failed over" not in connector.catch_up()
        assert [(e["after"]["id"], e["source"]["position"][:8]) for e in connector.events("public.t")] == [
            (1, "00000001"),
            (2, "00000002"),
            (3, "00000002"),
        ]
        assert standing(connector).epoch == 2
        same(connector, taken_over, "public.t")
        unbroken(connector, "public.t")
        connector.moved(primary.database().url)
        refused(connector, "other timeline", "timeline 2", "the server is on 1")
        connector.moved(taken_over.url)
        connector.catch_up()


def test_fail_over_to_a_standby_that_lagged(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Kafka holds what the promoted standby never had: it stops and says so, and the former primary is still good."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    primary.server.stop()
    with serving(primary.copy(tmp_path / "standby")) as standby:
        primary.database().execute("INSERT INTO t VALUES (2)")
        connector.catch_up()
        at = standing(connector).offset["lsn"]
        taken_over = standby.promoted()
        connector.moved(taken_over.url)
        taken_over.execute("INSERT INTO t SELECT generate_series(100, 10000)")  # its log is longer than the position
        refused(connector, "promoted standby behind the published position", "timeline 1", str(at))
        connector.moved(database.url)
        connector.catch_up()
        same(connector, database, "public.t")


def test_rows_are_read_where_the_log_is(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """An address with two servers behind it, as in a fail-over: rows of the other would come for newer ones."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    database.execute("INSERT INTO t SELECT n, '' FROM generate_series(1, 9) n")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    primary.server.stop()
    with serving(primary.copy(tmp_path / "other")) as other, Proxy(kafka=False) as proxy:
        here, there = (urlsplit(of.database().url).port or 0 for of in (primary, other))
        proxy.lead_to(here)
        connector.catch_up()
        straight = connector.environment["TEST_DATABASE_URL"]
        connector.environment["TEST_DATABASE_URL"] = straight.replace(f":{here}/", f":{proxy.port}/")
        with Running(connector) as running:
            connector.environment["TEST_DATABASE_URL"] = straight  # in this process libpq would hold up the proxy
            running.await_line("following the log")
            database.execute("UPDATE t SET v = 'newer'", "DELETE FROM t WHERE id > 5")
            eventually(lambda: len(connector.fold("public.t")) == 5, "it follows")
            proxy.lead_to(there)
            assert connector.here("snapshot", "start", "FILE", "--table", "public.t").returncode == 0
            running.await_line("a connection has reached another server than the first")
            proxy.lead_to(here)
        connector.catch_up()
        same(connector, database, "public.t")


def test_a_server_restored_from_an_older_copy(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The log ends before the position: waiting for it to grow would pass over what is written meanwhile."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    primary.server.stop()
    with serving(primary.copy(tmp_path / "restored")) as restored:
        primary.database().execute("INSERT INTO t SELECT generate_series(1, 10000)")
        connector.catch_up()
        connector.moved(restored.database().url)
        refused(connector, "server behind the position", str(standing(connector).offset["lsn"]))


@pytest.mark.full  # test_only_the_log_that_was_followed_passes
def test_an_older_copy_that_was_written_to(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A copy of the files has everything by which it could be told; what it has before the position is another story.

    The first copy does not have a transaction that was followed. The others have all of them, and write where only
    tables that are not captured were written to.
    """
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)", "INSERT INTO t VALUES (1)")
    source = {"messages": False}  # with them, a heartbeat of ours tells the same
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], source=source)
    connector.catch_up()
    primary.server.stop()
    with serving(primary.copy(tmp_path / "lacks")) as lacks:
        database = primary.database()
        database.execute("INSERT INTO t VALUES (2)")
        connector.catch_up()
        restored = lacks.database()
        restored.execute("INSERT INTO t SELECT generate_series(100, 10000)")
        connector.moved(restored.url)
        refused(connector, "another history", "the last that was followed, is not in it", "--after-gap")
    connector.moved(database.url)
    primary.server.stop()
    with serving(primary.copy(tmp_path / "has")) as has, serving(primary.copy(tmp_path / "quiet")) as quiet:
        database = primary.database()
        database.execute("INSERT INTO other SELECT generate_series(1, 10000)")
        connector.catch_up()
        primary.server.stop()
        for copy, table in ((quiet, "other"), (has, "t")):
            restored = copy.database()
            connector.moved(restored.url)
            restored.execute(f"INSERT INTO {table} SELECT generate_series(100, 5000)")
            restored.execute("INSERT INTO other SELECT generate_series(1, 30000)")
            if copy is quiet:  # nothing of what it wrote is followed
                connector.catch_up()
                same(connector, restored, "public.t")
                copy.server.stop()
        refused(connector, "another history", "never followed")
        connector.close_the_gap()
        same(connector, restored, "public.t")


def test_an_older_copy_where_nothing_was_ever_followed(kafka: str, prefix: str, tmp_path: Path) -> None:
    """There is no transaction to compare with yet: so one before the position is none that was followed."""
    with serving(Primary(tmp_path / "primary", 18)) as primary:
        database = primary.database()
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)", "INSERT INTO t VALUES (1)"
        )
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], source={"messages": False})
        connector.catch_up()
        primary.server.stop()
        with serving(primary.copy(tmp_path / "copy")) as copy:
            primary.database().execute("INSERT INTO other SELECT generate_series(1, 10000)")
            connector.catch_up()
            restored = copy.database()
            connector.moved(restored.url)
            restored.execute("DELETE FROM t", "INSERT INTO other SELECT generate_series(1, 20000)")
            refused(connector, "another history", "never followed")
            connector.close_the_gap()
            same(connector, restored, "public.t")


def test_a_log_that_the_server_cannot_read(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Damaged on its disk: it says so each time it is asked, and who says so goes on behind it."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note text)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    ((begin,),) = database.rows("SELECT pg_current_wal_lsn()::text")
    database.execute("INSERT INTO t SELECT n, repeat('x', 500) FROM generate_series(1, 5000) n")
    ((file, at),) = database.rows(
        f"SELECT file_name, file_offset FROM pg_walfile_name_offset('{begin}'::pg_lsn + 60000)"
    )
    with (primary.data / "pg_wal" / str(file)).open("r+b") as log:
        log.seek(cast("int", at))
        log.write(b"\xff" * 4000)
    with Running(connector) as running:
        running.await_line("the server fails to read its own log")
    connector.close_the_gap()
    same(connector, database, "public.t")


def test_standbys_get_the_slot(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Where the server knows of it, the slot is one that standbys synchronize."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    Connector(tmp_path, prefix, database.url, kafka, ["public.t"]).catch_up()
    ((version,),) = database.rows("SELECT current_setting('server_version_num')::int")
    if version >= 170000:  # type: ignore[operator]
        assert database.rows(f"SELECT failover FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'") == [(True,)]


def test_an_idle_server_is_no_reason_to_stop(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Restarted, killed, checkpointed, vacuumed, its log file switched, nothing written to the table: it goes on."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id int)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    connector.catch_up()
    primary.server.stop()
    primary.server.start()
    connector.catch_up()
    primary.server.kill()
    primary.server.start()
    connector.catch_up()
    database.execute("CHECKPOINT", "SELECT pg_switch_wal()", "VACUUM FULL other", "INSERT INTO other VALUES (1)")
    primary.server.kill()
    primary.server.start()
    connector.catch_up()
    connector.catch_up()
    assert standing(connector).epoch == 1
    assert [e["op"] for e in connector.events("public.t")] == ["r"]


def test_slot_lost(primary: Primary, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A server that may keep little log for slots has removed what this one needed: slot lost, by its name."""
    database = primary.database()
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (v text)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '1MB'", "SELECT pg_reload_conf()")
    status = f"SELECT wal_status FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}'"

    def lost() -> bool:
        database.execute("INSERT INTO other VALUES (repeat('x', 1000))", "SELECT pg_switch_wal()", "CHECKPOINT")
        return database.rows(status) == [("lost",)]

    eventually(lost, "the slot is lost")
    refused(connector, "slot lost", f"cdc_{prefix}", "max_slot_wal_keep_size")


# --- Settings ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def table(postgres18: Database) -> Database:
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    return postgres18


@pytest.mark.parametrize(
    "setting", some_each_push(["source.slot", "source.publication", "sink.topic_prefix"], "sink.topic_prefix")
)
def test_config_changed_under_a_running_state(
    setting: str, table: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Which setting, from what to what; nothing is made, and with the setting back it goes on."""
    part, _, name = setting.partition(".")
    value = f"other{prefix}"
    Connector(tmp_path, prefix, table.url, kafka, ["public.t"]).catch_up()
    changed: dict[str, Any] = {part: {name: value}}
    said = refused(
        Connector(tmp_path, prefix, table.url, kafka, ["public.t"], **changed),
        f"config changed: {setting} is {value}", f"set {setting}:",
    )  # fmt: skip
    assert (prefix if name == "topic_prefix" else f"cdc_{prefix}") in said
    assert table.rows(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name ~ '{value}'") == []
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=60).topics
    assert not [topic for topic in topics if topic.startswith(value)]
    Connector(tmp_path, prefix, table.url, kafka, ["public.t"]).catch_up()


GARBAGE = {
    "text": lambda _: b"\x00garbage",
    "another JSON": lambda _: b'{"lsn":"0/0"}',
    "a changed number": lambda good: good.replace(b'"sequence":', b'"sequence":1'),
    "cut short": lambda good: good[: len(good) // 2],
}


@pytest.mark.parametrize("what", some_each_push(GARBAGE, "a changed number"))
def test_position_topic_damaged(what: str, table: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A record that is none of ours is told as damage, not taken for a beginning; nothing is written after it."""
    connector = Connector(tmp_path, prefix, table.url, kafka, ["public.t"])
    connector.catch_up()
    topic = position_topic(prefix, prefix)
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, GARBAGE[what](standing(connector).to_bytes()), prefix.encode())
    producer.flush(30)
    table.execute("INSERT INTO t VALUES (2)")
    refused(connector, f"topic {topic}", "the position record is damaged", "restore the topic")
    refused(connector, f"topic {topic}", "the position record is damaged")
    assert len(connector.records("public.t")) == 1


# --- Neighbours -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", some_each_push([0, 1], 0))
def test_topic_owned_by_another_connector(
    rows: int, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Two connectors of one prefix with one table: the second is told whose the topic is, also while it is empty."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", f"INSERT INTO t SELECT generate_series(1, {rows})",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )  # fmt: skip
    sink = {"topic_prefix": prefix}
    first = Connector(tmp_path, f"{prefix}a", postgres18.url, kafka, ["public.t"], sink=sink)
    first.catch_up()
    owned = ("topic owned by another connector", f"{prefix}.public.t is written by {prefix}a")
    refused(Connector(tmp_path, f"{prefix}b", postgres18.url, kafka, ["public.t"], sink=sink), *owned)
    assert postgres18.rows(f"SELECT slot_name FROM pg_replication_slots WHERE slot_name = 'cdc_{prefix}b'") == []
    Connector(tmp_path, f"{prefix}c", postgres18.url, kafka, ["public.u"], sink=sink).catch_up()
    refused(Connector(tmp_path, f"{prefix}c", postgres18.url, kafka, ["public.t", "public.u"], sink=sink), *owned)
    first.catch_up()


def test_a_neighbours_hanging_transaction_blocks_nobody(
    table: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """A neighbour killed while it described a table leaves the shared schema topic open for minutes: starts go on.

    Of what was published behind it, nobody can tell whether it was committed: its number is not used again.
    """
    connector = Connector(tmp_path, prefix, table.url, kafka, ["public.t"])
    connector.catch_up()
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{prefix}.neighbour"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(schema_topic(prefix), b'{"connector":"neighbour"}', b"{}")
    producer.flush(30)
    try:
        connector.catch_up()
        table.execute("ALTER TABLE t ADD COLUMN n int", "INSERT INTO t VALUES (2, 2)")
        connector.catch_up()
        table.execute("INSERT INTO t VALUES (3, 3)")
        connector.catch_up()
    finally:
        producer.abort_transaction(30)
    table.execute("INSERT INTO t VALUES (4, 4)")
    connector.catch_up()
    assert [(e["after"]["id"], e["source"]["schema_version"]) for e in connector.events("public.t")] == [
        (1, 1),
        (2, 2),
        (3, 3),
        (4, 3),
    ]
