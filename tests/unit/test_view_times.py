"""The time of a row that a clock has told which may be wrong: corrected by when it was sent and received."""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import replace
from typing import Any

import duckdb
import pytest

from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.planning.streams import require_times
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division, Relation
from tests.views.engine import relation

_DAY = dt.datetime(2026, 1, 1)  # noqa: DTZ001 - in UTC, as clocks are
USE = TableUse("public.tap", Way.ROWS, "at", None, "sent", "received")
TAP = relation(
    "public.tap", ["id"], id="int64", at="timestamp_micros", sent="timestamp_micros", received="timestamp_micros"
)
RATE = relation("public.rate@history", ["id", "_cdc_from_position"], id="int64", pct="int64")


def _at(clock: str | None) -> Any:
    if clock is None or clock in ("infinity", "-infinity"):
        return clock
    if ":" not in clock:
        return _DAY.replace(year=int(clock))
    hours, minutes = map(int, clock.split(":"))
    return _DAY + dt.timedelta(hours=hours, minutes=minutes)


@pytest.mark.parametrize(
    ("event", "sent", "received", "expected"),
    [
        ("09:55", "10:05", "10:05", "09:55"),  # the clock is right
        ("22:00", "22:10", "10:05", "09:55"),  # ahead
        ("01:00", "01:10", "10:05", "09:55"),  # behind
        ("22:10", "22:00", "10:05", "10:05"),  # sent before it happened
        ("22:10", "22:00", None, "22:10"),
        ("22:00", None, "10:05", "22:00"),
        ("22:00", "22:10", None, "22:00"),
        (None, "22:10", "10:05", None),
        ("22:00", "infinity", "10:05", "10:05"),  # of which no difference can be taken
        ("-infinity", "22:00", "10:05", "10:05"),
        ("22:00", "22:10", "infinity", "infinity"),
        ("1901", "9998", "10:05", "10:05"),  # it would have happened thousands of years before our era
    ],
)
def test_a_time_is_corrected(event: str | None, sent: str | None, received: str | None, expected: str | None) -> None:
    """How long a row was kept before it was sent is right, whatever the clock says."""
    given = dict(zip(("at", "sent", "received"), map(_at, (event, sent, received)), strict=True))
    value = USE.instant(lambda name: f"CAST(${name} AS TIMESTAMP)")
    wanted = duckdb.execute("SELECT CAST(? AS TIMESTAMP)", [_at(expected)]).fetchone()
    assert duckdb.execute(f"SELECT {value}", given).fetchone() == wanted


def test_an_uncorrected_time_is_a_column() -> None:
    assert TableUse("public.tap", time="at").instant(str.upper) == "AT"


@pytest.mark.parametrize(
    ("sql", "key"),
    [
        ("SELECT id, at FROM public.tap", "id"),
        ("SELECT id, public.tap.at FROM public.tap", "id"),
        ("SELECT max(t.at) AS last, id % 3 AS g FROM public.tap t GROUP BY id % 3", "g"),
        ("WITH c AS (SELECT id, at FROM public.tap) SELECT o.id FROM public.tap o JOIN c ON c.at = o.sent", "id"),
    ],
)
def test_sql_reads_the_corrected_time(sql: str, key: str) -> None:
    for engine in ("duckdb", "spark", "postgres"):
        plan = plan_view("v", sql, [key], {TAP.name: TAP}, uses={TAP.name: USE}, engine=engine)
        assert plan.nodes[-1].whole.upper().count("CASE WHEN") == 1


@pytest.mark.parametrize("sql", ["SELECT * FROM public.tap", "SELECT t.*, t.at AS again FROM public.tap t"])
def test_a_star_is_written_out(sql: str) -> None:
    """The table that is read so has its columns in another order: in a UNION they would change places."""
    with pytest.raises(ConfigError, match=r"\* in a SELECT of public\.tap, whose time is corrected"):
        plan_view("v", sql, ["id"], {TAP.name: TAP}, uses={TAP.name: USE})


@pytest.mark.parametrize("part", ["TABLESAMPLE (10 PERCENT)", "VERSION AS OF 3"])
@pytest.mark.parametrize("use", [USE, TableUse("public.tap", Way.STREAM, "at", 60_000)])
def test_what_else_is_said_of_a_table_is_refused(part: str, use: TableUse) -> None:
    """It was passed over, and all of the table was read."""
    read = {use.relation: replace(TAP, name=use.relation)}
    with pytest.raises(ConfigError, match=rf"{re.escape(part)}.* is not known here"):
        plan_view("v", f"SELECT id FROM public.tap {part}", ["id"], read, uses={TAP.name: use})


def test_a_row_is_looked_up_by_its_position_as_before() -> None:
    """What says when a row came is read through the table whose time is corrected."""
    tap = replace(USE, arrival=True)
    uses = {TAP.name: tap, "public.rate": TableUse("public.rate", Way.HISTORY, at="arrival")}
    read = {tap.relation: Relation(tap.relation, {**TAP.columns, **dict(tap.hidden)}, ("id",))}
    read[RATE.name] = Relation(
        RATE.name, {**RATE.columns, **dict(uses["public.rate"].hidden)}, ("id", "_cdc_from_position")
    )
    sql = "SELECT t.id, t.at, r.pct FROM public.tap t JOIN public.rate r ON r.id = t.id"
    whole = plan_view("v", sql, ["id"], read, uses=uses).nodes[-1].whole
    assert '"r"."_cdc_from_position" <= "t"."_cdc_arrival"' in whole
    assert whole.count("CASE WHEN") == 1


