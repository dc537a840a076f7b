"""One connector for many cases: set-up of all, start, actions of all, then each table's topic folded and compared.

A case is text. Its tables live in a room of its own (a schema, a database, a prefix: the source decides), so cases do
not meet. Starting a connector is what takes time, and it is started once for all of them:

    set-up of every case
    a connector reads the tables
    it follows the log: actions of every case, one marker row; what must happen without a restart is waited for
    it is stopped: more actions, one more marker row, a run until all is there
    a second connector reads the tables as they are now

What holds of every table without a word in the case: the fold of the first connector's topic is what SELECT gives,
and its keys and values are, byte for byte, those that the second connector read; of each key rows come and go in turn,
and no event is there twice.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol

from tests.integration.running import in_turn

Row = dict[str, Any]
Move = tuple[str, Row | None, Row | None]
"""Operation, before, after."""

MARKER: Final = "marker"
"""The room of the marker table, `t (id int PRIMARY KEY)`, which no case may have for its own."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """SQL by phase, and what it comes to beyond "the fold is the SELECT".

    Each statement is sent by itself, all of a phase in one session: `BEGIN` and `COMMIT` are two of them. PostgreSQL
    also takes `BEGIN; …; COMMIT` in one string.
    """

    name: str
    """A word that can stand in the name of a schema."""
    before: Sequence[str]
    """Before the connector has read anything."""
    stream: Sequence[str] = ()
    """While it follows the log."""
    stopped: Sequence[str] = ()
    """While it does not run: it finds this at its next start."""
    tables: Sequence[str] = ("t",)
    gone: Sequence[str] = ()
    """Tables that are there no more at the end: of their rows the topics have none."""
    select: Mapping[str, str] = field(default_factory=dict)
    """By table: the SELECT that gives its rows as events have them, where the source's own way does not."""
    moves: Mapping[str, Sequence[Move]] = field(default_factory=dict)
    """By table: exactly these events of its stream, in this order."""
    said: Sequence[str] | None = None
    """What it said of each of the case's tables: just these things, by some words of each. None: not looked at."""
    live: bool = False
    """The fold becomes the SELECT of what `stream` leaves, without another write and without a restart."""
    settled: bool = False
    """The fold is the SELECT of what `stopped` leaves as soon as the next run has caught up, without one more."""
    comes_back: bool = False
    """A table gets the columns again that it had before others."""
    rows_differ: str = ""
    """Why the fold is not the SELECT, where that is right: rows of before a change are told as they were."""


def each_third(cases: Sequence[Case], begin: int) -> list[Case]:
    """What a push asks of a reader beside the one that has them all: some of each kind, as those stand together."""
    return [case for number, case in enumerate(cases) if number % 3 == begin]


class Record(Protocol):
    """One record of a topic."""

    @property
    def raw_key(self) -> bytes: ...
    @property
    def raw_value(self) -> bytes | None: ...
    @property
    def value(self) -> Row | None: ...


class CaseConnector(Protocol):
    """`tests.integration.connector.Connector`, as far as it is needed here."""

    def catch_up(self) -> str:
        """Run until all that is committed now is in Kafka; give what was logged."""
        ...

    def following(self) -> AbstractContextManager[Callable[[], str]]:
        """It follows the log inside the block, and is stopped cleanly at its end; gives what it has logged so far."""
        ...

    def records(self, table: str) -> Sequence[Record]: ...

    def descriptions(self) -> Sequence[Row]:
        """The records that describe tables, oldest first of each; none where they cannot be seen."""
        ...


class CaseSource(Protocol):
    """A database that has a room for each case."""

    in_order: bool
    """Tables are described as the log has them in turn; MySQL's as its catalog has them, which may be further."""

    def make_room(self, case: str) -> None:
        """Before its first statement."""
        ...

    def execute(self, statements: Mapping[str, Sequence[str]]) -> None:
        """By case, in their order: each in its room, where tables need no more than their own name."""
        ...

    def select(self, case: str, table: str, select: str | None) -> list[Row]:
        """The table's rows as events would have them (docs/values.md), by SELECT and nothing of the toolkit's."""
        ...

    def qualified(self, case: str, table: str) -> str:
        """The table's name in messages, and where `CaseConnector.records` finds it."""
        ...

    def connector(self, which: str) -> CaseConnector:
        """One of all rooms' tables with a prefix of its own; `which` is a word to tell it from others by."""
        ...


@dataclass(frozen=True)
class Ran:
    """What came of the cases."""

    source: CaseSource
    streamed: CaseConnector
    read: CaseConnector
    said: str
    said_at_last: str
    """By a run that found nothing new."""
    late: frozenset[str]
    """Tables of `live` cases whose topic was not the table in time."""
    described: Mapping[str, Sequence[Any]]
    """By table: its columns as they were described one after the other."""

    def check(self, case: Case) -> None:
        """Everything that the case says, and what holds of every case."""
        for table in case.tables:
            Seen(self, case, table).check()
        for table in case.gone:
            records = self.streamed.records(self.source.qualified(case.name, table))
            assert records, table
            assert folded(records) == {}, table
        if case.said is not None:
            self._check_said(case)

    def _check_said(self, case: Case) -> None:
        """Stopped in the midst of what it does about something, it says so again; once done with it, never again.

        Only what it warns of counts: where a look at the catalog has found it first, that is told, too.
        """
        assert case.said is not None
        for table in case.tables:
            of_it = f"table {self.source.qualified(case.name, table)}: "  # not how far its snapshot is
            told = {line.partition(of_it)[2] for line in self.said.splitlines() if of_it in line and _WARNED in line}
            assert len(told) == len(case.said), told
            assert all(any(words in line for line in told) for words in case.said), told
            assert of_it not in self.said_at_last


