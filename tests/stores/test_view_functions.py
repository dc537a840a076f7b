"""Every function that SQL of views takes gives Spark's value in the views' engine."""

from __future__ import annotations

import datetime as dt
import math
import random
from decimal import Decimal
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from cdc.model.change import Kind
from spark_apply.views.embedded.sketches import register
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.output_types import spark_text
from spark_apply.views.proof.reading import as_used
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation
from tests.views import reading as view_reading
from tests.views.reading import EPOCH, HISTORY, STREAM, Event, committed, instant, positions, streamed, versions

pytest_plugins = ["tests.spark.fixtures"]

COLUMNS: dict[str, tuple[Kind, str, str]] = {
    "id": (Kind("int64"), "BIGINT", "BIGINT"),
    "i": (Kind("int32"), "INT", "INTEGER"),
    "j": (Kind("int32"), "INT", "INTEGER"),
    "l": (Kind("int64"), "BIGINT", "BIGINT"),
    "m": (Kind("int64"), "BIGINT", "BIGINT"),
    "d": (Kind("decimal", 10, 2), "DECIMAL(10,2)", "DECIMAL(10,2)"),
    "e": (Kind("decimal", 6, 3), "DECIMAL(6,3)", "DECIMAL(6,3)"),
    "x": (Kind("float64"), "DOUBLE", "DOUBLE"),
    "y": (Kind("float64"), "DOUBLE", "DOUBLE"),
    "f": (Kind("float32"), "FLOAT", "FLOAT"),
    "s": (Kind("string"), "STRING", "VARCHAR"),
    "t": (Kind("string"), "STRING", "VARCHAR"),
    "u": (Kind("string"), "STRING", "VARCHAR"),
    "b": (Kind("boolean"), "BOOLEAN", "BOOLEAN"),
    "c": (Kind("boolean"), "BOOLEAN", "BOOLEAN"),
    "dt": (Kind("date"), "DATE", "DATE"),
    "du": (Kind("date"), "DATE", "DATE"),
    "ts": (Kind("timestamp_micros"), "TIMESTAMP_NTZ", "TIMESTAMP"),
    "tu": (Kind("timestamp_micros"), "TIMESTAMP_NTZ", "TIMESTAMP"),
    "tz": (Kind("timestamptz"), "TIMESTAMP", "TIMESTAMP"),
}
"""Kinds, and the types that Spark and the engine have for them."""

INSTANTS = [
    dt.datetime(*parts)  # noqa: DTZ001 - in UTC
    for parts in (
        (1970, 1, 1),
        (2020, 1, 31, 23, 59, 59, 999999),
        (2020, 2, 29, 12, 0, 0, 500000),
        (1969, 12, 31, 23, 59, 59, 1),
        (2024, 3, 31, 2, 30),
        (2021, 1, 3, 10, 5, 7, 123456),
        (1900, 1, 1, 5),
    )
]
VALUES: dict[str, list[Any]] = {
    "INT": [0, 1, -1, 2, 3, 7, -7, 10, 1000],
    "BIGINT": [0, 1, -1, 2, 5, -8, 100, 123456789],
    "DECIMAL(10,2)": [Decimal(text) for text in ("0.00", "1.25", "-1.25", "2.50", "999.99", "0.01", "99999999.99")],
    "DECIMAL(6,3)": [Decimal(text) for text in ("0.000", "1.250", "-1.255", "2.500", "999.999", "0.001")],
    "DOUBLE": [0.0, -0.0, 1.5, -2.5, 2.5, 0.1, 1e10, 1e-7, 123.456, math.nan, math.inf],
    "FLOAT": [0.0, 1.5, -2.5, 0.5, 1024.25],
    "STRING": [
        "",
        "a",
        "b",
        "ab",
        "Abc",
        " x ",
        " ",
        "a\tb",
        "é",
        "ÄÖÜ",
        "ß",
        "日本",
        "👍x",
        "a%b",
        "a_b",
        "12",
        "-3",
        "1.5",
        "2020-01-31",
        "x,y",
        "İ",
        "ΑΣ",
        "ﬁ",
        "\xa0n\u3000",
        "a\nb",
    ],
    "BOOLEAN": [True, False],
    "DATE": [
        dt.date(*parts)
        for parts in (
            (1970, 1, 1),
            (2020, 1, 31),
            (2020, 2, 29),
            (2019, 12, 31),
            (1969, 12, 31),
            (2024, 12, 30),
            (1900, 3, 1),
            (2021, 1, 3),
        )
    ],
    "TIMESTAMP_NTZ": INSTANTS,
    "TIMESTAMP": INSTANTS,
}

