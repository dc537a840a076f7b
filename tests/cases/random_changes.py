"""Random statements that change many small tables at once, in phases, and what must come of them whatever they are.

Each room has the tables `t` and `u`. A statement is chosen by the seed and by what the catalog has when it is its turn;
one that the server refuses changes nothing, and the next is chosen by what is there. A phase is one of `PHASES`: the
statements meet a connector that is stopped, that follows the log, that has been asked to read tables again, or that is
stopped in the midst of what it does about them.
"""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from tests.cases.runner import MARKER, CaseSource, Record, folded
from tests.integration.running import eventually

NAMES: Final = ("a", "b", "c", "d", "e")
"""The names that columns beside the key may have: few, so that they are taken again."""
IDS: Final = 14
"""How many values a column of a key is chosen from."""
TABLES: Final = ("t", "u")
PHASES: Final = ("stopped", "followed", "read again", "read again while stopped", "cut", "cut while stopped")
_EACH: Final = 4
"""Statements of a room and phase."""
_ARRIVED_S: Final = 180.0
_FIRST_CUTS: Final = 6
_LAST_TRIES: Final = 5
"""So often a last row is tried: of a key that is no number, a value may be there already."""
_NOT_WRITTEN_LAST: Final = 0.4
"""The share of tables that no row comes to in the end: what their last statements changed, no event tells."""
_CUT_S: Final = 1.5
"""A connector that is cut is stopped at any time before that."""


@dataclass(frozen=True)
class Found:
    """A table as the catalog has it."""

    columns: Mapping[str, str]
    """Name and type of each that is not generated."""
    key: tuple[str, ...]
    generated: tuple[str, ...] = ()
    partitions: tuple[str, ...] = ()
    is_partitioned: bool = False
    is_full: bool = False
    """Its identity is the whole row, or that of a partition is."""

    @property
    def others(self) -> list[str]:
        """The columns that are not in the key."""
        return [name for name in self.columns if name not in self.key]


class Grammar(Protocol):
    """Makes statements of one kind of server; what is sent as one string is several with `; ` between them."""

    begin: Sequence[str]
    """What a room begins with."""

    def create(self, of: random.Random, table: str) -> str: ...

    def insert(self, of: random.Random, table: str, found: Found) -> str: ...

    def one(self, of: random.Random, tables: Mapping[str, Found]) -> str: ...

    def value(self, of: random.Random, type_: str) -> str: ...


class Rooms(Protocol):
    """A server's rooms, in one session."""

    source: CaseSource

    def look(self, room: str) -> dict[str, Found]: ...

    def send(self, room: str, statement: str) -> bool:
        """Send it; False if the server has refused it."""
        ...


class Connector(Protocol):
    """A `tests.cases.runner.CaseConnector` that can be asked to read tables again, and stopped at any time."""

    def catch_up(self) -> str: ...

    def following(self, *, settles: bool = True) -> AbstractContextManager[Callable[[], str]]: ...

    def records(self, table: str) -> Sequence[Record]: ...

    def ask_to_read(self, tables: Sequence[str]) -> None: ...


