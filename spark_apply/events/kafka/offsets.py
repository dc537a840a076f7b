"""Asks where topics begin and end, for readers of committed records and for others."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.client import ANSWER_WITHIN_S, ask_leader, client_settings, unreachable
from spark_apply.events.kafka.topics import existing_topics

_MARKERS_WITHIN_S = 5.0


def offset_bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return a partition's first offset, and its end as the consumer may see it. Raises KafkaException."""
    place = TopicPartition(topic, partition)
    return ask_leader(lambda: consumer.get_watermark_offsets(place, timeout=ANSWER_WITHIN_S))


def committed_ends(source: ApplySource, topic: str) -> dict[int, int]:
    """Return by partition the offset behind the last record that a read_committed reader sees now."""
    return {number: end for (_, number), end in _ends(source, [topic], "read_committed").items()}


def ends_by_topic(source: ApplySource, names: Sequence[str]) -> dict[str, dict[int, int]]:
    """Return by topic what `committed_ends` gives."""
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for (name, number), end in _ends(source, names, "read_committed").items():
        found[name][number] = end
    return found


def written_ends(source: ApplySource, topic: str) -> dict[int, int]:
    """Return by partition the high watermark: open transactions count."""
    return {number: end for (_, number), end in _ends(source, [topic], "read_uncommitted").items()}


def offset_ranges(source: ApplySource, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return first and end offsets by partition; the end is that of a read_committed reader."""
    found = {number: bounds for (_, number), bounds in partition_bounds(source, [topic], "read_committed").items()}
    return {number: first for number, (first, _) in found.items()}, {number: end for number, (_, end) in found.items()}


def await_markers(source: ApplySource, names: Sequence[str]) -> bool:
    """Wait until read_committed readers see all that was in the topics at the call; False if 5 s were not enough.

    A commit returns to its producer before its control records are in every partition: without this wait, a run with
    ``--once`` could miss the transaction just committed.
    """
    ends = _ends(source, names, "read_uncommitted")
    until = time.monotonic() + _MARKERS_WITHIN_S
    while True:
        stable = _ends(source, names, "read_committed")
        if all(stable[place] >= end for place, end in ends.items()):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)


def _ends(source: ApplySource, names: Sequence[str], isolation: str) -> dict[tuple[str, int], int]:
    return {place: end for place, (_, end) in partition_bounds(source, names, isolation).items()}


def partition_bounds(
    source: ApplySource, names: Sequence[str], isolation: str
) -> dict[tuple[str, int], tuple[int, int]]:
    """Return by topic and partition the first offset, and the end that readers of this isolation see."""
    known = existing_topics(source, names)
    group = {"group.id": f"{source.topic_prefix}.apply-ends", "isolation.level": isolation}
    consumer = Consumer({**client_settings(source), **group})
    try:
        places = [(name, number) for name in names for number in range(known.get(name, 0))]
        return {place: offset_bounds(consumer, *place) for place in places}
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    finally:
        consumer.close()
