"""`make soak-fleet`: members of a fleet killed, frozen, cut off, joined and rolled while their connectors are written.

    python -m tests.faults.fleet_soak --seconds 600 --seed 1

At the end every connector's topics are held against its tables: nothing lost, doubled or torn. On the way it is
measured for how long each connector committed nothing: those of the member that was hit, and all others.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

from cdc.dev import kafka, launch, mysql, postgres
from cdc.dev.process import Launch, Server, Settings
from cdc.fleet.fleet_config import FleetConfig
from cdc.model.errors import CdcError
from sinks.topics.fleet_topic import FleetTopic
from tests.faults.fleet_workload import Bank, Commits, Laws, MysqlBank, PostgresBank, Tellers, dropped
from tests.faults.proxy import Proxy

_SETTLED_S: Final = 90.0
_ENDED_S: Final = 30.0

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
        return [pid for pid in self.family[1:] if _called(pid).startswith("cdc-")]

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
        return self.process.wait(_ENDED_S)

    def close(self) -> None:
        if self.process is not None and self.running:
            self.send(signal.SIGCONT, whole=True)
            self.process.kill()
            self.process.wait(_ENDED_S)


def _called(pid: int) -> str:
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


def killed(stage: Stage) -> None:
    """kill -9 of a member, whose children die with it; and it joins again."""
    seat = stage.random.choice(stage.seats)
    children = seat.family[1:]

    def kill() -> None:
        seat.send(signal.SIGKILL)
        assert seat.process is not None
        seat.process.wait(_ENDED_S)

    stage.play("kill -9", stage.on(seat), kill)
    if alive := [pid for pid in children if launch.started_at(pid)]:
        stage.found.violations.append(f"{len(alive)} children have outlived their member")
    joined(stage, seat)


def joined(stage: Stage, seat: Seat) -> None:
    stage.play("join", set(), seat.start)


def frozen(stage: Stage, *, whole: bool = True) -> None:
    """SIGSTOP, of a member with its children or alone, for longer than its session; then it comes back."""
    seat = stage.random.choice(stage.seats)
    zombies = seat.children
    hit = stage.on(seat)

    def freeze() -> Callable[[], None]:
        seat.send(signal.SIGSTOP, whole=whole)
        stage.away.add(seat.name)
        return thaw

    def thaw() -> None:
        time.sleep(stage.random.uniform(0, 5))
        seat.send(signal.SIGCONT, whole=whole)
        until_s = time.monotonic() + _ENDED_S
        while (alive := [pid for pid in zombies if launch.started_at(pid)]) and time.monotonic() < until_s:
            time.sleep(0.1)
        if alive:
            stage.found.violations.append(f"{len(alive)} fenced children of {seat.name} are still there")
        stage.away.clear()

    stage.play("frozen" if whole else "frozen, children go on", hit, freeze)


def cut_off(stage: Stage) -> None:
    """Nothing passes between a member and Kafka, for longer than its session; nor for its children."""
    seat = stage.random.choice(stage.seats)
    proxy = seat.proxy
    assert proxy is not None

    def cut() -> Callable[[], None]:
        proxy.freeze()
        stage.away.add(seat.name)
        return heal

    def heal() -> None:
        proxy.cut()
        proxy.thaw()
        stage.away.clear()

    stage.play("cut off from Kafka", stage.on(seat), cut)


def cut_briefly(stage: Stage) -> None:
    """For less than a session: nothing moves."""
    seat = stage.random.choice(stage.seats)
    proxy = seat.proxy
    assert proxy is not None
    before = stage.on(seat)

    def cut() -> None:
        proxy.refuse(True)
        proxy.cut()
        time.sleep(2.5)
        proxy.refuse(False)

    stage.play("cut off for 2.5 s", before, cut)
    if stage.on(seat) != before:
        stage.found.violations.append(f"connectors have moved from {seat.name}, which was away for 2.5 s")


def left(stage: Stage) -> None:
    """SIGTERM; and it joins again."""
    seat = stage.random.choice(stage.seats)

    def leave() -> None:
        if code := seat.leave():
            stage.found.violations.append(f"{seat.name} ended {code} after SIGTERM")

    stage.play("leave", stage.on(seat), leave)
    joined(stage, seat)


def rolled(stage: Stage) -> None:
    """Every member, one after the other."""

    def roll() -> None:
        for seat in stage.seats:
            seat.leave()
            seat.start()
            stage.shared()

    stage.play("rolled", {bank.name for bank in stage.banks}, roll)


def grown(stage: Stage) -> None:
    """One member more for a while."""
    joined(stage, stage.spare)

    def leave() -> None:
        stage.spare.leave()

    stage.play("leave", stage.on(stage.spare), leave)


def child_killed(stage: Stage) -> None:
    """One connector dies: its member starts it again, and no other is disturbed."""
    seat = stage.random.choice(stage.seats)
    pid = stage.random.choice(seat.children)
    stage.play("a connector killed", {_called(pid).removeprefix("cdc-")}, partial(os.kill, pid, signal.SIGKILL))


FAULTS: Final[Mapping[str, tuple[int, Callable[[Stage], None]]]] = {
    "kill -9": (3, killed),
    "frozen": (2, frozen),
    "frozen, children go on": (1, partial(frozen, whole=False)),
    "cut off from Kafka": (2, cut_off),
    "cut off for 2.5 s": (1, cut_briefly),
    "leave": (2, left),
    "rolled": (1, rolled),
    "grown": (1, grown),
    "a connector killed": (1, child_killed),
}
QUICK: Final = ("frozen",)
"""What a short soak plays: it has a take-over, zombies, and a member that comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    folder: Path
    kafka: str
    postgres: str
    mysql: str | None = None
    proxies: Sequence[tuple[str, Proxy]] = ()
    """Each member's way to Kafka, and the spare one's; none: all go straight."""
    seconds: float = 0
    seed: int = 1
    seats: int = 3
    of_postgres: int = 20
    of_mysql: int = 0
    pause_s: float = 0.4
    """Between two transactions of one connector."""
    recent_s: float = 3.0
    deck: Sequence[str] = ()
    """What is played once, in place of a shuffled deck for `seconds`."""


