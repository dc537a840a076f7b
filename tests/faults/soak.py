"""The soak: a workload, a connector, one fault after another, and witnesses all along; judged at the end."""

from __future__ import annotations

import logging
import random
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from cdc.model.state import Phase
from tests.faults import world
from tests.faults.connector import NAME, Connector
from tests.faults.faults import FAULTS, OPENING, dealt
from tests.faults.mysql import Mysql
from tests.faults.oracles import SHOWN, Judge
from tests.faults.origin import Origin
from tests.faults.postgres import Postgres
from tests.faults.reading import Positions, Reader, topics_of
from tests.faults.report import Report
from tests.faults.servers import Servers
from tests.faults.stage import Stage, StuckError
from tests.faults.triggers import TriggersMysql, TriggersPostgres
from tests.faults.workload import APART, Workload
from tests.integration.nudges import nudged

ORIGINS: Final[Mapping[str, Callable[[Path], Origin]]] = {
    "postgres16": partial(Postgres, major=16),
    "postgres18": partial(Postgres, major=18),
    "mysql": partial(Mysql, kind="mysql"),
    "mariadb": partial(Mysql, kind="mariadb"),
    "triggers-postgres": partial(TriggersPostgres, major=18),
    "triggers-mysql": partial(TriggersMysql, kind="mysql"),
    "triggers-mariadb": partial(TriggersMysql, kind="mariadb"),
}

_SAMPLE_EVERY_S: Final = 0.1
_ROUND_EVERY_S: Final = 0.5
_SNAPSHOT_S: Final = 240.0
_REACHED_S: Final = 30.0

