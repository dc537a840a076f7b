"""Every function that views take on PostgreSQL gives the embedded engine's value, which is Spark's."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import closing
from typing import Any

import duckdb
import psycopg2.extras
import pytest

from cdc.model.errors import ConfigError
from spark_apply.views.database.names import ERROR_FUNCTION
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division, Relation
from tests.conftest import Database
from tests.stores.test_view_functions import COLUMNS, OF_GROUPS, OF_ROWS, lines, made_rows, same
from tests.stores.test_view_queries import _TABLES, _ours, _plain, _queries, filled

_RELATIONS = {"public.t": Relation("public.t", {name: kind for name, (kind, *_) in COLUMNS.items()}, ("id",))}
_TYPES = {"VARCHAR": 'text COLLATE "C"', "DOUBLE": "double precision", "FLOAT": "real"}

REFUSED = """
x + y
x * i
f + f
f + x
d + x
x / nullif(y, 0)
x / 2
lower(s)
upper(t)
upper(s)
cast(l * 1.5e0 AS decimal(14,0))
cast(CASE WHEN x < 1e8 THEN x * 0.01 END AS decimal(38,20))
cast(CASE WHEN s = '2020-01-31' THEN s END AS date)
upper(concat(s, t))
lower(t)
try_divide(x, y)
round(x * 0.1, 3)
sum(x)
max(b)
"""
"""What the embedded engine takes, and PostgreSQL does not give Spark's value for."""


def _is_unknown(text: str) -> bool:
    """Whether PostgreSQL has nothing of the kind."""
    return re.search("approx_|percentile_approx|hll_|try_cast", text) is not None


def _filled(database: Database, *tables: str) -> None:
    columns = ", ".join(f'"{name}" {_TYPES.get(of, of)}' for name, (_, _, of) in COLUMNS.items())
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(ERROR_FUNCTION)
            for table in tables:
                cursor.execute(f'CREATE TABLE "{table}" ({columns})')
                insert = f'INSERT INTO "{table}" VALUES %s'
                psycopg2.extras.execute_values(cursor, insert, made_rows())
    finally:
        connection.close()


def _statement(text: str) -> str:
    """A statement over tables that are named as their relations."""
    return re.sub("\x1a\\w+\x1a([^\x1a]+)\x1a", r'"\1"', text)


@pytest.mark.parametrize(
    ("expressions", "asked"),
    [(OF_ROWS, ("id", "")), (OF_GROUPS, ("i", " GROUP BY i")), (OF_GROUPS, ("'all' AS k", " WHERE id < 0"))],
    ids=["rows", "groups", "no rows"],
)
def test_functions_give_the_embedded_engines_values(
    postgres18: Database, expressions: str, asked: tuple[str, str]
) -> None:
    by, tail = asked
    _filled(postgres18, "public.t")
    duck = duckdb.connect()
    duck.execute("SET TimeZone = 'UTC'; CREATE SCHEMA after")
    columns = ", ".join(f'"{name}" {of}' for name, (_, _, of) in COLUMNS.items())
    duck.execute(f'CREATE TABLE after."public.t" ({columns})')
    duck.executemany(f'INSERT INTO after."public.t" VALUES ({", ".join("?" * len(COLUMNS))})', made_rows())
    key = by.rpartition(" ")[2]
    taken = [text for text in lines(expressions) if text not in lines(REFUSED) and not _is_unknown(text)]
    for text in lines(expressions):
        if text not in taken:
            with pytest.raises(ConfigError, match=r"in PostgreSQL|`engine: postgres`") as error:
                plan_view("v", f"SELECT {by}, {text} AS r FROM public.t{tail}", [key], _RELATIONS, engine="postgres")
            assert "engine: duckdb" in (error.value.hint or "")
    listed = ", ".join(f"{text} AS r{number}" for number, text in enumerate(taken))  # all in one statement
    sql = f"SELECT {by}, {listed} FROM public.t{tail}"
    ours, theirs = (
        plan_view("v", sql, [key], _RELATIONS, engine=engine).nodes[-1].whole for engine in ("duckdb", "postgres")
    )
    expected = {row[0]: row[1:] for row in duck.execute(ours).fetchall()}
    found: dict[Any, tuple[Any, ...]] = {
        row[0]: row[1:] for row in postgres18.rows("SET TimeZone = 'UTC'; " + _statement(theirs))
    }
    assert found.keys() == expected.keys()
    differing = {}
    for number, text in enumerate(taken):
        values = {of: (found[of][number], expected[of][number]) for of in expected}
        wrong = {of: both for of, both in values.items() if same(both[0]) != same(both[1])}
        if wrong:
            differing[text] = dict(list(wrong.items())[:2])
    assert differing == {}


def test_queries_give_the_embedded_engines_rows(postgres18: Database) -> None:
    _filled(postgres18, "public.t", "public.u")
    differing, embedded = {}, filled(made_rows())
    with closing(postgres18.connect()) as connection, connection.cursor() as cursor:
        for key, full, sql in _queries():
            if _is_unknown(sql) or re.search(r"\b(lower|upper)\(", sql):
                with pytest.raises(ConfigError, match=r"in PostgreSQL|`engine: postgres`"):
                    plan_view("v", sql, key, _TABLES, divided=Division(full=full), engine="postgres")
                continue
            plan = plan_view("v", sql, key, _TABLES, divided=Division(full=full), engine="postgres")
            made = [f'CREATE TEMP TABLE "{node.name}" AS {_statement(node.whole)}' for node in plan.nodes]
            listed = ", ".join(f'"{name}"' for name in plan.nodes[-1].columns)
            cursor.execute("; ".join([*made, f'SELECT {listed} FROM "v"']))
            found = Counter(map(_plain, cursor.fetchall()))
            cursor.execute("DISCARD TEMP")
            expected = _ours(embedded, sql, key, full=full)
            if found != expected:
                differing[sql] = (list(found - expected)[:2], list(expected - found)[:2])
    assert differing == {}
