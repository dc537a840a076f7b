"""`python -m tests.faults.view_soak --seconds N --seed S`: views under faults; a table on stdout, exit 1 on violations.

A bank transfers, people search and click; a connector, a view job and an apply job are killed and frozen at random, the
broker too, and the views' state is lost now and then. All along a reader looks at the sum of all balances: it never
changes. At the end each view is what Spark's batch answer over its tables is, the copy is what the view's topic says,
and no event was published twice or without a change.
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
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import orjson
import psycopg2
from confluent_kafka import KafkaException

from cdc.config.apply_config import ApplySource
from cdc.config.config import load_apply
from cdc.config.views import load_views
from cdc.dev.servers import kafka, postgres
from cdc.dev.servers.process import Server
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.views.proof.verify import verify_views
from tests.faults.connector import Copy

ACCOUNTS: Final = 300
OWNERS: Final = 12
TOTAL: Final = ACCOUNTS * 100

_SCHEMA: Final = (
    "CREATE TABLE account (id int PRIMARY KEY, owner int NOT NULL, balance bigint NOT NULL)",
    "CREATE TABLE search (id bigint PRIMARY KEY, at timestamptz NOT NULL)",
    "CREATE TABLE click (id bigint PRIMARY KEY, search bigint NOT NULL, at timestamptz NOT NULL)",
    f"INSERT INTO account SELECT n, n % {OWNERS}, 100 FROM generate_series(1, {ACCOUNTS}) n",
)

_CONNECTOR: Final = """\
name: bank
source: {{type: postgres, url: "${{SOAK_URL}}", tables: ["public.*"]}}
sink: {{type: kafka, bootstrap_servers: "{kafka}", partitions: 3, idle_position_s: 1}}
"""

_VIEWS: Final = """\
name: bank-views
source: {{bootstrap_servers: "{kafka}", topic_prefix: bank}}
state: {folder}/views/state
sink: {{partitions: 3}}
views:
  owners:
    sql: SELECT owner, count(*) AS n, sum(balance) AS total FROM public.account GROUP BY owner
    key: [owner]
  bank:
    sql: SELECT 'all' AS k, sum(total) AS total FROM view.owners
    key: [k]
  richest:
    sql: >
      SELECT owner, id, balance FROM
      (SELECT *, row_number() OVER (PARTITION BY owner ORDER BY balance DESC, id) AS place FROM public.account) a
      WHERE place <= 3
    key: [owner, id]
  outcome:
    from: {{public.search: {{time: at, keep: 1h}}, public.click: {{time: at, keep: 1h}}}}
    sql: >
      SELECT s.id, CASE WHEN min(c.at) IS NULL THEN 'not clicked' ELSE 'clicked' END AS outcome
      FROM public.search s
      LEFT JOIN public.click c ON c.search = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 3 SECONDS
      GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 4 SECONDS <= clock()
    key: [id]
  unanswered:
    pattern: {{of: public.search, by: id, match: "asked", define: {{asked: "id % 7 = 0"}}, time: at}}
    key: [id]
"""

_APPLY: Final = """\
name: bank-copy
source: {{bootstrap_servers: "{kafka}", topic_prefix: bank}}
stores: {{copy: {{type: tantivy, path: "{folder}/copy"}}}}
tables: {{view.owners: {{stores: [copy]}}, view.outcome: {{stores: [copy]}}}}
checkpoint: {folder}/checkpoint
"""

_STARTS_S: Final = 120.0

log = logging.getLogger("view-soak")


@dataclass
class Found:
    """What came of it."""

    seconds: float
    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    events: int = 0
    steps: int = 0
    reads: int = 0
    """How often the sum of all balances was looked at."""
    violations: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines = [
            ("seconds", f"{self.seconds:.0f}"), ("seed", self.seed), ("faults", self.faults.total()),
            *((f"  {kind}", number) for kind, number in sorted(self.faults.items())),
            ("transactions", self.transactions), ("events of views", self.events), ("steps", self.steps),
            ("reads of the sum", self.reads), ("violations", len(self.violations)),
        ]  # fmt: skip
        width = max(len(name) for name, _ in lines)
        said = "".join(f"\n  VIOLATION {line}" for line in self.violations)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines) + said


@dataclass
class Job:
    """A command that is started again whenever it has ended."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    environment: Mapping[str, str]
    copies: list[Copy] = field(default_factory=list)

    def start(self, *more: str) -> Copy:
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.folder / f"{self.name}-{len(self.copies)}.log"
        with out.open("wb") as sink:
            process = subprocess.Popen(
                [sys.executable, "-m", "cdc", *self.arguments, *more], stdout=sink, stderr=sink, env=self.environment
            )
        self.copies.append(Copy(process, out, time.time()))
        return self.copies[-1]

    @property
    def copy(self) -> Copy:
        return self.copies[-1]

    def revive(self) -> None:
        if not self.copies or not self.copy.alive:
            self.start()

    def stop(self) -> None:
        self.copy.signal(signal.SIGCONT)
        self.copy.signal(signal.SIGTERM)
        try:
            self.copy.process.wait(60)
        except subprocess.TimeoutExpired:
            self.copy.kill()


