"""Transactions on real servers: prepared ones, messages in the log, the record of their begins and ends, large ones."""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest

from sinks.topics.names import log_topic
from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same, standing, unbroken

Row = dict[str, Any]


def log_of(connector: Connector, name: Any) -> list[tuple[Row, Row]]:
    """Keys and values of one of the connector's logs, committed."""
    topic = log_topic(connector.name, connector.name, name)
    found = read_to_end(connector.kafka, {}, topic, "read_committed")
    return [(json.loads(m.key() or b""), json.loads(m.value() or b"")) for m in found]


def messages(connector: Connector) -> list[tuple[str, str]]:
    """Prefix and content of every message, by position; each position is there once."""
    found = sorted((value for _, value in log_of(connector, "message")), key=lambda v: v["source"]["position"])
    assert len({value["source"]["position"] for value in found}) == len(found)
    return [(v["message"]["prefix"], base64.b64decode(v["message"]["content"]).decode()) for v in found]


def memory_peak_mb(pid: int) -> float:
    (kilobytes,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) / 1024


# --- Prepared ---------------------------------------------------------------------------------------------------------


def test_prepared_transactions(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Rows come once, when the transaction is committed, whatever happens to the connector in between; never if not.

    In the order of the commits, not of the preparations.
    """
    database.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (0, 'before')")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    connector.catch_up()
    with Running(connector) as running:
        running.await_following()
        database.execute(
            f"BEGIN; INSERT INTO t VALUES (1, 'kept'); SAVEPOINT s; INSERT INTO t VALUES (9, 'no'); ROLLBACK TO s;"
            f" PREPARE TRANSACTION '{prefix}-kept'",
            f"BEGIN; INSERT INTO t VALUES (2, 'lost'); UPDATE t SET v = 'lost' WHERE id = 0;"
            f" PREPARE TRANSACTION '{prefix}-lost'",
            "INSERT INTO t VALUES (3, 'meanwhile')",
        )
        eventually(lambda: len(connector.events("public.t")) == 2, "the row of the plain transaction")
        running.kill()
    connector.catch_up()
    assert [e["after"]["id"] for e in connector.events("public.t")] == [0, 3]
    database.execute(f"ROLLBACK PREPARED '{prefix}-lost'", f"COMMIT PREPARED '{prefix}-kept'")
    connector.catch_up()
    connector.catch_up()
    assert [(e["op"], e["after"]["id"], e["after"]["v"]) for e in connector.events("public.t")] == [
        ("r", 0, "before"),
        ("c", 3, "meanwhile"),
        ("c", 1, "kept"),
    ]
    same(connector, database, "public.t")
    unbroken(connector, "public.t")


def test_prepared_before_the_table_was_captured(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """What was prepared before the slot began is waited for, and said; its rows are neither lost nor doubled."""
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"BEGIN; INSERT INTO t VALUES (1, 'prepared'); PREPARE TRANSACTION '{prefix}'",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    with Running(connector, "--until-caught-up") as running:
        running.await_line("pg_prepared_xacts")
        database.execute(f"COMMIT PREPARED '{prefix}'")
        assert running.ended() == 0, running.stderr
    assert [e["after"]["v"] for e in connector.events("public.t")] == ["prepared"]


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_messages(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """In a transaction and in none: Debezium's event, a place in the order, once, also when the connector is killed.

    A transactional one belongs to its transaction and is rolled back with it; our own are not published.
    """
    database.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"], sink={"transaction_metadata": True})
    connector.catch_up()
    database.execute(
        "BEGIN; INSERT INTO t VALUES (1); SELECT pg_logical_emit_message(true, 'outbox', 'with é');"
        " INSERT INTO t VALUES (2); COMMIT",
        "SELECT pg_logical_emit_message(false, 'audit', 'alone 1')",
        "SELECT pg_logical_emit_message(false, 'audit', 'alone 2')",
        "BEGIN; SELECT pg_logical_emit_message(true, 'outbox', 'rolled back');"
        " SELECT pg_logical_emit_message(false, 'audit', 'stays'); ROLLBACK",
        "SELECT pg_logical_emit_message(true, 'cdc.heartbeat', ''), pg_logical_emit_message(false, 'cdc.x', 'ours')",
        "SELECT pg_logical_emit_message(true, 'outbox', '')",
    )
    connector.catch_up()
    expected = [
        ("outbox", "with é"), ("audit", "alone 1"), ("audit", "alone 2"), ("audit", "stays"), ("outbox", ""),
    ]  # fmt: skip
    assert messages(connector) == expected
    found = {v["message"]["content"]: (k, v) for k, v in log_of(connector, "message")}
    key, value = found[base64.b64encode("with é".encode()).decode()]
    first, second = connector.events("public.t")
    assert key == {"prefix": "outbox"}
    assert value["op"] == "m"
    assert {**value["source"], "lsn": 0, "position": 0} == {
        **{name: at for name, at in first["source"].items() if name != "schema_version"},
        "schema": "", "table": "", "lsn": 0, "position": 0,
    }  # fmt: skip
    assert [v["transaction"]["total_order"] for v in (first, value, second)] == [1, 2, 3]
    assert value["transaction"]["id"] == first["transaction"]["id"]
    alone = found[base64.b64encode(b"alone 1").decode()][1]
    assert (alone["transaction"], alone["source"]["txId"], alone["source"]["snapshot"]) == (None, None, "false")
    assert second["source"]["position"] < alone["source"]["position"]
    ends = [v for _, v in log_of(connector, "transaction") if v["status"] == "END"]
    assert [(e["event_count"], e["data_collections"]) for e in ends] == [
        (
            3,
            [
                {"data_collection": "message", "event_count": 1},
                {"data_collection": "public.t", "event_count": 2},
            ],
        ),
        (1, [{"data_collection": "message", "event_count": 1}]),
    ]
    connector.catch_up()
    assert messages(connector) == expected
    tailed = connector.here("tail", "FILE", "--from-beginning", "--max", str(len(expected) + 2))
    assert tailed.stdout.count('"op":"m"') == len(expected), tailed.stderr


@pytest.mark.full  # test_messages, over kills too
def test_messages_and_kills(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Killed again and again among messages in transactions and outside: each once, in order."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    connection = postgres18.connect()
    said = []
    with connection.cursor() as cursor:
        for turn in range(4):
            with Running(connector, "-v") as running:
                running.await_following()
                for n in range(150):
                    text = f"{turn}.{n}"
                    said.append(("p", text))
                    cursor.execute("SELECT pg_logical_emit_message(%s, 'p', %s)", (n % 3 == 0, text))
                running.await_line("committed at")
                running.kill()
    connection.close()
    connector.catch_up()
    assert messages(connector) == said


@pytest.mark.full  # test_messages
def test_messages_can_be_left_out(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """No topic, no event; rows come as ever."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(
        tmp_path, prefix, postgres18.url, kafka, ["public.t"], source={"messages": False, "heartbeat_s": 0}
    )
    connector.catch_up()
    postgres18.execute("SELECT pg_logical_emit_message(true, 'p', 'm')", "INSERT INTO t VALUES (1)")
    connector.catch_up()
    assert [e["op"] for e in connector.events("public.t")] == ["c"]
    with pytest.raises(Exception, match="Unknown topic"):
        log_of(connector, "message")


