"""`cdc.follow` under any workload and any fault: a program that goes back to what it has done has every row, once.

The program of the model keeps its rows with the position, in one step (the recipe for exactly once). When it is killed,
both are what they were at the last `done`. So whatever is lost, doubled or torn between the log and the program shows
in its rows. The workload and the twins are those of the loop's own laws.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import hypothesis
import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cdc.capture.pipeline import Pipeline, Settings
from cdc.files.position_file import Contents
from cdc.files.topicless_sink import UNSENT, TopiclessSink
from cdc.library.changes import Transaction, table_of
from cdc.library.follow import _transactions
from cdc.library.handover import Batch, Channel, Progress
from cdc.library.handover_sink import HandoverSink
from cdc.library.values import UNCHANGED
from cdc.model.change import Offset
from cdc.model.errors import RetryableError
from cdc.model.state import State
from cdc.testing import Inline, Killed
from sinks.jsonl import JsonlSink
from tests.conftest import FULL
from tests.property.test_pipeline_laws import (
    CONNECTOR,
    LAW,
    PREFIX,
    TABLES,
    CheckedSource,
    MemorySource,
    Parts,
    Scenario,
    Step,
    Violation,
    World,
    _hurried,
    _json,
    breaks,
    catch_up,
    holds,
    scenarios,
)


class File:
    """A twin of the position file: what was written is there."""

    def __init__(self) -> None:
        self.text = b""
        self.contents = Contents()

    def read(self) -> Contents:
        return Contents.from_bytes(self.text, where="here") if self.text else Contents()

    def write(self, contents: Contents) -> None:
        self.text = contents.to_bytes()


class Program:
    """Takes what it is given at once, and is done with some of it."""

    def __init__(self, dones: list[bool]) -> None:
        self.file = File()
        self.rows: dict[str, dict[str, dict[str, Any]]] = {}
        self.told: set[tuple[str, str]] = set()
        self._kept = copy.deepcopy((self.rows, self.told))
        self._dones = dones

    def killed(self) -> None:
        """Go back to what was done."""
        self.rows, self.told = copy.deepcopy(self._kept)

    def takes(self, transactions: Iterator[Transaction]) -> None:
        for transaction in transactions:
            for change in transaction:
                self._take(change, transaction)
            if self._dones.pop(0) if self._dones else True:
                self._kept = copy.deepcopy((self.rows, self.told))
                transaction.done()

    def _take(self, change: Any, transaction: Transaction) -> None:
        rows = self.rows.setdefault(change.table, {})
        if transaction.id is not None:
            holds((transaction.id, change.position) not in self.told, "a change is told twice")
            self.told.add((transaction.id, change.position))
        if change.op == "t":
            rows.clear()
            return
        key = orjson.dumps(change.key).decode()
        if change.op == "d":
            rows.pop(key, None)
            return
        was = rows.get(key, {})
        rows[key] = {name: was.get(name) if value is UNCHANGED else value for name, value in change.after.items()}


class Handed(Channel):
    """One thread: what is put is taken."""

    def __init__(self, program: Program, progress: Progress) -> None:
        super().__init__()
        self._program, self._progress, self._readers = program, progress, {}  # type: ignore[var-annotated]

    def put(self, batch: Batch, tend: Any) -> None:
        self._progress.handed_over(batch)
        self._program.takes(_transactions(batch, self._progress, self._readers))


class SafeSource(CheckedSource):
    """Sees to it that nothing is acknowledged that was not done."""

    world_file: File

    def acknowledge(self, offset: Offset) -> None:
        state = self._world.file.read().state  # type: ignore[attr-defined]
        holds(state is not None and int(offset["at"]) <= int(state.offset["at"]), "acknowledged before it was done")
        MemorySource.acknowledge(self, offset)


def follow(scenario: Scenario, dones: list[bool], *, source: type[SafeSource] = SafeSource) -> Program:
    world, program = World(scenario, Parts()), Program(dones)
    world.file = program.file  # type: ignore[attr-defined]
    for _ in range(scenario.seeded):
        world.commit_next()

    def once() -> None:
        try:
            _run(world, program, source)
        finally:
            program.killed()  # a program that ends with something undone is given it again, too

    with _hurried(scenario):
        catch_up(world, once)
        program._dones.clear()
        for _ in range(len(scenario.faults) + 1):
            with contextlib.suppress(Killed, RetryableError):
                _run(world, program, source)
    for table in TABLES:
        expected = [_json(table, row) for row in world.log.rows(table).values()]
        found = program.rows.get(table.qualified, {}).values()
        same = sorted(found, key=orjson.dumps) == sorted(expected, key=orjson.dumps)
        holds(same, f"the program's rows of {table.qualified} are not the table")
    return program


def _run(world: World, program: Program, source: type[SafeSource]) -> None:
    progress = Progress(program.file)  # type: ignore[arg-type]
    channel = Handed(program, progress)
    sink = HandoverSink(progress, channel, where="here", make=None)

    def opened() -> MemorySource:
        found = source(world)
        acknowledge = found.acknowledge

        def safe(_offset: Offset) -> None:
            if sink.safe is not None:
                acknowledge(dict(sink.safe))

        found.acknowledge = safe  # type: ignore[method-assign]
        return found

    Pipeline(
        Settings(connector=CONNECTOR, prefix=PREFIX, chunk_rows=world.scenario.chunk_rows, unsent=orjson.dumps(UNSENT)),
        open_source=opened,
        open_snapshotter=lambda: world.parts.snapshotter(world),
        sink=sink,
        executor=Inline,
    ).run(until_caught_up=True)


FEW = hypothesis.settings(
    max_examples=300 if FULL else 30, deadline=None, suppress_health_check=list(hypothesis.HealthCheck)
)
DONES = st.lists(st.booleans(), max_size=40)


@LAW
@given(scenarios(early=False), DONES)
def test_a_program_has_every_row_once(scenario: Scenario, dones: list[bool]) -> None:
    follow(scenario, dones)


def _put(table: int, what: str = "put") -> Step:
    return Step(what=what, table=table, key=0, other=0, long=False, leave_out=False)


DONE_BEFORE_THE_SNAPSHOT_ENDED = Scenario(
    seeded=1,
    transactions=((_put(1),), (_put(0),), (_put(0), _put(0), _put(1, "truncate")), (_put(0),), (_put(0),), (_put(0),)),
    quiet=0,
    pace=(0, 0, 0, 0, 0, 0, 0, 1, 0, 1),
    unseen=(0,) * 6,
    faults=(("snapshot.chunk", 3),),
    killed=False,
    cut_records=1,
    chunk_rows=1,
    workers=1,
    late=2,
)
"""The next start commits a position before it has told anything."""


@FEW
@given(scenarios(early=True), DONES)
@example(DONE_BEFORE_THE_SNAPSHOT_ENDED, [False, False, False, True, False, False, False, False])
def test_also_where_the_snapshot_was_interrupted(scenario: Scenario, dones: list[bool]) -> None:
    follow(scenario, dones)


class Hasty(SafeSource):
    """Acknowledges what was handed over, done or not."""

    def acknowledge(self, offset: Offset) -> None:
        super().acknowledge({"at": int(offset["at"]) + 16})


def caught(source: type[SafeSource] = SafeSource) -> bool:
    """Whether some scenario shows the law broken."""
    how = hypothesis.settings(
        max_examples=200, derandomize=True, database=None, phases=[hypothesis.Phase.generate], deadline=None
    )
    examples = st.tuples(scenarios(early=False), DONES)
    return breaks(lambda drawn: follow(drawn[0], list(drawn[1]), source=source), examples, how)


def test_control_acknowledging_what_is_not_done_is_caught() -> None:
    assert caught(Hasty)


def test_control_a_position_that_is_ahead_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A transaction in the middle of a batch that is done must not take those behind it with it."""

    def done(self: Progress, batch: Batch, index: int) -> None:
        self._write(batch.after)

    monkeypatch.setattr(Progress, "done", done)
    assert caught()