class Bank:
    """The workload: transactions that keep the sum, and searches with and without a click."""

    def __init__(self, url: str, seed: int) -> None:
        self._url, self._random = url, random.Random(seed)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)
        self.transactions = 0
        with closing(psycopg2.connect(url)) as connection, connection, connection.cursor() as cursor:
            for statement in _SCHEMA:
                cursor.execute(statement)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(30)

    def _work(self) -> None:
        with closing(psycopg2.connect(self._url)) as connection:
            while not self._over.wait(self._random.uniform(0.001, 0.03)):
                with connection, connection.cursor() as cursor:
                    self._transact(cursor)
                self.transactions += 1

    def _transact(self, cursor: Any) -> None:
        kind, number = self._random.random(), self.transactions
        if kind < 0.7:
            amount = self._random.randint(1, 50)
            cursor.execute("SELECT id FROM account ORDER BY random() LIMIT 2")
            (one,), (other,) = cursor.fetchall()
            cursor.execute("UPDATE account SET balance = balance - %s WHERE id = %s", (amount, one))
            cursor.execute("UPDATE account SET balance = balance + %s WHERE id = %s", (amount, other))
        elif kind < 0.8:
            owner = self._random.randrange(OWNERS)
            cursor.execute("UPDATE account SET owner = %s WHERE id = %s", (owner, self._random.randint(1, ACCOUNTS)))
        elif kind < 0.85:  # an account closes, and one opens with what it had
            cursor.execute(
                "DELETE FROM account WHERE id = %s RETURNING owner, balance", (self._random.randint(1, ACCOUNTS),)
            )
            row = cursor.fetchone()
            if row is not None:
                cursor.execute("INSERT INTO account VALUES (%s, %s, %s)", (ACCOUNTS + 1 + number, *row))
        elif kind < 0.95:
            cursor.execute("INSERT INTO search VALUES (%s, clock_timestamp())", (number,))
        else:
            cursor.execute(
                "INSERT INTO click SELECT %s, id, clock_timestamp() FROM search ORDER BY at DESC LIMIT 1", (number,)
            )


class Witness:
    """Reads the view of the sum all the while."""

    def __init__(self, source: ApplySource) -> None:
        self._source, self._over = source, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.reads, self.violations = 0, list[str]()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join(60)

    def _watch(self) -> None:
        while not self._over.wait(0.5):
            try:
                last = None
                if "bank.view.bank" in existing_topics(self._source, ["bank.view.bank"]):
                    for event in _events(self._source, "bank"):
                        last = event
            except (OperatorError, KafkaException) as exc:  # the broker is away
                log.debug("the witness waits: %s", exc)
                continue
            if last is not None:
                self.reads += 1
                if last["after"] is None or int(last["after"]["total"]) != TOTAL:
                    self.violations.append(f"the sum is {last['after']} at {last['source']['position']}")


def _events(source: ApplySource, view: str) -> list[Any]:
    found = [
        orjson.loads(m.value()) for m in committed_records(source, f"bank.view.{view}", 3) if m.value() is not None
    ]  # type: ignore[arg-type]
    return sorted(found, key=lambda event: str(event["source"]["position"]))


@dataclass
class Stage:
    """What faults are played on."""

    kafka: Server
    jobs: Mapping[str, Job]
    state: Path
    random: random.Random

    def revive(self) -> None:
        for job in self.jobs.values():
            job.revive()


def _killed(name: str, stage: Stage) -> None:
    stage.jobs[name].copy.kill()
    stage.jobs[name].start()


