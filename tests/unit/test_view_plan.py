"""What becomes of a view's SQL: its nodes and units, and what is refused."""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable, Iterator

import duckdb
import pytest
import sqlglot
from sqlglot import exp

from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from spark_apply.views.database.names import filled
from spark_apply.views.planning.output_types import spark_text
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division, Node, Relation, ViewPlan
from tests.views.engine import relation
from tests.views.shapes import RELATIONS as SMALL
from tests.views.shapes import SHAPES

RELATIONS = {
    each.name: each
    for each in (
        relation("public.t", ["id"], id="int64", g="string", n="int64", x="float64", at="timestamp_micros"),
        relation("public.f", ["who", "whom"], who="int64", whom="string", z="int64", at="timestamp_micros"),
        relation("shop.dots", ["a.b"], **{"a.b": "int64", "c.": "string"}),
        relation("shop.Odd", ["Id"], Id="int64", Name="string"),
        relation("shop.twins", ["id"], id="int64", a="int64", A="int64"),
        relation("view.other", ["k"], k="int64", v="string"),
    )
}

REFUSED: list[tuple[str, str, str]] = [
    # not a SELECT of Spark
    (
        "SELECT id FROM public.t WHERE (",
        "line 1: this is no SQL of Spark: something is missing, near '('",
        "correct it",
    ),
    ("SELECT id\nFROM", "line 2: this is no SQL of Spark: Expected table name, near 'FROM'", "correct it"),
    (
        "SELECT id,\nat + INTERVAL 1 MONTH 2 DAYS AS r FROM public.t",
        "line 2: this is no SQL of Spark: an interval is of years and months, or of days and time: write two, near",
        "correct it",
    ),
    ("SELECT 'abc FROM public.t", "a quote or a comment has no end", "close it"),
    (
        "SELECT id\nFROM public.t WHERE g = 'it''s'",
        "line 2: this is no SQL of Spark: Adjacent string literals need to be separated by whitespace",
        r"a quote in a text is \'",
    ),
    ("", "the SQL is empty", "write one SELECT"),
    ("SELECT id FROM public.t; SELECT id FROM public.t", "has 2 statements", "write one SELECT"),
    ("DELETE FROM public.t", "a view is a SELECT, and this is DELETE", "write one SELECT"),
    ("SELECT 1 AS id", "a SELECT without FROM", "captured table"),
    (
        "SELECT id FROM public.t QUALIFY row_number() OVER (PARTITION BY g ORDER BY id) = 1",
        "QUALIFY is no SQL",
        "WITH r AS",
    ),
    # tables and columns
    ("SELECT id FROM t", "the table t is not captured", "did you mean public.t?"),
    ("SELECT id FROM public.tt", "the table public.tt is not captured", "did you mean public.t?"),
    ("SELECT id FROM nowhere.zebra", "the table nowhere.zebra is not captured", "there are: public.t, public.f"),
    ("SELECT id FROM view.v", "the view reads itself: view.v", "other views"),
    ("SELECT id FROM (SELECT id FROM view.v)", "the view reads itself: view.v", "other views"),
    ("SELECT id, b.g FROM public.t a", "b.g: there is no table b in FROM here", "there are: a"),
    ("SELECT id, b.* FROM public.t a", "b.*: there is no table b in FROM here", "there are: a"),
    ("SELECT id\n, gg\nFROM public.t", "line 2: there is no column gg", "did you mean g?"),
    ("SELECT id, a.nn FROM public.t a", "there is no column a.nn", "did you mean n?"),
    ("SELECT id, at FROM public.t a JOIN public.f b ON b.whom = a.g", "at is ambiguous: a and b have it", "write a.at"),
    ("SELECT id FROM public.t WHERE n.0", "n.0 is no column", "table.column"),
    ("SELECT id, count() AS c FROM public.t GROUP BY id", "the SQL cannot be taken apart", "a missing word"),
    (
        "SELECT id, x FROM public.t a, (SELECT n FROM public.t), (SELECT who FROM public.f)",
        "no equality joins",
        "equal",
    ),
    ("SELECT id, NULL AS nothing FROM public.t", "the output column nothing is always NULL", "CAST(nothing AS STRING)"),
    ("SELECT id, at - at AS i FROM public.t", "the output column i is an interval", "both of its instants"),
    ("SELECT id FROM public.t a JOIN public.f a ON a.z = a.n", "FROM has two tables called a", "alias"),
    ("SELECT id FROM shop.twins", "shop.twins has columns whose names differ in case alone: a", "rename one"),
    (
        "WITH c AS (SELECT id FROM public.t), C AS (SELECT id FROM public.t) SELECT id FROM c",
        "WITH names C twice",
        "name",
    ),
    ("SELECT x AS id FROM (SELECT id FROM public.t) s (x, y)", "s has 1 columns, and its alias names 2", "or none"),
    # output columns and the key
    ("SELECT g FROM public.t", "the key's column id is no output column", "there are: g"),
    ("SELECT id AS ID FROM public.t", "the key's column id is no output column", "did you mean ID?"),
    ("SELECT id, n AS Id FROM public.t", "two output columns are called Id", "another name"),
    ("SELECT * FROM public.t a JOIN public.f b ON b.whom = a.g", "two output columns are called at", "another name"),
    ("SELECT id, n + 1 FROM public.t", "an output column has no name: n + 1", "write n + 1 AS name"),
    # what is not the same each time
    ("SELECT id, rand() AS r FROM public.t", "RAND() is not the same each time", "clock()"),
    ("SELECT id, uuid() AS r FROM public.t", "UUID() is not the same each time", "clock()"),
    ("SELECT id FROM public.t WHERE at < now()", "NOW() is not the same each time", "clock()"),
    (
        "SELECT id\nFROM public.t\nWHERE at < current_timestamp",
        "line 3: CURRENT_TIMESTAMP() is not the same",
        "clock()",
    ),
    ("SELECT id FROM public.t WHERE at < current_date()", "CURRENT_DATE is not the same each time", "clock()"),
    ("SELECT id, monotonically_increasing_id() AS r FROM public.t", "is not the same each time", "clock()"),
    (
        "SELECT id, first(g) AS r FROM public.t GROUP BY id",
        "FIRST(t.g) depends on the order in which rows",
        "row_number()",
    ),
    ("SELECT id, last(g) AS r FROM public.t GROUP BY id", "LAST(t.g) depends on the order", "row_number()"),
    ("SELECT id, any_value(g) AS r FROM public.t GROUP BY id", "depends on the order", "row_number()"),
    ("SELECT id, mode(g) AS r FROM public.t GROUP BY id", "depends on the order", "row_number()"),
    (
        "SELECT id, json_agg(g) AS r FROM public.t GROUP BY id",
        "json_agg is not known as an aggregate",
        "max()",
    ),
    (
        "SELECT id, collect_list(g) AS r FROM public.t GROUP BY id",
        "COLLECT_LIST(t.g) depends on the order",
        "list texts by listagg(x, ', ') WITHIN GROUP (ORDER BY …)",
    ),
    (
        "SELECT id, g, row_number() OVER (PARTITION BY g ORDER BY n) AS r FROM public.t",
        "ROW_NUMBER() has no total order",
        "add to its ORDER BY: t.id",
    ),
    (
        "SELECT who AS id, row_number() OVER (PARTITION BY whom ORDER BY z) AS r FROM public.f",
        "ROW_NUMBER() has no total order",
        "add to its ORDER BY: f.who",
    ),
    ("SELECT id, lag(n) OVER (PARTITION BY g ORDER BY at) AS r FROM public.t", "LAG(t.n) has no total order", "t.id"),
    (
        "SELECT id, sum(n) OVER (PARTITION BY g ORDER BY at ROWS 2 PRECEDING) AS r FROM public.t",
        "SUM(t.n) has no total order",
        "t.id",
    ),
    (
        "SELECT id, sum(n) OVER (PARTITION BY id ORDER BY n RANGE BETWEEN 2 AND CURRENT ROW) AS r FROM public.t",
        "neither PRECEDING nor FOLLOWING",
        "engine: spark",
    ),
    # functions and types
    (
        "SELECT id\nFROM public.t\nWHERE n > 1\n AND own(g) = 'x'",
        "line 4: the function own is not known to give",
        "docs/views-sql.md",
    ),
    (
        "SELECT id, percentile(n, 0.5) AS r FROM public.t GROUP BY id",
        "the function percentile is not known",
        "engine: spark",
    ),
    ("SELECT id, g RLIKE 'x' AS r FROM public.t", "t.g RLIKE 'x' is not known to give Spark's value", "engine: spark"),
    ("SELECT id, explode(n) AS r FROM public.t", "the function explode is not known", "a table of their own"),
    ("SELECT id, g + 1 AS r FROM public.t", "its sides are string and int", "engine: spark"),
    ("SELECT id, g || n - 1 AS r FROM public.t", "t.g || t.n - 1 is not known", "engine: spark"),  # (g || n) - 1
    ("SELECT id FROM public.t WHERE g = 1", "it compares string with int", "engine: spark"),
    ("SELECT id FROM public.t WHERE (x > 1) = x < 2", "it compares boolean with double", "engine: spark"),
    ("SELECT id FROM public.t WHERE x > 1 = g LIKE 'x%'", "write parentheses around t.g LIKE 'x%'", "engine: spark"),
    ("SELECT id FROM public.t WHERE n IN (1) = (x > 1)", "write parentheses around t.n IN (1)", "engine: spark"),
    ("SELECT id FROM public.t WHERE n NOT IN (1) = (x > 1)", "around NOT t.n IN (1)", "engine: spark"),
    ("SELECT id FROM public.t WHERE n BETWEEN 1 AND 2 = (x > 1)", "around t.n BETWEEN 1 AND 2", "engine: spark"),
    ("SELECT id FROM public.t WHERE g LIKE 'x' IN (true)", "around t.g LIKE 'x'", "engine: spark"),
    ("SELECT id FROM public.t WHERE at > 'yesterday'", "it compares timestamp_ntz with a text", "engine: spark"),
    ("SELECT id FROM public.t WHERE n", "t.n is bigint; it should be a condition", "engine: spark"),
    (
        "SELECT id, CASE WHEN n > 1 THEN n ELSE g END AS r FROM public.t",
        "values of the types bigint and string",
        "spark",
    ),
    ("SELECT id, round(x, 20) AS r FROM public.t", "up to 15 digits", "engine: spark"),
    (
        "SELECT window.start AS id FROM public.t GROUP BY window(at, '5 minutes')",
        "no SQL of Spark",
        "date_trunc('HOUR', t)",
    ),
    ("SELECT id, DATE'2026-1-5' AS r FROM public.t", "the text is no DATE, or another one in Spark", "another way"),
    ("SELECT id, CAST('2026-02-30' AS date) AS r FROM public.t", "the text is no DATE", "another way"),
    ("SELECT id, date_trunc('M', at) AS r FROM public.t", "write its unit out: M is none of Spark", "another way"),
    ("SELECT id, dateadd(M, 1, at) AS r FROM public.t", "write its unit out: M is none of Spark", "another way"),
    ("SELECT id, CAST(x AS string) AS r FROM public.t", "double as string", "engine: spark"),
    ("SELECT id, trim(BOTH 'x' FROM g) AS r FROM public.t", "is not known to give Spark's value", "engine: spark"),
    ("SELECT id, g LIKE n AS r FROM public.t", "its pattern must be written out", "engine: spark"),
    ("SELECT id, window(at, '5 minutes') AS r FROM public.t", "WINDOW(t.at, '5 minutes') is not known", "date_trunc()"),
    ("SELECT id, at - INTERVAL '1 2:3:4' DAY TO SECOND AS r FROM public.t", "a whole number of one unit", "spark"),
    # units
    (
        "SELECT g AS id2, count(*) AS id FROM public.t GROUP BY g",
        "no unit to recompute: no column of the key (id) is in GROUP BY t.g",
        "add t.g to the output and to the key, or say `unit:` with columns of the key",
    ),
    (
        "SELECT id, row_number() OVER (ORDER BY id) AS r FROM public.t",
        "no column of the key (id) is in ROW_NUMBER() OVER (ORDER BY t.id",
        "add PARTITION BY with a column of the key, or say `refresh: full`",
    ),
    (
        "SELECT id, r FROM (SELECT id, rank() OVER (ORDER BY n) AS r FROM public.t)",
        "RANK() OVER (ORDER BY t.n) takes all rows together",
        "refresh: full",
    ),
    (
        "SELECT id, ntile(2) OVER (PARTITION BY n % 2, 7 div n ORDER BY id) AS r FROM public.t",
        "no column of the key (id) is in NTILE(2) OVER (PARTITION BY t.n % 2, 7 DIV t.n ORDER BY t.id)",
        "add t.n % 2, 7 DIV t.n to the output and to the key",
    ),
    (
        "SELECT id FROM (SELECT id,sum(n) OVER (PARTITION BY g) AS a, max(n) OVER (PARTITION BY at) b FROM public.t)",
        "have no expression in common",
        "refresh: full",
    ),
    (
        "SELECT id, c FROM public.t JOIN (SELECT count(*) AS c FROM public.f) s ON s.c = n",
        "s is an aggregate of all rows",
        "refresh: full",
    ),
    ("SELECT id FROM public.t ORDER BY n, id LIMIT 3", "LIMIT of the whole", "refresh: full"),
    ("SELECT id FROM public.t ORDER BY n", "ORDER BY of the whole", "leave it out"),
    ("SELECT id FROM (SELECT id FROM public.t LIMIT 3)", "LIMIT of the whole", "row_number()"),
    ("SELECT id FROM public.t UNION ALL SELECT who FROM public.f ORDER BY 1", "ORDER of a UNION", "subquery"),
    # joins
    ("SELECT id, who\nFROM public.t\nCROSS JOIN public.f", "line 3: no equality joins f", "refresh: full"),
    ("SELECT id, who FROM public.t, public.f", "no equality joins f to the tables before it", "equal on both sides"),
    ("SELECT id, who FROM public.t a JOIN public.f b ON b.z > a.n", "no equality joins b", "equal on both sides"),
    ("SELECT id, who FROM public.t a LEFT JOIN public.f b ON b.z = 1", "no equality joins b", "equal on both sides"),
    ("SELECT id FROM public.t a FULL JOIN public.f b ON b.whom = a.g", "FULL JOIN is not known here", "UNION ALL"),
    ("SELECT id FROM public.t a NATURAL JOIN public.f b", "NATURAL JOIN public.f AS b", "write JOIN … ON"),
    (
        "SELECT a.id FROM public.t a JOIN public.t c ON c.id = a.n RIGHT JOIN public.f b ON b.whom = a.g",
        "RIGHT JOIN is not known here",
        "begin with the table",
    ),
    ("SELECT id FROM (public.t a JOIN public.f b ON b.whom = a.g)", "a join in parentheses", "one after another"),
    ("SELECT a.id FROM public.t a JOIN public.f b USING (g)", "USING (g)", "write ON instead"),
    # subqueries, and what is no table
    (
        "SELECT id FROM public.t WHERE g NOT IN (SELECT whom FROM public.f)",
        "one NULL in it leaves no row",
        "NOT EXISTS",
    ),
    (
        "SELECT id FROM public.t WHERE n = 1 OR g IN (SELECT whom FROM public.f)",
        "a subquery in WHERE",
        "joined to the rest",
    ),
    ("SELECT id FROM public.t WHERE n = (SELECT max(z) FROM public.f)", "a subquery in WHERE", "LEFT JOIN with a CTE"),
    ("SELECT id FROM public.t a WHERE EXISTS (SELECT 1 FROM public.f b)", "a subquery in WHERE", "LEFT SEMI JOIN"),
    (
        "SELECT id FROM public.t a WHERE EXISTS (SELECT 1 FROM public.f b WHERE b.z > a.n)",
        "no equality joins b",
        "equal",
    ),
    (
        "SELECT id FROM public.t WHERE id IN (SELECT who FROM public.f f WHERE f.whom = t.g)",
        "no table t in FROM",
        "are: f",
    ),
    ("SELECT id, (SELECT max(z) FROM public.f) AS m FROM public.t", "a subquery in an expression", "LEFT JOIN"),
    ("WITH RECURSIVE c AS (SELECT id FROM public.t) SELECT id FROM c", "WITH RECURSIVE is not known here", "levels"),
    ("SELECT id FROM public.t LATERAL VIEW explode(n) e AS y", "LATERAL VIEW", "a view is made of"),
    ("SELECT id FROM public.t PIVOT (sum(n) FOR g IN ('a'))", "PIVOT", "a captured table"),
    ("SELECT id FROM public.t FOR UPDATE", "LOCKS is not known here", "a view is made of"),
    ("SELECT id FROM public.t TABLESAMPLE (10 PERCENT)", "TABLESAMPLE", "a captured table"),
    ("SELECT id FROM range(3)", "RANGE(3) is not known in FROM", "a captured table"),
    ("SELECT id FROM VALUES (1) AS v(id)", "is not known in FROM", "a captured table"),
    ("SELECT id FROM public.t EXCEPT ALL SELECT who FROM public.f", "EXCEPT ALL is not known here", "row_number()"),
    ("SELECT id FROM public.t MINUS SELECT id, g FROM public.t", "the branches of EXCEPT have 1 and 2 columns", "each"),
    ("(SELECT id FROM public.t) ORDER BY id LIMIT 3", "ORDER BY id behind a query in parentheses", "parentheses away"),
    (
        "SELECT id FROM public.t WHERE n IN ((SELECT n FROM public.t) LIMIT 1)",
        "LIMIT 1 behind a query",
        "SELECT * FROM",
    ),
    ("SELECT id FROM public.t UNION ALL ((SELECT who FROM public.f) LIMIT 1)", "LIMIT 1 behind a query", "(…) q"),
    (
        "SELECT id, g FROM public.t UNION ALL SELECT who FROM public.f",
        "the branches of UNION have 1 and 2 columns",
        "each",
    ),
    ("SELECT id FROM public.t EXCEPT SELECT whom FROM public.f", "id is bigint in one branch and string", "cast one"),
    (
        "SELECT id FROM public.t UNION ALL SELECT whom FROM public.f",
        "id is bigint in one branch and string in another",
        "cast one",
    ),
    # groups
    ("SELECT id, n FROM public.t GROUP BY id", "t.n is neither in GROUP BY nor aggregated", "add it to GROUP BY"),
    ("SELECT id, sum(max(n)) AS s FROM public.t GROUP BY id", "an aggregate of an aggregate", "in a CTE"),
    ("SELECT id FROM public.t WHERE count(*) > 1", "COUNT(*) in WHERE", "use HAVING"),
    ("SELECT id FROM public.t GROUP BY id WITH ROLLUP", "GROUP BY ROLLUP is not known here", "UNION ALL"),
    ("SELECT id FROM public.t GROUP BY CUBE (id)", "GROUP BY CUBE (id) is not known here", "UNION ALL"),
    ("SELECT id FROM public.t GROUP BY 2", "GROUP BY 2: there is no such output column", "name the column"),
    (
        "SELECT id, max(n) AS n FROM public.t GROUP BY id HAVING n > 1",
        "n in HAVING is the name of an output column",
        "t.n",
    ),
    ("SELECT id, sum(n) OVER w AS s FROM public.t", "there is no window w", "WINDOW w AS"),
    # the clock
    (
        "SELECT id FROM public.t WHERE clock() = at",
        "it is not known when it changes: CLOCK() = t.at",
        "compare clock()",
    ),
    ("SELECT id, clock() AS c FROM public.t", "it is not known when it changes: CLOCK()", "compare clock()"),
    (
        "SELECT id FROM public.t WHERE at > clock() - INTERVAL 1 MONTH",
        "it is not known when it changes",
        "compare clock()",
    ),
    (
        "SELECT id FROM public.t WHERE coalesce(at, clock()) < clock()",
        "it is not known when it changes",
        "compare clock()",
    ),
    ("SELECT id FROM public.t WHERE clock() > '2026-01-01'", "clock() is compared with what is no column", "compare"),
    (
        "SELECT g AS id FROM public.t GROUP BY g HAVING max(at) < clock()",
        "clock() is compared with an aggregate or a window: MAX(t.at) < CLOCK()",
        "make the aggregate in a CTE",
    ),
    (
        "SELECT id, who FROM public.t a LEFT JOIN public.f b ON b.whom = a.g AND a.at < clock()",
        "clock() stands in the ON of a LEFT JOIN, or in EXISTS, NOT EXISTS or IN: a.at < CLOCK()",
        "SELECT DISTINCT …, a.at < CLOCK() AS due",
    ),
    (
        "SELECT id FROM public.t WHERE NOT EXISTS (SELECT 1 FROM public.t b WHERE b.g = t.g AND b.at < clock())",
        "clock() stands in the ON of a LEFT JOIN, or in EXISTS, NOT EXISTS or IN: b.at < CLOCK()",
        "SELECT DISTINCT …, b.at < CLOCK() AS due",
    ),
    # approximate aggregates
    (
        "SELECT id, approx_count_distinct(x) AS r FROM public.t GROUP BY id",
        "APPROX_COUNT_DISTINCT(t.x) is of double: NaN and minus zero have texts of their own",
        "cast it to DECIMAL",
    ),
    (
        "SELECT id, approx_count_distinct(DISTINCT n) AS r FROM public.t GROUP BY id",
        "APPROX_COUNT_DISTINCT(DISTINCT t.n) has DISTINCT in it",
        "leave DISTINCT out",
    ),
    (
        "SELECT id, approx_top_k(DISTINCT n, 2) AS r FROM public.t GROUP BY id",
        "APPROX_TOP_K(DISTINCT t.n, 2) has DISTINCT in it",
        "make the distinct rows in a CTE",
    ),
    (
        "SELECT id, approx_count_distinct(n, 0.5) AS r FROM public.t GROUP BY id",
        "should be a relative standard error from 0.001 to 0.26",
        "as 0.01",
    ),
    (
        "SELECT id, approx_top_k(n) AS r FROM public.t GROUP BY id",
        "APPROX_TOP_K(t.n): the second argument should say how many values",
        "approx_top_k(x, 10)",
    ),
    (
        "SELECT id, approx_percentile(n, 1.5) AS r FROM public.t GROUP BY id",
        "the second argument should be a number from 0 to 1",
        "as 0.95",
    ),
    (
        "SELECT id, approx_percentile(n, array(0.5, 0.9)) AS r FROM public.t GROUP BY id",
        "the second argument should be a number from 0 to 1",
        "approx_percentile(x, 0.5) AS p50",
    ),
    (
        "SELECT id, approx_percentile(g, 0.5) AS r FROM public.t GROUP BY id",
        "t.g is string; it should be a number, a date or a timestamp",
        "write it in another way",
    ),
    (
        "SELECT id, approx_count_distinct(n) OVER (PARTITION BY g) AS r FROM public.t",
        "an approximate value is a group's, not a window's",
        "make it in a CTE with GROUP BY",
    ),
    (
        "SELECT id, hll_sketch_agg(n, 30) AS r FROM public.t GROUP BY id",
        "the second argument should be a whole number from 4 to 21",
        "left out, it is 12",
    ),
    (
        "SELECT id, hll_sketch_agg(n) AS r FROM public.t GROUP BY id",
        "the output column r is a sketch, which no event has",
        "output hll_sketch_estimate(s)",
    ),
    (
        "SELECT id, hll_sketch_estimate(n) AS r FROM public.t",
        "t.n is bigint; it should be a sketch: hll_sketch_agg(x) makes one",
        "write it in another way",
    ),
    (
        "WITH s AS (SELECT id, hll_sketch_agg(n) AS s FROM public.t GROUP BY id) SELECT id, s IS NULL AS r FROM s",
        "is a sketch, which can only be merged and estimated",
        "hll_union_agg(s) merges",
    ),
    (
        "SELECT 1 AS id, hll_sketch_agg(n) AS s FROM public.t UNION ALL SELECT 2, hll_sketch_agg(n, 10) FROM public.t",
        "s is sketch of 2^12 in one branch and sketch of 2^10 in another",
        "as many registers",
    ),
]
KEYS = {"SELECT id, who": ["id", "who"]}