# The sink that is a file: what its lines come to.


class Unsteady(JsonlSink):
    """Fails before a commit, behind it, and between the lines and their position."""

    def __init__(self, path: Path, world: World) -> None:
        super().__init__(path, CONNECTOR)
        self._world = world

    def commit(self, state: State) -> None:
        self._world.at("sink.commit")
        assert self._position is not None
        write = self._position.write

        def then(contents: Contents) -> None:
            self._world.at("sink.commit.delayed")
            write(contents)

        self._position.write = then  # type: ignore[method-assign]
        try:
            super().commit(state)
        finally:
            self._position.write = write  # type: ignore[method-assign]
        self._world.at("sink.commit.answer")


def caught_up(scenario: Scenario, sink: Callable[[World], TopiclessSink]) -> World:
    """A scenario's world at the end of its log, with all of it in a sink of files."""
    world = World(scenario, Parts())
    for _ in range(scenario.seeded):
        world.commit_next()
    settings = Settings(connector=CONNECTOR, prefix=PREFIX, chunk_rows=scenario.chunk_rows, unsent=orjson.dumps(UNSENT))
    with _hurried(scenario):
        for _ in range(4 * len(scenario.faults) + 2 * len(scenario.transactions) + 12):
            end = world.log.end
            pipeline = Pipeline(
                settings,
                open_source=lambda: MemorySource(world.log, TABLES, at=world.at),
                open_snapshotter=lambda: world.parts.snapshotter(world),
                sink=sink(world),
                executor=Inline,
            )
            try:
                pipeline.run(until_caught_up=True)
            except (Killed, RetryableError):
                continue
            if not world.commit_next() and world.log.end == end:
                return world
    raise Violation("it never caught up")


def lines_of(scenario: Scenario, path: Path) -> tuple[World, list[dict[str, Any]]]:
    world = caught_up(scenario, lambda world: Unsteady(path, world))
    return world, [orjson.loads(line) for line in path.read_bytes().splitlines()]


@FEW
@given(scenarios(early=False))
def test_the_lines_of_a_file_are_the_tables(tmp_path_factory: pytest.TempPathFactory, scenario: Scenario) -> None:
    """Each event once, positions of a key rise, and the fold is the table."""
    world, lines = lines_of(scenario, tmp_path_factory.mktemp("jsonl") / "changes.jsonl")
    rows: dict[str, dict[str, Any]] = {}
    seen, last = set(), dict[str, str]()
    for event in lines:
        table, key = table_of(event), orjson.dumps(event["key"]).decode()
        held = rows.setdefault(table, {})
        if event["transaction"] is not None:
            at = (event["transaction"]["id"], event["transaction"]["total_order"])
            holds(at not in seen, "an event is there twice")
            seen.add(at)
        if event["op"] == "t":
            held.clear()
            continue
        holds(last.get(f"{table} {key}", "") < event["source"]["position"], "positions of a key do not rise")
        last[f"{table} {key}"] = event["source"]["position"]
        if event["op"] == "d":
            held.pop(key, None)
        else:
            was = held.get(key, {})
            held[key] = {name: was.get(name) if value == UNSENT else value for name, value in event["after"].items()}
    for of in TABLES:
        expected = sorted((_json(of, row) for row in world.log.rows(of).values()), key=orjson.dumps)
        holds(
            sorted(rows.get(of.qualified, {}).values(), key=orjson.dumps) == expected, f"{of.qualified} is not its fold"
        )
