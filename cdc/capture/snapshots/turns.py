"""In which order tables that wait are read: by their size, as far as the source tells it.

A small table does not stand behind a large one that has not begun. One that was read since the others began to wait
comes behind them, however small it is, so that a table is passed by each other one once and does not wait for ever.
A table that has begun comes first, and the order is committed with the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Protocol, runtime_checkable

from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.model.change import Table


@runtime_checkable
class Sizing(Protocol):
    """A part of a `Snapshotter` that can tell how large tables are, without reading them."""

    def sizes(self, tables: Sequence[Table]) -> Mapping[str, int]:
        """Return about how many rows each table has, by name. Called on the thread of `window`."""


def sizes(reader: Sizing, tables: Sequence[Table]) -> Mapping[str, int]:
    """Ask for the size of each table; one that the source does not know counts as empty."""
    found = reader.sizes(tables)
    return {table.qualified: found.get(table.qualified, 0) for table in tables}


def without_size(readings: Mapping[str, IncrementalProgress]) -> list[str]:
    """Return the tables whose turn their size is to decide, and whose size is not known."""
    waiting = [name for name, of in readings.items() if not of.begun]
    return [name for name in waiting if readings[name].estimate is None] if len(readings) > 1 else []


def in_turn(
    readings: Mapping[str, IncrementalProgress], read_before: AbstractSet[str]
) -> dict[str, IncrementalProgress]:
    """Order tables, of which those of `read_before` were read while others waited."""

    def turn(name: str) -> tuple[bool, bool, int]:
        return not readings[name].begun, name in read_before, readings[name].estimate or 0

    return {name: readings[name] for name in sorted(readings, key=turn)}
