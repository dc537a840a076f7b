"""`sink.log`: every event of a table in a topic that forgets by age alone, beside the one that is compacted."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

import pytest

from cdc.encode.table_log import log_of
from sinks.topics.names import table_topic
from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running

Event = tuple[int, bytes, bytes]


def _events(connector: Connector, topic: str) -> list[Event]:
    with closing(read_to_end(connector.kafka, {}, topic, "read_committed")) as found:
        kept = [(m.partition() or 0, m.key() or b"", value) for m in found if (value := m.value()) is not None]
    return sorted(kept, key=lambda event: json.loads(event[2])["source"]["position"])


def _assert_same(connector: Connector, table: str, ops: str) -> None:
    topic = table_topic(connector.name, *table.split("."))
    logged = _events(connector, log_of(topic))
    assert logged == _events(connector, topic)
    assert "".join(json.loads(value)["op"] for _, _, value in logged) == ops


@pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")
def test_the_log_is_the_topic_before_compaction(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Snapshot, stream, delete, key change, truncate, a kill: the same bytes in the same partitions, once.

    A table named later begins with the next event, and has whole rows once they are read again. Two tables whose
    topics look alike (`log` is a schema here) do not meet.
    """
    postgres18.execute(
        "CREATE SCHEMA log",
        "CREATE TABLE t (id int PRIMARY KEY, v text)",
        "CREATE TABLE log.t (id int PRIMARY KEY)",
        "CREATE TABLE later (id int PRIMARY KEY, v text)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b')",
        "INSERT INTO log.t VALUES (1)",
        "INSERT INTO later VALUES (1, 'a'), (2, 'b')",
    )
    tables = ["public.*", "log.t"]
    log = {"tables": ["public.t", "log.*"], "retention": "7d"}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, sink={"log": log})
    connector.catch_up()
    postgres18.execute(
        "UPDATE t SET v = 'c' WHERE id = 1",
        "UPDATE t SET id = 3 WHERE id = 2",
        "DELETE FROM t WHERE id = 3",
        "INSERT INTO t VALUES (4, 'd')",
        "TRUNCATE t",
    )
    with Running(connector) as killed_in_its_midst:
        killed_in_its_midst.await_following()
    connector.catch_up()
    _assert_same(connector, "public.t", "rrudcdcdd")
    _assert_same(connector, "log.t", "r")
    status = json.loads(connector.here("status", "FILE", "--json").stdout)
    assert status["logged"] == ["log.t", "public.t"]
    assert "logged      log.t, public.t" in connector.here("status", "FILE").stdout

    more = {"tables": ["public.*", "log.*", "nowhere.*"], "retention": "7d"}
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, tables, sink={"log": more})
    told = json.loads(connector.here("check", "FILE", "--json").stdout)["findings"]
    assert any(f["level"] == "warning" and "“nowhere.*” is no captured table" in f["message"] for f in told)
    assert any(f["about"] == f"topic {prefix}.log.public.later" and "will be made" in f["message"] for f in told)
    postgres18.execute("UPDATE later SET v = 'x' WHERE id = 2")
    connector.catch_up()
    topic = table_topic(prefix, "public", "later")
    assert _events(connector, log_of(topic)) == _events(connector, topic)[-1:]
    assert connector.here("snapshot", "start", "FILE", "--table", "public.later").returncode == 0
    connector.catch_up()
    ops = [json.loads(value)["op"] for _, _, value in _events(connector, log_of(topic))]
    assert ops == ["u", "r", "r"]
