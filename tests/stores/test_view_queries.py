"""Whole queries of views give Spark's rows in the views' engine: names, stars, orders, types, keys of floats."""

from __future__ import annotations

import re
from collections import Counter
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from cdc.config.views import ViewConfig
from cdc.model.errors import ConfigError
from spark_apply.views.planning.output_types import output_columns
from spark_apply.views.planning.planned import planned_view
from spark_apply.views.sql.expressions.engines.dialects import stand_in
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division, Relation
from tests.stores.test_view_functions import COLUMNS, lines, made_rows, same
from tests.views.engine import quoted

pytest_plugins = ["tests.spark.fixtures"]

_KINDS = {name: kind for name, (kind, *_) in COLUMNS.items()}
_TABLES = {name: Relation(name, _KINDS, ("id",)) for name in ("public.t", "public.u")}
"""Two tables of the same columns."""

QUERIES = """
a, b, c, d, e
    WITH z(a, b, c, d, e) AS (SELECT * FROM (SELECT id AS p, i, s FROM public.t) t
    JOIN (SELECT id AS q, i, s AS r FROM public.u) u USING (i)) SELECT a, b, c, d, e FROM z

a, b, c, d, e
    WITH z(a, b, c, d, e) AS (SELECT * FROM (SELECT id AS p, i, s FROM public.t WHERE i > 5) t
    RIGHT JOIN (SELECT id AS q, i, s AS r FROM public.u) u USING (i)) SELECT a, b, c, d, e FROM z

a, b, c, d, e
    WITH z(a, b, c, d, e) AS (SELECT t.*, u.* FROM (SELECT id AS p, i FROM public.t) t
    LEFT JOIN (SELECT id AS q, i, s AS r FROM public.u) u USING (i)) SELECT a, b, c, d, e FROM z

a, b, c, d, e, f
    WITH z(a, b, c, d, e, f) AS (SELECT * FROM (SELECT id AS p, s, i FROM public.t) t
    LEFT JOIN (SELECT id AS q, s, i, x AS r FROM public.u) u USING (i, s)
    JOIN (SELECT l AS m, id AS p FROM public.u) v USING (p)) SELECT a, b, c, d, e, f FROM z

a, b, c, d, e, f
    WITH z(a, b, c, d, e, f) AS (SELECT * FROM (SELECT id AS p, s, i FROM public.t) t
    LEFT JOIN (SELECT id AS q, x AS r, i FROM public.u) u USING (i)
    JOIN (SELECT l AS m, id AS q FROM public.u) v USING (q)) SELECT a, b, c, d, e, f FROM z

a, b, c
    SELECT a, b, c FROM (SELECT * FROM (SELECT id AS p, s, i FROM public.t) t
    LEFT SEMI JOIN (SELECT id AS q, i FROM public.u WHERE id < 9) u USING (i)) z(a, b, c)

full: id
    SELECT id, -l AS l FROM public.t ORDER BY l + 0, id LIMIT 9

full: i
    SELECT i, count(*) AS n, max(-j) AS j FROM public.t GROUP BY i ORDER BY n % 2, abs(j), count(i), i LIMIT 5

full: i
    SELECT DISTINCT i, s FROM public.t ORDER BY i DESC, s LIMIT 9

full: i
    SELECT i, count(*) AS n, rank() OVER (ORDER BY count(*) DESC) AS r FROM public.t GROUP BY i
    ORDER BY r % 3, n, i LIMIT 7

full: id
    SELECT id, x FROM public.t ORDER BY x DESC, id LIMIT 20

x
    SELECT x, count(*) AS n, count(DISTINCT y) AS m FROM public.t GROUP BY x

x, y
    SELECT DISTINCT x, y FROM public.t

x, id
    SELECT x, id, row_number() OVER (PARTITION BY x ORDER BY id) AS n FROM public.t

k
    SELECT k, count(*) AS n FROM (SELECT f AS k FROM public.t UNION ALL SELECT x FROM public.u) z GROUP BY k

k
    SELECT i AS k FROM public.t UNION SELECT d FROM public.u

k
    SELECT f AS k FROM public.t UNION SELECT d FROM public.u UNION SELECT l FROM public.u UNION SELECT x FROM public.t

w, n
    SELECT timestamp_micros(unix_micros(CAST(ts AS TIMESTAMP)) div 300000000 * 300000000) AS w, count(*) AS n
    FROM public.t GROUP BY 1

k, b
    SELECT x AS k, b FROM public.t EXCEPT SELECT d, b FROM public.u WHERE i > 3

k
    SELECT f AS k FROM public.t INTERSECT SELECT x FROM public.u UNION ALL SELECT i FROM public.t WHERE i > 7

k
    SELECT i AS k FROM public.t WHERE i > 2
    UNION SELECT j FROM public.t WHERE j < 2 INTERSECT SELECT i FROM public.u WHERE i < 1
    EXCEPT SELECT j FROM public.u WHERE j > 0 INTERSECT SELECT i FROM public.u WHERE i < 9

id
    SELECT id, i = 1 IS NULL AS p, i + j > l IS NOT NULL AS q, b = c IS NOT DISTINCT FROM true AS r, 1.50BD AS d,
    2BD * i AS e, 2 * mod(l, 5) AS f, 7 - mod(i, 3) % 2 AS g FROM public.t

k
    SELECT k, count(*) AS n FROM (SELECT l AS k FROM public.t UNION ALL SELECT f FROM public.u) z GROUP BY k

k
    SELECT k, count(*) AS n FROM (SELECT dt AS k FROM public.t UNION ALL SELECT ts FROM public.u) z GROUP BY k

id, u
    SELECT t.id, u.id AS u FROM public.t t JOIN public.u u ON u.x = t.f AND u.x <> 0

id, u
    SELECT t.id, u.id AS u FROM public.t t JOIN public.u u ON u.x = t.x WHERE t.id < 40

id, u
    SELECT t.id, u.id AS u FROM public.t t LEFT JOIN public.u u ON u.dt = t.ts AND t.b

id, i
    SELECT id, i, sum(l) OVER (PARTITION BY i ORDER BY j RANGE BETWEEN 1 PRECEDING AND 1 FOLLOWING) AS a,
    count(*) OVER (PARTITION BY i ORDER BY x RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS c,
    count(*) OVER (PARTITION BY i ORDER BY dt RANGE BETWEEN INTERVAL 1 MONTH PRECEDING AND CURRENT ROW) AS m,
    lead(d, 2, 0) OVER (PARTITION BY i ORDER BY id) AS n,
    rank() OVER (PARTITION BY i ORDER BY x DESC) AS r FROM public.t

full: id
    SELECT id, count(*) OVER (PARTITION BY i ORDER BY ts RANGE BETWEEN INTERVAL 1 DAY 2 HOURS PRECEDING
    AND INTERVAL 400 DAYS 1 HOUR FOLLOWING) AS n FROM public.t

full: id
    SELECT id, p, rank() OVER (PARTITION BY lower(p), CASE WHEN i <> 0 THEN 9 div i END ORDER BY upper(p), id) AS n,
    sum(i) OVER (PARTITION BY p ORDER BY CASE WHEN s IN ('12', '-3') THEN CAST(s AS BIGINT) END, id DESC) AS m
    FROM (SELECT id, i, s, CASE WHEN i > 2 THEN 'a' ELSE 'B' END AS p FROM public.t) t

q
    SELECT lower(p) AS q, count(*) AS n, rank() OVER (PARTITION BY lower(p) ORDER BY count(*)) AS r
    FROM (SELECT CASE WHEN i > 2 THEN 'a' ELSE 'B' END AS p FROM public.t) t GROUP BY lower(p)

full: q
    SELECT lower(p) AS q, count(*) AS n, rank() OVER (PARTITION BY concat(lower(p), 'z') ORDER BY count(*)) AS r
    FROM (SELECT CASE WHEN i > 2 THEN 'a' ELSE 'B' END AS p FROM public.t) t GROUP BY lower(p) ORDER BY r, q LIMIT 2

full: n
    SELECT 9 div i AS n, rank() OVER (ORDER BY 9 div i) AS r, rank() OVER (ORDER BY sum(7 div i), 9 div i) AS m
    FROM public.t WHERE i <> 0 GROUP BY 9 div i

n
    SELECT 9 div i AS n, count(*) AS c, rank() OVER (PARTITION BY 9 div i ORDER BY count(*)) AS r
    FROM public.t WHERE i <> 0 GROUP BY 9 div i

n, id
    SELECT id, 9 div i AS n, row_number() OVER (PARTITION BY 9 div i ORDER BY id) AS r FROM public.t WHERE i <> 0

id
    SELECT id, i FROM public.t WHERE reverse(concat('', i)) <> '0' AND 10 / i > j

id
    SELECT t.id, u.x FROM (SELECT id, i, j FROM public.t WHERE reverse(concat('', i)) <> '0') t
    LEFT JOIN public.u u ON u.id = t.id AND reverse(concat('', u.j)) <> '0' AND t.id div u.j > u.i WHERE 10 / t.i > t.j

i
    SELECT i, count(*) AS n FROM public.t GROUP BY i
    HAVING reverse(concat('', sum(j), max(s))) > '5' AND reverse(concat('', max(i))) <> '0'
    AND count(*) / max(i) > min(j)

b
    SELECT b, max(10 / i) FILTER (WHERE i <> 0) AS m, max(CAST(s AS INT)) FILTER (WHERE s IN ('12', '-3')) AS a,
    count(10 div i) FILTER (WHERE i <> 0 AND 10 / i > -9) AS n, min(i * 70000000) FILTER (WHERE abs(i) < 30) AS p
    FROM public.t GROUP BY b

id
    SELECT id, i > 1 = b AS p, i < j <=> b <> c AS q FROM public.t WHERE i > j = b IS NOT NULL AND i < 3 >= c

id
    SELECT id, 'it\\'s' AS a, '\\u0041\\101' AS b, 'a' 'b' AS c, "d" AS d, 'a\\qb' AS e FROM public.t
"""