@dataclass(frozen=True)
class Seen:
    """One table of a case, from all sides."""

    ran: Ran
    case: Case
    table: str

    @property
    def _name(self) -> str:
        return self.ran.source.qualified(self.case.name, self.table)

    @cached_property
    def records(self) -> Sequence[Record]:
        return self.ran.streamed.records(self._name)

    def check(self) -> None:
        in_turn(self.records, read_again=self.case.said != ())
        described = self.ran.described.get(self._name, ())
        for n, columns in enumerate(described):
            assert self.case.comes_back or columns not in described[:n], f"described as it was before: {columns}"
        if not self.case.rows_differ:
            fold = folded(self.records)
            again = folded(self.ran.read.records(self._name))
            assert self._name not in self.ran.late, self.ran.said
            assert fold == again, "by stream and by snapshot, keys and values are the same bytes"
            different = difference(self.ran.source, self.case, self.table, fold)
            assert not different, f"the fold is not the SELECT: {different[:3]}"
        if self.table in self.case.moves:
            assert self.moves() == [*self.case.moves[self.table]]

    def moves(self) -> list[Move]:
        """The events of the stream in the connector's order: not what a snapshot has read."""
        events = [record.value for record in self.records if record.value is not None]
        events.sort(key=lambda event: event["source"]["position"])
        return [(e["op"], e["before"], e["after"]) for e in events if e["op"] != "r"]


def difference(
    source: CaseSource, case: Case, table: str, fold: Mapping[bytes, str]
) -> list[tuple[Row | None, Row | None]]:
    """Rows of the fold and of the SELECT that are not the same."""
    found = source.select(case.name, table, case.select.get(table))
    ours, theirs = _ordered(json.loads(after) for after in fold.values()), _ordered(found)
    return [pair for pair in itertools.zip_longest(ours, theirs) if pair[0] != pair[1]]


def run(source: CaseSource, cases: Sequence[Case]) -> Ran:
    """All of them, through two connectors. Raises AssertionError where a connector does not arrive."""
    names = [case.name for case in cases]
    assert len(set(names)) == len(names)
    assert MARKER not in names
    for name in (*names, MARKER):
        source.make_room(name)
    source.execute({MARKER: ["CREATE TABLE t (id int PRIMARY KEY)"], **{case.name: case.before for case in cases}})
    streamed = source.connector("streamed")
    said = streamed.catch_up()
    marker = source.qualified(MARKER, "t")
    with streamed.following() as heard:
        source.execute({**{case.name: case.stream for case in cases}, MARKER: ["INSERT INTO t VALUES (1)"]})
        _await(lambda: len(streamed.records(marker)) > 0, lambda: f"the marker row has not arrived:\n{heard()}")
        deadline = time.monotonic() + _ARRIVED_S
        live = [(case, table) for case in cases if case.live for table in case.tables]
        late = {source.qualified(c.name, t) for c, t in live if not _becomes(source, streamed, c, t, deadline)}
        tried = [line for line in heard().splitlines() if "trying again" in line]
        assert all("is taken up under that name" in line for line in tried), heard()  # another name for a while
    said += heard()
    source.execute({**{case.name: case.stopped for case in cases}, MARKER: ["INSERT INTO t VALUES (2)"]})
    said += streamed.catch_up()
    settled = [(case, table) for case in cases if case.settled for table in case.tables]
    late |= {source.qualified(c.name, t) for c, t in settled if not _becomes(source, streamed, c, t, 0)}
    assert len(folded(streamed.records(marker))) == 2, "the marker row has arrived, and so has all before it"
    said_at_last = streamed.catch_up()
    read = source.connector("read")
    read.catch_up()
    described = _described(streamed.descriptions()) if source.in_order else {}
    return Ran(source, streamed, read, said, said_at_last, frozenset(late), described)


def _described(records: Sequence[Row]) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for record in sorted(records, key=lambda record: record["version"]):
        of = found.setdefault(f"{record['schema']}.{record['table']}", [])
        columns = [(column["name"], column["type"]) for column in record["columns"]]
        if of[-1:] != [columns]:
            of.append(columns)
    return found


def _becomes(source: CaseSource, connector: CaseConnector, case: Case, table: str, deadline: float) -> bool:
    """Whether the fold is the SELECT before the deadline."""
    while difference(source, case, table, folded(connector.records(source.qualified(case.name, table)))):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _await(condition: Callable[[], bool], missing: Callable[[], str]) -> None:
    deadline = time.monotonic() + _ARRIVED_S
    while not condition():
        assert time.monotonic() < deadline, missing()
        time.sleep(0.02)


_ARRIVED_S: Final = 120.0
_WARNED: Final = " WARNING "
_DECODER: Final = json.JSONDecoder()


def folded(records: Sequence[Record]) -> dict[bytes, str]:
    """What a reader of the compacted topic ends with: the text of each key's last `after`."""
    last: dict[bytes, str | None] = {}
    for record in records:
        last[record.raw_key] = None if record.raw_value is None else _after(record.raw_value.decode())
    return {key: after for key, after in last.items() if after is not None}


def _after(event: str) -> str | None:
    """The JSON text of the row; None for `null`. The key is looked for at the event's own level."""
    at = 1
    while True:
        name, at = _DECODER.raw_decode(event, at)
        begin = at + 1
        value, at = _DECODER.raw_decode(event, begin)
        if name == "after":
            return None if value is None else event[begin:at]
        assert event[at] == ","
        at += 1


def _ordered(rows: Any) -> list[Row]:
    return sorted(rows, key=lambda row: json.dumps(row, sort_keys=True))
