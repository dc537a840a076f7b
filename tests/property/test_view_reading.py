"""Streams and histories of views: however events are divided into steps, the state is what all of them say."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.model.change import Kind
from spark_apply.views.fold import SourceTable
from spark_apply.views.state import ViewState, place
from spark_apply.views.step import Step
from spark_apply.views.uses import TableUse, Way
from spark_apply.views.values import quoted

_COLUMNS = [("id", Kind("int64")), ("at", Kind("timestamp_micros")), ("v", Kind("int64")), ("there", Kind("int64"))]
_START = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as the state has it
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the same
_KEEP = 10
_STREAM = TableUse("public.s", Way.STREAM, "at", _KEEP * 60_000, arrival=True)
_HISTORY = TableUse("public.s", Way.HISTORY, at="event")


@dataclass(frozen=True)
class Event:
    """A change; minutes since the start for times."""

    op: str
    key: int
    time: int | None
    value: int
    committed: int


_EVENTS = st.lists(
    st.builds(
        Event,
        st.sampled_from("crudr"),
        st.integers(1, 2),
        st.sampled_from((None, -2, 1, 6, 14, 22)),
        st.integers(1, 2),
        st.sampled_from((0, 0, 1, 2)),
    ),
    max_size=12,
)
"""Times of commit are given as steps. Times lie where something is just late, or just not, for some of them."""


def _committed(events: Sequence[Event]) -> list[int]:
    found, now = [], 0
    for number, event in enumerate(events):
        now += 8 * event.committed
        found.append(now - (5 if number % 3 == 2 else 0))  # clocks of servers are not that good
    return found


def _position(number: int) -> str:
    return f"{number:08d}"


def _instant(minutes: int) -> dt.datetime:
    return _START + dt.timedelta(minutes=minutes)


def _streamed(events: Sequence[Event]) -> set[Any]:
    """The rows of a stream, by the plain rule, event by event."""
    rows: dict[int, tuple[Event, str]] = {}
    for number, (event, at) in enumerate(zip(events, _committed(events), strict=True)):
        begin = at - _KEEP
        was = rows.get(event.key)
        over = was is not None and was[0].time is not None and was[0].time <= begin
        late = event.op != "r" and (over or (event.op != "d" and event.time is not None and event.time <= begin))
        if late:
            continue
        if event.op == "d":
            rows.pop(event.key, None)
        else:
            rows[event.key] = (event, _position(number))
    return {
        (key, None if event.time is None else _instant(event.time), event.value, 0, at)
        for key, (event, at) in rows.items()
    }


def _versions(events: Sequence[Event]) -> set[Any]:
    """The versions of a history, by the plain rule, event by event."""
    found: set[Any] = set()
    for key in {event.key for event in events}:
        open_since: tuple[str, dt.datetime | None, tuple[Any, ...]] | None = None
        seen, least = False, None
        for number, (event, at) in enumerate(zip(events, _committed(events), strict=True)):
            if event.key != key:
                continue
            row = (key, None if event.time is None else _instant(event.time), event.value, 0)
            if (event.op == "d") if open_since is None else (event.op != "d" and open_since[2] == row):
                continue
            always = not seen and event.op == "r"
            seen = True
            if not always:
                least = max(_instant(at), least) if least is not None else _instant(at)
            if open_since is not None:
                found.add((*open_since[2], open_since[0], _position(number), open_since[1], least))
            since = ("", None) if always else (_position(number), least)
            open_since = None if event.op == "d" else (*since, row)
        if open_since is not None:
            found.add((*open_since[2], open_since[0], None, open_since[1], None))
    return found


class Reading:
    """One relation in a state of its own, made empty for each example."""

    def __init__(self, folder: Path, use: TableUse) -> None:
        self.state = ViewState(folder, memory="100MB")
        self.table = SourceTable(use, _COLUMNS, ("id",))

    def rows(self, events: Sequence[Event], ends: Sequence[int]) -> set[Any]:
        """The relation's rows after steps that end before the events with these numbers."""
        relation = self.table.relation
        self.state.begin_again(seq=0, step=0)
        with self.state.transaction():
            self.state.prepare_table(relation, _COLUMNS, self.table.use.hidden, self.table.row_key)
        times, begin = _committed(events), 0
        for end in [*sorted(ends), len(events)]:
            for number in range(begin, end):
                event = events[number]
                time = None if event.time is None or event.op == "d" else _instant(event.time)
                committed = (_instant(times[number]) - _EPOCH) // dt.timedelta(milliseconds=1)
                value, there = (None, None) if event.op == "d" else (event.value, 0)
                self.state.execute(
                    f"INSERT INTO {place('pending', relation)} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [str(event.key), _position(number), event.op, committed, event.key, time, value, there],
                )
            begin = end
            with self.state.transaction():
                step = Step(self.state, _position(end), None, None, ())
                step.fold(self.table, reload=False)
                step.apply([self.table], [])
        listed = [name for name, _ in (*_COLUMNS, *self.table.use.hidden)]
        return set(self.state.rows(f"SELECT {', '.join(map(quoted, listed))} FROM {place('before', relation)}"))


@pytest.fixture(scope="module", params=[_STREAM, _HISTORY], ids=["stream", "history"])
def reading(request: pytest.FixtureRequest) -> Iterator[Reading]:
    with tempfile.TemporaryDirectory() as folder:
        made = Reading(Path(folder), request.param)
        yield made
        made.state.close()


@settings(max_examples=80, deadline=None)
@given(events=_EVENTS, ends=st.lists(st.integers(0, 12), max_size=3))
def test_steps_do_not_matter(reading: Reading, events: list[Event], ends: list[int]) -> None:
    expected = _streamed(events) if reading.table.use.way is Way.STREAM else _versions(events)
    assert reading.rows(events, [end for end in ends if end < len(events)]) == expected
