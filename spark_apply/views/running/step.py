"""Says what a step is, whichever engine takes it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.planning.view import View


class StepOfViews(Protocol):
    """A step of an engine: rows of tables first, then view by view, in the state's transaction."""

    @property
    def limit(self) -> str:
        """The position that it goes to."""

    clock_after_ms: int | None
    late: dict[str, int]
    """By relation, how many events of it came too late to count."""
    computed: dict[str, str]
    """How views were computed: ``whole``, or by ``units``."""
    left_out: dict[str, tuple[str, int]]
    """By view, why units of it could not be computed, and how many; 0: it has none, and is left out as a whole."""

    def fold(self, table: SourceTable, *, reload: bool) -> None:
        """Find out what the waiting events before the limit change in a table."""

    def compute(self, view: View) -> None:
        """Compute a view, and add its events to the outbox. Raises ViewError."""

    def apply(self, tables: Sequence[SourceTable], views: Sequence[View]) -> None:
        """Make the rows after the step the rows before the next one."""
