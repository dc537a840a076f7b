"""How far a copy is complete: which source transactions it holds to the last row. Pure.

**Why a barrier is enough.** A Kafka transaction of a connector holds whole source transactions and, written last, the
State after them; all its records are in the partitions before its commit is asked for, though the commit's markers
reach the partitions one after the other. So once a State with `commit` C is visible read_committed, every event of
every source transaction below C has an offset below the high watermark H that its partition has *from then on*:
that State's own Kafka transaction and all before it lie there whole. Those H are the State's barrier. Spark reads
read_committed, so a batch's end offsets E never pass a transaction that is still open: where E >= H in every
partition, everything below C has been read, and once the batches up to E are in a store, C is complete there. Nothing
is waited for but H itself; H may count records that came later, which delays and never leads.

Positions of two connectors cannot be compared, so each is complete by itself.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from cdc.model.change import Position
from cdc.model.state import Phase, State

Ends = Mapping[str, Mapping[int, int]]
"""By topic and partition, the offset behind the last record read."""

_MOST = 64


@dataclass(frozen=True, slots=True)
class Complete:
    """What a copy holds of one connector."""

    connector: str
    position: str
    """Every event that sorts before it and belongs to the copy is in it; none of a transaction is missing."""
    source_ms: int | None
    """A time, in ms since 1970, up to which all that was committed at the source is in the copy; None: not known."""
    published_ms: int

    @property
    def settled(self) -> str:
        """Events that sort before it can only be late: what they tell is in the copy, or was deleted from it since.

        Those of re-read rows have the position just before the next commit's, and are not late.
        """
        at = Position.parse(self.position)
        return Position(at.epoch, max(at.commit - 1, 0), 0).text


@dataclass(frozen=True, slots=True)
class Mark:
    """What a copy of one table says of itself, kept inside the store with it: it may lag the contents, never lead."""

    ends: Mapping[int, int]
    """By partition of the table's topic: the records below are in the copy."""
    complete: Complete | None
    """None until it is whole: while its topic is read from the beginning, or its table from the source."""

    def to_json(self) -> str:
        return json.dumps(
            {"ends": self.ends, "complete": asdict(self.complete) if self.complete else None}, sort_keys=True
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Mark:
        """What `to_json` gave, whatever else is in it."""
        found: Mapping[str, Any] = json.loads(text)
        complete = Complete(**found["complete"]) if found["complete"] else None
        return cls({int(partition): end for partition, end in found["ends"].items()}, complete)

    def holds(self, ends: Mapping[int, int]) -> bool:
        """Whether the copy has all records below `ends`."""
        return all(self.ends.get(partition, 0) >= end for partition, end in ends.items())


@dataclass(frozen=True, slots=True)
class Barrier:
    """A State that was seen, and the high watermarks of the topics of its connector taken after that."""

    connector: str
    tables: frozenset[str]
    """What it speaks for, as ``schema.table``: not the tables whose rows are still being read."""
    position: str
    source_ms: int | None
    highs: Ends

    def passed(self, ends: Ends) -> bool:
        """Whether all that lies before it was read by what has read up to `ends`."""
        return all(
            ends.get(topic, {}).get(partition, 0) >= high
            for topic, highs in self.highs.items()
            for partition, high in highs.items()
        )


class Barriers:
    """Those not passed yet, and of each connector the last that was. Filled by one thread, asked by others."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ahead: dict[str, list[Barrier]] = {}
        self._passed: dict[str, Barrier] = {}
        self.news = threading.Event()
        """Set with each barrier: somebody may ask again."""

    def add(self, barrier: Barrier) -> None:
        """One that was made after those of its connector that are known."""
        with self._lock:
            ahead = self._ahead.setdefault(barrier.connector, [])
            ahead.append(barrier)
            if len(ahead) > _MOST:  # far behind: every other one is near enough
                del ahead[1::2]
        self.news.set()

    def passed(self, ends: Ends) -> dict[str, Barrier]:
        """By connector, the newest barrier that lies behind `ends`, which never go back."""
        with self._lock:
            for connector, ahead in self._ahead.items():
                while ahead and ahead[0].passed(ends):
                    self._passed[connector] = ahead.pop(0)
            return dict(self._passed)


def spoken_for(state: State, tables: Iterable[str]) -> frozenset[str] | None:
    """Those of `tables` whose topics are whole up to `state`; None where there is no telling.

    Nothing is complete before the snapshot is. Later on, a table whose rows are read because its topic is not whole
    (added, rewritten, behind a gap) is not; one read again on request is: its events come all the while.
    """
    if state.phase is not Phase.STREAM:
        return None
    return frozenset(
        table
        for table in tables
        if table in state.tables and not (table in state.reading and state.reading[table]["required"])
    )


def position_of(state: State) -> str:
    """The position that everything up to `state` sorts before, and everything after it does not."""
    return Position(state.epoch, state.commit, 0).text


def lowest(marks: Iterable[Mark | None]) -> Complete | None:
    """What several copies are complete up to together; None if one of them is not."""
    found = [mark.complete if mark is not None else None for mark in marks]
    there = [complete for complete in found if complete is not None]
    return min(there, key=lambda complete: complete.position) if there and len(there) == len(found) else None