def test_queries_give_sparks_rows(apply_spark: SparkSession) -> None:
    rows = made_rows()
    connection = filled(rows)
    schema = ", ".join(f"{name} {spark}" for name, (_, spark, _) in COLUMNS.items() if name != "tz")
    place = list(COLUMNS).index("tz")
    frame = apply_spark.createDataFrame([row[:place] + row[place + 1 :] for row in rows], schema).coalesce(1)
    frame.cache().createOrReplaceTempView("view_queries")
    differing = {}
    for key, full, sql in _queries():
        ours = _ours(connection, sql, key, full=full)
        named = re.sub(r"\bpublic\.([tu])\b(?! [tu]\b)", r"public.\1 \1", sql)
        theirs = Counter(
            _plain(row) for row in apply_spark.sql(re.sub(r"\bpublic\.[tu]\b", "view_queries", named)).collect()
        )
        for found in [ours, *([_by_spark(apply_spark, sql, key)] if full else [])]:
            if found != theirs:
                differing[sql] = (list(found - theirs)[:2], list(theirs - found)[:2])
    assert differing == {}


def test_spark_knows_a_table_by_its_whole_name(apply_spark: SparkSession) -> None:
    sql = "SELECT public.t.* FROM public.t JOIN public.u ON public.u.id = public.t.l WHERE public.t.b"
    every = list(_KINDS.items())
    assert plan_view("v", sql, ["id"], _TABLES).reads == ("public.t", "public.u")
    assert output_columns(apply_spark, "v", sql, dict.fromkeys(_TABLES, every)) == every


