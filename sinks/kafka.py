"""The Kafka sink: whole source transactions in Kafka transactions, the position last, one writer by fencing.

A commit's outcome can stay unknown. Then the producer is closed and a new one fences it: `init_transactions` returns
once the broker has completed what was under way, and the position topic says which way it went. A producer is never
aborted and used again.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any, Final, cast

from confluent_kafka import KafkaError, KafkaException, Producer

from cdc.change import Table
from cdc.config import KafkaConfig
from cdc.errors import BugError, CdcError, OperatorError, RetryableError
from cdc.state import State
from sinks.names import position_topic, schema_topic, table_topic
from sinks.positions import read_standing
from sinks.reading import read_to_end
from sinks.topics import Topics, Wanted

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""A source transaction is one Kafka transaction, however long it takes to write; brokers allow 900,000 by default."""

_BATCH: Final = 1_000
_QUEUED_RECORDS: Final = 50_000
_QUEUED_BYTES: Final = 32 * 1024 * 1024
_COMMIT_S: Final = 120.0
_FENCE_S: Final = 60.0
_SLICE_S: Final = 1.0
_COMPLAIN_S: Final = 30.0

log = logging.getLogger("cdc.kafka")

_FENCED: Final = {
    KafkaError._FENCED,  # noqa: SLF001 - the client's public name for it
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
_FORBIDDEN: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001
}


