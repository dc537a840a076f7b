"""The one loop under any workload, any interleaving and any fault: what a read_committed reader may and may not see.

The oracle looks at the broker's records and the source's log only. The controls at the end break the loop on purpose
and must be caught by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, TypeVar

import hypothesis
import orjson
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

import cdc.capture.commit_pace
import cdc.capture.control.commands
import cdc.capture.pipeline
import cdc.capture.session
import cdc.capture.snapshots.incremental_snapshot
import cdc.encode.truncates
from cdc.capture.pipeline import Pipeline, Settings
from cdc.encode.table_log import log_of
from cdc.encode.topic_contents.toast import ToastValues
from cdc.model.change import UNCHANGED, Change, Column, Kind, Offset, Op, Position, Row, Table
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.interfaces import Chunk, Handover, Sink, Snapshotter, Source
from cdc.model.state import Phase, State
from cdc.model.state_records import StateReader
from cdc.rules.routes import NO_ROUTES, Routes
from cdc.testing import (
    POINTS,
    Faults,
    Inline,
    Key,
    Killed,
    Logged,
    MemoryHandover,
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Outcome,
    Record,
    View,
    delete,
    insert,
    key_of,
    truncate,
    update,
)
from tests.conftest import FULL

T = TypeVar("T")
CONNECTOR, PREFIX = "law", "p"
LONG = b"w" * 2_100  # long enough for PostgreSQL to store apart, and so to leave out


def _text(name: str, *, toastable: bool = False) -> Column:
    return Column(name, "text", Kind("string"), lambda value: orjson.dumps(value.decode()), toastable=toastable)


ORDERS = Table("s", "orders", (_text("id"), _text("note"), _text("doc", toastable=True)), ("id",))
LINES = Table("s", "lines", (_text("n"), _text("doc", toastable=True), _text("of")), ("of", "n"))
PLAIN = Table("s", "plain", (_text("id"), _text("note")), ("id",))
TABLES = (ORDERS, LINES, PLAIN)


@dataclass(frozen=True)
class Step:
    """One change, made valid when it is committed: an insert of a row that is there becomes an update, and so on."""

    what: str
    table: int
    key: int
    other: int
    long: bool
    leave_out: bool


@dataclass(frozen=True)
class Scenario:
    seeded: int  # how many of the transactions the tables hold before the connector begins
    transactions: tuple[tuple[Step, ...], ...]
    quiet: int  # how many faults have fired when transactions begin to come
    pace: tuple[int, ...]  # how many transactions come at each point passed then
    unseen: tuple[int, ...]  # for how many points each of them stays invisible to new views
    faults: tuple[tuple[str, int], ...]
    killed: bool  # the faults end the process; else they are errors the loop retries
    cut_records: int
    chunk_rows: int
    workers: int = 1
    late: int = 0  # in which run the connector is first told of the first table


class Violation(AssertionError):  # noqa: N818 - what the laws call it
    """A law does not hold."""


def holds(condition: object, law: str) -> None:
    if not condition:
        raise Violation(law)


class World:
    """A source, a broker, and time: transactions come as the scenario says while the connector works."""

    def __init__(self, scenario: Scenario, parts: Parts) -> None:
        self.scenario, self.parts = scenario, parts
        self.log, self.kafka = MemoryLog(), MemoryKafka()
        self.faults = Faults(*scenario.faults, error=Killed if scenario.killed else None)
        self._coming = list(scenario.transactions)
        self._pace = list(scenario.pace)
        self._unseen = list(scenario.unseen)
        self._hidden: dict[int, int] = {}
        self._values = 0
        self.asked = False
        """Whether a value was read from the source that no view and no event had: a later one may come early."""
        self.captured = TABLES if scenario.late == 0 else TABLES[1:]

    def at(self, point: str) -> None:
        if not point.startswith("sink.write"):
            for xid, points in list(self._hidden.items()):
                self._hidden[xid] = points - 1
                if points <= 0:
                    self.log.reveal([xid])
                    del self._hidden[xid]
            for _ in range(self._pace.pop(0) if self._pace and len(self.faults.fired) >= self.scenario.quiet else 0):
                self.commit_next()
        self.asked |= point == "snapshot.row"
        self.faults(point)

    def commit_next(self) -> bool:
        if not self._coming:
            return False
        steps = self._coming.pop(0)
        rows = {table.qualified: self.log.rows(table) for table in TABLES}
        changes = [change for step in steps for change in self._changes(step, rows)]
        if changes:
            unseen = self._unseen.pop(0) if self._unseen else 0
            xid = self.log.commit(*changes, visible=unseen == 0)
            if unseen:
                self._hidden[xid] = unseen
        return True

    def _changes(self, step: Step, rows: dict[str, dict[Key, Row]]) -> Iterator[Change]:
        """At most one; `rows` are the tables as the transaction has them so far."""
        table = TABLES[step.table]
        held = rows[table.qualified]
        key, other = _key(table, step.key), _key(table, step.other)
        what = step.what
        if what == "truncate":
            held.clear()
            yield truncate(table)
        elif key not in held:
            if what != "delete":
                held[key] = self._row(table, key, step, None)
                yield insert(table, held[key])
        elif what == "delete":
            del held[key]
            yield delete(table, key)
        elif what == "move" and other not in held:
            was = held.pop(key)
            row = self._row(table, other, step, was)
            held[other] = _filled(row, was)
            yield update(table, row, key=key)
        else:
            row = self._row(table, key, step, held[key])
            held[key] = _filled(row, held[key])
            yield update(table, row)

    def _row(self, table: Table, key: Key, step: Step, was: Row | None) -> Row:
        self._values += 1
        given = dict(zip(table.key, key, strict=True))
        row: list[Any] = []
        for index, column in enumerate(table.columns):
            value: object = given.get(column.name, b"v%d" % self._values)
            if column.toastable:
                before = was[index] if was is not None else None
                if step.leave_out and isinstance(before, bytes) and len(before) >= len(LONG):
                    value = UNCHANGED
                else:
                    value = (LONG if step.long else b"") + b"v%d" % self._values
            row.append(value)
        return tuple(row)

    # what the loop is given

    def pipeline(self) -> Pipeline:
        return Pipeline(
            Settings(connector=CONNECTOR, prefix=PREFIX, chunk_rows=self.scenario.chunk_rows, routes=self.parts.routes),
            open_source=lambda: self.parts.source(self),
            open_snapshotter=lambda: self.parts.snapshotter(self),
            sink=self.parts.sink(self),
            executor=Inline,
        )

    def states(self) -> list[State]:
        records = self.kafka.committed(f"{PREFIX}.position-{CONNECTOR}")
        reader = StateReader(CONNECTOR)
        heard = (reader.state(where="here") for record in records if reader.hear(record.key, record.value))
        return [state for state in heard if state is not None]


def _filled(row: Row, was: Row) -> Row:
    return tuple(before if now is UNCHANGED else now for before, now in zip(was, row, strict=True))


def _key(table: Table, number: int) -> Key:
    return (b"k%d" % number,) if len(table.key) == 1 else (b"o%d" % (number % 2), b"k%d" % number)


class CheckedSource(MemorySource):
    """Sees to it that nothing is acknowledged that Kafka does not hold."""

    def __init__(self, world: World) -> None:
        super().__init__(world.log, world.captured, at=world.at)
        self._world = world

    def acknowledge(self, offset: Offset) -> None:
        committed = max((int(state.offset.get("at", 0)) for state in self._world.states()), default=0)
        holds(int(offset["at"]) <= committed, "acknowledged before it was committed")
        super().acknowledge(offset)


@dataclass
class Parts:
    """What the loop is run with; the controls replace one."""

    source: Callable[[World], Source] = CheckedSource
    snapshotter: Callable[[World], Snapshotter] = field(
        default=lambda world: MemorySnapshotter(
            world.log,
            rows_each=1,
            workers=world.scenario.workers,
            tells=world.scenario.quiet % 2 == 0,
            at=world.at,
        )
    )
    sink: Callable[[World], Sink] = field(
        default=lambda world: MemorySink(world.kafka, CONNECTOR, PREFIX, at=world.at, logged=[ORDERS.qualified])
    )
    routes: Routes = NO_ROUTES


def run(scenario: Scenario, parts: Parts | None = None, *, oracle: type[Oracle] | None = None) -> World:
    """Run to the end of the workload through all faults, then hold the result against every law."""
    world = World(scenario, parts or Parts())
    for _ in range(scenario.seeded):
        world.commit_next()
    with _hurried(scenario):
        catch_up(world, lambda: world.pipeline().run(until_caught_up=True))
    (oracle or Oracle)(world).check()
    return world


def catch_up(world: World, once: Callable[[], None]) -> None:
    """Run again and again, through all faults, to the end of the workload."""
    scenario = world.scenario
    for attempt in range(4 * len(scenario.faults) + 2 * len(scenario.transactions) + 12):
        end = world.log.end
        world.captured = TABLES if attempt >= scenario.late else TABLES[1:]
        try:
            once()
        except (Killed, RetryableError):
            continue
        if not world.commit_next() and world.log.end == end and world.captured == TABLES:
            return
    raise Violation("it never caught up")


def _resumed(world: World) -> bool:
    return any(state.snapshot.get("views") for state in world.states())


@contextmanager
def _hurried(scenario: Scenario) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
        patch.setattr(cdc.capture.commit_pace, "CUT_AGE_S", 1e9)
        patch.setattr(cdc.capture.commit_pace, "APART_MOST_S", 0.0)
        patch.setattr(cdc.capture.snapshots.incremental_snapshot, "RETRY_S", 0.0)
        patch.setattr(cdc.capture.commit_pace, "CUT_RECORDS", scenario.cut_records)
        patch.setattr(cdc.capture.snapshots.incremental_snapshot, "DELETES_AT_ONCE", 1 + scenario.chunk_rows % 2)
        patch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 0 if scenario.workers > 1 else 100)
        yield


class Oracle:
    """Reads the broker as a read_committed consumer does, and the source's log as its owner."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.states = world.states()
        self.records = {t.qualified: self._records_of(t) for t in TABLES}
        self.read: dict[str, tuple[int, MemoryHandover]] = {}
        """Of each table that was read: where the log goes on behind its rows, and which views they were read under."""
        for before, after in pairwise(self.states):
            if (before.phase, after.phase) == (Phase.SNAPSHOT, Phase.STREAM):
                for name in before.unread:
                    self.read[name] = (int(before.offset["at"]), MemoryHandover(after.snapshot))
        self.since: dict[str, int] = {}
        """Where the log began to be told of each table that was added later."""
        known: frozenset[str] = frozenset()
        for state in self.states:
            for name in set(state.tables) - known - set(state.unread):
                self.since.setdefault(name, state.commit)
            known |= set(state.tables)

    def _records_of(self, table: Table) -> list[Record]:
        return self.world.kafka.committed(f"{PREFIX}.{table.qualified}")

    def check(self) -> None:
        for table in TABLES:
            self._positions_increase(table)
            self._fold_is_the_table(table)
        self._log_is_the_topic(ORDERS)
        self._transactions_are_whole()
        self._rows_read_later_are_the_log_s()
        if not self.world.asked:
            self._events()

    def _fold_is_the_table(self, table: Table) -> None:
        folded: dict[bytes, Any] = {}
        for record in self.records[table.qualified]:
            if record.value is None:
                folded.pop(record.key, None)
            else:
                folded[record.key] = orjson.loads(record.value)["after"]
        rows = self.world.log.rows(table)
        expected = {_key_json(table, key): _json(table, row) for key, row in rows.items()}
        holds(folded == expected, f"the fold of {table.qualified} is not the table")

    def _log_is_the_topic(self, table: Table) -> None:
        """Before compaction: the same records, in the same Kafka transactions, but for tombstones."""
        log = self.world.kafka.committed(log_of(f"{PREFIX}.{table.qualified}"))
        events = [(r.key, r.value, r.transaction) for r in self.records[table.qualified] if r.value is not None]
        holds([(r.key, r.value, r.transaction) for r in log] == events, f"the log of {table.qualified} is another")

    def _positions_increase(self, table: Table) -> None:
        last: dict[bytes, str] = {}
        for record in self.records[table.qualified]:
            if record.value is None:
                continue
            position = orjson.loads(record.value)["source"]["position"]
            holds(last.get(record.key, "") < position, f"positions of {record.key!r} do not increase")
            last[record.key] = position

    def _transactions_are_whole(self) -> None:
        """A source transaction's events lie in one Kafka transaction, numbered without repetition."""
        of: dict[str, int] = {}
        numbers: dict[str, set[int]] = {}
        for record, value in self._values():
            if value["transaction"] is None:
                continue
            name, number = value["transaction"]["id"], value["transaction"]["total_order"]
            holds(of.setdefault(name, record.transaction) == record.transaction, f"transaction {name} came in parts")
            holds(number not in numbers.setdefault(name, set()), f"transaction {name} has event {number} twice")
            numbers[name].add(number)
        hidden = any(handover.views for _, handover in self.read.values())
        if not hidden and not self.world.asked:  # nothing was left out: every number is there
            for name, found in numbers.items():
                holds(found == set(range(1, len(found) + 1)), f"transaction {name} has events missing")

    def _values(self) -> Iterator[tuple[Record, Any]]:
        for table in TABLES:
            for record in self.records[table.qualified]:
                if record.value is not None:
                    yield record, orjson.loads(record.value)

    def _events(self) -> None:
        """Each change of the log is one event with the row as it was then, but for what the rows read contained."""
        wanted, truncated = self._expected()
        found: dict[tuple[str, str, bytes, str], list[Any]] = {}
        for record, value in self._values():
            if value["transaction"] is None:
                if value["source"]["snapshot"] == "true":
                    self._row_as_its_view_saw_it(record, value)
                continue
            name = (value["transaction"]["id"], record.topic, record.key, value["op"])
            found.setdefault(name, []).append(value["after"])
        for name, rows in found.items():
            if name[3] == "d" and name[:2] in truncated:
                continue
            holds(name in wanted, f"an event that should be hidden or never was: {name}")
            holds(rows == wanted[name], f"events {name} with other rows than the source had")
        holds(wanted.keys() <= found.keys(), f"events lost: {sorted(wanted.keys() - found.keys())}")

    def _expected(self) -> tuple[dict[tuple[str, str, bytes, str], list[Any]], set[tuple[str, str]]]:
        wanted: dict[tuple[str, str, bytes, str], list[Any]] = {}
        truncated: set[tuple[str, str]] = set()
        held: dict[str, dict[Key, Row]] = {table.qualified: {} for table in TABLES}
        for logged in self.world.log.transactions:
            for change in logged.changes:
                topic = f"{PREFIX}.{change.table.qualified}"
                name = f"{logged.xid}:{logged.commit}"
                if change.op is Op.TRUNCATE:
                    held[change.table.qualified].clear()
                    truncated.add((name, topic))
                    continue
                for key, op, row in _halves(change, held[change.table.qualified]):
                    if self._must_come(change.table, key, logged):
                        at = (name, topic, _key_json(change.table, key), op)
                        wanted.setdefault(at, []).append(None if row is None else _json(change.table, row))
        return wanted, truncated

    def _rows_read_later_are_the_log_s(self) -> None:
        """A row read while the log was followed is the row of the log at its very position, whatever its view saw."""
        for record, value in self._values():
            if value["source"]["snapshot"] != "incremental":
                continue
            table = next(t for t in TABLES if record.topic.endswith(t.qualified))
            at = Position.parse(value["source"]["position"]).commit
            view = View(1 + sum(t.commit <= at for t in self.world.log.transactions), frozenset(), at)
            rows = {_key_json(table, k): _json(table, row) for k, row in self.world.log.rows(table, view).items()}
            holds(rows.get(record.key) == value["after"], f"{value['op']} of {record.topic} is not the log's at {at}")

    def _must_come(self, table: Table, key: Key, logged: Logged) -> bool:
        if table.qualified in self.since:
            return logged.commit >= self.since[table.qualified] and table.qualified in logged.carried
        if table.qualified not in self.read:
            return False
        start, handover = self.read[table.qualified]
        number = handover.view_of(table, key)
        return logged.commit >= start and not (number is not None and handover.saw(table, number, logged.xid))

    def _row_as_its_view_saw_it(self, record: Record, value: Any) -> None:
        table = next(t for t in TABLES if record.topic.endswith(t.qualified))
        number = Position.parse(value["source"]["position"]).number
        if table.qualified not in self.read:
            return  # the snapshot is not done
        start, handover = self.read[table.qualified]
        view = handover.views.get(number)
        holds(view is not None or number == 0, f"a row of {record.topic} under view {number}, which is not known")
        at_hold = View(1 + sum(t.commit < start for t in self.world.log.transactions), frozenset(), start)
        rows = self.world.log.rows(table, at_hold if view is None else view)
        seen = {_key_json(table, key): _json(table, row) for key, row in rows.items()}
        holds(seen.get(record.key) == value["after"], f"a row of {record.topic} that view {number} did not see")


