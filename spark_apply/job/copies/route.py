"""Says which stores follow a table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_apply.model.store import Store
from spark_apply.model.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class Route:
    """A table and the stores that follow it."""

    table: TargetTable
    stores: Mapping[str, Store]
