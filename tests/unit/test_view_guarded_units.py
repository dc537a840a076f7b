"""A unit that cannot be computed of rows that WHERE leaves out: the rows of other units are looked for among them."""

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
_T = Relation("public.t", {"id": INT, "k": INT, "g": Kind("string")}, ("id",))


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 10 div k AS q, count(*) AS n FROM public.t WHERE k <> 0 GROUP BY 1",
        "SELECT CAST(g AS BIGINT) AS q, count(*) AS n FROM public.t WHERE g <> 'none' GROUP BY CAST(g AS BIGINT)",
        "SELECT DISTINCT 10 div k AS q, 10 div k AS n FROM public.t WHERE k <> 0",
        "SELECT 10 div t.k AS q, max(o.k) AS n FROM public.t t JOIN public.t o ON o.id = t.id AND t.k <> 0 GROUP BY 1",
    ],
)
def test_rows_that_where_leaves_out_hold_up_no_unit(tmp_path: Path, sql: str) -> None:
    plan, text, match = plan_config("v", ViewConfig(sql=sql, key=("q",)), {_T.name: _T}, {})
    steps = Steps(tmp_path, [_T], [View(plan, [("q", INT), ("n", INT)], text, {}, match)])
    steps.write("public.t", {(number,): (1, "10") for number in range(1, 20)})  # a change is a small part of these
    steps.step()
    steps.write("public.t", {(1,): (0, "none"), (2,): (5, "2")})
    found = {key: op for _, op, key, _ in steps.step()}
    assert (found[2,], steps.quarantined("v")) == ("c", [])
    steps.write("public.t", {(2,): (0, "none")})
    found = {key: op for _, op, key, _ in steps.step()}
    assert (found[2,], steps.quarantined("v")) == ("d", [])
    steps.close()
