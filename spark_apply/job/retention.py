"""What topics no longer have of what a job or a copy has still to read: refused, never skipped in silence.

A topic that is compacted keeps the last record of each key for ever, but a delete only for ``delete.retention.ms``. A
copy that has not read a delete by then keeps the row for good, whatever it reads later; only one made from nothing is
free of it. Offsets below the first one of a partition are gone for every reader.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from cdc.config.config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events import kafka_source
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Offsets, Store
from spark_apply.model.target_table import TargetTable
from spark_apply.spark.paths import removal

_ANSWER_WITHIN_S = 10.0
_RETENTION = "delete.retention.ms"
_GAP = "the history keeps what it has, and lacks for good what its log forgot"
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


@dataclass(frozen=True, slots=True)
class Extent:
    """What a partition has."""

    first: int
    end: int
    """Behind the last committed record."""
    kept: int
    """All deletes from this offset on are there."""
    retention_ms: int


def extents(config: ApplySource, topics: Sequence[str]) -> dict[str, dict[int, Extent]]:
    """By topic and partition. Raises OperatorError when the broker does not answer."""
    if not topics:
        return {}
    retention, compacted = _retention(config, topics)
    now_ms = time.time_ns() // 1_000_000
    group = {"group.id": f"{config.topic_prefix}.apply-extents", "isolation.level": "read_committed"}
    consumer = Consumer({**kafka_source.client(config), **group})
    found: dict[str, dict[int, Extent]] = {topic: {} for topic in topics}
    try:
        known = consumer.list_topics(timeout=_ANSWER_WITHIN_S).topics
        asked = [
            TopicPartition(topic, number, now_ms - retention[topic])
            for topic in topics
            for number in known[topic].partitions
        ]
        for at in kafka_source.led(lambda: consumer.offsets_for_times(asked, timeout=_ANSWER_WITHIN_S)):
            first, end = kafka_source.watermarks(consumer, at.topic, at.partition)
            kept = kept_from(first, end, at.offset, compacted=compacted[at.topic])
            found[at.topic][at.partition] = Extent(first, end, kept, retention[at.topic])
    except KafkaException as exc:
        raise kafka_source.unreachable(config, exc) from exc
    finally:
        consumer.close()
    return found


def kept_from(first: int, end: int, young: int, *, compacted: bool) -> int:
    """From where on a partition has all deletes: `young` is the first record within the retention, -1 for none."""
    if not compacted:
        return first
    return young if young >= 0 else end


def _retention(config: ApplySource, topics: Sequence[str]) -> tuple[dict[str, int], dict[str, bool]]:
    """How long deletes are kept, and whether compaction forgets them at all: a log keeps all that it has."""
    admin = AdminClient(kafka_source.client(config))
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, topic) for topic in topics])
    try:
        found = {of.name: future.result(_ANSWER_WITHIN_S) for of, future in asked.items()}
    except KafkaException as exc:
        raise kafka_source.unreachable(config, exc) from exc
    return (
        {topic: int(settings[_RETENTION].value) for topic, settings in found.items()},
        {topic: "compact" in str(settings["cleanup.policy"].value) for topic, settings in found.items()},
    )


def gone(begin: Ends, there: Mapping[str, Mapping[int, Extent]]) -> list[tuple[str, str]]:
    """Topics in which offsets from `begin` on were deleted, or which were made anew; each with what is missing."""
    told = []
    for topic, partitions in sorted(there.items()):
        for number, extent in sorted(partitions.items()):
            at = begin.get(topic, {}).get(number)
            if at is not None and at < extent.first:
                what = f"topic {topic}, partition {number}: offsets {at} to {extent.first - 1} were deleted"
                told.append((topic, what))
            elif at is not None and at > extent.end:
                what = f"topic {topic}, partition {number}: it ends at {extent.end}, and {at} was read: made anew"
                told.append((topic, what))
    return told


def require_offsets(config: ApplySource, begin: Ends | None, *, checkpoint: str, logs: Collection[str]) -> None:
    """Raises OperatorError where the topics no longer have all from `begin` on; `logs` are those histories are of."""
    if begin is None:
        return
    missing = gone(begin, extents(config, sorted(begin)))
    if missing:
        what = "; ".join(what for _, what in missing)
        hint = way_out(checkpoint, [topic for topic, _ in missing], logs)
        raise OperatorError(f"what the job would read next is gone: {what}", hint=hint)


def way_out(checkpoint: str, topics: Collection[str], logs: Collection[str]) -> str:
    """What mends offsets of these topics that are gone: whole copies, and a job that does not ask for them again.

    A history keeps its copy, which has more than its log.
    """
    if topics and set(topics) <= set(logs):
        return f"{removal(checkpoint)} && cdc apply APPLY.yaml --lose-history  # {_GAP}"
    return f"cdc rebuild APPLY.yaml && {removal(checkpoint)}  # copies from what the topics have, and a new start"


def held(store: Store, table: TargetTable) -> Offsets:
    """Up to where a copy is known to hold its topic; empty where nothing is known."""
    due = store.due(table)
    if due is not None:
        return due.begin
    mark = store.mark(table)
    return mark.ends if mark is not None else {}


def away(copy: str, has: Offsets, there: Mapping[int, Extent]) -> str | None:
    """Why a copy that has its topic up to `has` may miss deletes, or more; None if it misses nothing."""
    for number, extent in sorted(there.items()):
        at = has.get(number)
        if at is not None and at < extent.first:
            where = f"offsets {at} to {extent.first - 1} of its topic, partition {number}"
            return f"{copy}: {where}, were deleted before it had them"
        if at is not None and at < min(extent.kept, extent.end):
            return (
                f"{copy} was not kept up for longer than its topic keeps deletes ({_RETENTION}, "
                f"{span(extent.retention_ms)}): rows that were deleted may stay in it for good"
            )
    return None


def require_deletes(config: ApplySource, tables: Iterable[tuple[TargetTable, Mapping[str, Store]]]) -> None:
    """Raises OperatorError for a copy that may miss deletes which its topic no longer has."""
    copies = [(table, name, held(store, table)) for table, stores in tables for name, store in stores.items()]
    behind = [copy for copy in copies if copy[2]]
    if not behind:
        return
    there = extents(config, sorted({table.topic for table, _, _ in behind}))
    for table, name, has in behind:
        why = away(f"{table.qualified} in {name}", has, there[table.topic])
        if why is not None:
            raise OperatorError(why, hint=mending(table, name))


def mending(table: TargetTable, store: str) -> str:
    """The command that helps where a copy is `away`; of a history the copy is kept, which has more than its log."""
    return f"cdc apply APPLY.yaml --lose-history  # {_GAP}" if table.history else rebuild(table, store)


def rebuild(table: TargetTable, store: str) -> str:
    """The command that makes a copy anew."""
    return f"cdc rebuild APPLY.yaml --table {table.qualified} --store {store}"


def span(span_ms: int) -> str:
    """A length of time, for people."""
    if span_ms >= _DAY_MS:
        return f"{span_ms / _DAY_MS:.3g} days"
    return f"{span_ms / _HOUR_MS:.3g} hours" if span_ms >= _HOUR_MS else f"{span_ms / 1000:g} seconds"
