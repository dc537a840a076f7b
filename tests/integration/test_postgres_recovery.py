"""The connector is killed, fenced, cut off and misled, on real servers: nothing lost or twice, or a verdict."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.dev.stack import DevServers
from cdc.model.errors import FencedError
from cdc.model.state import Phase
from connectors.postgres.lsn import lsn_number
from sinks.topics.names import position_topic, table_topic
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import (
    INTEGER,
    KeyShape,
    Row,
    Running,
    eventually,
    filled,
    ordered,
    rows,
    same,
    standing,
    unbroken,
    writing,
)
from tests.pushes import some_each_push

COMMITTED = "committed at"
KEYS = 20_000


def slot_lsn(database: Database, connector: Connector) -> int:
    ((text,),) = database.rows(
        f"SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = 'cdc_{connector.name}'"
    )
    return lsn_number(str(text))


def slot_in_use(database: Database, connector: Connector) -> bool:
    ((active,),) = database.rows(f"SELECT active FROM pg_replication_slots WHERE slot_name = 'cdc_{connector.name}'")
    return bool(active)


def log_end(database: Database) -> int:
    ((text,),) = database.rows("SELECT pg_current_wal_insert_lsn()::text")
    return lsn_number(str(text))


# --- Killed -----------------------------------------------------------------------------------------------------------


def _text(row: Row) -> bytes:
    return bytes(row["id"].encode())


SHAPES = {
    "integer": INTEGER,
    "text": KeyShape("id text", "id", "'ü' || md5({n}::text)", _text),
    "uuid": KeyShape("id uuid", "id", "md5({n}::text)::uuid", _text),
    "char": KeyShape("id char(9)", "id", "('k' || {n})::char(9)", _text),  # no index has the order of its bytes
    "composite": KeyShape("b text, a int", "b, a", "'k' || {n} % 7, {n}", lambda key: (key["b"].encode(), key["a"])),
}


@pytest.mark.full  # test_a_crash_at_every_step, and laws of ranges in tests/property/test_ranges.py
@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.full), 2])
def test_kills_during_the_snapshot(workers: int, database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """SIGKILLed again and again while it reads, with writes going on, it goes on behind the last committed chunks."""
    killed_while_reading(
        INTEGER,
        database,
        Connector(
            tmp_path, prefix, database.url, kafka, ["public.t"], snapshot={"workers": workers, "chunk_rows": 1000}
        ),
    )


@pytest.mark.full  # test_a_crash_at_every_step, and laws of ranges in tests/property/test_ranges.py
@pytest.mark.parametrize(
    "shape",
    [
        pytest.param(shape, marks=[] if shape == "composite" else [pytest.mark.full])
        for shape in SHAPES
        if shape != "integer"
    ],
)
def test_kills_during_the_snapshot_of_other_keys(
    shape: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The same whether the key's own order, its index's, is the one read in, or its text's bytes are sorted."""
    killed_while_reading(
        SHAPES[shape],
        postgres18,
        Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"workers": 3, "chunk_rows": 1000}),
    )


def killed_while_reading(shape: KeyShape, database: Database, connector: Connector) -> None:
    """The state record says what each run read and under how many views.

    Each key is read once, its view the one of the run that read it; and the topic ends as the table.
    """
    keys = 40_000
    filled(database, "public.t", keys=keys, shape=shape)
    reached: list[int] = []
    unread: list[Callable[[Any], bool]] = []
    offsets = set()
    with writing(database, "public.t", keys=keys, shape=shape):
        for kills in range(1, 4):
            with Running(connector, "-v") as run:
                run.await_line(COMMITTED)
                run.kill()
            state = standing(connector)
            assert state.phase is Phase.SNAPSHOT
            table: Any = state.snapshot["tables"]["public.t"]  # type: ignore[index]
            assert not table["done"]
            assert len(state.snapshot["views"]) == kills - 1  # type: ignore[arg-type]
            reached.append(table["rows"])
            unread.append(gaps(shape, table["ranges"]))
            offsets.add(str(state.offset))
        connector.catch_up()
    connector.catch_up()
    assert reached == sorted(set(reached))
    assert reached[0] >= 1000
    assert len(offsets) == 1, "the same slot, from its point on"
    assert standing(connector).phase is Phase.STREAM

    views: dict[bytes, int] = {}
    for record in connector.records("public.t"):
        if record.value is not None and record.value["op"] == "r":
            assert record.raw_key not in views, "read twice"
            views[record.raw_key] = int(record.value["source"]["position"].rpartition(".")[2], 16)
            place = shape.order(record.key)
            assert views[record.raw_key] == sum(gap(place) for gap in unread), "the view of the run that read it"
    assert set(views.values()) == {0, 1, 2, 3}
    same(connector, database, "public.t")
    unbroken(connector, "public.t")


