"""Judges whether a process lives, is ready, has started: from what its loop has said, without asking a server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

STILL_S: Final = 120.0
"""So long a loop may stand still before it is called dead."""
KAFKA_S: Final = 300.0
"""The same while Kafka may be waited for, with time-outs of its own: a broker that is away is no reason to restart."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """An answer: yes or no, and a word or two for people."""

    ok: bool
    said: str


class Health(Protocol):
    """Gives the three answers."""

    def looks(self) -> None:
        """Look whether something has moved; called every half second."""

    def live(self) -> Verdict: ...
    def ready(self) -> Verdict: ...
    def started(self) -> Verdict: ...


class Pulse:
    """Notes when a loop has moved: it says so itself, or something has changed that it alone changes."""

    def __init__(self, progress: Callable[[], object] = lambda: None) -> None:
        """`progress` gives something that changes while one long step goes on: a large transaction is one."""
        self._progress = progress
        self._seen: object = None
        self._moved_s = time.monotonic()
        self._waits = False

    def moves(self) -> None:
        """Note that the loop moves."""
        self._waits = False
        self._moved_s = time.monotonic()

    def waits(self) -> None:
        """Note that it waits, for as long as that takes."""
        self._waits = True

    def looks(self) -> None:
        """Look at `progress`."""
        now = self._progress()
        if now != self._seen:
            self._seen, self._moved_s = now, time.monotonic()

    def verdict(self, *, kafka: bool = False) -> Verdict:
        """Whether it has moved lately, or waits; `kafka`: it may be waiting for that."""
        still_s = self.still_s()
        if still_s > (KAFKA_S if kafka else STILL_S):
            return Verdict(ok=False, said=f"the loop has not moved for {still_s:.0f} s")
        return Verdict(ok=True, said="alive")

    def still_s(self) -> float:
        """Return for how long it stands still; 0 while it waits."""
        return 0.0 if self._waits else time.monotonic() - self._moved_s
