"""A fleet's topic: the records of its entries and states are in partition 0, and its partitions are the places.

In: Kafka's address and the fleet's name. Out: `cdc.fleet.seams.Fleet`. Partitions other than the first stay empty: they
are there to be shared out by the group protocol, one place to a connector, so that the shares are even.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions

from cdc.config.kafka_config import KafkaConfig
from cdc.fleet.entry import CONNECTOR
from cdc.fleet.fleet_config import FleetConfig
from cdc.fleet.seams import GroupMember
from cdc.model.audit import Act
from cdc.model.errors import CdcError, OperatorError, raise_first
from sinks.client.diagnosis import refuse_untrusted
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.fleet.group import GroupMembership, describe
from sinks.topics.names import fleet_of, fleet_topic
from sinks.topics.records import audit_log
from sinks.topics.records.read_back import read_to_end
from sinks.topics.records.single_record import NoTopicError, NotTakenError, write_record
from sinks.topics.topics import Topics, Wanted

_ASK_S: Final = 15.0
_LIST_S: Final = 5.0
"""A member that waits for its brokers hears a stop between two of these."""
_AT_ONCE: Final = 1000
_LOOK_S: Final = 2.0
_NO_IDENTITY: Final = "A" * 22
"""Of 16 bytes that are 0, as brokers give it that know none."""

log = logging.getLogger("cdc.kafka")
member_log = logging.getLogger("cdc")


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
        if there is not None:
            raise_first(self._refusals())
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
        for refusal in self._refusals():
            member_log.error("%s; %s", refusal.message, refusal.hint)
        return FollowedRecords(self._servers, self._options, self.topic())

    def _refusals(self) -> Sequence[OperatorError]:
        """Return what is wrong with the topic: one that somebody has made for deletion by age forgets its entries.

        A user who may not read a topic's settings is told nothing.
        """
        wanted = replace(Wanted.internal(self.topic()), partitions=None)
        try:
            with Topics(self._servers, self._options) as topics:
                return topics.refusals([wanted])
        except OperatorError as exc:
            log.debug("the settings of topic %s cannot be read: %s", self.topic(), exc.message)
            return ()

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
    """Follows partition 0 from its beginning: records as they are now, by their keys.

    A topic that was deleted and made again is another one: once it has an entry, what was in the former one is
    forgotten, and the new one is read from its beginning. A thread looks for that, so `changed` never waits.
    """

    def __init__(self, servers: str, options: Mapping[str, str], topic: str) -> None:
        self._servers, self._options, self._topic = servers, options, topic
        try:
            self._admin = AdminClient({**options, "bootstrap.servers": servers}, logger=log)
            self._identity = self._looked_up()
            self._found, self._consumer = self._read()
        except DRIVER_ERRORS as exc:
            raise translate(exc, servers, f"reading topic {topic}") from exc
        self._news = True
        self._next: queue.SimpleQueue[tuple[dict[str, bytes], Consumer]] = queue.SimpleQueue()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cdc-fleet-topic", daemon=True)
        self._thread.start()

    def _read(self) -> tuple[dict[str, bytes], Consumer]:
        """Read what is there, and open what reads what comes."""
        found: dict[str, bytes] = {}
        end = 0
        for message in read_to_end(self._servers, self._options, self._topic, "read_committed"):
            if message.partition() == 0:
                _hear(found, message.key(), message.value())
                end = (message.offset() or 0) + 1
        consumer = Consumer(
            {
                **self._options,
                "bootstrap.servers": self._servers,
                "socket.keepalive.enable": "true",
                "group.id": "cdc-fleet-entries",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": "4096",
            },
            logger=log,
        )
        consumer.assign([TopicPartition(self._topic, 0, end)])
        return found, consumer

    def _looked_up(self) -> str:
        """Return the topic's identity; empty where there is no topic, or its broker is too old to tell."""
        try:
            asked = self._admin.describe_topics(TopicCollection([self._topic]), request_timeout=_ASK_S)
            identity = str(asked[self._topic].result().topic_id)
        except KafkaException as exc:
            if exc.args[0].code() == KafkaError.UNKNOWN_TOPIC_OR_PART:
                return ""
            raise
        return "" if identity == _NO_IDENTITY else identity

    def _watch(self) -> None:
        failed = False
        while not self._over.wait(_LOOK_S):
            try:
                if failed:  # a client knows certificates and keys as they were when it was made
                    self._admin = AdminClient({**self._options, "bootstrap.servers": self._servers}, logger=log)
                identity = self._looked_up()
                if (identity in ("", self._identity) and not failed) or (self._identity and not identity):
                    continue
                found, consumer = self._read()
            except (*DRIVER_ERRORS, CdcError) as exc:
                log.debug("topic %s cannot be looked at: %s", self._topic, type(exc).__name__)
                failed = True
                continue
            is_another = identity != self._identity
            if (is_another or not identity) and not any(key.startswith(CONNECTOR) for key in found):
                consumer.close()  # somebody is about to add the entries again
                continue
            if is_another and self._identity:
                member_log.warning("topic %s was made again: its %d records are what counts now", self._topic,
                                   len(found))  # fmt: skip
            if self._identity or failed:
                self._next.put((found, consumer))
            else:  # it could not be told before
                consumer.close()
            self._identity, failed = identity, False

    def changed(self) -> Mapping[str, bytes] | None:
        with suppress(queue.Empty):
            found, consumer = self._next.get_nowait()
            self._consumer.close()
            self._found, self._consumer, self._news = found, consumer, True
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
        self._over.set()
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
