"""Upkeep of copies that many small writes wear: by what rules, and when a job sees to it. A store does it itself.

stores:
  warehouse: {type: iceberg, path: ./warehouse, options: {upkeep: {files: 100, keep_hours: 48}}}
  lake:      {type: delta, path: ./lake, options: {upkeep: off}}
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol, cast, runtime_checkable

from cdc.config import StoreConfig
from cdc.errors import ConfigError
from spark_apply.batches import Route
from spark_apply.failures import spark_failure
from spark_apply.tables import TargetTable

SMALL_BYTES = 32 << 20
"""A file below this is one that a small batch wrote."""
CLEAN_EVERY_S = 86_400
HOUR_MS = 3_600_000
NEVER = float("-inf")
"""On any clock."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A store's rules; each table is looked at every `every_minutes`, and when a run with ``--once`` ends."""

    every_minutes: int = 60
    files: int = 50
    """So many small files and files of deleted rows are worth a compaction."""
    keep_hours: int = 24
    """Who began to read an earlier state has so long to end, and may ask for states that old."""
    orphan_hours: int = 72
    """A file that no state names is what a killed writer left if it is older; a write must not take that long."""


@runtime_checkable
class Tended(Protocol):
    """A store that has upkeep."""

    upkeep: Upkeep | None
    """None where it is switched off."""

    def tend(self, table: TargetTable) -> None:
        """Compact the live copy if it is worn; remove what neither it nor a copy beside or before it needs.

        Between batches. A conflict with another writer may be raised: it is tried again later.
        """


def upkeep_of(config: StoreConfig, name: str) -> Upkeep | None:
    """The rules in a store's options. Raises ConfigError."""
    found = config.options.get("upkeep", {})
    where = f"stores.{name}.options.upkeep"
    if found is False or found == "off":
        return None
    if not isinstance(found, Mapping):
        raise ConfigError(f"{where}: keys and values are needed, or off", hint="upkeep: {keep_hours: 24}")
    allowed = [each.name for each in fields(Upkeep)]
    rules: dict[str, int] = {}
    for key, value in cast("Mapping[object, object]", found).items():
        if key not in allowed:
            raise ConfigError(f"{where}.{key}: unknown key", hint=f"allowed here: {', '.join(allowed)}")
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{where}.{key}: a whole number is needed", hint=f"{key}: {getattr(Upkeep(), str(key))}")
        rules[str(key)] = value
    return Upkeep(**rules)


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
