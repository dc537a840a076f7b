"""Says when to commit: under load by records, bytes and age; with nothing to write, when the position is due."""

from __future__ import annotations

import time
from typing import Final

CUT_RECORDS: Final = 50_000
CUT_BYTES: Final = 32 * 1024 * 1024
CUT_AGE_S: Final = 0.2
APART_MOST_S: Final = 1.0
_COMMITS_APART: Final = 4
"""A commit of a thousand partitions takes long: commits are so far apart that they take at most a fifth of the time."""
MOVED_POSITION_S: Final = 0.5


class CommitPace:
    """Knows how long a transaction has been open, and how long ago the last commit was."""

    def __init__(self, idle_s: float) -> None:
        """`idle_s` is how often the position is committed though it has not moved."""
        self._idle_s = idle_s
        self._since_s = 0.0
        self.commit_s = 0.0
        """How long the last commit took."""
        self._positioned_s = time.monotonic()

    def begins(self, pending: int) -> None:
        """Note that something is about to be written; it is the first of a transaction if nothing is pending."""
        if pending == 0:
            self._since_s = time.monotonic()

    def committed(self, begun_s: float) -> None:
        """Note a commit that began at `begun_s`, on the monotonic clock."""
        self._positioned_s = time.monotonic()
        self.commit_s = self._positioned_s - begun_s

    def is_cut(self, records: int, size: int) -> bool:
        """Whether to commit so much under load: by records, bytes or age of the first."""
        apart_s = min(self.commit_s * _COMMITS_APART, APART_MOST_S)
        age_s = time.monotonic() - self._since_s
        return age_s >= apart_s and (age_s >= CUT_AGE_S or records >= CUT_RECORDS or size >= CUT_BYTES)

    def is_long_ago(self) -> bool:
        """Whether to commit the position though it has not moved."""
        return time.monotonic() - self._positioned_s >= self._idle_s

    def is_position_due(self, *, moved: bool) -> bool:
        """Whether to commit the position: soon after it has moved (`cdc wait` may wait for it), else now and then."""
        waited_s = time.monotonic() - self._positioned_s
        return waited_s >= self._idle_s or (moved and waited_s >= MOVED_POSITION_S)
