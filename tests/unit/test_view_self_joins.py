"""A table that is joined with itself: a row that changes is looked up on both sides of the join."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps

INT = Kind("int64")
_C = Relation("public.c", {"s": Kind("string"), "n": INT, "i": INT, "l": INT, "g": INT}, ("s", "n"))


@pytest.mark.parametrize("equal", ["=", "<=>"])
@pytest.mark.parametrize("select", ["SELECT DISTINCT u.i, t.l", "SELECT u.i, t.l, count(*) AS m"])
def test_a_row_that_goes_takes_its_pairs_along_on_both_sides(tmp_path: Path, equal: str, select: str) -> None:
    """Two joins that differ in their columns alone are two, whatever the engine's optimizer would make of them."""
    sql = f"{select} FROM public.c t JOIN public.c u ON t.g {equal} u.g"
    sql += " GROUP BY u.i, t.l" if "count" in select else ""
    plan, text, match = plan_config("v", ViewConfig(sql=sql, key=("i", "l")), {_C.name: _C}, {})
    columns = [("i", INT), ("l", INT), *([("m", INT)] if "count" in select else [])]
    steps = Steps(tmp_path, [_C], [View(plan, columns, text, {}, match)])
    others = {(f"other {n}", n): (-n, -n, n) for n in range(1, 21)}  # a change is a small part of these
    steps.write("public.c", {("a", 1): (1, 0, 100), ("b", 1): (0, 5, 100), **others})
    assert {key for _, _, key, _ in steps.step() if key[0] >= 0} == {(1, 0), (0, 0), (1, 5), (0, 5)}
    steps.write("public.c", {("b", 1): None})
    assert {(op, key) for _, op, key, _ in steps.step()} == {("d", (0, 0)), ("d", (1, 5)), ("d", (0, 5))}
    steps.close()
