"""Tables read while the log is followed: added ones, re-snapshots, what the source no longer has, gaps closed."""

from __future__ import annotations

import contextlib
import json
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from confluent_kafka import Producer

from cdc.capture.control.signals import Command
from cdc.capture.snapshots import incremental_snapshot
from cdc.config.kafka_config import KafkaConfig
from cdc.dev.stack import DevServers
from cdc.encode import truncates
from cdc.model.state import State
from cdc.testing import Killed
from connectors.postgres.slot import afresh
from sinks.kafka import KafkaSink
from sinks.topics.names import table_topic
from sinks.topics.records.signals import send_command
from tests.conftest import FULL, Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, filled, ordered, rows, same, standing, unbroken, writing
from tests.pushes import some_each_push

KEYS = 30_000
WIDE = "(SELECT string_agg(md5('{0}' || x), '') FROM generate_series(1, 400) x)"


def planted(connector: Connector, table: str, row: dict[str, object], key: str = "id") -> None:
    """A record of a row that the source does not have, as if written before the position; partition by Java's hash."""
    first = next(r for r in connector.records(table) if r.value is not None)
    assert first.value is not None
    event = {**first.value, "before": None, "after": row}
    topic = table_topic(connector.name, *table.split(".", 1))
    producer = Producer({"bootstrap.servers": connector.kafka, "partitioner": "murmur2_random"})
    producer.produce(topic, json.dumps(event).encode(), json.dumps({key: row[key]}, separators=(",", ":")).encode())
    assert producer.flush(30) == 0


def snapshot(connector: Connector, *words: str) -> str:
    done = connector.here("snapshot", words[0], "FILE", *words[1:])
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextlib.contextmanager
def following(connector: Connector, *flags: str) -> Iterator[Running]:
    """The connector at work, stopped cleanly at the end."""
    with Running(connector, *flags) as run:
        run.await_following()
        yield run
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 0, run.stderr
        assert "Traceback" not in run.stderr


