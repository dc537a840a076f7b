"""Reading beside the soak: the topics by a reader that polls, the position topic by one that follows it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from cdc.model.state import State
from cdc.model.state_records import StateReader
from sinks.topics.names import position_topic, table_topic
from tests.faults.workload import TABLES

Feed = Callable[[str, bytes, bytes | None, int], None]
Place = tuple[str, int]

_WAIT_S = 10.0
_log = logging.getLogger("soak.kafka")
_log.setLevel(logging.CRITICAL)
_PASSING = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._TIMED_OUT,
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
}


def topics_of(prefix: str, schema: str) -> dict[str, str]:
    """Topic -> table."""
    return {table_topic(prefix, schema, table): table for table in TABLES}


class Reader:
    """Some topics from their beginning on, each partition in its order."""

    def __init__(self, servers: str, topics: Mapping[str, str], *, isolation: str = "read_committed") -> None:
        self._topics = topics
        settings = {
            "bootstrap.servers": servers,
            "group.id": "soak",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "fetch.wait.max.ms": "100",
            "reconnect.backoff.max.ms": "500",
            "socket.timeout.ms": "5000",
        }
        self._consumer = Consumer({**settings, "isolation.level": isolation}, logger=_log)
        self._probe = Consumer({**settings, "isolation.level": "read_uncommitted"}, logger=_log)
        self._reached: dict[Place, int] = {}

    def open(self) -> bool:
        """Whether all topics are there by now; then they are read from the start."""
        try:
            known = self._probe.list_topics(timeout=5).topics
        except KafkaException:
            return False
        if any(topic not in known for topic in self._topics):
            return False
        self._reached = {(topic, p): 0 for topic in self._topics for p in known[topic].partitions}
        self._consumer.assign([TopicPartition(topic, p, 0) for topic, p in self._reached])
        return True

    def ends(self) -> dict[Place, int] | None:
        """The partitions' ends, open transactions included; None while the broker does not say."""
        try:
            return {at: self._probe.get_watermark_offsets(TopicPartition(*at), timeout=3)[1] for at in self._reached}
        except KafkaException:
            return None

    def read(self, feed: Feed, ends: Mapping[Place, int], *, within_s: float) -> bool:
        """Feed what comes until `ends` are reached; False if they were not."""
        deadline = time.monotonic() + within_s
        while any(self._reached[at] < end for at, end in ends.items()):
            if time.monotonic() > deadline:
                return False
            for message in self._consumer.consume(1000, timeout=0.05):
                error, at, offset = message.error(), (message.topic() or "", message.partition() or 0), message.offset()
                if error is None:
                    feed(self._topics[at[0]], message.key() or b"", message.value(), at[1])
                    self._reached[at] = (offset or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self._reached[at] = max(self._reached[at], offset or 0)
                elif error.code() not in _PASSING:
                    raise KafkaException(error)
        return True

    def close(self) -> None:
        self._consumer.close()
        self._probe.close()


@dataclass(frozen=True, slots=True)
class Published:
    """A committed position, and when it could be read."""

    state: State
    made_at_s: float
    """By the connector's clock, the same machine's."""
    seen_at_s: float


class Positions(threading.Thread):
    """Follows the position topic, read_committed."""

    def __init__(self, servers: str, prefix: str, name: str) -> None:
        super().__init__(name="positions", daemon=True)
        self._states = StateReader(name)
        self._topic = position_topic(prefix, name)
        self._servers = servers
        self._over = threading.Event()
        self._news = threading.Condition()
        self._reached = 0
        self.all: list[Published] = []
        self._probe = Consumer(
            {"bootstrap.servers": servers, "group.id": "soak", "isolation.level": "read_uncommitted"}, logger=_log
        )

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join(30)
        self._probe.close()

    def run(self) -> None:
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": "soak",
            "enable.auto.commit": "false",
            "enable.partition.eof": "true",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "50",
            "reconnect.backoff.max.ms": "250",
            "topic.metadata.refresh.interval.ms": "1000",
        }
        with contextlib.closing(Consumer(settings, logger=_log)) as consumer:
            consumer.assign([TopicPartition(self._topic, 0, 0)])
            while not self._over.is_set():
                for message in consumer.consume(100, timeout=0.05):
                    with self._news:
                        self._hear(message)
                        self._news.notify_all()

    def _hear(self, message) -> None:  # noqa: ANN001 - the client's
        error, offset = message.error(), message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._reached = max(self._reached, offset)
            return
        self._reached = offset + 1
        if self._states.hear(message.key(), message.value()):
            state = self._states.state(where="the position topic")
            assert state is not None
            self.all.append(Published(state, message.timestamp()[1] / 1000, time.time()))

    @property
    def last(self) -> Published | None:
        return self.all[-1] if self.all else None

    def newest(self) -> State | None:
        """The position that is committed now, at least; None if the broker does not say."""
        try:
            end = self._probe.get_watermark_offsets(TopicPartition(self._topic, 0), timeout=3)[1]
        except KafkaException:
            return None
        with self._news:
            if not self._news.wait_for(lambda: self._reached >= end, _WAIT_S):
                return None
        return self.last.state if self.last is not None else None

    def made_after(self, at_s: float, *, within_s: float) -> Published | None:
        """The first position that was made after the wall clock's `at_s`; None if there is none in time."""

        def first() -> Published | None:
            for published in reversed(self.all):
                if published.made_at_s <= at_s:
                    break
                found[:] = [published]
            return found[0] if found else None

        found: list[Published] = []
        with self._news:
            return self._news.wait_for(first, within_s) or None
