"""Where the soak of a fleet plays: members in their seats, what is measured of them, and what came of it."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.dev.servers import launch
from sinks.fleet.topic import FleetTopic
from tests.faults.fleet_workload import Bank, Commits, Laws
from tests.faults.proxy import Proxy

_SETTLED_S: Final = 90.0
ENDED_S: Final = 30.0

log = logging.getLogger("soak")


@dataclass
class Found:
    """What came of a soak."""

    seconds: float = 0
    seed: int = 0
    members: int = 0
    connectors: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    moved_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """By fault: for how long each connector was silent that was on the member that was hit."""
    others_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    laws: Laws = field(default_factory=Laws)
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not (self.laws.said or self.violations)

    def to_json(self) -> str:
        silences = {
            fault: {
                "times": times,
                "taken_over_s": _percentiles(self.moved_s[fault]),
                "others_s": _percentiles(self.others_s[fault]),
            }
            for fault, times in self.faults.items()
        }
        laws = {
            "lost": self.laws.lost,
            "doubled": self.laws.doubled,
            "torn": self.laws.torn,
            "events": self.laws.events,
        }
        sizes = {"members": self.members, "connectors": self.connectors}
        rest = {"seconds": round(self.seconds), "seed": self.seed, "violations": [*self.laws.said, *self.violations]}
        return json.dumps({**rest, **sizes, **laws, "faults": silences, "good": self.good}, indent=1) + "\n"

    def table(self) -> str:
        head = (
            "fault",
            "times",
            "moved",
            "taken over after (s): p50",
            "p95",
            "max",
            "others silent (s): p50",
            "p95",
            "max",
        )
        rows = [head]
        for fault, times in sorted(self.faults.items()):
            moved, others = self.moved_s[fault], self.others_s[fault]
            rows.append((fault, str(times), str(len(moved)), *_shown(moved), *_shown(others)))
        widths = [max(len(row[at]) for row in rows) for at in range(len(head))]
        lines = [
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
        ]
        laws = self.laws
        lines.append(
            f"{self.members} members, {self.connectors} connectors, {self.seconds:.0f} s, seed {self.seed}: "
            f"{laws.events:,} events, {laws.lost} lost, {laws.doubled} doubled, {laws.torn} torn"
        )
        lines += [f"  VIOLATION {said}" for said in (*laws.said, *self.violations)]
        return "\n".join([*lines, "nothing lost, doubled or torn" if self.good else "FAILED"])


def _percentiles(times: Sequence[float]) -> dict[str, float]:
    ordered = sorted(times)
    at = {name: min(len(ordered) - 1, int(len(ordered) * q)) for name, q in (("p50", 0.5), ("p95", 0.95), ("max", 1.0))}
    return {name: round(ordered[index], 2) for name, index in at.items()} if ordered else {}


def _shown(times: Sequence[float]) -> tuple[str, str, str]:
    found = _percentiles(times)
    return (f"{found['p50']:.1f}", f"{found['p95']:.1f}", f"{found['max']:.1f}") if found else ("-", "-", "-")


class Seat:
    """Where a member runs: its environment, its way to Kafka, its process."""

    def __init__(self, name: str, environment: Mapping[str, str], folder: Path, proxy: Proxy | None) -> None:
        self.name, self.proxy = name, proxy
        self._environment, self._log = {**os.environ, **environment}, folder / f"{name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [sys.executable, "-P", "-m", "cdc", "fleet", "run", "--member", self.name]
        with self._log.open("ab") as said:
            self.process = subprocess.Popen(command, env=self._environment, stdout=said, stderr=said)

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def children(self) -> list[int]:
        """Its connectors' processes, without what forks them."""
        return [pid for pid in self.family[1:] if called(pid).startswith("cdc-")]

    @property
    def family(self) -> list[int]:
        """The member and its connectors."""
        return launch.family(self.process.pid) if self.process is not None else []

    def send(self, number: signal.Signals, *, whole: bool = False) -> None:
        assert self.process is not None
        launch.send(self.family if whole else [self.process.pid], number)

    def leave(self) -> int:
        """SIGTERM; the exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(ENDED_S)

    def close(self) -> None:
        if self.process is not None and self.running:
            self.send(signal.SIGCONT, whole=True)
            self.process.kill()
            self.process.wait(ENDED_S)


def called(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:  # it has just ended
        return ""


@dataclass
class Stage:
    """What faults are played on."""

    kafka: str
    seats: list[Seat]
    spare: Seat
    banks: Sequence[Bank]
    commits: Commits
    fleet: FleetTopic
    found: Found
    random: random.Random
    recent_s: float
    """A connector that has committed within so long is at work: each is written several times in it."""
    away: set[str] = field(default_factory=set)
    """Members that the group cannot hear."""

    def on(self, seat: Seat) -> set[str]:
        """The connectors whose places are this member's, as the group has it."""
        return {name for name, owner in self.owners().items() if owner == seat.name}

    def settle(self) -> None:
        """Until all places are shared out, and every connector has committed for a while after that, and just now."""
        self.shared()
        since_s, until_s = time.time(), time.monotonic() + _SETTLED_S
        while time.monotonic() < until_s:
            least_s = max(since_s + self.recent_s, time.time() - self.recent_s)
            silent = [bank.name for bank in self.banks if self.commits.last(bank.name) < least_s]
            if not silent:
                return
            time.sleep(0.1)
        self.found.violations.append(f"silent for {_SETTLED_S:.0f} s: {', '.join(silent)}")

    def shared(self) -> None:
        """Until the members that are there share all places evenly, none of which is nobody's."""
        until_s = time.monotonic() + _SETTLED_S
        while time.monotonic() < until_s:
            there = {seat.name for seat in (*self.seats, self.spare) if seat.running} - self.away
            shares = {member.name: len(member.places) for member in self.fleet.members()}
            whole = sum(shares.values()) == len(self.banks)
            if there == set(shares) and whole and max(shares.values()) - min(shares.values()) <= 1:
                return
            time.sleep(0.1)
        self.found.violations.append(f"the places are not shared by {sorted(there)}: {shares}")

    def owners(self) -> dict[str, str]:
        """Which member has each connector's place."""
        of = {place: member.name for member in self.fleet.members() for place in member.places}
        return {bank.name: of.get(place, "") for place, bank in enumerate(self.banks)}

    def play(self, kind: str, hit: set[str], act: Callable[[], Callable[[], None] | None]) -> None:
        """Play a fault and note every silence; what `act` returns is done when all are at work again."""
        after: Callable[[], Callable[[], None] | None] | None = act
        while after is not None:
            before, begun_s = self.owners(), time.time()
            after = after()
            self.settle()
            now = self.owners()
            self.found.faults[kind] += 1
            moved, others = [], []
            for bank in self.banks:
                to = moved if bank.name in hit or before[bank.name] != now[bank.name] else others
                to.append(self.commits.silence(bank.name, begun_s))
            self.found.moved_s[kind] += moved
            self.found.others_s[kind] += others
            log.info(
                "%-28s %2d silent %s s, others %s s",
                kind,
                len(moved),
                "/".join(_shown(moved)),
                "/".join(_shown(others)),
            )
            kind, hit = f"{kind}, back", set()