@pytest.mark.parametrize(("sql", "what", "hint"), REFUSED, ids=[sql[:60] for sql, *_ in REFUSED])
def test_what_cannot_be_kept_up_to_date_is_refused_with_the_way_out(sql: str, what: str, hint: str) -> None:
    key = next((key for begin, key in KEYS.items() if sql.startswith(begin)), ["id"])
    with pytest.raises(ConfigError) as refused:
        plan_view("v", sql, key, RELATIONS)
    assert refused.value.message.startswith("views.v.sql:")
    assert what in refused.value.message
    assert hint in (refused.value.hint or "")


def units(plan: ViewPlan) -> list[tuple[str, ...]]:
    return [node.units for node in plan.nodes]


UNITS: list[tuple[str, list[str], list[tuple[str, ...]]]] = [
    ("SELECT a.id, b.who, b.whom FROM public.t a JOIN public.f b ON b.whom = a.g", ["id", "who"], [("id", "who")]),
    ("SELECT id, g, count(*) AS c FROM public.t GROUP BY id, g", ["id"], [("id",)]),
    ("SELECT count(*) AS c FROM public.t", ["c"], [()]),
    ("SELECT c FROM (SELECT id AS c FROM public.t)", ["c"], [("c",)]),
    ("WITH s AS (SELECT g, count(*) AS c FROM public.t GROUP BY g) SELECT c, g FROM s", ["g"], [("g",), ("g",)]),
    ("SELECT c, g FROM (SELECT count(*) AS c, max(g) AS g FROM public.t GROUP BY n)", ["g"], [("_u0",), ("g",)]),
    (
        "WITH s AS (SELECT g, max(n) AS c FROM public.t GROUP BY g) SELECT a.g, b.g h FROM s a JOIN s b ON b.c = a.c",
        ["g", "h"],
        [("g",), ("g", "h")],
    ),
    (
        "SELECT id, r FROM (SELECT id, row_number() OVER (PARTITION BY g ORDER BY n, id) r FROM public.t) WHERE r < 3",
        ["id"],
        [("_u0",), ("id",)],
    ),
    (
        "SELECT lower(g) AS l, rank() OVER (PARTITION BY lower(g) ORDER BY count(*)) r FROM public.t GROUP BY lower(g)",
        ["l"],
        [("l",)],
    ),
    (
        "SELECT id, lower(g) AS l, row_number() OVER (PARTITION BY lower(g) ORDER BY id) AS r FROM public.t",
        ["id", "l"],
        [("l",)],
    ),
    ("SELECT 'a' AS b, id FROM public.t UNION ALL SELECT 'b', who FROM public.f", ["b", "id"], [("b", "id")]),
    (
        "SELECT id, count(*) AS c FROM (SELECT id FROM public.t UNION ALL SELECT who FROM public.f) GROUP BY id",
        ["id"],
        [("_ubranch", "_u0_0", "_u1_0", "_u1_1"), ("id",)],
    ),
    ("SELECT k, v FROM view.other WHERE v = 'x'", ["k"], [("k",)]),
]


