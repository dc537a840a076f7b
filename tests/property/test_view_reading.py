"""Streams and histories of views: however events are divided into steps, the state is what all of them say."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.model.values import quoted
from tests.conftest import FULL
from tests.views.reading import (
    COLUMNS,
    EPOCH,
    HISTORY,
    STREAM,
    Event,
    committed,
    instant,
    position,
    positions,
    streamed,
    versions,
)

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


class Reading:
    """One relation in a state of its own, made empty for each example."""

    def __init__(self, folder: Path, use: TableUse) -> None:
        self.state = ViewState(folder, memory="100MB")
        self.table = SourceTable(use, COLUMNS, ("id",))

    def rows(self, events: Sequence[Event], ends: Sequence[int]) -> set[Any]:
        """The relation's rows after steps that end before the events with these numbers."""
        relation = self.table.relation
        self.state.begin_again(seq=0, step=0)
        with self.state.transaction():
            self.state.prepare_table(relation, COLUMNS, self.table.use.hidden, self.table.row_key)
        times, places, begin = committed(events), positions(events), 0
        for end in [*sorted(ends), len(events)]:
            for number in range(begin, end):
                event = events[number]
                time = None if event.time is None or event.op == "d" else instant(event.time)
                at_ms = (instant(times[number]) - EPOCH) // dt.timedelta(milliseconds=1)
                value, there = (None, None) if event.op == "d" else (event.value, 0)
                self.state.execute(
                    f"INSERT INTO {place('pending', relation)} VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    [str(event.key), places[number], event.op, at_ms, event.key, time, value, there],
                )
            begin = end
            with self.state.transaction():
                step = Step(self.state, position(end), None, None, ())
                step.fold(self.table, reload=False)
                step.apply([self.table], [])
        listed = [name for name, _ in (*COLUMNS, *self.table.use.hidden)]
        return set(self.state.rows(f"SELECT {', '.join(map(quoted, listed))} FROM {place('before', relation)}"))


@pytest.fixture(scope="module", params=[STREAM, HISTORY], ids=["stream", "history"])
def reading(request: pytest.FixtureRequest) -> Iterator[Reading]:
    with tempfile.TemporaryDirectory() as folder:
        made = Reading(Path(folder), request.param)
        yield made
        made.state.close()


# Of a key's events in the second step only the last would be late, if the row that the first step has left were kept.
_IN_TURN = [Event("c", 1, -2, 1, 0), Event("c", 1, None, 1, 0), Event("c", 1, None, 1, 2)]


_ONE_CHUNK = [Event("r", 1, 14, 1, 0), Event("r", 2, 14, 1, 0)]


@settings(max_examples=80 if FULL else 30, deadline=None)
@given(events=_EVENTS, ends=st.lists(st.integers(0, 12), max_size=3))
@example(events=_IN_TURN, ends=[1])
@example(events=_ONE_CHUNK, ends=[])
def test_steps_do_not_matter(reading: Reading, events: list[Event], ends: list[int]) -> None:
    expected = streamed(events) if reading.table.use.way is Way.STREAM else versions(events)
    assert reading.rows(events, [end for end in ends if end < len(events)]) == expected
