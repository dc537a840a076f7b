"""Words what a job has done: batches, rows in the last minute, how far it is behind."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_apply.job.microbatch import TableCount

_MINUTE_S = 60.0


@dataclass(slots=True)
class Pace:
    """Follows a job's batches. Its lines begin with ``batch``."""

    counts: Mapping[tuple[str, str], TableCount]
    """The applier's own."""
    _done: deque[tuple[float, int]] = field(default_factory=lambda: deque([(time.monotonic(), 0)]))
    """By time, the rows handed to stores since the job started."""

    def line(self, batches: int, *, took_s: float, source_ms: int | None) -> str:
        """Return a line about the batch that is done; `source_ms`: up to when the stores are complete, or None."""
        rows, now = sum(count.keys for count in self.counts.values()), time.monotonic()
        while len(self._done) > 1 and self._done[1][0] <= now - _MINUTE_S:
            self._done.popleft()
        before = self._done[0][1]
        self._done.append((now, rows))
        newest = max((count.position or "" for count in self.counts.values()), default="")
        lag = "" if source_ms is None else f", {max(0.0, time.time() - source_ms / 1000):.1f} s behind the source"
        return (
            f"batch {batches}: {rows} rows handed to stores, {rows - before:,} in the last minute{lag}, "
            f"batch time {took_s:.1f} s, position {newest}"
        )