@pytest.mark.parametrize(("sql", "key", "expected"), UNITS, ids=[sql[:60] for sql, *_ in UNITS])
def test_a_node_is_divided_as_finely_as_its_clauses_allow(
    sql: str, key: list[str], expected: list[tuple[str, ...]]
) -> None:
    plan = plan_view("v", sql, key, RELATIONS)
    assert units(plan) == expected
    assert plan.nodes[-1].name == "v"
    assert [node.name for node in plan.nodes[:-1]] == [f"v#{number}" for number in range(1, len(plan.nodes))]


_F = "(WITH x AS (SELECT who AS id FROM public.f) SELECT id FROM x)"


@pytest.mark.parametrize(
    "sql",
    [
        _F[1:-1],
        _F,
        f"({_F})",
        "WITH x AS (SELECT who AS id FROM public.f) (SELECT id FROM x)",
        "(WITH x AS (SELECT who AS id FROM public.f) (SELECT id FROM x))",
        f"SELECT id FROM ({_F}) q",
        f"SELECT id FROM ({_F} r) q",
        f"WITH a AS ({_F}) SELECT id FROM a",
        f"SELECT id FROM public.t UNION ALL {_F}",
        f"{_F} UNION ALL SELECT id FROM public.t",
        f"WITH x AS (SELECT id FROM public.t) SELECT id FROM x UNION ALL {_F}",
        f"SELECT id FROM public.t EXCEPT ({_F})",
        f"WITH x AS (SELECT id FROM public.t) SELECT id FROM x WHERE id IN ({_F})",
    ],
)
def test_a_query_in_parentheses_has_its_own_with(sql: str) -> None:
    plan = plan_view("v", sql, ["id"], RELATIONS)
    outer = {"public.t"} if "x WHERE" in sql or sql.count("UNION ALL") or "EXCEPT" in sql else set[str]()
    assert set(plan.reads) == {"public.f", *outer}