def test_a_row_is_looked_up_by_the_corrected_time() -> None:
    uses = {TAP.name: USE, "public.rate": TableUse("public.rate", Way.HISTORY, at="event")}
    looked_up = Relation(RATE.name, {**RATE.columns, **dict(uses["public.rate"].hidden)}, ("id", "_cdc_from_position"))
    sql = "SELECT t.id, r.pct FROM public.tap t JOIN public.rate r ON r.id = t.id"
    plan = plan_view("v", sql, ["id"], {TAP.name: TAP, looked_up.name: looked_up}, uses=uses)
    begins, ends = (f'"r"."{name}"' for name in ("_cdc_valid_from", "_cdc_valid_to"))
    assert f"{begins} <= CASE WHEN" in plan.nodes[-1].whole
    assert f"{ends} > CASE WHEN" in plan.nodes[-1].whole


def test_a_row_without_a_time_finds_nothing() -> None:
    """Not even a row that was there always, and is there still."""
    uses = {TAP.name: TableUse(TAP.name, time="at"), "public.rate": TableUse("public.rate", Way.HISTORY, at="event")}
    looked_up = Relation(RATE.name, {**RATE.columns, **dict(uses["public.rate"].hidden)}, ("id", "_cdc_from_position"))
    sql = "SELECT t.id, r.pct FROM public.tap t LEFT JOIN public.rate r ON r.id = t.id - t.id + 7"
    plan = plan_view("v", sql, ["id"], {TAP.name: TAP, looked_up.name: looked_up}, uses=uses)
    duck = duckdb.connect()
    duck.execute("CREATE SCHEMA after")
    duck.execute(
        """CREATE TABLE after."public.tap" AS SELECT 1 AS id, TIMESTAMP '2026-01-01' AS at UNION SELECT 2, NULL"""
    )
    duck.execute(
        """CREATE TABLE after."public.rate@history" AS SELECT 7 AS id, 8 AS pct, '' AS _cdc_from_position, """
        "CAST(NULL AS TIMESTAMP) AS _cdc_valid_from, CAST(NULL AS TIMESTAMP) AS _cdc_valid_to"
    )
    assert sorted(duck.execute(plan.nodes[-1].whole).fetchall()) == [(1, 8), (2, None)]


@pytest.mark.parametrize("at", ["event", "arrival"])
@pytest.mark.parametrize(
    ("sql", "warned"),
    [
        ("SELECT t.id, r.pct FROM public.tap t LEFT JOIN public.rate r ON r.id = t.n", ""),
        ("SELECT t.id, row_number() OVER (PARTITION BY r.pct ORDER BY t.id) AS n {}", ""),
        ("SELECT t.id, r.pct FROM public.tap t JOIN public.rate r ON r.pct = t.n", "may differ in r.id:"),
        ("SELECT DISTINCT r.id, r.pct {}", "may differ in r.pct:"),
        ("SELECT r.id, r.pct, count(*) AS n {} GROUP BY r.id, r.pct", "may differ in r.pct:"),
    ],
)
def test_a_key_has_one_version_at_a_time(sql: str, warned: str, at: str) -> None:
    """But several at several times: rows of one key may differ if those that look it up may."""
    tap = TableUse(TAP.name, time="at", arrival=at == "arrival")
    uses = {TAP.name: tap, "public.rate": TableUse("public.rate", Way.HISTORY, at=at)}
    read = [
        Relation(tap.relation, {**TAP.columns, "n": Kind("int64"), **dict(tap.hidden)}, ("id",)),
        Relation(RATE.name, {**RATE.columns, **dict(uses["public.rate"].hidden)}, ("id", "_cdc_from_position")),
    ]
    sql = sql.format("FROM public.tap t JOIN public.rate r ON r.id = t.n")
    divided = Division(full="row_number" in sql)
    warnings = plan_view("v", sql, ["id"], {of.name: of for of in read}, uses=uses, divided=divided).warnings
    assert [warned in each for each in warnings] == [True] * bool(warned)


@pytest.mark.parametrize(
    ("use", "message", "hint"),
    [
        (TableUse("t", time="at", sent="sent_on", received="received"), "x.sent: there is no column sent_on", "sent"),
        (TableUse("t", time="at", sent="sent", received="n"), "x.received: n is int64, which is no time", "one of at"),
        (
            TableUse("t", time="at", sent="day", received="received"),
            "at, day, received are date, timestamp",
            "one type",
        ),
        (TableUse("t", time="day", sent="day2", received="day"), "one cannot be corrected by the others", "one type"),
    ],
)
def test_what_cannot_be_corrected_is_refused(use: TableUse, message: str, hint: str) -> None:
    kinds = {name: Kind("timestamp_micros") for name in ("at", "sent", "received")}
    kinds |= {"n": Kind("int64"), "day": Kind("date"), "day2": Kind("date")}
    with pytest.raises(ConfigError) as refused:
        require_times("x", use, kinds)
    assert message in refused.value.message
    assert hint in (refused.value.hint or "")
