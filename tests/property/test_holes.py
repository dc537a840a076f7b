"""Holes of the log, closed by reading again: whatever happens meanwhile, the topic ends as the table.

A third of the transactions is told as rows whose keys are known, a third as tables of which any row may have changed.
The controls take away, one by one, what makes that safe, and must be caught.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import hypothesis
import pytest
from hypothesis import HealthCheck, event, given, settings
from hypothesis import strategies as st

from cdc.capture.control.rereads import Rereads
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.model.change import UNCHANGED, Change, Message, Op, Row, Table
from cdc.model.state import Key
from cdc.testing import Logged, MemorySink, key_of
from tests.conftest import FULL
from tests.property import test_pipeline_laws as laws
from tests.property.test_pipeline_laws import (
    TABLES,
    CheckedSource,
    Oracle,
    Parts,
    Scenario,
    Step,
    World,
    breaks,
    scenarios,
)

SEARCH = settings(
    max_examples=1_000 if FULL else 30,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


class HoleySource(CheckedSource):
    """Tells of some transactions only which keys, or which tables, they have changed."""

    def _changes(self, logged: Logged) -> Iterator[Change | Message]:
        for change in super()._changes(logged):
            if isinstance(change, Message) or logged.xid % 3 == 0:
                yield change
            elif logged.xid % 3 == 1 or change.op is Op.TRUNCATE:
                yield Change(Op.READ, change.table, None, None, change.lsn)
            else:
                rows = [row for row in (change.before, change.after) if row is not None]
                for key in dict.fromkeys(key_of(change.table, row) for row in rows):
                    yield Change(Op.READ, change.table, None, _with_key(change.table, key), change.lsn)


def _with_key(table: Table, key: Key) -> Row:
    at = dict(zip(table.key_indexes, key, strict=True))
    return tuple(at.get(index, UNCHANGED) for index in range(len(table.columns)))


def _short(step: Step) -> Step:
    """A source that has holes leaves no value out of an update because it is long."""
    return replace(step, long=False, leave_out=False)


class HoleyOracle(Oracle):
    """Events of rows that were read again are not those of the log; the end is the same."""

    def check(self) -> None:
        for table in TABLES:
            self._positions_increase(table)
            self._fold_is_the_table(table)


def run(scenario: Scenario) -> World:
    plain = tuple(tuple(map(_short, steps)) for steps in scenario.transactions)
    scenario = replace(scenario, transactions=plain)
    return laws.run(scenario, Parts(source=HoleySource), oracle=HoleyOracle)


@SEARCH
@given(st.one_of(scenarios(early=False), scenarios(early=True)))
def test_a_hole_is_closed_whatever_happens(scenario: Scenario) -> None:
    """Kills and faults at any step, writers that go on, commits that are logged and not visible yet."""
    world = run(scenario)
    state = world.states()[-1]
    assert not state.reading
    event(f"read again: {min(state.rereads, 5)}")
    event(f"faults fired: {len(world.faults.fired)}")


def caught() -> bool:
    """Whether some scenario shows a connector that is broken on purpose."""
    searching = settings(SEARCH, max_examples=2_000, phases=[hypothesis.Phase.generate], database=None)
    return breaks(run, st.one_of(scenarios(early=False), scenarios(early=True)), searching)


@pytest.mark.full
def test_control_a_request_that_is_not_kept_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows are asked for, and a kill forgets it; nor is it noticed that the command is gone."""
    monkeypatch.setattr(MemorySink, "ask", lambda *_: None)
    monkeypatch.setattr(Rereads, "look_for", lambda *_: None)
    assert caught()


@pytest.mark.full
def test_control_a_view_that_need_not_see_the_hole_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log may be ahead of what is visible."""
    request = IncrementalSnapshot.request
    monkeypatch.setattr(IncrementalSnapshot, "request", lambda *of, first: request(*of, first=first and False))
    monkeypatch.setattr(IncrementalSnapshot, "_fresh", property(lambda _: False, lambda *_: None), raising=False)
    assert caught()


@pytest.mark.full
def test_control_a_reading_that_is_not_begun_again_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows change behind the window that is read."""

    def add(incremental: IncrementalSnapshot, name: str, since: str) -> None:
        incremental.add(name, since, required=True)

    monkeypatch.setattr(IncrementalSnapshot, "add_again", add)
    assert caught()