def test_names_are_found_whatever_their_case_and_kept_as_they_are_written() -> None:
    plan = plan_view("v", "SELECT o.ID, NAME AS Nick, o.* EXCEPT (id) FROM SHOP.odd O", ["ID"], RELATIONS)
    assert plan.nodes[-1].columns == ("ID", "Nick", "Name")
    assert plan.reads == ("shop.Odd",)


@pytest.mark.parametrize("called", ["like(g, 'a%')", "like(g, 'a!%', '!')", "ilike(g, 'a%')", "rlike(g, 'a')"])
def test_a_function_that_is_written_as_an_operator_stays_one_part(called: str) -> None:
    """``b = g LIKE 'a%'`` is ``(b = g) LIKE 'a%'`` to Spark, and the parser has one node for both."""
    for sides in (f"true = {called}", f"{called} = true", f"{called} IN (true)"):
        text = spark_text(f"SELECT {sides} AS r FROM public.t", {}, dt.datetime(2026, 1, 1))  # noqa: DTZ001
        assert re.search(r"\(g R?I?LIKE '[^()]+\)( = TRUE| IN | AS r)", text, re.IGNORECASE), text


def test_a_dot_may_be_part_of_a_name() -> None:
    sql = "SELECT `a.b`, max(d.`c.`) AS c FROM shop.dots d GROUP BY shop.dots.`a.b`"
    with pytest.raises(ConfigError, match=r"there is no table shop\.dots in FROM"):
        plan_view("v", sql, ["a.b"], RELATIONS)
    plan = plan_view("v", sql.replace("shop.dots.", "d."), ["a.b"], RELATIONS)
    assert (units(plan), plan.nodes[0].columns) == ([("a.b",)], ("a.b", "c"))


