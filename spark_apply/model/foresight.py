"""Defines the dry run of `Store.open`: a store says what opening a copy would do, and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spark_apply.model.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What `Store.open` would do."""

    identity: str | None
    """The identity it would return; None: it would create a copy, with a new identity."""
    changes: tuple[str, ...] = ()
    """The steps by which it would alter the existing copy."""


@runtime_checkable
class Foresees(Protocol):
    """A store that supports the dry run; of other stores a plan says that it is unknown."""

    def foresee(self, table: TargetTable) -> Foreseen:
        """Return what `open` would do, without changing anything. Raises what `Store.open` would raise."""
