"""The rules by which a store maintains its copies: small files compacted, what no reader needs removed.

stores:
  warehouse: {type: iceberg, path: ./warehouse, options: {upkeep: {files: 100, keep_hours: 48}}}
  lake:      {type: delta, path: ./lake, options: {upkeep: off}}
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Protocol, cast, runtime_checkable

from cdc.config.config import StoreConfig
from cdc.model.errors import ConfigError
from spark_apply.model.target_table import TargetTable

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