def test_a_column_may_use_the_one_before_it_by_its_name() -> None:
    plan = plan_view("v", "SELECT id, n + 1 AS m, m * 2 AS k FROM public.t", ["id"], RELATIONS)
    assert '("t"."n" + 1) * 2' in plan.nodes[-1].whole


def test_a_view_that_is_refreshed_whole_may_be_ordered_and_limited() -> None:
    plan = plan_view(
        "v", "SELECT id, n FROM public.t ORDER BY n DESC, id LIMIT 3", ["id"], RELATIONS, divided=Division(full=True)
    )
    assert units(plan) == [()]
    assert plan.nodes[0].touched == ()
    assert plan.nodes[0].restricted == plan.nodes[0].whole
    assert plan.nodes[0].whole.endswith("LIMIT 3")


def test_the_first_rows_of_a_view_refreshed_whole_need_a_total_order() -> None:
    for limit in ("FETCH FIRST 3 ROWS ONLY", "LIMIT 3 WITH TIES", "LIMIT ALL"):
        with pytest.raises(ConfigError, match="is no LIMIT with a number"):
            plan_view(
                "v", f"SELECT id FROM public.t ORDER BY id {limit}", ["id"], RELATIONS, divided=Division(full=True)
            )
    with pytest.raises(ConfigError, match="LIMIT has no total order") as refused:
        plan_view(
            "v", "SELECT id, n FROM public.t ORDER BY n DESC LIMIT 3", ["id"], RELATIONS, divided=Division(full=True)
        )
    assert refused.value.hint == "add to ORDER BY: t.id"
    with pytest.raises(ConfigError, match="LIMIT has no total order") as refused:
        plan_view(
            "v", "SELECT DISTINCT g, n FROM public.t ORDER BY g LIMIT 3", ["g"], RELATIONS, divided=Division(full=True)
        )
    assert refused.value.hint == "add to ORDER BY: t.n"
    every = "SELECT DISTINCT id, g, n FROM public.t ORDER BY id LIMIT 3"
    assert plan_view("v", every, ["id"], RELATIONS, divided=Division(full=True)).unique_key