OF_ROWS = r"""
i + j
l * 2
i - l
d + e
d * e
d - 1
i * d
l + d
d + 1.5
x + y
x * i
f + f
f + x
d + x
-i
-x
i / 3
i / nullif(j, 0)
x / nullif(y, 0)
x / 2
l / 7
CASE WHEN j <> 0 THEN i / j END
i % 3
l % 7
i div 3
l div -2
CASE WHEN j <> 0 THEN i div j END
CASE WHEN j <> 0 THEN i % j END
i + cast(nvl2(i, '7', 'x') AS int)
d * cast(nvl2(d, '1.5', 'xx') AS decimal(4,1))
i - 7 div CASE WHEN i IS NULL THEN 0 ELSE 2 END
cast(nvl2(j, '7', 'xxx') AS int) / (j * j + 1)
cast(nvl2(j, '7', 'xxxx') AS int) % (j * j + 1)
i < cast(nvl2(i, '7', 'xxxxx') AS int)
i BETWEEN cast(nvl2(i, '0', 'xxxxxx') AS int) AND 5
i BETWEEN 0 AND cast(CASE WHEN i >= 0 THEN '2' ELSE 'x' END AS int)
i < 1 OR i NOT IN (1, cast(CASE WHEN i > 1 THEN '2' ELSE 'y' END AS int))
i > 0 AND i IN (1, cast(CASE WHEN i > 1 THEN '7' ELSE 'z' END AS int))
l IN (x, cast(nvl2(l, '9007199254740992', 'zz') AS bigint), 3)
nullif(i, cast(nvl2(i, '7', 'xxxxxxx') AS int))
CASE i WHEN cast(nvl2(i, '7', 'xxxxxxxx') AS int) THEN 1 ELSE 2 END
s || cast(nvl2(s, '7', 'xxxxxxxxx') AS int)
concat(s, '-', cast(nvl2(s, '7', 'xxxxxxxxxx') AS int))
dt + cast(nvl2(dt, '7', 'xxxxxxxxxxx') AS int)
i = j
i < l
d > e
x = y
x < y
x >= 1.5
f > 0.1
f = x
d = 1.25
d > x
i > 1.5
s = t
s < t
s >= 'a'
b = c
b AND c
b OR c
i > 1 = b
i < l <=> b > c <> c
d = e = (x < y) = b
b = isnull(c)
isnull(c) = b
isnotnull(c) < b
b <=> isnotnull(c)
isnull(b) IN (c, isnotnull(j))
c BETWEEN isnull(i) AND isnotnull(j)
isnull(isnull(b)) = c
NOT isnull(c) = b
isnull(i = j)
b = like(s, 'a%')
like(s, 'a%') = b
b = like(s, 'a%') = c
b <> (s LIKE 'a%')
like(s, 'a%') IN (b, c)
b IN (like(s, 'a%'), c)
b BETWEEN like(s, '%b') AND c
like(s, 'a%') IS NULL
(i NOT IN (1, 2)) < b
(b = c) BETWEEN c AND b
i = 0 OR 10 / i > 2
i <> 0 AND 11 % i > 2 AND b
NOT (b AND i <> 0 AND 12 / i > 2 OR c)
b OR j IS NULL OR j = 0 OR 7 div j = 1 OR c
s IN ('12', '-3') AND cast(s AS int) > 0
l < 1000 AND b AND cast(l AS int) * 2000000 > 5
NOT b
b IS TRUE
b IS NOT FALSE
i IS NULL
s IS NOT NULL
i <=> j
s <=> t
s IS DISTINCT FROM t
dt = du
dt < ts
dt = '2020-01-31'
ts > '2020-02-29 12:00:00'
ts >= '2020-01-31'
ts <= tz
i BETWEEN 0 AND l
i IN (1, 2, NULL)
s IN ('a', 'b')
s LIKE 'a%'
s LIKE '%b_'
s LIKE 'a\n%'
s NOT LIKE '%x%'
CASE WHEN i > 0 THEN 'p' WHEN i < 0 THEN 'n' ELSE s END
CASE i WHEN 1 THEN l WHEN 2 THEN j END
CASE WHEN b THEN i ELSE d END
CASE WHEN b THEN i ELSE x END
if(b, i, l)
nvl(i, 5)
nvl2(i, l, j)
coalesce(i, l, 0)
coalesce(s, t, 'none')
nullif(i, j)
nullif(s, 'a')
greatest(i, j, l)
least(i, l)
greatest(s, t)
greatest(x, y)
least(x, y)
greatest(dt, du)
least(ts, tz)
greatest(d, e)
concat(s, t)
concat(s, i)
concat(s, '-', d, b)
s || t
s || i
s || dt
concat_ws(',', s, t)
concat_ws('-', s, i, d)
concat_ws(s, t, 'x')
trim(s)
ltrim(s)
rtrim(s)
length(s)
char_length(s)
substring(s, 1, 2)
substring(s, 2)
substring(s, 0, 2)
substring(s, -2)
substr(s, 2, 0)
left(s, 1)
right(s, 2)
left(s, 0)
right(s, 0)
replace(s, 'a', 'zz')
replace(s, 'a')
instr(s, 'b')
locate('b', s)
instr(s, t)
startswith(s, 'a')
endswith(s, 'b')
contains(s, t)
reverse(s)
md5(s)
lower(s)
upper(t)
nullif(b OR c, c)
CASE b OR c WHEN b THEN 1 ELSE 2 END
nvl2(b AND c, 1, 2)
i / nullif(i + j, 0)
(i + j) * l
s || t = t || s
NOT b OR c
-(i - j)
concat(i + j, s)
floor(CASE WHEN b THEN x ELSE y END)
upper(s)
abs(i)
abs(x)
abs(d)
round(d)
round(d, 1)
round(d, 5)
round(x)
round(i)
floor(d)
floor(CASE WHEN x < 1e12 THEN x END)
ceil(d)
ceil(CASE WHEN x < 1e12 THEN x END)
floor(x)
ceil(i)
cast(i AS bigint)
cast(l AS int)
cast(i AS string)
cast(d AS string)
cast(e AS string)
cast(cast(d - floor(d) AS decimal(2,2)) AS string)
concat_ws('%', cast(e * 0.001 AS decimal(6,6)), 0.5BD)
cast(b AS string)
cast(b AS int)
cast(i AS boolean)
cast(d AS int)
cast(CASE WHEN x < 1e8 THEN x END AS int)
cast(d AS double)
cast(d AS decimal(10,1))
cast(d AS decimal(12,4))
cast(i AS decimal(12,2))
cast(i AS double)
cast(f AS double)
cast(CASE WHEN x < 1e8 THEN x END AS decimal(12,1))
cast(x AS decimal(14,1))
cast(CASE WHEN y < 1e8 THEN y END AS decimal(20,9))
cast(i / 7 AS decimal(20,12))
cast(l * 1.5e0 AS decimal(14,0))
cast(f AS decimal(20,8))
cast(CASE WHEN x < 1e8 THEN x * 0.01 END AS decimal(38,20))
try_cast(s AS int)
try_cast(s AS bigint)
try_cast(concat('\t ', i, '\n') AS int)
try_cast(concat('\u0001', l, ' \u007f\u001f') AS bigint)
try_cast(concat('+00000000000000000000', i) AS int)
try_cast(concat('\u00a0', i) AS int)
try_cast(concat(i, ' ', j) AS int)
cast(concat(' ', i, '\r') AS int)
cast(concat('\n', l) AS bigint)
cast(CASE WHEN s IN ('12','-3') THEN s END AS int)
cast(CASE WHEN s = '2020-01-31' THEN s END AS date)
cast(CASE WHEN s IN ('12', '-3', '1.5') THEN concat(s, '5') END AS decimal(10,1))
cast(concat('', d, '500000000000000000000000000000000000000000') AS decimal(38,9))
cast(concat(e, '5') AS double)
cast('-1.5' AS decimal(2,1))
cast(dt AS string)
cast(ts AS string)
cast(tz AS string)
cast(date_sub(dt, 719529) AS string)
concat(add_months(dt, 96123), add_months(dt, -24240))
cast(date_add(dt, -1100000) AS string)
cast(ts - INTERVAL 2100 YEARS AS string)
cast(tz + INTERVAL 8003 YEARS AS string)
cast(ts AS date)
cast(ts AS timestamp)
cast('2020-01-01' AS date)
date'2020-01-01'
timestamp'2020-01-01 00:00:00'
timestamp_ntz'2020-01-01 00:00:00'
year(dt)
month(ts)
day(dt)
dayofmonth(ts)
quarter(dt)
dayofyear(dt)
weekofyear(dt)
dayofweek(dt)
weekday(dt)
hour(ts)
minute(ts)
second(ts)
hour(tz)
extract(YEAR FROM ts)
extract(WEEK FROM dt)
extract(DOY FROM dt)
extract(HOUR FROM ts)
extract(DAY FROM ts)
date_add(dt, 3)
date_add(dt, i)
date_sub(dt, 3)
date_sub(dt, i)
dt + 3
dt - i
datediff(dt, du)
datediff(ts, dt)
datediff(DAY, ts, tu)
datediff(DAY, dt, ts)
date_diff(DAY, du, dt)
add_months(dt, 1)
add_months(dt, -13)
last_day(dt)
to_date(ts)
dt + INTERVAL 1 DAY
dt + INTERVAL 1 MONTH
dt - INTERVAL 2 WEEK
dt + INTERVAL 1 YEAR
ts + INTERVAL 30 MINUTES
ts - INTERVAL '1' DAY
ts + INTERVAL 1 MONTH
tz + INTERVAL 1 HOUR
ts + INTERVAL 1 DAY + INTERVAL 2 HOURS
INTERVAL 1 DAY + ts
ts + INTERVAL 250 MILLISECONDS
ts - tu > INTERVAL 30 MINUTES
ts - tu = INTERVAL 0 SECONDS
date_trunc('YEAR', ts)
date_trunc('QUARTER', ts)
date_trunc('MONTH', ts)
date_trunc('WEEK', ts)
date_trunc('DAY', ts)
date_trunc('HOUR', ts)
date_trunc('minute', tz)
date_trunc('SECOND', ts)
date_trunc('MILLISECOND', ts)
date_trunc('DAY', dt)
trunc(dt, 'MM')
trunc(dt, 'WEEK')
trunc(dt, 'YEAR')
trunc(ts, 'quarter')
unix_micros(tz)
unix_millis(tz)
unix_seconds(tz)
unix_micros(cast(ts AS timestamp))
timestamp_micros(l)
timestamp_millis(l)
timestamp_seconds(i)
timestamp_micros(unix_micros(tz) - unix_micros(tz) % 300000000)
dateadd(DAY, 1, ts)
timestampadd(HOUR, 2, ts)
ifnull(i, 5)
position('b' in s)
date_add(dt, j)
timestampadd(MINUTE, 2, tz)
try_cast(s AS int) + 1
cast(ts AS date) = dt
x <=> y
d <=> e
greatest(f, x)
least(i, x)
i + l * 2 - j
(d + e) * d
d * d
upper(concat(s, t))
lower(t)
cast(l AS decimal(20,2))
cast(x < y AS int)
if(b IS NULL, 'none', cast(b AS string))
i BETWEEN j AND 5
isnull(s)
isnotnull(i + j)
try_divide(x, y)
try_divide(i, j)
round(x, 2)
round(y, 1)
round(i / 3, 2)
round((l * 1000 + i * 5) / 1000, 2)
round(x * 0.1, 3)
timestampdiff(MINUTE, ts, tu)
timestampdiff(DAY, tu, ts)
timestampdiff(SECOND, tz, ts)
NOT (b AND c)
dt BETWEEN '2019-01-01' AND '2021-01-01'
s IN (t, u)
-d
abs(l)
concat_ws('-', s, NULL, u)
date_trunc('MONTH', tz)
extract(MINUTE FROM ts)
datediff(du, dt)
cast(e AS decimal(5,1))
cast(d AS bigint)
"""

