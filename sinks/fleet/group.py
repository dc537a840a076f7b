"""A member's place in the group of its fleet: Kafka's classic protocol, cooperative and sticky.

Only what moves is taken back from one member before another has it; nobody else is disturbed. Heartbeats and polls are
on a thread of their own, so nothing that a member does makes the group miss it. Measured: a session of 6 s and
heartbeats of 0.5 s give the places of a killed member away after 5.5 s, of one that leaves after 0.3 s.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.fleet.seams import Assigned, Away, GroupMember, Lost, News, Revoked, clock_s
from cdc.model.errors import CdcError
from sinks.client.failures import DRIVER_ERRORS, translate

SESSION_S: Final = 6.0
_HEARTBEAT_S: Final = 0.5
_GIVEN_UP_S: Final = 10.0
"""For so long the group waits for the children of places that it takes back."""
_POLL_S: Final = 0.2
_AGAIN_S: Final = 5.0
_ASK_S: Final = 15.0
_LED_WITHIN_S: Final = 10.0
_OUT_S: Final = 20.0
"""So long after an error of the client's the group is asked whether this member is in it."""
_TOO_EARLY: Final = {
    KafkaError.NOT_COORDINATOR,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
}
"""The coordinator is about to be found: a cluster that is new, or one whose broker is gone."""

log = logging.getLogger("cdc.kafka")


class GroupMembership:
    """Joins at once, and again after every failure, until it is closed."""

    def __init__(self, servers: str, options: Mapping[str, str], topic: str, member: str) -> None:
        self._servers, self._options, self._topic = servers, options, topic
        self._settings = {
            **options,
            "bootstrap.servers": servers,
            "group.id": topic,
            "group.protocol": "classic",
            "client.id": member,
            "partition.assignment.strategy": "cooperative-sticky",
            "session.timeout.ms": int(SESSION_S * 1000),
            "heartbeat.interval.ms": int(_HEARTBEAT_S * 1000),
            "max.poll.interval.ms": 45_000,
            "topic.metadata.refresh.interval.ms": 3_000,  # how soon new places are shared out
            "reconnect.backoff.max.ms": 1_000,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "latest",
            "queued.max.messages.kbytes": 64,
            "socket.keepalive.enable": True,
        }
        self._news: queue.SimpleQueue[News] = queue.SimpleQueue()
        self._over = threading.Event()
        self._identity = ""
        self._in_doubt_s: float | None = None
        self._thread = threading.Thread(target=self._run, name="cdc-fleet-group", daemon=True)
        self._thread.start()

    def news(self, within_s: float) -> News | None:
        try:
            return self._news.get(timeout=within_s)
        except queue.Empty:
            return None

    def identity(self) -> str:
        return self._identity

    def close(self) -> None:
        self._over.set()
        self._thread.join(_GIVEN_UP_S)

    def _run(self) -> None:
        while not self._over.is_set():
            try:
                self._follow()
            except DRIVER_ERRORS as exc:
                self._news.put(Lost())
                self._news.put(Away(translate(exc, self._servers, f"following group {self._topic}")))
                self._over.wait(_AGAIN_S)

    def _follow(self) -> None:
        consumer = Consumer({**self._settings, "error_cb": self._doubt}, logger=log)
        try:
            consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
            while not self._over.is_set():
                message = consumer.poll(_POLL_S)
                self._identity = consumer.memberid() or ""
                error = message.error() if message is not None else None
                if error is not None:
                    self._hear(error)
                if not consumer.assignment() and self._is_out():
                    break  # a new client reads certificates and keys again
        finally:
            consumer.close()

    def _doubt(self, _error: object = None) -> None:
        if self._in_doubt_s is None:
            self._in_doubt_s = clock_s()

    def _is_out(self) -> bool:
        """Whether the group, as another client sees it, does not have this member."""
        if self._in_doubt_s is None or clock_s() - self._in_doubt_s < _OUT_S:
            return False
        self._in_doubt_s = None
        try:
            return all(
                member.identity != self._identity for member in describe(self._servers, self._options, self._topic)
            )
        except CdcError:  # nobody can ask it
            self._doubt()
            return False

    def _hear(self, error: KafkaError) -> None:
        said = translate(KafkaException(error), self._servers, f"following group {self._topic}")
        if error.fatal():
            raise KafkaException(error)
        self._news.put(Away(said))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        consumer.incremental_assign(partitions)
        self._in_doubt_s = None
        consumer.pause(partitions)  # their records are read by `FollowedRecords`
        self._news.put(Assigned(tuple(p.partition for p in partitions), clock_s()))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if partitions and not self._over.is_set():
            free = threading.Event()
            self._news.put(Revoked(tuple(p.partition for p in partitions), free))
            free.wait(_GIVEN_UP_S)
        consumer.incremental_unassign(partitions)

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._news.put(Lost())
        consumer.incremental_unassign(partitions)


def describe(servers: str, options: Mapping[str, str], group: str) -> Sequence[GroupMember]:
    """Return a group's members. Raises OperatorError, RetryableError."""
    until_s = clock_s() + _LED_WITHIN_S
    while True:
        try:
            admin = AdminClient({**options, "bootstrap.servers": servers}, logger=log)
            found = admin.describe_consumer_groups([group], request_timeout=_ASK_S)[group].result(_ASK_S)
            break
        except DRIVER_ERRORS as exc:
            code = exc.args[0].code() if isinstance(exc, KafkaException) else None
            if code == KafkaError.GROUP_ID_NOT_FOUND:
                return ()
            if code not in _TOO_EARLY or clock_s() > until_s:
                raise translate(exc, servers, f"reading group {group}") from exc
        time.sleep(_POLL_S)
    return [
        GroupMember(
            member.client_id,
            member.member_id,
            member.host.removeprefix("/"),
            tuple(sorted(p.partition for p in member.assignment.topic_partitions)),
        )
        for member in found.members
    ]
