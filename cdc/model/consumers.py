"""What is known of the consumer groups on topics: facts of Kafka, not yet judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Place: TypeAlias = tuple[str, int]
"""A topic and a partition of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unread:
    """What a read_committed consumer that goes on from an offset would be given."""

    records: int
    exact: bool
    """False: there are at most so many; they were not all counted."""
    source_ms: int | None
    """When the oldest event of them was committed at the source; None: there is none, or it does not say."""
    written_ms: int | None
    """When the oldest record of them was written to Kafka; None: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionOffset:
    """Where a group stands in a partition."""

    topic: str
    partition: int
    offset: int
    begin: int
    """The first offset that is still there."""
    end: int
    """The last stable offset: a read_committed consumer is given nothing behind it."""
    unread: Unread
    commits: Sequence[tuple[int, int, int]] = ()
    """Of each commit seen: when, which offset, and where the partition ended then."""
    of_another: bool = False
    """Whether its offset lies behind all records there are: it is of a former topic of this name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupOffsets:
    """Where a group stands."""

    group: str
    state: str
    """As the broker calls it: Stable, Empty, …"""
    partitions: Sequence[PartitionOffset]


@dataclass(frozen=True, slots=True, kw_only=True)
class Groups:
    """The groups that have committed an offset of a topic."""

    groups: Sequence[GroupOffsets]
    unreadable: Mapping[str, str] = field(default_factory=dict)
    """Groups whose offsets cannot be read, and why."""
    no_commits: str | None = None
    """Why it is not known when offsets were committed; None: it is."""
    now_ms: int | None = None
    """The time by the brokers' clock; None: they do not tell."""