UNIT_REFUSED: list[tuple[str, list[str], list[str], str, str]] = [
    ("SELECT g, id FROM public.t", ["g"], ["id"], "unit: id is no column of the key", "there are: g"),
    (
        "SELECT g, count(*) AS c FROM public.t GROUP BY g",
        ["g", "c"],
        ["c"],
        "unit: c is made of several rows: COUNT(*)",
        "name a column that each row has",
    ),
    (
        "SELECT g, id,\n row_number() OVER (ORDER BY id) AS r FROM public.t",
        ["g", "id"],
        ["g"],
        "(ORDER BY t.id) takes all rows together, so g cannot divide it",
        "add PARTITION BY g",
    ),
    (
        "SELECT max(g) AS g, count(*) AS c FROM public.t",
        ["g"],
        ["g"],
        "unit: an aggregate without GROUP BY takes all rows together, so g cannot divide it",
        "add GROUP BY g, or say `refresh: full`",
    ),
    (
        "SELECT g, n, rank() OVER (PARTITION BY count(*) ORDER BY n) AS r FROM public.t GROUP BY g, n",
        ["g", "n"],
        ["g"],
        "is by what rows give together, so g cannot divide it",
        "add PARTITION BY g",
    ),
    (
        "SELECT t.g, t.id, s.m FROM public.t t JOIN (SELECT max(n) AS m FROM public.t) s ON s.m = t.n",
        ["g", "id"],
        ["g"],
        "unit: it reads an aggregate of all rows",
        "say `refresh: full`",
    ),
    (
        """WITH w AS (SELECT id, count(*) OVER (PARTITION BY n) AS r, sum(n) OVER (PARTITION BY at) AS c FROM public.t)
        SELECT t.g, t.id, w.r FROM public.t t JOIN w ON w.id = t.id""",
        ["g", "id"],
        ["g"],
        "has no column g, by which it would be divided",
        "add g to what it selects",
    ),
]


@pytest.mark.parametrize(
    ("sql", "key", "unit", "what", "hint"), UNIT_REFUSED, ids=[what for *_, what, _ in UNIT_REFUSED]
)
def test_a_unit_that_cannot_divide_a_view_is_refused(
    sql: str, key: list[str], unit: list[str], what: str, hint: str
) -> None:
    for engine in ("duckdb", "spark", "postgres"):
        with pytest.raises(ConfigError) as refused:
            plan_view("v", sql, key, RELATIONS, divided=Division(unit=tuple(unit)), engine=engine)
        assert what in refused.value.message
        assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("sql", "key", "offered"),
    [
        ("SELECT max(g) AS g, count(*) AS c FROM public.t GROUP BY n", ["g"], True),
        ("SELECT g, id, row_number() OVER (ORDER BY id) AS r FROM public.t", ["g", "id"], False),
        ("SELECT id, g FROM public.t ORDER BY id LIMIT 3", ["id"], False),
    ],
)
def test_a_unit_is_offered_where_it_may_divide(sql: str, key: list[str], *, offered: bool) -> None:
    with pytest.raises(ConfigError) as refused:
        plan_view("v", sql, key, RELATIONS)
    assert ("or say `unit:`" in (refused.value.hint or "")) is offered
    assert "refresh: full" in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT d.id, b.who FROM d LEFT JOIN public.f b ON b.whom = d.g AND d.due", ["id", "who"]),
        ("SELECT id FROM public.t t WHERE NOT EXISTS (SELECT 1 FROM d WHERE d.g = t.g AND d.due)", ["id"]),
    ],
)
def test_the_clock_of_an_outer_join_is_a_column_of_a_cte(sql: str, key: list[str]) -> None:
    """The way out that the refusal names."""
    of_rows = "WITH d AS (SELECT DISTINCT id, g, a.at < CLOCK() AS due FROM public.t a)"
    assert plan_view("v", f"{of_rows} {sql}", key, RELATIONS).uses_clock


