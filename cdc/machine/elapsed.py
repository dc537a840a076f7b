"""Measures how long something has taken by every clock there is: a machine that sleeps stops some of them."""

from __future__ import annotations

import time
from typing import Final

_ASLEEP_TOO: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""Linux: runs on while the machine is suspended, where the monotonic clock stands still."""


class Elapsed:
    """Began when it was made."""

    def __init__(self) -> None:
        self._began_s = time.clock_gettime(_ASLEEP_TOO), time.time()

    def longest_s(self) -> float:
        """Return the longest time that a clock has measured; the clock of the day may have been set meanwhile."""
        asleep_too_s, day_s = self._began_s
        return max(time.clock_gettime(_ASLEEP_TOO) - asleep_too_s, time.time() - day_s)
