"""Takes a view job's state from one position and clock to the next: rows of tables first, then node by node.

Nothing is changed in place before the end: while nodes are computed, the rows before the step are in ``before``, and
those after it are a view over it and what changes. So every statement of a node can look at both sides, whatever else
changes in the same step. Everything is in the caller's transaction.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import duckdb

from cdc.model.errors import OperatorError
from spark_apply.views.embedded.containment import OF_ROWS, WHOLE, WHY, Range, Search
from spark_apply.views.embedded.fold import SourceTable, find_changes, move_on, taken
from spark_apply.views.embedded.held import hold, hold_wrong, is_held, is_one_unit, unit_name
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.model.values import Columns, engine_type, object_of, quoted, text
from spark_apply.views.planning.view import View
from spark_apply.views.sql.view_plan import CLOCK_AFTER, CLOCK_BEFORE, Computed, Node, found_by

MOST_TOUCHED = 0.3
"""Where so great a part of a table's rows differs, everything is computed again: that is cheaper than to look."""
_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the engine's timestamps are in UTC, without a zone


class ViewError(OperatorError):
    """A view cannot be computed from the rows that there are; others can."""

    def __init__(self, view: str, message: str, hint: str = "correct the view's SQL, or the rows") -> None:
        super().__init__(message, hint=f"{hint}: the other views go on")
        self.view = view


def require_checked(node: Node, gives_a_row: Callable[[str], bool], *, whole: bool) -> None:
    """Raise ViewError where a check of a node fails.

    Once, and not within the search for units that cannot be computed: a check looks at rows of other units as well, so
    what fails in it is not put down to those that were asked for.
    """
    for check in node.checks:
        if gives_a_row(check.whole if whole else check.restricted):
            view = node.name.partition("#")[0]
            raise ViewError(view, f"view {view}: {check.what}. {check.way_out}", check.hint)


class UnitsError(ViewError):
    """Some units of a view cannot be computed: the step is taken again, and they are told from the others."""