log = logging.getLogger("soak")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run."""

    seconds: float
    seed: int
    folder: Path
    source: str = "postgres18"
    accounts: int = 20_000
    producer: str = "own"
    opening: int = 1
    """Of the crashes of the snapshot each so many-th; of all it takes minutes."""


def soak(plan: Plan) -> Report:
    """Run it whole; violations are in the report."""
    report = Report(seconds=plan.seconds, seed=plan.seed)
    for left in ("servers", "connector"):  # by an earlier run
        shutil.rmtree(plan.folder / left, ignore_errors=True)
    origin = ORIGINS[plan.source](plan.folder / "servers")
    with Servers(plan.folder / "servers", origin) as servers:
        report.source = origin.version()
        workload = Workload(origin.writer, origin.url, seed=plan.seed, accounts=plan.accounts)
        workload.prepare()
        connector = Connector(
            plan.folder / "connector",
            origin.captured(),
            origin.proxied_url,
            servers.proxied_kafka,
            producer=plan.producer,
        )
        with Positions(servers.kafka.url, NAME, NAME) as positions, closing(connector):
            stage = Stage(servers, connector, positions, random.Random(plan.seed))
            _run(plan, stage, workload, report)
    if report.good:
        shutil.rmtree(plan.folder / "servers")
    return report


def _run(plan: Plan, stage: Stage, workload: Workload, report: Report) -> None:
    started_s = time.monotonic()
    witnesses = Witnesses(stage, workload)
    workload.start()
    witnesses.start()
    try:
        _opening(plan, stage, report)
        handed_over = witnesses.handed_over = stage.origin.log_end()
        report.snapshot_views = witnesses.views
        soonest_s = time.monotonic() + plan.seconds / 4  # of a short one the opening may be all, on a busy machine
        _play(stage, report, until_s=max(started_s + plan.seconds, soonest_s))
    except StuckError as exc:
        report.stuck += 1
        report.violations.append(f"stuck: {exc}")
        handed_over = witnesses.handed_over or stage.origin.log_end()
    finally:
        _heal(stage)
        workload.stop()
        witnesses.stop()
    _finish(stage, workload, report, handed_over)
    report.seconds = time.monotonic() - started_s
    report.slot_samples, report.slot_ahead = witnesses.samples, witnesses.ahead
    report.live_rounds = witnesses.rounds
    _add(report, witnesses.judge, "live: ")
    report.violations += [f"the workload failed: {failure}" for failure in workload.failures + stage.origin.left()]
    report.violations += [*stage.violations, *witnesses.said, *(f"alarm: {alarm}" for alarm in stage.connector.alarms)]
    report.false_alarms = len(stage.connector.alarms)
    report.recoveries_s = [round(time_s, 2) for time_s in stage.recoveries_s]
    report.restarts = len({copy.process.pid for copy in stage.connector.copies}) - 1
    greatest = max(stage.connector.copies, key=lambda copy: copy.peak_kb)
    report.peak_rss_mb = greatest.peak_kb / 1024
    log.info("the greatest was %s", greatest.log.name)
    report.ends = stage.connector.ends
    report.workload = dict(workload.done)


def _opening(plan: Plan, stage: Stage, report: Report) -> None:
    """The snapshot, crashed again and again from before its first step; then until it is done."""
    for point, times in OPENING[:: plan.opening]:
        copy = stage.connector.crashing(point, times)
        began_s = time.monotonic()
        if not stage.until(lambda copy=copy: not copy.alive, within_s=_REACHED_S):
            copy.signal(signal.SIGTERM)
        reached = copy.process.wait(60) == -signal.SIGKILL
        stage.connector.judge(copy)
        _note(report, f"snapshot crash: {point}", "" if reached else "not reached", time.monotonic() - began_s)
    stage.connector.start()
    deadline = time.monotonic() + _SNAPSHOT_S
    while (last := stage.positions.last) is None or last.state.phase is not Phase.STREAM:
        stage.connector.revive()
        if time.monotonic() > deadline:
            raise StuckError(f"the snapshot is not done; see {stage.connector.copy.log}")
        time.sleep(0.1)


def _play(stage: Stage, report: Report, *, until_s: float) -> None:
    """Fault after fault; each is over when a position has been made after it."""
    deck = {**FAULTS, **stage.origin.faults}
    kinds: list[str] = []
    while time.monotonic() < until_s:
        kinds = kinds or dealt(deck, stage.random)
        kind = kinds.pop()
        began_s = time.monotonic()
        told = deck[kind][1](stage)
        stage.settled(time.time())
        _heal(stage)
        _note(report, kind, told, time.monotonic() - began_s)
        stage.sleep(0.1, 1.0)


def _note(report: Report, kind: str, told: str, took_s: float) -> None:
    log.info("%-32s %s (%.1f s)", kind, told, took_s)
    if told == "not reached":
        report.not_reached[kind] += 1
    else:
        report.faults[kind] += 1
    report.played.append({"fault": kind, "told": told, "took_s": round(took_s, 1)})


def _heal(stage: Stage) -> None:
    stage.servers.kafka_proxy.heal()
    stage.origin.proxy.heal()


def _finish(stage: Stage, workload: Workload, report: Report, handed_over: int) -> None:
    """Let the connector catch up, and judge what a fresh reader sees."""
    connector = stage.connector
    connector.revive()
    code = connector.stop()
    if code:
        report.violations.append(f"asked to end, it ended {code}; see {connector.copy.log}")
    with nudged(stage.origin.url):  # tables that are read again are, a window at a time, as the log moves
        for _ in range(3):
            copy = connector.start("--until-caught-up")
            try:
                code = copy.process.wait(300)
            except subprocess.TimeoutExpired:
                copy.kill()
                code = -1
            if code == 0:
                break
            connector.judge(copy)
        else:
            report.violations.append(f"it does not catch up: exit {code}; see {connector.copy.log}")
    judge = judged(
        stage.servers.kafka.url, connector.name, workload, schema=stage.origin.schema, handed_over=handed_over
    )
    _add(report, judge, "")
    if APART in " ".join(stage.origin.captured()["tables"]) and (keys := world.differing(stage)):
        report.lost += len(keys)
        report.violations.append(f"lost: {APART} {keys[:SHOWN]}: the rows are not those of the source")
    report.events = judge.events
    report.transactions = judge.transactions


def judge_of(workload: Workload) -> Judge:
    """One that knows what the workload's transactions are like."""
    kind = workload.kind
    return Judge(total=workload.total, truncates_alone=kind.truncates_alone, read_again=kind.read_again)