OF_GROUPS = r"""
count(*)
count(j)
count(j, l)
count(DISTINCT j)
count(DISTINCT j, s)
count(DISTINCT x)
sum(j)
sum(l)
sum(d)
sum(DISTINCT j)
sum(x)
sum(cast(CASE WHEN abs(x) < 1e10 THEN x END AS decimal(12,3)))
avg(j)
avg(l)
avg(DISTINCT l)
avg(d)
avg(e)
avg(DISTINCT e)
avg(d) FILTER (WHERE b)
round(avg(d), 2)
round(avg(j), 3)
min(s)
max(s)
max(x)
min(x)
max(b)
min(dt)
max(ts)
max(tz)
min(d)
bool_and(b)
bool_or(b)
every(b)
some(b)
count_if(j > 1)
count_if(b) FILTER (WHERE c)
bool_or(b) FILTER (WHERE c)
sum(j) FILTER (WHERE b)
count(*) FILTER (WHERE l > 3)
max(j) + min(l)
sum(j) / count(j)
sum(CASE WHEN b THEN 1 ELSE 0 END)
approx_count_distinct(j)
approx_count_distinct(l, 0.2)
approx_count_distinct(s)
approx_count_distinct(d)
approx_count_distinct(dt)
approx_count_distinct(ts)
approx_count_distinct(tz)
approx_count_distinct(b) FILTER (WHERE c)
approx_count_distinct(s) + count(DISTINCT j)
approx_percentile(j, 0.5)
approx_percentile(l, 0.07)
approx_percentile(x, 0.9)
approx_percentile(d, 0)
percentile_approx(e, 1, 100)
approx_percentile(dt, .3)
approx_percentile(tz, 0.25) FILTER (WHERE b)
approx_top_k(j, 3)
approx_top_k(s, 2)
approx_top_k(b, 2) FILTER (WHERE c)
approx_top_k(l, 1)
max_by(s, j)
min_by(s, ts)
max_by(x, x)
max_by(d, s) FILTER (WHERE b)
min_by(j, x) + max_by(l, dt)
max_by(b, c)
min_by(tz, e)
max_by(dt, 100 div j) FILTER (WHERE j <> 0)
min_by(nullif(s, ''), d)
min_by(f, l)
listagg(s, ', ') WITHIN GROUP (ORDER BY s)
listagg(s, '') WITHIN GROUP (ORDER BY j DESC)
string_agg(t, '|') WITHIN GROUP (ORDER BY x, j NULLS LAST, dt DESC)
listagg(DISTINCT s, ',') WITHIN GROUP (ORDER BY s DESC)
listagg(s || t, '\'') WITHIN GROUP (ORDER BY ts DESC NULLS FIRST, b) FILTER (WHERE c)
listagg(cast(100 div j AS string), ' ') WITHIN GROUP (ORDER BY l div j DESC) FILTER (WHERE j <> 0)
listagg(if(b = like(s, 'a%'), s, t), ',') WITHIN GROUP (ORDER BY b = like(s, 'a%'))
coalesce(listagg(concat(s, '=', j), ';') WITHIN GROUP (ORDER BY d, e), '')
listagg(s, '\n') WITHIN GROUP (ORDER BY t DESC) || count(*)
listagg(DISTINCT cast(j AS string), '日') WITHIN GROUP (ORDER BY cast(j AS string))
listagg(DISTINCT cast(7 div (i + 9) AS string), ',') WITHIN GROUP (ORDER BY cast(7 div (i + 9) AS string) DESC)
1 || listagg(DISTINCT 'a' || 7 div j, ',') WITHIN GROUP (ORDER BY 'a' || 7 div j) FILTER (WHERE j <> 0)
listagg(cast(100 div j AS string), ' ') WITHIN GROUP (ORDER BY l) FILTER (WHERE if(j = 0, NULL, TRUE))
listagg(CASE WHEN c THEN 'x' END, ',') WITHIN GROUP (ORDER BY NULL, 'a')
listagg('x', ',') WITHIN GROUP (ORDER BY j, TRUE)
listagg(DISTINCT '', ',') WITHIN GROUP (ORDER BY '') FILTER (WHERE b)
max_by('yes', j)
min_by(TRUE, 1.5) FILTER (WHERE b)
"""