def test_what_divides_a_view_by_its_clauses_is_not_asked_again() -> None:
    plan = plan_view("v", "SELECT g, id, n FROM public.t", ["g", "id"], RELATIONS, divided=Division(unit=("g",)))
    assert units(plan) == [("g",)]
    assert plan.nodes[-1].checks == ()


def test_a_sum_of_floats_is_warned_of() -> None:
    plan = plan_view("v", "SELECT g, sum(x) AS s, avg(n) AS a FROM public.t GROUP BY g", ["g"], RELATIONS)
    of_floats, of_integers = plan.warnings
    assert "order of addition" in of_floats
    assert "beyond 2^53" in of_integers


def test_an_average_of_integers_is_one_whatever_the_order_of_rows() -> None:
    sql = "SELECT 1 AS k, avg(n) AS a FROM public.t GROUP BY 1"
    (node,) = plan_view("v", sql, ["k"], RELATIONS).nodes
    duck, numbers = duckdb.connect(), [2**53 + 1, 2**53 + 1, 1, 1, 1, 1]
    found = set()
    for order in (sorted(numbers), numbers):
        duck.execute('CREATE OR REPLACE TABLE "public.t" (n BIGINT)')
        duck.executemany('INSERT INTO "public.t" VALUES (?)', [[number] for number in order])
        found |= set(duck.execute(node.whole.replace('"after".', "")).fetchall())
    assert found == {(1, float(2**54 + 6) / 6)}


@pytest.mark.parametrize(
    ("sql", "key", "warned"),
    [
        ("SELECT g, n, count(*) AS c FROM public.t GROUP BY g, n", ["g"], ["t.n"]),
        ("SELECT id, n, count(*) AS c FROM public.t GROUP BY id, n", ["id"], []),
        ("SELECT a.id, b.who FROM public.t a JOIN public.f b ON b.whom = a.g", ["id", "who"], []),
        ("SELECT a.id, b.z FROM public.t a JOIN public.f b ON b.whom = a.g", ["id"], ["b.who"]),
        ("SELECT a.id FROM public.t a LEFT JOIN public.f b ON b.who = a.n AND b.whom = a.g", ["id"], []),
        (
            "SELECT a.id FROM public.t a LEFT JOIN public.f b ON b.who = a.n WHERE b.who IS NULL AND b.whom IS NULL",
            ["id"],
            [],
        ),
    ],
)
def test_a_key_that_may_not_tell_rows_apart_is_warned_of(sql: str, key: list[str], warned: list[str]) -> None:
    warnings = plan_view("v", sql, key, RELATIONS).warnings
    assert len(warnings) == len(warned)
    assert all(column in warning for column, warning in zip(warned, warnings, strict=True))


def test_the_clock_is_a_parameter_and_wakes_the_view() -> None:
    plan = plan_view("v", "SELECT id FROM public.t WHERE at < clock()", ["id"], RELATIONS)
    assert plan.uses_clock
    [node] = plan.nodes
    assert all("$clock" not in statement for statement in node.touched)
    assert all("$clock_before" in statement and "$clock_after" in statement for statement in node.due)
    assert "$clock_before" not in node.restricted
    assert "$clock_after" in node.restricted


def test_a_changed_row_restricts_its_own_table_before_it_is_joined() -> None:
    """What one change costs: the unit filter stands at the table, and below the group."""
    sql = "SELECT b.who, count(*) AS c FROM public.t a JOIN public.f b ON b.whom = a.g GROUP BY b.who"
    [node] = plan_view("v", sql, ["who"], RELATIONS).nodes
    assert '(SELECT * FROM "after"."public.f" AS _row WHERE (EXISTS (SELECT 1 FROM "units"."v"' in node.restricted
    assert node.restricted.index("EXISTS") < node.restricted.index("GROUP BY")


def test_a_decimal_without_a_size_is_a_text_as_it_is_in_spark() -> None:
    relations = {"public.p": Relation("public.p", {"id": Kind("int64"), "price": Kind("decimal")}, ("id",))}
    with pytest.raises(ConfigError, match="string"):
        plan_view("v", "SELECT id, price * 2 AS p FROM public.p", ["id"], relations)


@pytest.mark.parametrize(
    ("sql", "key", "by"),
    [
        ("SELECT g, count(*) AS c FROM (SELECT DISTINCT g, n FROM public.t) d GROUP BY g", ["g"], ("g", "n")),
        ("SELECT who FROM public.f WHERE whom IN (SELECT g FROM public.t GROUP BY g, n)", ["who"], ("g", "t.n")),
        (
            "SELECT k, max(k) AS m FROM (SELECT n AS k FROM public.t UNION ALL SELECT who FROM public.f) u GROUP BY k",
            ["k"],
            ("t.id", "f.who", "f.whom"),
        ),
    ],
)
def test_what_divides_a_node_is_told_by_names_that_the_sql_has(sql: str, key: list[str], by: tuple[str, ...]) -> None:
    first, *_ = plan_view("v", sql, key, RELATIONS, divided=Division(limit=10)).nodes
    assert first.divided_by == by
    assert f"(by {', '.join(by)})" in first.checks[-1].what


def _statements(node: Node) -> Iterator[str]:
    yield from (*node.touched, *node.due, *node.next_due, node.restricted, node.whole, *filter(None, [node.every]))
    for check in node.checks:
        yield from (check.restricted, check.whole)


@pytest.mark.parametrize("shape", [name for name, (sql, _) in SHAPES.items() if not re.search("approx_|hll_", sql)])
def test_each_subquery_in_from_has_a_name_as_postgres_before_16_asks_for(shape: str) -> None:
    """Whatever a relation is read as: rows of a table, or a subquery."""

    def given(what: str, relation: str) -> str:
        if relation:
            return "(SELECT 1)"
        return "IS NOT DISTINCT FROM" if what == "same" else "TIMESTAMP '2026-01-01'"

    sql, key = SHAPES[shape]
    plan = plan_view("v", sql, key, SMALL, engine="postgres", divided=Division(limit=10))
    for statement in (filled(each, given) for node in plan.nodes for each in _statements(node)):
        nameless = [
            each.sql()
            for each in sqlglot.parse_one(statement, read="postgres").find_all(exp.Subquery)
            if isinstance(each.parent, exp.From | exp.Join) and not each.alias
        ]
        assert nameless == []


