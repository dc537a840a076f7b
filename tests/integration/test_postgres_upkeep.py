"""What a connector does for its server: the log it holds back stays small, it warns in time, it notices a dead line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psycopg2
import pytest
from psycopg2 import errors

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.stack import DevServers
from cdc.model.change import Idle
from cdc.model.errors import RetryableError
from connectors.postgres.cancelling import cancel
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.session import connect, parameters
from connectors.postgres.slot import claim, heartbeat, replication_stream
from connectors.postgres.slot.claim import Claim
from connectors.postgres.slot.heartbeat import MOVED_BYTES
from connectors.postgres.source import open_source
from tests.conftest import FULL, Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same
from tests.pushes import some_each_push

FOLLOWING = "following the log"
MB = 1024 * 1024
BURST = """
INSERT INTO {0} SELECT repeat(md5(n::text), 60) FROM generate_series(1, 20000) n;
INSERT INTO {0} SELECT repeat(md5(n::text), 60) FROM generate_series(1, 20000) n; TRUNCATE {0}
"""  # 80 MB of log


def number(database: Database, select: str) -> int:
    ((found,),) = database.rows(f"SELECT ({select})::int8")
    return int(str(found))


def retained(database: Database, connector: Connector) -> int:
    return number(
        database,
        "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), restart_lsn) FROM pg_replication_slots"
        f" WHERE slot_name = 'cdc_{connector.name}'",
    )


@pytest.fixture
def neighbour(database: Database) -> Iterator[Database]:
    """Another database of the same server."""
    name = f"{database.name}_n"
    database.execute(f"CREATE DATABASE {name}")
    yield Database(database.url.rsplit("/", 1)[0] + "/" + name, name)
    database.execute(f"DROP DATABASE {name} WITH (FORCE)")


# --- What the slot holds back -----------------------------------------------------------------------------------------


LOG = (1024 if FULL else 512) * MB


def test_an_idle_captured_table_beside_busy_ones(
    database: Database, neighbour: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Much log of another table, and of another database: the slot follows all along, and nothing is published."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)", "CREATE TABLE busy (v text)",
                     "ALTER TABLE busy ALTER v SET STORAGE EXTERNAL")  # fmt: skip
    neighbour.execute("CREATE TABLE busy (v text)", "ALTER TABLE busy ALTER v SET STORAGE EXTERNAL")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], source={"heartbeat_s": 1})
    most = 0
    with Running(connector) as running:
        running.await_line(FOLLOWING)
        begun = number(database, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn")
        while (written := number(database, "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn") - begun) < LOG:
            for busy in (database, neighbour):
                busy.execute(BURST.format("busy"))
                most = max(most, retained(database, connector))
            database.execute("CHECKPOINT")
            eventually(lambda: retained(database, connector) < 128 * MB, "the slot follows")
        eventually(lambda: retained(database, connector) < 32 * MB, "the slot has followed")
        assert running.process.poll() is None, running.stderr
    assert written >= LOG
    assert most < 300 * MB, most // MB
    assert [e["op"] for e in connector.events("public.t")] == ["r"]


def heartbeats(database: Database, slot: str) -> list[int]:
    """Where in the log those lie that a second slot has seen so far; it keeps them."""
    found = database.rows(
        f"SELECT lsn - '0/0'::pg_lsn FROM pg_logical_slot_peek_binary_changes('{slot}', NULL, NULL, 'proto_version',"
        " '1', 'publication_names', 'none', 'messages', 'true') WHERE encode(data, 'escape') LIKE 'M%cdc.heartbeat%'"
    )
    return [int(lsn) for (lsn,) in found]


@pytest.mark.full  # test_an_idle_captured_table_beside_busy_ones
def test_heartbeats_stop_where_nobody_writes(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A sign for others' log, none for the little that the server writes because of it."""
    other = f"other_{prefix}"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        "CREATE TABLE busy (v text)",
        "CREATE PUBLICATION none",
        f"SELECT pg_create_logical_replication_slot('{other}', 'pgoutput')",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], source={"heartbeat_s": 0.2})
    with Running(connector) as running:
        running.await_line(FOLLOWING)
        for _ in range(2):
            before = len(heartbeats(database, other))
            database.execute("INSERT INTO busy SELECT repeat('x', 500) FROM generate_series(1, 1000)")
            eventually(lambda before=before: len(heartbeats(database, other)) > before, "a heartbeat for others' log")
            database.execute("CHECKPOINT")
            time.sleep(3)  # fifteen times the interval, and the server's own records come meanwhile
        found = heartbeats(database, other)
        assert running.process.poll() is None, running.stderr
    # The server vacuums other tests' databases meanwhile, and that is others' log: what counts is the log between two.
    assert [later - earlier for earlier, later in pairwise(found) if later - earlier < MOVED_BYTES] == []
    assert connector.records("public.t") == []


