"""Says how complete a copy is: up to which source position it holds every event. Pure.

Claim
=====
A copy that says `Complete(connector, C)` has taken in every event of its table whose position sorts before C. Of later
source transactions it may hold a part. Positions of two connectors cannot be compared; each is complete by itself.

Why it is right
===============
1. *Whole transactions.* A connector writes one Kafka transaction after the other. Each holds whole source transactions
   and, as its last record, a `State`. Every source transaction below `State.commit` is in that Kafka transaction or in
   an earlier one.
2. *Records before the commit.* The producer asks for a commit only when the brokers have acknowledged all records of
   the transaction. So when a read_committed reader sees the State, every event below its `commit` C has an offset below
   the high watermark of its partition. The control records of the commit may still be missing in some partitions:
   that a record is visible in one partition says nothing about the others.
3. *The barrier is taken after the State.* H[p] is the high watermark of partition p, asked for after the State was
   seen. High watermarks do not fall (as long as `unclean.leader.election.enable` is false, Kafka's default), so by 2
   every event below C has an offset below H[p] of its partition. The H of all partitions are the barrier of C.
4. *A batch ends before an open transaction.* Spark reads read_committed: the end offset E[p] of a batch is at most the
   last stable offset of p. Where E[p] >= H[p], every transaction with records below H[p] is committed or aborted there,
   and the batches up to E have delivered every committed record below H[p]. So E >= H in **all** partitions means that
   every event below C was read.
5. *The mark follows the rows.* A store is told C when it holds the batches up to E, or in the same transaction. A
   crash between the two leaves a mark that lags; no crash leaves one that leads.

Only offsets are compared, never numbers of records. Aborted records, control records and records of later transactions
have offsets too: counting them in H can delay a barrier and cannot let it pass early. E reaches the offset behind a
control record, as the last stable offset does, so no barrier is out of reach. Where a State comes without events, H
stays and C grows: a copy of an idle source stays complete up to now.

Compaction removes an event only for a later one of the same key in the same partition. If the later one lies below E
too, the copy has the newer event and has lost nothing. If it lies behind E, point 4 does not hold for the removed
event: until a later batch reads the newer one, the copy has the key as older events left it, though it says C. This
takes a job that lags so far that the broker has compacted records the job has not read; `min.compaction.lag.ms` above
the lag excludes it. What would last is refused by `spark_apply.job.topics.retention` and `compacted_deletes`: deletes
that are gone before they were read.

Not in the claim: events in the dead-letter topic, which are in no table's topic, and events in quarantine, which the
position passes. `test_what_is_said_to_be_complete_is_there` is a model of points 2 to 4.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from cdc.model.change import Position
from cdc.model.state import Phase, State

Ends = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset behind the last record read."""

BEHIND: Final = "behind"
"""What a view job's `State.offset` has where views could not be taken to its position: their relations."""

LOST = -1
"""In place of a version: the copy has lost columns of rows that are there, and waits to be made again."""

_MOST = 64


@dataclass(frozen=True, slots=True)
class Complete:
    """Says up to where a copy holds everything of one connector."""

    connector: str
    position: str
    """Every event of the table that sorts before it is in the copy."""
    source_ms: int | None
    """A time in ms since 1970: what was committed at the source until then is in the copy; None: not known."""
    published_ms: int

    @property
    def late_before(self) -> str:
        """An event that sorts before it can only be late: the copy has taken it in already, or a newer one of its key.

        It is one commit position lower than `position`, because rows of an incremental snapshot have the position just
        before the next commit, and are not late. Of events of that very commit, offsets alone say whether they are.
        """
        at = Position.parse(self.position)
        return Position(at.epoch, max(at.commit - 1, 0), 0).text


@dataclass(frozen=True, slots=True)
class Mark:
    """The watermark of one table's copy. It is kept in the store with the copy; it may lag the rows and never leads."""

    ends: Mapping[int, int]
    """By partition of the table's topic, an end offset: the records below it are in the copy."""
    complete: Complete | None
    """None while the topic is read from its beginning, or the source's table is read for the first time."""
    topic: str = ""
    """The identity of the topic that the offsets are of; empty if it is not known."""
    version: int = 0
    """The version of the source's table whose columns the copy has; 0: not known."""
    columns: Mapping[str, int | str] = field(default_factory=dict, compare=False)
    """By what the store knows them, as far as it does: another column of the name has another. The store adds them, so
    that a mark without them is the same."""
    by: str = field(default="", compare=False)
    """The run that has written it (`spark_apply.model.ownership`); empty: not known."""

    def to_json(self) -> str:
        complete = asdict(self.complete) if self.complete else None
        about = {"ends": self.ends, "complete": complete, "topic": self.topic, "version": self.version}
        known = {name: value for name, value in (("columns", self.columns), ("by", self.by)) if value}
        return json.dumps(about | known, sort_keys=True)

    @classmethod
    def from_json(cls, text: str | bytes) -> Mark:
        """Reads what `to_json` wrote; other members are ignored."""
        found: Mapping[str, Any] = json.loads(text)
        complete = Complete(**found["complete"]) if found["complete"] else None
        ends = {int(partition): end for partition, end in found["ends"].items()}
        columns = {**found.get("columns", {})}
        topic, version, by = str(found.get("topic", "")), int(found.get("version", 0)), str(found.get("by", ""))
        return cls(ends, complete, topic, version, columns, by)

    def holds(self, ends: Mapping[int, int]) -> bool:
        """Whether the copy has all records below `ends`."""
        return all(self.ends.get(partition, 0) >= end for partition, end in ends.items())