@pytest.mark.parametrize(
    "made",
    [
        lambda count: " + ".join(f"n / (n + {number})" for number in range(10, 10 + count)),
        lambda count: (
            f"n IN ({', '.join(f'{number}' for number in range(100 * count))}, CAST(CAST(n AS STRING) AS INT))"
        ),
        lambda count: (
            f"n IN ({', '.join(f'CAST(substr(CAST(n AS STRING), {number}) AS INT)' for number in range(1, count))})"
        ),
    ],
    ids=["quotients", "members", "members that may be refused"],
)
def test_what_is_asked_in_order_grows_with_its_number_alone(made: Callable[[int], str]) -> None:
    def length(count: int) -> int:
        sql = f"SELECT id, {made(count)} AS r FROM public.t"
        return len(plan_view("v", sql, ["id"], RELATIONS).nodes[-1].whole)

    assert length(8) < 3 * length(4)


def test_comparisons_bind_alike_from_left_to_right() -> None:
    """As in Spark, where the first one of several is computed first, whichever they are."""
    sql = "SELECT id FROM public.t WHERE (n > 1) <=> (g = 'x') < (n > 2)"
    whole = plan_view("v", sql, ["id"], RELATIONS).nodes[0].whole
    assert """(("t"."n" > 1) IS NOT DISTINCT FROM ("t"."g" = 'x')) < ("t"."n" > 2)""" in whole


@pytest.mark.parametrize(("kind", "through"), [(Kind("decimal", 10, 2), ""), (Kind("decimal", 4, 4), "DECIMAL(5, 4)")])
def test_only_a_decimal_with_all_digits_behind_the_point_is_carried_to_a_text_by_another_type(
    kind: Kind, through: str
) -> None:
    """A view whose statements are others is computed whole again, so those that were right stay as they were."""
    of = Relation("public.d", {"id": Kind("int64"), "d": kind}, ("id",))
    for text in ("CAST(d AS STRING)", "d || 'x'", "concat_ws('-', d)"):
        plan = plan_view("v", f"SELECT id, {text} AS t FROM public.d", ("id",), {of.name: of})
        assert re.findall(r"DECIMAL\(\d+, \d+\)", plan.nodes[-1].whole) == ([through] if through else [])


_WITHIN = "listagg(x, ', ') WITHIN GROUP (ORDER BY …)"


@pytest.mark.parametrize("engine", ["duckdb", "spark", "postgres"])
@pytest.mark.parametrize(
    ("value", "why", "hint"),
    [
        ("listagg(g, ',')", "LISTAGG(t.g, ',') depends on the order in which rows are read", _WITHIN),
        ("string_agg(DISTINCT g, ',')", "depends on the order in which rows are read", _WITHIN),
        ("listagg(g) WITHIN GROUP (ORDER BY n)", "its separator should be a text, written out", _WITHIN),
        ("listagg(g, g) WITHIN GROUP (ORDER BY n)", "its separator should be a text, written out", _WITHIN),
        ("listagg(DISTINCT g, ',') WITHIN GROUP (ORDER BY n)", "is DISTINCT, and ordered by", "ORDER BY t.g, or list"),
        ("listagg(g, ',' ON OVERFLOW TRUNCATE) WITHIN GROUP (ORDER BY n)", "has ON OVERFLOW", "leave it out"),
        ("max_by(g, n, 2)", "has a number of values, which Spark does not know", "row_number()"),
        ("max_by(g, n) OVER (PARTITION BY id)", "not a window's", "in a CTE"),
        ("min_by(g, n) OVER (PARTITION BY id)", "not a window's", "in a CTE"),
        (
            "listagg(g, ',') WITHIN GROUP (ORDER BY n) OVER (PARTITION BY id)",
            "is not known here: it is a group's, not a window's",
            "in a CTE",
        ),
    ],
)
def test_an_aggregate_of_an_order_without_one_or_in_a_window_is_refused(
    value: str, why: str, hint: str, engine: str
) -> None:
    sql = f"SELECT id, {value} AS r FROM public.t" + (" GROUP BY id" if "OVER (" not in value else "")
    with pytest.raises(ConfigError) as refused:
        plan_view("v", sql, ["id"], RELATIONS, engine=engine)
    assert why in str(refused.value)
    assert hint in (refused.value.hint or "")


@pytest.mark.parametrize(
    ("engine", "value", "why", "hint"),
    [
        ("duckdb", "sum(n)", r"SUM\(t.n\) FILTER\(WHERE t.n > 1\) is not known here in a window", "CASE WHEN"),
        ("postgres", "max_by(g, n)", r"MAX_BY\(t.g, t.n\) FILTER\(WHERE t.n > 1\) is not known here", "CASE WHEN"),
        ("spark", "max_by(g, n)", "it is a group's, not a window's", "in a CTE"),
    ],
)
def test_a_filter_in_a_window_is_refused_by_its_name(engine: str, value: str, why: str, hint: str) -> None:
    sql = f"SELECT id, {value} FILTER (WHERE n > 1) OVER (PARTITION BY g) AS r FROM public.t"
    with pytest.raises(ConfigError, match=why) as refused:
        plan_view("v", sql, ["id"], RELATIONS, engine=engine)
    assert hint in (refused.value.hint or "")


def test_equal_rows_of_a_list_are_in_the_order_of_their_texts() -> None:
    sql = "SELECT n, listagg(g, ',') WITHIN GROUP (ORDER BY at DESC) AS r FROM public.t GROUP BY n"
    written = {of: plan_view("v", sql, ["n"], RELATIONS, engine=of).nodes[0].whole for of in ("duckdb", "postgres")}
    assert """STRING_AGG("t"."g", ',' ORDER BY "t"."at" DESC, "t"."g" ASC NULLS FIRST)""" in written["duckdb"]
    assert """ORDER BY "t"."at" DESC NULLS LAST, "t"."g" ASC NULLS FIRST)""" in written["postgres"]


def test_a_list_is_of_texts() -> None:
    sql = "SELECT n, listagg(id, ',') WITHIN GROUP (ORDER BY id) AS r FROM public.t GROUP BY n"
    with pytest.raises(ConfigError, match=r"t\.id is bigint; it should be a text: cast it to STRING"):
        plan_view("v", sql, ["n"], RELATIONS)
