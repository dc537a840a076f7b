"""Measures how long after its commit at the source a transaction is in a store, under a steady load."""

from __future__ import annotations

import threading
import time
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

from bench.derived.following import PATIENCE_S, following, write
from cdc.config.config import ApplyConfig
from cdc.model.change import Position
from cdc.model.errors import OperatorError
from connectors.postgres.lsn import lsn_number
from spark_apply.job.watermarks.progress import Reader

_LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Moment:
    """A position in the source's log, and when it was committed there or seen complete in the store."""

    end: int
    at_s: float


def waited(committed: Sequence[Moment], seen: Sequence[Moment]) -> list[float]:
    """Return for each commit the time until the store was first seen to hold it; commits never seen are left out.

    Both sequences are in order of time, and `end` does not decrease.
    """
    ends = [moment.end for moment in seen]
    places = ((moment, bisect_left(ends, moment.end)) for moment in committed)
    return [seen[place].at_s - moment.at_s for moment, place in places if place < len(seen)]


def delays(
    folder: Path, url: str, config: ApplyConfig, *, rows: int, rate: int, warm: int, seconds: int
) -> list[float]:
    """Return the seconds from commit to visible of each transaction, while a connector and the job run.

    Those of the first `warm` seconds are not counted: the JVM is new to batches of that size.
    """
    with following(folder, url, config, rows=rows) as at, Watch(config, at.failed) as watch:
        return _measured(at.cursor, watch, rows=rows, rate=rate, warm=warm, seconds=seconds)


class Watch:
    """Polls the store's mark on a thread; entering waits until there is one."""

    def __init__(self, config: ApplyConfig, failed: list[BaseException]) -> None:
        (self._store,) = config.stores
        self._connector = config.source.topic_prefix
        self._failed = failed
        self._reader = Reader(config)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="marks", daemon=True)
        self.seen: list[Moment] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait(0)
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)

    def wait(self, end: int) -> None:
        """Wait until the store is complete up to `end`. Raises the exception that ended the job."""
        deadline = time.monotonic() + PATIENCE_S
        while not self.holds(end):
            if time.monotonic() > deadline:
                raise OperatorError(f"{self._store} does not come to what was committed within {PATIENCE_S:.0f} s")
            time.sleep(_LOOK_S)

    def holds(self, end: int) -> bool:
        if self._failed:
            raise self._failed[0]
        return bool(self.seen) and self.seen[-1].end >= end

    def _run(self) -> None:
        try:
            with self._reader as reader:
                while not self._ended.wait(_LOOK_S):
                    complete = reader.read(self._store, self._connector).complete
                    if complete is not None:
                        end = Position.parse(complete.position).commit
                        if not self.seen or end > self.seen[-1].end:
                            self.seen.append(Moment(end, time.monotonic()))
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            self._failed.append(exc)


def _measured(cursor: Any, watch: Watch, *, rows: int, rate: int, warm: int, seconds: int) -> list[float]:  # noqa: ANN401
    """Write at a pace until the store holds all that counts."""
    committed: list[Moment] = []
    begun = time.monotonic()
    first, last = (begun + warm + more for more in (0, seconds))

    def note() -> None:
        at_s = time.monotonic()
        cursor.execute("SELECT pg_current_wal_insert_lsn()::text")
        if first < at_s <= last:
            committed.append(Moment(lsn_number(cursor.fetchone()[0]), at_s))

    def goes_on() -> bool:
        if time.monotonic() > last + PATIENCE_S:
            raise OperatorError(f"the store is {PATIENCE_S:.0f} s behind: {rate} changes/s are too many for it")
        return time.monotonic() <= last or not committed or not watch.holds(committed[-1].end)

    write(cursor, rows=rows, rate=rate, goes_on=goes_on, committed=note)
    return waited(committed, watch.seen)
