"""Tells what a job has done, in words and to its meter: batches, rows, how far its stores are behind."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Final

from cdc.model.meter import JobMeter, StoreStanding
from spark_apply.events.set_aside import aside_id
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Mark, lowest

_MINUTE_S = 60.0
_EVERY_S: Final = 1.0
_OUTCOMES: Final = ("events", "written", "deleted", "stale", "duplicate", "quarantined")


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


@dataclass(slots=True)
class JobFigures:
    """Tells the meter after each batch and, at most once a second, between batches.

    It reads what the job knows anyway, and asks no store and no server.
    """

    meter: JobMeter
    applier: Applier
    publisher: WatermarkPublisher
    asides: AsideCopies
    _told_s: float = field(default=float("-inf"))

    def applied(self, took_s: float) -> None:
        """Tell of a batch."""
        if self.meter.wanted:
            counts = self.applier.counts
            position = max((count.position or "" for count in counts.values()), default="")
            self.meter.applied(took_s=took_s, position=position, rows=_rows(counts))
            self.tell()

    def look(self) -> None:
        """Tell how the stores stand, if that was told some time ago."""
        if self.meter.wanted and time.monotonic() - self._told_s >= _EVERY_S:
            self.tell()

    def tell(self) -> None:
        """Tell how the stores stand."""
        self._told_s = time.monotonic()
        marks: dict[str, dict[str, list[Mark | None]]] = {}
        for topic, route in self.applier.routes.items():
            for name in route.stores:
                of = marks.setdefault(name, {}).setdefault(route.table.connector, [])
                of.append(self.publisher.known(topic, name))
        aside = Counter(name for _, name in self.asides)
        quarantined = self.applier.quarantine.by_store()
        self.meter.stands(
            {
                name: replace(
                    _standing(marks.get(name, {}), aside[name], quarantined[name]),
                    behind_since_ms=self._behind_since_ms(name, marks.get(name, {})),
                    deletes_kept_ms=min(self.applier.unread.kept_ms.values(), default=None)
                    if self.applier.unread
                    else None,
                )
                for name in sorted({*marks, *aside})
            }
        )

    def _behind_since_ms(self, store: str, connectors: Iterable[str]) -> int | None:
        """Return since when copies of a store have not read all there is: those that go on, and those set aside."""
        since = [self.publisher.behind_since_ms(connector) for connector in connectors]
        noted = [self.asides.known.get(aside_id(topic, name)) for topic, name in self.asides if name == store]
        since += [of.at_ms for of in noted if of is not None]
        return min((at for at in since if at is not None), default=None)


def _standing(marks: Mapping[str, Sequence[Mark | None]], aside: int, quarantined: int) -> StoreStanding:
    """Sum up the copies that go on, by connector, and those that are set aside, of which no mark is known."""
    times = [None if complete is None else complete.source_ms for complete in map(lowest, marks.values())]
    known = [at for at in times if at is not None]
    every = [mark for of in marks.values() for mark in of]
    return StoreStanding(
        source_ms=min(known) if known and len(known) == len(times) and not aside else None,
        tables=len(every) + aside,
        incomplete=sum(mark is None or mark.complete is None for mark in every) + aside,
        aside=aside,
        quarantined=quarantined,
    )


def _rows(counts: Mapping[tuple[str, str], TableCount]) -> dict[tuple[str, str, str], int]:
    return {
        (store, table, outcome): value
        for (table, store), count in counts.items()
        for outcome, value in asdict(count).items()
        if outcome in _OUTCOMES and value is not None
    }
