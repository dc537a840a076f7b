"""Keeps a view job's captured tables where executors reach them.

What differs from `spark_apply.views.running.store`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, cast

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException

from cdc.model.errors import OperatorError
from spark_apply.model.store import Batch
from spark_apply.views.cluster.containment import LONGEST_S
from spark_apply.views.cluster.kept_rows import MOST_OVER, Kept
from spark_apply.views.cluster.lake import ROWS, Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.step import ClusterStep
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.waiting_events import wait
from spark_apply.views.embedded.containment import Search
from spark_apply.views.model.kept_columns import kept_columns
from spark_apply.views.planning.view import View
from spark_apply.views.running.step import StepOfViews
from spark_apply.views.running.store import ViewStore


@dataclass(slots=True, kw_only=True)
class ClusterStore(ViewStore):
    """A `spark_apply.views.running.store.ViewStore` whose views are computed by Spark's executors."""

    lake: Lake
    engine: ClassVar[str] = "spark"
    kept: dict[str, Kept] = field(default_factory=dict)
    """Relations as they are at the position of the state."""
    _after: dict[str, Kept] = field(default_factory=dict)
    """Those that the last step has read or changed, as they are after it."""

    @property
    def _file(self) -> ClusterState:
        return cast("ClusterState", self.state)

    def _take_in(self, batch: Batch) -> None:
        if batch.keys <= MOST_OVER:
            super(ClusterStore, self)._take_in(batch)
            return
        columns, rows = kept_columns(batch.table), self._not_again(batch)
        for use in self._running.uses_of(batch.table.qualified):
            wait(self.lake, self._file, use.relation, rows, columns)
        self._marks.take_in(batch.table, batch.position)

    def _new_step(self, limit: str, before_ms: int | None, clock_ms: int | None, stale: set[str]) -> StepOfViews:
        on = Running(self.lake.spark, self.lake, self._file, limit)
        return ClusterStep(on, before_ms, clock_ms, stale, self.kept, search=self._search)

    def _new_search(self) -> Search:
        return Search(longest_s=LONGEST_S)

    def _compute(self, step: StepOfViews, views: list[View]) -> None:
        own = cast("ClusterStep", step)
        try:
            super(ClusterStore, self)._compute(step, views)
        except (PySparkException, Py4JJavaError) as exc:
            if self.lake.has(self._file.named()):
                raise
            msg = f"state {self.folder}: its tables in {self.lake.place} cannot be read any more"
            raise OperatorError(msg, hint="start it again: they are made again from the topics") from exc
        finally:
            own.end()
        self._after = own.relations

    def _step(self, limit: str, before_ms: int | None, clock_ms: int | None) -> None:
        super(ClusterStore, self)._step(limit, before_ms, clock_ms)
        written = [name for name, kept in self._after.items() if self.kept.get(name, kept).base is not kept.base]
        self.kept |= self._after
        for name in written:
            self.lake.forget(ROWS, name)

    def _count(self, view: View) -> int:
        found = self.state.rows("SELECT number FROM lake.kept WHERE name = ?", [view.relation])
        return int(found[0][0]) if found else 0
