"""Refuses to go on where topics no longer have what a job or a copy still has to read; nothing is skipped silently.

A compacted topic keeps the last record of each key for ever, but a delete only for ``delete.retention.ms``. A copy that
has not read a delete by then keeps the row permanently, whatever it reads later; only a rebuilt copy is free of it.
Offsets below the first one of a partition are missing for every reader.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from cdc.model.hints import rebuild
from spark_apply.events.kafka.client import ask_leader, client_settings, unreachable
from spark_apply.events.kafka.offsets import offset_bounds
from spark_apply.events.kafka.topics import existing_topics, topic_settings
from spark_apply.job.topics.identity import RESET
from spark_apply.model.clock import CLOCK
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Offsets, Store
from spark_apply.model.target_table import TargetTable

_ANSWER_WITHIN_S = 10.0
_RETENTION = "delete.retention.ms"
_GAP = "the history keeps what it has, and what its log forgot stays missing"
_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000


class MissedDeletesError(OperatorError):
    """A copy may have rows whose deletes its topic has no more. One that is made again from the topic has none."""


@dataclass(frozen=True, slots=True)
class Extent:
    """The offsets that a partition still has."""

    first: int
    end: int
    """Behind the last committed record."""
    kept: int
    """From this offset on, no delete was removed."""
    retention_ms: int


def extents(config: ApplySource, topics: Sequence[str], *, within: float = 1.0) -> dict[str, dict[int, Extent]]:
    """Read the extents by topic and partition, as if deletes were kept for `within` that part of their time.

    Raises OperatorError when the broker does not answer.
    """
    if not topics:
        return {}
    retention, compacted = kept_deletes(config, topics)
    known = existing_topics(config, topics)
    now_ms = CLOCK.later_ms()  # set back, it would say that deletes are there which are gone
    group = {"group.id": f"{config.topic_prefix}.apply-extents", "isolation.level": "read_committed"}
    consumer = Consumer({**client_settings(config), **group})
    found: dict[str, dict[int, Extent]] = {topic: {} for topic in topics}
    try:
        asked = [
            TopicPartition(topic, number, max(0, now_ms - int(retention[topic] * within)))  # below 0 it is no time
            for topic in topics
            for number in range(known[topic])
        ]
        for at in ask_leader(lambda: consumer.offsets_for_times(asked, timeout=_ANSWER_WITHIN_S)):
            first, end = offset_bounds(consumer, at.topic, at.partition)
            kept = kept_from(first, end, at.offset, compacted=compacted[at.topic])
            found[at.topic][at.partition] = Extent(first, end, kept, retention[at.topic])
    except KafkaException as exc:
        raise unreachable(config, exc) from exc
    finally:
        consumer.close()
    return found


def kept_from(first: int, end: int, young: int, *, compacted: bool) -> int:
    """Return the offset from which a partition has all deletes; `young`: first record within the retention, or -1."""
    if not compacted:
        return first
    return young if young >= 0 else end


def kept_deletes(config: ApplySource, topics: Sequence[str]) -> tuple[dict[str, int], dict[str, bool]]:
    """Return by topic how long deletes are kept, and whether it is compacted: otherwise none is removed."""
    found = topic_settings(config, topics)
    return (
        {topic: int(settings[_RETENTION]) for topic, settings in found.items()},
        {topic: "compact" in settings["cleanup.policy"] for topic, settings in found.items()},
    )


def missing_offsets(begin: Ends, there: Mapping[str, Mapping[int, Extent]]) -> list[tuple[str, str]]:
    """Return topics in which offsets from `begin` on are missing or that were recreated, each with what is missing."""
    told = []
    for topic, partitions in sorted(there.items()):
        for number, extent in sorted(partitions.items()):
            at = begin.get(topic, {}).get(number)
            if at is not None and at < extent.first:
                what = f"topic {topic}, partition {number}: offsets {at} to {extent.first - 1} were deleted"
                told.append((topic, what))
            elif at is not None and at > extent.end:
                what = f"topic {topic}, partition {number}: it ends at {extent.end}, and {at} was read: recreated"
                told.append((topic, what))
    return told


def require_offsets(config: ApplySource, begin: Ends | None, *, logs: Collection[str]) -> None:
    """Raise OperatorError if topics miss offsets from `begin` on; `logs` are the log topics of histories."""
    if begin is None:
        return
    missing = missing_offsets(begin, extents(config, sorted(begin)))
    if missing:
        what = "; ".join(what for _, what in missing)
        hint = recovery_command([topic for topic, _ in missing], logs)
        raise OperatorError(f"what the job would read next is gone: {what}", hint=hint)


def recovery_command(topics: Collection[str], logs: Collection[str]) -> str:
    """Return the command for missing offsets of these topics: rebuild the copies, and begin with a new checkpoint.

    A history keeps its copy, which has more than its log.
    """
    if topics and set(topics) <= set(logs):
        return f"{RESET} --lose-history  # {_GAP}"
    return f"cdc rebuild APPLY.yaml && {RESET}  # copies from what the topics have, and a new start"


def held_offsets(store: Store, table: TargetTable) -> Offsets:
    """Return the offsets up to which a copy holds its topic; empty if unknown."""
    due = store.due(table)
    if due is not None:
        return due.begin
    mark = store.mark(table)
    return mark.ends if mark is not None else {}


def missed_deletes(copy: str, has: Offsets, there: Mapping[int, Extent]) -> str | None:
    """Say why a copy that has its topic up to `has` may miss deletes or more; None if it misses nothing."""
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


def require_deletes(
    config: ApplySource,
    tables: Iterable[tuple[TargetTable, Mapping[str, Store]]],
    held: MutableMapping[tuple[str, str], Offsets] | None = None,
) -> None:
    """Raise MissedDeletesError for a copy that may miss deletes which its topic no longer has.

    `held` takes what each copy has, by topic and store.
    """
    copies = [(table, name, held_offsets(store, table)) for table, stores in tables for name, store in stores.items()]
    if held is not None:
        held.update({(table.topic, name): has for table, name, has in copies})
    behind = [copy for copy in copies if copy[2]]
    if not behind:
        return
    there = extents(config, sorted({table.topic for table, _, _ in behind}))
    for table, name, has in behind:
        why = missed_deletes(f"{table.qualified} in {name}", has, there[table.topic])
        if why is not None:
            raise MissedDeletesError(why, hint=repair_command(table, name))


def repair_command(table: TargetTable, store: str) -> str:
    """Return the command for a copy with `missed_deletes`; a history keeps its copy, which has more than its log."""
    return f"cdc apply APPLY.yaml --lose-history  # {_GAP}" if table.history else rebuild_command(table, store)


def rebuild_command(table: TargetTable, store: str) -> str:
    """Return the command that rebuilds a copy."""
    return f"{rebuild(table.qualified)} --store {store}"


def span(span_ms: int) -> str:
    """Format a length of time for people."""
    if span_ms >= _DAY_MS:
        return f"{span_ms / _DAY_MS:.3g} days"
    return f"{span_ms / _HOUR_MS:.3g} hours" if span_ms >= _HOUR_MS else f"{span_ms / 1000:g} seconds"
