"""Laws of `unit:`: where a view's clauses do not show that its columns divide it, the rows do, or the view stops."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division
from tests.conftest import FULL
from tests.pushes import some_each_push
from tests.views.engine import START, RefusedError, Row, SmallEngine
from tests.views.shapes import RELATIONS

A, B, C = RELATIONS


class Divided(NamedTuple):
    sql: str
    key: tuple[str, ...]
    several: tuple[str, ...]
    """Rows, each with what a clause brings together, then the units: it must be one for each of the former."""
    brought: int = 1
    """How many columns the former are."""


_RANKS = "rank() OVER (PARTITION BY k ORDER BY at) AS r, count(*) OVER (PARTITION BY n) AS c"
_BY_K, _BY_N = "SELECT DISTINCT k, g FROM public.a", "SELECT DISTINCT n, g FROM public.a"
VIEWS = {
    "windows that differ": Divided(f"SELECT g, id, {_RANKS} FROM public.a", ("g", "id"), (_BY_K, _BY_N)),
    "a window, filtered": Divided(
        "SELECT g, id, count(*) OVER (PARTITION BY k) AS c FROM public.a WHERE n > 1",
        ("g", "id"),
        (f"{_BY_K} WHERE n > 1",),
    ),
    "by time": Divided(
        "SELECT g, id, count(*) OVER (PARTITION BY k) AS c FROM public.a WHERE at <= clock()",
        ("g", "id"),
        (f"{_BY_K} WHERE at <= clock()",),
    ),
    "groups": Divided(
        "SELECT max(g) AS g, k, count(*) AS c FROM public.a GROUP BY k HAVING count(*) > 1", ("g", "k"), (_BY_K,)
    ),
    "groups of two columns": Divided(
        "SELECT max(DISTINCT g) AS g, k, n, count(*) AS c FROM public.a GROUP BY k, n",
        ("g", "k", "n"),
        ("SELECT DISTINCT k, n, g FROM public.a",),
        2,
    ),
    "a window of groups": Divided(
        "SELECT g, k, n, rank() OVER (PARTITION BY k ORDER BY count(*)) AS r FROM public.a GROUP BY g, k, n",
        ("g", "k", "n"),
        (_BY_K,),
    ),
    "a join": Divided(
        "SELECT a.g, a.id, b.id AS b, count(*) OVER (PARTITION BY b.z) AS c "
        "FROM public.a a JOIN public.b b ON b.k = a.k",
        ("g", "id", "b"),
        ("SELECT DISTINCT b.z, a.g FROM public.a a JOIN public.b b ON b.k = a.k",),
    ),
    "a left join, by what may be missing": Divided(
        "SELECT a.id, b.id AS b, b.z AS g, count(*) OVER (PARTITION BY a.k) AS c "
        "FROM public.a a LEFT JOIN public.b b ON b.k = a.k",
        ("g", "id", "b"),
        ("SELECT DISTINCT a.k, b.z FROM public.a a LEFT JOIN public.b b ON b.k = a.k",),
    ),
    "branches": Divided(
        "SELECT g, id, 'a' AS t, count(*) OVER (PARTITION BY k) AS c FROM public.a "
        "UNION ALL SELECT g, x, 'c', count(*) OVER (PARTITION BY y) FROM public.c",
        ("g", "id", "t"),
        (_BY_K, "SELECT DISTINCT y, g FROM public.c"),
    ),
    "a query within": Divided(
        f"WITH w AS (SELECT g, id, {_RANKS} FROM public.a) SELECT g, id, r + c AS s FROM w WHERE r < 3",
        ("g", "id"),
        (_BY_K, _BY_N),
    ),
    "branches within": Divided(
        f"WITH w AS (SELECT g, id, {_RANKS} FROM public.a UNION ALL SELECT g, x, y, y FROM public.c) "
        "SELECT g, count(*) AS s FROM w GROUP BY g",
        ("g",),
        (_BY_K, _BY_N),
    ),
}

MOSTLY_RIGHT = st.integers(0, 5).flatmap(
    lambda of: st.one_of(
        *[st.just((of, "xyz"[of // 2], of))] * 6,
        st.tuples(st.sampled_from([of, None]), st.sampled_from(["x", "y", None]), st.sampled_from([of, 0, None])),
    )
)
"""``k``, ``g`` and ``n`` of a row: as a rule the first and the last tell which the second is."""
MINUTES = st.integers(0, 4).map(lambda n: START + timedelta(minutes=n))
ROWS = {
    A: st.tuples(MOSTLY_RIGHT, MINUTES).map(lambda of: (*of[0], of[1])),
    B: st.tuples(MOSTLY_RIGHT, MINUTES).map(lambda of: (of[0][0], of[0][0], of[1])),
    C: MOSTLY_RIGHT.map(lambda of: (of[1],)),
}
KEYS = {
    A: st.integers(0, 6).map(lambda n: (n,)),
    B: st.integers(0, 4).map(lambda n: (n,)),
    C: st.tuples(st.integers(0, 3), st.integers(0, 5)),
}
BATCH = st.fixed_dictionaries(
    {A: st.dictionaries(KEYS[A], st.one_of(st.none(), ROWS[A], ROWS[A]), max_size=4)},
    optional={of: st.dictionaries(KEYS[of], st.one_of(st.none(), ROWS[of]), max_size=3) for of in (B, C)},
)
HISTORIES = st.lists(st.tuples(BATCH, st.integers(0, 1)), min_size=2, max_size=6)

_ROW = (1, "x", 1, START)
APART: Any = [
    ({A: {(1,): _ROW, (2,): (1, "x", 2, START), (3,): (3, "y", 3, START)}}, 0),
    ({A: {(4,): (3, "z", 4, START)}, B: {}, C: {}}, 0),
]
"""A row whose unit nothing else is of joins a clause with rows of a unit that no row of the batch is of."""
MOVED: Any = [
    ({A: {(1,): _ROW, (2,): (1, "x", 2, START)}}, 0),
    ({A: {(1,): (1, "y", 1, START)}}, 0),
]
TOGETHER: Any = [
    ({A: {(1,): _ROW, (2,): (1, "x", 2, START)}}, 0),
    ({A: {(1,): (1, "y", 1, START), (2,): (1, "y", 2, START)}}, 0),
]
"""All rows of a clause go over to another unit: that is right."""


@cache
def _engine(name: str) -> SmallEngine:
    plan = plan_view("v", VIEWS[name].sql, VIEWS[name].key, RELATIONS, divided=Division(unit=("g",)))
    assert plan.nodes[-1].units == ("g",)
    return SmallEngine(plan, RELATIONS)


@pytest.mark.parametrize("name", some_each_push(VIEWS, "windows that differ", "groups", "a join", "branches within"))
@given(history=HISTORIES)
@example(history=APART)
@example(history=MOVED)
@example(history=TOGETHER)
@settings(max_examples=30 if FULL else 3, deadline=None)
def test_a_divided_view_is_what_its_sql_gives_or_stops(name: str, history: Any) -> None:
    """It stops exactly where rows that a clause brings together are of several units."""
    view = VIEWS[name]
    engine, clock = _engine(name), START
    engine.begin()
    tables: dict[str, dict[Row, Row]] = {of: {} for of in RELATIONS}
    for changes, passed in history:
        for of, rows in changes.items():
            tables[of] |= rows
            tables[of] = {key: row for key, row in tables[of].items() if row is not None}
        clock += timedelta(minutes=passed)
        refused = None
        try:
            engine.step({of: [key + row for key, row in rows.items()] for of, rows in tables.items()}, clock)
        except RefusedError as error:
            refused = str(error)
        wrong = any(
            n > 1 for sql in view.several for n in Counter(row[: view.brought] for row in engine.answer(sql)).values()
        )
        assert (refused is not None) == wrong, refused
        if refused is not None:
            assert "have several values of g, by which unit: divides them. Correct the rows" in refused
            event("stopped")
            return
        assert engine.view() == engine.answer(view.sql)


@pytest.mark.parametrize(
    ("sql", "limit", "most"),
    [
        ("SELECT g, count(*) AS c FROM public.a GROUP BY g", 2, 2),
        ("SELECT g, id FROM public.a UNION ALL SELECT g, x FROM public.c", 3, 3),
        ("SELECT count(*) AS g FROM public.a", 4, 4),
        ("WITH s AS (SELECT k, max(g) AS g FROM public.a GROUP BY k) SELECT g, count(*) AS c FROM s GROUP BY g", 1, 1),
    ],
)
def test_a_unit_is_computed_of_so_many_rows_and_no_more(sql: str, limit: int, most: int) -> None:
    """Of those that its clauses are over: a group of many rows is one row of a view."""
    key = ("g", "id") if " id " in sql else ("g",)
    divided = Division(unit=("g",) if "id" in key else (), limit=limit)
    engine = SmallEngine(plan_view("v", sql, key, RELATIONS, divided=divided), RELATIONS)
    engine.begin()
    tables: dict[str, list[Row]] = {of: [] for of in RELATIONS}
    for number in range(most):
        tables[A] = [*tables[A], (number, number % 7 if "WITH" not in sql else 1, "x", 1, START)]
        engine.step(tables, START)
        assert engine.view() == engine.answer(sql)
    tables[A] = [*tables[A], (100, 1, "x", 1, START)]
    with pytest.raises(RefusedError, match=f"of more than {limit:,} rows.*raise its unit_limit"):
        engine.step(tables, START)