def test_without_the_right_to_heartbeats(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """One warning with the statement that helps, and the connector goes on."""
    role = f"role_{prefix}"
    emit = [name for (name,) in postgres18.rows(
        "SELECT oid::regprocedure::text FROM pg_proc WHERE proname = 'pg_logical_emit_message'")]  # fmt: skip
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        f"CREATE PUBLICATION cdc_{prefix} FOR TABLE t WITH (publish_via_partition_root = true)",
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'canary-{prefix}'",
        f"GRANT SELECT ON t TO {role}",
        *(f"REVOKE EXECUTE ON FUNCTION {found} FROM PUBLIC" for found in [*emit, "pg_postmaster_start_time()"]),
    )
    url = postgres18.url.split("@")[1]
    connector = Connector(
        tmp_path, prefix, f"postgresql://{role}:canary-{prefix}@{url}", kafka, ["public.t"],
        as_owner=True, source={"heartbeat_s": 0.2},
    )  # fmt: skip
    try:
        with Running(connector) as running:
            running.await_line(FOLLOWING)
            postgres18.execute("CREATE TABLE busy AS SELECT repeat('x', 500) FROM generate_series(1, 1000)")
            running.await_line(f"GRANT EXECUTE ON FUNCTION {emit[0].partition('(')[0]}")
            postgres18.execute("INSERT INTO t VALUES (1)")
            eventually(lambda: len(connector.events("public.t")) == 1, "rows come all the same")
            assert connector.here("snapshot", "start", "FILE").returncode == 0
            running.await_line("was read while the log was followed")
            assert running.stderr.count("heartbeats") == 1
    finally:
        postgres18.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


# --- A warning in time ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("and_after_it", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_warning_before_the_slot_is_lost(and_after_it: bool, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Half, a quarter, nothing left of max_slot_wal_keep_size: `cdc status` and the running connector say so, and
    what to do; once the log may go, that is said too."""
    folder = tmp_path / "server"
    folder.mkdir(mode=0o755)
    with DevServers(folder, servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        database.execute("ALTER SYSTEM SET max_slot_wal_keep_size = '320MB'", "ALTER SYSTEM SET max_wal_size = '64MB'",
                         "SELECT pg_reload_conf()", "CREATE TABLE t (id int PRIMARY KEY)",
                         "CREATE TABLE busy (v text)", "ALTER TABLE busy ALTER v SET STORAGE EXTERNAL")  # fmt: skip
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
        connector.catch_up()
        connection = database.connect()
        with connection.cursor() as cursor:
            cursor.execute("BEGIN; INSERT INTO t VALUES (1)")  # left open: nobody can let go of the log since then
            said: list[str] = []
            for _ in range(40):
                found = json.loads(connector.here("status", "FILE", "--json").stdout)["slot"]
                assert found["max_slot_wal_keep_bytes"] == 320 * MB
                if found["warning"] is None:
                    assert said == []
                    assert found["safe_wal_size_bytes"] >= 160 * MB
                    assert found["wal_status"] == "reserved" or found["safe_wal_size_bytes"] >= 160 * MB
                else:
                    assert "max_slot_wal_keep_size is 320 MB" in found["warning"]
                    assert "ALTER SYSTEM SET max_slot_wal_keep_size" in found["hint"]
                    said += [w for w in ("half", "a quarter", "next checkpoint") if w in found["warning"]]
                if said[-1:] == ["a quarter"]:
                    break
                database.execute("INSERT INTO busy SELECT repeat(md5(n::text), 60) FROM generate_series(1, 12000) n")
            assert list(dict.fromkeys(said)) == ["half", "a quarter"]
            assert "hint: ALTER SYSTEM SET" in connector.here("status", "FILE").stdout
            with Running(connector) as running:
                running.await_line("less than a quarter")
                cursor.execute("COMMIT")
                if and_after_it:  # the server notes what runs every 15 s, the slot moves then, we look every 30 s
                    running.await_line("holds back little of the log again", within_s=180)
        connection.close()


# --- A dead line ------------------------------------------------------------------------------------------------------


PROXY = """
import socket, sys, threading
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
def carry(one, other):
    while received := one.recv(65536):
        other.sendall(received)
    other.shutdown(socket.SHUT_WR)
