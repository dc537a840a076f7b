"""What opening a copy would do, told by its store without doing it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from spark_apply.model.target_table import TargetTable


@dataclass(frozen=True, slots=True)
class Foreseen:
    """What `Store.open` would do."""

    identity: str | None
    """The one it would return; None: a new one, of a copy that it would make."""
    changes: tuple[str, ...] = ()
    """What it would alter in the copy that is there, a step each."""


@runtime_checkable
class Foresees(Protocol):
    """A store that can tell; one that cannot is opened by the start alone."""

    def foresee(self, table: TargetTable) -> Foreseen:
        """Touch nothing. Raises what `Store.open` would raise."""
