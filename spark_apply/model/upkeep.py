"""Defines the rules of maintenance: when small files are compacted, and when unneeded files are removed.

stores:
  warehouse: {type: iceberg, path: ./warehouse, options: {upkeep: {files: 100, keep_hours: 48}}}
  lake:      {type: delta, path: ./lake, options: {upkeep: off}}
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Protocol, cast, runtime_checkable

from cdc.config.apply_config import StoreConfig
from cdc.model.errors import ConfigError
from spark_apply.model.target_table import TargetTable

SMALL_BYTES = 32 << 20
"""A file below this size counts as small."""
HOUR_MS = 3_600_000
_CLEAN_EVERY_S = 86_400
_NEVER = float("-inf")
"""Before every reading of any clock."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """A store's rules; each table is checked every `every_minutes`, and at the end of a run with ``--once``."""

    every_minutes: int = 60
    files: int = 50
    """Compact when there are so many small files and files with deleted rows."""
    keep_hours: int = 24
    """Keep earlier states for so long: for running readers and for time travel."""
    orphan_hours: int = 72
    """Remove a file that no state names when it is older: a killed writer left it. A write must be shorter."""


@dataclass(frozen=True, slots=True)
class CleanTimes:
    """When files that nothing needs were last removed, by table: once a day."""

    at: dict[str, float] = field(default_factory=dict)

    def begin(self, table: TargetTable) -> None:
        """Count from now on, if the table is new here."""
        self.at.setdefault(table.qualified, time.monotonic())

    def is_due(self, table: TargetTable) -> bool:
        """Whether the table's turn has come."""
        return time.monotonic() - self.at.get(table.qualified, _NEVER) > _CLEAN_EVERY_S

    def done(self, table: TargetTable) -> None:
        """Note that it is done."""
        self.at[table.qualified] = time.monotonic()


@runtime_checkable
class Maintained(Protocol):
    """A store that maintains its copies."""

    upkeep: Upkeep | None
    """None where it is switched off."""

    def maintain(self, table: TargetTable) -> None:
        """Compact the live copy if needed; remove files that neither it nor the previous nor a new copy needs.

        Called between batches. May raise a conflict with another writer: the job tries again later.
        """


def upkeep_of(config: StoreConfig, name: str) -> Upkeep | None:
    """Read the rules from a store's options. Raises ConfigError."""
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