while True:
    here, _ = listening.accept()
    there = socket.create_connection((sys.argv[1], int(sys.argv[2])))
    for pair in ((here, there), (there, here)):
        threading.Thread(target=carry, args=pair, daemon=True).start()
"""


class Line:
    """A TCP proxy in a process of its own, so that it can fall silent: stopped, its kernel goes on acknowledging."""

    def __init__(self, host: str, port: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", PROXY, host, port], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())

    def silence(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def line(postgres18: Database) -> Iterator[Line]:
    host, _, port = postgres18.url.split("@")[1].split("/")[0].partition(":")
    made = Line(host, port)
    yield made
    made.close()


NOTICED = {0.0: "the connection is half open|the connection was lost", 0.3: "the connection was lost"}


@pytest.mark.parametrize("heartbeat_s", some_each_push(NOTICED, 0.0))
def test_a_half_open_connection_is_noticed(
    heartbeat_s: float, postgres18: Database, line: Line, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the stream that asks for a sign of life, and by a statement that gets no answer."""
    monkeypatch.setattr(replication_stream, "SILENT_S", 1.5 if not heartbeat_s else 600.0)
    monkeypatch.setattr(heartbeat, "_ANSWER_S", 1.5)
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    login, _, address = postgres18.url.partition("@")
    url = f"{login}@127.0.0.1:{line.port}/{address.partition('/')[2]}?options=-c%20wal_sender_timeout%3D1s"
    source = open_source(
        ConnectorConfig(
            name=prefix,
            source=SourceConfig(type="postgres", url=url, tables=("public.t",), heartbeat_s=heartbeat_s),
            sink=KafkaConfig(bootstrap_servers="unused", topic_prefix=prefix),
        )
    )
    source.connect()
    frames = source.stream(source.hold(source.tables()).offset)
    for _ in range(8):  # an idle server answers each time it is asked: longer than the silence that is suffered
        assert isinstance(next(frames), Idle)
    line.silence()
    with pytest.raises(RetryableError, match=NOTICED[heartbeat_s]):
        for _ in frames:
            pass
    source.close()


