"""Follows topics as any reader would: read_committed, without a consumer group that outlives it."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Final, Self

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from cdc.config.kafka_config import KafkaConfig
from cdc.machine import keep_alive
from cdc.model.errors import OperatorError
from cdc.rules.routes import Routes
from sinks.client.diagnosis import refuse_untrusted, unreachable
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.client.options import python_client
from sinks.client.patient_admin import PatientAdmin
from sinks.topics.names import log_topic, table_topic
from sinks.topics.topics import identity

_NEW_TOPICS_S: Final = 5.0
_HAS_IT_RUN: Final = "has the connector run? cdc run CONNECTOR.yaml"


def any_table(prefix: str) -> str:
    """Return a pattern of tables' topics: two dots after the prefix's start."""
    return rf"{re.escape(prefix)}\.[^.]+\.[^.]+"


def any_event(config: KafkaConfig) -> str:
    """Return a pattern of tables' topics, those that routes name, and that of messages."""
    others = [log_topic(config.prefix, "", "message"), *(f"{config.prefix}.{route.to}" for route in config.route)]
    return "|".join([any_table(config.prefix), *map(re.escape, dict.fromkeys(others))])


def one_table(config: KafkaConfig, schema: str, table: str) -> str:
    """Return a pattern of one table's topic."""
    return re.escape(table_topic(config.prefix, schema, table, Routes.of_sink(config)))


def of_dead_letters(config: KafkaConfig, connector: str) -> str:
    """Return a pattern of the topic of a connector's dead letters."""
    return re.escape(log_topic(config.prefix, connector, "dead-letter"))


class Follower:
    """Reads all partitions of the topics that match, also those that appear later. Use as a context manager."""

    def __init__(self, config: KafkaConfig, pattern: str, *, from_beginning: bool, hint: str | None = None) -> None:
        """`hint` is the next step where no topic matches; without it, that the connector is to run."""
        self._hint = hint or _HAS_IT_RUN
        self._servers = config.bootstrap_servers
        self._pattern = re.compile(pattern)
        name = re.sub(r"\\(.)", r"\1", pattern)
        self._shown = name if re.escape(name) == pattern else f"of {config.prefix}"
        self._from_beginning = from_beginning
        self._assigned: set[TopicPartition] = set()
        self._ids: dict[str, str] = {}
        """Which topics of their names are read: a topic that is made again begins with other records."""
        self._looked_at_s = 0.0
        refuse_untrusted(self._servers, config.options)
        client = python_client(config.bootstrap_servers, config.options)
        try:
            self._admin = PatientAdmin(KafkaAdminClient(**client, client_id="cdc-tail", request_timeout_ms=15_000))
            self._consumer = KafkaConsumer(
                **client,
                client_id="cdc-tail",
                group_id=None,
                allow_auto_create_topics=False,  # those that are deleted
                enable_auto_commit=False,
                isolation_level="read_committed",
                request_timeout_ms=15_000,
                socket_options=[(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1), *keep_alive.options()],
            )
        except DRIVER_ERRORS as exc:
            raise unreachable(self._servers) from exc

    def __enter__(self) -> Self:
        if not self._look():
            self._close()
            raise OperatorError(f"Kafka at {self._servers} has no topic {self._shown}", hint=self._hint)
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._close()

    def _close(self) -> None:
        self._consumer.close()
        self._admin.close()

    def records(
        self, idle: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[str, int, int, bytes | None, bytes | None]]:
        """Give topic, partition, offset, key, value; without end. `idle` is called now and then."""
        while True:
            idle()
            try:
                polled = self._consumer.poll(timeout_ms=500)
            except DRIVER_ERRORS as exc:
                raise translate(exc, self._servers, "reading") from exc
            for records in polled.values():
                for r in records:
                    yield r.topic, r.partition, r.offset, r.key, r.value
            if time.monotonic() - self._looked_at_s > _NEW_TOPICS_S:
                self._look()

    def _look(self) -> bool:
        """Take up partitions that are new; those found after the start are read from their beginning.

        So are those of a topic that was deleted and made again.
        """
        first = not self._looked_at_s
        self._looked_at_s = time.monotonic()
        try:
            self._take_up(first=first)
        except DRIVER_ERRORS as exc:
            self._admin.require_reach(exc)
            raise translate(exc, self._servers, "looking for topics") from exc
        return bool(self._assigned)

    def _take_up(self, *, first: bool) -> None:
        topics = sorted(t for t in self._consumer.topics() if self._pattern.fullmatch(t))
        found = {TopicPartition(t, p) for t in topics for p in self._consumer.partitions_for_topic(t) or ()}
        described = self._admin.describe_topics(topics) if topics else ()
        told = {t["name"]: of for t in described if (of := identity(t.get("topic_id")))}
        again = {name for name, of in told.items() if self._ids.get(name, of) != of}
        self._ids |= told  # a broker that has just started may not know them all
        kept = {of for of in self._assigned if of.topic not in again}
        new = found - kept
        if again or new:
            self._assigned = kept | new
            self._consumer.assign(sorted(self._assigned))
        if new:
            if self._from_beginning or not first:
                self._consumer.seek_to_beginning(*sorted(new))
            else:
                self._consumer.seek_to_end(*sorted(new))
