"""Decides what a member starts and stops, of what it has heard: places, entries, ends of children, time. Pure.

A *place* is a partition of the fleet's topic, which Kafka's group protocol gives to one member at a time; an entry has
one. A *tenure* is the time from a place's coming to its going. The rules, and why they are safe:

- What is newly given is started as a copy that takes over: it fences the one before. It does so once a tenure, and
  only while the news is fresh. A member that was frozen or cut off may still believe in an old tenure. What it starts
  then stands by while another copy is at work, so it fences nobody.
- A child that was fenced off is not started again for a while that is longer than the group takes to tell a member that
  it is out. After that the member still has the place: so it was fenced from outside of the fleet, or by a member that
  was out itself. A copy that stands by then goes on as soon as the other is gone.
- A place that is taken back is given up only when its child has ended, so that a copy that follows finds nothing to
  fence. A place that is *lost* (the coordinator could not be reached, or took this member for dead) stops nothing:
  another member that has the place fences the child, and if none has, the child is right to go on. What is still not
  this member's when the group has spoken again is stopped.
- A child that fails is started again after a pause of its own, which grows. Nothing of that touches the group.
- A child that ended with a verdict would find the same at each start, until somebody decides. It is not started again
  in this tenure, unless its entry changes (`cdc fleet restart`) or the member is told to try (SIGHUP).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final, TypeAlias

from cdc.model.errors import FencedError, VerdictError

FRESH_S: Final = 5.0
"""For so long after it was told that a place is its own, a member's child takes over.

