"""Knows by whose progress the marks of copies are, so that two jobs which write one copy cannot hide each other's rows.

The guard by position forgets deleted rows. So a job that reads older events than another one has applied, as from the
beginning of a topic, brings rows back until it comes to their deletes. If it is killed before, the other one never
reads these deletes again: its next mark would say that the copy is complete.

So each mark says by which run it was written. Before a run writes rows, its own mark is there, with the ends from which
it goes on. A run that finds another one's mark in the place of its own writes neither rows nor a mark: its copy is set
aside, and goes on from that mark, as that of a copy that was put back does. Whichever of the two is killed, and when,
the mark that is there lies before all that this one may have written.

One case is left: rows that were on their way while the other run took over and went on. The run that finds this out
with its mark takes the mark back to what both have.

A copy is opened for more reasons than that: a live one with each new version of its table, and one that is set aside
because its store was away. The run goes on from what it has itself then. So it takes another run's mark for its own
only where it was told that the mark is another's, and has written no rows behind its own mark.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass, field, replace

from spark_apply.model.altered import AlteredError
from spark_apply.model.completeness import NEW, Mark


@dataclass(slots=True)
class Ownership:
    """What one run knows of the marks of its copies, each by ``schema.table``."""

    _run: str = field(default_factory=lambda: uuid.uuid4().hex)
    _known: dict[str, Mark] = field(default_factory=dict)
    """The mark that a copy was opened with, or given by this run."""
    _unmarked: set[str] = field(default_factory=set)
    """Copies into which rows were written since."""
    _told: set[str] = field(default_factory=set)
    """Copies that are another's, or in another state, as this run was told: it opens them again before it writes."""

    def opened(self, table: str, there: Mark | None) -> None:
        """Note the mark that a copy is opened with: this run goes on from it, if it may."""
        made = there is None or (there == NEW and not there.by)
        if made or (table in self._told and table not in self._unmarked) or not self._is_of_another(table, there):
            self._known[table] = there or NEW
            self._told.discard(table)

    def altered(self, table: str) -> None:
        """Note that a copy is in another state than this run has left it in, as its error says."""
        self._told.add(table)

    def writes(self, table: str, there: Mark | None, copy: str) -> None:
        """Note that rows are about to be written. Raises AlteredError if the mark is another run's by now."""
        self._require_own(table, there, copy)
        self._unmarked.add(table)

    def wanted(self, table: str, there: Mark | None, mark: Mark) -> Mark | None:
        """Return the mark to write in the place of the one that is there; None: it stays. `wrote` comes behind it."""
        if there is None or not self._is_of_another(table, there):
            return None if table in self._told else replace(mark, by=self._run)
        had = self._known[table].ends
        both = {number: min(end, had.get(number, 0)) for number, end in there.ends.items()}
        back = replace(there, ends=both, complete=None, by=self._run)
        return back if table in self._unmarked and both != there.ends else None

    def wrote(self, table: str, there: Mark | None, mark: Mark | None, copy: str) -> None:
        """Note that `wanted` was written. Raises AlteredError if the mark that was there is another run's."""
        self._unmarked.discard(table)
        self._require_own(table, there, copy)
        self._known[table] = mark or NEW

    def _require_own(self, table: str, there: Mark | None, copy: str) -> None:
        if table in self._told or self._is_of_another(table, there):
            self._told.add(table)
            raise taken_over(copy)

    def _is_of_another(self, table: str, there: Mark | None) -> bool:
        """A mark of this run is its own also where it was written, and nobody answered that it was."""
        known = self._known.get(table)
        return known is not None and there is not None and there.by not in {known.by, self._run}


def taken_over(copy: str) -> AlteredError:
    """Return the error of a copy whose mark another job, or another hand, has written."""
    msg = f"{copy} is written by another job too, or was restored, while the job runs: its mark is not this job’s"
    return AlteredError(
        msg, hint="let one job write it, and stop the other one; what may be older by now is read again by itself"
    )