def judged(
    kafka: str,
    prefix: str,
    workload: Workload,
    *,
    schema: str,
    handed_over: int,
    isolation: str = "read_committed",
) -> Judge:
    """Everything in the topics, by a fresh reader, against the source as it is now."""
    judge = judge_of(workload)
    with closing(Reader(kafka, topics_of(prefix, schema), isolation=isolation)) as reader:
        if not reader.open() or (ends := reader.ends()) is None or not reader.read(judge.feed, ends, within_s=120):
            judge.found.add("lost", "the topics cannot be read to their end")
    judge.finish(workload.contents(), handed_over=handed_over)
    return judge


def _add(report: Report, judge: Judge, where: str) -> None:
    found = judge.found
    report.lost += found.lost
    report.doubled += found.doubled
    report.torn += found.torn
    report.order_breaks += found.order_breaks
    report.violations += [f"{where}{line}" for line in found.said]


class Witnesses:
    """Two threads that watch: one samples the slot against the position, one reads the topics as they grow."""

    def __init__(self, stage: Stage, workload: Workload) -> None:
        self._stage = stage
        self._over = threading.Event()
        self._threads = [
            threading.Thread(target=self._until_over, args=(step, every_s), name=step.__name__, daemon=True)
            for step, every_s in ((self._sample, _SAMPLE_EVERY_S), (self._read, _ROUND_EVERY_S))
        ]
        self._reader: Reader | None = None
        self.judge = judge_of(workload)
        self.handed_over: int | None = None
        self.samples = self.ahead = self.rounds = self.views = 0
        self.said: list[str] = []

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
        if self._reader is not None:
            self._reader.close()

    def _until_over(self, step: Callable[[], None], every_s: float) -> None:
        try:
            while not self._over.wait(every_s):
                step()
        except Exception as exc:
            log.exception("a witness failed")
            self.said.append(f"a witness failed: {type(exc).__name__}: {exc}")

    def _sample(self) -> None:
        """The slot first, then the position: what the server may forget must have been in Kafka before."""
        self._stage.connector.copy.measure() if self._stage.connector.copies else None
        slot = self._stage.origin.held(self._stage.connector.name)
        last = self._stage.positions.last
        if last is None or last.state.phase is Phase.CREATING:
            return
        views = last.state.snapshot.get("views", {})
        self.views = max(self.views, len(views) if isinstance(views, dict) else 0)
        if slot is None:
            return
        position = last.state.commit
        if slot > position:
            newest = self._stage.positions.newest()
            if newest is None or newest.phase is Phase.CREATING:
                return
            position = newest.commit
        self.samples += 1
        if slot > position:
            self.ahead += 1
            if self.ahead <= SHOWN:
                self.said.append(f"slot at {slot:x}, position at {position:x}")

    def _read(self) -> None:
        """The position, then the topics to their ends, then the position again."""
        if self._reader is None:
            reader = Reader(self._stage.servers.kafka.url, topics_of(NAME, self._stage.origin.schema))
            if not reader.open():
                reader.close()
                return
            self._reader = reader
        before = self._stage.positions.last
        ends = self._reader.ends()
        if ends is None:
            return
        whole = self._reader.read(self.judge.feed, ends, within_s=5)
        after = self._stage.positions.newest()
        if after is not None and after.phase is Phase.STREAM:
            self.judge.ahead(after.commit)
        if whole and before is not None and self.handed_over is not None:
            self.judge.settle(before.state.commit, handed_over=self.handed_over)
            self.rounds += 1
