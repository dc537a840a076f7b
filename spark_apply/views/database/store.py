"""Keeps a view job's captured tables in PostgreSQL: what differs from `spark_apply.views.running.store`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar, cast

from cdc.model.errors import CdcError, RetryableError
from spark_apply.model.store import Applied, Batch, CopyError, Visibility
from spark_apply.views.database import incoming
from spark_apply.views.database.names import waiting
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.step import DatabaseStep, LongTextError
from spark_apply.views.planning.view import View
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.running.store import ViewStore


@dataclass(slots=True)
class DatabaseStore(ViewStore):
    """A `spark_apply.views.running.store.ViewStore` whose rows and views are in one database."""

    engine: ClassVar[str] = "postgres"

    def _take_in(self, batch: Batch) -> None:
        """Add events to those that wait; one that PostgreSQL cannot keep is refused, and blocks its own key alone."""
        name, state = batch.table.qualified, cast("DatabaseState", self.state)
        tables = [waiting(use.relation) for use in self._running.uses_of(name)]
        refused = incoming.add(state, batch, self._not_again(batch), tables)
        if refused:
            try:
                batch.refuse(refused)
            except CdcError as exc:  # too many of them: the other tables go on
                raise CopyError({name: exc}) from exc
            self.output.tell(
                f"warning: {name}: events in quarantine that PostgreSQL cannot keep: {len(refused):,}; their rows stay "
                f"as they were until they are corrected at the source. {refused[0].reason}"
            )
        self._marks.take_in(batch.table, batch.position)

    def fold(self, batches: Collection[Batch], visibility: Mapping[str, Visibility]) -> dict[str, Applied]:
        try:
            return super(DatabaseStore, self).fold(batches, visibility)
        except RetryableError as exc:  # if it was committed, its position says so, and nothing is done twice
            self.output.tell(f"warning: the store was lost, trying once more: {exc.message}")
            return super(DatabaseStore, self).fold(batches, visibility)

    def _step(self, limit: str, before_ms: int | None, clock_ms: int | None) -> None:
        try:
            super(DatabaseStore, self)._step(limit, before_ms, clock_ms)
        except LongTextError:
            cast("DatabaseState", self.state).without_indexes_of_texts()
            super(DatabaseStore, self)._step(limit, before_ms, clock_ms)

    def _compute(self, step: StepOfViews, views: list[View]) -> None:
        state = cast("DatabaseState", self.state)
        state.identify()  # somebody may publish the tables while the job runs
        state.require_as_left()
        super(DatabaseStore, self)._compute(step, views)

    def _new_step(self, limit: str, before_ms: int | None, clock_ms: int | None, stale: set[str]) -> StepOfViews:
        state = cast("DatabaseState", self.state)
        return DatabaseStep(state, limit, before_ms, clock_ms, stale, search=self._search)