def test_a_lock_is_not_waited_for_on_a_half_open_connection(
    postgres18: Database, line: Line, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who follows the log would wait for ever where something in between acknowledges, and so would who stands by."""
    monkeypatch.setattr(claim, "_KEPT_EVERY_S", 0.0)
    monkeypatch.setattr(claim, "_ANSWER_S", 1.5)
    login, _, address = postgres18.url.partition("@")
    through = parameters(f"{login}@127.0.0.1:{line.port}/{address.partition('/')[2]}", "tests")
    with (
        closing(Claim(through, connector="c", slot="s")) as held,
        closing(Claim(through, connector="c", slot="s")) as by,
    ):
        held.keep()
        assert by.follower() is not None
        line.silence()
        for waits in (held.keep, by.follower):
            with pytest.raises(RetryableError, match="the connection was lost"):
                waits()


def test_a_statement_on_a_half_open_connection_is_ended(postgres18: Database, line: Line) -> None:
    """The driver's own way out waits for the server, too, and stops every thread of the process meanwhile."""
    login, _, address = postgres18.url.partition("@")
    waiting = connect(parameters(f"{login}@127.0.0.1:{line.port}/{address.partition('/')[2]}", "tests"))
    ended = list[type[Exception]]()

    def sleep() -> None:
        try:
            Catalog(waiting).rows("sleeping", "SELECT pg_sleep(1000)")
        except Exception as exc:  # noqa: BLE001 - which one is the point
            ended.append(type(exc.__cause__ or exc))

    sleeping = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'tests' AND query ~ 'pg_sleep'"
    for silent in (False, True):
        thread = threading.Thread(target=sleep)
        thread.start()
        eventually(lambda: number(postgres18, f"{sleeping} AND state = 'active'"), "it sleeps")
        if silent:
            line.silence()
        begun_s = time.monotonic()
        cancel(waiting)
        thread.join()
        assert time.monotonic() - begun_s < 30
    waiting.close()
    assert ended == [errors.QueryCanceled, psycopg2.OperationalError]


def test_a_locked_table_stops_no_other(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A long ALTER TABLE of the application holds its table alone: nothing that the connector asks for waits for it."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY) PARTITION BY RANGE (id); CREATE TABLE t_1 (id int PRIMARY KEY)",
        "INSERT INTO t_1 VALUES (9); ALTER TABLE t ATTACH PARTITION t_1 FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t", "public.u"])
    connector.catch_up()
    with closing(database.connect()) as holding, holding.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE t IN ACCESS EXCLUSIVE MODE")
        database.execute("INSERT INTO u VALUES (1)")
        connector.catch_up()
        assert connector.here("check", "FILE").returncode == 0
        cursor.execute("INSERT INTO t VALUES (1); COMMIT")
    assert list(connector.fold("public.u").values()) == [{"id": 1}]
    connector.catch_up()
    assert sorted(row["id"] for row in connector.fold("public.t").values()) == [1, 9]


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_table_that_is_in_no_log_stops_no_other(
    *, runs: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """To stop would keep nothing of it. While running and at a start it is left out; once it is back, it is read."""
    parts = "CREATE TABLE {0} (id int PRIMARY KEY, s text) PARTITION BY RANGE (id);" + "".join(
        f"CREATE TABLE {{0}}_{n} PARTITION OF {{0}} FOR VALUES FROM ({n}0) TO ({n + 1}0);" for n in range(3)
    )
    filled = "INSERT INTO {0} SELECT generate_series(1, 29)"
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)",
        *(statement.format(name) for name in "pq" for statement in (parts, filled)),
    )
    source = {"columns": {"public.p": {"exclude": ["s"]}}}
    tables = ["public.t", "public.p", "public.q*", "!public.q_*"]
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, as_owner=True, source=source)
    connector.catch_up()
    with Running(connector) as run:
        run.await_following()
        postgres18.execute(
            "ALTER TABLE p_1 SET UNLOGGED; DELETE FROM p WHERE id = 11",
            "ALTER TABLE q_0 SET UNLOGGED",
        )
        for name in ("p", "q"):
            eventually(lambda name=name: f"ERROR   table public.{name}: its partition" in run.stderr, f"{name} is left")
        postgres18.execute("INSERT INTO t VALUES (1); DELETE FROM p_0 WHERE id = 1; DELETE FROM q_1 WHERE id = 12")
        eventually(lambda: connector.fold("public.t"), "the other table is followed")
        left = json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"]
        assert set(left) == {"public.p", "public.q"}
        assert run.process.poll() is None
    assert connector.here("check", "FILE").returncode == 0
    assert "public.p_1 is not in the log (unlogged): it is left out; ALTER TABLE" in connector.catch_up()
    back = ("ALTER TABLE p_1 SET LOGGED", "ALTER TABLE q_0 SET LOGGED", "DELETE FROM p WHERE id = 13")
    if runs:
        with Running(connector) as run:
            run.await_following()
            postgres18.execute(*back)
            for name in ("p", "q"):
                run.await_line(f"table public.{name} was read while the log was followed: ")
    else:
        postgres18.execute(*back)
    connector.catch_up()
    assert sorted(row["id"] for row in connector.fold("public.p").values()) == sorted({*range(1, 30)} - {1, 11, 13})
    same(connector, postgres18, "public.q")


