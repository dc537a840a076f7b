"""A connector's whole life as a state machine: any order of commits, faults, kills, commands, gaps and added tables.

The world changes under it, too: rows without events, the publication, topics, settings of topics and sessions. The
fold is the table all the same, or the connector has stopped with a verdict.

No server: a log, a broker with unknown outcomes and delayed markers, and time that passes at every point the loop goes
through. After each run the folds are compared, at the end every law is held against everything ever written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any, Final

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import cdc.capture.commit_pace
import cdc.capture.control.commands
import cdc.capture.pipeline
import cdc.capture.session
import cdc.capture.snapshots.incremental_snapshot
import cdc.encode.truncates
from cdc.capture.control.signals import Command, parse
from cdc.encode.table_log import log_of
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.encode.window_keys import LoggedKeys
from cdc.model.change import Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import ChangedError, GapError, OperatorError, RetryableError
from cdc.model.interfaces import LINEAGE, Start, Window
from cdc.model.state import Phase as Stage
from cdc.model.state import State
from cdc.testing import POINTS, Killed, MemorySink, MemorySnapshotter, Outcome, Record
from tests.conftest import FULL
from tests.property.test_pipeline_laws import (
    CONNECTOR,
    KEYS,
    PREFIX,
    STEPS,
    TABLES,
    CheckedSource,
    Oracle,
    Parts,
    Scenario,
    Step,
    Violation,
    World,
    _key,
    holds,
)

STEPS_IN_ALL: Final = 1_000_000 if FULL else 10_000
EACH = 50
FAULTY = [point for point in POINTS if point != "source.idle"]
EMPTY = Scenario(
    seeded=0, transactions=(), quiet=0, pace=(), unseen=(), faults=(), killed=False, cut_records=4, chunk_rows=2
)


class WatchedSource(CheckedSource):
    """Compares how often rows of its tables have changed without events: a twin of the ledger of PostgreSQL."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._live = world if isinstance(world, LiveWorld) else None
        self._silent: Mapping[str, int] = world.silent if isinstance(world, LiveWorld) else {}
        self._then: dict[str, str] = {}
        self._stale: dict[str, str] = {}

    def connect(self) -> Mapping[str, str]:
        if self._live is not None and self._live.misset:
            raise OperatorError("the session has other settings than were asked for", hint="ask the pooler")
        return {**super().connect(), LINEAGE: str(self._live.fail_overs if self._live is not None else 0)}

    def _now(self) -> dict[str, str]:
        return {name: str(self._silent.get(name, 0)) for name in self._log.carried}

    def verify(self, state: State) -> tuple[Offset, int] | None:
        moved = super().verify(state)
        self._then = self._now()
        different = [name for name, then in state.carried.items() if self._then.get(name, then) != then]
        self._stale = dict.fromkeys(different, "rows have changed without events")
        if self._live is not None and state.identity[LINEAGE] != str(self._live.fail_overs):
            return state.offset, state.commit
        return moved

    def hold(self, tables: Sequence[Table]) -> Start:
        self._log.carried |= {table.qualified for table in tables}
        self._then, self._stale = self._now(), {}
        return super().hold(tables)

    def extend(self, tables: Sequence[Table]) -> None:
        super().extend(tables)
        self._then = {**self._now(), **self._then}

    def carried(self) -> Mapping[str, str]:
        return self._then

    def stale(self) -> Mapping[str, str]:
        return self._stale

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        for frame in super().stream(offset):
            now = self._now()
            if self._then.keys() - now.keys():
                raise OperatorError("the log no longer carries all tables", hint="put them in again")
            if any(now[name] != then for name, then in self._then.items()):
                raise ChangedError("rows have changed without events")
            yield frame