def soak_fleet(plan: Plan) -> Found:
    """Run it whole."""
    found = Found(seed=plan.seed, members=plan.seats, connectors=plan.of_postgres + plan.of_mysql)
    begun_s = time.monotonic()
    name = f"s{uuid.uuid4().hex[:6]}"  # the kernel shows 15 characters of a process' name
    banks: list[Bank] = [PostgresBank(f"{name}p{n}", plan.postgres) for n in range(plan.of_postgres)]
    banks += [MysqlBank(f"{name}m{n}", plan.mysql) for n in range(plan.of_mysql) if plan.mysql is not None]
    for bank in banks:
        bank.prepare()
    plan.folder.mkdir(parents=True, exist_ok=True)
    environment = {"CDC_FLEET": name, "CDC_BOOTSTRAP_SERVERS": plan.kafka, "SOAK_KAFKA": plan.kafka}
    environment |= {"SOAK_POSTGRES": plan.postgres, "SOAK_MYSQL": plan.mysql or ""}
    files = []
    for bank in banks:
        files.append(plan.folder / f"{bank.name}.yaml")
        files[-1].write_text(json.dumps(bank.file()))
    subprocess.run(
        [sys.executable, "-P", "-m", "cdc", "fleet", "add", *files], env={**os.environ, **environment}, check=True
    )
    seats = []
    for number in range(plan.seats + 1):
        way, proxy = plan.proxies[number] if plan.proxies else (plan.kafka, None)
        ways = {"CDC_BOOTSTRAP_SERVERS": way, "SOAK_KAFKA": way}
        seats.append(Seat(f"m{number + 1}", {**environment, **ways}, plan.folder, proxy))
    commits, tellers = (
        Commits(plan.kafka, [bank.name for bank in banks]),
        Tellers(banks, seed=plan.seed, pause_s=plan.pause_s),
    )
    fleet = FleetTopic(FleetConfig(fleet=name, bootstrap_servers=plan.kafka))
    stage = Stage(
        plan.kafka, seats[:-1], seats[-1], banks, commits, fleet, found, random.Random(plan.seed), plan.recent_s
    )
    try:
        for seat in stage.seats:
            seat.start()
        commits.start()
        stage.settle()  # a snapshot that moves reads each table under a view of its own, and so nothing is written yet
        tellers.start()
        _play(stage, plan)
        tellers.stop()
        if tellers.failure is not None:
            found.violations.append(f"the workload failed: {tellers.failure!r}")
        _finish(stage, environment)
    finally:
        tellers.stop()
        for seat in seats:
            seat.close()
        commits.stop()
        dropped(banks)
    found.seconds = time.monotonic() - begun_s
    return found


def _play(stage: Stage, plan: Plan) -> None:
    if plan.deck:
        for kind in plan.deck:
            FAULTS[kind][1](stage)
        return
    until_s = time.monotonic() + plan.seconds
    kinds: list[str] = []
    while time.monotonic() < until_s and not stage.found.violations:
        if not kinds:
            kinds = [kind for kind, (number, _) in FAULTS.items() for _ in range(number)]
            stage.random.shuffle(kinds)
        FAULTS[kinds.pop()][1](stage)