@pytest.mark.parametrize("runs", [False, pytest.param(True, marks=pytest.mark.full)])
def test_a_table_that_may_not_be_read_stops_no_other(
    *, runs: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """At a start, by name and by pattern, and in a session that breaks; once the rights are back, it is read."""
    names, others = ("t", "q1", "s.u"), ("public.q1", "s.u")
    role = f"role_{prefix}"
    postgres18.execute(
        "CREATE SCHEMA s",
        *(f"CREATE TABLE {t} (id int PRIMARY KEY); INSERT INTO {t} VALUES (1), (2)" for t in names),
        f"CREATE PUBLICATION cdc_{prefix} FOR TABLE t, q1, s.u WITH (publish_via_partition_root = true)",
        f"CREATE ROLE {role} LOGIN REPLICATION PASSWORD 'canary-{prefix}'",
        f"GRANT SELECT ON t, q1, s.u TO {role}; GRANT USAGE ON SCHEMA s TO {role}",
    )
    url = f"postgresql://{role}:canary-{prefix}@{postgres18.url.split('@')[1]}"
    connector = Connector(tmp_path, prefix, url, kafka, ["public.t", "public.q*", "s.u"], as_owner=True)
    away = (f"REVOKE SELECT ON q1 FROM {role}", f"REVOKE USAGE ON SCHEMA s FROM {role}")
    back = (f"GRANT SELECT ON q1 TO {role}", f"GRANT USAGE ON SCHEMA s TO {role}")
    written = "DELETE FROM {0} WHERE id = 1; INSERT INTO {0} SELECT max(id) + 1 FROM {0}"
    try:
        connector.catch_up()
        postgres18.execute(*away, *(written.format(name) for name in names))
        said = connector.catch_up()
        for name in others:
            assert f"ERROR   table {name} may not be read by this user: the table is captured no more for now" in said
        assert connector.here("check", "FILE").returncode == 0
        same(connector, postgres18, "public.t")
        if runs:
            with Running(connector) as run:
                run.await_following()
                assert {*json.loads(connector.here("status", "FILE", "--json").stdout)["left_out"]} == {*others}
                postgres18.execute(*back)
                for name in others:
                    run.await_line(f"table {name} was read while the log was followed: 2 rows, 1 keys deleted")
                postgres18.execute(
                    *away,
                    *(written.format(name) for name in names),
                    f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{role}'",
                )
                eventually(lambda: {row["id"] for row in connector.fold("public.t").values()} == {2, 3, 4}, "t goes on")
                assert run.process.poll() is None
        postgres18.execute(*back)
        connector.catch_up()
        for name in ("public.t", *others):
            same(connector, postgres18, name)
    finally:
        postgres18.execute(f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_table_of_which_columns_may_be_read(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Somebody has kept columns from the connector: the hint says first how they are left out of the topic."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, secret text, mine int)",
        "CREATE TABLE u (id int PRIMARY KEY, v text)",
        "CREATE TABLE w (id int PRIMARY KEY)",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    role = f"cdc_capture_{postgres18.name}"
    postgres18.execute(f"REVOKE SELECT ON t, u, w FROM {role}; GRANT SELECT (id) ON t TO {role}")
    postgres18.execute(f"GRANT SELECT (id, v) ON u TO {role}")
    found = connector.here("check", "FILE", "--json").stdout
    told = {each["about"]: each for each in json.loads(found)["findings"] if each["about"].startswith("table ")}
    grant = f"GRANT USAGE ON SCHEMA public TO {role}; GRANT SELECT ON public.{{}} TO {role}"
    assert told["table public.t"]["message"].endswith("by this user, who has no right to its columns secret, mine")
    fix = told["table public.t"]["fix"]
    assert fix.index("source.columns: {public.t: {exclude: [secret, mine]}}") < fix.index(grant.format("t"))
    assert told["table public.u"]["message"].endswith("by this user: SELECT is granted on its columns, not on it")
    assert [told[f"table public.{name}"]["fix"] for name in "uw"] == [grant.format(name) for name in "uw"]


@pytest.mark.full  # it is told after ten seconds
def test_a_table_that_is_locked_when_it_is_taken_up(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Its lock is not waited for without a word: who may hold it is said, and once it is free the connector goes on."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], as_owner=True)
    with closing(postgres18.connect()) as holding, holding.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE t IN SHARE UPDATE EXCLUSIVE MODE")
        with Running(connector) as run:
            run.await_line("lock timeout")
            assert "creating publication" in run.stderr
            cursor.execute("COMMIT")
            run.await_following()
    assert list(connector.fold("public.t").values()) == [{"id": 1}]


def test_a_table_that_is_locked_when_a_pattern_brings_it(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It holds up no other: it is left out, which is said, and taken up once it is free."""
    postgres18.execute("CREATE TABLE t_1 (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t_*"], as_owner=True)
    connector.catch_up()
    postgres18.execute("CREATE TABLE t_2 (id int PRIMARY KEY)", "INSERT INTO t_2 VALUES (1)")
    with closing(postgres18.connect()) as holding, holding.cursor() as cursor:
        cursor.execute("BEGIN; LOCK TABLE t_2 IN SHARE UPDATE EXCLUSIVE MODE")
        said = f"table public.t_2 cannot join the publication: it is locked by process {holding.info.backend_pid}"
        with Running(connector) as run:
            run.await_following()
            postgres18.execute("INSERT INTO t_1 VALUES (1)", "INSERT INTO t_2 VALUES (2)")
            eventually(lambda: len(connector.fold("public.t_1")) == 1, "the other table is followed")
            assert said in run.stderr
            assert said in connector.here("check", "FILE").stdout
            cursor.execute("INSERT INTO t_2 VALUES (3); COMMIT")
            run.await_line("table public.t_2 is locked no more: taking it up")
            eventually(lambda: "t_2" in {of["table"] for of in connector.descriptions()}, "it has a topic")
            eventually(lambda: len(connector.fold("public.t_2")) == 3, "and its rows")