def test_the_others_stream_on(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """While an added table is being read, a row of another table arrives; both tables end right under full load."""
    filled(database, "public.t", keys=2000)
    filled(database, "public.added", keys=KEYS)
    Connector(tmp_path, prefix, database.url, kafka, ["public.t"]).catch_up()
    connector = Connector(
        tmp_path, prefix, database.url, kafka, ["public.t", "public.added"], snapshot={"chunk_rows": 500}
    )
    with writing(database, "public.added", keys=KEYS), following(connector):
        eventually(lambda: standing(connector).reading["public.added"]["rows"], "some of its rows")
        database.execute("INSERT INTO t VALUES (-1, 0, 'meanwhile')")
        eventually(lambda: any(r.key == {"id": -1} for r in connector.records("public.t")), "the other table's row")
        assert not standing(connector).reading["public.added"]["read"], "the table was read before the row came"
        eventually(lambda: not standing(connector).reading, "all is read")
    connector.catch_up()
    for table in ("public.t", "public.added"):
        same(connector, database, table)
        unbroken(connector, table, read_again=True)


def test_a_table_that_is_added_at_an_older_server(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before 16.9 nothing would be sent of it, had a transaction written it as it joined: another walsender goes on.

    That the server forgets by it was seen at 16.2; here, that nothing is lost or told twice on the way.
    """
    begun: list[int] = []

    def has_begun(log: tuple[str, str], at: int) -> None:
        begun.append(at)
        told(log, at)

    told = afresh.has_begun
    monkeypatch.setattr(afresh, "has_begun", has_begun)
    monkeypatch.setattr(afresh, "_REPAIRED", {18: 190_000})
    for table in ("t", "added"):
        filled(postgres18, f"public.{table}", keys=500)
    Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"]).catch_up()
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.added"])
    with writing(postgres18, "public.added", keys=500), writing(postgres18, "public.t", keys=500):
        connector.catch_up()
    assert begun
    connector.catch_up()
    for table in ("public.t", "public.added"):
        same(connector, postgres18, table)
        unbroken(connector, table, read_again=table == "public.added")


def test_read_again_on_request(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Rows that the topic has wrong are right again; one that the source does not have is deleted; no other is."""
    keys = KEYS if FULL else 5_000
    filled(database, "public.t", keys=keys)
    filled(database, "public.u", keys=10)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t", "public.u"])
    connector.catch_up()
    read = len(connector.records("public.u"))
    planted(connector, "public.t", {"id": 7, "n": -1, "v": "wrong"})
    planted(connector, "public.t", {"id": -7, "n": -1, "v": "a ghost"})
    with writing(database, "public.t", keys=keys), following(connector) as run:
        asked = json.loads(snapshot(connector, "start", "--table", "public.t", "--json"))
        assert asked["tables"] == ["public.t"]
        run.await_line("table public.t is read again, as asked")
        run.await_line("table public.t was read while the log was followed")
        assert json.loads(snapshot(connector, "status", "--json")) == {}
    connector.catch_up()
    same(connector, database, "public.t")
    ghost = [r.value and r.value["op"] for r in connector.records("public.t") if r.key == {"id": -7}]
    assert ghost[1:] == ["d", None]
    vanished = [e for e in connector.events("public.t") if e["op"] == "d" and e["transaction"] is None]
    assert [e["before"] for e in vanished] == [{"id": -7}]
    assert {e["source"]["snapshot"] for e in vanished} == {"incremental"}
    assert len(connector.records("public.u")) == read, "the other table was left alone"


def test_asked_for_while_stopped(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A command waits for the next start, is carried out once, and `--until-caught-up` sees it through."""
    filled(postgres18, "public.t", keys=50)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    snapshot(connector, "start")
    connector.catch_up()
    connector.catch_up()
    assert [e["source"]["snapshot"] for e in connector.events("public.t")] == ["true"] * 50 + ["incremental"] * 50
    unbroken(connector, "public.t", read_again=True)


def test_stopped_on_request(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """What was read stays, nothing is deleted, and `status` says how far it has got before."""
    filled(postgres18, "public.t", keys=KEYS)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"chunk_rows": 100})
    connector.catch_up()
    planted(connector, "public.t", {"id": -7, "n": -1, "v": "a ghost"})
    with following(connector) as run:
        snapshot(connector, "start")
        eventually(lambda: standing(connector).reading, "it has begun")
        at = json.loads(snapshot(connector, "status", "--json"))["public.t"]
        assert at["phase"] == "reading"
        snapshot(connector, "stop")
        run.await_line("no longer read")
        eventually(lambda: not standing(connector).reading, "it has ended")
    assert connector.fold("public.t")[b'{"id":-7}'] is not None
    refused = connector.here("snapshot", "stop", "FILE")
    assert refused.returncode == 1
    assert "no table is being read again on request" in refused.stderr


@pytest.mark.full  # test_a_crash_at_every_step
def test_killed_while_reading(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """SIGKILLed again and again, the reading goes on behind the last committed window; the end is right."""
    filled(database, "public.t", keys=KEYS)
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], snapshot={"chunk_rows": 500})
    connector.catch_up()
    planted(connector, "public.t", {"id": -7, "n": -1, "v": "a ghost"})
    snapshot(connector, "start")
    reached: list[int] = []
    with writing(database, "public.t", keys=KEYS):
        for _ in range(3):
            with Running(connector, "-v") as run:
                run.await_following()
                before = reached[-1] if reached else 0
                eventually(lambda b=before: standing(connector).reading.get("public.t", {}).get("rows", 0) > b, "more")
                run.kill()
            reached.append(standing(connector).reading["public.t"]["rows"])  # type: ignore[arg-type]
    assert reached == sorted(set(reached))
    connector.catch_up()
    connector.catch_up()
    same(connector, database, "public.t")
    unbroken(connector, "public.t", read_again=True)


def test_closing_a_gap(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """The slot is lost and rows come, change and go in the gap: it stops, and is whole when asked to read again."""
    filled(database, "public.t", keys=2000)
    database.execute("ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL", f"UPDATE t SET v = {WIDE} WHERE id < 3")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    database.execute(
        f"SELECT pg_drop_replication_slot('cdc_{prefix}')",
        "DELETE FROM t WHERE id % 5 = 4",
        "INSERT INTO t VALUES (5000, 0, 'in the gap')",
        f"UPDATE t SET v = {WIDE.format('gap')} WHERE id = 1",
    )
    stopped = connector.here("run", "FILE", "--until-caught-up")
    assert stopped.returncode == 4
    assert "slot missing" in stopped.stderr
    assert "--after-gap" in stopped.stderr
    snapshot(connector, "start", "--after-gap")
    connector.catch_up()
    database.execute("UPDATE t SET n = 77 WHERE id < 3")
    connector.catch_up()
    same(connector, database, "public.t")
    unbroken(connector, "public.t", read_again=True)
    assert standing(connector).epoch == 2


def kill_behind_a_commit(
    connector: Connector, monkeypatch: pytest.MonkeyPatch, behind: Callable[[State], bool]
) -> None:
    """Run a connector that dies behind the first commit of such a state."""
    commit = KafkaSink.commit

    def killed(sink: KafkaSink, state: State) -> None:
        commit(sink, state)
        if behind(state):
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(KafkaSink, "commit", killed)
        with pytest.raises(Killed):
            connector.catch_up()
    connector.killed = True


@pytest.mark.parametrize("gone", some_each_push([0, 22], 22), ids=["none gone", "many gone"])
@pytest.mark.parametrize(
    "alter",
    some_each_push(
        ["ADD COLUMN c int DEFAULT 5", "DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)"], "ADD COLUMN c int DEFAULT 5"
    ),
    ids=["default", "key"],
)
def test_a_table_that_is_altered_amid_the_end_of_a_reading(
    postgres18: Database,
    kafka: str,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    alter: str,
    gone: int,
) -> None:
    """All its rows are read, keys that are gone have deletes yet to come: it is read from its beginning once more."""
    monkeypatch.setattr(incremental_snapshot, "DELETES_AT_ONCE", 3)
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL)",
        "INSERT INTO t SELECT x, -x FROM generate_series(1, 30) x",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    postgres18.execute(f"DELETE FROM t WHERE id <= {gone}", f"SELECT pg_drop_replication_slot('cdc_{prefix}')")
    snapshot(connector, "start", "--after-gap")
    kill_behind_a_commit(
        connector, monkeypatch, lambda state: any(reading["read"] for reading in state.reading.values())
    )
    postgres18.execute(f"ALTER TABLE t {alter}")
    assert "its rows are read again" in connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.parametrize(
    "change",
    some_each_push(
        [
            "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)",
            "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL); INSERT INTO t VALUES (7, 8)",
        ],
        "ALTER TABLE t DROP CONSTRAINT t_pkey, ADD PRIMARY KEY (k)",
    ),
    ids=["key", "made again"],
)
def test_a_table_that_is_another_before_its_reading_has_begun(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, change: str
) -> None:
    """What the log told behind the place where the reading was asked for is of the table as it was, too."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, k int NOT NULL)", "INSERT INTO t SELECT x, -x FROM generate_series(1, 5) x"
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    postgres18.execute(f"SELECT pg_drop_replication_slot('cdc_{prefix}')")
    snapshot(connector, "start", "--after-gap")
    kill_behind_a_commit(connector, monkeypatch, lambda state: bool(state.reading))
    postgres18.execute("INSERT INTO t VALUES (100, -100)", change)
    connector.catch_up()
    same(connector, postgres18, "public.t")


def test_a_commit_held_back_is_not_overwritten(kafka: str, prefix: str, tmp_path: Path) -> None:
    """A transaction in the log that no view sees yet (a standby is waited for): its event outlives the row as read."""
    last = KEYS - 1
    with DevServers(tmp_path / "servers", servers=("postgres18",)) as servers:
        database = Database(servers["postgres18"].url, "postgres")
        filled(database, "public.t", keys=KEYS)
        connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], snapshot={"chunk_rows": 1000})
        connector.catch_up()
        database.execute("ALTER SYSTEM SET synchronous_commit = 'local'", "SELECT pg_reload_conf()")
        database.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'", "SELECT pg_reload_conf()")
        eventually(lambda: database.rows("SHOW synchronous_standby_names") == [("nobody",)], "the setting")
        with following(connector) as run:
            snapshot(connector, "start")
            eventually(lambda: standing(connector).reading, "the first window, which waits for older transactions")
            held = threading.Thread(target=_held, args=(database, last))
            held.start()
            eventually(lambda: any(e["op"] == "u" for e in connector.events("public.t")), "its event")
            run.await_line("was read while the log was followed")
            assert database.rows("SELECT FROM pg_stat_activity WHERE wait_event = 'SyncRep'"), "it is held"
            database.execute("SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
            held.join()
        same(connector, database, "public.t")


def _held(database: Database, key: int) -> None:
    connection = database.connect()
    with contextlib.suppress(psycopg2.Error), connection.cursor() as cursor:
        cursor.execute("SET synchronous_commit = on")
        cursor.execute(f"UPDATE t SET v = 'new' WHERE id = {key}")
    connection.close()


def test_a_table_made_while_it_runs(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """One that a pattern matches is taken up when asked for; one that none matches is told of, and nothing stops."""
    filled(postgres18, "public.t", keys=100)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    with writing(postgres18, "public.t", keys=100), following(connector) as run:
        postgres18.execute("CREATE SCHEMA other", "CREATE TABLE other.x (id int PRIMARY KEY)")
        filled(postgres18, "public.fresh", keys=500)
        connector.put_right()
        refused = connector.here("snapshot", "start", "FILE", "--table", "other.x")
        assert refused.returncode == 1
        assert "table other.x is not one that" in refused.stderr
        snapshot(connector, "start", "--table", "public.fresh", "--table", "public.misspelt")
        run.await_line("table public.misspelt is not captured")
        run.await_line("table public.fresh was read while the log was followed")
        postgres18.execute("UPDATE fresh SET v = 'later' WHERE id = 7")
        eventually(lambda: any(e["op"] == "u" for e in connector.events("public.fresh")), "its next event")
    connector.catch_up()
    for table in ("public.t", "public.fresh"):
        same(connector, postgres18, table)


@pytest.mark.full  # the next one, and cases of tables that are made again
def test_a_table_made_again_under_its_name(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Also rows that nobody writes to again are in the topic as in the table, and none of the table before it.

    What other DDL changes without events: tests/cases.
    """
    filled(postgres18, "public.t", keys=3000)
    postgres18.execute("ALTER TABLE t ALTER COLUMN v SET STORAGE EXTERNAL", f"UPDATE t SET v = {WIDE} WHERE id < 5")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    postgres18.execute(
        "DROP TABLE t",
        "CREATE TABLE t (id int PRIMARY KEY, n int, v text)",
        "INSERT INTO t VALUES (1, 1, 'another')",
        f"ALTER PUBLICATION cdc_{prefix} ADD TABLE t",
    )
    connector.catch_up()
    postgres18.execute("UPDATE t SET n = n + 1 WHERE id IN (1, 4, 100)")
    connector.catch_up()
    same(connector, postgres18, "public.t")


def _is_the_table(connector: Connector, database: Database, table: str) -> bool:
    return ordered(connector.fold(table).values()) == ordered(rows(database, f"SELECT * FROM {table}"))


def test_tables_made_again_while_it_runs(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """At once, or later; also one that has had no row before. Where the connector may, it publishes them itself."""
    postgres18.execute(
        *(f"CREATE TABLE {t} (id int PRIMARY KEY, v text)" for t in ("t", "bare", "rest")),
        *("INSERT INTO t VALUES (1, 'a'), (2, 'b')", "INSERT INTO rest VALUES (1, 'a')"),
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"], as_owner=True)
    with Running(connector) as run:
        run.await_following()
        postgres18.execute("DROP TABLE t")
        run.await_line("table public.t: it was dropped")
        postgres18.execute(
            "CREATE TABLE t (id int PRIMARY KEY, w int); INSERT INTO t VALUES (2, 5), (3, 6)",
            "BEGIN; DROP TABLE bare; CREATE TABLE bare (id int PRIMARY KEY, v text); INSERT INTO bare VALUES (7, 'x'); "
            "COMMIT",
        )
        for table in ("public.t", "public.bare"):
            eventually(lambda of=table: _is_the_table(connector, postgres18, of), table)  # type: ignore[misc]
        postgres18.execute("UPDATE t SET w = 8", "INSERT INTO bare VALUES (8, 'y')", "UPDATE rest SET v = 'z'")
        run.await_line("was made again", times=2)
    connector.catch_up()
    for table in ("public.t", "public.bare", "public.rest"):
        same(connector, postgres18, table)
    assert connector.here("check", "FILE").returncode == 0


@pytest.mark.full  # test_key_changed_during_the_snapshot
@pytest.mark.parametrize(
    "statement",
    some_each_push(
        [
            "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (v)",
            "ALTER TABLE t ALTER id TYPE text USING 'k' || id",
        ],
        "ALTER TABLE t DROP CONSTRAINT t_pkey; ALTER TABLE t ADD PRIMARY KEY (v)",
    ),
    ids=["another column", "another type"],
)
def test_a_key_that_changes_while_it_is_read(
    statement: str, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """How far the table was read is said in keys that are no more: it is read from its beginning."""
    filled(postgres18, "public.t", keys=KEYS)
    postgres18.execute("UPDATE t SET v = 'v' || id")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"chunk_rows": 500})
    connector.catch_up()
    snapshot(connector, "start")
    with Running(connector, "-v") as run:
        run.await_following()
        eventually(lambda: standing(connector).reading.get("public.t", {}).get("rows", 0), "some of its rows")
        run.kill()
    postgres18.execute(statement)
    connector.catch_up()
    connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.full  # the test of this name in tests/unit/test_pipeline.py
def test_rows_asked_for_by_their_keys(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Of a key of several types: the rows that are there come again, the others are deleted; nothing else is read."""
    postgres18.execute(
        "CREATE TABLE t (at timestamp, name text, day date, n numeric, v text, PRIMARY KEY (at, name, day, n))",
        "INSERT INTO t SELECT timestamp '2024-02-29 12:00:00.5' + x * interval '1 s', E'n\\'\\\\\"é' || x,"
        " date '0044-03-15 BC' + x, x / 4.0, 'v' FROM generate_series(1, 20) x",
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    texts = postgres18.rows("SELECT format('%s', at), name, format('%s', day), n::text FROM t ORDER BY at")
    keys = [tuple(str(part).encode() for part in row) for row in texts]
    postgres18.execute("DELETE FROM t WHERE name LIKE '%é3'")
    connector.catch_up()
    before = len(connector.events("public.t"))
    asked = (keys[0], keys[2], keys[4], (*keys[5][:3], b"99"))
    config = KafkaConfig(bootstrap_servers=kafka, topic_prefix=prefix)
    send_command(config, prefix, b"1", Command(tables=("public.t",), keys=asked).to_bytes("1"))
    connector.catch_up()
    connector.catch_up()
    again = connector.events("public.t")[before:]
    told = [(e["op"], (e["after"] or e["before"])["n"], e["source"]["snapshot"]) for e in again]
    numbers = [key[3].decode() for key in asked]
    assert sorted(told) == sorted((op, number, "incremental") for op, number in zip("rdrd", numbers, strict=True))
    assert len(connector.fold("public.t")) == 19


@pytest.mark.full("tests/unit/test_reading_order.py has the law")
def test_rows_asked_for_by_their_keys_whose_table_is_truncated_meanwhile(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view has them, the log tells that all rows are gone, and then the rows are due."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 5)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    command = Command(tables=("public.t",), keys=((b"3",),)).to_bytes("1")
    send_command(KafkaConfig(bootstrap_servers=kafka, topic_prefix=prefix), prefix, b"1", command)
    monkeypatch.setattr(truncates, "TRUNCATED_AT_ONCE", 0)
    due, truncated = incremental_snapshot.IncrementalSnapshot.due, list[bool]()

    def later(reading: incremental_snapshot.IncrementalSnapshot, *arguments: Any, **more: Any) -> Any:
        if reading._in_hand is not None and reading._job is not None and reading._job.done() and not truncated:
            truncated.append(True)
            postgres18.execute("TRUNCATE t")
        if truncated == [True] and not reading._readings:
            return None  # the log has not come there
        if truncated:
            truncated.append(False)
        return due(reading, *arguments, **more)

    monkeypatch.setattr(incremental_snapshot.IncrementalSnapshot, "due", later)
    connector.catch_up()
    connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.full  # test_the_deletes_of_a_large_truncate_are_committed_in_parts_and_resumed
def test_a_large_table_that_is_truncated_and_filled_again(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Its deletes come in transactions of their own, behind what is in it by now; the topic ends as the table."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY, n int)", "INSERT INTO t SELECT x, 0 FROM generate_series(1, 25000) x"
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    postgres18.execute("BEGIN; TRUNCATE t; INSERT INTO t SELECT x, 1 FROM generate_series(24990, 25010) x; COMMIT")
    said = connector.catch_up()
    assert "table public.t was truncated: its keys get their deletes in parts" in said
    same(connector, postgres18, "public.t")
    assert standing(connector).reading == {}
    assert sum(event["op"] == "d" for event in connector.events("public.t")) == 24_989


@pytest.mark.full
def test_tables_with_columns_added_and_dropped_since_are_read(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Of a table that was altered without a rewrite the catalog says other things than its first description.

    A window that finds that begins another session: once, and not again and again, also far behind in the log.
    """
    keys = 2_000
    filled(postgres18, "public.t", keys=keys)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], snapshot={"chunk_rows": 100})
    connector.catch_up()
    for n in range(2):
        postgres18.execute(f"ALTER TABLE t ADD COLUMN c{n} int", f"UPDATE t SET c{n} = 1 WHERE id < 50")
        connector.catch_up()
    with writing(postgres18, "public.t", keys=keys), following(connector) as run:
        for n in range(4):
            statement = "ALTER TABLE t DROP COLUMN c0" if n == 2 else f"ALTER TABLE t ADD COLUMN d{n} int DEFAULT 7"
            postgres18.execute(statement, f"UPDATE t SET n = {n} WHERE id < 50")
            snapshot(connector, "start", "--table", "public.t")
            read = "table public.t was read while the log was followed"
            eventually(lambda: run.stderr.count(read) > n, "it is read")  # noqa: B023
        assert run.stderr.count("looking again") < 10
    postgres18.execute(*["UPDATE t SET n = n + 1"] * 60, "ALTER TABLE t ADD COLUMN e int", "UPDATE t SET e = id")
    snapshot(connector, "start", "--table", "public.t")
    connector.catch_up()
    connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.full  # of each push: tests/integration/test_snapshot_rewrites.py
def test_tables_that_go_while_the_first_snapshot_reads(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Nobody need act: the others are read, and one that got another name is, under that."""
    filled(postgres18, "public.a", keys=300_000)
    for table in ("m", "n", "o", "z"):
        filled(postgres18, f"public.{table}", keys=500)
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"], snapshot={"workers": 1})
    with Running(connector) as run:
        run.await_line("reading the tables")
        postgres18.execute("DROP TABLE m", "ALTER TABLE n RENAME TO n_new", "ALTER TABLE o DROP COLUMN v")
        run.await_following()
        run.process.send_signal(signal.SIGTERM)
        assert run.ended() == 0, run.stderr
        assert "error" not in run.stderr.lower(), run.stderr
    connector.catch_up()
    for table in ("a", "n_new", "o", "z"):
        same(connector, postgres18, f"public.{table}")
