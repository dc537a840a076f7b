"""The ledger of topics: what a connector relies on of each of its topics, recorded beside its position.

A topic has a record of its own, written only when something has changed, in the Kafka transaction that makes the change
good. So the position record stays small, however many tables there are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

import orjson

UNKNOWN: Final = -1
"""How much a topic has forgotten where that cannot be told: a partition has no leader just now."""


class Loss(Enum):
    """What has happened to a topic since it was recorded, in words."""

    GONE = "was deleted"
    MADE_AGAIN = "was deleted and made again"
    FORGOTTEN = "has had records deleted from it"
    CUT = "has lost its last records, which brokers had acknowledged"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicFacts:
    """What is relied on of one topic."""

    identity: str = ""
    """The broker's id of the topic, which a topic made again does not have; empty where the broker gives none."""
    partitions: int
    forgotten: int = 0
    """Sum of the first offsets of the partitions. Compaction does not move them: only deleting records does."""
    made: bool = field(default=False, compare=False)
    """This session has made the topic, because it was missing."""
    ends: tuple[int, ...] = field(default=(), compare=False)
    """Where each partition ended when it was looked at; empty where that cannot be told."""
    cut: bool = field(default=False, compare=False)
    """A partition ended before what was written into it."""

    def to_bytes(self) -> bytes:
        return orjson.dumps({"identity": self.identity, "partitions": self.partitions, "forgotten": self.forgotten})

    @classmethod
    def from_bytes(cls, record: bytes) -> TopicFacts:
        """Parse a record; members that a later release has added are left out. Raises ValueError for a damaged one."""
        try:
            of = orjson.loads(record)
            return cls(identity=str(of["identity"]), partitions=int(of["partitions"]), forgotten=int(of["forgotten"]))
        except (KeyError, TypeError) as exc:
            raise ValueError("no facts of a topic") from exc


def loss(recorded: TopicFacts | None, found: TopicFacts, *, keeps: bool) -> Loss | None:
    """Tell what a topic has lost since `recorded`; None: nothing. `keeps`: it forgets no record by age.

    Without a record, which older releases did not write, a topic that was missing is all that can be known.
    """
    if recorded is None:
        return Loss.GONE if found.made and keeps else None
    if found.made:
        return Loss.GONE
    if recorded.identity and found.identity and recorded.identity != found.identity:
        return Loss.MADE_AGAIN
    if found.cut:
        return Loss.CUT
    return Loss.FORGOTTEN if keeps and found.forgotten > recorded.forgotten != UNKNOWN else None


def spread_otherwise(recorded: TopicFacts | None, found: TopicFacts) -> bool:
    """Whether a topic is the recorded one with another number of partitions: keys have records in two of them."""
    if recorded is None or found.made or recorded.identity != found.identity:
        return False
    return recorded.partitions != found.partitions


def to_record(recorded: Mapping[str, TopicFacts], found: Mapping[str, TopicFacts]) -> dict[str, TopicFacts]:
    """Give the facts that are not recorded yet, by topic."""
    changed = {}
    for topic, facts in found.items():
        was = recorded.get(topic)
        if was is not None and was.identity == facts.identity and not facts.made:
            now = replace(facts, forgotten=max(facts.forgotten, was.forgotten))
        else:
            now = facts
        if now != was:
            changed[topic] = now
    return changed
