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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from cdc.dev.servers import kafka, mysql, postgres
from cdc.dev.servers.process import Launch, Server, Settings
from cdc.fleet.fleet_config import FleetConfig
from cdc.model.errors import CdcError
from sinks.fleet.topic import FleetTopic
from tests.faults.fleet_faults import FAULTS
from tests.faults.fleet_stage import ENDED_S, Found, Seat, Stage
from tests.faults.fleet_workload import Bank, Commits, MysqlBank, PostgresBank, Tellers, dropped
from tests.faults.proxy import Proxy


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
    until_s = time.monotonic() + ENDED_S
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