def _frozen(name: str, stage: Stage) -> None:
    stage.jobs[name].copy.signal(signal.SIGSTOP)
    time.sleep(stage.random.uniform(1, 6))
    stage.jobs[name].copy.signal(signal.SIGCONT)


def _replaced(stage: Stage) -> None:
    """A second copy of the view job, with a state of its own making, fences the first, which is frozen meanwhile."""
    stage.jobs["views"].copy.signal(signal.SIGSTOP)
    first = stage.jobs["views"].copy
    shutil.move(stage.state, stage.state.with_name(f"lost-{time.time_ns()}"))
    stage.jobs["views"].start()
    time.sleep(stage.random.uniform(10, 25))
    first.signal(signal.SIGCONT)
    deadline = time.monotonic() + 60
    while first.alive and stage.jobs["views"].copy.alive and time.monotonic() < deadline:
        time.sleep(0.5)
    first.kill()


def _state_lost(stage: Stage) -> None:
    stage.jobs["views"].copy.kill()
    shutil.rmtree(stage.state, ignore_errors=True)
    stage.jobs["views"].start()


def _broker_killed(stage: Stage) -> None:
    stage.kafka.kill()
    time.sleep(stage.random.uniform(0, 3))
    stage.kafka.start()


def _broker_frozen(stage: Stage) -> None:
    stage.kafka.pause()
    try:
        time.sleep(stage.random.uniform(1, 8))
    finally:
        stage.kafka.resume()


FAULTS: Final[Mapping[str, Callable[[Stage], None]]] = {
    "connector killed": partial(_killed, "connector"),
    "view job killed": partial(_killed, "views"),
    "view job killed again": partial(_killed, "views"),
    "apply job killed": partial(_killed, "copy"),
    "connector frozen": partial(_frozen, "connector"),
    "view job frozen": partial(_frozen, "views"),
    "broker killed": _broker_killed,
    "broker frozen": _broker_frozen,
    "state lost": _state_lost,
    "view job replaced while frozen": _replaced,
}


@contextmanager
def _servers(folder: Path) -> Iterator[tuple[Server, Server]]:
    source = Server("postgres18", folder / "database", partial(postgres.prepare, major=18))
    broker = Server("kafka", folder / "kafka", kafka.prepare)
    try:
        source.start()
        broker.start()
        yield source, broker
    finally:
        broker.resume()
        broker.stop(timeout_s=5)
        source.stop(timeout_s=5)


def soak_views(*, seconds: float, seed: int, folder: Path) -> Found:
    """Run it whole."""
    found, began_s = Found(seconds, seed), time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    with _servers(folder / "servers") as (source, broker):
        environment = {**os.environ, "SOAK_URL": source.url}
        for name, text in (("connector", _CONNECTOR), ("views", _VIEWS), ("apply", _APPLY)):
            (folder / f"{name}.yaml").write_text(text.format(kafka=broker.url, folder=folder))
        jobs = {
            "connector": Job("connector", ("run", str(folder / "connector.yaml")), folder / "logs", environment),
            "views": Job("views", ("view", "run", str(folder / "views.yaml")), folder / "logs", environment),
            "copy": Job("copy", ("apply", str(folder / "apply.yaml")), folder / "logs", environment),
        }
        stage = Stage(broker, jobs, folder / "views" / "state", random.Random(seed))
        bank, views = Bank(source.url, seed), load_views(folder / "views.yaml")
        witness = Witness(views.source)
        try:
            _play(stage, bank, witness, found, until_s=began_s + seconds)
            bank.stop()
            _finish(stage, found)
        finally:
            bank.stop()
            witness.stop()
            for job in jobs.values():
                for copy in job.copies:
                    if copy.alive:
                        copy.signal(signal.SIGCONT)
                        copy.kill()
        found.transactions, found.reads = bank.transactions, witness.reads
        found.violations += witness.violations[:10]
        _judge(folder, found)
    found.seconds = time.monotonic() - began_s
    return found


