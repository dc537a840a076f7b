"""Reads many topics at once, as fast as the client gives them: lists of committed records.

Topics that appear later are taken up, each from its beginning. One that is deleted and made again while it is read is
an error: an offset of the former one means other records of the new one, or none, and the broker does not say which.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Collection, Generator, Iterable, Mapping, Sequence
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import GapError, OperatorError, RetryableError
from cdc.rules.routes import Routes
from sinks.client.failures import DRIVER_ERRORS, NO_GROUP, translate
from sinks.client.options import QUICK
from sinks.topics.names import schema_topic, table_topic
from sinks.topics.records.read_back import FULL_WAIT_MS, TOO_EARLY, log, offset_bounds, read_to_end
from sinks.topics.topics import Topics

_AT_ONCE: Final = 10_000
_WAIT_S: Final = 0.1
_LOOK_S: Final = 5.0
_SILENT_S: Final = 30.0
_ANSWER_S: Final = 15.0
_UNREADABLE: Final = (KafkaError._AUTO_OFFSET_RESET, KafkaError.OFFSET_OUT_OF_RANGE)  # noqa: SLF001 - public names
_AGAIN: Final = (
    "call it again: it gives what the topic has now, from the beginning; rows that were given before and are not among "
    "that are gone"
)

Place = tuple[str, int]


def descriptions(config: KafkaConfig) -> list[bytes]:
    """Return all committed records of the schema topic, in order.

    Raises OperatorError where there is no such topic, RetryableError where Kafka does not answer.
    """
    topic = schema_topic(config.prefix)
    found = read_to_end(config.bootstrap_servers, config.options, topic, "read_committed", open_too=False)
    try:
        return [value for message in found if (value := message.value()) is not None]
    except RetryableError as exc:
        cause = exc.__cause__
        if not isinstance(cause, KafkaException) or cause.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
            raise
        raise OperatorError(
            f"Kafka at {config.bootstrap_servers} has no topic {topic}: no connector of topic prefix {config.prefix} "
            "has run there, or it was deleted",
            hint="cdc run CONNECTOR.yaml; or are sink.topic_prefix, or sink.bootstrap_servers, those of another one?",
        ) from exc


class Descriptions:
    """Gives the records of the schema topic to who asks often: they are read again only if there are others."""

    def __init__(self, config: KafkaConfig) -> None:
        self._config = config
        self._mark: tuple[object, ...] | None = None

    def changed(self) -> list[bytes] | None:
        """Return all committed records, in order; None: those of the last call are all."""
        topic = schema_topic(self._config.prefix)
        with Topics(self._config.bootstrap_servers, self._config.options) as topics:
            found = topics.facts([topic]).get(topic)
        mark = None if found is None else (found, found.ends)  # the marker of a commit moves an end, too
        if mark is not None and mark == self._mark:
            return None
        records = descriptions(self._config)
        self._mark = mark if mark is not None and mark[1] else None
        return records


def topic_of(config: KafkaConfig, schema: str, table: str) -> str:
    """Name the topic of a table's events."""
    return table_topic(config.prefix, schema, table, Routes.of_sink(config))


def read_many(
    config: KafkaConfig,
    topics: Callable[[], Sequence[str]],
    *,
    since_ms: int | None = None,
    to_end: bool,
) -> Generator[list[Message], None, None]:
    """Give committed records, in order within each partition; an empty list where there is nothing for a while.

    `topics` names what is to be read, and is asked again while it is read. `since_ms`: from the first record on that
    was written then or later. `to_end`: up to where a read_committed reader saw the end at the call. Raises GapError,
    within seconds, where a topic was deleted and made again, or its records are gone before they are read.
    """
    try:
        with contextlib.closing(Consumer(_settings(config), logger=log)) as consumer:
            same = _SameTopics(AdminClient({**_client(config)}, logger=log))
            yield from _read(config, consumer, topics, since_ms, same, to_end=to_end)
    except DRIVER_ERRORS as exc:
        raise translate(exc, config.bootstrap_servers, "reading topics", at_start=TOO_EARLY) from exc


def _client(config: KafkaConfig) -> dict[str, str]:
    return {**QUICK, **config.options, "bootstrap.servers": config.bootstrap_servers}