@dataclass(slots=True)
class Step:
    """One step. `limit` is the position that it goes to: events that sort before it are folded in."""

    state: ViewState
    limit: str
    clock_before_ms: int | None
    clock_after_ms: int | None
    stale: Collection[str]
    """Views of which nothing that is kept can be used: everything is computed, and compared with what is published."""
    changed: set[str] = field(default_factory=set)
    """The relations that the step has changed so far."""
    whole: set[str] = field(default_factory=set)
    """Those of which so much has changed that what reads them is computed whole."""
    late: dict[str, int] = field(default_factory=dict)
    """By relation, how many events of it came too late to count."""
    computed: dict[str, str] = field(default_factory=dict)
    """How views were computed: ``whole``, or by ``units``."""
    search: Search = field(default_factory=Search)
    """What earlier attempts of this very step have found out of units that cannot be computed."""
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By view, why units of it could not be computed, and how many; 0: it has none, and is left out as a whole."""

    def fold(self, table: SourceTable, *, reload: bool) -> None:
        """Find out what the waiting events before the limit change in a table.

        With `reload` the table's topic was read from its beginning: a row that it does not have is gone.
        """
        if reload or self._is_waiting(table):
            late = find_changes(table, self.state, limit=self.limit, clock_ms=self.clock_after_ms, reload=reload)
            if late:
                self.late[table.relation] = late
            self._note(table.relation, place("before", table.relation))
        else:
            self._clear(table.relation)

    def _is_waiting(self, table: SourceTable) -> bool:
        waiting = f"SELECT 1 FROM {place('pending', table.relation)} WHERE {taken(table, self.limit)} LIMIT 1"
        return bool(self.state.rows(waiting))

    def _clear(self, relation: str) -> None:
        for schema in ("changed", "coming"):
            if self.state.rows(f"SELECT 1 FROM {place(schema, relation)} LIMIT 1"):
                self.state.execute(f"DELETE FROM {place(schema, relation)}")

    def _note(self, relation: str, before: str) -> None:
        """Note that a relation has changed, if it has, and whether most of it."""
        ((changed, kept),) = self.state.rows(
            f"SELECT (SELECT count(*) FROM {place('changed', relation)}), (SELECT count(*) FROM {before})"
        )
        if changed:
            self.changed.add(relation)
            if changed > MOST_TOUCHED * kept:
                self.whole.add(relation)

    def compute(self, view: View) -> None:
        """Compute a view: what changes in it is then in ``changed`` and ``coming``, and its events in the outbox.

        Raises ViewError, after which the transaction must be rolled back; UnitsError, if the same step will go further
        with the `search` of this one.
        """
        try:
            self._compute(view)
        except duckdb.InternalException:
            raise  # the engine, not this view
        except duckdb.Error as exc:
            raise ViewError(view.name, f"view {view.name}: {_without_values(exc)}") from exc

    def _compute(self, view: View) -> None:
        stale = view.name in self.stale
        whole = is_one_unit(view) and not stale
        if whole and view.name in self.search.failed:
            self._leave_out_whole(view)
            return
        again = whole and is_held(self.state, view) and any(map(self._is_touched, view.plan.nodes))
        try:
            for node in view.plan.nodes[:-1]:
                if stale or again or self._is_touched(node):
                    self._compute_node(node, stale=stale or again)
                else:
                    self._clear(node.name)
            if stale or again or self._is_touched(view.last):
                self._compute_view(view, stale=stale)
            else:
                self._clear(view.relation)
        except OF_ROWS as exc:
            if whole and self.search.is_worth_it(view.name, None):
                raise UnitsError(view.name, f"view {view.name}: {WHY}") from exc
            raise

    def _leave_out_whole(self, view: View) -> None:
        """Put a view that is one unit into quarantine, and leave it as it was.

        Its nodes before the last may be at different positions then: they are computed again with it.
        """
        for relation in (*(node.name for node in view.plan.nodes[:-1]), view.relation):
            self._clear(relation)
        hold(self.state, view, {WHOLE: WHY}, self.limit)
        self.left_out[view.name] = WHY, 0

    def _is_touched(self, node: Node) -> bool:
        return bool(node.due and self.clock_before_ms != self.clock_after_ms) or any(
            relation in self.changed for relation in node.reads
        )

    def _is_whole(self, node: Node, *, stale: bool) -> bool:
        return stale or not node.units or any(relation in self.whole for relation in node.reads)

    def _find_units(self, node: Node) -> bool:
        """Fill in the units that may differ; return whether there are any."""
        asked = [
            statement
            for statement in node.touched
            if any(place("changed", relation) in statement for relation in node.reads if relation in self.changed)
        ]
        if self.clock_before_ms != self.clock_after_ms:
            asked += node.due
        names = ", ".join(quoted(name) for name in node.units)
        at = place("units", node.name)
        if not asked:
            return False
        self.state.execute(
            f"CREATE OR REPLACE TABLE {at} AS SELECT DISTINCT * FROM "
            f"({' UNION ALL '.join(f'SELECT * FROM ({statement})' for statement in asked)}) AS u({names})",
            self._clocks(*asked),
        )
        return bool(self.state.rows(f"SELECT 1 FROM {at} LIMIT 1"))

    def _clocks(self, *statements: str) -> dict[str, dt.datetime] | None:
        """Return the parameters that statements name."""
        given = {CLOCK_BEFORE: self.clock_before_ms, CLOCK_AFTER: self.clock_after_ms}
        found = {
            name[1:]: _EPOCH + dt.timedelta(milliseconds=at_ms if at_ms is not None else 0)
            for name, at_ms in given.items()
            if any(name in statement for statement in statements)
        }
        return found or None

    def _compute_node(self, node: Node, *, stale: bool) -> None:
        whole = self._is_whole(node, stale=stale)
        if not whole and not self._find_units(node):
            self._clear(node.name)
            return
        state, new = self.state, place("work", node.name)
        self._require_checked(node, whole=whole)
        self._select(node, new, whole=whole)
        hidden = [name for name in node.units if name not in node.columns]
        columns = [*hidden, *node.columns]
        before = place("before", node.name)
        if stale:
            state.execute(f"CREATE OR REPLACE TABLE {before} AS SELECT * FROM {new} WHERE false")
        by = list(node.units) or ["_whole"]
        listed, units = ", ".join(quoted(c) for c in columns), ", ".join(quoted(c) for c in by)
        here = "" if whole else f" WHERE {_in_units(node, 'b')}"
        old = f"(SELECT {listed} FROM {before} b{here})"
        fresh = f"(SELECT {listed} FROM {new})"
        found = units if node.units else "true AS _whole"
        state.execute(
            f"CREATE OR REPLACE TABLE {place('changed', node.name)} AS SELECT DISTINCT {found} FROM "
            f"(({old} EXCEPT ALL {fresh}) UNION ALL ({fresh} EXCEPT ALL {old}))"
        )
        same = " AND ".join(f"c.{quoted(c)} IS NOT DISTINCT FROM n.{quoted(c)}" for c in node.units) or "true"
        state.execute(
            f"CREATE OR REPLACE TABLE {place('coming', node.name)} AS SELECT {listed} FROM {new} n "
            f"WHERE EXISTS (SELECT 1 FROM {place('changed', node.name)} c WHERE {same})"
        )
        state.make_states(node.name, columns, node.units)
        self._note(node.name, before)

    def _require_checked(self, node: Node, *, whole: bool) -> None:
        require_checked(
            node, lambda each: bool(self.state.rows(f"SELECT 1 FROM ({each}) LIMIT 1", self._clocks(each))), whole=whole
        )

    def _select(self, node: Node, new: str, *, whole: bool, types: Columns = ()) -> None:
        statement = node.whole if whole else node.restricted
        listed = ", ".join(f"CAST({quoted(n)} AS {engine_type(kind)}) AS {quoted(n)}" for n, kind in types) or "*"
        self.state.execute(
            f"CREATE OR REPLACE TABLE {new} AS SELECT {listed} FROM ({statement})", self._clocks(statement)
        )

    def _compute_view(self, view: View, *, stale: bool) -> None:
        node, relation, state = view.last, view.relation, self.state
        whole = self._is_whole(node, stale=stale)
        new, before = place("work", relation), place("before", relation)
        if node.computed is not None:
            if stale:
                types = ", ".join(f"{quoted(name)} {engine_type(kind)}" for name, kind in view.columns)
                state.execute(f"CREATE OR REPLACE TABLE {before} ({types})")
            self._ask(view, node.computed, whole=whole)
        if not whole and not self._find_units(node):
            self._clear(relation)
            return
        self.computed[view.name] = "whole" if whole else "units"
        self._require_checked(node, whole=whole)
        failed = self._select_view(view, new, whole=whole)
        if stale:
            state.execute(f"CREATE OR REPLACE TABLE {before} AS SELECT * FROM {new} WHERE false")
        if node.computed is None:
            self._leave_out_bad(view, failed, whole=whole)
        listed, keys = (", ".join(quoted(name) for name, _ in of) for of in (view.columns, view.key))
        bad = f"SELECT unit FROM quarantine WHERE view = {text(view.name)}"
        here = [] if whole else [_in_units(node, "b")]
        here += [f"{unit_name(view, 'b')} NOT IN ({bad})"]
        old = f"(SELECT {listed} FROM {before} b WHERE {' AND '.join(here)})"
        fresh = f"(SELECT {listed} FROM {new})"
        state.execute(
            f"CREATE OR REPLACE TABLE {place('changed', relation)} AS SELECT DISTINCT {keys} FROM "
            f"(({old} EXCEPT {fresh}) UNION ALL ({fresh} EXCEPT {old}))"
        )
        same = " AND ".join(f"c.{quoted(name)} IS NOT DISTINCT FROM n.{quoted(name)}" for name, _ in view.key)
        state.execute(
            f"CREATE OR REPLACE TABLE {place('coming', relation)} AS SELECT {listed} FROM {new} n "
            f"WHERE EXISTS (SELECT 1 FROM {place('changed', relation)} c WHERE {same})"
        )
        state.make_states(relation, [name for name, _ in view.columns], [name for name, _ in view.key])
        self._note(relation, before)
        if stale:
            self.changed.add(relation)
            self.whole.add(relation)
        self._publish(view, stale=stale)

    def _select_view(self, view: View, new: str, *, whole: bool) -> dict[str, str]:
        """Select a view's rows; return the units, by name, that cannot be computed, and why."""
        node, search = view.last, self.search
        if view.name not in search.failed:
            self._tried(view, None, lambda: self._select(node, new, whole=whole, types=view.columns))
            return {}
        state, every, units = self.state, place("work", f"{node.name}#units"), place("units", node.name)
        names = ", ".join(quoted(name) for name in node.units)
        found = f"SELECT DISTINCT {names} FROM ({node.every})" if whole else f"SELECT {names} FROM {units}"
        held = f"{unit_name(view, 'u')} IN (SELECT unit FROM quarantine WHERE view = {text(view.name)})"
        state.execute(
            f"CREATE OR REPLACE TABLE {every} AS "
            f"SELECT row_number() OVER (ORDER BY {held} DESC, {names}) - 1 AS _number, {held} AS _held, * "
            f"FROM ({found}) u",
            self._clocks(found),
        )
        ((count, known),) = state.rows(f"SELECT count(*), count(*) FILTER (WHERE _held) FROM {every}")
        good, bad = search.divided(view.name, count, known)
        part = place("work", f"{node.name}#part")
        for first, end in [(0, 0), *good]:  # none at first: what fails then is not for its units
            state.execute(
                f"CREATE OR REPLACE TABLE {units} AS SELECT {names} FROM {every} "
                f"WHERE _number >= {first} AND _number < {end}"
            )
            at = part if end else new
            select = partial(self._select, node, at, whole=False, types=view.columns)
            self._tried(view, (first, end), select) if end else select()
            if end:
                state.execute(f"INSERT INTO {new} SELECT * FROM {part}")
        state.execute(f"CREATE OR REPLACE TABLE {units} AS SELECT {names} FROM {every}")
        if not bad:
            return {}
        listed = ", ".join(map(str, bad))
        self.left_out[view.name] = WHY, len(bad)
        failed = state.rows(f"SELECT {unit_name(view, 'u')} FROM {every} u WHERE _number IN ({listed})")
        return {unit: WHY for (unit,) in failed}

    def _tried(self, view: View, units: Range | None, select: Callable[[], None]) -> None:
        """Select rows. Raises UnitsError if it fails for values that may be of a few units."""
        try:
            select()
        except OF_ROWS as exc:
            node = view.last
            if node.units and node.computed is None and self.search.is_worth_it(view.name, units):
                raise UnitsError(view.name, f"view {view.name}: {WHY}") from exc
            raise

    def _ask(self, view: View, computed: Computed, *, whole: bool) -> None:
        """Have rows found that no SQL gives; what is wrong goes into quarantine, and keeps the rows that it had."""
        state, found = self.state, place("work", found_by(view.last.name))
        rows, held = computed(state.reader, self.changed, whole=whole)
        with state.registered("found", rows):
            state.execute(f"CREATE OR REPLACE TABLE {found} AS SELECT * FROM found")
        hold_wrong(state, view, held, self.limit)

    def _leave_out_bad(self, view: View, failed: Mapping[str, str], *, whole: bool) -> None:
        """Put units into quarantine of which a key is null or not unique, or that failed; leave them as they were."""
        state, node, new = self.state, view.last, place("work", view.relation)
        unit = unit_name(view, "n")
        nulls = "false" if view.plan.null_keys else " OR ".join(f"n.{quoted(name)} IS NULL" for name, _ in view.key)
        keys = ", ".join(f"n.{quoted(name)}" for name, _ in view.key)
        found = state.rows(
            f"SELECT DISTINCT {unit} AS unit, 'a column of the key is null' FROM {new} n WHERE {nulls} UNION ALL "
            f"SELECT any_value({unit}), 'the key is not unique' FROM {new} n GROUP BY {keys} HAVING count(*) > 1"
        )
        recomputed = "" if whole else f" AND unit IN (SELECT {unit_name(view, 'u')} FROM {place('units', node.name)} u)"
        held = {**dict(found), **failed}
        hold(state, view, held, self.limit, of=recomputed)
        if held:
            bad = f"SELECT unit FROM quarantine WHERE view = {text(view.name)}"
            state.execute(f"DELETE FROM {new} n WHERE {unit} IN ({bad})")

    def _publish(self, view: View, *, stale: bool) -> None:
        """Add the events of what changes to the outbox, in the `order_of` their keys."""
        old, new, changed = (place(schema, view.relation) for schema in ("before", "coming", "changed"))
        key, row = object_of(view.key, "k"), object_of(view.columns, "r")
        names = [quoted(name) for name, _ in view.key]
        by = ", ".join(names)

        def same(other: str) -> str:
            return " AND ".join(f"k.{name} IS NOT DISTINCT FROM {other}.{name}" for name in names)

        (seq,) = self.state.rows(
            "SELECT coalesce(max(seq), (SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'seq')) FROM outbox"
        )[0]
        name, order = text(view.name), order_of(stale=stale)
        if stale:
            pairs = (
                f"SELECT coalesce(p.key, n.key) AS key, p.row AS before, n.row AS after FROM "
                f"(SELECT {object_of(view.key, 'r')} AS key, {row} AS row FROM {new} r) n "
                f"FULL JOIN (SELECT key, row FROM {place('work', 'published')} WHERE view = {name}) p ON p.key = n.key "
                f"WHERE p.row IS DISTINCT FROM n.row"
            )
        else:
            before, after = (
                f"(SELECT {by}, {row} AS _cdc_row FROM {of} r "
                f"WHERE EXISTS (SELECT 1 FROM {changed} k WHERE {same('r')}))"
                for of in (old, new)
            )
            pairs = (
                f"SELECT {key} AS key, b._cdc_row AS before, a._cdc_row AS after FROM {changed} k "
                f"LEFT JOIN {before} b ON {same('b')} LEFT JOIN {after} a ON {same('a')}"
            )
        self.state.execute(
            f"INSERT INTO outbox SELECT {seq} + row_number() OVER (ORDER BY {order}), {name}, "
            "CASE WHEN after IS NULL THEN 'd' WHEN before IS NULL THEN 'c' ELSE 'u' END, key, before, after "
            f"FROM ({pairs}) WHERE before IS NOT NULL OR after IS NOT NULL"
        )

    def apply(self, tables: Sequence[SourceTable], views: Sequence[View]) -> None:
        """Make the rows after the step the rows before the next one."""
        state = self.state
        for table in tables:
            relation = table.relation
            if relation in self.changed:
                self._replace(relation, table.row_key)
            if self._is_waiting(table):
                move_on(table, state)
                state.execute(f"DELETE FROM {place('pending', relation)} WHERE {taken(table, self.limit)}")
        for view in views:
            for node in view.plan.nodes[:-1]:
                if node.name in self.changed:
                    self._replace(node.name, node.units)
            if view.relation in self.changed:
                self._replace(view.relation, view.plan.key)

    def _replace(self, relation: str, by: Sequence[str]) -> None:
        before, coming = place("before", relation), place("coming", relation)
        if not self.state.rows(f"SELECT 1 FROM {before} LIMIT 1"):
            self.state.execute(f"INSERT INTO {before} BY NAME SELECT * FROM {coming}")
            return
        same = " AND ".join(f"c.{quoted(n)} IS NOT DISTINCT FROM b.{quoted(n)}" for n in by) or "true"
        self.state.execute(
            f"DELETE FROM {before} b WHERE EXISTS (SELECT 1 FROM {place('changed', relation)} c WHERE {same})"
        )
        self.state.execute(f"INSERT INTO {before} BY NAME SELECT * FROM {coming}")


def order_of(*, stale: bool) -> str:
    """Return the order of a view's events.

    Where they are what differs from the topic, deletes come first: a key in it that another engine has written may have
    another text (`1.0E20`, `1e+20`). For a copy both are one row, and the newest event counts.
    """
    return "after IS NOT NULL, key" if stale else "key"


def _in_units(node: Node, row: str) -> str:
    same = " AND ".join(f"u.{quoted(name)} IS NOT DISTINCT FROM {row}.{quoted(name)}" for name in node.units)
    return f"EXISTS (SELECT 1 FROM {place('units', node.name)} u WHERE {same})"


def _without_values(exc: Exception) -> str:
    """Say what the engine refused without the values that its messages hold."""
    if isinstance(exc, OF_ROWS):
        return WHY
    if isinstance(exc, duckdb.OutOfMemoryException):
        return "it needs more memory than memory: allows, and the disk beside the state is full"
    return f"the engine does not take its statement ({type(exc).__name__})"