def gaps(shape: KeyShape, ranges: list[dict[str, Any]]) -> Callable[[Any], bool]:
    """Whether a key's place lies in a range not read yet."""
    names = shape.names.split(", ")
    types = [int if f"{name} int" in shape.columns else str for name in names]
    bounds = []
    for r in ranges:
        given = r["upto"] and {name: kind(part) for name, kind, part in zip(names, types, r["upto"], strict=True)}
        bounds.append((shape.order(given) if given else None, r["view"] is None))
    return lambda place: next(gap for upto, gap in bounds if upto is None or place <= upto)


def test_progress_is_shown(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """While it reads, rows, estimate and time left are in the log line and in `cdc status`; once killed, no time is."""
    filled(database, "public.t", keys=60_000)  # never analyzed: the estimate is of the table's size
    database.execute(
        "CREATE TABLE u (id int PRIMARY KEY) PARTITION BY RANGE (id)",
        "CREATE TABLE u_1 PARTITION OF u FOR VALUES FROM (0) TO (500)",
        "CREATE TABLE u_2 PARTITION OF u FOR VALUES FROM (500) TO (1000)",
        "INSERT INTO u SELECT generate_series(0, 999)",
        "CREATE TABLE v (id int PRIMARY KEY)",
        "ANALYZE",
    )
    snapshot = {"workers": 1, "chunk_rows": 1000}
    connector = Connector(
        tmp_path, prefix, database.url, kafka, ["public.t", "public.u", "public.v"], snapshot=snapshot
    )
    with Running(connector, "-v") as run:
        run.await_line(COMMITTED)
        run.process.send_signal(signal.SIGSTOP)
        reading = json.loads(connector.here("status", "FILE", "--json").stdout)
        shown = connector.here("status", "FILE").stdout
        run.kill()
    assert (reading["phase"], reading["running"]) == ("snapshot", True)
    assert reading["snapshot"].keys() == {"public.t", "public.u", "public.v"}
    t, u, v = (reading["snapshot"][f"public.{name}"] for name in "tuv")
    assert not t["done"]
    assert 0 < t["rows"] < 60_000
    assert 55_000 < t["estimate"] < 65_000
    assert u == {"rows": 0, "estimate": 1_000, "done": False}
    assert v == {"rows": 0, "estimate": 0, "done": False}
    assert reading["eta_seconds"] > 0
    assert f"public.t: {t['rows']:,} rows of about {t['estimate']:,}, reading" in shown
    assert "public.u: 0 rows of about 1,000, waiting" in shown
    assert re.search(r"about \d+ (s|min).* left", shown)
    eventually(lambda: not json.loads(connector.here("status", "FILE", "--json").stdout)["running"], "it is seen gone")
    gone = json.loads(connector.here("status", "FILE", "--json").stdout)
    assert (gone["eta_seconds"], gone["snapshot"]) == (None, reading["snapshot"])
    connector.catch_up()
    done = json.loads(connector.here("status", "FILE", "--json").stdout)["snapshot"]
    assert not done or all(table["done"] for table in done.values())


@pytest.mark.parametrize(
    "statements",
    some_each_push(
        [
            ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (n)"],
            ["ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (v, id)"],
            ["ALTER TABLE t ALTER id TYPE int USING substr(id, 2)::int"],
        ],
        ["ALTER TABLE t ALTER id TYPE int USING substr(id, 2)::int"],
    ),
    ids=["another", "a wider one", "retyped"],
)
def test_key_changed_during_the_snapshot(
    statements: list[str], postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Killed while it reads, and the table has another key then: what was read by the old one is read again."""
    filled(postgres18, "public.t", keys=30_000, shape=KeyShape("id text", "id", "'w' || {n}", _text))
    postgres18.execute(
        "UPDATE t SET n = 40000 - substr(id, 2)::int", "ALTER TABLE t ALTER n SET NOT NULL, ALTER v SET NOT NULL"
    )
    snapshot = {"workers": 2, "chunk_rows": 1000}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot=snapshot)
    with Running(connector, "-v") as run:
        run.await_line(COMMITTED)
        run.kill()
    assert standing(connector).phase is Phase.SNAPSHOT
    postgres18.execute(*statements)
    connector.catch_up()
    same(connector, postgres18, "public.t")


def test_wide_row_that_moves_into_what_was_read(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Between kill and resumption a row's key moves into the range read before: its out-of-line value comes along."""
    keys = 60_000  # the last of which is not read before the kill
    filled(postgres18, "public.t", keys=keys)
    postgres18.execute(
        "ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL",
        f"UPDATE t SET v = (SELECT string_agg(md5(x::text), '') FROM generate_series(1, 400) x) WHERE id = {keys - 1}",
    )
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"workers": 1, "chunk_rows": 1000}
    )
    with Running(connector, "-v") as run:
        run.await_line(COMMITTED)
        run.kill()
    (read_to,) = standing(connector).snapshot["tables"]["public.t"]["ranges"][0]["upto"]  # type: ignore[index]
    assert 0 < int(read_to) < keys - 1
    postgres18.execute(f"UPDATE t SET id = -1 WHERE id = {keys - 1}")
    connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.full  # test_a_crash_at_every_step, and the soaks
