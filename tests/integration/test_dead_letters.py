"""Events that cannot be written, on real servers: bytes that are no text, rows above the broker's limit."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from sinks.topics.names import log_topic, table_topic
from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, ordered, rows, unbroken

BAD = r"'\xff5345435245'::bytea"  # in SQL_ASCII a text may hold any bytes
LIMIT = 100_000


@pytest.fixture
def ascii_database(database: Database) -> Iterator[Database]:
    """A SQL_ASCII database: the server checks no text."""
    name = f"{database.name}_a"
    database.execute(f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LOCALE 'C' TEMPLATE template0")
    made = Database(database.url.rsplit("/", 1)[0] + "/" + name, name)
    yield made
    for (slot,) in made.rows(f"SELECT slot_name FROM pg_replication_slots WHERE database = '{name}'"):
        made.execute(f"SELECT pg_drop_replication_slot('{slot}')")
    database.execute(f"DROP DATABASE {name} WITH (FORCE)")


def letters(connector: Connector) -> list[dict[str, Any]]:
    topic = log_topic(connector.name, connector.name, "dead-letter")
    return [json.loads(m.value() or b"") for m in read_to_end(connector.kafka, {}, topic, "read_committed")]


def allow(connector: Connector, table: str, size: int) -> None:
    """Set the largest record a table's topic takes."""
    resource = ConfigResource(
        ResourceType.TOPIC,
        table_topic(connector.name, "public", table),
        incremental_configs=[ConfigEntry("max.message.bytes", str(size), incremental_operation=AlterConfigOpType.SET)],
    )
    admin = AdminClient({"bootstrap.servers": connector.kafka})
    for done in admin.incremental_alter_configs([resource]).values():
        done.result(30)


def bad_text(column: str) -> str:
    return f"convert_from({column}, 'SQL_ASCII')"


