"""Which views of a job are computed, and when one that is stopped is tried again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cdc.model.change import Kind
from spark_apply.model.target_table import TargetColumn, TargetTable
from spark_apply.views.embedded.state import ViewState
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.planned import Changed
from spark_apply.views.planning.view import View
from spark_apply.views.running.running_views import RunningViews
from spark_apply.views.running.store import ViewStore
from spark_apply.views.sql.plan import plan_view
from tests.unit.test_watermarks import TABLE
from tests.views.engine import relation


def test_a_view_whose_table_is_left_out_waits_for_it_when_its_column_is_back() -> None:
    """The rows there are of the table are of an older position than those of the others, until it goes on."""
    sql, relations = "SELECT id, g FROM public.t", {"public.t": relation("public.t", ["id"], id="int64", g="string")}
    view = View(plan_view("v", sql, ["id"], relations), (), sql)
    running = RunningViews((view,), [TableUse("public.t")], lambda _: None)
    running.compare("public.t", {"v": "there is no column g"})
    assert running.going_on(0) == []
    running.leave_out("public.t", "it is captured no more")
    running.compare("public.t", {"v": None})
    running.try_soon()
    assert (running.going_on(0), running.is_due(0)) == ([], False)
    running.take_back("public.t")
    assert (running.going_on(0), running.is_due(0)) == ([view], True)
    running.computed([view])
    assert (running.reasons, running.is_due(0)) == ({}, False)
    running.compare("public.t", {"v": "there is no column g"})
    running.compare("public.t", {"v": None})
    assert running.going_on(0) == [view]


def test_a_view_that_waits_for_another_one_is_not_due() -> None:
    """Else a step would be taken, and published, at each look, for as long as the other one is stopped."""
    relations = {"public.t": relation("public.t", ["id"], id="int64", g="string")}
    first = View(plan_view("a", "SELECT id, g FROM public.t", ["id"], relations), (), "")
    relations["view.a"] = relation("view.a", ["id"], id="int64", g="string")
    second = View(plan_view("b", "SELECT id, g FROM view.a", ["id"], relations), (), "")
    running = RunningViews((first, second), [TableUse("public.t")], lambda _: None)
    running.stop(ViewError("b", "view b: a division by zero"), 0.0)
    assert running.is_due(0)
    running.stop(ViewError("a", "view a: a division by zero"), 60.0)
    assert not running.is_due(0)
    running.stop(ViewError("a", "view a: a division by zero"), 0.0)
    assert running.is_due(0)
    running.note_reading("public.t", reading=True)
    assert not running.is_due(0)


def test_a_view_that_is_planned_again_at_once_is_not_told_of() -> None:
    sql, relations, lines = "SELECT id, g FROM public.t", {}, list[str]()
    relations["public.t"] = relation("public.t", ["id"], id="int64", g="string")
    view = View(plan_view("v", sql, ["id"], relations), (), sql)
    running = RunningViews((view,), [TableUse("public.t")], lines.append)
    running.compare("public.t", {"v": "column g of public.t is bigint now"}, told=False)
    assert (running.going_on(0), lines) == ([], [])


def test_a_column_of_a_table_is_taken_while_another_one_is_left_out() -> None:
    """By the views that go on; what reads both tables is planned again once both are there."""
    lines, relations = list[str](), {f"public.{n}": relation(f"public.{n}", ["id"], id="int64") for n in "abc"}
    one = View(plan_view("one", "SELECT * FROM public.a", ["id"], relations), (), "")
    sql = "SELECT b.id FROM public.b JOIN public.c ON b.id = c.id"
    two = View(plan_view("two", sql, ["id"], relations), (), sql)
    running = RunningViews((one, two), [TableUse(name) for name in relations], lines.append)
    running.leave_out("public.b", "its disk is full")
    assert running.is_to_be_planned("public.a")
    del lines[:]
    assert not running.is_to_be_planned("public.b")
    assert not running.is_to_be_planned("public.c")
    assert lines == []
    assert running.take_back("public.b")
    assert lines == [f"table public.{n} has more or wider columns: the views are planned again" for n in "bc"]
    assert not running.take_back("public.b")


def test_a_view_that_waits_for_the_clock_is_nothing_to_fold_for(tmp_path: Path) -> None:
    """As the fold sees it: else there would be one each second, as long as nobody knows the source's time."""
    relations = {"public.t": relation("public.t", ["id"], id="int64", at="timestamptz")}
    view = View(plan_view("v", "SELECT id FROM public.t WHERE at <= clock()", ["id"], relations), (), "")
    output: Any = SimpleNamespace(tell=print)
    streams: Any = SimpleNamespace(have_more=lambda: False)
    state = ViewState(tmp_path, memory="200MB")
    compare: Any = None
    store = ViewStore(state, output, (view,), (TableUse("public.t"),), tmp_path, streams, compare)
    store._running.stale.add("v")
    assert not store.has_more()
    state.put(clock_ms=5)
    assert store.has_more()
    state.close()


def test_a_table_that_changes_is_compared_also_while_another_one_is_not_there(tmp_path: Path) -> None:
    """Its topic is gone or was made again, so nothing of it is opened: views of the others are as strict as before."""
    relations, lines = {f"public.{n}": relation(f"public.{n}", ["id"], id="int64") for n in "ab"}, list[str]()
    first, second = (
        View(
            plan_view(n, f"SELECT id FROM public.{n}", ["id"], relations),
            (),
            "",
            {f"public.{n}": TableUse(f"public.{n}")},
        )
        for n in "ab"
    )
    compared = set[tuple[str, ...]]()

    def compare(view: View, tables: Mapping[str, TargetTable]) -> Changed:
        compared.add((view.name, *tables))
        return Changed("there is no column id any more" if tables["public.a"].version > 1 else None)

    output: Any = SimpleNamespace(tell=lines.append)
    streams: Any = SimpleNamespace(take_in=lambda: False)
    state = ViewState(tmp_path, memory="200MB")
    store = ViewStore(state, output, (first, second), tuple(map(TableUse, relations)), tmp_path, streams, compare)
    store.leave_out("public.b", "its topic was made again")
    columns = (TargetColumn("id", Kind("int64"), ()),)
    for version in (1, 2):
        store.open(replace(TABLE, name="a", columns=columns, version=version))
    assert compared == {("a", "public.a")}
    assert "no column id" in store.stopped["a"]
    assert "its topic was made again" in store.stopped["b"]
    state.close()


def test_a_rebuild_of_a_view_whose_table_is_left_out_is_refused(tmp_path: Path) -> None:
    """Else who has asked for it waits for as long as the table is gone, and so do the views that the file has now."""
    relations = {f"public.{n}": relation(f"public.{n}", ["id"], id="int64") for n in "ab"}
    views = tuple(View(plan_view(n, f"SELECT id FROM public.{n}", ["id"], relations), (), "") for n in "ab")
    output: Any = SimpleNamespace(tell=print)
    nothing: Any = None
    state, turns = ViewState(tmp_path, memory="200MB"), list[bool]()
    store = ViewStore(state, output, views, tuple(map(TableUse, relations)), tmp_path, nothing, nothing)
    store.rebuilt, store.turn = {"a"}, lambda: turns.append(True)
    store.leave_out("public.b", "its topic is gone")
    assert (store.refused, store.rebuilt, turns) == (None, {"a"}, [])
    store.leave_out("public.a", "its topic is gone")
    assert (store.refused, store.rebuilt, turns) == (
        "view a: table public.a is left out: its topic is gone",
        set(),
        [True],
    )
    state.close()
