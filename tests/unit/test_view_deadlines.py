"""An instant that the clock is compared with may fail: for rows that do not ask for it, and for wrong ones."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path

import pytest

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.views.planning.definitions import same
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.output_types import spark_text
from spark_apply.views.planning.view import View
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps

_T = Relation("public.t", {"id": Kind("int64"), "k": Kind("int64"), "g": Kind("string")}, ("id",))
_DAY_MS = 86_400_000
_BEGIN_MS = (dt.date(2026, 1, 1) - dt.date(1970, 1, 1)).days * _DAY_MS
_ASKED = {
    "in a branch": "CASE WHEN k = 0 THEN false WHEN k = 1 THEN CAST(g AS DATE) <= clock() ELSE false END",
    "in another one": "CASE WHEN k <> 1 THEN false ELSE CAST(g AS DATE) <= clock() END",
    "in a condition": "CASE WHEN k <> 1 THEN false WHEN CAST(g AS DATE) <= clock() THEN true ELSE false END",
    "in one that the clock is in": "CASE WHEN k = 1 THEN CASE WHEN clock() >= DATE'2026-01-01' + CAST(k AS INT) "
    "THEN CAST(g AS DATE) <= clock() ELSE false END ELSE false END",
    "by if": "if(k = 1, CAST(g AS DATE) <= clock(), false)",
    "behind AND": "k = 1 AND CAST(g AS DATE) <= clock()",
    "behind AND, with others": "(k = 1 AND g <> 'no' AND CAST(g AS DATE) <= clock()) IS TRUE",
    "behind OR": "NOT (k <> 1 OR CAST(g AS DATE) > clock())",
    "by a number": "CASE k WHEN 1 THEN CAST(g AS DATE) <= clock() ELSE false END",
}


def _steps(folder: Path, sql: str, of: str) -> Steps:
    plan, text, match = plan_config("v", ViewConfig(sql=sql, key=("id",)), {_T.name: _T}, {})
    return Steps(folder, [_T], [View(plan, [("id", Kind("int64")), ("due", Kind(of))], text, {}, match)])


@pytest.mark.parametrize("due", _ASKED.values(), ids=_ASKED)
def test_a_row_that_does_not_ask_for_a_deadline_may_have_none(tmp_path: Path, due: str) -> None:
    steps = _steps(tmp_path, f"SELECT id, {due} AS due FROM public.t", "boolean")
    steps.write("public.t", {(1,): (1, "2026-01-03"), (2,): (2, "never")})
    steps.step(_BEGIN_MS)
    assert steps.step(_BEGIN_MS + 3 * _DAY_MS) == [("v", "u", (1,), {"id": 1, "due": True})]
    assert steps.quarantined("v") == []
    steps.close()


@pytest.mark.parametrize("engine", ["spark", "postgres"])
@pytest.mark.parametrize("due", _ASKED.values(), ids=_ASKED)
def test_other_engines_ask_for_it_as_the_view_does(due: str, engine: str) -> None:
    sql = f"SELECT id, {due.replace('CAST(g AS DATE)', 'timestamp_seconds(10 div k)')} AS due FROM public.t"
    (node,) = plan_view("v", sql, ["id"], {_T.name: _T}, engine=engine).nodes
    asked = [each.replace("`", '"') for each in node.due if "10" in each]
    assert asked
    assert all(re.search(r'CASE ("t"\."k"|WHEN (NOT )?\(?"t"\."k" )', each) for each in asked)


def test_a_unit_whose_deadline_is_none_stays_in_quarantine_and_holds_up_no_other(tmp_path: Path) -> None:
    steps = _steps(tmp_path, "SELECT id, CAST(g AS DATE) <= clock() AS due FROM public.t", "boolean")
    steps.write("public.t", {(1,): (1, "2026-01-03"), (2,): (2, "soon")})
    steps.step(_BEGIN_MS)
    assert steps.step(_BEGIN_MS + 3 * _DAY_MS) == [("v", "u", (1,), {"id": 1, "due": True})]
    assert [unit for unit, _ in steps.quarantined("v")] == ['["2"]']
    steps.write("public.t", {(2,): (2, "2026-01-09")})
    assert steps.step() == [("v", "c", (2,), {"id": 2, "due": False})]
    assert steps.step(_BEGIN_MS + 9 * _DAY_MS) == [("v", "u", (2,), {"id": 2, "due": True})]
    steps.close()


def test_an_interval_of_several_units_is_one(tmp_path: Path) -> None:
    """``at - INTERVAL 1 DAY 2 HOURS`` lies 26 hours before, and on the clock's side it may stand, too."""
    sql = """
    SELECT id, unix_seconds(timestamp_seconds(k) - INTERVAL 1 DAY 2 HOURS) AS due FROM public.t
    WHERE timestamp_seconds(k) <= clock() - INTERVAL 1 DAY 2 HOURS
    """
    steps = _steps(tmp_path, sql, "int64")
    steps.write("public.t", {(1,): (_BEGIN_MS // 1000, "")})
    assert steps.step(_BEGIN_MS + 26 * 3_600_000 - 1) == []
    due = {"id": 1, "due": _BEGIN_MS // 1000 - 26 * 3600}
    assert steps.step(_BEGIN_MS + 26 * 3_600_000) == [("v", "c", (1,), due)]
    steps.close()
    (node,) = plan_view("v", sql, ["id"], {_T.name: _T}, engine="postgres").nodes
    assert "- (INTERVAL '1 DAY' + INTERVAL '2 HOUR')" in node.whole
    of_spark = spark_text(sql, {"public.t": "t"}, dt.datetime(2026, 1, 1))  # noqa: DTZ001 - in UTC, as clocks are
    assert of_spark.count("- (INTERVAL '1' DAY + INTERVAL '2' HOURS)") == 2
    taken_apart = sql.replace("1 DAY 2 HOURS", "1 DAY + INTERVAL 2 HOURS")
    assert not same({"sql": sql}, {"sql": taken_apart})
