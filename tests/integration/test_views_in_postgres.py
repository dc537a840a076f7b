"""Views in PostgreSQL: step by step the events of the embedded engine, and rows that anybody may read."""

from __future__ import annotations

import datetime as dt
import math
import random
import shutil
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import timedelta
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import psycopg2.extras
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import spark_apply.views.embedded.step
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, FencedError, OperatorError, RetryableError
from spark_apply.stores.postgres.session.server import Server
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.step import LongTextError
from spark_apply.views.database.store import DatabaseStore
from spark_apply.views.database.values import declared, object_of
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.model.values import engine_type, quoted
from spark_apply.views.model.values import object_of as embedded_object
from spark_apply.views.planning.view import View
from spark_apply.views.running.store import ViewStore
from spark_apply.views.sql.plan import plan_view
from tests.conftest import FULL, Database
from tests.integration.running import eventually
from tests.pushes import some_each_push
from tests.views.database import Breaking, DatabaseSteps, view_of
from tests.views.engine import START, relation
from tests.views.queries import Query, queries
from tests.views.shapes import RELATIONS, SHAPES
from tests.views.steps import Steps

_WORDS = [None, "x", "y", "Z", "é"]
_MINUTES = [None, *(START + timedelta(minutes=n) for n in range(8))]


def _batch(rng: random.Random) -> dict[str, dict[tuple[Any, ...], Any]]:
    """Rows by key that are written, or deleted where there is none."""
    small = [None, 0, 1, 2, 3]

    def row(table: str) -> list[Any]:
        if table == "public.a":
            return [rng.choice(small), rng.choice(_WORDS), rng.choice(small), rng.choice(_MINUTES)]
        if table == "public.b":
            return [rng.choice(small), rng.choice(small), rng.choice(_MINUTES)]
        return [rng.choice(_WORDS)]

    found: dict[str, dict[tuple[Any, ...], Any]] = {}
    for table in rng.sample(list(RELATIONS), rng.choice([0, 1, 1, 2, 3])):
        keys = [(rng.randrange(4), rng.randrange(3)) if table == "public.c" else (rng.randrange(5),) for _ in range(3)]
        found[table] = {key: None if rng.random() < 0.3 else row(table) for key in keys}
    return found


def _clock(at: Any) -> int:
    return round((at - START).total_seconds() * 1000) + 1_767_225_600_000


def _same_events(postgres: Database, tmp_path: Path, shapes: Mapping[str, Any], steps: int, seed: int) -> None:
    names = {shape: f"v{number}" for number, shape in enumerate(shapes)}
    made = [
        [view_of(names[shape], sql, key, RELATIONS, engine) for shape, (sql, key) in shapes.items()]
        for engine in ("duckdb", "postgres")
    ]
    ours = Steps(tmp_path, list(RELATIONS.values()), made[0])
    theirs = DatabaseSteps(postgres.url, list(RELATIONS.values()), made[1])
    rng, minute = random.Random(seed), 0
    try:
        for number in range(steps):
            for table, rows in _batch(rng).items():
                ours.write(table, rows)
                theirs.write(table, rows)
            minute += rng.randrange(2)
            clock = _clock(START + timedelta(minutes=minute))
            expected, found = ours.step(clock), theirs.step(clock)
            for shape, name in names.items():
                mine, other = ([each for each in of if each[0] == name] for of in (expected, found))
                assert other == mine, (shape, number)
    finally:
        ours.close()
        theirs.close()


_TAKEN = {shape: of for shape, of in SHAPES.items() if "approx" not in of[0] and "hll_" not in of[0]}
_SOME = {shape: of for number, (shape, of) in enumerate(_TAKEN.items()) if number % 9 == 1}
"""What each push asks: an outer join, an aggregate, windows, a UNION, a clock among them."""


@pytest.mark.parametrize("whole", some_each_push([False, True], False), ids=["by units", "whole"])
def test_events_of_shapes(postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: bool) -> None:
    monkeypatch.setattr(spark_apply.views.embedded.step, "MOST_TOUCHED", 0.001 if whole else math.inf)
    _same_events(postgres18, tmp_path, _TAKEN if FULL else _SOME, 10 if FULL else 3, 7)


