"""Finds the brokers of a cluster (which leads a partition, which coordinates an id) and keeps connections to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

from kafka.errors import UnknownTopicOrPartitionError
from kafka.protocol.metadata import CoordinatorType, FindCoordinatorRequest, MetadataRequest

from cdc.config.kafka_config import brokers_of
from sinks.client.connection import LOOK_S, Connection, ConnectionConfig, LostError

_COORDINATE_S: Final = 15.0
"""How long to wait for a coordinator: one that is frozen has a successor by then."""
_PORT: Final = 9092
_MANY_KEYS: Final = 4
"""From this version on FindCoordinator takes many keys."""

_BY_NAME: Final = 12
"""The last version of Metadata whose answers always name the topics asked for."""

Address: TypeAlias = tuple[str, int]


class AnswerError(Exception):
    """A broker has answered with an error, by Kafka's number for it."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class Brokers:
    """Asks for leaders and coordinators when they are needed, and again once they are forgotten."""

    def __init__(self, bootstrap_servers: str, config: ConnectionConfig) -> None:
        self._bootstrap = [_address(server) for server in brokers_of(bootstrap_servers)]
        self._config = config
        self._addresses: dict[int, Address] = {}
        self._partitions: dict[str, int] = {}
        self._leaders: dict[str, dict[int, Address]] = {}
        self._coordinator: Address | None = None
        self._asking: Connection | None = None
        self._asked_first = 0
        self._open: dict[Address, Connection] = {}
        self._coordinating: Connection | None = None

    def partitions(self, topic: str) -> int:
        """Return how many partitions a topic has that was looked up."""
        return self._partitions[topic]

    def ask_another(self) -> None:
        """Ask another broker the next time."""
        self._asked_first += 1
        if self._asking is not None:
            self._asking.close()
        self._asking = None

    def look_up(self, topics: Iterable[str]) -> None:
        """Ask for the topics whose leaders are not known. Raises AnswerError, or LostError where no broker answers."""
        unknown = sorted(set(topics) - self._leaders.keys())
        if unknown:
            self._look_up(unknown)

    def leaders(self, topic: str) -> Mapping[int, Address]:
        """Return where the records of each partition go, as last looked up, without partitions that have no leader."""
        return self._leaders[topic]

    def there(self, topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Ask for the ids (empty where there is none) and partitions of topics, without those that do not exist.

        Raises LostError.
        """
        return {
            topic.name: (str(of) if (of := getattr(topic, "topic_id", None)) and of.int else "", len(topic.partitions))
            for topic in self._metadata(topics).topics
            if topic.error_code != UnknownTopicOrPartitionError.errno
        }

    def forget(self, topics: Iterable[str]) -> None:
        """Look the topics up again the next time: other brokers may lead them by now."""
        for topic in topics:
            self._leaders.pop(topic, None)

    def connection(self, broker: Address) -> Connection:
        """Return the connection for records, which nothing else is sent on. Raises LostError."""
        found = self._open.get(broker)
        if found is None or not found.usable:
            self.drop(broker)
            found = self._open[broker] = Connection(*broker, self._config)
        return found

    def drop(self, broker: Address) -> None:
        """Close the connection for records, which is not used any more."""
        gone = self._open.pop(broker, None)
        if gone is not None:
            gone.close()

    def coordinator(self, transactional_id: str) -> Connection:
        """Return the connection to the coordinator. Raises AnswerError where there is none just now, or LostError."""
        if self._coordinating is None or not self._coordinating.usable:
            self.drop_coordinator()
            if self._coordinator is None:
                self._coordinator = self._find(transactional_id)
            try:
                self._coordinating = Connection(*self._coordinator, self._config)
            except LostError:
                self._coordinator = None
                raise
            self._coordinating.answer_s = min(_COORDINATE_S, self._config.answer_s)
        return self._coordinating

    def open_coordinator(self) -> Connection | None:
        """Return the connection to the coordinator, if there is one that can be used; makes none."""
        found = self._coordinating
        return found if found is not None and found.usable else None

    def drop_coordinator(self, *, moved: bool = False) -> None:
        """Close the connection to the coordinator; `moved`: another broker may be it by now."""
        gone, self._coordinating = self._coordinating, None
        if gone is not None:
            gone.close()
        if moved:
            self._coordinator = None

    def close(self) -> None:
        """Close all connections; safe to call twice."""
        self.drop_coordinator()
        for broker in list(self._open):
            self.drop(broker)
        if self._asking is not None:
            self._asking.close()
            self._asking = None

    def _find(self, transactional_id: str) -> Address:
        def request(asking: Connection) -> FindCoordinatorRequest:
            version = asking.version(FindCoordinatorRequest)
            kind = CoordinatorType.TRANSACTION.value
            if version < _MANY_KEYS:
                return FindCoordinatorRequest(key_type=kind, version=version, key=transactional_id)
            return FindCoordinatorRequest(key_type=kind, version=version, coordinator_keys=[transactional_id])

        answer = self._ask(request)
        found = (answer.coordinators or [answer])[0]
        if found.error_code:
            raise AnswerError(found.error_code)
        return found.host, found.port

    def _look_up(self, topics: list[str]) -> None:
        answer = self._metadata(topics)
        self._addresses |= {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        for topic in answer.topics:
            if topic.error_code:
                raise AnswerError(topic.error_code)
            self._partitions[topic.name] = len(topic.partitions)
            self._leaders[topic.name] = {
                each.partition_index: self._addresses[each.leader_id]
                for each in topic.partitions
                if each.leader_id in self._addresses
            }
        if not self._leaders.keys() >= set(topics):
            raise AnswerError(int(UnknownTopicOrPartitionError.errno))

    def _metadata(self, topics: Sequence[str]) -> Any:  # noqa: ANN401 - a message
        wanted = [MetadataRequest.MetadataRequestTopic(name=topic) for topic in topics]
        return self._ask(
            lambda asking: MetadataRequest(
                topics=wanted, allow_auto_topic_creation=False, version=asking.version(MetadataRequest, _BY_NAME)
            )
        )

    def _ask(self, request: Callable[[Connection], Any]) -> Any:  # noqa: ANN401 - messages
        """Ask any broker."""
        asking = self._any()
        try:
            return asking.ask(request(asking))
        except LostError:
            asking.close()
            self._asking = None
            raise

    def _any(self) -> Connection:
        if self._asking is not None and self._asking.usable:
            return self._asking
        if self._asking is not None:
            self._asking.close()
        self._asking = None
        lost: LostError | None = None
        known = list(dict.fromkeys((*self._bootstrap, *self._addresses.values())))
        first = self._asked_first % len(known)
        for broker in known[first:] + known[:first]:
            try:
                self._asking = Connection(*broker, self._config)
            except LostError as exc:
                lost = exc
            else:
                self._asking.answer_s = min(LOOK_S, self._config.answer_s)
                return self._asking
        raise lost or LostError("no broker is named")  # there is always one


def _address(server: str) -> Address:
    host, colon, port = server.strip().rpartition(":")
    if not colon or port.endswith("]"):
        return server.strip().strip("[]"), _PORT
    return host.strip("[]"), int(port) if port.isdigit() else _PORT