class LiveWorld(World):
    """A world whose connector is also asked to read tables again."""

    def __init__(self, parts: Parts | None = None) -> None:
        super().__init__(EMPTY, parts or Parts(source=WatchedSource))
        self.silent: dict[str, int] = {}
        """How often rows of a table may have changed without events."""
        self.taken_out: set[str] = set()
        """Tables that somebody has taken out of the publication."""
        self.lost = 0
        """How many topics were lost."""
        self.misset = False
        """Whether the source's sessions are not set as they ask for."""
        self.plan: list[tuple[str, int, type[BaseException]]] = []
        self.asks: list[Command] = []
        """Commands that come while the connector works, one at each of the next points."""
        self.commanded = 0
        self.gaps = 0
        self.fail_overs = 0
        self.pauses = 0
        self.fired = 0

    def at(self, point: str) -> None:
        super().at(point)
        if self.asks and point in ("source.idle", "source.frame", "snapshot.window", "snapshot.chunk"):
            self.ask(self.asks.pop(0))
        if self.plan and self.plan[0][0] == point:
            name, left, error = self.plan.pop(0)
            if left > 1:
                self.plan.insert(0, (name, left - 1, error))
            else:
                self.fired += 1
                raise error(f"injected at {point}")

    def ask(self, command: Command) -> None:
        """As `cdc snapshot` does; before the connector ever ran there is nowhere to ask."""
        topic = f"{PREFIX}.signal-{CONNECTOR}"
        if topic not in self.kafka.topics:
            return
        self.commanded += 1
        key = b"%d" % self.commanded
        transaction = self.kafka.begin("cdc snapshot")
        self.kafka.topics[topic].append(Record(topic, key, command.to_bytes(key.decode()), transaction))
        self.kafka.end("cdc snapshot", Outcome.COMMITTED)

    def commit_silently(self, changes: Sequence[Step]) -> None:
        """DDL changes rows, or a partition goes: whatever no event tells."""
        tables = {TABLES[step.table].qualified for step in changes}
        carried, self.log.carried = self.log.carried, self.log.carried - tables
        self._coming.insert(0, tuple(changes))
        self._unseen.insert(0, 0)
        self.commit_next()
        self.log.carried = carried
        for name in tables:
            self.silent[name] = self.silent.get(name, 0) + 1

    def take_out(self, name: str) -> None:
        """As `ALTER PUBLICATION … DROP TABLE` does."""
        if name in self.log.carried:
            self.log.carried -= {name}
            self.taken_out.add(name)

    def put_in(self, names: Iterable[str]) -> None:
        """Undo `take_out`: a start sees that they were out."""
        for name in list(names):
            self.taken_out.discard(name)
            self.log.carried |= {name}
            self.silent[name] = self.silent.get(name, 0) + 1

    def set_back(self) -> None:
        """All settings are as they must be."""
        self.misset = False
        self.kafka.refused.clear()

    def lose_topics(self, topics: Iterable[str], *, records_alone: bool) -> None:
        """Somebody deletes topics, or the records in them, while the connector does not run."""
        for topic in topics:
            if topic in self.kafka.topics:
                self.lost += 1
                self.asked = True  # of transactions that were in it, events are missing
                (self.kafka.delete_records if records_alone else self.kafka.delete)(topic)

    def lose_the_log(self) -> None:
        """The slot is dropped by somebody."""
        self.log.held_from = None
        self.gaps += 1
        self.ask(Command(tables=(), after_gap=True))

    def run(self) -> bool:
        """One process of the connector, to its end or its death; True if it caught up."""
        with hurried():
            try:
                self.pipeline().run(until_caught_up=True)
            except (Killed, RetryableError):
                return False
            except GapError:
                holds(self.gaps, "a gap where there is none")
                self.ask(Command(tables=(), after_gap=True))
                return False
            except OperatorError as exc:
                if "other settings" in exc.message:
                    holds(self.misset or self.kafka.refused, "settings that are as they must be")
                    return False
                if "no longer carries" in exc.message:
                    holds(self.taken_out, "a table that was taken out, and none was")
                    return False
                holds("is paused" in exc.message and self.pauses, "stopped without a reason")
                self._stay_paused()
                return False
        return True

    def _stay_paused(self) -> None:
        """Started again, it is where it was, until it is resumed."""
        before = self.states()[-1]
        holds(before.paused_ms, "a pause that is not in the position")
        asks, self.asks = self.asks, []
        waiting = MemorySink(self.kafka, CONNECTOR, PREFIX).commands()
        if all(parse(value).pause is not False for _, value in waiting):
            with suppress(Killed, RetryableError, OperatorError):
                self.pipeline().run(until_caught_up=True)
            after = self.states()[-1]
            if after.epoch == before.epoch:  # else a gap was gone behind, as asked
                holds(after.paused_ms == before.paused_ms, "a pause that was forgotten")
                holds((after.offset, after.snapshot) == (before.offset, before.snapshot), "it went on while paused")
            self.ask(Command(pause=False))
        self.asks = asks


