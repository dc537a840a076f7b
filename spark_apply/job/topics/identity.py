"""Refuses to go on with a copy of a topic that was deleted and made again, or that another Kafka cluster has.

The new topic's offsets say nothing of the old one's. If it has grown past the old end, nothing else shows that it is
another: the job would go on in the middle, and rows that only the old topic had would stay. In the same way positions
may begin again from below, and a copy would take new events for old ones. So a copy is not continued: it is rebuilt,
which begins with no rows and at the new topic's first offset.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from cdc.model.hints import rebuild
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.topic_identity import TopicAsker, TopicNow, difference, differing
from spark_apply.model.store import Store
from spark_apply.model.target_table import TargetTable

AWAY_S = 120.0
"""So long brokers may not answer before the job ends, as in `spark_apply.job.watermarks.barriers`."""

Answer = TypeVar("Answer")

DELETED = (
    "A fresh snapshot of the connector writes the topic again, and a new start of the job reads it. For a table that "
    "is gone for good, let tables name the others alone"
)
RESET = "cdc apply APPLY.yaml --reset-checkpoint"


class OtherTopicError(OperatorError):
    """A topic is not the one that was read under its name."""


def held_topic(store: Store, table: TargetTable) -> str:
    """Return the identity of the topic that a copy was made of; empty if it is not known."""
    due = store.due(table)
    if due is not None:
        return due.topic
    mark = store.mark(table)
    return mark.topic if mark is not None else ""


def of_another_topic(table: TargetTable, name: str, store: Store, now: str) -> str | None:
    """Say that a copy was made of another topic than there is now; None if it was not."""
    how = difference(held_topic(store, table), now)
    return None if how is None else f"{table.qualified} in {name} is a copy of another topic {table.topic}: {how}"


def way_out(table: TargetTable) -> str:
    """Return the command for a copy of another topic; a history keeps its copy, which has more than its log."""
    if table.history:
        return f"{RESET} --lose-history  # the history keeps what it has, and goes on with what its log has now"
    return f"{rebuild(table.qualified)} && {RESET}  # from the new topic’s beginning"


def require_same_topics(now: Mapping[str, TopicNow], tables: Iterable[tuple[TargetTable, Mapping[str, Store]]]) -> None:
    """Raise OtherTopicError for the first copy that was made of another topic."""
    for table, stores in tables:
        topic = now.get(table.topic)
        for name, store in stores.items() if topic is not None else ():
            why = of_another_topic(table, name, store, topic.identity) if topic is not None else None
            if why is not None:
                raise OtherTopicError(why, hint=way_out(table))


def patiently(ask: Callable[[], Answer], within_s: float = AWAY_S) -> Answer:
    """Ask, and wait for brokers that do not answer, up to two minutes. Raises OperatorError."""
    until = time.monotonic() + within_s
    while True:
        try:
            return ask()
        except NoAnswerError:
            if time.monotonic() > until:
                raise
            time.sleep(1)


def of_another(checkpoint: str, topic: str, how: str) -> OtherTopicError:
    """Return the error of a checkpoint whose offsets are those of another topic."""
    msg = f"checkpoint {checkpoint} has offsets of another topic {topic}: {how}"
    return OtherTopicError(msg, hint=f"{RESET}  # the topics are read from their beginning")


@dataclass(slots=True)
class FollowedTopics:
    """The topics that a job follows, as they were when it began."""

    source: ApplySource
    tables: Mapping[str, TargetTable]
    """By topic."""
    begun: dict[str, TopicNow] = field(default_factory=dict)
    _asker: TopicAsker | None = None

    def begin(self) -> None:
        """Ask what the topics are. Raises OperatorError when the broker does not answer."""
        self._asker = TopicAsker(self.source)
        self.begun = self._asker.now(self.tables)

    @property
    def identities(self) -> dict[str, str]:
        return {name: topic.identity for name, topic in self.begun.items()}

    def require(self, within_s: float = AWAY_S) -> None:
        """Raise OtherTopicError if a topic is gone, or another by now; wait for absent brokers `within_s`.

        Asked after a batch was read and before it counts: what a batch has of a new topic is newer events of the same
        table, but its offsets must not be taken for those of the old one.
        """
        if self._asker is None:
            return
        asker = self._asker
        there = patiently(lambda: asker.now(self.tables), within_s)
        now = {name: topic.identity for name, topic in there.items()}
        for topic, how in differing(self.identities, now).items():
            table = self.tables[topic]
            msg = f"topic {topic} of {table.qualified} is another one than the job has followed: {how}"
            raise OtherTopicError(msg, hint=way_out(table))
        for topic in sorted(self.begun.keys() - there.keys()):
            msg = f"topic {topic} of {self.tables[topic].qualified} was deleted while the job ran"
            raise OtherTopicError(msg, hint=f"start again: the other tables go on. {DELETED}")

    def compare(self, noted: Mapping[str, tuple[str, int]], checkpoint: str) -> list[str]:
        """Compare with what a checkpoint has noted; return what is worth telling.

        Raises OtherTopicError if its offsets are those of other topics.
        """
        known = {name: identity for name, (identity, _) in noted.items()}
        for topic, how in differing(known, self.identities).items():
            raise of_another(checkpoint, topic, how)
        return [
            f"topic {name} has {topic.partitions} partitions, and had {noted[name][1]}: the new ones are read, too"
            for name, topic in sorted(self.begun.items())
            if name in noted and topic.partitions > noted[name][1]
        ]