def _halves(change: Change, held: dict[Key, Row]) -> Iterator[tuple[Key, str, Row | None]]:
    """The events a change should make; `held` goes on to the rows after it."""
    table, after = change.table, change.after
    old = key_of(table, change.before) if change.before is not None else None
    if after is None:
        assert old is not None
        del held[old]
        yield old, "d", None
        return
    key = key_of(table, after)
    moved = old is not None and old != key
    if change.op is Op.UPDATE:
        after = _filled(after, held.pop(key if old is None else old))
    if moved and old is not None:
        yield old, "d", None
    held[key] = after
    yield key, "c" if moved else change.op.value, after


def _json(table: Table, row: Row) -> dict[str, str]:
    return {c.name: v.decode() for c, v in zip(table.columns, row, strict=True) if isinstance(v, bytes)}


def _key_json(table: Table, key: Key) -> bytes:
    return orjson.dumps({name: part.decode() for name, part in zip(table.key, key, strict=True)})


KEYS = st.integers(0, 4)
STEPS = st.builds(
    Step,
    what=st.sampled_from(["put", "put", "put", "delete", "move", "truncate"]),
    table=st.integers(0, len(TABLES) - 1),
    key=KEYS,
    other=KEYS,
    long=st.booleans(),
    leave_out=st.booleans(),
)
FAULTY = [p for p in POINTS if p != "source.idle"]
EARLY = ["sink.commit", "sink.commit.delayed", "sink.commit.answer", "snapshot.chunk", "sink.write"]


