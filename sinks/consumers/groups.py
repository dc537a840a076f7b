"""Reads where consumer groups stand on topics: their offsets, what is unread, and when they have committed.

Offsets are no records. A transaction has a marker at its end, which takes an offset in each of its partitions, and
compaction leaves holes. So what is unread is read, as a read_committed consumer would be given it, and counted, up to
`MOST_COUNTED` records of a partition: of more, the offsets say how many there are at most.

When an offset was committed, only Kafka's own topic of offsets tells. Not every user may read it, and hosted clusters
hide it: then it is not known, and said so.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from kafka import KafkaAdminClient
from kafka.errors import KafkaError as PythonKafkaError

from cdc.config.kafka_config import KafkaConfig
from cdc.formats.reading import Reading
from cdc.model.consumers import GroupOffsets, Groups, PartitionOffset, Place, Unread
from cdc.model.errors import CdcError
from sinks.client import broker_clock
from sinks.client.diagnosis import refuse_untrusted, unreachable
from sinks.client.failures import DRIVER_ERRORS, NO_GROUP, translate
from sinks.client.options import QUICK, python_client
from sinks.client.schema_registry import open_reading
from sinks.consumers.offset_commits import TOPIC, OffsetCommit, parse, partition_of

MOST_COUNTED: Final = 5_000
"""So many unread records of a partition are counted."""
_LOOKED_AT_S: Final = 10.0
"""So long the unread records of a group are read at most; what is left then is told by offsets."""
_ANSWER_S: Final = 10.0
_SILENT_S: Final = 10.0
"""A broker at work may need seconds for its first answer: half of the commits would give a wrong status."""
_STATUS: Final = ("BEGIN", "END")
"""Of the transaction topic's records."""
_WITH_OFFSETS: Final = ("", "consumer", "streams")
"""Protocols of groups that commit offsets."""

log = logging.getLogger("cdc.kafka")


def read_groups(config: KafkaConfig, topics: Collection[str], *, window: int, window_s: int) -> Groups:
    """Return all groups that have committed an offset of one of these topics, by name.

    Of each partition the last `window` commits are told that are not older than `window_s`. Raises RetryableError
    while Kafka does not answer, OperatorError where groups may not be listed.
    """
    asked = _Asked(config, frozenset(topics))
    reading = open_reading(config)
    try:
        found, unreadable = asked.offsets()
        with closing(Consumer(_settings(config), logger=log)) as consumer:
            bounds = _bounds(consumer, topics)
            others = _of_others(config, found, bounds)
            since_ms = (asked.now_ms or time.time_ns() // 1_000_000) - window_s * 1000
            commits, why_not = _commits(consumer, list(found), config.bootstrap_servers, window, since_ms)
            groups = [
                _group(consumer, reading, (name, *standing, others[name]), bounds, commits)
                for name, standing in sorted(found.items())
            ]
    except DRIVER_ERRORS as exc:
        raise translate(exc, config.bootstrap_servers, "looking at consumer groups") from exc
    return Groups(groups=groups, unreadable=unreadable, no_commits=why_not, now_ms=asked.now_ms)


@dataclass(slots=True)
class _Asked:
    """Asks the brokers for groups and their offsets."""

    config: KafkaConfig
    topics: frozenset[str]
    now_ms: int | None = field(init=False)
    """The time by the brokers' clock."""
    _admin: Any = field(init=False)

    def offsets(self) -> tuple[dict[str, tuple[str, dict[Place, int]]], dict[str, str]]:
        """Return state and offsets of each group on these topics; and groups that cannot be read, and why."""
        refuse_untrusted(self.config.bootstrap_servers, self.config.options)
        client = python_client(self.config.bootstrap_servers, self.config.options)
        try:
            self._admin = KafkaAdminClient(
                **client, client_id="cdc-consumers", request_timeout_ms=15_000, bootstrap_timeout_ms=8_000
            )
        except DRIVER_ERRORS as exc:
            raise unreachable(self.config.bootstrap_servers) from exc
        try:
            listed = {
                str(group["group_id"]): str(group.get("group_state") or "")
                for group in self._admin.list_groups()
                if group.get("protocol_type", "") in _WITH_OFFSETS
            }
            found, unreadable = self._of(list(listed))
            self.now_ms = broker_clock.now_ms(self._admin)
        finally:
            self._admin.close()
        ours = {
            name: {(tp.topic, tp.partition): int(of.offset) for tp, of in offsets.items()
                   if tp.topic in self.topics and of.offset >= 0}
            for name, offsets in found.items()
        }  # fmt: skip
        return {name: (listed[name], offsets) for name, offsets in ours.items() if offsets}, unreadable

    def _of(self, names: list[str]) -> tuple[dict[str, Any], dict[str, str]]:
        """Ask for all at once, and one by one only where that fails: one group must not hide the others."""
        if not names:
            return {}, {}
        try:
            return dict(self._admin.list_group_offsets(names)), {}
        except PythonKafkaError as exc:
            log.debug("the groups' offsets cannot be read at once: %s", type(exc).__name__)
        found: dict[str, Any] = {}
        unreadable: dict[str, str] = {}
        for name in names:
            try:
                found |= self._admin.list_group_offsets([name])
            except PythonKafkaError as exc:
                unreadable[name] = type(exc).__name__
        return found, unreadable


def _settings(config: KafkaConfig) -> dict[str, str]:
    return {
        "queued.max.messages.kbytes": "4096",
        **QUICK,
        **config.options,
        "bootstrap.servers": config.bootstrap_servers,
        "group.id": "cdc-consumers",  # the client requires one; nothing is committed under it
        "enable.auto.commit": "false",
        "enable.partition.eof": "true",
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
    }


def _bounds(consumer: Consumer, topics: Collection[str]) -> dict[Place, tuple[int, int]]:
    """Return first offset and last stable offset of each partition; a topic that is gone has none."""
    there = consumer.list_topics(timeout=_ANSWER_S).topics
    return {
        (topic, number): consumer.get_watermark_offsets(TopicPartition(topic, number), timeout=_ANSWER_S)
        for topic in sorted(topics)
        if topic in there
        for number in there[topic].partitions
    }


def _of_others(
    config: KafkaConfig, found: Mapping[str, tuple[str, Mapping[Place, int]]], bounds: Mapping[Place, tuple[int, int]]
) -> dict[str, set[Place]]:
    """Return of each group the partitions whose offset lies behind all records: it is of a former topic.

    Those who read what is not committed yet may stand behind the last stable offset.
    """
    behind = {
        group: {place for place, offset in of.items() if place in bounds and offset > bounds[place][1]}
        for group, (_, of) in found.items()
    }
    places = set().union(*behind.values())
    if not places:
        return behind
    with closing(Consumer({**_settings(config), "isolation.level": "read_uncommitted"}, logger=log)) as consumer:
        last = {place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)[1] for place in places}
    return {group: {place for place in of if found[group][1][place] > last[place]} for group, of in behind.items()}


