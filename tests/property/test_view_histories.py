"""Laws of views' steps: whatever comes again, late, or is killed half way, a view is what its rows give, told once.

A log of events is read in steps, on the embedded engine's own state. Each step has new events, some of them again under
their positions, and a clock; some are killed before they are committed, or find the state opened again. An event that
an earlier step has folded in never comes to the state again: its reader leaves out what sorts before its mark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import spark_apply.views.embedded.step
from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ViewConfig
from cdc.model.change import Kind
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step
from spark_apply.views.model.values import quoted
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from tests.conftest import FULL
from tests.views.engine import START, relation
from tests.views.pattern_reference import matches
from tests.views.steps import Steps

EVENTS = relation(
    "public.e", ["id", "part"], id="int64", part="string", who="float64", what="string", at="timestamp_micros"
)
SEARCHES = relation("public.q", ["id"], id="int64", text="string", owner="int64")
RELATIONS = {each.name: each for each in (EVENTS, SEARCHES)}
_DEFINE = {"a": "what = 'a'", "b": "what IN ('b', 'a b')", "c": "what LIKE '%c%'"}
PATTERNS = {
    "stalled": PatternConfig(of="public.e", by=("who",), match="a !b{3ms}", define={n: _DEFINE[n] for n in "ab"}),
    "follows": PatternConfig(of="public.e", by=("who",), match="a !c b{2ms}", define=_DEFINE, within="5ms"),
    "twice": PatternConfig(
        of="public.e", by=("who", "part"), match="b{2} !a{1ms}", define={n: _DEFINE[n] for n in "ab"}
    ),
}
SESSIONS = """
WITH marked AS (
  SELECT who, at, id, part, CASE WHEN at - INTERVAL 2 MILLISECONDS
  <= lag(at) OVER (PARTITION BY who ORDER BY at, id, part) THEN 0 ELSE 1 END AS starts
  FROM public.e WHERE at IS NOT NULL),
numbered AS (
  SELECT who, at, sum(starts) OVER (PARTITION BY who ORDER BY at, id, part ROWS UNBOUNDED PRECEDING) AS session
  FROM marked)
SELECT who, session, min(at) AS first, max(at) AS last, count(*) AS n FROM numbered GROUP BY who, session
"""
TIME, NUMBER = Kind("timestamp_micros"), Kind("int64")


def _views() -> list[View]:
    found = []
    for name, pattern in PATTERNS.items():
        plan, sql, _ = plan_config(name, ViewConfig(pattern=pattern, key=pattern.columns), RELATIONS, {})
        kinds = {column: EVENTS.columns.get(column, TIME) for column in pattern.columns}
        found.append(View(plan, list(kinds.items()), sql))
    plan, sql, _ = plan_config("sessions", ViewConfig(sql=SESSIONS, key=("who", "session")), RELATIONS, {})
    columns = {"who": Kind("float64"), "session": NUMBER, "first": TIME, "last": TIME, "n": NUMBER}
    found.append(View(plan, list(columns.items()), sql))
    config = MatchConfig(queries="public.q", query="text", docs="public.e", fields=("what",))
    key = ("query", "doc_id", "doc_part")
    plan, sql, match = plan_config("found", ViewConfig(match=config, key=key), RELATIONS, {})
    found.append(View(plan, list(zip(key, (NUMBER, NUMBER, Kind("string")), strict=True)), sql, {}, match))
    return found


class History(Steps):
    """Steps over a log, of which any part may come again."""

    def begin(self) -> None:
        """Take all rows away."""
        with self.state.transaction():
            for table in self.tables:
                for schema in ("pending", "before"):
                    self.state.execute(f"DELETE FROM {place(schema, table.relation)}")
        self.clock_ms = None
        self.step(stale=True)

    def wait(self, table: str, commit: int, key: tuple[Any, ...], row: tuple[Any, ...] | None) -> None:
        """Let one event wait, new or again."""
        now, self.commit = self.commit, commit
        self.write(table, {key: row})
        self.commit = now

    def killed(self, clock_ms: int) -> None:
        """Compute a step, and die before it is committed."""
        was = self.clock_ms
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Step, "apply", _die)
            with pytest.raises(InterruptedError):
                self.step(clock_ms)
        self.clock_ms = was

    def opened_again(self, folder: Path) -> None:
        self.state.close()
        self.state = ViewState(folder, memory="200MB")


instants = st.one_of(
    st.none(), *[st.integers(0, 12_000).map(lambda us: START + timedelta(microseconds=us // 250 * 250))] * 9
)
whos = st.sampled_from([0.0, -0.0, 0.0, 1.5, None])
event = st.tuples(
    st.tuples(st.integers(0, 5), st.sampled_from(["", "x"])),
    st.one_of(st.none(), *[st.tuples(whos, st.sampled_from(["a", "b", "a b", "c", "", None]), instants)] * 4),
)
texts = st.tuples(st.sampled_from(["a", "b -a", "a OR c", "(", None]), st.integers(0, 1))
search = st.tuples(st.tuples(st.integers(0, 2)), st.one_of(st.none(), *[texts] * 3))
steps_taken = st.lists(
    st.tuples(
        st.lists(event, max_size=8),
        st.lists(search, max_size=2),
        st.lists(st.integers(0, 400), max_size=4),
        st.integers(0, 4),
        st.sampled_from(["", "", "", "killed", "opened again", "killed, then opened again", "made again"]),
    ),
    min_size=2,
    max_size=6,
)
_ANOTHER_OWNER = [
    ([((1, ""), (0.0, "a", START))], [((1,), ("a", 0))], [], 0, ""),
    ([], [((1,), ("a", 1))], [], 0, ""),
]
"""A search's row changes, and what it asks for does not."""


