"""Which units of views are in quarantine, in the state of either engine."""

from __future__ import annotations

from collections.abc import Mapping

from spark_apply.views.embedded.state import ViewState
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
