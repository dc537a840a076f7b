"""Has a broker compact topics now: all that lay before is left with the newest record of each key.

Kafka compacts closed segments alone, and closes one when a record is appended that is younger than the segment's first
by `segment.ms`, or by `max.compaction.lag.ms` where that is less; and it compacts a log that is quiet only once its
oldest record that was never compacted is older than `max.compaction.lag.ms`. So that setting is made small for as long
as it takes, and something is appended to every partition: the commit marker of a transaction that has no records, which
no reader sees (https://cwiki.apache.org/confluence/display/KAFKA/KIP-354).
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from confluent_kafka import TopicPartition

# It names these without exporting them.
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceType,
)
from kafka import errors as codes

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import OperatorError
from sinks.client.brokers import Brokers
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.erasure import own_settings
from sinks.erasure.own_settings import Own
from sinks.producer.coordinator import Coordinator
from sinks.producer.opening import connection_config
from sinks.producer.retries import ABSENT, FENCED, RefusedError, Waiting, code_of

AT_ONCE_MS: Final = 1_000
_COMPACTED: Final = {"max.compaction.lag.ms": str(AT_ONCE_MS), "min.compaction.lag.ms": "0"}
_LOG: Final = {"segment.ms": str(AT_ONCE_MS)}
"""A log's segments are closed so that those whose records are all deleted can go."""
_OF_THE_TOPIC: Final[Any] = ConfigSource.DYNAMIC_TOPIC_CONFIG.value
_ANSWER_S: Final = 30.0
_FENCED: Final = FENCED | {code_of(codes.TransactionAbortableError)}
"""What an erasure is told when another one of the connector has begun."""
_AGAIN: Final = _FENCED | {code_of(codes.UnknownError)}
"""Brokers have said that, too, where two began at one moment."""
_TRIES: Final = 8

log = logging.getLogger("cdc.kafka")