class KafkaSink:
    """One connector's producer and topics."""

    def __init__(self, config: KafkaConfig, connector: str) -> None:
        self._config = config
        self._connector = connector
        self._servers = config.bootstrap_servers
        self._position_topic = position_topic(config.prefix, connector)
        self._schema_topic = schema_topic(config.prefix)
        self._producer: Producer | None = None
        self._waiting: dict[str, list[dict[str, Any]]] = {}
        self._waiting_count = 0
        self._queued: deque[tuple[int, int]] = deque()
        self._began_at_s: float | None = None
        self._complained_s = float("-inf")
        self._records = self._bytes = 0
        self._largest = (0, "", b"")
        self._refused: KafkaError | None = None

    def topic(self, table: Table) -> str:
        return table_topic(self._config.prefix, table.schema, table.name)

    def check(self, tables: Sequence[Table]) -> bool:
        with Topics(self._servers, self._config.options) as topics:
            missing = topics.check(self._wanted(tables))
        return self._position_topic not in {topic.name for topic in missing}

    def create(self, tables: Sequence[Table]) -> None:
        with Topics(self._servers, self._config.options) as topics:
            missing = topics.check(self._wanted(tables))
            topics.create(missing, replication_factor=self._config.replication_factor)

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        return [topic for topic in map(self.topic, tables) if self._has_records(topic)]

    def _has_records(self, topic: str) -> bool:
        with closing(read_to_end(self._servers, self._config.options, topic, "read_committed")) as messages:
            return next(messages, None) is not None

    def _wanted(self, tables: Sequence[Table]) -> list[Wanted]:
        return [
            Wanted.ledger(self._position_topic),
            Wanted.ledger(self._schema_topic),
            *(Wanted.events(self.topic(table), self._config.partitions) for table in tables),
        ]

    def fence(self) -> State | None:
        self.close()
        self._producer = Producer(
            {
                "linger.ms": 5,
                "compression.type": "lz4",
                **self._config.options,
                "bootstrap.servers": self._servers,
                "transactional.id": f"{self._config.prefix}.{self._connector}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                "message.max.bytes": 1_000_000_000,  # the topic's limit decides, and is reported
                "queue.buffering.max.messages": 4 * _QUEUED_RECORDS,
                "queue.buffering.max.kbytes": 2_097_151,  # bounded by _room
                "delivery.report.only.error": True,
                "error_cb": self._heard,
            },
            logger=log,
        )
        try:
            self._patiently(self._producer.init_transactions, _FENCE_S)
        except KafkaException as exc:
            raise self._failed(exc, "fencing other copies of this connector") from exc
        return read_standing(self._config, self._connector, fenced=True).state

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        if self._began_at_s is None:
            self._begin()
        try:
            self._waiting[topic].append({"key": key, "value": value})
        except KeyError:
            self._waiting[topic] = [{"key": key, "value": value}]
        size = len(key) + len(value) if value is not None else len(key)
        self._records += 1
        self._bytes += size
        if size > self._largest[0]:
            self._largest = (size, topic, key)
        self._waiting_count += 1
        if self._waiting_count >= _BATCH:
            self._send()

    def schema(self, key: bytes, value: bytes) -> None:
        self.write(self._schema_topic, key, value)
        self._send()

    def pending(self) -> tuple[int, int]:
        return self._records, self._bytes

    def commit(self, state: State) -> None:
        self.write(self._position_topic, self._connector.encode(), state.to_bytes())
        self._send()
        try:
            self._patiently(self._open_producer().commit_transaction, _COMMIT_S)
        except KafkaException as exc:
            raise self._failed(exc, "committing") from exc
        self._began_at_s = None
        self._records = self._bytes = 0
        self._largest = (0, "", b"")

    def records(self, table: Table) -> Iterator[tuple[bytes, bytes | None]]:
        self._send()
        self._flush()
        topic = self.topic(table)
        for message in read_to_end(self._servers, self._config.options, topic, "read_uncommitted"):
            yield cast("bytes", message.key()), message.value()

    def schemas(self) -> Iterator[bytes]:
        for message in read_to_end(self._servers, self._config.options, self._schema_topic, "read_committed"):
            value = message.value()
            if value is not None:
                yield value

    def close(self) -> None:
        producer, self._producer = self._producer, None
        self._waiting, self._waiting_count, self._began_at_s = {}, 0, None
        self._queued.clear()
        self._records = self._bytes = 0
        self._largest = (0, "", b"")
        self._refused = None
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            with warnings.catch_warnings():  # it tries to abort what is open, even a commit under way
                warnings.simplefilter("ignore", RuntimeWarning)
                producer.close()

    @staticmethod
    def _patiently(step: Callable[[float], object], within_s: float) -> None:
        """Do a step of the transaction protocol that may be called again after a timeout, where it then goes on.

        In slices, since a signal is only heard between calls of the client.
        """
        deadline = time.monotonic() + within_s
        while True:
            try:
                step(_SLICE_S)
            except KafkaException as exc:
                # retriable: the time was up; its code may be what the broker said last (the killed copy's transaction
                # is being aborted, say)
                if not exc.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _flush(self) -> None:
        producer, deadline = self._open_producer(), time.monotonic() + _COMMIT_S
        while producer.flush(_SLICE_S):
            if time.monotonic() > deadline:
                raise RetryableError(f"Kafka at {self._servers}: records were not taken within {_COMMIT_S:.0f} s")

    def _refuse(self, error: KafkaError | None, _: object) -> None:
        """Called for records that were not taken; the first is the cause of all that follow."""
        self._refused = self._refused or error

    def _heard(self, error: KafkaError) -> None:
        """The client's own complaints: one is told, now and then, the rest is its business."""
        now = time.monotonic()
        if error.code() == KafkaError._ALL_BROKERS_DOWN and now - self._complained_s > _COMPLAIN_S:  # noqa: SLF001
            self._complained_s = now
            logging.getLogger("cdc").warning("Kafka at %s: no broker answers; waiting for one", self._servers)

    def _begin(self) -> None:
        try:
            self._open_producer().begin_transaction()
        except KafkaException as exc:
            raise self._failed(exc, "beginning a transaction") from exc
        self._began_at_s = time.monotonic()

    def _send(self) -> None:
        """Hand what waits to the client, topic by topic. A refused record would break its key's order: none may be."""
        producer = self._open_producer()
        for topic, batch in self._waiting.items():
            if not batch:
                continue
            self._room(producer, len(batch))
            try:
                taken = producer.produce_batch(topic, batch, on_delivery=self._refuse)
            except (KafkaException, BufferError) as exc:
                raise self._failed(exc, f"writing to topic {topic}") from exc
            if taken != len(batch):
                producer.poll(0)  # reports: the client itself says only that its state is erroneous
                error = self._refused or next((m["_error"] for m in batch if "_error" in m), None)
                raise self._failed(KafkaException(error), f"writing to topic {topic}")
            self._queued.append((len(batch), sum(len(m["key"]) + len(m["value"] or b"") for m in batch)))
            self._waiting[topic] = []
        self._waiting_count = 0

    def _room(self, producer: Producer, records: int) -> None:
        """Wait until the client's queue has room: back-pressure by records and bytes."""
        deadline = time.monotonic() + _COMMIT_S
        while True:
            queued = len(producer)
            while self._queued and sum(n for n, _ in self._queued) - self._queued[0][0] >= queued:
                self._queued.popleft()
            size = sum(b for _, b in self._queued)
            if queued == 0 or (queued + records <= _QUEUED_RECORDS and size <= _QUEUED_BYTES):
                return
            if time.monotonic() > deadline:
                raise RetryableError(f"Kafka at {self._servers}: records were not taken within {_COMMIT_S:.0f} s")
            producer.poll(0.01)

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise BugError("the sink is not fenced: nothing may be written")
        return self._producer

    def _failed(self, exc: BaseException, doing: str) -> CdcError:
        error = exc.args[0] if exc.args else None
        if not isinstance(error, KafkaError):
            return RetryableError(f"Kafka at {self._servers}: {doing}: {exc}")
        code, text = error.code(), error.str()
        if code in _FENCED and not self._timed_out():
            return OperatorError(
                f"another copy of connector {self._connector} has started and fenced this one off",
                hint="nothing is lost, the other copy goes on; run one copy of a connector",
            )
        if code in _FORBIDDEN:
            return OperatorError(
                f"Kafka at {self._servers}: {doing}: not allowed: {text}",
                hint="the user needs WRITE on the prefix’ topics and on its transactional.id",
            )
        if code == KafkaError.MSG_SIZE_TOO_LARGE or "too large" in text.lower():
            size, topic, key = self._largest
            return OperatorError(
                f"a record of {size} bytes is too large for topic {topic} (its key has {len(key)} bytes)",
                hint=f"kafka-configs.sh --bootstrap-server {self._servers} --alter --entity-type topics "
                f"--entity-name {topic} --add-config max.message.bytes={2 * size}",
            )
        return RetryableError(f"Kafka at {self._servers}: {doing}: {text}")

    def _timed_out(self) -> bool:
        """Whether the broker may have ended the transaction by itself, which looks like another copy's fencing."""
        return self._began_at_s is not None and time.monotonic() - self._began_at_s >= TRANSACTION_TIMEOUT_MS / 1000


def open_sink(config: KafkaConfig, connector: str) -> KafkaSink:
    """The registry's entry. Connects to nothing yet."""
    return KafkaSink(config, connector)
