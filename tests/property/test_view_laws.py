"""Laws of views' plans: after each batch a view's rows are what its SQL gives over the tables as they then are."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from cdc.model.errors import ConfigError
from spark_apply.views.sql.plan import plan_view
from tests.conftest import FULL
from tests.views.engine import START, Row, SmallEngine
from tests.views.queries import Query, queries
from tests.views.shapes import RELATIONS, SHAPES

A, B, C = RELATIONS

small = st.one_of(st.none(), st.integers(0, 3))
minutes = st.one_of(st.none(), st.integers(0, 8).map(lambda n: START + timedelta(minutes=n)))
words = st.sampled_from([None, "x", "y", "z"])
ROWS = {
    A: st.tuples(small, words, small, minutes),
    B: st.tuples(small, small, minutes),
    C: st.tuples(words),
}
KEYS = {
    A: st.integers(0, 4).map(lambda n: (n,)),
    B: st.integers(0, 4).map(lambda n: (n,)),
    C: st.tuples(st.integers(0, 3), st.integers(0, 2)),
}


def _changes(table: str) -> st.SearchStrategy[Any]:
    """Rows by key that are written, or deleted where there is none."""
    one = st.dictionaries(KEYS[table], st.one_of(st.none(), ROWS[table], ROWS[table]), max_size=4)
    return st.one_of(one, one, one, one, st.just("truncate"))


batches = st.lists(
    st.tuples(st.fixed_dictionaries({}, optional={name: _changes(name) for name in RELATIONS}), st.integers(0, 2)),
    min_size=2,
    max_size=5,
)


_AT = [START + timedelta(minutes=minute) for minute in (0, 1, 3, 4, 6)]
TIME_PASSES: Any = [
    (
        {
            A: {(n,): (n % 3, "xyz"[n % 3], n, at) for n, at in enumerate(_AT)} | {(5,): (None, None, None, None)},
            B: {(n,): ((n + 1) % 3, n, at) for n, at in enumerate(_AT)} | {(5,): (None, None, None)},
            C: {(n, n % 2): ("xyz"[n % 3],) for n in range(4)},
        },
        0,
    ),
    *[({}, 1)] * 4,
    ({A: {(1,): (2, "z", 1, _AT[4]), (2,): None}, B: {(0,): (1, 3, _AT[4])}}, 1),
    *[({}, 1)] * 3,
]
"""Rows that are there while minutes pass without any change, and with some."""

A_GROUP_GROWS: Any = [({A: {(n,): (1, "x", n, _AT[0])}}, 0) for n in range(3)]
"""A row of the same group more in each batch: what is kept of the group is then added to."""


def _apply(table: dict[Row, Row], change: Any) -> None:
    if change == "truncate":
        table.clear()
        return
    for key, row in change.items():
        if row is None:
            table.pop(key, None)
        else:
            table[key] = row


@cache
def _engine(shape: str) -> SmallEngine:
    sql, key = SHAPES[shape]
    return SmallEngine(plan_view("v", sql, key, RELATIONS), RELATIONS)


@pytest.mark.parametrize("shape", SHAPES)
@given(history=batches)
@example(history=TIME_PASSES)
@example(history=A_GROUP_GROWS)
@settings(max_examples=12 if FULL else 3, deadline=None)
def test_a_view_is_what_its_sql_gives(shape: str, history: Any) -> None:
    _check(_engine(shape), SHAPES[shape][0], history)


@given(query=queries(), history=batches)
@settings(max_examples=60 if FULL else 8, deadline=None)
def test_a_random_view_is_what_its_sql_gives(query: Query, history: Any) -> None:
    try:
        plan = plan_view("v", query.sql, query.key, RELATIONS)
    except ConfigError as refused:
        event(refused.message)
        assume(False)
    _check(SmallEngine(plan, RELATIONS), query.sql, history)


def _check(engine: SmallEngine, sql: str, history: Any) -> None:
    engine.begin()
    tables: dict[str, dict[Row, Row]] = {name: {} for name in RELATIONS}
    clock = START
    for changes, passed in history:
        for name, change in changes.items():
            _apply(tables[name], change)
        clock += timedelta(minutes=passed)
        due = engine.next_due()
        before = engine.view()
        engine.step({name: [key + row for key, row in rows.items()] for name, rows in tables.items()}, clock)
        assert engine.view() == engine.answer(sql)
        for node in engine.plan.nodes:
            assert engine.whole(node) == Counter(engine.rows[node.name])
        if not changes and (due is None or clock < due):
            assert engine.view() == before, "it should have been woken"