def scenarios(*, early: bool) -> st.SearchStrategy[Scenario]:
    """`early`: the first fault interrupts the snapshot, and more transactions are in flight while it is resumed."""
    faults = st.lists(st.tuples(st.sampled_from(FAULTY), st.integers(1, 8)), max_size=3)
    if early:
        first = st.tuples(st.sampled_from(EARLY), st.integers(3, 7))
        faults = st.tuples(first, faults).map(lambda drawn: [drawn[0], *drawn[1]])
    return st.builds(
        Scenario,
        seeded=st.integers(1, 5),
        transactions=st.lists(st.lists(STEPS, min_size=1, max_size=4).map(tuple), min_size=6, max_size=18).map(tuple),
        quiet=st.sampled_from([0, 1, 1, 1]) if early else st.just(0),
        pace=st.lists(st.integers(0, 2), min_size=10, max_size=40).map(tuple),
        unseen=st.lists(st.sampled_from([0, 2, 4, 12]), min_size=6, max_size=18).map(tuple),
        faults=faults.map(tuple),
        killed=st.booleans(),
        cut_records=st.integers(1, 8),
        chunk_rows=st.integers(1, 4),
        workers=st.sampled_from([1, 2, 3]),
        late=st.sampled_from([0, 0, 1, 2, 3]),
    )


