"""Schedules the maintenance of copies: between batches, by the rules of `spark_apply.model.upkeep`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cdc.model.errors import CdcError
from spark_apply.job.copies.route import Route
from spark_apply.model.upkeep import Maintained
from spark_apply.spark.failures import spark_failure


@dataclass(slots=True)
class MaintenanceSchedule:
    """Runs maintenance of a job's stores when it is due. Not to be called while a batch is applied."""

    routes: Mapping[str, Route]
    """The applier's own mapping, by topic."""
    tell: Callable[[str], None]
    _next: dict[tuple[str, str], float] = field(default_factory=dict)
    """The next time by topic and store, on the monotonic clock."""

    def look(self, *, now: bool = False) -> None:
        """Maintain the copies that are due, or all (`now`); a failure is reported and tried again when next due."""
        for topic, route in list(self.routes.items()):
            for name, store in route.stores.items():
                if not isinstance(store, Maintained) or store.upkeep is None:
                    continue
                at, every_s = time.monotonic(), store.upkeep.every_minutes * 60
                if not now and at < self._next.setdefault((topic, name), at + every_s):
                    continue
                try:
                    store.maintain(route.table)
                except Exception as exc:  # noqa: BLE001 - a copy without maintenance is as correct as one with it
                    said = exc.message if isinstance(exc, CdcError) else spark_failure(exc) or type(exc).__name__
                    self.tell(f"{name}: upkeep of {route.table.qualified} is left for later: {said}")
                self._next[topic, name] = time.monotonic() + every_s
