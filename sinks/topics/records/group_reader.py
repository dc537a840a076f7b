"""Reads topics as a member of a consumer group that begins where its caller says, not where the group has committed.

What is committed to Kafka is for those who watch a group's lag, and for nothing else.

An offset is not always a record's: a transaction has a marker at its end, and one that was aborted gives nothing else.
So a partition may end further behind its last record, and where is told: retention takes what is there, too, and who
knows of the last record alone would miss what never was.

Which topic a record is of, is asked behind its fetch: an id that a topic has then, it had when the record was fetched,
because no id comes back. A topic that was deleted and made again in between has another one. (A broker that is behind
with its metadata may answer with the older id for a moment; the next look tells.)
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from cdc.model.errors import CdcError, ConfigError, GapError, RetryableError
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.topics.records.read_back import log

_ANSWER_S: Final = 15.0
_LOOK_S: Final = 5.0
_SLICE_S: Final = 0.1
_NO_ID: Final = "AAAAAAAAAAAAAAAAAAAAAA"
_UNREADABLE: Final = KafkaError._AUTO_OFFSET_RESET  # noqa: SLF001 - a public name
_TOO_SLOW: Final = KafkaError._MAX_POLL_EXCEEDED  # noqa: SLF001 - a public name
OURS: Final = frozenset(
    {
        "auto.offset.reset", "bootstrap.servers", "enable.auto.commit", "enable.auto.offset.store",
        "enable.partition.eof", "group.id", "group.protocol", "isolation.level", "partition.assignment.strategy",
    }
)  # fmt: skip
"""Properties of the client on which it depends that no record is left out: not to be set by a user."""

Place: TypeAlias = tuple[str, int]
"""A topic and the number of a partition."""


class Bounds(NamedTuple):
    """A partition that is about to be read."""

    identity: str
    """The topic's id."""
    first: int
    end: int


class Taken(NamedTuple):
    """What was read."""

    messages: list[Message]
    identities: dict[str, str]
    """Of topics, behind the fetch."""
    ends: dict[Place, int]
    """Without records: where partitions end whose records were all given, if that is not behind the last one."""


Begin: TypeAlias = Callable[[Mapping[Place, Bounds]], Mapping[Place, int]]
"""Says from which offset on each partition is read. What it raises, `read` does."""