_OF_NULLS = 4711


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def made_rows() -> list[tuple[Any, ...]]:
    """Rows of values by chance, and at the end a group that has NULLs alone."""
    chance = random.Random(5)
    found: list[tuple[Any, ...]] = [
        (number, *(chance.choice([*VALUES[spark], None]) for name, (_, spark, _) in COLUMNS.items() if name != "id"))
        for number in range(150)
    ]
    nulls = [None] * (len(COLUMNS) - 2)
    return [*found, (150, _OF_NULLS, *nulls), (151, _OF_NULLS, *nulls)]


def same(value: Any) -> Any:
    """A value by which equal ones are equal, NaN and both zeros among them."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, dt.datetime):
        return value.replace(tzinfo=None)
    return value


@pytest.fixture(scope="module")
def rows() -> list[tuple[Any, ...]]:
    return made_rows()


@pytest.fixture(scope="module")
def engine(rows: list[tuple[Any, ...]]) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    register(connection)
    connection.execute("SET TimeZone = 'UTC'; CREATE SCHEMA after")
    columns = ", ".join(f'"{name}" {of}' for name, (_, _, of) in COLUMNS.items())
    connection.execute(f'CREATE TABLE after."public.t" ({columns})')
    connection.executemany(f'INSERT INTO after."public.t" VALUES ({", ".join("?" * len(COLUMNS))})', rows)
    return connection


@pytest.mark.parametrize(
    ("expressions", "asked"),
    [
        pytest.param(OF_ROWS, ("id", ""), marks=pytest.mark.full),
        (OF_GROUPS, ("i", " GROUP BY i")),
        (OF_GROUPS, ("'all' AS k", " WHERE id < 0")),
    ],
    ids=["rows", "groups", "no rows"],
)
def test_functions_give_sparks_values(
    expressions: str,
    asked: tuple[str, str],
    rows: list[tuple[Any, ...]],
    engine: duckdb.DuckDBPyConnection,
    apply_spark: SparkSession,
) -> None:
    by, tail = asked
    schema = ", ".join(f"{name} {spark}" for name, (_, spark, _) in COLUMNS.items())
    zoned = [tuple(_zoned(name, value) for name, value in zip(COLUMNS, row, strict=True)) for row in rows]
    apply_spark.createDataFrame(zoned, schema).coalesce(1).createOrReplaceTempView("view_functions")
    relations = {"public.t": Relation("public.t", {name: kind for name, (kind, *_) in COLUMNS.items()}, ("id",))}
    listed = lines(expressions)
    for start in range(0, len(listed), 60):
        part = listed[start : start + 60]
        outputs = ", ".join(f"{text} AS c{number}" for number, text in enumerate(part))
        sql = f"SELECT {by}, {outputs} FROM public.t{tail}"
        *inner, last = plan_view("v", sql, [by.rpartition(" ")[2]], relations).nodes
        for node in inner:
            engine.execute(f'CREATE OR REPLACE TABLE after."{node.name}" AS {node.whole}')
        ours = {row[0]: row for row in engine.execute(last.whole).fetchall()}
        of_spark = spark_text(sql, {"public.t": "view_functions"}, EPOCH)
        theirs = {row[0]: row for row in apply_spark.sql(of_spark).collect()}
        assert set(ours) == set(theirs)
        differing = {
            text: (key, ours[key][number], theirs[key][number])
            for number, text in enumerate(part, start=1)
            for key in ours
            if same(ours[key][number]) != same(theirs[key][number])
        }
        assert differing == {}


@pytest.mark.parametrize(("expressions", "tail"), [(OF_ROWS, ""), (OF_GROUPS, " GROUP BY id")], ids=["rows", "groups"])
def test_spark_takes_what_the_embedded_engine_takes(expressions: str, tail: str) -> None:
    """So `engine: spark` is a way out of any refusal, and a view can go over to it as it is."""
    relations = {"public.t": Relation("public.t", {name: kind for name, (kind, *_) in COLUMNS.items()}, ("id",))}
    for text in lines(expressions):
        plan_view("v", f"SELECT id, {text} AS r FROM public.t{tail}", ["id"], relations, engine="spark")


def _zoned(name: str, value: Any) -> Any:
    return value.replace(tzinfo=dt.UTC) if name == "tz" and value is not None else value


@pytest.mark.parametrize("use", [STREAM, HISTORY], ids=["stream", "history"])
def test_spark_reads_streams_and_histories_by_the_same_rules(apply_spark: SparkSession, use: TableUse) -> None:
    """What `cdc view verify` compares with: all events at once, of many keys."""
    rng = random.Random(7)
    events = [
        Event(
            rng.choice("crudr"), rng.randint(1, 60), rng.choice((None, -2, 1, 6, 14, 22)), rng.randint(1, 2),
            rng.choice((0, 0, 0, 0, 1)),
        )
        for _ in range(400)
    ]  # fmt: skip
    rows = [
        (
            str(event.key), place, event.op, (instant(at) - EPOCH) // dt.timedelta(milliseconds=1),
            event.key,
            None if event.time is None or event.op == "d" else instant(event.time),
            *((None, None) if event.op == "d" else (event.value, 0)),
        )
        for event, at, place in zip(events, committed(events), positions(events), strict=True)
    ]  # fmt: skip
    ours = "_cdc_key STRING, _cdc_position STRING, _cdc_op STRING, _cdc_source_ms BIGINT"
    made = apply_spark.createDataFrame(rows, f"{ours}, id BIGINT, at TIMESTAMP_NTZ, v BIGINT, there BIGINT")
    found = as_used(made, use, [name for name, _ in view_reading.COLUMNS], ["id"])
    expected = streamed(events) if use is STREAM else versions(events)
    assert {tuple(row) for row in found.collect()} == expected