@contextmanager
def hurried() -> Iterator[None]:
    """No waiting; commits by records alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
        patch.setattr(cdc.capture.commit_pace, "CUT_AGE_S", 1e9)
        patch.setattr(cdc.capture.commit_pace, "APART_MOST_S", 0.0)
        patch.setattr(cdc.capture.control.commands, "COMMANDS_S", 0.0)
        patch.setattr(cdc.capture.commit_pace, "CUT_RECORDS", 4)
        patch.setattr(cdc.capture.snapshots.incremental_snapshot, "RETRY_S", 0.0)
        yield


class LiveOracle(Oracle):
    """Where the log had a gap, no event can be asked for; the rest holds all the same."""

    def _events(self) -> None:
        world = self.world
        assert isinstance(world, LiveWorld)
        if not (world.gaps or world.silent or world.lost):
            super()._events()


class Life(RuleBasedStateMachine):
    """What may happen to a connector, in any order."""

    steps = 0
    parts: Parts | None = None

    @initialize(early=st.booleans(), steps=st.lists(st.lists(STEPS, min_size=1, max_size=4), max_size=4))
    def begin(self, early: bool, steps: list[list[Step]]) -> None:
        self.world = LiveWorld(self.parts)
        self.world.captured = TABLES if early else TABLES[1:]
        for changes in steps:
            self.commit(changes)

    @rule(changes=st.lists(STEPS, min_size=1, max_size=4))
    def commit(self, changes: list[Step]) -> None:
        Life.steps += 1
        self.world._coming.append(tuple(changes))
        self.world.commit_next()

    @rule(
        changes=st.lists(STEPS, min_size=1, max_size=4), after=st.integers(0, 12), unseen=st.sampled_from([0, 2, 6, 20])
    )
    def commit_while_it_works(self, changes: list[Step], after: int, unseen: int) -> None:
        Life.steps += 1
        self.world._coming.append(tuple(changes))
        self.world._unseen.append(unseen)
        self.world._pace += [0] * after + [1]

    @rule(point=st.sampled_from(FAULTY), passing=st.integers(1, 8), error=st.sampled_from([Killed, RetryableError]))
    def fail(self, point: str, passing: int, error: type[BaseException]) -> None:
        Life.steps += 1
        self.world.plan.append((point, passing, error))

    @rule(
        table=st.integers(0, len(TABLES) - 1),
        stop=st.sampled_from([False, False, False, True]),
        keys=st.lists(KEYS, max_size=3),
        now=st.booleans(),
    )
    def ask(self, table: int, stop: bool, keys: list[int], now: bool) -> None:
        Life.steps += 1
        of = TABLES[table]
        command = Command(tables=(of.qualified,), stop=stop, keys=tuple(_key(of, key) for key in keys))
        if now:
            self.world.ask(command)
        else:
            self.world.asks.append(command)

    @rule(pause=st.booleans(), now=st.booleans())
    def pause(self, pause: bool, now: bool) -> None:
        Life.steps += 1
        self.world.pauses += pause
        if now:
            self.world.ask(Command(pause=pause))
        else:
            self.world.asks.append(Command(pause=pause))

    @precondition(lambda self: self.world.captured != TABLES)
    @rule()
    def add_a_table(self) -> None:
        Life.steps += 1
        self.world.captured = TABLES

    @precondition(lambda self: self.world.gaps < 2 and any(s.phase is Stage.STREAM for s in self.world.states()))
    @rule()
    def lose_the_log(self) -> None:
        Life.steps += 1
        self.world.lose_the_log()

    @rule(changes=st.lists(STEPS, min_size=1, max_size=3))
    def commit_silently(self, changes: list[Step]) -> None:
        Life.steps += 1
        self.world.commit_silently(changes)

    @rule(table=st.integers(0, len(TABLES) - 1))
    def take_out_of_the_publication(self, table: int) -> None:
        Life.steps += 1
        self.world.take_out(TABLES[table].qualified)

    @precondition(lambda self: self.world.taken_out)
    @rule()
    def put_back_into_the_publication(self) -> None:
        Life.steps += 1
        self.world.put_in(self.world.taken_out)

    @rule(table=st.integers(0, len(TABLES)), records_alone=st.booleans())
    def lose_a_topic(self, table: int, records_alone: bool) -> None:
        Life.steps += 1
        if table == len(TABLES):
            self.world.lose_topics([f"{PREFIX}.schema"], records_alone=False)
            return
        topic = f"{PREFIX}.{TABLES[table].qualified}"
        self.world.lose_topics([topic, log_of(topic)], records_alone=records_alone)

    @rule(table=st.integers(0, len(TABLES)))
    def set_otherwise(self, table: int) -> None:
        Life.steps += 1
        if table == len(TABLES):
            self.world.misset = True
        else:
            self.world.kafka.refused.add(f"{PREFIX}.{TABLES[table].qualified}")

    @precondition(lambda self: self.world.misset or self.world.kafka.refused)
    @rule()
    def set_back(self) -> None:
        Life.steps += 1
        self.world.set_back()

    @rule()
    def fail_over(self) -> None:
        """A standby that has the whole log takes over."""
        Life.steps += 1
        self.world.fail_overs += 1

    @rule()
    def run_once(self) -> None:
        Life.steps += 1
        self.world.run()

    def teardown(self) -> None:
        world = self.world
        world._pace.clear()
        world.put_in(world.taken_out)
        world.set_back()
        while world.commit_next():
            pass
        for _ in range(8 + 2 * len(world.plan) + 2 * world.gaps + 4 * world.pauses):
            end = world.log.end
            if world.run() and world.log.end == end and not world.plan and world.captured == TABLES:
                break
            world.captured = TABLES
            if world.run() and world.log.end == end:
                world.plan.clear()  # what the loop never comes by
        else:
            raise Violation("the connector never caught up")
        LiveOracle(world).check()


def test_a_table_added_whose_first_view_fails_misses_nothing() -> None:
    """The next view too must see all that was committed before the log had the table, however late that shows."""
    life = Life()
    life.begin(early=False, steps=[])
    life.run_once()
    life.fail("snapshot.window", 1, RetryableError)
    life.add_a_table()
    put = Step(what="put", table=0, key=0, other=0, long=False, leave_out=False)
    life.commit_while_it_works([put], after=0, unseen=20)
    life.teardown()


def test_a_truncate_of_many_keys_does_not_confirm_rows_that_went_silently_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A start has found that rows went at an unknown place of the log, which then has a truncate and some of them."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 0)
    put, truncate, gone = (
        Step(what=what, table=1, key=1, other=0, long=False, leave_out=False) for what in ("put", "truncate", "delete")
    )
    life = Life()
    life.begin(early=True, steps=[[put]])
    life.run_once()
    for step in (truncate, put):
        life.commit([step])
    life.commit_silently([gone])
    life.teardown()


def test_rows_that_went_silently_before_a_fail_over_are_not_confirmed_by_events_that_are_read_behind_it() -> None:
    """A start has found that rows went at an unknown place of the log, and was killed before it had read that."""
    put, gone = (Step(what=what, table=1, key=1, other=0, long=False, leave_out=False) for what in ("put", "delete"))
    life = Life()
    life.begin(early=True, steps=[])
    life.run_once()
    life.commit([put])
    life.commit_silently([gone])
    life.fail("sink.commit.answer", 1, Killed)
    life.run_once()
    assert life.world.states()[-1].reading
    life.fail_over()
    life.teardown()


def test_a_gap_forgets_no_deletes_of_a_table_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was emptied and dropped, the connector was killed as it wrote the deletes, and then the log was lost."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 0)
    life = Life()
    put, truncate = (
        Step(what=what, table=0, key=1, other=0, long=False, leave_out=False) for what in ("put", "truncate")
    )
    life.begin(early=True, steps=[[put]])
    life.run_once()
    life.commit([truncate])
    life.fail("sink.commit.answer", 1, Killed)
    life.run_once()
    world = life.world
    assert world.states()[-1].reading[TABLES[0].qualified]["emptied"]
    world.captured = TABLES[1:]
    life.lose_the_log()
    assert world.run()
    assert world.kafka.committed(f"{PREFIX}.{TABLES[0].qualified}")[-1].value is None


@pytest.mark.timeout(14_400 if FULL else 900)
def test_any_life_ends_with_every_law_kept() -> None:
    """At least 10,000 steps; a million in `make test-all`."""
    Life.steps = 0
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        Life,
        settings=settings(
            max_examples=STEPS_IN_ALL // EACH * 7 // 5,
            stateful_step_count=EACH,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
    print(f"{Life.steps:,} steps")
    assert Life.steps >= STEPS_IN_ALL


# Controls: the rules of reading beside the log, taken out one by one.


class QuietLife(Life):
    """A life in which nothing changes but rows: what a rule is for shows in a tenth of the time."""

    commit_silently = None  # type: ignore[assignment]
    lose_a_topic = None  # type: ignore[assignment]
    pause = None  # type: ignore[assignment]
    put_back_into_the_publication = None  # type: ignore[assignment]
    set_back = None  # type: ignore[assignment]
    set_otherwise = None  # type: ignore[assignment]
    take_out_of_the_publication = None  # type: ignore[assignment]


class FaultlessLife(QuietLife):
    """One in which nothing fails either, and no table is added."""

    add_a_table = None  # type: ignore[assignment]
    fail = None  # type: ignore[assignment]
    lose_the_log = None  # type: ignore[assignment]


def caught(lives: type[Life] = QuietLife) -> bool:
    """Whether some life shows the laws broken."""
    searching = settings(
        max_examples=3000,
        stateful_step_count=30,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
    )
    try:
        run_state_machine_as_test(lives, settings=searching)  # type: ignore[no-untyped-call]
    except Violation:
        return True
    return False


@pytest.mark.full  # it takes long to find, and one that is found at once stands for it
def test_control_rows_over_events_that_their_view_did_not_see_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LoggedKeys, "unseen", lambda *_: False)
    assert caught(FaultlessLife)


@pytest.mark.full  # it takes long to find, and one that is found at once stands for it
def test_control_rows_before_the_log_has_come_by_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    read = MemorySnapshotter.window

    def hasty(*arguments: Any, **more: Any) -> Window | None:
        window = read(*arguments, **more)
        return None if window is None else replace(window, end=0)

    monkeypatch.setattr(MemorySnapshotter, "window", hasty)
    assert caught(FaultlessLife)


@pytest.mark.full  # it takes long to find, and one that is found at once stands for it
def test_control_a_first_view_that_does_not_wait_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was written before anyone noted keys may not be visible yet."""
    read = MemorySnapshotter.window
    monkeypatch.setattr(MemorySnapshotter, "window", lambda *a, key, first: read(*a, key=key, first=False))
    assert caught()


@pytest.mark.full  # what it takes to find depends on what else is imported: seconds, or minutes
def test_control_keys_over_events_that_their_view_did_not_see_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A first view of keys that does not wait: the log may have told more of them before anyone listened."""
    read = MemorySnapshotter.rows
    monkeypatch.setattr(MemorySnapshotter, "rows", lambda *a, first: read(*a, first=False))
    assert caught()


def test_control_keys_that_are_gone_and_stay_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cdc.capture.snapshots.incremental_snapshot, "stale_keys", lambda *_, **__: LiveKeys())
    assert caught()