def _look(stage: Stage, environment: Mapping[str, str]) -> None:
    """Ask for the states, as a person does: each is its owner's word."""
    command = [sys.executable, "-P", "-m", "cdc", "fleet", "status", "--json"]
    told = subprocess.run(command, env={**os.environ, **environment}, check=True, capture_output=True)
    owners = stage.owners()
    for name, row in json.loads(told.stdout)["connectors"].items():
        if (row["state"], row["member"]) != ("streaming", owners[name]):
            stage.found.violations.append(f"status shows {name} as {row}, and it is at work on {owners[name]}")


def _finish(stage: Stage, environment: Mapping[str, str]) -> None:
    """Let everything come through, and leave; then judge."""
    stage.settle()
    for bank in stage.banks:
        _await_last(stage, bank)
    _look(stage, environment)
    for seat in stage.seats:
        if seat.running and (code := seat.leave()):
            stage.found.violations.append(f"{seat.name} ended {code} after SIGTERM")
    for bank in stage.banks:
        try:
            stage.found.laws.judge(stage.kafka, bank)
        except CdcError as exc:
            stage.found.violations.append(f"{bank.name}: {exc.message}")


def _await_last(stage: Stage, bank: Bank) -> None:
    """A second commit from now on holds all that was written before: nothing is written any more."""
    seen = len(stage.commits.at_s[bank.name])
    until_s = time.monotonic() + _ENDED_S
    while len(stage.commits.at_s[bank.name]) < seen + 1 and time.monotonic() < until_s:
        time.sleep(0.1)


def _brokers(ways: int, folder: Path) -> tuple[Server, list[Proxy]]:
    """A broker with a listener behind a proxy for each member."""
    proxies = [Proxy(kafka=False) for _ in range(ways)]

    def prepare(at: Path) -> Launch:
        settings = Settings(at)
        port, controller = settings.port("port"), settings.port("controller_port")
        behind = [settings.port(f"way_{number}") for number in range(ways)]
        for proxy, leads_to in zip(proxies, behind, strict=True):
            proxy.lead_to(leads_to)
        listeners = "".join(f",WAY{n}://127.0.0.1:{behind[n]}" for n in range(ways))
        advertised = "".join(f",WAY{n}://127.0.0.1:{proxies[n].port}" for n in range(ways))
        protocols = "".join(f",WAY{n}:PLAINTEXT" for n in range(ways))
        more = (
            f"listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}{listeners}\n"
            f"advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}\n"
            f"listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT{protocols}\n"
        )
        return kafka.prepare(at, more=more)

    return Server("kafka", folder / "kafka", prepare), proxies


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.fleet_soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", type=int, default=18, help="connectors on PostgreSQL")
    parser.add_argument("--mysql", type=int, default=3, help="connectors on MySQL")
    parser.add_argument("--deck", help="faults to play once each, instead: a,b,c")
    parser.add_argument("--folder", type=Path, help="where servers and logs are")
    parser.add_argument("--json", type=Path, help="where the report goes")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="cdc-fleet-soak-"))).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"seed {given.seed}, logs in {folder}", file=sys.stderr)
    found = soak_on_own_servers(
        folder, seconds=given.seconds, seed=given.seed, of_postgres=given.postgres, of_mysql=given.mysql,
        deck=given.deck.split(",") if given.deck else (),
    )  # fmt: skip
    if given.json is not None:
        given.json.parent.mkdir(parents=True, exist_ok=True)
        given.json.write_text(found.to_json())
    print(found.table())
    return 0 if found.good else 1


def soak_on_own_servers(folder: Path, **plan: Any) -> Found:
    """With a proxy between each member and Kafka, so that it can be cut off."""
    database = Server("postgres18", folder / "postgres18", partial(postgres.prepare, major=18))
    other = Server("mysql", folder / "mysql", mysql.prepare)
    broker, proxies = _brokers(4, folder)
    used = [database, broker, *([other] if plan.get("of_mysql") else [])]
    try:
        for server in used:
            server.start()
        ways = [(f"127.0.0.1:{proxy.port}", proxy) for proxy in proxies]
        urls = {"kafka": broker.url, "postgres": database.url, "mysql": other.url if other in used else None}
        return soak_fleet(Plan(folder=folder / "fleet", proxies=ways, **urls, **plan))
    finally:
        for proxy in proxies:
            proxy.close()
        for server in used:
            server.stop()


if __name__ == "__main__":
    sys.exit(main())
