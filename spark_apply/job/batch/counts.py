"""Counts what was done for a table in a store."""

from __future__ import annotations

from dataclasses import dataclass

from spark_apply.model.store import Applied, Batch


@dataclass(slots=True)
class TableCount:
    """What was done for one table in one store since the job started; None if the store does not count."""

    events: int = 0
    keys: int = 0
    """Rows given to the store: the newest event of each key, summed over batches."""
    written: int | None = 0
    deleted: int | None = 0
    stale: int | None = 0
    duplicate: int | None = 0
    quarantined: int = 0
    """Events added to the quarantine; those already in it are not counted again."""
    position: str | None = None

    def add(self, events: int, batch: Batch, applied: Applied) -> None:
        self.events += events
        self.keys += batch.keys
        self.written = total(self.written, applied.written)
        self.deleted = total(self.deleted, applied.deleted)
        self.stale = total(self.stale, applied.stale)
        self.duplicate = total(self.duplicate, applied.duplicate)
        self.position = max(self.position or "", batch.position)


def total(so_far: int | None, more: int | None) -> int | None:
    """Add what may not be known."""
    return None if so_far is None or more is None else so_far + more