class GroupReader:
    """A member of a consumer group; for one thread at a time."""

    def __init__(
        self, bootstrap_servers: str, options: Mapping[str, str], group: str, topics: Sequence[str], begin: Begin
    ) -> None:
        """Join the group. Raises ConfigError for options that the client does not take, or that are set here."""
        refused = sorted(OURS & set(options))
        if refused:
            raise ConfigError(
                f"options: {', '.join(refused)} cannot be set: delivery depends on it", hint="leave it out"
            )
        self._servers, self._begin = bootstrap_servers, begin
        common: dict[str, Any] = {**options, "bootstrap.servers": bootstrap_servers}
        try:
            self._consumer = Consumer(
                {
                    "fetch.wait.max.ms": "50",
                    "auto.commit.interval.ms": "1000",
                    "topic.metadata.refresh.interval.ms": "5000",  # topics and partitions that are made later
                    **common,
                    "group.id": group,
                    "enable.auto.commit": "true",
                    "enable.auto.offset.store": "false",
                    "enable.partition.eof": "true",
                    "auto.offset.reset": "error",
                    "isolation.level": "read_committed",
                    "partition.assignment.strategy": "range,roundrobin",
                },
                logger=log,
            )
            self._admin = AdminClient(common, logger=log)
            self._consumer.subscribe(list(topics), on_assign=self._assigned, on_revoke=self._revoked)
        except DRIVER_ERRORS as exc:
            raise ConfigError(
                f"Kafka's client refuses its options: {exc}", hint="options are properties of librdkafka, as text"
            ) from exc
        self._failed: CdcError | None = None
        self._passing: CdcError | None = None
        self._unproved: list[Message] = []
        self._next: dict[Place, int] = {}
        """Behind the last record of each partition."""
        self._ends: dict[Place, int] = {}
        """Where partitions end that have no record behind the last one, and yet more of the log."""
        self._to_begin: list[TopicPartition] = []
        self._topics: set[str] = set()
        self._not_there: set[str] = set()
        self._looked_s = time.monotonic()

    def read(self, most: int, wait_s: float) -> Taken:
        """Give committed records, and the ids that their topics had behind their fetch; nothing within `wait_s`: none.

        Now and then it gives ids also without records: nothing else tells of a topic that was made again and is empty.
        Records are given once: an error that comes behind some is raised by the next call.
        """
        if not self._unproved:
            self._take(most, wait_s)
        if not self._unproved:
            self._tell()
            if not self._ends and time.monotonic() - self._looked_s < _LOOK_S:
                return Taken([], {}, {})
        topics = {str(message.topic()) for message in self._unproved} or self._topics
        identities = self._identities(topics)
        self._looked_s = time.monotonic()
        if self._unproved:
            found, self._unproved = self._unproved, []
            return Taken(found, identities, {})
        ends, self._ends = self._ends, {}
        return Taken([], identities, ends)

    def handled(self, offsets: Mapping[Place, int]) -> None:
        """Note for those who watch the group where it goes on."""
        for (topic, partition), offset in offsets.items():
            try:
                self._consumer.store_offsets(offsets=[TopicPartition(topic, partition, offset)])
            except KafkaException:  # another has the partition now
                log.debug("topic %s, partition %d is no longer ours", topic, partition)

    def close(self) -> None:
        """Leave the group."""
        self._consumer.close()

    def _take(self, most: int, wait_s: float) -> None:
        if self._failed is not None or self._passing is not None:
            return
        until_s, first = time.monotonic() + wait_s, None
        try:
            while first is None:
                self._start()
                left_s = until_s - time.monotonic()
                first = self._consumer.poll(max(0.0, min(_SLICE_S, left_s)))
                if first is None and left_s <= 0:
                    return
                if first is not None and _is_end(first):
                    self._ended(first)
                    first = None
            taken = [first, *(self._consumer.consume(most - 1, timeout=0) if most > 1 else ())]
        except KafkaException as exc:
            raise translate(exc, self._servers, "reading topics") from exc
        for message in taken:
            error = message.error()
            if error is None:
                self._unproved.append(message)
                self._next[str(message.topic()), message.partition() or 0] = (message.offset() or 0) + 1
            elif _is_end(message):
                self._ended(message)
            else:
                self._heard(error, message)

    def _ended(self, end: Message) -> None:
        place, offset = (str(end.topic()), end.partition() or 0), end.offset() or 0
        if offset > self._next.get(place, offset):
            self._ends[place] = self._next[place] = offset

    def _heard(self, error: KafkaError, message: Message) -> None:
        topic, code = message.topic(), error.code()
        if code == _UNREADABLE:
            self._failed = GapError(
                f"topic {topic}, partition {message.partition()}: the record that is next is gone: {error.str()}",
                hint="what was not read cannot be read any more; another name reads from the beginning what is there",
            )
        elif code == KafkaError.UNKNOWN_TOPIC_OR_PART:
            if topic not in self._not_there:
                self._not_there.add(str(topic))
                log.warning("topic %s is not there; it is read as soon as it is", topic)
        elif code == _TOO_SLOW:
            log.warning("a batch took longer than max.poll.interval.ms: its partitions went to others meanwhile")
        else:
            told = translate(KafkaException(error), self._servers, "reading topics")
            if isinstance(told, RetryableError):
                self._passing = told
            else:
                self._failed = told

    def _tell(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._passing is not None:
            told, self._passing = self._passing, None
            raise told

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Note partitions: an exception in here would be lost, so `read` begins with them."""
        self._to_begin, self._topics = partitions, set()
        consumer.assign([])

    def _revoked(self, _consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self._to_begin, self._topics = [], set()

    def _start(self) -> None:
        """Begin with the partitions that were assigned. What raises is tried again by the next call."""
        if not self._to_begin:
            return
        identities = self._identities({of.topic for of in self._to_begin})
        bounds = {
            (of.topic, of.partition): Bounds(identities[of.topic], *self._bounds(of.topic, of.partition))
            for of in self._to_begin
        }
        offsets = self._begin(bounds)
        self._consumer.assign([TopicPartition(*place, offsets[place]) for place in bounds])
        self._next, self._ends = dict(offsets), {}
        self._to_begin, self._topics = [], set(identities)

    def _bounds(self, topic: str, partition: int) -> tuple[int, int]:
        try:
            found = self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=_ANSWER_S)
        except KafkaException as exc:
            raise translate(exc, self._servers, f"asking for the ends of topic {topic}") from exc
        if found is None:
            raise RetryableError(f"Kafka at {self._servers} does not say where topic {topic} ends")
        return found

    def _identities(self, topics: Iterable[str]) -> dict[str, str]:
        """Return topics' ids. Raises RetryableError without an answer, and for a topic that is not there."""
        found: dict[str, str] = {}
        asked = sorted(topics)
        try:
            answers = self._admin.describe_topics(TopicCollection(asked), request_timeout=_ANSWER_S) if asked else {}
            for name, future in answers.items():
                try:
                    topic: Any = future.result()
                except KafkaException as exc:
                    if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    raise RetryableError(
                        f"topic {name} is not there", hint="it is read again as soon as it is, if it is the same one"
                    ) from exc
                found[name] = str(topic.topic_id)
                if topic.topic_id is None or found[name] == _NO_ID:
                    raise ConfigError(
                        f"Kafka at {self._servers} gives topics no ids", hint="Kafka 2.8 or later, with KRaft"
                    )
        except KafkaException as exc:
            raise translate(exc, self._servers, "asking which topics these are") from exc
        return found


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.code() == KafkaError._PARTITION_EOF  # noqa: SLF001 - a public name