A session lasts longer: the group cannot have given the place to another member meanwhile.
"""
STOP_S: Final = 8.0
"""A child that was asked to end and has not is killed; the group waits for ten seconds at most."""
PAUSE_FIRST_S: Final = 1.0
PAUSE_LONGEST_S: Final = 60.0
LASTED_S: Final = 60.0
"""A child that has run for so long has not failed at the same thing again."""
FENCED_S: Final = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """A connector as an entry describes it."""

    name: str
    place: int
    digest: str


class Jobs:
    """Holds all connectors of a fleet, by name and by place; members of one process may share it."""

    def __init__(self, jobs: Iterable[Job] = ()) -> None:
        self.by_name = {job.name: job for job in jobs}
        self.by_place: dict[int, list[Job]] = {}
        for job in self.by_name.values():
            self.by_place.setdefault(job.place, []).append(job)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a child. `take_over`: it fences another copy at once; else it stands by while there is one."""

    name: str
    take_over: bool


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask a child to end after the transaction in hand."""

    name: str


@dataclass(frozen=True, slots=True)
class Kill:
    """End a child at once: its position makes that safe."""

    name: str


Action: TypeAlias = Start | Stop | Kill


class Reason(StrEnum):
    """Why a connector waits."""

    FAILED = "failed"
    FENCED = "fenced"
    STOPPED = "stopped"
    """Somebody has to decide: see `VerdictError`."""


@dataclass(slots=True)
class _Tenure:
    number: int
    since_s: float
    taken: set[str] = field(default_factory=set)
    """The connectors that have been started in it."""


@dataclass(slots=True)
class _Run:
    job: Job
    begun_s: float
    kill_at_s: float | None = None
    """When it is killed; None: it was not asked to end."""
    killed: bool = False


@dataclass(slots=True)
class Pause:
    """Holds a connector back."""

    reason: Reason
    until_s: float
    failures: int
    tenure: int
    digest: str


class Roster:
    """Holds what a member has heard. Times are of any clock that only goes forward, also while the member is frozen."""

    def __init__(self) -> None:
        self._tenures: dict[int, _Tenure] = {}
        self._numbers = 0
        self._settled = True
        """Whether the group has spoken since places were lost."""
        self._jobs = Jobs()
        self._runs: dict[str, _Run] = {}
        self._pauses: dict[str, Pause] = {}
        self._leaving = False

    @property
    def places(self) -> frozenset[int]:
        return frozenset(self._tenures)

    @property
    def running(self) -> frozenset[str]:
        return frozenset(self._runs)

    @property
    def pauses(self) -> Mapping[str, Pause]:
        return self._pauses

    def assigned(self, places: Iterable[int], heard_s: float) -> None:
        """Note the places that came, maybe none: the group has spoken. `heard_s` is when."""
        self._settled = True
        for place in places:
            self._numbers += 1
            self._tenures[place] = _Tenure(self._numbers, heard_s)

    def revoked(self, places: Iterable[int]) -> None:
        """Note the places that the group wants back."""
        for place in places:
            self._tenures.pop(place, None)

    def lost(self) -> None:
        """Note that the group has spoken without this member, or cannot be heard: nothing is known to be its own."""
        self._tenures.clear()
        self._settled = False

    def leave(self) -> None:
        """Stop everything, for good."""
        self._leaving = True

    def entries(self, jobs: Jobs) -> None:
        """Note what the topic says now."""
        self._jobs = jobs
        self._pauses = {name: one for name, one in self._pauses.items() if name in jobs.by_name}

    def owned(self) -> frozenset[str]:
        """Return the connectors whose places are this member's, and those that still run here."""
        theirs = (job.name for place in self._tenures for job in self._jobs.by_place.get(place, ()))
        return frozenset((*theirs, *self._runs))

    def tries_again(self) -> None:
        """Start what has failed, or is stopped, at once; one that was fenced waits for the group's word."""
        for name, pause in self._pauses.items():
            if pause.reason is not Reason.FENCED:
                self._pauses[name] = replace(pause, until_s=-math.inf)

    def busy(self, places: Iterable[int]) -> bool:
        """Whether a child of these places is still there."""
        wanted = set(places)
        return any(run.job.place in wanted for run in self._runs.values())

    def mine(self, name: str) -> bool:
        """Whether the connector's place is this member's."""
        job = self._jobs.by_name.get(name)
        return job is not None and job.place in self._tenures and not self._leaving

    def ended(self, name: str, code: int, now_s: float) -> Pause | None:
        """Note that a child has ended; return its pause, unless it was asked to end."""
        run = self._runs.pop(name)
        if run.kill_at_s is not None:
            return None
        tenure = self._tenures.get(run.job.place)
        before = self._pauses.get(name)
        failures = 1 if before is None or now_s - run.begun_s >= LASTED_S else before.failures + 1
        if code == FencedError.exit_code:
            reason, wait_s = Reason.FENCED, FENCED_S
        elif code == VerdictError.exit_code:
            reason, wait_s = Reason.STOPPED, math.inf
        else:
            reason, wait_s = Reason.FAILED, min(PAUSE_FIRST_S * 2 ** min(failures - 1, 16), PAUSE_LONGEST_S)
        pause = Pause(reason, now_s + wait_s, failures, tenure.number if tenure else 0, run.job.digest)
        self._pauses[name] = pause
        return pause

    def decide(self, now_s: float) -> list[Action]:
        """Return what is to be done now, and take it as done."""
        return [*self._ends(now_s), *self._starts(now_s)]

    def _ends(self, now_s: float) -> Iterable[Action]:
        for name, run in self._runs.items():
            if run.kill_at_s is None and not self._keeps(run.job):
                run.kill_at_s = now_s + STOP_S
                yield Stop(name)
            elif run.kill_at_s is not None and not run.killed and now_s >= run.kill_at_s:
                run.killed = True
                yield Kill(name)

    def _keeps(self, job: Job) -> bool:
        if self._leaving or self._jobs.by_name.get(job.name) != job:
            return False
        return job.place in self._tenures or not self._settled

    def _starts(self, now_s: float) -> Iterable[Action]:
        if self._leaving:
            return
        for place, tenure in self._tenures.items():
            for job in self._jobs.by_place.get(place, ()):
                if job.name not in self._runs and not self._held(job, tenure, now_s):
                    fresh = job.name not in tenure.taken and now_s - tenure.since_s <= FRESH_S
                    tenure.taken.add(job.name)
                    self._runs[job.name] = _Run(job, now_s)
                    yield Start(job.name, fresh)

    def _held(self, job: Job, tenure: _Tenure, now_s: float) -> bool:
        """Whether a pause holds the connector back; one of another tenure, or of another file, is over."""
        pause = self._pauses.get(job.name)
        if pause is None:
            return False
        if (pause.tenure, pause.digest) == (tenure.number, job.digest):
            return now_s < pause.until_s
        del self._pauses[job.name]
        return False