@pytest.mark.parametrize("name", [view.name for view in _views()])
def test_a_view_is_what_its_rows_give_whatever_comes_again(tmp_path: Path, name: str) -> None:
    view = next(each for each in _views() if each.name == name)
    history = History(tmp_path, [RELATIONS[of] for of in view.plan.reads], [view])

    @example(taken=_ANOTHER_OWNER, most=float("inf"))
    @given(taken=steps_taken, most=st.sampled_from([0.3, float("inf")]))
    @settings(max_examples=200 if FULL else 4, deadline=None)
    def law(taken: Any, most: float) -> None:
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", most)
            history.begin()
            _check(history, tmp_path, taken)

    try:
        law()
    finally:
        history.close()


def _check(history: History, folder: Path, taken: Any) -> None:
    (view,) = history.views
    tables: dict[str, dict[Any, Any]] = {name: {} for name in view.plan.reads}
    log: list[tuple[str, int, Any, Any]] = []
    folded: dict[Any, Any] = {}
    held: dict[Any, set[Any]] = {}
    clock_ms = int((START - datetime(1970, 1, 1)).total_seconds() * 1000)  # noqa: DTZ001 - in UTC
    for events, searches, again, passed, fate in taken:
        folded_in = len(log)
        for name, changes in ((EVENTS.name, events), (SEARCHES.name, searches)):
            for key, row in changes if name in tables else ():
                log.append((name, history.commit, key, row))
                history.wait(*log[-1])
                history.commit += 1
                tables[name][key] = row
        for number in again:
            if waiting := log[folded_in:]:
                history.wait(*waiting[number % len(waiting)])
        clock_ms += passed
        if fate.startswith("killed"):
            history.killed(clock_ms)
        if fate.endswith("opened again"):
            history.opened_again(folder)
        if fate == "made again":
            folded.clear()
        for _, op, key, row in history.step(clock_ms, stale=fate == "made again"):
            assert (op == "c") == (key not in folded), (op, key)
            assert op == "d" or folded.get(key) != row, "an event for what is as it was"
            folded[key] = row
            if op == "d":
                del folded[key]
        clock = datetime(1970, 1, 1) + timedelta(milliseconds=clock_ms)  # noqa: DTZ001 - in UTC
        rows = [dict(zip(("id", "part", "who", "what", "at"), (*key, *row), strict=True))
                for key, row in tables[EVENTS.name].items() if row is not None]  # fmt: skip
        if view.name == "found":
            held = _found(tables, rows, {} if fate == "made again" else held)
            assert set(folded) == set[Any]().union(*held.values())
            continue
        if view.name == "sessions":
            expected = Counter(_sessions(rows))
        else:
            expected = Counter(matches(PATTERNS[view.name], rows, ("at", "id", "part"), _satisfies, clock))
        assert _rows(history) == expected
        assert len(folded) == sum(expected.values())


def _die(*_: object) -> None:
    raise InterruptedError("killed")


def _rows(history: History) -> Counter[Any]:
    (of,) = history.views
    listed = ", ".join(quoted(name) for name, _ in of.columns)
    return Counter(history.state.rows(f"SELECT {listed} FROM {place('before', of.relation)}"))


def _satisfies(name: str, row: Mapping[str, Any]) -> bool:
    what = row["what"]
    return what is not None and (what == "a" if name == "a" else what in ("b", "a b") if name == "b" else "c" in what)


def _sessions(rows: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    units: dict[Any, list[Any]] = {}
    for row in rows:
        if row["at"] is not None:
            units.setdefault(row["who"], []).append(row["at"])
    found = []
    for who, times in units.items():
        runs: list[list[Any]] = []
        for at in sorted(times):
            if runs and at - runs[-1][-1] <= timedelta(milliseconds=2):
                runs[-1].append(at)
            else:
                runs.append([at])
        found += [(who, number, run[0], run[-1], len(run)) for number, run in enumerate(runs, 1)]
    return found


def _found(tables: Any, rows: list[dict[str, Any]], held: Mapping[Any, set[Any]]) -> dict[Any, set[Any]]:
    """By search, its pairs; one that is no search keeps what it had."""
    texts = {(row["id"], row["part"]): set((row["what"] or "").split()) for row in rows}
    judges = {
        "a": lambda words: "a" in words,
        "b -a": lambda words: "b" in words and "a" not in words,
        "a OR c": lambda words: bool({"a", "c"} & words),
    }
    found: dict[Any, set[Any]] = {}
    for (query,), row in tables[SEARCHES.name].items():
        if row is not None and row[0] == "(":
            found[query] = held.get(query, set())
        elif row is not None and row[0] is not None:
            found[query] = {(query, *doc) for doc, words in texts.items() if judges[row[0]](words)}
    return found
