"""The key topic holds the wrapped key of each subject whose values are encrypted; a tombstone says it was erased."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from cdc.config.kafka_config import KafkaConfig
from cdc.model.ledger import TopicFacts
from sinks.topics.names import log_topic
from sinks.topics.records.read_back import read_partition, read_to_end
from sinks.topics.topics import Topics


def key_topic(config: KafkaConfig, connector: str) -> str:
    """Name a connector's key topic."""
    return log_topic(config.prefix, connector, "key")


def read_keys(config: KafkaConfig, connector: str) -> Iterator[tuple[bytes, bytes | None]]:
    """Give all committed records, in order. Raises RetryableError where Kafka does not answer."""
    topic = key_topic(config, connector)
    for message in read_to_end(config.bootstrap_servers, config.options, topic, "read_committed", open_too=False):
        if (key := message.key()) is not None:
            yield key, message.value()


_TOMBSTONE_IS_SEEN_S: Final = 3600.0
"""Brokers keep a tombstone for 24 hours, unless they are told otherwise (`delete.retention.ms`)."""


class KeyReader:
    """Reads the keys of a connector that somebody else writes: all of them, then those that have come since."""

    def __init__(self, config: KafkaConfig, connector: str) -> None:
        self._config, self._topic, self._at = config, key_topic(config, connector), 0
        self._before: TopicFacts | None = None
        self._looked_s = 0.0

    def exists(self) -> bool:
        """Whether there is a key topic."""
        with Topics(self._config.bootstrap_servers, self._config.options) as topics:
            return topics.exists(self._topic)

    def begins_again(self) -> bool | None:
        """Whether all that is known is to be forgotten, for `more` begins again; None: there is no topic.

        The topic was made again since the last call, or records were deleted. Or that was so long ago that a tombstone
        may have come and gone: who goes on from there would keep a key that was erased.
        """
        with Topics(self._config.bootstrap_servers, self._config.options) as topics:
            found = topics.facts([self._topic]).get(self._topic)
        if found is None:
            return None
        before, self._before = self._before, found
        looked_s, self._looked_s = self._looked_s, time.time()  # which goes on while a machine sleeps
        if before is None or (before == found and abs(self._looked_s - looked_s) < _TOMBSTONE_IS_SEEN_S):
            return False
        self._at = 0
        return True

    def more(self) -> Iterator[tuple[bytes, bytes | None]]:
        """Give the records since the last call, also those that are not committed yet; none without the topic.

        A key of a transaction that was aborted has encrypted nothing that anybody reads.
        """
        config = self._config
        if not self._at and not self.exists():
            return
        for message in read_partition(config.bootstrap_servers, config.options, self._topic, 0, self._at):
            self._at = (message.offset() or 0) + 1
            if (key := message.key()) is not None:
                yield key, message.value()
