"""Which topics a connector has, how they must be, and over how many partitions their records were spread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import TopicError
from cdc.model.interfaces import Log
from sinks.topics.names import OF_CONNECTOR, log_topic, position_topic, schema_topic, signal_topic, table_of
from sinks.topics.records.positions import read_standing
from sinks.topics.records.table_logs import TableLogs
from sinks.topics.topics import Topics, Wanted


class Refused:
    """Keeps what is wanted of topics that were refused, until their tables are asked for again."""

    def __init__(self) -> None:
        self.topics: Sequence[Wanted] = ()
        self._asked: Sequence[Wanted] = ()

    def ask(self, wanted: Sequence[Wanted]) -> Sequence[Wanted]:
        """Take note that these are asked for, and return them."""
        self._asked, of = wanted, {topic.of for topic in wanted}
        self.topics = [topic for topic in self.topics if topic.of not in of]
        return wanted

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note which of them are refused within it."""
        try:
            yield
        except TopicError as exc:
            self.topics = [*self.topics, *(topic for topic in self._asked if topic.of in exc.by_topic)]
            raise

    def moved(self, look: Callable[[], bool]) -> bool:
        """Return what a look has found. Where it ends the session, the next one asks for all tables that there are."""
        with self.noting():
            has_moved = look()
        if has_moved:
            self.topics = ()
        return has_moved


def wanted(
    config: KafkaConfig, connector: str, topics: Sequence[str], table_logs: TableLogs, logs: Sequence[Log]
) -> list[Wanted]:
    """Return the topics that a connector needs, as they must be; `topics` are its tables'."""
    needed = [
        Wanted.internal(position_topic(config.prefix, connector)),
        Wanted.internal(schema_topic(config.prefix)),
        Wanted.internal(signal_topic(config.prefix, connector)),
        *(Wanted.events(topic, config.partitions) for topic in topics),
        *table_logs.wanted(topics),
        *(Wanted.internal(log_topic(config.prefix, connector, log)) for log in logs if log == "key"),
        *(
            Wanted.log(
                log_topic(config.prefix, connector, log),
                config.partitions if log == "message" else None,
                {"retention.ms": "-1"} if log in OF_CONNECTOR else {},
            )
            for log in logs
            if log != "key"
        ),
    ]
    return [topic.adjusted(config.topic_config) for topic in needed]


def spread(config: KafkaConfig, connector: str, topic: str, identity: str, table_logs: TableLogs) -> int | None:
    """Return over how many partitions a topic's records were spread; 0: none were written; None: it is unknown.

    None were written to a topic that somebody has made again, as a broker does that makes topics by itself.
    For a topic that has another number now; that is rare, and the position topic is read for it.
    """
    with Topics(config.bootstrap_servers, config.options) as topics:
        if not topics.exists(position_topic(config.prefix, connector)):
            return 0
    standing = read_standing(config, connector)
    recorded, table = standing.topics.get(topic), table_of(table_logs.written_for(topic))
    if recorded is not None:
        return 0 if identity and recorded.identity not in ("", identity) else recorded.partitions
    return None if standing.state is not None and (table is None or table in standing.state.tables) else 0
