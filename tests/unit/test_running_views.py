"""Which views of a job are computed, and when one that is stopped is tried again."""

from __future__ import annotations

from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.view import View
from spark_apply.views.running.running_views import RunningViews
from spark_apply.views.sql.plan import plan_view
from tests.views.engine import relation


def test_a_view_whose_table_is_left_out_waits_for_it_when_its_column_is_back() -> None:
    """The rows there are of the table are of an older position than those of the others, until it goes on."""
    sql, relations = "SELECT id, g FROM public.t", {"public.t": relation("public.t", ["id"], id="int64", g="string")}
    view = View(plan_view("v", sql, ["id"], relations), (), sql)
    running = RunningViews((view,), [TableUse("public.t")], lambda _: None)
    running.compare("public.t", lambda _: "there is no column g")
    assert running.going_on(0) == []
    running.leave_out("public.t", "it is captured no more")
    running.compare("public.t", lambda _: None)
    running.try_soon()
    assert (running.going_on(0), running.is_due) == ([], False)
    running.take_back("public.t")
    assert (running.going_on(0), running.is_due) == ([view], True)
    running.computed([view])
    assert running.reasons == {}
    running.compare("public.t", lambda _: "there is no column g")
    running.compare("public.t", lambda _: None)
    assert running.going_on(0) == [view]
