"""Adds the events of a view to the outbox, in the order of their keys."""

from __future__ import annotations

from spark_apply.views.database.names import temporary
from spark_apply.views.database.sides import same
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.values import object_of
from spark_apply.views.embedded.step import order_of
from spark_apply.views.model.values import quoted, text
from spark_apply.views.planning.view import View


def publish(state: DatabaseState, view: View, *, stale: bool, nulls: bool) -> None:
    """Add the events of what has changed in a view; where it is `stale`, of what differs from what is published."""
    old, new, changed = (temporary(what, view.relation) for what in ("was", "coming", "changed"))
    row, name, order = object_of(view.columns, "r"), text(view.name), order_of(stale=stale)
    by = [name for name, _ in view.key]
    if stale:
        pairs = (
            f"SELECT coalesce(p.key, n.key) AS key, p.row AS before, n.row AS after FROM "
            f"(SELECT {object_of(view.key, 'r')} AS key, {row} AS row FROM {new} r) n "
            f"FULL JOIN (SELECT key, row FROM published WHERE view = {name}) p ON p.key = n.key "
            f"WHERE p.row IS DISTINCT FROM n.row"
        )
    else:
        listed = ", ".join(map(quoted, by))
        before, after = (f"(SELECT {listed}, {row} AS _cdc_row FROM {of} r)" for of in (old, new))
        pairs = (
            f"SELECT {object_of(view.key, 'k')} AS key, b._cdc_row AS before, a._cdc_row AS after FROM {changed} k "
            f"LEFT JOIN {before} b ON {same('k', 'b', by, nulls=nulls)} "
            f"LEFT JOIN {after} a ON {same('k', 'a', by, nulls=nulls)}"
        )
    ((seq,),) = state.rows(
        "SELECT coalesce(max(seq), (SELECT CAST(value AS bigint) FROM meta WHERE name = 'seq')) FROM outbox"
    )
    state.execute(
        f"INSERT INTO outbox SELECT {seq} + row_number() OVER (ORDER BY {order}), {name}, "
        "CASE WHEN after IS NULL THEN 'd' WHEN before IS NULL THEN 'c' ELSE 'u' END, key, before, after "
        f"FROM ({pairs}) p WHERE before IS NOT NULL OR after IS NOT NULL"
    )
