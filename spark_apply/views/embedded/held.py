"""Which units of views are in quarantine, in the state of either engine."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from cdc.model.change import Kind
from spark_apply.views.embedded.containment import WHOLE
from spark_apply.views.embedded.state import ViewState
from spark_apply.views.model.values import engine_type, quoted, text
from spark_apply.views.planning.view import View


def is_one_unit(view: View) -> bool:
    """Whether a view has no units, so that it is computed whole, or not at all."""
    return not view.last.units and view.last.computed is None


def is_held(state: ViewState, view: View) -> bool:
    """Whether a unit of a view is in quarantine."""
    return bool(state.rows("SELECT 1 FROM quarantine WHERE view = ? LIMIT 1", [view.name]))


def hold(state: ViewState, view: View, held: Mapping[str, str], limit: str, *, of: str = "") -> None:
    """Have units in quarantine, by name and why, in place of those that were; `of` tells which were recomputed."""
    state.execute(f"DELETE FROM quarantine WHERE view = ?{of}", [view.name])
    for unit, reason in held.items():
        state.execute("INSERT INTO quarantine VALUES (?, ?, ?, ?)", [view.name, unit, reason, limit])


def hold_wrong(state: ViewState, view: View, wrong: pa.Table, limit: str) -> None:
    """Have units in quarantine, by their columns and a reason, and no others: those stay that were there."""
    with state.registered("wrong", wrong):
        state.execute(f"CREATE OR REPLACE TABLE work.bad AS SELECT {unit_name(view, 'w')} AS unit, reason FROM wrong w")
    state.execute("DELETE FROM quarantine WHERE view = ? AND unit NOT IN (SELECT unit FROM work.bad)", [view.name])
    state.execute(
        "INSERT INTO quarantine SELECT $view, unit, reason, $position FROM work.bad "
        "WHERE unit NOT IN (SELECT unit FROM quarantine WHERE view = $view)",
        {"view": view.name, "position": limit},
    )


def unit_name(view: View, row: str) -> str:
    """Return an expression for the name of a row's unit, as the quarantine has it, by the view's types."""
    if not view.held_by:
        return text(WHOLE)
    kinds = dict(view.columns)
    units = (
        f"CAST({_one_zero(f'CAST({row}.{quoted(n)} AS {engine_type(kinds[n])})', kinds[n])} AS VARCHAR)"
        for n in view.held_by
    )
    return f"CAST(to_json([{', '.join(units)}]) AS VARCHAR)"


def _one_zero(value: str, kind: Kind) -> str:
    """Return a value whose text is the same where it is equal: minus zero is zero."""
    return f"CASE WHEN {value} = 0 THEN 0 ELSE {value} END" if kind.name in ("float32", "float64") else value
