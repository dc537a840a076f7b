"""Reads committed records of a topic, on the driver."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.client import ANSWER_WITHIN_S, FETCH_WAIT_MS, NO_GROUP, client_settings, unreachable
from spark_apply.events.kafka.offsets import partition_bounds

_POLL_S = 0.02  # a call waits so long for more than it has
_TAKEN = 1000
_FULL_WAIT_MS = 5
"""So long a client waits that has fetched enough ahead; by itself it is a second."""


def committed_records(source: ApplySource, topic: str, partitions: int) -> Iterator[Message]:
    """Yield the committed records of all partitions, in order within each, up to the end as it is now.

    Raises OperatorError when the broker does not answer.
    """
    unread = set(range(partitions))
    for message in _records(source, topic, dict.fromkeys(unread, 0)):
        if message.error() is None:
            yield message
        else:
            unread.discard(message.partition() or 0)
        if not unread:
            return


def records_between(
    source: ApplySource, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Message]:
    """Yield the committed records from `begins` up to `ends`, in order within each partition."""
    left = {number: end for number, end in ends.items() if begins.get(number, 0) < end}
    for message in _records(source, topic, {number: begins.get(number, 0) for number in left}):
        number, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is None and offset < left.get(number, 0):
            yield message
        if offset >= left.get(number, 0) - (error is None):
            left.pop(number, None)
        if not left:
            return


def keys_between(
    source: ApplySource, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[bytes]:
    """Yield the keys of the committed records from `begins` up to `ends`, both as `committed_ends` gives them."""
    for message in records_between(source, topic, begins, ends):
        key = message.key()
        if isinstance(key, bytes):
            yield key


@dataclass(frozen=True, slots=True)
class LogStart:
    """The beginning of a partition that is not compacted."""

    first: int
    """The records below it were deleted."""
    end: int
    at: dt.datetime | None
    """When its first record was written; None if nothing was deleted, or nothing is left."""


def log_starts(source: ApplySource, topic: str) -> dict[int, LogStart]:
    """Return the beginnings by partition. Raises OperatorError when the broker does not answer."""
    bounds = {number: bound for (_, number), bound in partition_bounds(source, [topic], "read_committed").items()}
    times: dict[int, dt.datetime] = {}
    asked = {number: first for number, (first, end) in bounds.items() if 0 < first < end}
    unread = set(asked)
    for message in _records(source, topic, asked):
        number = message.partition() or 0
        if message.error() is None and number in unread:
            _, written_ms = message.timestamp()
            times[number] = dt.datetime.fromtimestamp(written_ms / 1000, dt.UTC)
        unread.discard(number)
        if not unread:
            break
    return {number: LogStart(first, end, times.get(number)) for number, (first, end) in bounds.items()}


def _records(source: ApplySource, topic: str, begins: Mapping[int, int]) -> Iterator[Message]:
    """Yield committed records from these offsets on, and an end-of-partition error at each end; without end."""
    if not begins:
        return
    consumer = Consumer(
        {
            "fetch.queue.backoff.ms": _FULL_WAIT_MS,
            **client_settings(source),
            "group.id": f"{source.topic_prefix}.apply-read",  # the client requires one; nothing is committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": FETCH_WAIT_MS,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in begins.items()])
        answered_at = time.monotonic()
        while True:
            messages = consumer.consume(_TAKEN, _POLL_S)
            if not messages and time.monotonic() - answered_at > ANSWER_WITHIN_S:
                msg = f"topic {topic} cannot be read: no answer in {ANSWER_WITHIN_S:.0f} s"
                raise OperatorError(msg, hint="are the partitions’ leaders alive?")
            for message in messages:
                error = message.error()
                if error is not None and error.code() == NO_GROUP:
                    continue
                answered_at = time.monotonic()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise unreachable(source, KafkaException(error))
                yield message
    finally:
        consumer.close()
