"""A column whose name changes in its case alone: the engine takes both names for one, and Spark does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.views.embedded.state import POSITION, ViewState, place
from spark_apply.views.model.kept_columns import kept_columns
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.planned import Planned, compare
from spark_apply.views.planning.view import View
from spark_apply.views.sql.view_plan import Relation

INT = Kind("int64")


def table(*versions: str) -> TargetTable:
    """A table by the columns beside its key that it has had."""
    return target(
        [
            Version("shop", "public", "t", "shop.public.t", number, ("id",), tuple((of, INT) for of in ("id", *names)))
            for number, names in enumerate(map(str.split, versions), 1)
        ],
        {},
    )


@pytest.mark.parametrize(
    ("versions", "kept"),
    [
        (("g amount",), "id g amount"),
        (("g amount", "g Amount"), "id g Amount"),
        (("amount g", "Amount g", "amount g"), "id amount g"),
        (("amount", "Amount", "g"), "id amount g"),
        (("a", "b"), "id a b"),
    ],
)
def test_a_state_keeps_one_column_of_a_name(versions: tuple[str, ...], kept: str) -> None:
    assert [name for name, _ in kept_columns(table(*versions))] == kept.split()


def test_a_column_that_is_renamed_in_its_case_alone_has_no_values_until_it_is_read_again(tmp_path: Path) -> None:
    state, row = ViewState(tmp_path, memory="100MB"), place("before", "public.t")
    for versions in (("g amount",), ("g amount", "g Amount")):
        with state.transaction():
            state.prepare_table("public.t", kept_columns(table(*versions)), (), ("id",))
        state.execute(f'INSERT INTO {row} ("{POSITION}", id, amount, g) VALUES (1, 2, 3, 4)')
    assert state.rows(f'SELECT id, "Amount", g FROM {place("after", "public.t")} ORDER BY ALL') == [
        (2, 3, 4),
        (2, None, 4),
    ]
    state.close()


def test_a_view_that_uses_it_is_stopped_and_no_other() -> None:
    was = Relation("public.t", {"id": INT, "g": INT, "amount": INT}, ("id",))
    views = {
        "named": "SELECT id, amount FROM public.t",
        "all": "SELECT * FROM public.t",
        "other": "SELECT id, g FROM public.t",
    }
    made = []
    for name, sql in views.items():
        plan, text, match = plan_config(name, ViewConfig(sql=sql, key=("id",)), {was.name: was}, {})
        made.append(View(plan, [(column, INT) for column in plan.nodes[-1].columns], text, {}, match))
    planned = Planned(tuple(made), (TableUse("public.t"),), "shop", {}, "duckdb", {was.name: was})
    now = {"public.t": table("g amount", "g Amount")}
    found = {view.name: compare(planned, view, now) for view in made}
    assert "there is no column amount" in (found["named"].cannot_read or "")
    assert "there is no column amount any more" in (found["all"].cannot_read or "")
    assert (found["other"].cannot_read, found["other"].more) == (None, ())
