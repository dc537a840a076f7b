"""Laws of patterns: after each batch the view is what trying every way gives, and the clock wakes it in time."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.config.view_pattern import PatternConfig
from spark_apply.views.pattern.lowered import pattern_sql
from spark_apply.views.sql.plan import plan_view
from tests.conftest import FULL
from tests.views.engine import START, SmallEngine, relation
from tests.views.pattern_reference import matches

EVENTS = relation(
    "public.e", ["id", "part"], id="int64", part="int64", who="string", what="string", at="timestamp_micros"
)
RELATIONS = {EVENTS.name: EVENTS}
ORDER = ("at", "id", "part")
_WHAT = {"a": "a", "b": "b", "c": "c", "ab": "ab", "n": "c"}
_DEFINE = {name: f"what IN ({', '.join(repr(letter) for letter in letters)})" for name, letters in _WHAT.items()}

PATTERNS = (
    "a !b{3m}",
    "a !b{3m} !c{1m}",
    "a b",
    "a b{2m}",
    "a b{2m} c{2m}",
    "a ab b",
    "ab ab{2m} ab",
    "a !c b",
    "a !ab b{4m}",
    "a !c b !c{2m}",
    "a !b{2m} c",
    "a{2}",
    "ab{3}",
    "ab{3} !c{2m}",
    "a{2} b",
    "ab{2} !c ab{2}",
    "a b{2} !a{1m} c",
)
FIXED_WITHIN = ("a b", "ab{3}", "a !c b{2m} c", "ab{2} c !a{1m}")


def _used(match: str) -> dict[str, str]:
    names = {word.lstrip("!").split("{")[0] for word in match.split()}
    return {name: _DEFINE[name] for name in names}


@cache
def _made(match: str, within: str | None) -> tuple[PatternConfig, SmallEngine]:
    pattern = PatternConfig(of="public.e", by=("who",), match=match, define=_used(match), within=within)
    plan = plan_view("v", pattern_sql(pattern, "at", EVENTS.change_columns), pattern.columns[:2], RELATIONS)
    return pattern, SmallEngine(plan, RELATIONS)


instants = st.one_of(st.none(), *[st.integers(0, 9).map(lambda n: START + timedelta(minutes=n))] * 9)
row = st.tuples(st.sampled_from(["x", "x", "x", "y", None]), st.sampled_from(["a", "b", "c", "a", "b", None]), instants)
batches = st.lists(
    st.tuples(
        st.dictionaries(
            st.tuples(st.integers(0, 7), st.integers(0, 1)), st.one_of(st.none(), row, row, row), max_size=9
        ),
        st.integers(0, 4),
    ),
    min_size=1,
    max_size=5,
)


def _satisfies(name: str, of: Any) -> bool:
    return of["what"] is not None and of["what"] in _WHAT[name]


@pytest.mark.parametrize(
    ("match", "within"), [*((each, None) for each in PATTERNS), *((each, "4m") for each in FIXED_WITHIN)]
)
@given(history=batches)
@settings(max_examples=60 if FULL else 4, deadline=None)
def test_a_pattern_is_what_trying_every_way_gives(match: str, within: str | None, history: Any) -> None:
    pattern, engine = _made(match, within)
    engine.begin()
    table: dict[tuple[int, int], tuple[Any, ...]] = {}
    clock: datetime = START
    for changes, passed in history:
        for key, values in changes.items():
            if values is None:
                table.pop(key, None)
            else:
                table[key] = values
        clock += timedelta(minutes=passed)
        due, before = engine.next_due(), engine.view()
        rows = [key + values for key, values in table.items()]
        engine.step({EVENTS.name: rows}, clock)
        named = [dict(zip(EVENTS.columns, each, strict=True)) for each in rows]
        assert engine.view() == Counter(matches(pattern, named, ORDER, _satisfies, clock))
        if not changes and (due is None or clock < due):
            assert engine.view() == before, "it should have been woken"