LAW = settings(
    max_examples=1000 if FULL else 50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@LAW
@given(scenarios(early=False))
def test_any_workload_through_any_faults_arrives_exactly_once(scenario: Scenario) -> None:
    """Fold = table; positions increase; transactions whole; nothing doubled, lost, or acknowledged too early."""
    world = run(scenario)
    event(f"faults fired: {len(world.faults.fired)}")
    event(f"snapshot resumed: {_resumed(world)}")


@LAW
@given(scenarios(early=True))
def test_a_snapshot_resumed_under_a_new_view_hides_exactly_what_it_saw(scenario: Scenario) -> None:
    """An event is hidden if and only if the view its key was read under saw its transaction, whatever the LSNs say."""
    world = run(scenario)
    event(f"snapshot resumed: {_resumed(world)}")


# Controls: the loop, broken on purpose. A law that cannot fail says nothing.


SEARCHING = settings(
    max_examples=800,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def breaks(law: Callable[[T], object], examples: SearchStrategy[T], how: settings = SEARCHING) -> bool:
    """Whether some example breaks the law, as it must where a part is broken on purpose."""

    def broken(example: T) -> bool:
        try:
            law(example)
        except Violation:
            return True
        return False

    try:
        hypothesis.find(examples, broken, settings=how)
    except hypothesis.errors.NoSuchExample:
        return False
    return True


def caught(parts: Parts | None = None, *, early: bool = True) -> bool:
    """Whether some scenario shows the laws broken."""

    def law(scenario: Scenario) -> None:
        try:
            run(scenario, parts)
        except OperatorError as exc:
            if exc.message.startswith("a gap"):
                raise Violation(exc.message) from exc

    return breaks(law, scenarios(early=early))


class ByLsn(MemoryHandover):
    """Hides what lies before the view's end in the log: the watermark by LSN that PostgreSQL's visibility forbids."""

    def __init__(self, log: MemoryLog, progress: Mapping[str, Any]) -> None:
        super().__init__(progress)
        self._commits = {logged.xid: logged.commit for logged in log.transactions}

    def saw(self, table: Table, view: int, xid: int) -> bool:
        return view in self.views and self._commits[xid] < self.views[view].end


class Blind(MemoryHandover):
    """Hides nothing."""

    def hides(self, change: Change, xid: int) -> bool:
        return False


class OtherHandover(MemorySnapshotter):
    """A snapshotter with another rule of what its rows contain."""

    def __init__(self, world: World, made: Callable[[MemoryLog, Mapping[str, Any]], Handover]) -> None:
        super().__init__(world.log, rows_each=1, workers=world.scenario.workers, at=world.at)
        self._world, self._made = world, made

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        found = super().handover(tables, progress)
        return found and self._made(self._world.log, progress)


def test_control_a_handover_by_lsn_is_caught() -> None:
    """Commits reach the log before they become visible: by LSN, a change is hidden that no row contains."""
    assert caught(Parts(snapshotter=lambda world: OtherHandover(world, ByLsn)))


def test_control_a_handover_that_hides_nothing_is_caught() -> None:
    """What a resumed snapshot's rows contain must not come again."""
    assert caught(Parts(snapshotter=lambda world: OtherHandover(world, lambda _, progress: Blind(progress))))


class OneFrontier(MemorySnapshotter):
    """Notes how far the reader in front has come, as if nobody stood behind it."""

    def __init__(self, world: World) -> None:
        super().__init__(world.log, rows_each=1, workers=world.scenario.workers, at=world.at)

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        for chunk in super().chunks(tables, progress, view):
            noted: Any = chunk.progress
            for table in noted["tables"].values():
                read = [n for n, r in enumerate(table["ranges"]) if r["view"] is not None]
                for r in table["ranges"][: max(read, default=0)]:
                    r["view"] = chunk.view if r["view"] is None else r["view"]
            yield chunk


def test_control_one_frontier_for_several_readers_is_caught() -> None:
    """What lies behind the reader in front has not been read, and nobody would read it."""
    assert caught(Parts(snapshotter=OneFrontier))


class Impatient(MemorySnapshotter):
    """Takes a new view at once."""

    def __init__(self, world: World) -> None:
        super().__init__(world.log, rows_each=1, workers=world.scenario.workers, at=world.at)
        self._world = world

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        held_from, self._world.log.held_from = self._world.log.held_from, 0
        for chunk in super().chunks(tables, progress, view):
            self._world.log.held_from = held_from
            yield chunk
        self._world.log.held_from = held_from


def test_control_a_new_view_that_does_not_wait_for_held_commits_is_caught() -> None:
    """A commit logged before the slot's point and not yet visible is in neither the log to come nor a new view."""
    put = Step("put", 0, 0, 0, long=False, leave_out=False)
    held = Scenario(
        seeded=1, transactions=((put,), (put,)), quiet=0, pace=(0, 0, 0, 0, 0, 0, 1), unseen=(0, 30),
        faults=(("source.held", 1), ("sink.commit.answer", 2)), killed=True, cut_records=1, chunk_rows=1,
    )  # fmt: skip
    run(held)
    with pytest.raises(Violation, match="fold"):
        run(held, Parts(snapshotter=Impatient))


def test_control_acknowledging_before_the_commit_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The source may forget only what Kafka holds."""
    commit_position = cdc.capture.session.Session._commit_position

    def hasty(self: Any) -> None:
        self._source.acknowledge(self._source.position()[0])
        commit_position(self)

    monkeypatch.setattr(cdc.capture.session.Session, "_commit_position", hasty)
    assert caught()


class PositionApart(MemorySink):
    """Commits the records first and the position in a transaction of its own."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kafka, CONNECTOR, PREFIX, at=world.at)

    def commit(self, state: State) -> None:
        self._kafka.end(self._producer, Outcome.COMMITTED)
        self._transaction = None
        super().commit(state)


def test_control_a_position_apart_from_its_records_is_caught() -> None:
    """Records and position become visible together, or neither does."""
    assert caught(Parts(sink=PositionApart))


class Trusting(MemorySink):
    """Takes a commit that raised for one that did not happen."""

    def __init__(self, world: World) -> None:
        super().__init__(world.kafka, CONNECTOR, PREFIX, at=world.at)
        self._world = world

    def fence(self) -> State | None:
        super().fence()
        return getattr(self._world, "returned", None)

    def commit(self, state: State) -> None:
        super().commit(state)
        self._world.returned = state  # type: ignore[attr-defined]


def test_control_taking_an_unknown_outcome_for_a_failure_is_caught() -> None:
    """A commit that raised may have happened: only the position topic knows."""
    assert caught(Parts(sink=Trusting))


class Skipping(CheckedSource):
    """Resumes one transaction late."""

    def stream(self, offset: Offset) -> Iterator[Any]:
        return super().stream({"at": int(offset["at"]) + 16})


def test_control_a_source_that_resumes_late_is_caught() -> None:
    """Every transaction from the committed position on comes again."""
    assert caught(Parts(source=Skipping))


class Forgetful(CheckedSource):
    """Leaves out the last change of a transaction."""

    def _changes(self, logged: Logged) -> Iterator[Change]:
        changes = list(super()._changes(logged))
        yield from changes[:-1] if len(changes) > 1 else changes


def test_control_half_a_transaction_is_caught() -> None:
    """A source transaction is visible whole or not at all."""
    assert caught(Parts(source=Forgetful))


def _orders(what: str, key: int, other: int = 0, *, leave_out: bool = False) -> tuple[Step, ...]:
    return (Step(what, 0, key, other, long=True, leave_out=leave_out),)


MOVED_WHILE_UNREAD = Scenario(
    seeded=2,
    transactions=(_orders("put", 1), _orders("put", 4), _orders("move", 4, 0, leave_out=True), _orders("put", 4)),
    quiet=1,
    pace=(2,),
    unseen=(),
    faults=(("sink.commit", 5),),
    killed=True,
    cut_records=1,
    chunk_rows=1,
)
"""k1 is read; the process ends; the unread k4 becomes k0, whose place was read, and another row becomes k4."""


def test_control_wide_values_of_a_later_row_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The row a snapshot read under a key may be a later one than the row that left that key in the log."""
    find = ToastValues.find

    def careless(self: ToastValues, *args: Any, published: bool, **more: Any) -> tuple[dict[str, bytes], bool]:
        return find(self, *args, published=True, **more)

    run(MOVED_WHILE_UNREAD)
    monkeypatch.setattr(ToastValues, "find", careless)
    with pytest.raises(Violation, match=r"other rows than the source had|fold"):
        run(MOVED_WHILE_UNREAD)


def test_a_value_left_out_of_a_row_that_moved_while_unread() -> None:
    """A row that moves from keys not read into keys read, during an interrupted snapshot, arrives whole."""
    world = run(MOVED_WHILE_UNREAD)
    assert world.asked