def test_kills_during_the_stream(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """SIGKILLed again and again while it follows a busy table, it loses no event and writes none twice."""
    filled(database, "public.t", keys=2000)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    with writing(database, "public.t", keys=2000):
        for _ in range(4):
            with Running(connector, "-v") as run:
                run.await_line(COMMITTED, times=3)
                run.kill()
    connector.catch_up()
    same(connector, database, "public.t")
    unbroken(connector, "public.t")


@pytest.mark.full  # the soaks look at it all along
def test_the_slot_is_never_ahead_of_the_position(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Under load, sampled all along: what PostgreSQL may forget has been committed to Kafka before."""
    filled(postgres18, "public.t", keys=2000)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    samples: list[tuple[int, int]] = []
    with writing(postgres18, "public.t", keys=2000), Running(connector) as run:
        run.await_following()
        while len({slot for slot, _ in samples}) < 10:
            slot = slot_lsn(postgres18, connector)  # first: the position only grows
            samples.append((slot, standing(connector, settled=True).commit))
    assert all(slot <= position for slot, position in samples), samples


def test_status_while_a_transaction_hangs(stopped: Connector) -> None:
    """`cdc status` tells what is committed at once, also where a killed copy has left its last transaction open."""
    producer = Producer({"bootstrap.servers": stopped.kafka, "transactional.id": f"{stopped.name}.hanging"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(position_topic(stopped.name, stopped.name), b"{}", b"never committed")
    producer.flush(30)
    try:
        done = stopped.cdc("status", "FILE", "--json", timeout_s=45)  # the broker ends it after 60 s
    finally:
        producer.abort_transaction(30)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["phase"], found["running"]) == ("stream", False)
    assert found["position"] == standing(stopped).offset
    assert found["lag_bytes"] > 0


def test_lag_is_counted_from_what_is_in_kafka(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """It is small of one that is idle, and of one that was stopped or stands still as old as what it read last."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])

    def lag() -> tuple[float, int]:
        found = json.loads(connector.here("status", "FILE", "--json").stdout)
        assert found["source_at"].endswith("+00:00")
        return found["lag_seconds"], found["lag_bytes"]

    with Running(connector) as run:
        run.await_following()
        postgres18.execute("INSERT INTO t VALUES (1)")
        eventually(lambda: connector.fold("public.t"), "the row")
        assert lag()[0] < 15
        run.process.send_signal(signal.SIGSTOP)
        begun = time.monotonic()
        postgres18.execute("INSERT INTO t SELECT generate_series(2, 20000)")
        time.sleep(2)
        at_least = time.monotonic() - begun
        behind_s, behind_bytes = lag()
        assert behind_s >= at_least - 0.1
        assert behind_bytes > 1_000_000
        run.process.send_signal(signal.SIGCONT)
        eventually(lambda: lag()[0] < 1.5, "it has caught up")
    connector.catch_up()
    time.sleep(0.5)
    postgres18.execute("INSERT INTO t VALUES (0)")
    assert 0.5 <= lag()[0] < 15  # up to when it ran, though the last row is older


# --- Asked to end -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", some_each_push([signal.SIGINT, signal.SIGTERM], signal.SIGTERM), ids=["SIGINT", "SIGTERM"]
)
def test_signals_end_it_cleanly(
    number: signal.Signals, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Asked to end, in stream or snapshot, it commits what is whole and ends 0; the next run goes on there."""
    filled(postgres18, "public.t", keys=KEYS)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"chunk_rows": 1000})
    with Running(connector, "-v") as run:
        run.await_line(COMMITTED, times=1)
        run.process.send_signal(number)
        assert run.ended() == 0, run.stderr
        assert run.process.stdout is not None
        assert run.process.stdout.read() == ""
    state = standing(connector)
    assert state.phase is Phase.SNAPSHOT
    assert state.snapshot["tables"]["public.t"]["rows"] > 0  # type: ignore[index]
    with Running(connector) as run:
        run.await_following()
        postgres18.execute("INSERT INTO t VALUES (-1, 0, 'last')")
        written = log_end(postgres18)
        eventually(lambda: standing(connector).commit >= written, "the insert's position")
        run.process.send_signal(number)
        assert run.ended() == 0, run.stderr
        assert "position committed" in run.stderr
    same(connector, postgres18, "public.t")
    unbroken(connector, "public.t")


def test_ctrl_c_ends_several_cleanly(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Ctrl-C reaches the whole process group: each connector of the command commits, ends, and the command ends 0."""
    postgres18.execute("CREATE TABLE a (id int PRIMARY KEY)", "CREATE TABLE b (id int PRIMARY KEY)")
    both = [Connector(tmp_path, f"{prefix}{t}", postgres18.url, kafka, [f"public.{t}"]) for t in "ab"]
    for each in both:
        each.put_right()
    process = subprocess.Popen(
        [sys.executable, "-m", "cdc", "run", *(str(c.file) for c in both)],
        env=both[0].environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        active = "SELECT count(*) FROM pg_replication_slots WHERE active AND database = current_database()"
        eventually(lambda: postgres18.rows(active) == [(2,)], "both follow the log")
        os.killpg(process.pid, signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, stdout) == (0, ""), stderr
    assert stderr.count("position committed") == 2


# --- Two of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("busy", some_each_push([True, False], True), ids=["busy", "idle"])
def test_a_second_copy_fences_the_first(
    busy: bool, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """The copy that takes over goes on; the first ends with a code of its own and says why, on an idle database too."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    with Running(connector) as first:
        first.await_following()
        if busy:  # held: it has the slot, and would for as long as the server waits for it
            eventually(lambda: slot_in_use(postgres18, connector), "the first copy has the slot")
            first.process.send_signal(signal.SIGSTOP)
        with Running(connector, "--take-over") as second:
            if busy:
                second.await_line("the sessions of the copy that was fenced are ended")
                second.await_following()
                postgres18.execute("INSERT INTO t VALUES (1)")
                first.process.send_signal(signal.SIGCONT)
            assert first.ended() == FencedError.exit_code == 3
            assert "another copy of connector" in first.stderr
            assert "Traceback" not in first.stderr
            if not busy:
                assert second.process.poll() is None  # it gets the slot at its next try
                return
            second.await_following()
            postgres18.execute("INSERT INTO t VALUES (2)")
            eventually(lambda: {"id": 2} in connector.fold("public.t").values(), "the second copy's event")
    assert [e["after"]["id"] for e in connector.events("public.t")] == [1, 2]


# --- Idle -------------------------------------------------------------------------------------------------------------


@pytest.mark.full  # test_an_idle_captured_table_beside_busy_ones
def test_idle_tables_let_the_log_go(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """While only others write, positions alone are committed and the slot follows; no data topic gets a record."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE other (id serial, v text)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    with Running(connector) as run:
        run.await_following()
        postgres18.execute("INSERT INTO other (v) SELECT repeat('x', 1000) FROM generate_series(1, 5000)")
        written = log_end(postgres18)
        before = standing(connector).sequence
        eventually(lambda: slot_lsn(postgres18, connector) >= written, "the slot follows")
        assert standing(connector).commit >= written
        assert before < standing(connector).sequence <= before + 2
    probe = Consumer({"bootstrap.servers": kafka, "group.id": "t"})
    topic = table_topic(prefix, "public", "t")
    partitions = probe.list_topics(topic, timeout=60).topics[topic].partitions
    assert [probe.get_watermark_offsets(TopicPartition(topic, p), timeout=60) for p in partitions] == [(0, 0)] * 3
    probe.close()


@pytest.mark.full  # most tests end with a run on an idle database
def test_caught_up_on_an_idle_database(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`--until-caught-up` ends 0 on an idle database: at once, again, after a switch of the log file, a checkpoint."""
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    connector.catch_up()
    database.execute("SELECT pg_switch_wal()")
    started = time.monotonic()
    connector.catch_up()
    database.execute("CHECKPOINT")
    connector.catch_up()
    assert time.monotonic() - started < 15, "it waited for somebody to write"
    assert connector.records("public.t") == []


# --- Verdicts ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def stopped(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> Connector:
    """A connector that has run, and rows written since."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)", "INSERT INTO t VALUES (1)"
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.u"])
    connector.catch_up()
    postgres18.execute("INSERT INTO t VALUES (2)")
    return connector


def verdict(connector: Connector, *words: str) -> None:
    """It stops with exit 4 and these words, twice over, and has written nothing."""
    before = connector.records("public.t")
    for _ in range(2):
        done = connector.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 4, done.stderr
        assert done.stdout == ""
        for word in words:
            assert word in done.stderr
        assert "hint:" in done.stderr
        assert "Traceback" not in done.stderr
    assert connector.records("public.t") == before


def drop_slot(database: Database, connector: Connector) -> None:
    database.execute(f"SELECT pg_drop_replication_slot('cdc_{connector.name}')")


def delete_topic(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")


def test_slot_dropped(stopped: Connector, postgres18: Database) -> None:
    """Without its slot the log since the position is gone: slot missing."""
    drop_slot(postgres18, stopped)
    verdict(stopped, "slot missing", f"cdc_{stopped.name}")


def test_slot_advanced_by_hand(stopped: Connector, postgres18: Database) -> None:
    """A slot beyond the position would skip what lies between: slot ahead, with both places.

    Where the server has noted its transactions in between, of its own accord, the slot is as one made again, or moved.
    """
    at = standing(stopped).offset["lsn"]
    postgres18.execute(f"SELECT pg_replication_slot_advance('cdc_{stopped.name}', pg_current_wal_lsn())")
    verdict(stopped, "Kafka holds", f"cdc_{stopped.name}", str(at))
    assert re.search("slot ahead|made again, or moved", stopped.here("run", "FILE", "--until-caught-up").stderr)


def test_slot_made_again(stopped: Connector, postgres18: Database) -> None:
    """A slot dropped and made again under its name begins behind the position: what lies between is in no slot."""
    drop_slot(postgres18, stopped)
    postgres18.execute(f"SELECT pg_create_logical_replication_slot('cdc_{stopped.name}', 'pgoutput')")
    verdict(stopped, "slot re-made", f"cdc_{stopped.name}")


def test_slot_of_another_tool(stopped: Connector, postgres18: Database) -> None:
    """A slot of our name that is not pgoutput's is not touched: slot taken."""
    drop_slot(postgres18, stopped)
    postgres18.execute(f"SELECT pg_create_physical_replication_slot('cdc_{stopped.name}')")
    verdict(stopped, "slot taken", f"cdc_{stopped.name}")
    drop_slot(postgres18, stopped)


def test_a_database_in_the_place_of_another(stopped: Connector, postgres18: Database) -> None:
    """Renamed it is followed on; the copy that has taken its name is another one, until the gap is closed."""
    server, name = postgres18.url.rpartition("/")[0], postgres18.name
    renamed, admin = Database(f"{server}/{name}_old", f"{name}_old"), Database(f"{server}/postgres", "postgres")
    admin.execute(f"CREATE DATABASE {name}_new TEMPLATE {name}", f"ALTER DATABASE {name} RENAME TO {name}_old")
    admin.execute(f"ALTER DATABASE {name}_new RENAME TO {name}")
    postgres18.execute("DELETE FROM t WHERE id = 1")
    try:
        verdict(stopped, "slot of another database", f"follows database {name}_old")
        there = stopped.environment["TEST_DATABASE_URL"]
        stopped.environment["TEST_DATABASE_URL"] = f"{there}_old"
        assert f"database {name} is called {name}_old by now" in stopped.catch_up()
        assert len(stopped.fold("public.t")) == 2
        stopped.environment["TEST_DATABASE_URL"] = there
        verdict(stopped, "another source", f"position of database {name}_old")
    finally:
        drop_slot(renamed, stopped)
        admin.execute(f"DROP DATABASE {renamed.name} WITH (FORCE)")


@pytest.mark.full  # test_slot_of_another_tool
def test_slot_of_another_database(stopped: Connector, postgres18: Database, servers: Callable[[str], str]) -> None:
    """Slot names belong to the whole server: one of our name that follows another database is not ours."""
    drop_slot(postgres18, stopped)
    elsewhere = Database(servers("postgres18"), "postgres")
    elsewhere.execute(f"SELECT pg_create_logical_replication_slot('cdc_{stopped.name}', 'pgoutput')")
    try:
        verdict(stopped, "slot of another database", f"cdc_{stopped.name}")
    finally:
        drop_slot(elsewhere, stopped)


def test_foreign_slot_at_the_first_start(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A slot of our name before we ever ran is somebody's: it is left alone, and nothing is made."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    postgres18.execute(f"SELECT pg_create_logical_replication_slot('cdc_{prefix}', 'pgoutput')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], as_owner=True)
    at = slot_lsn(postgres18, connector)
    done = connector.here("run", "FILE", "--until-caught-up")
    assert (done.returncode, done.stdout) == (4, "")
    assert f"cdc_{prefix} exists" in done.stderr
    assert slot_lsn(postgres18, connector) == at
    assert postgres18.rows("SELECT pubname FROM pg_publication") == []
    topics = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=60).topics
    assert not any(topic.startswith(prefix) for topic in topics)


def test_another_server(stopped: Connector, postgres18: Database, servers: Callable[[str], str]) -> None:
    """A position belongs to one server, whose number tells; of one that has taken its place all is read, if asked for.

    Topics and readers stay as they are: so it is after each upgrade to a new major version.
    """
    elsewhere = Database(servers("postgres16"), "postgres")
    elsewhere.execute(f"CREATE DATABASE {postgres18.name}")
    other = Database(servers("postgres16").rsplit("/", 1)[0] + "/" + postgres18.name, postgres18.name)
    ours = stopped.environment["TEST_DATABASE_URL"]
    try:
        other.execute("CREATE TABLE t (id int PRIMARY KEY)", "CREATE TABLE u (id int PRIMARY KEY)")
        stopped.environment["TEST_DATABASE_URL"] = other.url
        verdict(stopped, "another source", "system identifier")
        assert other.rows("SELECT pubname FROM pg_publication") == []
        stopped.environment["TEST_DATABASE_URL"] = ours
        stopped.catch_up()
        same(stopped, postgres18, "public.t")
        other.execute("INSERT INTO t VALUES (1), (77)")  # it has taken its place, and the hint is followed
        stopped.environment["TEST_DATABASE_URL"] = other.url
        elsewhere.execute(f"SELECT pg_create_physical_replication_slot('cdc_{stopped.name}')")
        ((number,),) = other.rows("SELECT system_identifier::text FROM pg_control_system()")
        assert stopped.here("snapshot", "start", "FILE", "--after-gap").returncode == 0
        verdict(stopped, "another source", f"--after-gap --server {number}")
        assert stopped.here("snapshot", "start", "FILE", "--after-gap", "--server", number).returncode == 0
        verdict(stopped, "slot taken", f"cdc_{stopped.name}")
        drop_slot(elsewhere, stopped)
        stopped.catch_up()
        same(stopped, other, "public.t")
        other.execute("DELETE FROM t WHERE id = 1")
        stopped.catch_up()
        same(stopped, other, "public.t")
        stopped.environment["TEST_DATABASE_URL"] = ours
        verdict(stopped, "another source", "system identifier")
    finally:
        drop_slot(elsewhere, stopped)
        elsewhere.execute(f"DROP DATABASE {postgres18.name} WITH (FORCE)")


def test_position_topic_deleted(stopped: Connector, postgres18: Database) -> None:
    """A connector that has lost its position does not begin again: the slot, then the topics, tell that it has run."""
    delete_topic(stopped.kafka, position_topic(stopped.name, stopped.name))
    verdict(stopped, f"cdc_{stopped.name} exists", "no position")
    drop_slot(postgres18, stopped)
    verdict(stopped, f"{stopped.name}.public.t", "holds records already")
    assert postgres18.rows("SELECT slot_name FROM pg_replication_slots WHERE database = current_database()") == []


def test_table_left_the_publication(stopped: Connector, postgres18: Database) -> None:
    """What a table did outside the publication is in no log: it is named, and taking it back does not hide the gap.

    Where the connector's user could take it back by itself, that is for somebody to decide.
    """
    stopped.environment["TEST_DATABASE_URL"] = postgres18.url
    postgres18.execute(f"ALTER PUBLICATION cdc_{stopped.name} DROP TABLE t")
    verdict(stopped, f"publication cdc_{stopped.name}", "public.t")


@pytest.mark.full  # test_table_left_the_publication
def test_publication_dropped(stopped: Connector, postgres18: Database) -> None:
    """Without its publication the same holds for every table."""
    postgres18.execute(f"DROP PUBLICATION cdc_{stopped.name}")
    verdict(stopped, f"publication cdc_{stopped.name}", "public.t")


# --- Servers that go away ---------------------------------------------------------------------------------------------


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[tuple[DevServers, Database]]:
    """A PostgreSQL 18 for this test alone."""
    with DevServers(tmp_path / "servers", servers=("postgres18",)) as servers:
        url = servers["postgres18"].url
        yield servers, Database(url, "postgres")


def test_server_and_connections_that_go_away(
    own_server: tuple[DevServers, Database], kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Walsender killed, server killed, stopped for a while, hanging: it comes back by itself and misses nothing."""
    servers, database = own_server
    postgres = servers["postgres18"]
    filled(database, "public.t", keys=100)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    numbers = itertools.count(1000)

    def arrives() -> None:
        number = next(numbers)
        database.execute(f"INSERT INTO t VALUES ({number}, 0, 'new')")
        eventually(lambda: any(r.key["id"] == number for r in connector.records("public.t")), "the new row")

    with Running(connector) as run:
        run.await_following()
        arrives()
        database.execute("SELECT pg_terminate_backend(active_pid) FROM pg_replication_slots")
        arrives()
        database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^cdc '")
        arrives()
        postgres.kill()  # as an immediate shutdown: no checkpoint, recovery at the start
        postgres.start()
        arrives()
        postgres.stop()
        eventually(lambda: run.stderr.count("trying again") > 4, "it keeps trying")
        postgres.start()
        arrives()
        postgres.pause()
        postgres.resume()
        arrives()
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 0, run.stderr
        assert "Traceback" not in run.stderr
    same(connector, database, "public.t")
    unbroken(connector, "public.t")
    assert ordered(connector.fold("public.t").values()) == ordered(rows(database, "SELECT * FROM t"))


@pytest.mark.full  # test_a_leader_is_killed, test_acknowledged_records_of_the_last_transaction_are_lost
def test_a_broker_that_is_killed_and_comes_back(postgres18: Database, prefix: str, tmp_path: Path) -> None:
    """SIGKILL to Kafka while rows are written: the connector says so once, waits, and doubles and loses nothing."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, n int)")
    with DevServers(tmp_path / "broker", servers=("kafka",)) as servers:
        broker = servers["kafka"]
        connector = Connector(tmp_path, prefix, postgres18.url, broker.url, ["public.t"])
        connector.catch_up()
        with Running(connector) as running:
            running.await_following()
            for number in range(100):
                postgres18.execute(f"INSERT INTO t VALUES ({number}, 0); UPDATE t SET n = n + 1")
                if number == 30:
                    broker.kill()
                if number == 60:
                    running.await_line("no broker answers")
                    broker.start()
            wanted = {row[0]: row[1] for row in postgres18.rows("SELECT id, n FROM t")}
            eventually(lambda: {r["id"]: r["n"] for r in connector.fold("public.t").values()} == wanted, "the fold")
            running.process.send_signal(signal.SIGINT)
            assert running.ended() == 0
        unbroken(connector, "public.t")
        events = connector.events("public.t")
        assert len(events) == len({event["source"]["position"] for event in events}) == 100 + sum(range(1, 101))
