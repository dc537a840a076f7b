"""A meter that keeps what it is told, in order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from cdc.model.errors import CdcError
from cdc.model.meter import Commit, RunState
from cdc.model.state import State


class MemoryMeter:
    """Keeps everything; `events` sums up by table and op."""

    wanted = True

    def __init__(self) -> None:
        self.moved = self.waited = self.ended_open = self.left_out = 0
        self.states: list[RunState] = []
        self.commits: list[Commit] = []
        self.sessions: list[State] = []
        self.errors: list[CdcError] = []
        self.retried: list[CdcError] = []
        self.fresh: list[tuple[int, int]] = []
        self.pending: Callable[[], tuple[int, int]] = lambda: (0, 0)

    @property
    def events(self) -> Counter[tuple[str, str]]:
        """Return how many events of each table and op were committed."""
        return sum((Counter(commit.events) for commit in self.commits), Counter())

    def moves(self) -> None:
        self.moved += 1

    def waits(self) -> None:
        self.waited += 1

    def becomes(self, state: RunState) -> None:
        if self.states[-1:] != [state]:
            self.states.append(state)

    def opened(self, state: State, pending: Callable[[], tuple[int, int]]) -> None:
        self.sessions.append(state)
        self.pending = pending

    def committed(self, commit: Commit) -> None:
        self.commits.append(commit)

    def leaves_out(self, tables: int) -> None:
        self.left_out = tables

    def is_fresh(self, source_ms: int, ahead_ms: int) -> None:
        self.fresh.append((source_ms, ahead_ms))

    def aborted(self) -> None:
        self.ended_open += 1

    def fails(self, error: CdcError) -> None:
        self.errors.append(error)

    def retries(self, error: CdcError) -> None:
        self.retried.append(error)