def _group(
    consumer: Consumer,
    reading: Reading,
    found: tuple[str, str, Mapping[Place, int], Collection[Place]],
    bounds: Mapping[Place, tuple[int, int]],
    commits: Mapping[tuple[str, str, int], Sequence[OffsetCommit]],
) -> GroupOffsets:
    """Say where a group stands. Where its offset is of a former topic it has read nothing of this one."""
    name, state, offsets, others = found
    known = {place: offset for place, offset in offsets.items() if place in bounds}
    behind = {
        place: bounds[place][0] if place in others else max(offset, bounds[place][0])
        for place, offset in known.items()
        if offset < bounds[place][1] or place in others
    }
    unread = _unread(consumer, reading, behind, bounds)
    late = {place: commits.get((name, *place), ()) for place in known if unread[place].records} if behind else {}
    ends = _ends_then(consumer, late, bounds)
    return GroupOffsets(
        group=name,
        state=state,
        partitions=[
            PartitionOffset(
                topic=place[0],
                partition=place[1],
                offset=offset,
                begin=bounds[place][0],
                end=bounds[place][1],
                unread=unread[place],
                commits=() if place in others else ends.get(place, ()),
                of_another=place in others,
            )
            for place, offset in sorted(known.items())
        ],
    )


class _Nothing(dict[Place, Unread]):
    """Says of a partition that was not read that nothing is unread there."""

    def __missing__(self, place: Place) -> Unread:
        return Unread(records=0, exact=True, source_ms=None, written_ms=None)


def _unread(
    consumer: Consumer, reading: Reading, begin: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]
) -> _Nothing:
    """Read what a consumer would be given from these offsets on."""
    found, counted = _Nothing(), dict.fromkeys(begin, 0)
    oldest: dict[Place, int] = {}
    written: dict[Place, int] = {}
    reached = {place for place in begin if begin[place] >= bounds[place][1]}
    for message in _messages(consumer, begin, bounds, counted, reached):
        place = message.topic() or "", message.partition() or 0
        written.setdefault(place, message.timestamp()[1])
        if place not in oldest and (at_ms := _committed(message, reading)) is not None:
            oldest[place] = at_ms
    for place, offset in begin.items():
        exact = place in reached
        found[place] = Unread(
            records=counted[place] if exact else bounds[place][1] - offset,
            exact=exact,
            source_ms=oldest.get(place),
            written_ms=written.get(place),
        )
    return found


