"""Reads the machine's clock where something rests on it: clocks are set back and forward while a job runs.

Beside the clock as it is now stands the one as it was when the process began, plus the time that has passed since. What
removes files by their age goes by the earlier of the two, and so removes too little rather than too much. What looks
for something that is gone goes by the later one: it may tell of a loss that is none, but passes over none. Once the
clock is right again, both are the same, and what was told is looked at again.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _passed_ms() -> int:
    return time.monotonic_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class Clock:
    """The two times of one process, in milliseconds since 1970."""

    _began_ms: int = field(default_factory=lambda: _wall_ms() - _passed_ms())

    def earlier_ms(self) -> int:
        """Return a time that is not later than now, unless the clock was ahead when the process began."""
        return min(_wall_ms(), self._began_ms + _passed_ms())

    def later_ms(self) -> int:
        """Return a time that is not earlier than now, unless the clock was behind when the process began, and is."""
        return max(_wall_ms(), self._began_ms + _passed_ms())

    def ahead_ms(self) -> int:
        """Return by how much the clock was set forward since the process began."""
        return max(0, _wall_ms() - self._began_ms - _passed_ms())


CLOCK = Clock()
