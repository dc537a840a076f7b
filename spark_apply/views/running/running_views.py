"""Says which views of a job are computed, which are stopped and why, and which are to be computed whole."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from cdc.config.views import VIEW_SCHEMA
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.model.uses import TableUse, Way
from spark_apply.views.planning.view import View

FOR_GOOD = math.inf
"""How long a view waits that only a new start may put right."""
_FIRST_WAIT_S, _LONGEST_WAIT_S = 10.0, 300.0


@dataclass(slots=True)
class _Stopped:
    """A view that could not be computed."""

    error: ViewError
    wait_s: float = _FIRST_WAIT_S
    due_at: float = 0.0
    left_out: bool = False
    """Whether a table of the view cannot go on."""
    changed: bool = False
    """Whether a table has not what the view uses."""

    def try_again(self) -> None:
        self.wait_s, self.due_at = _FIRST_WAIT_S, time.monotonic()


@dataclass(slots=True)
class RunningViews:
    """The views of a job, in the order of what they read."""

    views: tuple[View, ...]
    uses: Sequence[TableUse]
    """How the views read captured tables, and streams of others."""
    tell: Callable[[str], None]
    left_out: set[str] = field(default_factory=set)
    """Tables that cannot go on: what reads them is stopped, and nothing waits for them."""
    reading: set[str] = field(default_factory=set)
    """Tables that are being read again: a view that is computed whole waits, as new columns may have no values yet."""
    stale: set[str] = field(default_factory=set)
    """Views that are to be computed whole."""
    _put_off: set[str] = field(default_factory=set)
    """Tables that have more or wider columns, which no view takes as long as another table is left out."""
    _stopped: dict[str, _Stopped] = field(default_factory=dict)
    """By view, those that are stopped."""

    def uses_of(self, table: str) -> list[TableUse]:
        """Return the ways in which a table is read."""
        return [use for use in self.uses if use.table == table]

    def over(self, tables: Collection[str]) -> list[View]:
        """Return the views whose captured tables are all among these."""
        others = {use.relation for use in self.uses if use.way is not Way.EVENTS and use.table not in tables}
        return [view for view in self.views if not others & set(view.plan.reads)]

    @property
    def reasons(self) -> dict[str, str]:
        """Why views are stopped, by view: those that failed, and those that read them."""
        found: dict[str, str] = {}
        for view in self.views:  # in the order of what they read
            stopped = self._stopped.get(view.name)
            others = [name for name in view.plan.reads if name.removeprefix(f"{VIEW_SCHEMA}.") in found]
            if stopped is not None:
                found[view.name] = stopped.error.message
            elif others:
                found[view.name] = f"view {view.name}: it reads {others[0]}, which is stopped"
        return found

    def is_due(self, clock_ms: int | None) -> bool:
        """Whether a view is computed now that was not at the last step: a new one, or one that is tried again."""
        return any(view.name in self.stale for view in self.going_on(clock_ms))

    def going_on(self, clock_ms: int | None) -> list[View]:
        """Return the views that are computed now, in the order of what they read."""
        now, left_out, found = time.monotonic(), set[str](), list[View]()
        for view in self.views:
            stopped = self._stopped.get(view.name)
            waits = stopped is not None and stopped.due_at > now
            if (
                waits
                or any(name in left_out for name in view.plan.reads)
                or (view.plan.uses_clock and clock_ms is None)
                or (view.name in self.stale and not self._may_begin(view))
            ):
                left_out.add(view.relation)
                self.stale.add(view.name)
            else:
                found.append(view)
        return found

    def note_reading(self, table: str, *, reading: bool) -> None:
        """Note whether a table is being read again."""
        (self.reading.add if reading else self.reading.discard)(table)

    def _may_begin(self, view: View) -> bool:
        return not any(use.table in self.reading and use.relation in view.plan.reads for use in self.uses)

    def stop(self, error: ViewError, wait_s: float | None = None, *, told: bool = True) -> None:
        """Stop a view for so long; without `wait_s` for twice as long as before."""
        before = self._stopped.get(error.view)
        if wait_s is None:
            wait_s = min(2 * before.wait_s, _LONGEST_WAIT_S) if before is not None else _FIRST_WAIT_S
        self._stopped[error.view] = _Stopped(error, wait_s, time.monotonic() + wait_s)
        self.stale.add(error.view)
        if told and (before is None or before.error.message != error.message):
            self.tell(f"warning: {error.message}; it is stopped, the others go on")

    def computed(self, views: Sequence[View]) -> None:
        """Note that views are computed."""
        for view in views:
            self.stale.discard(view.name)
            if self._stopped.pop(view.name, None) is not None:
                self.tell(f"view {view.name} goes on")

    def try_soon(self) -> None:
        """Have all stopped views tried again with the next step, but those that are stopped for good."""
        for stopped in self._stopped.values():
            stopped.due_at = min(stopped.due_at, time.monotonic()) if stopped.wait_s < FOR_GOOD else FOR_GOOD

    def leave_out(self, table: str, why: str) -> None:
        """Stop what reads a table that cannot go on; the other views go on."""
        self.left_out.add(table)
        relations = {use.relation for use in self.uses_of(table)}
        for view in self.views:
            stopped = self._stopped.get(view.name)
            if relations & set(view.plan.reads) and (stopped is None or stopped.wait_s < FOR_GOOD):
                self.stop(ViewError(view.name, f"view {view.name}: table {table} is left out: {why}"), FOR_GOOD)
                self._stopped[view.name].left_out = True

    def compare(self, table: str, cannot_read: Mapping[str, str | None], *, told: bool = True) -> None:
        """Stop views that use what a table has no more, for good, and have them tried again once it is there again.

        `cannot_read` says by view why it cannot be computed; that is not `told` where views are planned again at once.
        A view that it does not have reads a table that is not there, and is stopped for that already. Tables may have
        changed since the views were planned, even before the job has opened them.
        """
        for view in self.views:
            stopped = self._stopped.get(view.name)
            if view.name not in cannot_read or (stopped is not None and not stopped.changed):
                continue
            why = cannot_read[view.name]
            if why is not None and stopped is None:
                error = ViewError(view.name, f"view {view.name}: table {table} has changed: {why}")
                self.stop(error, FOR_GOOD, told=told)
                self._stopped[view.name].changed = True
            elif why is None and stopped is not None and self._left() & set(view.plan.reads):
                stopped.changed, stopped.left_out = False, True  # it is tried when the table goes on, with its rows
            elif why is None and stopped is not None:
                stopped.try_again()

    def is_to_be_planned(self, table: str) -> bool:
        """Whether views are planned again since a table has more or wider columns, as they are if one of them goes on.

        Where none does that reads it, this is put off until one does.
        """
        self._put_off.add(table)
        return self._plans()

    def _plans(self) -> bool:
        left, due = self._left(), set[str]()
        for table in sorted(self._put_off):
            relations = {use.relation for use in self.uses_of(table)}
            if any(relations & set(view.plan.reads) and not left & set(view.plan.reads) for view in self.views):
                self.tell(f"table {table} has more or wider columns: the views are planned again")
                due.add(table)
        self._put_off -= due
        return bool(due)

    def take_back(self, table: str) -> bool:
        """Have views tried again that were stopped for a table which goes on; return whether they are planned again."""
        if table not in self.left_out:
            return False
        self.left_out.remove(table)
        relations = {use.relation for use in self.uses_of(table)}
        left = self._left()
        for view in self.views:
            reads, stopped = set(view.plan.reads), self._stopped.get(view.name)
            if stopped is not None and stopped.left_out and relations & reads and not left & reads:
                stopped.try_again()
        return self._plans()

    def _left(self) -> set[str]:
        """Return the relations of tables that are left out."""
        return {use.relation for use in self.uses if use.table in self.left_out}

    def readers_of(self, views: set[str]) -> set[str]:
        """Return views with those that read them, over others too."""
        found = set(views)
        for view in self.views:  # in the order of what they read
            if any(name.removeprefix(f"{VIEW_SCHEMA}.") in found for name in view.plan.reads):
                found.add(view.name)
        return found