@pytest.mark.full  # tests/property/test_view_laws.py has the plans, and the test above their statements
@given(query=queries(), seed=st.integers(0, 10**6))
@settings(
    max_examples=25, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
def test_events_of_random_views(postgres18: Database, tmp_path: Path, query: Query, seed: int) -> None:
    try:
        plan_view("v0", query.sql, query.key, RELATIONS, engine="postgres")
    except ConfigError:
        assume(False)
    postgres18.execute("DROP SCHEMA IF EXISTS cdc_views_steps CASCADE")
    shutil.rmtree(tmp_path / "state", ignore_errors=True)
    _same_events(postgres18, tmp_path / "state", {"random": (query.sql, list(query.key))}, 6, seed)


def test_json_has_the_embedded_engines_bytes(postgres18: Database) -> None:
    """So a view goes over from one engine to the other, and nothing is published again."""
    rng = random.Random(3)
    values: dict[Kind, list[Any]] = {
        Kind("float64"): [0.0, -0.0, 1.0, -2.5, 1e15, 1e16, 123456789012345678.0, 1e-4, 1e-5]
        + [math.nan, math.inf, -math.inf]
        + [rng.choice([1, -1]) * rng.random() * 10 ** rng.randrange(-9, 22) for _ in range(60)],
        Kind("float32"): [0.0, 1.5, 1e6, 16777216.0, 3e38, 1e-30, 0.1, 123456.7, 1e16],
        Kind("decimal", 12, 3): [Decimal("0.000"), Decimal("-0.001"), Decimal("123456789.120")],
        Kind("decimal", 3, 3): [Decimal("0.123"), Decimal("-0.100")],
        Kind("uint64"): [Decimal(2**64 - 1), Decimal(0)],
        Kind("bytes"): [b"", b"\0\xff" * 70, b"abc"],
        Kind("date"): [dt.date(1, 1, 1), dt.date(1969, 12, 31), dt.date(9999, 12, 31)],
        Kind("timestamp_micros"): [dt.datetime(1, 1, 1), dt.datetime(2020, 2, 29, 1, 2, 3, 4), dt.datetime(1969, 1, 1)],  # noqa: DTZ001
        Kind("timestamptz"): [dt.datetime(1, 1, 1), dt.datetime(2020, 2, 29, 1, 2, 3, 40), dt.datetime(9999, 1, 1)],  # noqa: DTZ001
        Kind("string"): ["", 'a"b', "\\", "/", "é👍", "\n\t\r\b\f\x01", "\x7f\u2028", "{}"],
        Kind("boolean"): [True, False],
        Kind("int64"): [2**63 - 1, -(2**63), 0],
    }  # fmt: skip
    duck = duckdb.connect()
    for number, (kind, some) in enumerate(values.items()):
        name = f'c"{number} é'
        duck.execute(f"CREATE TABLE t{number} (n INTEGER, {quoted(name)} {engine_type(kind)})")
        duck.executemany(f"INSERT INTO t{number} VALUES (?, ?)", [list(each) for each in enumerate([*some, None])])
        expected = duck.execute(f"SELECT {embedded_object([(name, kind)], 'r')} FROM t{number} r ORDER BY n").fetchall()
        with closing(postgres18.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE t{number} (n integer, {declared(name, kind)})")
            psycopg2.extras.execute_values(cursor, f"INSERT INTO t{number} VALUES %s", list(enumerate([*some, None])))
            cursor.execute(f"SELECT {object_of([(name, kind)], 'r')} FROM t{number} r ORDER BY n")
            assert cursor.fetchall() == expected, kind


_ONE = relation("public.x", ["k"], k="string", v="int64")


def _one_view() -> list[View]:
    sql = "SELECT k, count(*) AS n, sum(v) AS s FROM public.x GROUP BY k"
    return [view_of("sums", sql, ["k"], {_ONE.name: _ONE}, "postgres")]


def test_no_reader_sees_two_positions(postgres18: Database) -> None:
    """Amounts move from key to key while a reader polls: the sum stays, and the view is that of the table beside it."""
    rng, amounts, stop = random.Random(2), dict.fromkeys("abcdef", 100), threading.Event()
    seen, wrong = set[object](), list[object]()
    asked = (
        'SELECT (SELECT sum(v) FROM {0}."public.x"), (SELECT sum(s) FROM {0}."view.sums"), '
        '(SELECT count(*) FROM {0}."view.sums" JOIN {0}."public.x" x USING (k) WHERE s = x.v), '
        "(SELECT string_agg(v::text, ',' ORDER BY k) FROM {0}.\"public.x\")"
    ).format("cdc_views_steps")

    def poll() -> None:
        with closing(postgres18.connect()) as connection, connection.cursor() as cursor:
            while not stop.is_set():
                cursor.execute(asked)
                ((table, view, same, amounts_then),) = cursor.fetchall()
                seen.add(amounts_then)
                if (table, view, same) != (600, 600, 6):
                    wrong.append((table, view, same))

    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.write(_ONE.name, {(key,): [amount] for key, amount in amounts.items()})
        steps.step()
        reader = threading.Thread(target=poll)
        reader.start()
        try:
            for _ in range(8):
                one, other = rng.sample("abcdef", 2)
                amount = rng.randrange(1, 50)
                amounts[one] -= amount
                amounts[other] += amount
                steps.write(_ONE.name, {(key,): [amounts[key]] for key in (one, other)})
                assert len(steps.step()) == 2
        finally:
            stop.set()
            reader.join(60)
    assert wrong == []
    assert len(seen) > 2


def test_a_text_too_long_for_an_index_costs_the_indexes_of_texts(postgres18: Database) -> None:
    rng = random.Random(1)
    long = "".join(chr(rng.randrange(0x4E00, 0x9000)) for _ in range(4_000))
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.write(_ONE.name, {("a",): [1], (long,): [2]})
        with pytest.raises(LongTextError):
            steps.step()
        assert isinstance(steps.state, DatabaseState)
        steps.state.without_indexes_of_texts()
        assert [(op, key, row["s"]) for _, op, key, row in steps.step()] == [("c", ("a",), 1), ("c", (long,), 2)]
        steps.write(_ONE.name, {(long,): [3]})
        assert [(op, row["s"]) for _, op, _, row in steps.step()] == [("u", 3)]


@pytest.mark.full  # the test above has the same error
def test_a_row_wider_than_a_page_stops_its_view_alone(postgres18: Database) -> None:
    """It costs the indexes of texts, as the server says the same of a long text; then the step goes on without it."""
    names = [f"c{number}" for number in range(250)]
    table = relation("public.w", ["id"], id="int64", **dict.fromkeys(names, "string"))
    listed = ", ".join(f"{side}.{name} AS {side}_{name}" for side in "ab" for name in names)
    sql = f"SELECT a.id, {listed} FROM public.w a JOIN public.w b ON b.id = a.id"
    view = view_of("wide", sql, ["id"], {table.name: table}, "postgres")
    with closing(DatabaseSteps(postgres18.url, [table], [view])) as steps:
        steps.write(table.name, {(1,): ["more than half a page of it"] * len(names)})
        with pytest.raises(LongTextError):
            steps.step()
        assert isinstance(steps.state, DatabaseState)
        steps.state.without_indexes_of_texts()
        with pytest.raises(ViewError, match="view wide: a row of it is wider than PostgreSQL keeps"):
            steps.step()
        steps.write(table.name, {(1,): ["short"] * len(names)})
        assert [(op, key) for _, op, key, _ in steps.step()] == [("c", (1,))]
    with closing(DatabaseState(postgres18.url, job="steps", prefix="p")) as state:
        assert not state.has_indexes_of_texts


def test_a_step_that_lost_its_connection_is_taken_again(postgres18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is there, and the next one has all of it."""
    breaking = Breaking(postgres18, monkeypatch)
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        for number, point in enumerate(("_cdc_differs", "ANALYZE", "SAVEPOINT attempt", "INSERT INTO outbox")):
            steps.write(_ONE.name, {(f"k{number}",): [1]})
            breaking.point = point
            with pytest.raises(RetryableError, match="store: keeping the state of views"):
                steps.step()
            assert [(op, key) for _, op, key, _ in steps.step()] == [("c", (f"k{number}",))]
        assert steps.state.count("view.sums") == 4


def test_a_publication_of_all_tables(postgres18: Database, tmp_path: Path) -> None:
    """It has the tables of views, too, and they are written all the same; so are those that an older version made.

    Tables that stand beside them keep what they have.
    """
    postgres18.execute("CREATE PUBLICATION everything FOR ALL TABLES")
    _same_events(postgres18, tmp_path, dict([*_SOME.items()][:3]), 3, 7)
    postgres18.execute(
        "ALTER TABLE cdc_views_steps.published REPLICA IDENTITY DEFAULT",
        "CREATE TABLE cdc_views_steps.notes (note text)",
    )
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.write(_ONE.name, {("k",): [1]})
        assert [(op, key) for _, op, key, _ in steps.step()] == [("c", ("k",))]
    assert {"published", "outbox", "public.x", "pending public.x", "view.sums"} <= _identified(postgres18)
    assert "notes" not in _identified(postgres18)


def _identified(database: Database) -> set[str]:
    """The tables of which the server's log has every old row."""
    return {name for (name,) in database.rows("SELECT relname FROM pg_class WHERE relreplident = 'f'")}


def test_a_publication_that_comes_while_the_job_runs(postgres18: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step gives its tables an identity; before, without a publication of deletes, none has one."""
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.write(_ONE.name, {("k",): [1]})
        steps.step()
        postgres18.execute("CREATE PUBLICATION news FOR ALL TABLES WITH (publish = 'insert')")
        steps.write(_ONE.name, {("k",): [2]})
        steps.step()
        DatabaseState(postgres18.url, job="other", prefix="p").close()
        assert _identified(postgres18) == set()
        postgres18.execute("CREATE PUBLICATION everything FOR ALL TABLES")
        steps.write(_ONE.name, {("k",): [3]})
        with pytest.raises(OperatorError, match="does not have a replica identity"):
            steps.step()
        monkeypatch.setattr(ViewStore, "_compute", lambda *_: None)
        store = DatabaseStore.__new__(DatabaseStore)
        store.state = steps.state
        store._compute(steps._new_step(None, [], steps.search), [])
        assert [(op, row["s"]) for _, op, _, row in steps.step()] == [("u", 3)]


_OF_THE_ROLE = {
    "transform_null_equals": "on",
    "DateStyle": "German, DMY",
    "TimeZone": "Asia/Kathmandu",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "statement_timeout": "1h",
    "idle_in_transaction_session_timeout": "1h",
    "transaction_timeout": "1h",
    "quote_all_identifiers": "on",
    "standard_conforming_strings": "off",
}


def test_what_the_role_or_the_database_has_set_changes_no_value(
    postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind a pooler, too, where what is said at the start of a session is not that of the next transaction."""
    for name, value in _OF_THE_ROLE.items():
        postgres18.execute(f"ALTER DATABASE {postgres18.name} SET {name} = '{value}'")
    monkeypatch.setattr(Server, "_pinned", lambda _self, connection: connection)
    _same_events(postgres18, tmp_path, dict([*_SOME.items()][:3]), 4, 7)
    sql = "SELECT k, CASE WHEN v = NULL THEN 'wrong' ELSE 'right' END AS c FROM public.x"
    view = view_of("equal", sql, ["k"], {_ONE.name: _ONE}, "postgres")
    with closing(DatabaseSteps(postgres18.url, [_ONE], [view], job="others")) as steps:
        steps.write(_ONE.name, {("k",): [None]})
        assert [row["c"] for _, _, _, row in steps.step()] == ["right"]
        found = "SELECT DISTINCT setting FROM pg_settings WHERE name IN ('statement_timeout', 'transaction_timeout', ?)"
        assert steps.state.rows(found, ["idle_in_transaction_session_timeout"]) == [("0",)]


_ALTERED = {
    'DROP TABLE cdc_views_steps."public.x"': "public.x",
    'ALTER TABLE cdc_views_steps."public.x" DROP COLUMN v': "public.x",
    'ALTER TABLE cdc_views_steps."public.x" ALTER v TYPE smallint': "public.x",
    'ALTER TABLE cdc_views_steps."public.x" ALTER k TYPE text': "public.x",  # it has another collation then
    'ALTER TABLE cdc_views_steps."public.x" SET UNLOGGED': "public.x",
    'TRUNCATE cdc_views_steps."public.x"': "public.x",
    'DELETE FROM cdc_views_steps."view.sums"': "view.sums",
    'DROP TABLE cdc_views_steps."pending public.x"': "pending public.x",
    'DROP TABLE cdc_views_steps."view.sums"': "view.sums",
    'DROP TABLE cdc_views_steps.views, cdc_views_steps."view.sums"': "views",
}
"""What another hand does, and the table that is named then."""


@pytest.mark.parametrize("statement", some_each_push([*_ALTERED], next(iter(_ALTERED)), [*_ALTERED][-2]))
def test_what_another_hand_has_altered_is_made_again_from_the_topics(postgres18: Database, statement: str) -> None:
    """A table that is gone is not taken for an empty one, neither by the job that runs nor by the next start."""
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        job = steps.state
        assert isinstance(job, DatabaseState)
        job.execute("INSERT INTO views VALUES ('sums', '')")
        steps.write(_ONE.name, {("k",): [1]})
        steps.step()
        postgres18.execute('ALTER TABLE cdc_views_steps."public.x" ADD COLUMN own text')
        DatabaseState(postgres18.url, job="steps", prefix="p", goes_on_as=job.owner).close()
        with job.transaction():
            job.require_as_left()
        postgres18.execute(statement)
        for altering in (job.require_as_left, partial(job.forget, ["view.other"])):
            with pytest.raises(RetryableError, match=f"left them .{_ALTERED[statement]}"), job.transaction():
                altering()
    with closing(DatabaseState(postgres18.url, job="steps", prefix="p")) as state:
        assert _ALTERED[statement] in state.made_again
        assert (state.get("position"), state.kept_tables(), state.columns("public.x")) == (None, [], {})
    with closing(DatabaseState(postgres18.url, job="steps", prefix="p")) as state:
        assert not state.made_again


@pytest.mark.parametrize("gone", ["public.x", "view.sums"])
def test_a_table_that_is_gone_from_a_state_of_an_earlier_release_is_made_again(postgres18: Database, gone: str) -> None:
    """Such a state says how many rows there are, and not what its tables are."""
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.state.execute("INSERT INTO views VALUES ('sums', '')")
        steps.write(_ONE.name, {("k",): [1]})
        steps.step()
    postgres18.execute("DELETE FROM cdc_views_steps.meta WHERE name = 'layout'", f'DROP TABLE cdc_views_steps."{gone}"')
    with closing(DatabaseState(postgres18.url, job="steps", prefix="p")) as state:
        assert gone in state.made_again


def test_a_table_of_a_view_that_is_not_in_the_file_may_be_dropped(postgres18: Database) -> None:
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())):
        postgres18.execute('DROP TABLE cdc_views_steps."view.sums"')
    with closing(DatabaseState(postgres18.url, job="steps", prefix="p")) as state:
        assert not state.made_again


def test_a_view_that_gets_other_columns_is_no_work_of_another_hand(postgres18: Database) -> None:
    """Its table is dropped and made with them, in the step that computes it whole."""
    with closing(DatabaseSteps(postgres18.url, [_ONE], _one_view())) as steps:
        steps.state.execute("INSERT INTO views VALUES ('sums', '')")
        steps.write(_ONE.name, {("k",): [1]})
        steps.step()
    sql = "SELECT k, count(*) AS n, CAST(sum(v) AS string) AS s, max(v) AS m FROM public.x GROUP BY k"
    view = view_of("sums", sql, ["k"], {_ONE.name: _ONE}, "postgres")
    with closing(DatabaseSteps(postgres18.url, [_ONE], [view])) as steps:
        steps.step(stale=True)
        assert steps.state.rows('SELECT k, n, s, m FROM "view.sums"') == [("k", 1, "1", 1)]
        job = steps.state
        assert isinstance(job, DatabaseState)
        job.require_as_left()


def test_tables_that_a_copy_makes_and_drops_while_another_takes_over_are_made_again(postgres18: Database) -> None:
    """By a newer release, which has another shape and waits for the older one's step: none of them is kept."""
    with (
        closing(DatabaseState(postgres18.url, job="shop-views", prefix="shop")) as first,
        ThreadPoolExecutor(1) as pool,
    ):
        with first.transaction():
            first.make('"public.early"', "(k int)")
        postgres18.execute("UPDATE cdc_views_shop_views.meta SET value = 'older' WHERE name = 'shape'")
        with first.transaction():
            first.forget(["public.early"])
            first.make('"public.late"', "AS SELECT 1 AS k")
            taking = pool.submit(DatabaseState, postgres18.url, job="shop-views", prefix="shop")
            waiting = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            eventually(lambda: postgres18.rows(waiting) == [(1,)], "it waits")
        with closing(taking.result(30)) as second:
            assert (second.made_again, second.columns("public.late")) == ("of another version", {})


def test_a_schema_has_one_writer_and_is_ours(postgres18: Database, servers: Callable[[str], str]) -> None:
    first = DatabaseState(postgres18.url, job="shop-views", prefix="shop")
    second = DatabaseState(postgres18.url, job="shop-views", prefix="shop")
    with pytest.raises(FencedError, match="another copy of this view job"), first.transaction():
        first.put(position="1")
    with pytest.raises(FencedError, match="another copy of this view job"):  # it comes back, and leaves it to the other
        DatabaseState(postgres18.url, job="shop-views", prefix="shop", goes_on_as=first.owner)
    second.put(position="2")
    second = DatabaseState(postgres18.url, job="shop-views", prefix="shop", goes_on_as=second.owner)
    with pytest.raises(FencedError):
        first.rows("SELECT 1")
    assert second.get("position") == "2"
    with pytest.raises(OperatorError, match="is of the view job shop-views over the topics of shop"):
        DatabaseState(postgres18.url, job="shop_views", prefix="shop")
    postgres18.execute("CREATE SCHEMA cdc_views_other", "CREATE TABLE cdc_views_other.mine ()")
    with pytest.raises(OperatorError, match="tables that are none of a view job: mine"):
        DatabaseState(postgres18.url, job="other", prefix="shop")
    with second.transaction():
        second.prepare_table("public.t", [("id", Kind("int64"))], (), ["id"])
    postgres18.execute("CREATE TABLE cdc_views_shop_views.notes AS SELECT 'theirs' AS note")
    second.begin_again(seq=0, step=0)
    assert (second.kept_tables(), second.columns("public.t")) == ([], {})
    with second.transaction():
        second.prepare_table("public.t", [("id", Kind("int64"))], (), ["id"])
    postgres18.execute(
        'CREATE VIEW theirs AS SELECT id FROM cdc_views_shop_views."public.t"',
        "UPDATE cdc_views_shop_views.meta SET value = 'older' WHERE name = 'shape'",
    )
    with pytest.raises(OperatorError, match="other objects depend on it"):
        DatabaseState(postgres18.url, job="shop-views", prefix="shop")
    postgres18.execute("DROP VIEW theirs")
    third = DatabaseState(postgres18.url, job="shop-views", prefix="shop")
    assert (third.made_again, third.get("position")) == ("of another version", None)
    assert third.rows("SELECT note FROM notes") == [("theirs",)]
    with pytest.raises(OperatorError, match=r"store: keeping the state of views: .*does not exist"):
        third.rows('SELECT * FROM "not there"')
    for state in (first, second, third):
        state.close()
    name = f"latin_{postgres18.name}"
    postgres18.execute(f"CREATE DATABASE {name} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(OperatorError, match="the database has the encoding LATIN1"):
            DatabaseState(postgres18.url.rpartition("/")[0] + f"/{name}", job="shop-views", prefix="shop")
    finally:
        postgres18.execute(f"DROP DATABASE {name} WITH (FORCE)")
