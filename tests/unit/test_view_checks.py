"""What `unit:` and `unit_limit` ask of rows: once, of all of them, beside the search for units that fail."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from cdc.model.change import Kind
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.planning.view import View
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Division
from tests.views.engine import relation
from tests.views.shapes import RELATIONS
from tests.views.steps import Steps

ROWS = relation("public.m", ["id"], id="int64", g="string", k="int64", s="string")
K, S = "count(*) OVER (PARTITION BY k) AS c", "count(*) OVER (PARTITION BY CAST(s AS INT)) AS d"


def _steps(folder: Path, windows: str, first: tuple[str, int, str]) -> Steps:
    sql = f"SELECT g, id, {windows} FROM public.m"
    plan = plan_view("v", sql, ["g", "id"], {ROWS.name: ROWS}, divided=Division(unit=("g",)))
    kinds = {"g": ROWS.columns["g"], "id": ROWS.columns["id"]}
    columns: list[tuple[str, Kind]] = [(name, kinds.get(name, ROWS.columns["id"])) for name in plan.nodes[-1].columns]
    steps = Steps(folder, [ROWS], [View(plan, columns, sql, uses={})])
    steps.write("public.m", {(1,): first})
    steps.step()
    return steps


def test_what_fails_in_a_check_stops_the_view_and_holds_no_units(tmp_path: Path) -> None:
    steps = _steps(tmp_path, S, ("x", 1, "1"))
    steps.write("public.m", {(2,): ("y", 2, "bad")})
    with pytest.raises((ViewError, duckdb.Error)):
        steps.step()
    assert steps.quarantined("v") == []
    steps.write("public.m", {(2,): ("y", 2, "3")})
    steps.step()
    assert steps.quarantined("v") == []
    assert steps.state.rows('SELECT count(*) FROM before."view.v"') == [(2,)]
    steps.close()


@pytest.mark.parametrize("windows", [f"{S}, {K}", f"{K}, {S}"])
def test_a_check_that_fails_hides_no_other(tmp_path: Path, windows: str) -> None:
    """The view stops whichever comes first, and goes on once both are right."""
    steps = _steps(tmp_path, windows, ("x", 1, "1"))
    steps.write("public.m", {(2,): ("y", 1, "2"), (3,): ("y", 9, "bad")})
    with pytest.raises((ViewError, duckdb.Error)):
        steps.step()
    assert steps.quarantined("v") == []
    steps.close()


def test_names_of_a_check_are_none_of_the_view() -> None:
    sql = "SELECT k AS _by0, id, count(*) OVER (PARTITION BY g) AS c FROM public.a"
    (check,) = plan_view("v", sql, ["_by0", "id"], RELATIONS, divided=Division(unit=("_by0",))).nodes[-1].checks
    assert '"__by0"' in check.whole


def test_hidden_units_are_not_named() -> None:
    sql = (
        "WITH u AS (SELECT g, k FROM public.a UNION ALL SELECT g, x FROM public.c) SELECT g, count(*) AS c FROM u "
        "GROUP BY g"
    )
    plan = plan_view("v", sql, ["g"], RELATIONS, divided=Division(limit=3))
    assert not [each.what for node in plan.nodes for each in node.checks if "_u" in each.what]


def test_a_stop_by_a_check_has_its_own_hint(tmp_path: Path) -> None:
    steps = _steps(tmp_path, K, ("x", 1, "1"))
    steps.write("public.m", {(2,): ("y", 1, "2")})
    with pytest.raises(ViewError, match="have several values of g") as stopped:
        steps.step()
    assert "change unit: in views.yaml: the other views go on" in (stopped.value.hint or "")
    steps.close()