# --- Beginnings and ends ----------------------------------------------------------------------------------------------


def test_transaction_metadata(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """A BEGIN and an END with exact counts for each transaction that has events, and for no other."""
    database.execute("CREATE TABLE a (id int PRIMARY KEY, v text)", "CREATE TABLE b (id int PRIMARY KEY)",
                     "CREATE TABLE other (id int)")  # fmt: skip
    connector = Connector(
        tmp_path, prefix, database.url, kafka, ["public.a", "public.b"], sink={"provide.transaction.metadata": True}
    )
    connector.catch_up()
    database.execute(
        "BEGIN; INSERT INTO a VALUES (1, 'x'), (2, 'y'); INSERT INTO b VALUES (1); UPDATE a SET id = 3 WHERE id = 1;"
        " SAVEPOINT s; DELETE FROM a; ROLLBACK TO s; COMMIT",
        "INSERT INTO other VALUES (1)",
        "TRUNCATE a",
    )
    connector.catch_up()
    events = connector.events("public.a") + connector.events("public.b")
    ids = sorted({e["transaction"]["id"] for e in events}, key=lambda i: int(i.split(":")[1]))
    found = log_of(connector, "transaction")
    assert [(k, v["status"], v["id"]) for k, v in found] == [
        ({"id": i}, status, i) for i in ids for status in ("BEGIN", "END")
    ]
    for _, value in found:
        of_it = [e for e in events if e["transaction"]["id"] == value["id"]]
        assert value["ts_ms"] == of_it[0]["source"]["ts_ms"]
        if value["status"] == "BEGIN":
            assert (value["event_count"], value["data_collections"]) == (None, None)
        else:
            assert value["event_count"] == len(of_it)
            assert {c["data_collection"]: c["event_count"] for c in value["data_collections"]} == {
                name: len(there)
                for name in ("public.a", "public.b")
                if (there := [e for e in of_it if e["source"]["table"] == name[-1]])
            }
    assert [v["event_count"] for _, v in found] == [None, 5, None, 2]


# --- Large ------------------------------------------------------------------------------------------------------------


def test_memory_of_a_large_transaction(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Ten times the rows cost hardly more memory: a transaction goes through, it is never gathered."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    peaks = []
    with Running(connector) as running:
        running.await_following()
        for first, count in ((1, 40_000), (100_001, 400_000)):
            postgres18.execute(
                f"INSERT INTO t SELECT n, repeat(md5(n::text), 4) FROM generate_series({first}, {first + count - 1}) n"
            )
            ((end,),) = postgres18.rows("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn")
            eventually(lambda end=end: standing(connector).commit >= int(str(end)) - 4096, "it is in", within_s=300)
            peaks.append(memory_peak_mb(running.process.pid))
    assert peaks[1] - peaks[0] < 100, peaks  # the rows alone are 55 MB as the server sends them, 180 MB as events
    assert peaks[1] < 300, peaks


def test_a_large_transaction_with_savepoints_that_is_rolled_back(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """PostgreSQL 18 tells of its savepoints as of streamed ones, for which nobody has asked."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"])
    connector.catch_up()
    postgres18.execute(
        f"ALTER DATABASE {postgres18.name} SET logical_decoding_work_mem = '64kB'",
        "BEGIN; INSERT INTO t VALUES (0); SAVEPOINT s; INSERT INTO t VALUES (1); RELEASE s;"
        " INSERT INTO t SELECT generate_series(2, 2000); ROLLBACK",
        "INSERT INTO t VALUES (-1)",
    )
    connector.catch_up()
    assert [e["after"]["id"] for e in connector.events("public.t")] == [-1]