@dataclass
class Changes:
    """One run: what was sent, by room and phase, and what was said."""

    rooms: Rooms
    grammar: Grammar
    connector: Connector
    seed: str
    count: int
    from_the_first: bool = False
    """Whether tables change while the first snapshot reads them, which is cut now and then."""
    sent: dict[str, list[str]] = field(default_factory=dict)
    written_last: list[tuple[str, str]] = field(default_factory=list)
    """Rooms and tables that took a row in the end, before which they are described as they are."""
    said: str = ""
    _markers: int = 0

    def __post_init__(self) -> None:
        self._names = [f"r{number}" for number in range(self.count)]
        self._of = {name: random.Random(f"{self.seed} {name}") for name in self._names}
        self._at_all = random.Random(self.seed)
        self.sent = {name: [] for name in self._names}

    def run(self, phases: int) -> None:
        """All phases. Raises what ends the connector."""
        source = self.rooms.source
        for name in (*self._names, MARKER):
            source.make_room(name)
        source.execute({MARKER: ["CREATE TABLE t (id int PRIMARY KEY)"]})
        for name in self._names:
            for statement in self.grammar.begin:
                self._send(name, statement)
            for table in TABLES:
                self._send(name, self.grammar.create(self._of[name], table))
                self._send(name, self.grammar.insert(self._of[name], table, self.rooms.look(name)[table]))
        for _ in range(_FIRST_CUTS if self.from_the_first else 0):
            self._phase("cut")
        self.said += self.connector.catch_up()
        for number in range(phases):
            # each kind once, in any order, before any comes again
            order = random.Random(f"{self.seed} {number // len(PHASES)}").sample(PHASES, len(PHASES))
            self._phase(order[number % len(PHASES)])
        for name in self._names:
            self._note(name, "last")
            for table, found in self.rooms.look(name).items():
                if self._at_all.random() < _NOT_WRITTEN_LAST:
                    continue
                if any(self._send(name, self._of_each(name, table, found)) for _ in range(_LAST_TRIES)):
                    self.written_last.append((name, table))
        self.said += self.connector.catch_up() + self.connector.catch_up()

    def _of_each(self, room: str, table: str, found: Found) -> str:
        """A row of a new key: after it a table is described as it is."""
        values = [
            str(900 + number) if name in found.key and "int" in type_ else self.grammar.value(self._of[room], type_)
            for number, (name, type_) in enumerate(found.columns.items())
        ]
        return f"INSERT INTO {table} ({', '.join(found.columns)}) VALUES ({', '.join(values)})"

    def _phase(self, kind: str) -> None:
        for name in self._names:
            self._note(name, kind)
        if kind.endswith("while stopped"):
            if kind.startswith("read again"):
                self._ask()
            self._change()
        if kind == "stopped":
            self._change()
        if kind in ("stopped", "read again while stopped"):
            self.said += self.connector.catch_up()
            return
        with self.connector.following(settles=not kind.startswith("cut")) as heard:
            if kind == "read again":
                self._ask()
                time.sleep(self._at_all.random())
            if kind != "cut while stopped":
                self._change()
            if kind.startswith("cut"):
                time.sleep(self._at_all.random() * _CUT_S)
            else:
                self._await_marker(heard)
        self.said += heard()

    def _await_marker(self, heard: Callable[[], str]) -> None:
        source = self.rooms.source
        self._markers += 1
        source.execute({MARKER: [f"INSERT INTO t VALUES ({self._markers})"]})
        marker = source.qualified(MARKER, "t")

        def has_come() -> bool:
            ended = [line for line in heard().splitlines() if line.startswith(("it has ended", "error: "))]
            assert ended == [], f"seed {self.seed}: {ended}"
            return len(folded(self.connector.records(marker))) >= self._markers

        eventually(has_come, f"seed {self.seed}: the marker row has come", within_s=_ARRIVED_S)

    def _ask(self) -> None:
        every = [(name, table) for name in self._names for table in TABLES]
        some = self._at_all.sample(every, len(every) // 3)
        self.connector.ask_to_read([self.rooms.source.qualified(name, table) for name, table in some])

    def _change(self) -> None:
        turns = self._names * _EACH
        self._at_all.shuffle(turns)
        for name in turns:
            of, tables = self._of[name], self.rooms.look(name)
            missing = [table for table in TABLES if table not in tables]
            makes = missing and (not tables or of.random() < 0.2)
            self._send(name, self.grammar.create(of, missing[0]) if makes else self.grammar.one(of, tables))

    def _send(self, room: str, statement: str) -> bool:
        if not self.rooms.send(room, statement):
            return False
        self.sent[room].append(statement)
        return True

    def _note(self, room: str, kind: str) -> None:
        self.sent[room].append(f"-- {kind}")

    def different(self) -> Iterator[str]:
        """Give each table that is not the SELECT: how, and how it came to that."""
        for room in self._names:
            for table in self.rooms.look(room):  # one that was dropped leaves its rows, as the documents say
                fold = folded(self.connector.records(self.rooms.source.qualified(room, table)))
                if found := self._compared(room, table, fold):
                    sent = "\n    ".join(self.sent[room])
                    yield f"seed {self.seed}: {room}.{table}: {str(found[:2])[:900]}\n    {sent}"

    def _compared(self, room: str, table: str, fold: Mapping[bytes, str]) -> list[Any]:
        """Rows that are not the same. Older rows have the columns of their time: one that came since is null."""
        theirs = self.rooms.source.select(room, table, None)
        names = list(theirs[0]) if theirs else []
        ours = [{name: row.get(name) for name in names} if names else row for row in map(json.loads, fold.values())]
        pairs = itertools.zip_longest(_ordered(ours), _ordered(theirs))
        return [pair for pair in pairs if pair[0] != pair[1]]


def _ordered(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