def _messages(
    consumer: Consumer,
    begin: Mapping[Place, int],
    bounds: Mapping[Place, tuple[int, int]],
    counted: dict[Place, int],
    reached: set[Place],
) -> Iterator[Message]:
    """Give unread records and count them; note the partitions that are read to their end."""
    left = set(begin) - reached
    if not left:
        return
    consumer.assign([TopicPartition(topic, number, begin[topic, number]) for topic, number in sorted(left)])
    until_s = time.monotonic() + _LOOKED_AT_S
    while left and time.monotonic() < until_s:
        for message in consumer.consume(1000, timeout=0.05):
            error = message.error()
            place = message.topic() or "", message.partition() or 0
            if error is not None and error.code() == NO_GROUP:
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name
                raise KafkaException(error)
            if place not in left:
                continue
            offset, end = message.offset() or 0, bounds[place][1]
            if offset < end and error is None:
                counted[place] += 1
                yield message
            if offset >= end - (error is None):
                reached.add(place)
            if place in reached or counted[place] >= MOST_COUNTED:
                left.discard(place)
                consumer.incremental_unassign([TopicPartition(*place)])
    consumer.unassign()


def _committed(message: Message, reading: Reading) -> int | None:
    """Return when an event was committed, whatever its format; None also where its schema cannot be had now."""
    try:
        return committed_ms(reading.event(message.value(), message.headers()))
    except CdcError as exc:
        log.debug("a record cannot be read: %s", exc.message)
        return None


def committed_ms(value: bytes | None) -> int | None:
    """Return when an event was committed at the source, in ms since 1970; None where the record does not say.

    A flat row does not say, whatever its columns are called.
    """
    if value is None:
        return None
    try:
        event = orjson.loads(value)
        source = event.get("source")
        if isinstance(source, dict) and "position" in source:
            at = source.get("ts_ms")
        else:
            at = event.get("ts_ms") if event.get("status") in _STATUS and "event_count" in event else None
    except (ValueError, AttributeError):
        return None
    return at if isinstance(at, int) else None


def _ends_then(
    consumer: Consumer, commits: Mapping[Place, Sequence[OffsetCommit]], bounds: Mapping[Place, tuple[int, int]]
) -> dict[Place, list[tuple[int, int, int]]]:
    """Return of each commit when it was made, its offset, and where the partition ended then."""
    found: dict[Place, list[tuple[int, int, int]]] = defaultdict(list)
    for at in range(max(map(len, commits.values()), default=0)):
        asked = {place: of[at] for place, of in commits.items() if at < len(of)}
        times = [TopicPartition(topic, number, of.at_ms) for (topic, number), of in asked.items()]
        for answer in consumer.offsets_for_times(times, timeout=_ANSWER_S):
            place = answer.topic, answer.partition
            end = bounds[place][1] if answer.error is not None or answer.offset < 0 else answer.offset
            found[place].append((asked[place].at_ms, asked[place].offset, end))
    return found


def _commits(
    consumer: Consumer, groups: Sequence[str], servers: str, window: int, since_ms: int
) -> tuple[dict[tuple[str, str, int], deque[OffsetCommit]], str | None]:
    """Read the last commits of groups by group, topic and partition, oldest first; or why they cannot be read."""
    found: dict[tuple[str, str, int], deque[OffsetCommit]] = defaultdict(lambda: deque(maxlen=window))
    if not groups:
        return found, None
    try:
        there = consumer.list_topics(TOPIC, timeout=_ANSWER_S).topics[TOPIC]
        if there.error is not None:
            raise KafkaException(there.error)
        numbers = sorted({partition_of(group, len(there.partitions)) for group in groups})
        times = [TopicPartition(TOPIC, number, since_ms) for number in numbers]
        begin = {(TOPIC, of.partition): of.offset for of in consumer.offsets_for_times(times, timeout=_ANSWER_S)}
        bounds = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=_ANSWER_S)
            for place, offset in begin.items()
            if offset >= 0
        }
        wanted = set(groups)
        for message in _all(consumer, {place: begin[place] for place in bounds}, bounds):
            commit = parse(message.key(), message.value())
            if commit is not None and commit.group in wanted:
                found[commit.group, commit.topic, commit.partition].append(commit)
    except KafkaException as exc:
        error = exc.args[0]
        return {}, f"topic {TOPIC} of {servers} cannot be read: {error.str()}"
    return found, None


def _all(consumer: Consumer, begin: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]) -> Iterator[Message]:
    """Give all records up to the bounds; raises KafkaException where Kafka falls silent before."""
    left = {place for place, offset in begin.items() if offset < bounds[place][1]}
    if not left:
        return
    consumer.assign([TopicPartition(topic, number, begin[topic, number]) for topic, number in sorted(left)])
    heard_s = time.monotonic()
    while left:
        if time.monotonic() - heard_s > _SILENT_S:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"nothing was sent for {_SILENT_S:.0f} s"))  # noqa: SLF001
        for message in consumer.consume(1000, timeout=0.05):
            error = message.error()
            if error is not None and error.code() == NO_GROUP:
                continue
            if error is not None and error.code() != KafkaError._PARTITION_EOF:  # noqa: SLF001 - the client's public name
                raise KafkaException(error)
            heard_s = time.monotonic()
            place = message.topic() or "", message.partition() or 0
            if error is None:
                yield message
            if (message.offset() or 0) >= bounds[place][1] - (error is None):
                left.discard(place)
    consumer.unassign()