class Compaction:
    """Changes topics' settings for a while, and closes their segments."""

    def __init__(self, config: KafkaConfig, connector: str) -> None:
        self._config, self._connector = config, connector
        self._id = f"{config.prefix}.{connector}.erase"
        self._admin = AdminClient({**config.options, "bootstrap.servers": config.bootstrap_servers}, logger=log)
        self._hurry: dict[str, Mapping[str, str]] = {}
        """What topics are to have meanwhile."""

    @contextmanager
    def hurried(self, *, compacted: Collection[str], logs: Collection[str]) -> Iterator[None]:
        """Let these topics be compacted, or cut, soon; at the end they have the settings that they had.

        Raises OperatorError where this user may not; then all settings are as they were.
        """
        wanted = self._hurry = {**dict.fromkeys(compacted, _COMPACTED), **dict.fromkeys(logs, _LOG)}
        found = {topic: self._described(topic) for topic in wanted}
        noted = own_settings.noted(self._config, self._connector)  # behind that: what made haste there has noted it
        before = {topic: _own(found[topic], hurry, noted.get(topic, {})) for topic, hurry in wanted.items()}
        own_settings.keep(self._config, self._connector, before, noted)
        changed: list[str] = []
        try:
            for topic, hurry in wanted.items():
                changed.append(topic)
                self._alter(topic, hurry)
            yield
        finally:
            self._set_back({topic: before[topic] for topic in changed})

    def _set_back(self, before: Mapping[str, Own]) -> None:
        """Give topics their own settings again; one that cannot be given them keeps no other from it."""
        failed: OperatorError | None = None
        for topic, own in before.items():
            try:
                self._alter(topic, own)
            except OperatorError as exc:
                failed = failed or exc
        if failed is not None:
            raise failed

    def slowed(self, topics: Collection[str]) -> list[str]:
        """Name those that are in no hurry any more: another erasure has ended, and has set its topics back."""
        asked = {topic: self._hurry.get(topic, {}) for topic in topics}
        return [topic for topic, hurry in asked.items() if hurry and not hurry.items() <= self.settings(topic).items()]

    def close_segments(self, partitions: Mapping[str, Collection[int]]) -> None:
        """Append a marker to each partition, which closes a segment that is old enough. No reader sees it.

        Another erasure of the connector may run: what that has set back is set again, and by whom a segment is closed
        does not matter.
        """
        for topic in self.slowed(partitions):
            self._alter(topic, self._hurry[topic])
        for tries_left in reversed(range(_TRIES)):
            try:
                self._append_markers(partitions)
            except RefusedError as exc:
                if exc.code not in _AGAIN or not tries_left:
                    raise self._refused(exc, partitions) from exc
                time.sleep(random.uniform(0.1, 2.0))  # noqa: S311 - so that two do not go on in step
            else:
                return

    def _append_markers(self, partitions: Mapping[str, Collection[int]]) -> None:
        config = self._config
        brokers = Brokers(config.bootstrap_servers, connection_config(config))
        coordinator = Coordinator(
            brokers,
            Waiting(config.bootstrap_servers, brokers),
            transactional_id=self._id,
            timeout_ms=round(_ANSWER_S * 1000),
        )
        try:
            coordinator.begin_epoch(_ANSWER_S)
            coordinator.add_partitions({(topic, each) for topic, of in partitions.items() for each in of})
            coordinator.commit()
        finally:
            brokers.close()

    def _refused(self, exc: RefusedError, partitions: Mapping[str, Collection[int]]) -> OperatorError:
        at = f"Kafka at {self._config.bootstrap_servers}"
        if exc.code == ABSENT:
            return OperatorError(
                f"{at}: one of the topics {', '.join(sorted(partitions))} was deleted meanwhile",
                hint="run this again: it says which is not there",
            )
        if exc.code in _FENCED:
            return OperatorError(
                f"{at}: other erasures of connector {self._connector} keep this one from closing segments",
                hint="let them end, then run this again",
            )
        return OperatorError(
            f"{at} refused to close segments: {exc}",
            hint=f"the user of sink.options needs WRITE on the transactional id {self._id} and on the topics",
        )

    def settings(self, topic: str) -> dict[str, str]:
        """Return all settings of a topic, its own and those it has from the broker."""
        return {name: entry.value for name, entry in self._described(topic).items() if entry.value is not None}

    def _described(self, topic: str) -> dict[str, ConfigEntry]:
        resource = ConfigResource(ResourceType.TOPIC, topic)
        try:
            found: dict[str, ConfigEntry] = self._admin.describe_configs([resource])[resource].result(_ANSWER_S)
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._config.bootstrap_servers, f"reading the settings of topic {topic}") from exc
        return found

    def cut(self, topic: str, partition: int, offset: int) -> None:
        """Delete all records of a partition before an offset."""
        at = TopicPartition(topic, partition, offset)
        try:
            self._admin.delete_records([at])[at].result(_ANSWER_S)
        except DRIVER_ERRORS as exc:
            passing = translate(exc, self._config.bootstrap_servers, f"deleting records of topic {topic}")
            raise OperatorError(
                f"records of topic {topic} cannot be deleted: {passing.message}",
                hint="the user of sink.options needs DELETE on the topic",
            ) from exc

    def _alter(self, topic: str, settings: Mapping[str, str | None]) -> None:
        entries = [
            ConfigEntry(
                name,
                value,
                incremental_operation=AlterConfigOpType.DELETE if value is None else AlterConfigOpType.SET,
            )
            for name, value in settings.items()
        ]
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
        try:
            self._admin.incremental_alter_configs([resource])[resource].result(_ANSWER_S)
        except DRIVER_ERRORS as exc:
            passing = translate(exc, self._config.bootstrap_servers, f"changing settings of topic {topic}")
            raise OperatorError(
                f"settings of topic {topic} cannot be changed: {passing.message}",
                hint="the user of sink.options needs ALTER_CONFIGS on the topic",
            ) from exc

    def wait_until_old(self) -> None:
        """Wait until a segment that ends now is old enough to be closed by the next append."""
        time.sleep(AT_ONCE_MS / 1000 + 0.2)


def _own(found: Mapping[str, ConfigEntry], hurry: Mapping[str, str], noted: Own) -> Own:
    """Return what a topic itself has of these settings; None of what it leaves to the broker.

    Where it has just what makes haste, another erasure runs, or was killed: then it is to have what it has `noted`.
    """
    own: dict[str, str | None] = dict.fromkeys(hurry)
    none = dict(own)
    own |= {name: found[name].value for name in hurry if found[name].source == _OF_THE_TOPIC}
    return none | {name: noted[name] for name in hurry if name in noted} if own == hurry else own
