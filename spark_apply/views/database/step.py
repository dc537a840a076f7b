"""Takes a state in PostgreSQL from one position and clock to the next, as `spark_apply.views.embedded.step` does.

Everything is in the caller's transaction, and changed where it stands: so the rows after the step are read as they are,
by their indexes, and those before it are the same less what has come and with what was there (``was``). A relation that
the step does not change is read as it is on either side.
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import psycopg2
import psycopg2.errors

from cdc.model.errors import BugError, OperatorError
from spark_apply.stores.postgres.session.server import passes
from spark_apply.views.database import fold, sides
from spark_apply.views.database.names import asks_for, base, filled, temporary
from spark_apply.views.database.publishing import publish
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.values import converted, declared, shown_type, unit_name
from spark_apply.views.embedded import step as in_file
from spark_apply.views.embedded.containment import WHOLE, WHY, Range, Search
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.held import hold, is_held, is_one_unit
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.model.uses import Way
from spark_apply.views.model.values import quoted, text
from spark_apply.views.planning.view import View
from spark_apply.views.sql.expressions.engines.dialects import SAME
from spark_apply.views.sql.view_plan import Node

_CHANGED: Final = ("changed", "before_changed", "after_changed", "both_changed")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the engine's timestamps are in UTC, without a zone
MOST_NULLS: Final = 200
"""Where more units have a NULL, a view is computed whole: each of them is compared with every row."""
_DISTINCT: Final = "IS NOT DISTINCT FROM"


class LongTextError(OperatorError):
    """A text is too long for an index: without indexes of texts the step can be taken."""

    def __init__(self, position: str) -> None:
        super().__init__(f"a text is too long for an index of PostgreSQL, at {position}", hint="start the job again")


@dataclass(frozen=True, slots=True)
class Changed:
    """How a relation has changed: its columns, and by which of them it is told which rows."""

    columns: tuple[str, ...]
    by: tuple[str, ...]
    nulls: bool
    """Whether a value that they are told by is NULL."""


@dataclass(slots=True)
class DatabaseStep:
    """One step: events that sort before its limit are folded in."""

    state: DatabaseState
    limit: str
    clock_before_ms: int | None
    clock_after_ms: int | None
    stale: Collection[str]
    """Views of which nothing that is kept can be used: everything is computed, and compared with what is published."""
    changed: dict[str, Changed] = field(default_factory=dict)
    """The relations that the step has changed so far."""
    whole: set[str] = field(default_factory=set)
    """Those of which so much has changed that what reads them is computed whole."""
    late: dict[str, int] = field(default_factory=dict)
    """By relation, how many events of it came too late to count: none, as streams are not read here."""
    computed: dict[str, str] = field(default_factory=dict)
    """How views were computed: ``whole``, or by ``units``."""
    search: Search = field(default_factory=Search)
    """What earlier attempts of this very step have found out of units that cannot be computed."""
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By view, why units of it could not be computed, and how many; 0: it has none, and is left out as a whole."""
    _units: dict[str, bool] = field(default_factory=dict)
    """The nodes of which units are known, and whether a value of one is NULL."""
    _made: set[str] = field(default_factory=set)
    """Tables of the step that there are."""

    def fold(self, table: SourceTable, *, reload: bool) -> None:
        """Fold in what the waiting events before the limit change in a table.

        With `reload` the table's topic was read from its beginning: a row that it does not have is gone.
        """
        if table.use.way is not Way.ROWS:
            raise BugError(f"{table.relation}: PostgreSQL keeps no {table.use.way.value}")
        if not reload and not fold.is_waiting(table, self.state, self.limit):
            return
        count = fold.find_changes(table, self.state, self.limit, reload=reload)
        if count:
            self._note(table.relation, fold.columns_of(table), table.row_key, count)
        try:
            fold.take_over(table, self.state, self.limit)
        except psycopg2.errors.ProgramLimitExceeded as exc:
            raise LongTextError(self.limit) from exc

    def _note(self, relation: str, columns: Sequence[str], by: Sequence[str], count: int) -> None:
        """Note that rows of a relation have changed, of as many keys or units, and whether that is most of it."""
        changed, rows = temporary("changed", relation), base(relation)
        nulls = bool(by) and bool(self.state.rows(f"SELECT 1 FROM {changed} c WHERE {sides.has_null('c', by)} LIMIT 1"))
        self.changed[relation] = Changed(tuple(columns), tuple(by), nulls)
        most = in_file.MOST_TOUCHED
        enough = math.ceil(count / most) if most else 0
        ((kept,),) = self.state.rows(f"SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT {enough}) r")
        if count > most * kept:  # of more rows than that it does not matter how many there are
            self.whole.add(relation)
        for what in ("changed", "was", "coming"):  # else few rows are taken for many, and tables read from end to end
            self.state.execute(f"ANALYZE {temporary(what, relation)}")

    def compute(self, view: View) -> None:
        """Compute a view: its rows are then those after the step, and its events are in the outbox.

        Raises ViewError, after which the transaction must be rolled back.
        """
        try:
            self._compute(view)
        except psycopg2.errors.ProgramLimitExceeded as exc:
            if self.state.has_indexes_of_texts:
                raise LongTextError(self.limit) from exc
            raise ViewError(view.name, f"view {view.name}: a row of it is wider than PostgreSQL keeps") from exc
        except psycopg2.Error as exc:
            if passes(exc):
                raise  # the server, not this view
            raise ViewError(view.name, f"view {view.name}: {_without_values(exc)}") from exc

    def _compute(self, view: View) -> None:
        stale = view.name in self.stale
        if stale or not is_one_unit(view):
            self._compute_nodes(view, stale=stale, again=False)
        elif view.name in self.search.failed or not self._is_computed(
            view, None, partial(self._compute_nodes, view, stale=False, again=is_held(self.state, view))
        ):  # its nodes before the last may be at different positions then: they are computed again with it
            hold(self.state, view, {WHOLE: WHY}, self.limit)
            self.left_out[view.name] = WHY, 0

    def _compute_nodes(self, view: View, *, stale: bool, again: bool) -> None:
        again &= any(map(self._is_touched, view.plan.nodes))
        for node in view.plan.nodes[:-1]:
            if stale or again or self._is_touched(node):
                self._compute_node(node, stale=stale or again)
        if stale or again or self._is_touched(view.last):
            self._compute_view(view, stale=stale)

    def _is_computed(self, view: View, units: Range | None, compute: Callable[[], None]) -> bool:
        """Compute what may fail for values of a few units; return whether it did not, else all of it is undone.

        An error ends nothing here, behind a savepoint: so the search goes on in this very transaction, and what it
        takes is a query for each half, not the step again. Raises what failed where the search takes too long.
        """
        was = self.changed.copy(), self.whole.copy(), self.computed.copy(), self._units.copy(), self._made.copy()
        try:
            with self.state.savepoint():
                compute()
        except psycopg2.DataError:
            self.changed, self.whole, self.computed, self._units, self._made = was
            if not self.search.is_worth_it(view.name, units):
                raise
            return False
        return True

    def _is_touched(self, node: Node) -> bool:
        return bool(node.due and self.clock_before_ms != self.clock_after_ms) or any(
            relation in self.changed for relation in node.reads
        )

    def _is_whole(self, node: Node, *, stale: bool) -> bool:
        return stale or not node.units or any(relation in self.whole for relation in node.reads)

    def _sql(self, statement: str, *, same: str = _DISTINCT, units: str | None = None) -> str:
        """Return a statement of a plan with what it reads."""

        def give(what: str, relation: str) -> str:
            if what in ("clock_before", "clock_after"):
                at_ms = self.clock_before_ms if what == "clock_before" else self.clock_after_ms
                return f"TIMESTAMP '{_EPOCH + dt.timedelta(milliseconds=at_ms or 0)}'"
            if what == SAME:
                return same
            if what == "units":
                return units or temporary("units", relation)
            return self._rows(what, relation)

        return filled(statement, give)

    def _rows(self, what: str, relation: str) -> str:
        """Return what has the rows of a relation on one side of the step."""
        rows, how = base(relation), self.changed.get(relation)
        if how is None:
            return f"(SELECT * FROM {rows} WHERE false)" if what in _CHANGED else rows
        was, coming = temporary("was", relation), temporary("coming", relation)
        listed = ", ".join(map(quoted, how.columns))
        match what:
            case "after":
                return rows
            case "before":
                kept = sides.not_among(listed, rows, temporary("changed", relation), how.by, nulls=how.nulls)
                return f"({kept} UNION ALL SELECT {listed} FROM {was})" if how.by else was
            case "both":
                return f"(SELECT {listed} FROM {rows} UNION ALL SELECT {listed} FROM {was})"
            case "before_changed":
                return was
            case "after_changed":
                return coming
            case "both_changed":
                return f"(SELECT {listed} FROM {was} UNION ALL SELECT {listed} FROM {coming})"
        return temporary(what, relation)

    def _make(self, what: str, relation: str, query: str) -> str:
        """Fill a table of the step, in place of one that there was; return its name."""
        at = temporary(what, relation)
        if at in self._made:
            self.state.execute(f"DROP TABLE {at}")
        self._made.add(at)
        self.state.execute(f"CREATE TEMP TABLE {at.removeprefix('pg_temp.')} ON COMMIT DROP AS {query}")
        return at

    def _find_units(self, node: Node, rows: str) -> bool | None:
        """Find the units that may differ; return whether by them, or whole as too many have a NULL; None: none is."""
        changed = [relation for relation in node.reads if relation in self.changed]
        asked = [each for each in node.touched if any(asks_for(each, _CHANGED, relation) for relation in changed)]
        if self.clock_before_ms != self.clock_after_ms:
            asked += node.due
        if not asked:
            return None
        names = ", ".join(quoted(name) for name in node.units)
        at = self._make("units", node.name, f"SELECT {names} FROM {rows} WITH NO DATA")
        union = " UNION ALL ".join(f"SELECT * FROM ({self._sql(each)}) s" for each in asked)
        self.state.execute(f"INSERT INTO {at} SELECT DISTINCT * FROM ({union}) AS u({names})")
        return self._known_units(node, at)

    def _known_units(self, node: Node, at: str) -> bool | None:
        with_null = sides.has_null("u", node.units)
        ((count, nulls),) = self.state.rows(f"SELECT count(*), count(*) FILTER (WHERE {with_null}) FROM {at} u")
        self._units[node.name] = nulls > 0
        self.state.execute(f"ANALYZE {at}")
        return None if not count else nulls <= MOST_NULLS

    def _require_checked(self, node: Node, *, whole: bool) -> None:
        in_file.require_checked(node, lambda each: bool(self.state.rows(f"{self._sql(each)} LIMIT 1")), whole=whole)

    def _query(self, node: Node, *, whole: bool) -> str:
        """Return the query for a node's rows: of all its units, or of those that were found."""
        if whole:
            return self._sql(node.whole)
        return " UNION ALL ".join(
            f"({self._sql(node.restricted, same=_DISTINCT if some else '=', units=part)})"
            for part, some in sides.parts(temporary("units", node.name), node.units, nulls=self._units[node.name])
        )

    def _old(self, node: Node, listed: str, *, whole: bool) -> str:
        """Return a query for the rows that a node had, of these units."""
        if whole:
            return f"SELECT {listed} FROM {base(node.name)} b"
        units = temporary("units", node.name)
        return sides.among(listed, base(node.name), units, node.units, nulls=self._units[node.name])

    def _index(self, node: Node) -> None:
        """Have what a node looks up by values found by an index."""
        for relation, column in node.lookups:
            self.state.index(relation, [column])

    def _compute_node(self, node: Node, *, stale: bool) -> None:
        if stale:
            self._index(node)
        columns = [*(name for name in node.units if name not in node.columns), *node.columns]
        whole, rows = self._is_whole(node, stale=stale), base(node.name)
        if not whole:
            by_units = self._find_units(node, rows)
            if by_units is None:
                return
            whole = not by_units
        self._require_checked(node, whole=whole)
        new = self._make("work", node.name, self._query(node, whole=whole))
        if stale:
            self._begin(node.name, self.state.of_step(new), f"AS SELECT * FROM {new} WITH NO DATA", node.units)
        listed = ", ".join(map(quoted, columns))
        old = self._make("old", node.name, self._old(node, listed, whole=whole))
        if by := node.units:
            found = ", ".join(map(quoted, by))
            fresh, gone = f"SELECT {listed} FROM {new}", f"SELECT {listed} FROM {old}"
            differing = f"({gone} EXCEPT ALL ({fresh})) UNION ALL ({fresh} EXCEPT ALL ({gone}))"
            self._make("changed", node.name, f"SELECT DISTINCT {found} FROM ({differing}) d")
        else:
            differing = f"(TABLE {old} EXCEPT ALL TABLE {new}) UNION ALL (TABLE {new} EXCEPT ALL TABLE {old})"
            self._make("changed", node.name, f"SELECT DISTINCT true AS _whole FROM ({differing}) d")
        self._replace(node.name, node.name, columns, by, stale=stale)

    def _replace(self, name: str, relation: str, columns: Sequence[str], by: Sequence[str], *, stale: bool) -> bool:
        """Replace rows of a relation that differ by those of ``work``; return whether there are any."""
        changed, rows = temporary("changed", relation), base(relation)
        ((count, nulls),) = self.state.rows(
            f"SELECT count(*), count(*) FILTER (WHERE {sides.has_null('c', by)}) FROM {changed} c"
        )
        listed = ", ".join(map(quoted, columns))
        for what, of in (("was", "old"), ("coming", "work")):
            self._make(what, relation, sides.among(listed, temporary(of, name), changed, by, nulls=nulls > 0))
        if not count:
            return False
        self._note(relation, columns, by, count)
        if stale:
            self.whole.add(relation)
        for statement in sides.deletes(rows, changed, by, nulls=nulls > 0):
            self.state.execute(statement)
        self.state.execute(f"INSERT INTO {rows} ({listed}) SELECT {listed} FROM {temporary('coming', relation)}")
        self.state.grow(relation, temporary("coming", relation), temporary("was", relation))
        if stale:
            self.state.execute(f"ANALYZE {rows}")
        return True

    def _begin(self, relation: str, columns: Mapping[str, str], made: str, by: Sequence[str]) -> None:
        """Have no rows of a relation, of these columns, before it is computed whole.

        Rows are deleted, not truncated, and the table stays where it can: an older snapshot still has them.
        """
        rows = base(relation)
        if self.state.columns(relation) == columns:
            self.state.execute(f"DELETE FROM {rows}")
        else:
            self.state.forget([relation])
            self.state.make(rows, made)
        self.state.execute("DELETE FROM sizes WHERE relation = ?", [relation])
        self.state.index(relation, by)

    def _compute_view(self, view: View, *, stale: bool) -> None:
        node, relation, state = view.last, view.relation, self.state
        whole, rows = self._is_whole(node, stale=stale), base(relation)
        if stale:
            self._index(node)
            columns = ", ".join(declared(name, kind) for name, kind in view.columns)
            types = {name: shown_type(kind) for name, kind in view.columns}
            self._begin(relation, types, f"({columns})", view.plan.key)
        if not whole:
            by_units = self._find_units(node, rows)
            if by_units is None:
                return
            whole = not by_units
        self.computed[view.name] = "whole" if whole else "units"
        self._require_checked(node, whole=whole)
        self._leave_out_bad(view, self._select_view(view, whole=whole), whole=whole)
        listed, keys = (", ".join(quoted(name) for name, _ in of) for of in (view.columns, view.key))
        bad = "true"
        if is_held(state, view):
            bad = f"{unit_name(view, 'b')} NOT IN (SELECT unit FROM quarantine WHERE view = {text(view.name)})"
        old = self._make("old", node.name, self._old_of(view, listed, whole=whole, where=bad))
        gone, fresh = f"SELECT {listed} FROM {old}", f"SELECT {listed} FROM {temporary('work', node.name)}"
        self._make(
            "changed", relation,
            f"SELECT DISTINCT {keys} FROM (({gone} EXCEPT ({fresh})) UNION ALL ({fresh} EXCEPT ({gone}))) d",
        )  # fmt: skip
        differs = self._replace(node.name, relation, [name for name, _ in view.columns], view.plan.key, stale=stale)
        if stale and relation not in self.changed:
            self.changed[relation] = Changed(tuple(name for name, _ in view.columns), view.plan.key, nulls=False)
            self.whole.add(relation)
        if differs or stale:
            publish(state, view, stale=stale, nulls=self.changed[relation].nulls)

    def _old_of(self, view: View, listed: str, *, whole: bool, where: str) -> str:
        """Return a query for the rows that a view had."""
        rows, node = base(view.relation), view.last
        if whole:
            return f"SELECT {listed} FROM {rows} b WHERE {where}"
        units = temporary("units", node.name)
        return sides.among(listed, rows, units, node.units, nulls=self._units[node.name], where=where)

    def _select(self, view: View, what: str, *, whole: bool) -> None:
        listed = ", ".join(f"{converted(f'q.{quoted(n)}', kind)} AS {quoted(n)}" for n, kind in view.columns)
        self._make(what, view.last.name, f"SELECT {listed} FROM ({self._query(view.last, whole=whole)}) q")

    def _select_view(self, view: View, *, whole: bool) -> dict[str, str]:
        """Select a view's rows; return the units, by name, that cannot be computed, and why."""
        node, search = view.last, self.search
        select = partial(self._select, view, "work", whole=whole)
        if not node.units:
            select()
            return {}
        if view.name not in search.failed and self._is_computed(view, None, select):
            return {}
        state, units, every = self.state, temporary("units", node.name), temporary("every", node.name)
        names = ", ".join(quoted(name) for name in node.units)
        found = f"SELECT DISTINCT {names} FROM ({self._sql(node.every)}) w" if whole else f"SELECT {names} FROM {units}"
        held = f"{unit_name(view, 'u')} IN (SELECT unit FROM quarantine WHERE view = {text(view.name)})"
        self._make(
            "every", node.name,
            f"SELECT row_number() OVER (ORDER BY {held} DESC, {names}) - 1 AS _number, {held} AS _held, * "
            f"FROM ({found}) u",
        )  # fmt: skip
        ((count, known),) = state.rows(f"SELECT count(*), count(*) FILTER (WHERE _held) FROM {every}")
        self._select_some(view, "work", (0, 0))  # none: what fails then is not for its units
        done = set[Range]()
        while True:
            good, bad = search.divided(view.name, count, known)
            one = next((each for each in good if each not in done), None)
            if one is None:
                break
            if self._is_computed(view, one, partial(self._select_some, view, "part", one)):
                state.execute(f"INSERT INTO {temporary('work', node.name)} TABLE {temporary('part', node.name)}")
                done.add(one)
        self._known_units(node, self._make("units", node.name, f"SELECT {names} FROM {every}"))
        if not bad:
            return {}
        self.left_out[view.name] = WHY, len(bad)
        failed = state.rows(
            f"SELECT {unit_name(view, 'u')} FROM {every} u WHERE _number IN ({', '.join(map(str, bad))})"
        )
        return {unit: WHY for (unit,) in failed}

    def _select_some(self, view: View, what: str, units: Range) -> None:
        """Select the rows of the units that have these numbers."""
        node, (first, end) = view.last, units
        names = ", ".join(quoted(name) for name in node.units)
        numbers = f"_number >= {first} AND _number < {end}"
        at = self._make("units", node.name, f"SELECT {names} FROM {temporary('every', node.name)} WHERE {numbers}")
        self._known_units(node, at)
        self._select(view, what, whole=False)

    def _leave_out_bad(self, view: View, failed: Mapping[str, str], *, whole: bool) -> None:
        """Put units into quarantine of which a key is null or not unique, or that failed; leave them as they were."""
        state, node, new = self.state, view.last, temporary("work", view.last.name)
        unit = unit_name(view, "n")
        nulls = "false" if view.plan.null_keys else sides.has_null("n", view.plan.key)
        keys = ", ".join(f"n.{quoted(name)}" for name, _ in view.key)
        found = state.rows(
            f"SELECT DISTINCT {unit} AS unit, 'a column of the key is null' FROM {new} n WHERE {nulls} UNION ALL "
            f"SELECT min({unit}), 'the key is not unique' FROM {new} n GROUP BY {keys} HAVING count(*) > 1"
        )
        here = "" if whole else f" AND unit IN (SELECT {unit_name(view, 'u')} FROM {temporary('units', node.name)} u)"
        held = {**dict(found), **failed}
        if is_held(state, view):
            state.execute(f"DELETE FROM quarantine WHERE view = {text(view.name)}{here}")
        if held:
            hold(state, view, held, self.limit, of=" AND false")
            bad = f"SELECT unit FROM quarantine WHERE view = {text(view.name)}"
            state.execute(f"DELETE FROM {new} n WHERE {unit} IN ({bad})")

    def apply(self, tables: Sequence[SourceTable], views: Sequence[View]) -> None:
        """Do nothing more: rows are replaced as they change, and all of it counts with the transaction."""


def _without_values(exc: psycopg2.Error) -> str:
    """Say what the engine refused without the values that its messages hold."""
    refused = f"the engine does not take its statement ({type(exc).__name__})"
    return WHY if isinstance(exc, psycopg2.DataError) else refused
