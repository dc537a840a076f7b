"""Consumer groups of real clients on a connector's topics: what is unread is counted as they would be given it."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.config.config import load_connector
from cdc.monitor.consumers import read_consumers
from sinks.topics.names import table_topic
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import standing


def _consumer(kafka: str, group: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": group,
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
        }
    )


def _read(kafka: str, group: str, topic: str, many: int) -> None:
    """Subscribe, read so many records, commit where they end, and leave."""
    consumer = _consumer(kafka, group)
    consumer.subscribe([topic])
    while many:
        message = consumer.poll(20)
        assert message is not None
        assert message.error() is None
        consumer.commit(message=message, asynchronous=False)
        many -= 1
    consumer.close()


def _told(connector: Connector) -> dict[str, dict[str, Any]]:
    done = connector.here("consumers", "FILE", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["no_commits"] is None
    return {group["group"]: group for group in found["groups"]}


def test_groups_on_a_real_broker(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> None:
    """Who has read everything has no lag though markers stand behind; one that is gone has stopped, with all unread."""
    postgres18.execute(
        "CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 7)",
        "CREATE TABLE u (id int PRIMARY KEY)",
    )  # fmt: skip
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t", "public.u"], sink={"partitions": 1})
    assert "has never run" in connector.here("consumers", "FILE").stderr
    connector.catch_up()
    assert "no consumer group" in connector.here("consumers", "FILE").stdout
    topic, other = table_topic(prefix, "public", "t"), table_topic(prefix, "public", "u")
    _read(kafka, f"{prefix}-whole", topic, 7)
    _read(kafka, f"{prefix}-late", topic, 3)
    found = _told(connector)
    assert found.keys() == {f"{prefix}-whole", f"{prefix}-late"}
    whole, late = found[f"{prefix}-whole"], found[f"{prefix}-late"]
    assert (whole["records"], whole["seconds"], whole["status"]) == (0, 0.0, "ok")
    assert whole["topics"][0]["partitions"][0]["offset"] < whole["topics"][0]["partitions"][0]["end"]
    assert (late["records"], late["exact"], late["topics"][0]["topic"]) == (4, True, topic)
    for at in range(3):  # each its own transaction, so its own marker
        postgres18.execute(f"INSERT INTO t VALUES ({100 + at})", f"DELETE FROM t WHERE id = {at + 1}")
        connector.catch_up()
    (read_at,) = postgres18.rows("SELECT extract(epoch FROM now())::float8")[0]
    time.sleep(1.5)
    found = _told(connector)
    whole, late = found[f"{prefix}-whole"], found[f"{prefix}-late"]
    assert whole["records"] == 9  # three inserts, three deletes and their tombstones
    assert late["records"] == 13
    assert 1.5 <= whole["seconds"] <= time.time() - read_at + 60
    assert late["seconds"] > whole["seconds"]
    assert late["status"] == "stopped"  # its commits were closer to each other than the last one is to now
    shown = connector.here("consumers", "FILE").stdout
    assert f"{prefix}-late" in shown
    assert "stopped" in shown
    _other_offsets(kafka, prefix, topic, other)
    found = _told(connector)
    assert found[f"{prefix}-made-up"]["topics"][0]["partitions"][0]["note"] is not None
    assert found[f"{prefix}-made-up"]["records"] > 0, "of the topic that there is now it has read nothing"
    assert found[f"{prefix}-made-up"]["status"] != "ok"
    assert f"{prefix}-stranger" not in found


def _other_offsets(kafka: str, prefix: str, topic: str, other: str) -> None:
    """An offset behind the end, one of an empty topic, and a group that reads what is not the connector's."""
    made_up = _consumer(kafka, f"{prefix}-made-up")
    made_up.commit(offsets=[TopicPartition(topic, 0, 10_000), TopicPartition(other, 0, 0)], asynchronous=False)
    made_up.close()
    stranger = _consumer(kafka, f"{prefix}-stranger")
    stranger.commit(offsets=[TopicPartition(f"{prefix}.schema", 0, 0)], asynchronous=False)
    stranger.close()


def test_commits_are_found_where_the_broker_puts_them(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path
) -> None:
    """Alone on its topics, a group whose hash is negative and odd: Kafka drops the sign, not a bit."""
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"partitions": 1})
    connector.catch_up()
    names = (f"{prefix}-{random.randbytes(4).hex()}" for _ in range(1000))
    group = next(name for name in names if _hash(name) < 0 and _hash(name) % 2)
    consumer = _consumer(kafka, group)
    for _ in range(2):
        consumer.commit(offsets=[TopicPartition(table_topic(prefix, "public", "t"), 0, 0)], asynchronous=False)
    consumer.close()
    found = _told(connector)
    assert found.keys() == {group}
    assert found[group]["status"] != "unknown"


def _hash(name: str) -> int:
    """String.hashCode() of Java."""
    found = 0
    for letter in name:
        found = (31 * found + ord(letter) + 2**31) % 2**32 - 2**31
    return found


def test_a_broker_that_falls_silent_gives_no_status(
    postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: Any
) -> None:
    """Half of the commits would be a wrong status: it is said that there is none."""
    monkeypatch.setattr("sinks.consumers.groups._SILENT_S", -1.0)
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 3)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"partitions": 1})
    connector.catch_up()
    _read(kafka, prefix, table_topic(prefix, "public", "t"), 2)
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    found = read_consumers(load_connector(connector.file), standing(connector))
    assert "nothing was sent" in (found.no_commits or "")
    (group,) = found.groups
    assert (group.records, group.status) == (1, "unknown")


@pytest.mark.full  # test_groups_on_a_real_broker
def test_more_than_is_counted(postgres18: Database, kafka: str, prefix: str, tmp_path: Path, monkeypatch: Any) -> None:
    """Of many the offsets tell how many there are at most, and it is said that they do."""
    monkeypatch.setattr("sinks.consumers.groups.MOST_COUNTED", 5)
    postgres18.execute("CREATE TABLE t (id int PRIMARY KEY)", "INSERT INTO t SELECT generate_series(1, 2000)")
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.t"], sink={"partitions": 1})
    connector.catch_up()
    _read(kafka, prefix, table_topic(prefix, "public", "t"), 1)
    monkeypatch.setenv("TEST_DATABASE_URL", connector.environment["TEST_DATABASE_URL"])
    found = read_consumers(load_connector(connector.file), standing(connector))
    (group,) = found.groups
    assert not group.exact
    assert group.records >= 1999
    assert group.seconds is not None