def test_spark_reads_a_with_inside_another_by_its_own_names(apply_spark: SparkSession) -> None:
    sql = """WITH a AS (SELECT id FROM public.t), b AS (WITH a AS (SELECT s FROM public.u) SELECT s FROM a)
    SELECT a.id, b.s FROM a JOIN b ON b.s = concat('', a.id)"""
    every = {name: list(_KINDS.items()) for name in _TABLES}
    assert output_columns(apply_spark, "v", sql, every) == [("id", _KINDS["id"]), ("s", _KINDS["s"])]


REFUSED = """
SELECT id, unix_micros(ts) AS r FROM public.t
    requires the "TIMESTAMP" type, however "ts" has the type "TIMESTAMP_NTZ" -> CAST(… AS TIMESTAMP)
SELECT id, sum(i) OVER (PARTITION BY id ORDER BY s RANGE BETWEEN 1 PRECEDING AND CURRENT ROW) AS r FROM public.t
    The data type of the lower bound "STRING" does not match -> correct the SQL
"""


def test_what_spark_says_of_a_view_is_told(apply_spark: SparkSession) -> None:
    every = {"public.t": list(_KINDS.items())}
    asked = iter(lines(REFUSED))
    for sql, expected in zip(asked, asked, strict=True):
        message, _, hint = expected.strip().partition(" -> ")
        with pytest.raises(ConfigError, match=re.escape(message)) as refused:
            output_columns(apply_spark, "v", sql, every)
        assert hint in (refused.value.hint or "")
        assert "SQLSTATE" not in refused.value.message


UNSTEADY = """
ts < 'now'
dt IN ('2020-01-01', ' Today ')
to_date('yesterday') < dt
to_timestamp('now') < tz
try_cast('tomorrow' AS TIMESTAMP) < tz
coalesce(ts, 'now') = ts
year('today') = i
session_user() = s
shuffle(array(i, j))[0] = i
randstr(3) = s
"""
STEADY = """
s = 'now'
concat(s, ' today') = 'x' AND dt < 'epoch'
(SELECT max(now) FROM VALUES (1) AS w(now)) = i
"""