NEW: Final = Mark({}, None)
"""What a copy without rows is made with: one that has rows and no mark is of an unknown time."""


@dataclass(frozen=True, slots=True)
class TakenIn:
    """What a copy holds of its topic for certain: an event that is part of it comes again, and says nothing new."""

    before: str
    """Events that sort before this position: see `Complete.late_before`."""
    ends: Mapping[int, int]
    """By partition, records below these offsets; none of a partition from which no such record is read again."""

    def has(self, partition: int, offset: int, position: str) -> bool:
        """Whether an event is part of it."""
        return position < self.before or offset < self.ends.get(partition, 0)


NOTHING: Final = TakenIn("", {})


@dataclass(frozen=True, slots=True)
class Barrier:
    """A State that was seen, and the high watermarks of its connector's topics, asked for after that."""

    connector: str
    tables: frozenset[str]
    """The tables it completes, as ``schema.table``, without those whose rows are still being read."""
    position: str
    source_ms: int | None
    highs: Ends
    gone: frozenset[str] = frozenset()
    """The tables that are followed and do not go on: their connector captures them no more, or has stopped the view."""

    def passed(self, ends: Ends) -> bool:
        """Whether batches up to `ends` have read everything before it."""
        return all(
            ends.get(topic, {}).get(partition, 0) >= high
            for topic, highs in self.highs.items()
            for partition, high in highs.items()
        )


class Barriers:
    """Holds the barriers that are not passed yet, and of each connector the last one that is.

    One thread adds, others ask.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead: dict[str, list[Barrier]] = {}
        self._passed: dict[str, Barrier] = {}
        self.news = threading.Event()
        """Set with each new barrier: it is worth asking again."""

    def add(self, barrier: Barrier) -> None:
        """Add a barrier that was made after all earlier ones of its connector."""
        with self._lock:
            ahead = self._ahead.setdefault(barrier.connector, [])
            ahead.append(barrier)
            if len(ahead) > _MOST:  # the job lags far: every other barrier is enough
                del ahead[1::2]
        self.news.set()

    def ahead(self, connector: str) -> bool:
        """Whether there is a newer State than the last one that was passed."""
        with self._lock:
            return bool(self._ahead.get(connector))

    def passed(self, ends: Ends) -> dict[str, Barrier]:
        """Return by connector the newest barrier that batches up to `ends` have passed; `ends` never go back."""
        with self._lock:
            for connector, ahead in self._ahead.items():
                while ahead and ahead[0].passed(ends):
                    self._passed[connector] = ahead.pop(0)
            return dict(self._passed)


def kept_up(state: State) -> frozenset[str]:
    """Return the tables that go on with a State; a view that is stopped stays where it was."""
    behind: Iterable[str] = state.offset.get(BEHIND, ())  # type: ignore[assignment]
    return frozenset(state.tables).difference(behind)


def complete_tables(state: State, tables: Iterable[str]) -> frozenset[str] | None:
    """Return those of `tables` whose topics hold every event below `state`; None while the first snapshot runs.

    An incremental snapshot that is required (the table was added, rewritten, or lies behind a gap) leaves its table out
    until it ends. One that was only requested does not: the table's events come all the while.
    """
    if state.phase is not Phase.STREAM:
        return None
    there = kept_up(state)
    return frozenset(
        table
        for table in tables
        if table in there and not (table in state.reading and state.reading[table]["required"])
    )


def position_of(state: State) -> str:
    """Return the position that separates the events up to `state`, which sort before it, from those after it."""
    return Position(state.epoch, state.commit, 0).text


def moved_on(had: Mapping[int, int], ends: Mapping[int, int]) -> Mapping[int, int]:
    """Return the greater offset of both for each partition."""
    return {number: max(had.get(number, 0), ends.get(number, 0)) for number in {*had, *ends}}


def lowest(marks: Iterable[Mark | None]) -> Complete | None:
    """Return up to where all these copies are complete; None if one of them is not."""
    found = [mark.complete if mark is not None else None for mark in marks]
    there = [complete for complete in found if complete is not None]
    return min(there, key=lambda complete: complete.position) if there and len(there) == len(found) else None
