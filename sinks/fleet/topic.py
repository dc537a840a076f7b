"""A fleet's topic: the records of its entries and states are in partition 0, and its partitions are the places.

In: Kafka's address and the fleet's name. Out: `cdc.fleet.seams.Fleet`. Partitions other than the first stay empty: they
are there to be shared out by the group protocol, one place to a connector, so that the shares are even.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from cdc.config.kafka_config import KafkaConfig
from cdc.fleet.fleet_config import FleetConfig
from cdc.fleet.seams import GroupMember
from cdc.model.audit import Act
from cdc.model.errors import CdcError, OperatorError
from sinks.client.diagnosis import refuse_untrusted
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.fleet.group import GroupMembership, describe
from sinks.topics import audit_log
from sinks.topics.names import fleet_of, fleet_topic
from sinks.topics.read_back import read_to_end
from sinks.topics.single_record import NoTopicError, NotTakenError, write_record
from sinks.topics.topics import Topics, Wanted

_ASK_S: Final = 15.0
_LIST_S: Final = 5.0
"""A member that waits for its brokers hears a stop between two of these."""
_AT_ONCE: Final = 1000

log = logging.getLogger("cdc.kafka")


class FleetTopic:
    """Reads and writes one fleet's topic; connects for each call."""

    def __init__(self, config: FleetConfig) -> None:
        self._fleet = config.fleet
        self._kafka: KafkaConfig = config.kafka()
        self._servers, self._options = config.bootstrap_servers, config.options

    def topic(self) -> str:
        return fleet_topic(self._fleet)

    def fleets(self) -> Sequence[str]:
        return sorted(fleet for topic in self._topics() if (fleet := fleet_of(topic)) is not None)

    def read(self, fleet: str | None = None) -> Mapping[str, bytes] | None:
        topic = fleet_topic(fleet or self._fleet)
        if topic not in self._topics():
            return None
        found: dict[str, bytes] = {}
        for message in read_to_end(self._servers, self._options, topic, "read_committed"):
            if message.partition() == 0:
                _hear(found, message.key(), message.value())
        return found

    def make(self, places: int) -> None:
        topic = self.topic()
        there = self._topics().get(topic)
        if there is None:
            with Topics(self._servers, self._options) as topics:
                wanted = replace(Wanted.internal(topic), partitions=places)
                topics.create([wanted], replication_factor=self._kafka.replication_factor)
        elif there < places:
            try:
                admin = AdminClient({**self._options, "bootstrap.servers": self._servers}, logger=log)
                made = admin.create_partitions([NewPartitions(topic, places)], operation_timeout=_ASK_S)
                made[topic].result(_ASK_S)
            except DRIVER_ERRORS as exc:
                if not isinstance(exc, KafkaException) or exc.args[0].code() != KafkaError.INVALID_PARTITIONS:
                    raise translate(exc, self._servers, f"adding partitions to topic {topic}") from exc
                # somebody else has just added as many

    def write(self, key: str, value: bytes | None) -> None:
        topic = self.topic()
        try:
            write_record(self._kafka, topic, key.encode(), value, within_s=_ASK_S, partition=0)
        except NoTopicError as exc:
            raise self.missing() from exc
        except NotTakenError as exc:
            raise OperatorError(
                f"Kafka at {self._servers}: topic {topic} takes nothing: {exc}",
                hint="is it running, and may this user WRITE there?",
            ) from exc
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, f"writing to topic {topic}") from exc

    def note(self, prefix: str, connector: str, act: Act) -> bool:
        return audit_log.note(self._kafka, prefix, connector, act)

    def missing(self) -> CdcError:
        """Return the error that says that there is no such fleet, and which there are."""
        known = ", ".join(self.fleets())
        return OperatorError(
            f"Kafka at {self._servers} has no fleet {self._fleet}: topic {self.topic()} is not there",
            hint=f"fleets there: {known}; " * bool(known)
            + "cdc fleet add CONNECTOR.yaml makes a fleet with its first entry",
        )

    def members(self) -> Sequence[GroupMember]:
        return describe(self._servers, self._options, self.topic())

    def follow(self) -> FollowedRecords:
        return FollowedRecords(self._servers, self._options, self.topic())

    def join(self, member: str) -> GroupMembership:
        return GroupMembership(self._servers, self._options, self.topic(), member)

    def _topics(self) -> dict[str, int]:
        """Return all topics with their numbers of partitions."""
        refuse_untrusted(self._servers, self._options)
        try:
            found = AdminClient({**self._options, "bootstrap.servers": self._servers}, logger=log).list_topics(
                timeout=_LIST_S
            )
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "listing topics") from exc
        return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}


class FollowedRecords:
    """Follows partition 0 from its beginning: records as they are now, by their keys."""

    def __init__(self, servers: str, options: Mapping[str, str], topic: str) -> None:
        self._servers, self._topic = servers, topic
        self._found: dict[str, bytes] = {}
        self._end = 0
        try:
            for message in read_to_end(servers, options, topic, "read_committed"):
                if message.partition() == 0:
                    _hear(self._found, message.key(), message.value())
                    self._end = (message.offset() or 0) + 1
            self._consumer = Consumer(
                {
                    **options,
                    "bootstrap.servers": servers,
                    "socket.keepalive.enable": "true",
                    "group.id": "cdc-fleet-entries",
                    "enable.auto.commit": "false",
                    "isolation.level": "read_committed",
                    "auto.offset.reset": "earliest",
                    "queued.max.messages.kbytes": "4096",
                },
                logger=log,
            )
            self._consumer.assign([TopicPartition(topic, 0, self._end)])
        except DRIVER_ERRORS as exc:
            raise translate(exc, servers, f"reading topic {topic}") from exc
        self._news = True

    def changed(self) -> Mapping[str, bytes] | None:
        for _ in range(_AT_ONCE):
            try:
                message = self._consumer.poll(0)
            except DRIVER_ERRORS as exc:
                raise translate(exc, self._servers, f"reading topic {self._topic}") from exc
            if message is None:
                break
            if message.error() is None:  # brokers that are away: what is known stays
                _hear(self._found, message.key(), message.value())
                self._news = True
        news, self._news = self._news, False
        return dict(self._found) if news else None

    def close(self) -> None:
        self._consumer.close()


def _hear(found: dict[str, bytes], key: bytes | None, value: bytes | None) -> None:
    name = (key or b"").decode(errors="replace")
    if value is None:
        found.pop(name, None)
    else:
        found[name] = value


def open_fleet(config: FleetConfig) -> FleetTopic:
    """Make it, for the registry. Connects to nothing yet."""
    return FleetTopic(config)
