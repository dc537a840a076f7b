"""The contract of `cdc tail`: committed records as JSON lines, on stdout, as they become visible."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from sinks.topics.names import table_topic
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import eventually

Line = dict[str, Any]


@pytest.fixture
def filled(postgres18: Database, kafka: str, prefix: str, tmp_path: Path) -> Connector:
    """Two tables with a history, one with a name Kafka has no characters for."""
    postgres18.execute(
        "CREATE TABLE a (id int PRIMARY KEY, v text)",
        'CREATE TABLE "b é" (id int PRIMARY KEY)',
        "INSERT INTO a SELECT n, 'v' || n FROM generate_series(1, 20) n",
        'INSERT INTO "b é" VALUES (1)',
    )
    connector = Connector(tmp_path, prefix, postgres18.url, kafka, ["public.*"])
    connector.catch_up()
    postgres18.execute("UPDATE a SET v = 'ü' WHERE id = 1", "DELETE FROM a WHERE id = 2")
    connector.catch_up()
    return connector


def lines(connector: Connector, *flags: str) -> list[Line]:
    done = connector.cdc("tail", "FILE", *flags)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


def expected(connector: Connector, *tables: str) -> list[Line]:
    return [
        {"topic": r.topic, "partition": r.partition, "offset": r.offset, "key": r.key, "value": r.value}
        for table in tables
        for r in connector.records(table)
    ]


def by_place(found: list[Line]) -> list[Line]:
    return sorted(found, key=lambda line: (line["topic"], line["partition"], line["offset"]))


def test_from_the_beginning(filled: Connector) -> None:
    """One JSON line a record: topic, partition, offset, key, value, null for a tombstone; each partition in order.

    `--table` gives one table by its name in the database; the schema and position topics are none.
    """
    everything = by_place(expected(filled, "public.a", "public.b é"))
    found = lines(filled, "--from-beginning", "--max", str(len(everything)))
    assert by_place(found) == everything
    assert all(list(line) == ["topic", "partition", "offset", "key", "value"] for line in found)
    assert sum(line["value"] is None for line in found) == 1
    for partition in range(3):
        offsets = [x["offset"] for x in found if x["partition"] == partition and x["topic"].endswith(".a")]
        assert offsets == sorted(offsets)
    odd = expected(filled, "public.b é")
    assert lines(filled, "--from-beginning", "--table", "public.b é", "--max", "1", "--json") == odd
    assert len(lines(filled, "--from-beginning", "--max", "5")) == 5


@pytest.fixture
def tail(filled: Connector) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(*flags: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc", "tail", str(filled.file), *flags],
            env=filled.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def _made_again(kafka: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": kafka})
    admin.delete_topics([topic], operation_timeout=30)[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "the topic is gone")
    admin.create_topics([NewTopic(topic, 3, 1)])[topic].result(30)


def test_follows_what_is_committed_and_nothing_else(
    filled: Connector, tail: Callable[..., subprocess.Popen[str]], postgres18: Database, kafka: str, prefix: str
) -> None:
    """Aborted and open transactions are not shown; what is committed later is, as it comes; Ctrl-C ends it.

    So are the records of a topic that was deleted and made again meanwhile.
    """
    topic = table_topic(prefix, "public", "a")
    before = expected(filled, "public.a")
    producer = Producer({"bootstrap.servers": kafka, "transactional.id": f"{prefix}.stranger"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b'{"aborted":true}', b'{"id":1}', partition=0)
    producer.flush(30)
    producer.abort_transaction(30)
    process = tail("--table", "public.a", "--from-beginning")
    assert process.stdout is not None
    seen = [json.loads(process.stdout.readline()) for _ in before]
    assert by_place(seen) == by_place(before)

    producer.begin_transaction()
    producer.produce(topic, b'{"open":true}', b'{"id":2}', partition=0)
    producer.flush(30)
    postgres18.execute("INSERT INTO a SELECT n, 'new' FROM generate_series(100, 130) n")
    producer.abort_transaction(30)
    filled.catch_up()
    new = [json.loads(process.stdout.readline()) for _ in range(31)]
    assert {line["key"]["id"] for line in new} == set(range(100, 131))
    assert by_place(seen + new) == by_place(expected(filled, "public.a"))

    _made_again(kafka, topic)
    other = Producer({"bootstrap.servers": kafka})
    for number in range(40):  # more than the topic had, so there is a record at each offset that was next
        other.produce(topic, b'{"again":true}', b'{"id":%d}' % number, partition=number % 3)
    other.flush(30)
    again: set[int] = set()
    while again != set(range(40)):  # some twice, where they come before it is known that the topic is another
        again.add(json.loads(process.stdout.readline())["key"]["id"])
    process.send_signal(signal.SIGINT)
    process.wait(60)
    assert process.returncode == 130
    assert all(json.loads(line)["value"] == {"again": True} for line in process.stdout), "what came twice"


@pytest.mark.full  # test_follows_what_is_committed_and_nothing_else
def test_without_from_beginning_it_starts_with_the_next_record(
    filled: Connector, tail: Callable[..., subprocess.Popen[str]], postgres18: Database
) -> None:
    """Without the flag only what comes after the start is shown; it ends after `--max`."""
    before = len(expected(filled, "public.a"))
    process = tail("--table", "public.a", "--max", "2")
    number = 1000
    while process.poll() is None:  # until it listens: what was written before that is not its business
        postgres18.execute(f"INSERT INTO a VALUES ({number}, 'next'), ({number + 1}, 'next')")
        filled.catch_up()
        number += 2
    stdout, stderr = process.communicate()
    found = [json.loads(line) for line in stdout.splitlines()]
    assert (process.returncode, stderr) == (0, "")
    assert len(found) == 2
    every = by_place(expected(filled, "public.a"))
    assert all(line in every for line in found)
    assert all(line["key"]["id"] >= 1000 for line in found)
    assert len(every) > before


@pytest.mark.full  # test_follows_what_is_committed_and_nothing_else
def test_a_reader_that_leaves(filled: Connector) -> None:
    """`cdc tail … | head -1` ends, though no record comes any more, and without a traceback."""
    command = f"{sys.executable} -m cdc tail {filled.file} --from-beginning | head -1"
    done = subprocess.run(
        ["bash", "-c", command], env=filled.environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert len(done.stdout.splitlines()) == 1
    assert "Traceback" not in done.stderr
    assert "Exception" not in done.stderr


def test_a_record_of_another_producer(filled: Connector, kafka: str, prefix: str) -> None:
    """A record that is not JSON is not ours: topic, partition and offset are said, its content is not."""
    topic = table_topic(prefix, "public", "a")
    producer = Producer({"bootstrap.servers": kafka})
    producer.produce(topic, b"not JSON", b'{"id":1}', partition=0)
    producer.flush(30)
    done = filled.cdc("tail", "FILE", "--table", "public.a", "--from-beginning")
    assert done.returncode == 1
    assert topic in done.stderr
    assert "not JSON" in done.stderr
    assert "Traceback" not in done.stderr