def _play(stage: Stage, bank: Bank, witness: Witness, found: Found, *, until_s: float) -> None:
    bank.start()
    stage.jobs["connector"].start()
    source = ApplySource(bootstrap_servers=stage.kafka.url, topic_prefix="bank")
    _await(
        lambda: "bank.public.account" in existing_topics(source, ["bank.public.account"]),
        "the connector makes its topics",
    )
    stage.jobs["views"].start()
    _await(
        lambda: "bank.view.outcome" in existing_topics(source, ["bank.view.outcome"]), "the view job makes its topics"
    )
    witness.start()
    _await((stage.state / "status.json").exists, "the view job takes a step")
    stage.jobs["copy"].start()
    kinds: list[str] = []
    while time.monotonic() < until_s:
        if not kinds:
            kinds = list(FAULTS)
            stage.random.shuffle(kinds)
        kind = kinds.pop()
        began_s = time.monotonic()
        FAULTS[kind](stage)
        found.faults[kind] += 1
        while time.monotonic() < began_s + stage.random.uniform(2, 20):
            stage.revive()
            time.sleep(0.5)
        log.info("%-32s %.1f s", kind, time.monotonic() - began_s)


def _await(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + _STARTS_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.3)


def _finish(stage: Stage, found: Found) -> None:
    """Let each of them catch up with the one before it, in turn."""
    time.sleep(6)  # so that the deadlines of the last searches pass
    for name, more in (("connector", "--until-caught-up"), ("views", "--once"), ("copy", "--once")):
        job = stage.jobs[name]
        job.stop()
        copy = job.start(more)
        try:
            code = copy.process.wait(300)
        except subprocess.TimeoutExpired:
            code = -1
        if code:
            found.violations.append(f"{name} does not catch up: exit {code}; see {copy.log}")
    for job in stage.jobs.values():
        for copy in job.copies:
            if "Traceback" in (said := copy.said()) and "KeyboardInterrupt" not in said:
                found.violations.append(f"a traceback in {copy.log}")


def _judge(folder: Path, found: Found) -> None:
    config, apply = load_views(folder / "views.yaml"), load_apply(folder / "apply.yaml")
    for of in verify_views(config):
        if not of.agrees:
            found.violations.append(f"view {of.view}: {json.dumps(asdict(of))}")
    kept: dict[str, dict[str, Any]] = {}
    for view in config.views:
        kept[view] = _folded(_events(config.source, view), view, found)
    versions = schema_versions(config.source)
    with closing(open_store(apply.stores["copy"], name="copy", prefix="bank", spark=None)) as store:
        for view in ("owners", "outcome"):
            made = target(versions[f"view.{view}"], {})
            copied = sorted(str(row.document) for row in store.rows(made))
            if len(copied) != len(kept[view]):
                found.violations.append(f"the copy of {view} has {len(copied)} rows, its topic {len(kept[view])}")


def _folded(events: list[Any], view: str, found: Found) -> dict[str, Any]:
    """Fold a view's events step by step, and hold them against what is promised."""
    rows: dict[str, Any] = {}
    positions: set[str] = set()
    steps: dict[str, list[Any]] = {}
    for event in events:
        steps.setdefault(event["transaction"]["id"], []).append(event)
        if (at := event["source"]["position"]) in positions:
            found.violations.append(f"{view}: doubled at {at}")
        positions.add(at)
    for step, changes in steps.items():
        for event in changes:
            row = event["after"] if event["op"] != "d" else event["before"]
            key = orjson.dumps({name: row[name] for name in load_key(view)}).decode()
            if (event["op"] == "c") == (key in rows):
                found.violations.append(f"{view}: {event['op']} of {key} in step {step}, which is there or is not")
            if event["op"] == "u" and rows.get(key) == event["after"]:
                found.violations.append(f"{view}: nothing changes in {key} in step {step}")
            if event["op"] == "d":
                rows.pop(key, None)
            else:
                rows[key] = event["after"]
        if view == "owners" and (total := sum(int(row["total"]) for row in rows.values())) != TOTAL:
            found.violations.append(f"torn: after step {step} the owners have {total}")
    found.events += len(events)
    found.steps = max(found.steps, len(steps))
    return rows


def load_key(view: str) -> tuple[str, ...]:
    """The key of a view."""
    return {"owners": ("owner",), "bank": ("k",), "richest": ("owner", "id"), "outcome": ("id",)}.get(view, ("id",))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.view_soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where servers, state and logs are")
    given = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="cdc-view-soak-"))).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    print(f"seed {given.seed}, logs in {folder}", file=sys.stderr)
    found = soak_views(seconds=given.seconds, seed=given.seed, folder=folder)
    print(found.table())
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