def test_bytes_that_are_no_text(ascii_database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """By snapshot and by stream: `stop` names table, key and column; `dead_letter` goes on and keeps the row."""
    database, bad = ascii_database, bad_text(BAD)
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        f"INSERT INTO t VALUES (1, 'x'), (2, {bad}), (3, 'z')",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    stopped = connector.here("run", "FILE", "--until-caught-up")
    assert stopped.returncode == 1
    assert "table public.t, event " in stopped.stderr
    assert "the value of v cannot be written as JSON (key columns: id)" in stopped.stderr
    assert "on_error: dead_letter" in stopped.stderr
    config = json.loads(connector.file.read_text())
    connector.file.write_text(json.dumps({**config, "on_error": "dead_letter"}))
    said = stopped.stderr + connector.catch_up()
    assert sorted(r["id"] for r in connector.fold("public.t").values()) == [1, 3]
    database.execute(
        f"BEGIN; INSERT INTO t VALUES (4, 'ok'), (5, {bad}); UPDATE t SET v = 'mended' WHERE id = 2; COMMIT",
        f"UPDATE t SET v = {bad} WHERE id = 1",
        "ALTER TABLE t REPLICA IDENTITY FULL",
        "DELETE FROM t WHERE id = 1",
        "INSERT INTO t VALUES (6, 'after')",
    )
    said += connector.catch_up()
    assert "it went to the dead letters" in said
    assert "SECRE" not in said
    found = letters(connector)
    assert [(v["op"], v["table"], v["key"], v["columns"]) for v in found] == [
        ("r", "t", {"id": 2}, ["v"]), ("c", "t", {"id": 5}, ["v"]), ("u", "t", {"id": 1}, ["v"]),
    ]  # fmt: skip
    for value in found:
        assert base64.b64decode(value["after"]["v"]) == b"\xffSECRE"
        assert value["reason"] == "the value of v cannot be written as JSON"
    left = rows(database, "SELECT * FROM t WHERE id <> 5")
    assert ordered(connector.fold("public.t").values()) == ordered(left)
    status = json.loads(connector.here("status", "FILE", "--json").stdout)
    assert status["dead_letters"] == 3
    assert "3 events could not be written" in connector.here("status", "FILE").stdout
    connector.catch_up()
    assert len(letters(connector)) == 3


def test_a_row_above_the_brokers_limit(database: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """`stop` names table, key columns and sizes; `dead_letter` keeps the row whole, in parts, and goes on in order.

    Many small rows beside it are no trouble, though together they are more than the limit.
    """
    random = "(SELECT string_agg(md5((n * {0})::text), '') FROM generate_series(1, {1}) n)"
    database.execute(
        "CREATE TABLE t (id int PRIMARY KEY, v text, w int)",
        f"INSERT INTO t SELECT g, {random.format('g', 10)}, 0 FROM generate_series(1, 2000) g",
    )
    connector = Connector(tmp_path, prefix, database.url, kafka, ["public.t"])
    database.execute("CREATE TABLE first (id int PRIMARY KEY)")
    connector.catch_up()
    allow(connector, "t", LIMIT)
    large = random.format(7, 40_000)  # 1.28 MB of digits: no compression halves it twice
    database.execute(
        f"INSERT INTO t SELECT g, {random.format('g', 10)}, 0 FROM generate_series(3001, 5000) g",
        f"BEGIN; INSERT INTO t VALUES (6001, 'a', 1); INSERT INTO t VALUES (6002, {large}, 1);"
        " INSERT INTO t VALUES (6003, 'c', 1); COMMIT",
    )
    stopped = connector.here("run", "FILE", "--until-caught-up")
    assert stopped.returncode == 1, stopped.stderr
    assert "table public.t, event " in stopped.stderr
    assert "a record of 1280" in stopped.stderr
    assert "(key columns: id)" in stopped.stderr
    assert "max.message.bytes" in stopped.stderr
    config = json.loads(connector.file.read_text())
    connector.file.write_text(json.dumps({**config, "on_error": "dead_letter"}))
    connector.catch_up()
    database.execute(
        "UPDATE t SET w = 2 WHERE id = 6002",  # the value is not sent, and is too large still
        "UPDATE t SET w = 2 WHERE id = 6001",
        f"UPDATE t SET v = {large} WHERE id = 1",
    )
    connector.catch_up()
    database.execute("UPDATE t SET v = 'short' WHERE id = 6002", "UPDATE t SET w = 9 WHERE id = 6002")
    connector.catch_up()
    assert ordered(connector.fold("public.t").values()) == ordered(
        [*rows(database, "SELECT * FROM t WHERE id <> 1"), {**connector.fold("public.t")[b'{"id":1}']}]
    )
    unbroken_but_for_letters(connector)
    ((whole,),) = database.rows("SELECT v FROM t WHERE id = 1")
    found = letters(connector)
    assert [(v["op"], v["key"]["id"]) for v in found if v["part"] == 1] == [("c", 6002), ("u", 6002), ("u", 1)]
    for id_, count in ((6002, 1), (1, 1)):
        parts = [v for v in found if v["key"]["id"] == id_ and "v" in v["after"]]
        assert len(parts) >= 3 * count
        assert b"".join(base64.b64decode(v["after"]["v"]) for v in parts).decode() == whole
    eventually(lambda: json.loads(connector.here("status", "FILE", "--json").stdout)["dead_letters"] == 3, "counted")
    assert connector.here("snapshot", "start", "FILE", "--table", "public.t").returncode == 0
    connector.catch_up()  # the log goes on meanwhile: each reading has another place in it
    assert [(v["op"], v["key"]["id"]) for v in letters(connector)[len(found) :] if v["part"] == 1] == [("r", 1)]


@pytest.mark.full  # test_a_row_above_the_brokers_limit
@pytest.mark.parametrize(
    "rows_behind",
    [pytest.param(0, id="alone"), pytest.param(120_000, id="many behind it", marks=pytest.mark.full)],
)
def test_a_limit_lowered_while_it_runs(
    rows_behind: int, postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """It is the broker that says which record is too large, whatever the limit was when the session began."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY, v text)", "INSERT INTO t VALUES (1, 'x')")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], on_error="dead_letter")
    with Running(connector) as run:
        run.await_following()
        allow(connector, "t", LIMIT)
        postgres18.execute(
            "INSERT INTO t SELECT 2, string_agg(md5(n::text), '') FROM generate_series(1, 40000) n;"
            f"INSERT INTO t SELECT n, md5(n::text) FROM generate_series(3, {rows_behind + 3}) n"
        )
        eventually(lambda: [v["key"]["id"] for v in letters(connector) if v["part"] == 1] == [2], "the dead letter")
        eventually(lambda: b'{"id":3}' in connector.fold("public.t"), "what came behind it")
        assert "trying again" not in run.stderr
    connector.catch_up()
    assert sorted(r["id"] for r in connector.fold("public.t").values()) == [1, *range(3, rows_behind + 4)]
    unbroken(connector, "public.t")


def unbroken_but_for_letters(connector: Connector) -> None:
    """Row 6002 was never created in the topic before it was updated; all else comes and goes in turn."""
    ops = [r.value["op"] for r in connector.records("public.t") if r.value and r.key == {"id": 6002}]
    assert ops == ["u", "u"]
    kept = [r for r in connector.records("public.t") if r.key != {"id": 6002}]
    connector.records = lambda _table: kept  # type: ignore[method-assign]
    unbroken(connector, "public.t")
    del connector.records  # type: ignore[method-assign]
