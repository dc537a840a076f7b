"""Bounds how many rows a second snapshots read, on average: the source and the brokers have others to serve."""

from __future__ import annotations

import time


class Throttle:
    """Says how long to wait before more rows are read."""

    def __init__(self, rows_per_second: int | None) -> None:
        """None: there is no bound."""
        self._rows_per_second = rows_per_second
        self._due_s = 0.0

    def took(self, rows: int) -> None:
        """Note rows that were read; what was not read in time is not made up for."""
        if self._rows_per_second is not None:
            self._due_s = max(self._due_s, time.monotonic()) + rows / self._rows_per_second

    def wait_s(self) -> float:
        """Return how long to wait; 0: more rows may be read now."""
        return max(0.0, self._due_s - time.monotonic())
