"""A broker that has acknowledged records and loses them, as one does that loses power: their tables are read again."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from cdc.dev.stack import DevServers
from cdc.model.errors import RetryableError
from cdc.model.state import State
from sinks.kafka import KafkaSink
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.running import Running, eventually, same

LOST = "has lost its last records, which brokers had acknowledged: the rows of table public.t are read again"
_BEGIN = struct.Struct(">qi")
"""Of a batch on the disk: the first offset, and how many bytes follow."""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[DevServers]:
    with DevServers(tmp_path / "broker", servers=["kafka"]) as servers:
        yield servers


class _Disk:
    """What the broker has written of a topic, which is what is left of it when the power goes: not all of it."""

    def __init__(self, broker: DevServers, folder: Path, topic: str) -> None:
        self._server = broker["kafka"]
        self._logs = sorted(folder.rglob(f"{topic}-*/*.log"))
        assert self._logs
        self._kept = {log: log.stat().st_size for log in self._logs}

    def lose(self) -> int:
        """Cut off what was written since this was made; return how many batches that was."""
        self._server.kill()
        lost = 0
        for log in self._logs:
            written, at = log.read_bytes(), self._kept[log]
            while at < len(written):
                _, size = _BEGIN.unpack_from(written, at)
                at += _BEGIN.size + size
                lost += 1
            with log.open("r+b") as file:
                file.truncate(self._kept[log])
        self._server.start()
        return lost


class _Reader:
    """Follows a topic from where it was the last time."""

    def __init__(self, connector: Connector, topic: str) -> None:
        self._server, self._at = connector.kafka, dict.fromkeys(range(3), 0)
        self._topic, self.rows = topic, dict[bytes, Any]()

    def read(self) -> None:
        """Read to the ends."""
        consumer = Consumer({"bootstrap.servers": self._server, "group.id": "reader", "auto.offset.reset": "error"})
        with closing(consumer):
            for number, begin in self._at.items():
                consumer.assign([TopicPartition(self._topic, number, begin)])
                end = consumer.get_watermark_offsets(TopicPartition(self._topic, number), timeout=30)[1]
                while self._at[number] < end:
                    found = consumer.poll(0.5)
                    if found is not None:
                        assert found.error() is None, found.error()
                        self._take(found.key() or b"", found.value())
                    (place,) = consumer.position([TopicPartition(self._topic, number)])
                    self._at[number] = max(place.offset, self._at[number])

    def _take(self, key: bytes, value: bytes | None) -> None:
        after = json.loads(value)["after"] if value is not None else None
        self.rows.pop(key, None)
        if after is not None:
            self.rows[key] = after


def _made(database: Database, broker: DevServers, prefix: str, folder: Path, producer: str = "own") -> Connector:
    assert broker.urls.kafka
    for name in ("t", "u"):
        database.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT x, 'v' || x FROM generate_series(1, 50) x",
        )
    sink = {"producer": producer}
    return Connector(folder, prefix, database.url, broker.urls.kafka, ["public.t", "public.u"], sink=sink)


CHANGES = ("UPDATE t SET v = 'new' WHERE id = 1", "DELETE FROM t WHERE id = 2", "INSERT INTO t VALUES (99, 'more')")


def test_acknowledged_records_of_the_last_transaction_are_lost(
    postgres18: Database, broker: DevServers, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the position itself nothing is lost, as of other topics; what the last commit wrote is counted in it.

    A session that fails behind filling it up leaves the loss to be found by the next.
    """
    connector = _made(postgres18, broker, prefix, tmp_path)
    connector.catch_up()
    before = len(connector.records("public.u"))
    disk = _Disk(broker, tmp_path, f"{prefix}.public.t")
    postgres18.execute(*CHANGES, ";".join(["UPDATE t SET v = v || '!'"] * 10))
    connector.catch_up()
    reader = _Reader(connector, f"{prefix}.public.t")
    reader.read()
    assert disk.lose() > 1
    postgres18.execute("UPDATE t SET v = 'meanwhile' WHERE id = 3")
    found = connector.here("check", "FILE").stdout
    assert f"topic {prefix}.public.t has lost its last records" in " ".join(found.split()), found
    failures = iter([RetryableError("Kafka is away")])

    def committed(sink: KafkaSink, state: State) -> None:
        for failure in failures:
            raise failure
        commit(sink, state)

    commit = KafkaSink.commit
    monkeypatch.setattr(KafkaSink, "commit", committed)
    failed = connector.here("run", "FILE", "--until-caught-up")
    for said in (failed.stderr, connector.catch_up()):
        assert f"topic {prefix}.public.t {LOST}" in said
    assert failed.returncode == 1
    assert "public.u are read" not in said
    for table in ("public.t", "public.u"):
        same(connector, postgres18, table)
    reader.read()
    assert reader.rows == connector.fold("public.t"), "what is written again comes behind all that was read"
    assert len(connector.records("public.u")) == before
    assert "has lost" not in connector.catch_up()
    postgres18.execute("UPDATE t SET v = 'newer' WHERE id = 3")
    assert "has lost" not in connector.catch_up()
    same(connector, postgres18, "public.t")


@pytest.mark.full  # test_acknowledged_records_of_the_last_transaction_are_lost, test_a_leader_is_killed
@pytest.mark.parametrize("producer", ["own", pytest.param("librdkafka", marks=pytest.mark.full)])
def test_acknowledged_records_are_lost_while_it_runs(
    postgres18: Database, broker: DevServers, prefix: str, tmp_path: Path, producer: str
) -> None:
    """The broker comes back while the connector waits for it; what it wrote before it fell behind is lost, too."""
    connector = _made(postgres18, broker, prefix, tmp_path, producer)
    with Running(connector) as running:
        running.await_following()
        disk = _Disk(broker, tmp_path, f"{prefix}.public.t")
        for number, change in enumerate(CHANGES, 1):
            postgres18.execute(change, "INSERT INTO u SELECT max(id) + 1 FROM u")
            eventually(lambda rows=50 + number: len(connector.fold("public.u")) == rows, "it is in the topics")
        assert disk.lose() > 1
        running.await_line(LOST)
        running.await_line("table public.t was read while the log was followed")
        same(connector, postgres18, "public.t")
        assert "public.u are read" not in running.stderr
    assert "has lost" not in connector.catch_up()