def test_what_differs_each_time_is_no_value_of_a_view(apply_spark: SparkSession) -> None:
    """Spark reads some texts as times of its own clock, too, wherever a date or a timestamp is expected."""
    every = {"public.t": list(_KINDS.items())}
    columns = ", ".join(f"id + {number} AS c{number}" for number in range(40))  # Spark shows 25 of them as a rule
    apply_spark.newSession().createDataFrame([(1,)], ["active"])  # as other parts of a job have their own
    for text in lines(STEADY):
        output_columns(apply_spark, "v", f"SELECT {columns}, {text} AS r FROM public.t", every)
    for text in lines(UNSTEADY):
        with pytest.raises(ConfigError, match="is not the same each time"):
            output_columns(apply_spark, "v", f"SELECT {columns}, {text} AS r FROM public.t", every)


WAYS_OUT = """
SELECT i, mode(j) AS r FROM public.t GROUP BY i
    depends on the order in which rows are read -> keep row 1 of row_number()
SELECT i, window(ts, '5 minutes').start AS r FROM public.t GROUP BY 1, 2
    is not known here -> group by date_trunc()
SELECT i, count(DISTINCT j) OVER (PARTITION BY i) AS r FROM public.t
    COUNT(DISTINCT t.j) is not known to give Spark's value here -> in another way: Spark itself does not take it
SELECT i, soundex(s) AS s, hll_sketch_estimate(hll_sketch_agg(j)) AS r FROM public.t GROUP BY 1, 2
    soundex is not known to give Spark's value here -> write it in another way
SELECT i, soundex(s) AS r FROM public.t
    soundex is not known to give Spark's value here -> or say `engine: spark`
SELECT i, percentile_cont(0.5) WITHIN GROUP (ORDER BY j) AS r FROM public.t GROUP BY i
    WITHIN GROUP (ORDER BY t.j) is not known here -> approx_percentile(x, 0.5)
"""


def test_what_is_refused_names_a_way_out_that_there_is(apply_spark: SparkSession) -> None:
    asked = iter(lines(WAYS_OUT))
    for sql, expected in zip(asked, asked, strict=True):
        message, _, hint = expected.strip().partition(" -> ")
        with pytest.raises(ConfigError, match=re.escape(message)) as refused:
            planned_view(apply_spark, "v", ViewConfig(sql=sql, key=("i",)), _TABLES, {}, engine="duckdb")
        assert (refused.value.hint or "").find(hint) >= 0, (sql, refused.value.hint)
        assert ("engine: spark" in (refused.value.hint or "")) == ("engine: spark" in hint), sql


def _queries() -> list[tuple[list[str], bool, str]]:
    found = []
    for block in QUERIES.strip().split("\n\n"):
        head, _, sql = block.partition("\n")
        found.append((head.removeprefix("full: ").split(", "), head.startswith("full: "), sql))
    return found


def filled(rows: list[tuple[Any, ...]]) -> duckdb.DuckDBPyConnection:
    """The embedded engine, with the rows in each table."""
    connection = duckdb.connect()
    connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA after")
    columns = ", ".join(f"{quoted(name)} {of}" for name, (_, _, of) in COLUMNS.items())
    for table in _TABLES:
        connection.execute(f"CREATE TABLE after.{quoted(table)} ({columns})")
        marks = ", ".join("?" * len(COLUMNS))
        connection.executemany(f"INSERT INTO after.{quoted(table)} VALUES ({marks})", rows)
    return connection


def _ours(connection: duckdb.DuckDBPyConnection, sql: str, key: list[str], *, full: bool) -> Counter[tuple[Any, ...]]:
    plan = plan_view("v", sql, key, _TABLES, divided=Division(full=full))
    connection.begin()
    for node in plan.nodes:
        connection.execute(f"CREATE TABLE after.{quoted(node.name)} AS {node.whole}")
    listed = ", ".join(map(quoted, plan.nodes[-1].columns))
    found = Counter(map(_plain, connection.execute(f"SELECT {listed} FROM after.v").fetchall()))
    connection.rollback()
    return found


def _by_spark(spark: SparkSession, sql: str, key: list[str]) -> Counter[tuple[Any, ...]]:
    """What the plan for Spark's executors gives."""
    nodes = plan_view("v", sql, key, _TABLES, divided=Division(full=True), engine="spark").nodes
    for table in _TABLES:
        spark.table("view_queries").createOrReplaceTempView(stand_in("after", table))
    for node in nodes:
        spark.sql(node.whole).createOrReplaceTempView(stand_in("after", node.name))
    listed = [f"`{name}`" for name in nodes[-1].columns]
    return Counter(map(_plain, spark.table(stand_in("after", "v")).select(*listed).collect()))


def _plain(row: Any) -> tuple[Any, ...]:
    """A row whose values are equal where they are one number, whatever the digits behind the point."""
    return tuple(each.normalize() + 0 if isinstance(each, Decimal) else same(each) for each in row)
