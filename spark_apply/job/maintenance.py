"""When a job has its stores maintain their copies: between batches, by the rules of `spark_apply.model.upkeep`."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from spark_apply.job.microbatch import Route
from spark_apply.model.upkeep import Tended
from spark_apply.spark.failures import spark_failure


@dataclass(slots=True)
class Caretaker:
    """Has a job's stores tended when it is time. Not while a batch is being applied."""

    routes: Mapping[str, Route]
    """By topic, as the applier keeps them."""
    tell: Callable[[str], None]
    _next: dict[tuple[str, str], float] = field(default_factory=dict)
    """By topic and store, on the monotonic clock."""

    def look(self, *, now: bool = False) -> None:
        """Tend what it is time for, or all; what fails is told, and tried again when it is time again."""
        for topic, route in list(self.routes.items()):
            for name, store in route.stores.items():
                if not isinstance(store, Tended) or store.upkeep is None:
                    continue
                at, every_s = time.monotonic(), store.upkeep.every_minutes * 60
                if not now and at < self._next.setdefault((topic, name), at + every_s):
                    continue
                try:
                    store.tend(route.table)
                except Exception as exc:  # noqa: BLE001 - a copy that is not tended is as right as one that is
                    said = spark_failure(exc) or type(exc).__name__
                    self.tell(f"{name}: upkeep of {route.table.qualified} is left for later: {said}")
                self._next[topic, name] = time.monotonic() + every_s
