"""Puts events of several watchers into the order of their revisions, in memory that does not grow with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import groupby
from typing import Any, Final, NamedTuple

import orjson

from cdc.machine.temporary_files import TemporaryDatabase

IN_MEMORY: Final = 16 << 20
"""So many bytes are held in memory; what is more goes to a temporary file."""
_EACH: Final = 400
"""About what an event takes beside its value."""
_SCRIPT: Final = "CREATE TABLE events (revision INTEGER, watcher INTEGER, number INTEGER, size INTEGER, event BLOB)"
_INDEX: Final = "CREATE INDEX by_revision ON events (revision, watcher, number)"


class Waiting(NamedTuple):
    """Is an event that may not be given yet."""

    revision: int
    watcher: int
    number: int
    """Counts the events, in the order in which they came."""
    size: int
    event: Mapping[str, Any]


class Whole(NamedTuple):
    """Is a transaction, all events of one revision."""

    revision: int
    rows: int
    size: int
    events: Iterator[tuple[int, Mapping[str, Any]]]
    """Each with the number of its watcher."""


class Backlog:
    """Holds events until all of their revision are there."""

    def __init__(self) -> None:
        self._held: list[Waiting] = []
        self._size = 0
        self.count = 0
        """How many events were ever added."""
        self._file: TemporaryDatabase | None = None

    def add(self, revision: int, watcher: int, event: Mapping[str, Any]) -> None:
        """Hold an event. Raises what `TemporaryDatabase` does."""
        size = _EACH + sum(len(event.get(part, {}).get("value", "")) for part in ("kv", "prev_kv"))
        self.count += 1
        self._held.append(Waiting(revision, watcher, self.count, size, event))
        self._size += size
        if self._size > IN_MEMORY:
            self._spill()

    def _spill(self) -> None:
        if self._file is None:
            self._file = TemporaryDatabase("history that was read and not given yet", f"{_SCRIPT}; {_INDEX}")
        rows = ((*one[:4], orjson.dumps(one.event)) for one in self._held)
        self._file.run_for_each("INSERT INTO events VALUES (?, ?, ?, ?, ?)", rows)
        self._held, self._size = [], 0

    def upto(self, revision: int) -> Iterator[Whole]:
        """Give what is held up to a revision, in order; when all of it was read, let go of it.

        Each transaction's events must be read before the next is asked for.
        """
        if self._file is not None:
            self._spill()
            yield from self._from_file(self._file, revision)
            return
        self._held.sort(key=lambda one: one[:3])
        ready = [one for one in self._held if one.revision <= revision]
        for of, group in groupby(ready, key=lambda one: one.revision):
            events = list(group)
            given = ((one.watcher, one.event) for one in events)
            yield Whole(of, len(events), sum(one.size for one in events), given)
        self._held = [one for one in self._held if one.revision > revision]
        self._size = sum(one.size for one in self._held)

    def _from_file(self, file: TemporaryDatabase, revision: int) -> Iterator[Whole]:
        groups = list(
            file.rows(
                "SELECT revision, count(*), sum(size) FROM events WHERE revision <= ? GROUP BY revision"
                " ORDER BY revision",
                (revision,),
            )
        )
        for of, rows, size in groups:
            found = file.rows("SELECT watcher, event FROM events WHERE revision = ? ORDER BY watcher, number", (of,))
            yield Whole(of, rows, size, ((watcher, orjson.loads(event)) for watcher, event in found))
        file.run("DELETE FROM events WHERE revision <= ?", (revision,))
        if not next(file.rows("SELECT count(*) FROM events"))[0]:
            file.close()
            self._file = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing is held."""
        return self._file is None and not self._held

    def close(self) -> None:
        """Give the temporary file back. Safe to call twice."""
        if self._file is not None:
            self._file.close()
            self._file = None
