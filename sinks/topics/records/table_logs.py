"""Tells which tables' topics have a log beside them. No I/O: the sink asks once for each batch of a topic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from cdc.config.kafka_config import KafkaConfig
from cdc.encode.table_log import log_of
from cdc.model.errors import ConfigError
from sinks.topics.names import LONGEST, table_of
from sinks.topics.topics import Wanted

Batch = Sequence[Mapping[str, bytes | None]]
_ALWAYS: Final = "-1"


class TableLogs:
    """Knows the logs of one sink's tables."""

    def __init__(self, config: KafkaConfig) -> None:
        self._log, self._partitions = config.log, config.partitions
        self._logs: dict[str, str | None] = {}
        self._tables: dict[str, str] = {}

    def of(self, topic: str) -> str | None:
        """Return the log of a table's topic. Raises ConfigError for a name Kafka has no room for."""
        try:
            return self._logs[topic]
        except KeyError:
            table = table_of(topic)
        found = None
        if self._log is not None and table is not None and self._log.has(table):
            found = log_of(topic)
            if len(found) > LONGEST:
                raise ConfigError(
                    f"the log of {table} would have {len(found)} characters, Kafka takes {LONGEST}",
                    hint="choose a shorter sink.topic_prefix, or leave the table out of sink.log.tables",
                )
            self._tables[found] = topic
        self._logs[topic] = found
        return found

    def all(self, topics: Sequence[str]) -> list[str]:
        """Return the logs that these tables' topics have."""
        return [log for log in map(self.of, topics) if log is not None]

    def written_for(self, topic: str) -> str:
        """Return the table's topic of a log; any other topic as it is."""
        return self._tables.get(topic, topic)

    def wanted(self, topics: Sequence[str]) -> list[Wanted]:
        """Return the logs as they must be: as many partitions as tables' topics, so that keys lie in the same ones."""
        if self._log is None:
            return []
        kept = {"retention.ms": str(self._log.retention_ms), "retention.bytes": _ALWAYS}
        of = ((topic, self.of(topic)) for topic in topics)
        return [Wanted.log(log, self._partitions, kept, of=topic) for topic, log in of if log is not None]
