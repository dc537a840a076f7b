"""Catches up copies that a rebuild or a rollback has put in the place of others.

A rebuild ends at some offsets; the job may have written later events into the copy that is replaced. So a copy is
swapped in together with a `Due`: the events from those offsets on. The job looks for one when it starts, every two
seconds, and when a write fails; it then opens the new copy and folds the events in itself.

**Why that converges, deletes included.** The guard by position forgets deleted rows, so an old event that is written
after a delete brings the row back. But after the swap only the job writes, in the order of the topic, which has the
events of a key in the order of their positions: whatever it reads again, now or from its own checkpoint later, ends
with the key's newest event. Two writers would not converge: one could write an old event after the other has written
the delete, and never read the delete itself. This is why a rebuild does not write after the swap.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.batch.one_topic import fold
from spark_apply.job.copies.route import Route
from spark_apply.job.topics.compacted_deletes import UnreadDeletes, require_deletes_read
from spark_apply.job.topics.retention import require_deletes
from spark_apply.model.store import Offsets

LOOK_EVERY_S = 2.0


@dataclass(slots=True)
class SwapWatch:
    """Points a job's routes to the live copies after a swap."""

    spark: SparkSession
    source: ApplySource
    applier: Applier
    replaced: Callable[[str, str, Offsets], None]
    """Called with topic, store and end offsets of a copy that was swapped in and has caught up."""
    _looked_at: float = field(default_factory=time.monotonic)

    def look(self, *, now: bool = False) -> bool:
        """Open and catch up copies that were swapped in, if it is time to look; return whether there were any."""
        if not now and time.monotonic() - self._looked_at < LOOK_EVERY_S:
            return False
        found = [topic for topic in list(self.applier.routes) if self._catch_up(topic)]
        self._looked_at = time.monotonic()
        return bool(found)

    def _catch_up(self, topic: str) -> bool:
        found: list[bool] = []
        for name in list(self.applier.routes[topic].stores):
            with self.applier.contained(topic, name):
                found.append(self._caught_up(topic, name))
        return any(found)

    def _caught_up(self, topic: str, name: str) -> bool:
        """Catch up one copy, if that is due."""
        routes = self.applier.routes
        owed = routes[topic].stores[name].due(routes[topic].table)
        if owed is None:
            return False
        route = routes[topic] = self.applier.evolve(routes[topic])
        self.applier.quarantine.refresh()  # what was resolved for the copy that was swapped in, and what was put
        require_deletes(self.source, [(route.table, {name: route.stores[name]})])
        require_deletes_read(self.spark, self.source, route.table, name, route.stores[name])
        only = Route(route.table, {name: route.stores[name]})
        unread = UnreadDeletes(self.spark, self.source, lambda _topic: owed.begin)
        applier = Applier({topic: only}, self.applier.evolve, self.applier.quarantine, unread=unread)
        end = fold(self.spark, self.source, applier, topic, owed.begin)
        self.replaced(topic, name, end)
        route.stores[name].caught_up(route.table, owed)
        return True
