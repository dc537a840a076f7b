"""Laws of views' plans: after each batch a view's rows are what its SQL gives over the tables as they then are."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_apply.views.sql.plan import plan_view
from tests.view_engine import START, Row, SmallEngine, relation

RELATIONS = {
    each.name: each
    for each in (
        relation("public.a", ["id"], id="int64", k="int64", g="string", n="int64", at="timestamp_micros"),
        relation("public.b", ["id"], id="int64", k="int64", z="int64", at="timestamp_micros"),
        relation("public.c", ["x", "y"], x="int64", y="int64", g="string"),
    )
}
A, B, C = "public.a", "public.b", "public.c"

SHAPES: dict[str, tuple[str, list[str]]] = {
    "inner": (f"SELECT a.id, b.id AS b, a.g, b.z FROM {A} a JOIN {B} b ON b.k = a.k", ["id", "b"]),
    "inner by where": (f"SELECT a.id, b.id AS b, b.z FROM {A} a, {B} b WHERE b.k = a.k AND b.z > 1", ["id", "b"]),
    "null-safe": (f"SELECT a.id, b.id AS b FROM {A} a JOIN {B} b ON b.k <=> a.k", ["id", "b"]),
    "left": (f"SELECT a.id, b.id AS b, a.n, b.z FROM {A} a LEFT JOIN {B} b ON b.k = a.k AND b.z > 1", ["id", "b"]),
    "left, filtered": (
        f"SELECT a.id, b.id AS b, b.z FROM {A} a LEFT JOIN {B} b ON b.k = a.k WHERE b.z IS NULL OR b.z > 1",
        ["id", "b"],
    ),
    "left, unit of the first alone": (
        f"SELECT a.id, max(b.z) AS z, count(b.id) AS n FROM {A} a LEFT JOIN {B} b ON b.k = a.k GROUP BY a.id",
        ["id"],
    ),
    "right": (f"SELECT a.id, b.id AS b, a.n FROM {A} a RIGHT JOIN {B} b ON b.k = a.k", ["id", "b"]),
    "anti": (f"SELECT a.id, a.g FROM {A} a LEFT JOIN {B} b ON b.k = a.k WHERE b.id IS NULL", ["id"]),
    "semi join": (f"SELECT a.id, a.g FROM {A} a LEFT SEMI JOIN {B} b ON b.k = a.k AND b.z > 0", ["id"]),
    "anti join": (f"SELECT a.id, a.g FROM {A} a LEFT ANTI JOIN {B} b ON b.k = a.k", ["id"]),
    "three ways": (
        f"SELECT a.id, b.id AS b, c.x, c.y FROM {A} a JOIN {B} b ON b.k = a.k JOIN {C} c ON c.x = b.z",
        ["id", "b", "x", "y"],
    ),
    "left then left": (
        f"SELECT a.id, b.id AS b, c.x, c.y, c.g FROM {A} a LEFT JOIN {B} b ON b.k = a.k LEFT JOIN {C} c ON c.x = b.z",
        ["id", "b", "x", "y"],
    ),
    "left then left by either": (
        f"SELECT a.id, b.id AS b, c.x, c.y FROM {A} a LEFT JOIN {B} b ON b.k = a.k LEFT JOIN {C} c ON c.x = coalesce(b.z, a.n)",
        ["id", "b", "x", "y"],
    ),
    "left then inner": (
        f"SELECT a.id, b.id AS b, c.x, c.y FROM {A} a LEFT JOIN {B} b ON b.k = a.k JOIN {C} c ON c.x = coalesce(b.z, a.n)",
        ["id", "b", "x", "y"],
    ),
    "inner then left": (
        f"SELECT a.id, b.id AS b, c.x, c.y FROM {A} a JOIN {B} b ON b.k = a.k LEFT JOIN {C} c ON c.x = b.z AND c.g = a.g",
        ["id", "b", "x", "y"],
    ),
    "self": (f"SELECT a.id, o.id AS other FROM {A} a JOIN {A} o ON o.n = a.k", ["id", "other"]),
    "self left": (f"SELECT a.id, o.id AS other, o.g FROM {A} a LEFT JOIN {A} o ON o.k = a.n", ["id", "other"]),
    "group": (
        f"SELECT g, count(*) AS n, sum(n) AS s, avg(n) AS v, min(k) AS lo, max(k) AS hi FROM {A} GROUP BY g",
        ["g"],
    ),
    "group of a join": (
        f"SELECT a.g, b.z, count(*) AS n, sum(a.n) AS s FROM {A} a JOIN {B} b ON b.k = a.k GROUP BY a.g, b.z",
        ["g", "z"],
    ),
    "group by the null side": (
        f"SELECT b.z, count(*) AS n FROM {A} a LEFT JOIN {B} b ON b.k = a.k GROUP BY b.z",
        ["z"],
    ),
    "having": (f"SELECT g, count(*) AS n FROM {A} GROUP BY g HAVING count(*) > 1 AND max(n) > 0", ["g"]),
    "count distinct": (f"SELECT g, count(DISTINCT k) AS n, sum(DISTINCT n) AS s FROM {A} GROUP BY g", ["g"]),
    "filter": (f"SELECT g, count(*) FILTER (WHERE n > 1) AS n, count_if(k > 1) AS m FROM {A} GROUP BY g", ["g"]),
    "part of the group is the key": (f"SELECT id, g, count(*) AS n FROM {A} GROUP BY id, g", ["id"]),
    "global": (f"SELECT count(*) AS n, sum(n) AS s FROM {A}", ["n"]),
    "distinct": (f"SELECT DISTINCT g, k FROM {A}", ["g", "k"]),
    "top": (
        f"SELECT g, id, rn FROM (SELECT g, id, row_number() OVER (PARTITION BY g ORDER BY n DESC, id) AS rn FROM {A}) "
        "WHERE rn <= 2",
        ["id"],
    ),
    "top by qualify": (
        f"SELECT g, id, n FROM {A} QUALIFY row_number() OVER (PARTITION BY g ORDER BY n, id) <= 2",
        ["g", "id"],
    ),
    "ranks of groups": (
        f"SELECT g, k, sum(n) AS s, rank() OVER (PARTITION BY g ORDER BY sum(n)) AS r FROM {A} GROUP BY g, k",
        ["g", "k"],
    ),
    "sessions": (
        "WITH marked AS (SELECT id, g, at, CASE WHEN at - INTERVAL 3 MINUTES <= lag(at) OVER (PARTITION BY g ORDER BY at, id) "
        f"THEN 0 ELSE 1 END AS starts FROM {A} WHERE at IS NOT NULL), "
        "numbered AS (SELECT g, at, sum(starts) OVER (PARTITION BY g ORDER BY at, id ROWS UNBOUNDED PRECEDING) AS session "
        "FROM marked) SELECT g, session, min(at) AS first, max(at) AS last, count(*) AS n FROM numbered GROUP BY g, session",
        ["g", "session"],
    ),
    "sliding": (
        "SELECT id, g, count(*) OVER (PARTITION BY g ORDER BY at RANGE BETWEEN INTERVAL 2 MINUTES PRECEDING AND CURRENT ROW) "
        f"AS n FROM {A} WHERE at IS NOT NULL",
        ["g", "id"],
    ),
    "tumbling": (
        f"SELECT date_trunc('HOUR', at + INTERVAL 57 MINUTES) AS hour, count(*) AS n FROM {A} GROUP BY 1",
        ["hour"],
    ),
    "union all": (
        f"SELECT 'a' AS kind, id, k FROM {A} UNION ALL SELECT 'b', id, z FROM {B} WHERE z > 0",
        ["kind", "id"],
    ),
    "group of a union": (
        f"SELECT k, count(*) AS n FROM (SELECT id, k FROM {A} UNION ALL SELECT id, k FROM {B} UNION ALL SELECT x, y FROM {C}) "
        "GROUP BY k",
        ["k"],
    ),
    "union of groups": (
        f"SELECT k, sum(n) AS n FROM (SELECT k, count(*) AS n FROM {A} GROUP BY k UNION ALL "
        f"SELECT z, max(k) FROM {B} GROUP BY z) GROUP BY k",
        ["k"],
    ),
    "union": (f"SELECT k, g FROM {A} UNION SELECT x, g FROM {C}", ["k", "g"]),
    "nested aggregates": (
        f"SELECT n, count(*) AS groups FROM (SELECT g, count(*) AS n FROM {A} GROUP BY g) GROUP BY n",
        ["n"],
    ),
    "global of groups": (f"SELECT max(n) AS n FROM (SELECT g, count(*) AS n FROM {A} GROUP BY g)", ["n"]),
    "hidden group": (
        f"SELECT n, count(*) AS groups FROM (SELECT count(*) AS n FROM {A} GROUP BY g, k) GROUP BY n",
        ["n"],
    ),
    "cte twice": (
        f"WITH t AS (SELECT g, count(*) AS n, max(k) AS k FROM {A} GROUP BY g) "
        "SELECT x.g, y.g AS other FROM t x JOIN t y ON y.n = x.k",
        ["g", "other"],
    ),
    "plain cte twice": (
        f"WITH t AS (SELECT id, n + 1 AS m, k FROM {A} WHERE n > 0) SELECT x.id, y.id AS other FROM t x JOIN t y ON y.k = x.m",
        ["id", "other"],
    ),
    "left join of groups": (
        f"SELECT a.id, t.n FROM {A} a LEFT JOIN (SELECT k, count(*) AS n FROM {B} GROUP BY k) t ON t.k = a.k",
        ["id"],
    ),
    "left join of a computed column": (
        f"SELECT a.id, t.id AS b, t.one FROM {A} a LEFT JOIN (SELECT id, k, 1 AS one FROM {B} WHERE z > 0) t ON t.k = a.k",
        ["id", "b"],
    ),
    "left join of a join": (
        f"SELECT a.id, t.id AS b, t.y FROM {A} a LEFT JOIN (SELECT b.id, b.k, c.y FROM {B} b JOIN {C} c ON c.x = b.z) t "
        "ON t.k = a.k",
        ["id", "b", "y"],
    ),
    "join of a left join": (
        f"SELECT c.x, c.y, t.id, t.z FROM {C} c JOIN (SELECT a.id, a.g, b.z FROM {A} a LEFT JOIN {B} b ON b.id = a.k) t "
        "ON t.g = c.g",
        ["x", "y", "id"],
    ),
    "using": (f"SELECT k, a.id, b.id AS b FROM {A} a JOIN {B} b USING (k)", ["id", "b"]),
    "clock in where": (f"SELECT id, g FROM {A} WHERE at <= clock() AND at > clock() - INTERVAL 3 MINUTES", ["id"]),
    "clock strictly": (f"SELECT id, g FROM {A} WHERE clock() > at AND at + INTERVAL 2 MINUTES >= clock()", ["id"]),
    "clock in a case": (
        f"SELECT a.id, b.id AS b, CASE WHEN a.at < clock() THEN 1 WHEN b.at >= clock() THEN 2 END AS s "
        f"FROM {A} a LEFT JOIN {B} b ON b.k = a.k",
        ["id", "b"],
    ),
    "clock in an aggregate": (
        f"SELECT g, count_if(at <= clock()) AS n, max(k) FILTER (WHERE at BETWEEN clock() - INTERVAL 2 MINUTES AND clock()) AS k "
        f"FROM {A} GROUP BY g",
        ["g"],
    ),
    "clock in on": (
        f"SELECT a.id, count(b.id) AS n FROM {A} a LEFT JOIN {B} b ON b.k = a.k AND a.at + INTERVAL 1 MINUTE < clock() GROUP BY a.id",
        ["id"],
    ),
    "searched and not clicked": (
        "SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome "
        f"FROM {A} s LEFT JOIN {B} c ON c.k = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 3 MINUTES "
        "GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 4 MINUTES <= clock()",
        ["id"],
    ),
    "clock over groups": (
        f"SELECT g, last FROM (SELECT g, max(at) AS last FROM {A} GROUP BY g) WHERE last + INTERVAL 2 MINUTES <= clock()",
        ["g"],
    ),
    "clock in a node": (
        f"SELECT n, count(*) AS m FROM (SELECT g, count(*) AS n FROM {A} WHERE at <= clock() GROUP BY g) GROUP BY n",
        ["n"],
    ),
    "global with the clock": (f"SELECT count(*) AS n FROM {A} WHERE at < clock()", ["n"]),
}

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
@settings(max_examples=25, deadline=None)
def test_a_view_is_what_its_sql_gives(shape: str, history: Any) -> None:
    sql, _ = SHAPES[shape]
    engine = _engine(shape)
    engine.begin()
    plan = engine.plan
    tables: dict[str, dict[Row, Row]] = {name: {} for name in RELATIONS}
    clock = START
    for changes, passed in history:
        for name, change in changes.items():
            _apply(tables[name], change)
        clock += timedelta(minutes=passed)
        due = engine.next_due()
        before = {node.name: engine.whole(node) for node in plan.nodes}
        engine.step({name: [key + row for key, row in rows.items()] for name, rows in tables.items()}, clock)
        assert engine.view() == engine.answer(sql)
        for node in plan.nodes:
            assert engine.whole(node) == Counter(engine.rows[node.name])
        if not changes and (due is None or clock < due):
            assert before == {node.name: engine.whole(node) for node in plan.nodes}, "it should have been woken"
