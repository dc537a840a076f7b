"""Knows up to which time of the source's clock all that was committed there has been read, also where nobody writes.

A transaction that was read says it of itself. Where none of the captured tables is written only the log's end tells:
the clock is looked at first, so all that was committed by then lies before the log's end, which is asked for next. Once
the log is followed to there, that time holds.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from operator import itemgetter
from typing import Final

from cdc.model.change import Transaction
from cdc.model.interfaces import Clock, Source

LOOK_AT_END_S: Final = 1.0

_CHANGES: Final = itemgetter(Transaction._fields.index("changes"))
_COMMITTED_AT_MS: Final = itemgetter(Transaction._fields.index("committed_at_ms"))


def now_ms(source: Source) -> int:
    """Return the time by the clock that the source's commits are told by."""
    return source.clock_ms() if isinstance(source, Clock) else time.time_ns() // 1_000_000


class Freshness:
    """Holds for one session what its transactions and looks at the log's end say."""

    def __init__(self, source: Source, source_ms: int) -> None:
        self._source = source
        self.source_ms = source_ms
        """The time, of what was read; it holds for Kafka once that is committed."""
        self.ahead_ms = 0
        """How far the source's clock was ahead of ours, as it was last looked at."""
        self._looked: tuple[int, int] | None = None
        """Where the log ended when that was last asked, and when that was."""
        self._looked_s = float("-inf")
        self._read: list[int] = []

    def read(self, transactions: Sequence[Transaction]) -> None:
        """Note transactions whose changes are lists, in their order; those without changes are not counted."""
        if transactions:
            self._read += map(_COMMITTED_AT_MS, filter(_CHANGES, transactions))
            self.source_ms = max(self.source_ms, *map(_COMMITTED_AT_MS, transactions))

    def read_one(self, at_ms: int, events: int) -> None:
        """Note a transaction and how many events came of it."""
        self.source_ms = max(self.source_ms, at_ms)
        if events:
            self._read.append(at_ms)

    def taken(self) -> list[int]:
        """Return when the transactions read since the last call were committed, in ms since 1970."""
        read, self._read = self._read, []
        return read

    def is_due(self) -> bool:
        """Whether the last look at the log's end is some time ago."""
        return time.monotonic() - self._looked_s >= LOOK_AT_END_S

    def look(self, commit: int) -> None:
        """Note how fresh `commit` is, up to which the log was read: it is looked at the log's end."""
        if self._looked is not None and commit < self._looked[0]:
            return
        if self._looked is not None:
            self.source_ms = max(self.source_ms, self._looked[1])
        self._looked_s = time.monotonic()
        looked_ms = now_ms(self._source)
        self.ahead_ms = looked_ms - time.time_ns() // 1_000_000
        self._looked = (self._source.current(), looked_ms)
        if commit >= self._looked[0]:
            self.source_ms = looked_ms  # a commit may claim a later time: sessions of MySQL may set theirs
