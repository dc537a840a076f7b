"""Tells how the consumer groups on a connector's topics do: lag in records and in seconds, and a status."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.config.table_patterns import splits
from cdc.encode.table_log import log_of
from cdc.model.consumers import GroupOffsets, Groups, PartitionOffset
from cdc.model.errors import CdcError
from cdc.model.state import State
from cdc.monitor.burrow import WINDOW, WINDOW_S, Commit, Status, judge, worst

_MARKER: Final = 1
"""Behind the last record of a partition there is the marker of its transaction, which no consumer is given."""
_OF_LOGS: Final = ("message", "transaction", "dead-letter")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStanding:
    """How a group does in a partition."""

    partition: int
    offset: int
    end: int
    records: int
    exact: bool
    """False: there are at most so many records."""
    seconds: float | None
    """How long ago the oldest unread event was committed at the source; 0 with nothing unread; None: not known."""
    status: Status
    note: str | None
    """What is wrong with the offset itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicStanding:
    """How a group does in a topic."""

    topic: str
    records: int
    exact: bool
    seconds: float | None
    status: Status
    partitions: Sequence[PartitionStanding]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStanding:
    """How a group does."""

    group: str
    state: str
    records: int
    exact: bool
    seconds: float | None
    status: Status
    topics: Sequence[TopicStanding]


@dataclass(frozen=True, slots=True, kw_only=True)
class Consumers:
    """The groups on a connector's topics."""

    connector: str
    groups: Sequence[GroupStanding]
    unreadable: Mapping[str, str]
    no_commits: str | None
    """Why no status can be told of a group that is behind; None: it can."""

    def as_json(self) -> dict[str, Any]:
        """Return the stable JSON of `cdc consumers --json`."""
        return asdict(self)


def read_consumers(config: ConnectorConfig, state: State) -> Consumers:
    """Ask Kafka for the groups on the topics of a connector. Raises CdcError while it does not answer."""
    groups: Groups = registry.part("sinks.consumers.groups:read_groups")(
        config.sink, topics_of(config, state), window=WINDOW, window_s=WINDOW_S
    )
    behind = any(of.unread.records for group in groups.groups for of in group.partitions)
    source_now_ms = _source_now_ms(config, state) if behind else None
    now_ms = groups.now_ms or time.time_ns() // 1_000_000
    return judged(config.name, groups, now_ms=now_ms, source_now_ms=source_now_ms)


def topics_of(config: ConnectorConfig, state: State) -> list[str]:
    """Name the topics that a connector publishes: of tables, their logs, messages, transactions, an outbox's."""
    topic_of = registry.part("sinks.topics.records.bulk:topic_of")
    of = [(table, topic_of(config.sink, *each)) for table in state.tables for each in splits(table)]
    topics = dict.fromkeys(topic for _, topic in of)  # tables may share one
    log = config.sink.log
    logs = [log_of(topic) for table, topic in of if log and log.has(table)]
    log_topic = registry.part("sinks.topics.names:log_topic")
    beside = [log_topic(config.sink.prefix, config.name, name) for name in _OF_LOGS if name in config.logs]
    return [*topics, *logs, *beside, *_routed(config)]


def _routed(config: ConnectorConfig) -> list[str]:
    if config.source.outbox is None:
        return []
    begin = f"{config.source.outbox.topic_prefix}."
    with registry.part("sinks.topics.topics:Topics")(config.sink.bootstrap_servers, config.sink.options) as topics:
        return sorted(name for name in topics.names() if name.startswith(begin))


def _source_now_ms(config: ConnectorConfig, state: State) -> int | None:
    """Return the time by the source's clock, as `cdc status` does; None where the server does not say."""
    try:
        found: int | None = registry.standing(config)(config, state).get("clock_ms")
    except CdcError:
        return None
    return found


def judged(connector: str, groups: Groups, *, now_ms: int, source_now_ms: int | None) -> Consumers:
    """Judge all groups; `source_now_ms` is the time by the source's clock, where that is known."""
    clock_ms = now_ms if source_now_ms is None else source_now_ms
    told = groups.no_commits is None
    return Consumers(
        connector=connector,
        groups=[_group(of, now_ms=now_ms, clock_ms=clock_ms, told=told) for of in groups.groups],
        unreadable=dict(groups.unreadable),
        no_commits=groups.no_commits,
    )


def _group(of: GroupOffsets, *, now_ms: int, clock_ms: int, told: bool) -> GroupStanding:
    by_topic: dict[str, list[PartitionStanding]] = {}
    for each in of.partitions:
        found = _partition(each, now_ms=now_ms, clock_ms=clock_ms, told=told)
        by_topic.setdefault(each.topic, []).append(found)
    topics = [
        TopicStanding(topic=name, **_together(found), partitions=found) for name, found in sorted(by_topic.items())
    ]
    return GroupStanding(group=of.group, state=of.state, **_together(topics), topics=topics)


def _together(parts: Iterable[PartitionStanding | TopicStanding]) -> dict[str, Any]:
    found = list(parts)
    known = [part.seconds for part in found if part.seconds is not None]
    return {
        "records": sum(part.records for part in found),
        "exact": all(part.exact for part in found),
        "seconds": max(known) if known else None,
        "status": worst(part.status for part in found),
    }


def _partition(of: PartitionOffset, *, now_ms: int, clock_ms: int, told: bool) -> PartitionStanding:
    commits = [Commit(at_ms, offset, _lag(end - offset)) for at_ms, offset, end in of.commits]
    unread = of.unread
    since_ms = unread.source_ms if unread.source_ms is not None else unread.written_ms
    seconds = None if since_ms is None else round(max(0, clock_ms - since_ms) / 1000, 1)
    status = judge(commits, unread=unread.records, unread_since_ms=unread.written_ms, now_ms=now_ms)
    if of.of_another:  # an empty topic, too: what comes lies before its offset
        status = worst((status, Status.UNKNOWN))
    return PartitionStanding(
        partition=of.partition,
        offset=of.offset,
        end=of.end,
        records=unread.records,
        exact=unread.exact,
        seconds=seconds if unread.records else 0.0,
        status=status if told or not unread.records else Status.UNKNOWN,
        note=_note(of),
    )


def _lag(offsets: int) -> int:
    return 0 if offsets <= _MARKER else offsets


def _note(of: PartitionOffset) -> str | None:
    if of.of_another:
        return "its offset lies behind the end: the topic was made again, and none of this one is read"
    if of.offset < of.begin:
        return "records that it has not read are gone: compaction or retention has taken them"
    return None
