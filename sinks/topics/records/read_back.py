"""Reads topics back, from their beginning to the end they had when reading began."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import Final, Literal, cast

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from cdc.config.kafka_config import KafkaConfig
from cdc.formats.reading import Reading, records_of
from cdc.model.change import Table
from cdc.model.errors import RetryableError
from cdc.rules.routes import Routes, owner
from sinks.client.failures import DRIVER_ERRORS, NO_GROUP, translate
from sinks.client.options import QUICK
from sinks.topics.names import table_topic

Isolation = Literal["read_committed", "read_uncommitted"]

_SILENT_S: Final = 30.0

TOO_EARLY: Final = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
"""A broker has just begun to lead, or is about to: a topic made a moment ago, or one whose leader is gone."""

FULL_WAIT_MS: Final = "5"
"""So long a client waits that has fetched enough ahead. Its own second is most of the time that a topic takes."""

_LED_WITHIN_S: Final = 10.0

log = logging.getLogger("cdc.kafka")


def read_to_end(
    bootstrap_servers: str,
    options: Mapping[str, str],
    topic: str,
    isolation: Isolation,
    *,
    open_too: bool = True,
) -> Generator[Message, None, None]:
    """Give every record the topic held at the call, in order within each partition.

    Under read_committed the end is still the high watermark, not the last stable offset: it waits for an open
    transaction to end. Raises RetryableError if that takes too long. Without `open_too` it reads to the last stable
    offset, and does not wait for an open transaction, which a killed connector may have left.
    """
    settings = {**_reading(bootstrap_servers, options), "isolation.level": isolation}
    try:
        bounds = offset_bounds(bootstrap_servers, options, topic, "read_uncommitted" if open_too else isolation)
        # Make it only now: a consumer that is not given its partitions at once looks for them a second later.
        with closing(Consumer(settings, logger=log)) as consumer:
            yield from _read(consumer, bootstrap_servers, topic, bounds)
    except DRIVER_ERRORS as exc:
        raise translate(exc, bootstrap_servers, f"reading topic {topic}", at_start=TOO_EARLY) from exc


def read_without_waiting(
    bootstrap_servers: str, options: Mapping[str, str], topic: str
) -> Generator[tuple[Message, bool], None, None]:
    """Give every record the topic holds, waiting for nobody: first what is committed, and True.

    Then, with False, what is behind the last stable offset: a transaction is open there, and while it is, nobody knows
    which of these records will be committed.
    """
    settings = _reading(bootstrap_servers, options)
    try:
        stable = offset_bounds(bootstrap_servers, options, topic, "read_committed")
        everything = offset_bounds(bootstrap_servers, options, topic, "read_uncommitted")
        behind = {p: (stable[p][1], end) for p, (_, end) in everything.items()}
        for isolation, bounds in (("read_committed", stable), ("read_uncommitted", behind)):
            with closing(Consumer({**settings, "isolation.level": isolation}, logger=log)) as consumer:
                for message in _read(consumer, bootstrap_servers, topic, bounds):
                    yield message, bounds is stable
    except DRIVER_ERRORS as exc:
        raise translate(exc, bootstrap_servers, f"reading topic {topic}", at_start=TOO_EARLY) from exc


def extent(bootstrap_servers: str, options: Mapping[str, str], topic: str) -> int:
    """Return how many records a topic has at most: some of its offsets have none."""
    try:
        bounds = offset_bounds(bootstrap_servers, options, topic, "read_uncommitted")
    except DRIVER_ERRORS as exc:
        raise translate(exc, bootstrap_servers, f"asking for the end of topic {topic}", at_start=TOO_EARLY) from exc
    return sum(end - first for first, end in bounds.values())


def read_partition(
    bootstrap_servers: str, options: Mapping[str, str], topic: str, partition: int, offset: int
) -> Generator[Message, None, None]:
    """Give every record of a partition from an offset up to the end it had at the call, committed or not."""
    settings = {**_reading(bootstrap_servers, options), "isolation.level": "read_uncommitted"}
    try:
        first, end = offset_bounds(bootstrap_servers, options, topic, "read_uncommitted")[partition]
        with closing(Consumer(settings, logger=log)) as consumer:
            yield from _read(consumer, bootstrap_servers, topic, {partition: (max(first, offset), end)})
    except DRIVER_ERRORS as exc:
        raise translate(exc, bootstrap_servers, f"reading topic {topic}", at_start=TOO_EARLY) from exc


def _reading(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, str]:
    """Configure a consumer that reads a topic once. Memory of records fetched ahead stays taken: 64 MB by default."""
    return {
        "queued.max.messages.kbytes": "4096",
        "fetch.queue.backoff.ms": FULL_WAIT_MS,
        **QUICK,
        **options,
        "bootstrap.servers": bootstrap_servers,
        "group.id": "cdc-reading-back",
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
    }


def offset_bounds(
    bootstrap_servers: str, options: Mapping[str, str], topic: str, isolation: Isolation
) -> dict[int, tuple[int, int]]:
    """Return each partition's first offset and end: last stable offset if read_committed, else high watermark.

    Waits for a topic that has no leader yet.
    """
    probe = Consumer(
        {
            **QUICK,
            **options,
            "bootstrap.servers": bootstrap_servers,
            "group.id": "cdc-reading-back",
            "isolation.level": isolation,
        },
        logger=log,
    )
    until = time.monotonic() + _LED_WITHIN_S
    with closing(probe):
        while True:
            try:
                return _offsets(probe, topic)
            except KafkaException as exc:
                if exc.args[0].code() not in TOO_EARLY or time.monotonic() > until:
                    raise
            time.sleep(0.05)


def _offsets(probe: Consumer, topic: str) -> dict[int, tuple[int, int]]:
    found = probe.list_topics(topic, timeout=15).topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    return {p: probe.get_watermark_offsets(TopicPartition(topic, p), timeout=15) for p in found.partitions}


def _read(
    consumer: Consumer, bootstrap_servers: str, topic: str, bounds: Mapping[int, tuple[int, int]]
) -> Iterator[Message]:
    ends = {p: end for p, (first, end) in bounds.items() if end > first}
    open_partitions = set(ends)
    if not open_partitions:
        return
    # An offset by number: looking up OFFSET_BEGINNING costs the client half a second.
    consumer.assign([TopicPartition(topic, p, bounds[p][0]) for p in open_partitions])
    heard_s = time.monotonic()
    while open_partitions:
        messages = consumer.consume(1000, timeout=0.02)
        for message in messages:
            partition, error = message.partition(), message.error()
            if error is not None:
                if error.code() == NO_GROUP:
                    continue
                if error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
                    raise KafkaException(error)
                if (message.offset() or 0) >= ends[partition or 0]:
                    open_partitions.discard(partition or 0)
                continue
            heard_s = time.monotonic()
            if (message.offset() or 0) < ends[partition or 0]:
                yield message
            if (message.offset() or 0) >= ends[partition or 0] - 1:
                open_partitions.discard(partition or 0)
        if time.monotonic() - heard_s > _SILENT_S:
            raise RetryableError(
                f"Kafka at {bootstrap_servers}: the end of topic {topic} cannot be read: a transaction is open there",
                hint="find and abort it: kafka-transactions.sh find-hanging",
                at_start=True,
            )


class TableRecords:
    """Names the topics of one connector's tables, and reads a table's records out of one that others may share."""

    def __init__(self, config: KafkaConfig, reading: Reading) -> None:
        self._config, self._reading = config, reading
        self._servers, self._options = config.bootstrap_servers, config.options
        self._routes = Routes.of_sink(config)

    def topic(self, table: Table) -> str:
        return table_topic(self._config.prefix, table.schema, table.name, self._routes)

    def all(self, tables: Sequence[Table]) -> list[str]:
        """Return the topics of tables, each once."""
        return list(dict.fromkeys(map(self.topic, tables)))

    def records(self, table: Table, *, open_too: bool) -> Iterator[tuple[bytes, bytes | None]]:
        """Read the table's records up to the end of its topic; `open_too`: also those of the transaction in hand.

        Records of transactions that were aborted are behind no open one but our own, which is the last.
        """
        ours = self._owner(table)
        topic = self.topic(table)
        committed = read_to_end(self._servers, self._options, topic, "read_committed") if not open_too else None
        waiting = (message for message, _ in read_without_waiting(self._servers, self._options, topic))
        for message in committed or waiting:
            if ours(key := cast("bytes", message.key())):
                yield key, self._event(topic, message)

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Read the table's records of a partition, with their offsets."""
        ours = self._owner(table)
        topic = self.topic(table)
        for message in read_partition(self._servers, self._options, topic, partition, offset):
            if ours(key := cast("bytes", message.key())):
                yield message.offset() or 0, key, self._event(topic, message)

    def _event(self, topic: str, message: Message) -> bytes | None:
        with records_of(topic):
            return self._reading.event(message.value(), message.headers())

    def extent(self, table: Table) -> int:
        """Return how many records the table's topic has at most, those of all its tables together."""
        return extent(self._servers, self._options, self.topic(table))

    def _owner(self, table: Table) -> Callable[[bytes], bool]:
        """Tell which keys of the topic are the table's."""
        return owner(table.qualified) if self._routes.names_source(table.qualified) else _any


def _any(_key: bytes) -> bool:
    """Take every key: the topic is the table's own."""
    return True