def _settings(config: KafkaConfig) -> dict[str, str]:
    return {
        "queued.min.messages": "100000",
        "fetch.queue.backoff.ms": FULL_WAIT_MS,
        **_client(config),
        "group.id": "cdc-library",  # the client requires one; nothing is committed under it
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "error",
        "isolation.level": "read_committed",
        "fetch.wait.max.ms": "50",
    }


class _SameTopics:
    """Knows which topics of their names they are."""

    def __init__(self, admin: AdminClient) -> None:
        self._admin = admin
        self._ids: dict[str, str] = {}

    def look(self, names: Collection[str]) -> None:
        """Raise GapError for one that is another than at the look before. One that is away may come back."""
        asked = self._admin.describe_topics(TopicCollection(sorted(names)), request_timeout=_ANSWER_S) if names else {}
        for name, answer in asked.items():
            try:
                now = str(answer.result().topic_id)
            except KafkaException as exc:
                if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
                continue
            if self._ids.setdefault(name, now) != now:
                raise GapError(f"topic {name} was deleted and made again while it was read", hint=_AGAIN)


def _read(
    config: KafkaConfig,
    consumer: Consumer,
    topics: Callable[[], Sequence[str]],
    since_ms: int | None,
    same: _SameTopics,
    *,
    to_end: bool,
) -> Generator[list[Message], None, None]:
    names = set(topics())
    same.look(names)
    ends = _begin(config, consumer, names, since_ms)
    heard_s = looked_s = time.monotonic()
    left = {place for place, (begin, end) in ends.items() if begin < end}
    while left or not to_end:
        messages = consumer.consume(_AT_ONCE, timeout=_WAIT_S)
        if messages:
            heard_s = time.monotonic()
        yield _records(messages, ends, left)
        if left and to_end:
            asked = [TopicPartition(topic, number) for topic, number in left]
            left -= {
                (at.topic, at.partition)
                for at in consumer.position(asked)
                if at.offset >= ends[at.topic, at.partition][1]
            }
        now_s = time.monotonic()
        if to_end and left and now_s - heard_s > _SILENT_S:
            raise RetryableError(
                f"Kafka at {config.bootstrap_servers} does not answer: {len(left)} partitions are unread",
                hint="are the brokers up, and the partitions' leaders alive?",
            )
        if not to_end and now_s - looked_s > _LOOK_S:
            looked_s, new = now_s, set(topics()) - names
            same.look(names | new)
            ends |= _begin(config, consumer, new, None)
            names |= new
    with contextlib.suppress(KafkaException):  # all was read: a broker that is away just now does not undo that
        same.look(names)


def _begin(
    config: KafkaConfig, consumer: Consumer, names: Iterable[str], since_ms: int | None
) -> dict[Place, tuple[int, int]]:
    """Read these topics too. Returns where each partition begins and ends."""
    found: dict[Place, tuple[int, int]] = {}
    for topic in sorted(names):
        of = offset_bounds(config.bootstrap_servers, config.options, topic, "read_committed")
        found |= {(topic, number): bound for number, bound in of.items()}
    if since_ms is not None and found:
        asked = [TopicPartition(topic, number, since_ms) for topic, number in found]
        for at in consumer.offsets_for_times(asked, timeout=_ANSWER_S):
            if at.error is not None:
                raise KafkaException(at.error)
            first, end = found[at.topic, at.partition]
            found[at.topic, at.partition] = (end if at.offset < 0 else max(first, at.offset), end)
    consumer.incremental_assign([TopicPartition(topic, number, begin) for (topic, number), (begin, _) in found.items()])
    return found


def _records(messages: Sequence[Message], ends: Mapping[Place, tuple[int, int]], left: set[Place]) -> list[Message]:
    """Take the records out of what the client gave; note which partitions are read to their end."""
    told = [message for message in messages if message.error() is not None]
    for message in told:
        error = message.error()
        if error is not None and error.code() == NO_GROUP:
            continue
        if error is not None and error.code() in _UNREADABLE:
            raise GapError(
                f"topic {message.topic()}, partition {message.partition()}: the record that is next is gone: the topic "
                "was deleted and made again, or records were deleted",
                hint=_AGAIN,
            )
        if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name for it
            raise KafkaException(error)
        place = message.topic() or "", message.partition() or 0
        if (message.offset() or 0) >= ends[place][1]:
            left.discard(place)
    return [message for message in messages if message.error() is None] if told else list(messages)
