"""`python -m tests.faults.apply_soak --seconds N --seed S`: an apply job some of whose copies fail, all at random.

Six tables in two stores. Of three, rows come that are no events, that do not fit, or that PostgreSQL refuses; or the
table there is altered, dropped or locked. Now and then PostgreSQL does not answer at all. The other three must not
notice: how long a commit takes until a copy shows it is measured for a while without a fault, then with them, and its
99th percentile may double at most, which is judged on the command line alone: a test shares its machine. In the end
everything is undone, and each copy is the fold of its topic.
"""

from __future__ import annotations

import argparse
import itertools
import logging
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg2

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.servers.process import Server
from cdc.dev.stack import SERVERS
from cdc.model.change import Position
from cdc.model.state import Phase
from spark_apply.events.quarantine import read_entries
from spark_apply.events.set_aside import read_set_aside
from spark_apply.model.store import open_store
from spark_apply.spark.session import open_session
from tests.faults.proxy import Proxy
from tests.spark.laws import Record, Setting, until
from tests.spark.records import SourceTable, position

COLUMNS: Final = {"id": {"kind": "int64"}, "v": {"kind": "string"}, "count": {"kind": "int32"}}
QUIET, TROUBLED = ("quiet0", "quiet1", "quiet2"), ("odd0", "odd1", "odd2")
_KEYS: Final = 20
_TRANSACTION_S: Final = 0.2
_WARM_S, _COMES_BACK_S = 20.0, 30.0
_TIMES, _LEAST_S = 2.0, 0.5
"""So many times the undisturbed freshness may be taken, which counts as half a second at least."""
_STARTS_S: Final = 400.0

log = logging.getLogger("apply-soak")


@dataclass
class Found:
    """What came of it."""

    seed: int
    faults: Counter[str] = field(default_factory=Counter)
    transactions: int = 0
    quarantined: int = 0
    """At most, looked at behind each fault: what is bad is made up for by the next event of its key."""
    p99_s: dict[str, tuple[float, float]] = field(default_factory=dict)
    """By store, of the tables without a fault: before the faults, and during them."""
    slower: list[str] = field(default_factory=list)
    """Stores whose tables without a fault took longer than they may."""
    violations: list[str] = field(default_factory=list)

    def table(self) -> str:
        lines: list[tuple[str, object]] = [("seed", self.seed), ("faults", self.faults.total())]
        lines += [(f"  {kind}", number) for kind, number in sorted(self.faults.items())]
        lines += [("transactions", self.transactions), ("rows in quarantine at most", self.quarantined)]
        lines += [(f"{store}, p99", f"{calm:.2f} s, {hard:.2f} s") for store, (calm, hard) in self.p99_s.items()]
        lines += [("violations", len(self.violations))]
        width = max(len(name) for name, _ in lines)
        said = "".join(f"\n  SLOWER {line}" for line in self.slower)
        said += "".join(f"\n  VIOLATION {line}" for line in self.violations)
        return "\n".join(f"{name:<{width}}  {value}" for name, value in lines) + said


class Writer(threading.Thread):
    """Transactions over all tables; what is asked for in `bad` is in the next one."""

    def __init__(self, setting: Setting, tables: Mapping[str, SourceTable], seed: int) -> None:
        super().__init__(daemon=True)
        self._publisher, self._tables, self._rng = setting.publisher(), tables, random.Random(seed)
        self._publisher.create(tables.values(), partitions=1)
        self._over = threading.Event()
        self._commits = itertools.count(10, 10)
        self.bad: list[tuple[str, str]] = []
        self.committed: list[tuple[int, float]] = []
        """Where the source stands behind a transaction, and when it was committed, on the monotonic clock."""
        self.good: list[Record] = []
        self._hurt: set[tuple[str, int]] = set()

    def run(self) -> None:
        while not self._over.wait(_TRANSACTION_S):
            self.write([(name, self._rng.randrange(_KEYS)) for name in self._tables])

    def write(self, keys: list[tuple[str, int]], *, put_right: bool = False) -> None:
        commit, records = next(self._commits), list[Record]()
        for at, (name, key) in enumerate(keys, 1):
            op = "d" if not put_right and self._rng.random() < 0.1 else "u"
            row = {"id": key, "v": f"at {commit}", "count": commit}
            made = self._tables[name].event(op, row, position(commit, at))
            self.good += made
            records += made
        wanted, self.bad = self.bad, []
        for at, (name, kind) in enumerate(wanted, len(keys) + 1):
            key, row = self._rng.randrange(_KEYS), {"v": "refused" if kind == "refused" else "", "count": commit}
            row |= {"id": key} | ({"count": 1 << 40} if kind == "too large" else {})
            ((topic, of, value),) = self._tables[name].event("u", row, position(commit, at))
            records.append((topic, of, b'{"x": 1}' if kind == "no event" else value))
            self._hurt.add((name, key))
        self._publisher.stand(Phase.STREAM, commit + 5, self._tables.values(), records)
        self.committed.append((commit + 5, time.monotonic()))

    def end(self) -> None:
        """Make up for each row that was bad by a newer one."""
        self._over.set()
        self.join()
        self.write(sorted(self._hurt), put_right=True)


class Watch(threading.Thread):
    """Asks a store all the while up to where the tables without a fault are complete."""

    def __init__(self, setting: Setting, store: StoreConfig, tables: list[SourceTable]) -> None:
        super().__init__(daemon=True)
        self._targets = [setting.target(table) for table in tables]
        self._store = open_store(store, name="watched", prefix=setting.prefix, spark=None)
        self._over = threading.Event()
        self.seen: list[tuple[int, float]] = []

    def run(self) -> None:
        with closing(self._store):
            while not self._over.wait(0.05):
                marks = [self._store.mark(table) for table in self._targets]
                ends = [Position.parse(m.complete.position).commit for m in marks if m is not None and m.complete]
                if len(ends) == len(marks) and (not self.seen or min(ends) > self.seen[-1][0]):
                    self.seen.append((min(ends), time.monotonic()))

    def stop(self) -> None:
        self._over.set()
        self.join()

    def p99_s(self, committed: list[tuple[int, float]]) -> float:
        """How long what was committed took to be seen; what was never seen has taken until now."""
        ends, now = [end for end, _ in self.seen], time.monotonic()
        places = [(bisect_left(ends, end), at) for end, at in committed]
        waits = sorted((self.seen[place][1] if place < len(ends) else now) - at for place, at in places)
        return waits[int(0.99 * (len(waits) - 1))] if waits else 0.0


@dataclass
class Stage:
    """What faults are played on."""

    url: str
    proxy: Proxy
    writer: Writer
    random: random.Random
    away: list[tuple[float, float]] = field(default_factory=list)
    """When PostgreSQL did not answer, until its copies had time to come back."""

    def execute(self, *statements: str) -> None:
        """Do what another hand does; what the job holds just now may be in its way."""
        with closing(psycopg2.connect(self.url)) as connection, connection, connection.cursor() as cursor:
            cursor.execute("SET lock_timeout = '5s'")
            for statement in statements:
                cursor.execute(statement)

    def undo(self, statement: str) -> None:
        """Do what another fault relies on, as often as it takes."""
        for _ in range(30):
            with suppress(psycopg2.Error):
                return self.execute(statement)
        return self.execute(statement)


def _bad(kind: str, stage: Stage) -> None:
    stage.writer.bad.append((stage.random.choice(TROUBLED), kind))
    time.sleep(1)


def _altered(stage: Stage) -> None:
    name = stage.random.choice(TROUBLED)
    stage.execute(f"ALTER TABLE {name} ALTER COLUMN v TYPE varchar(1) USING 'x'")
    time.sleep(stage.random.uniform(2, 10))
    stage.undo(f"DROP TABLE IF EXISTS {name}")  # which lost values: it is made again


def _dropped(stage: Stage) -> None:
    stage.execute(f"DROP TABLE {stage.random.choice(TROUBLED)}")


def _locked(stage: Stage) -> None:
    with closing(psycopg2.connect(stage.url)) as connection, connection, connection.cursor() as cursor:
        cursor.execute(f"SET lock_timeout = '5s'; LOCK TABLE {stage.random.choice(TROUBLED)} IN ACCESS EXCLUSIVE MODE")
        time.sleep(stage.random.uniform(2, 10))


def _away(stage: Stage) -> None:
    began_s = time.monotonic()
    stage.proxy.refuse(True)
    stage.proxy.cut()
    time.sleep(stage.random.uniform(3, 20))
    stage.proxy.refuse(False)
    stage.away.append((began_s, time.monotonic() + _COMES_BACK_S))


FAULTS: Final[Mapping[str, Callable[[Stage], None]]] = {
    "a row that is no event": lambda stage: _bad("no event", stage),
    "a row that does not fit": lambda stage: _bad("too large", stage),
    "a row that is refused": lambda stage: _bad("refused", stage),
    "a table altered": _altered,
    "a table dropped": _dropped,
    "a table locked": _locked,
    "a store away": _away,
}


def soak_apply(*, seconds: float, seed: int, folder: Path) -> Found:
    """Run it whole."""
    found = Found(seed)
    broker = Server("kafka", folder / "kafka", SERVERS["kafka"])
    database = Server("postgres18", folder / "database", SERVERS["postgres18"])
    spark = open_session("soak", {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "2g"})
    try:
        broker.start()
        database.start()
        with Proxy(kafka=False) as proxy:
            port = urlsplit(database.url).port or 5432
            proxy.lead_to(port)
            through = StoreConfig(type="postgres", url=database.url.replace(f":{port}/", f":{proxy.port}/"))
            setting = Setting(spark, broker.url, folder, lambda path: StoreConfig(type="tantivy", path=str(path)))
            stores = {"search": setting.config().stores["copy"], "warehouse": through}
            config = replace(setting.config(), stores=stores, tables={"public.*": ApplyTable(stores=tuple(stores))})
            _play(
                setting, config, Stage(database.url, proxy, _writer(setting, seed), random.Random(seed)), found, seconds
            )
    finally:
        broker.stop(timeout_s=5)
        database.stop(timeout_s=5)
    return found


def _writer(setting: Setting, seed: int) -> Writer:
    return Writer(setting, {name: setting.table(name, COLUMNS) for name in (*QUIET, *TROUBLED)}, seed)


def _play(setting: Setting, config: ApplyConfig, stage: Stage, found: Found, seconds: float) -> None:
    tables, writer = {name: setting.table(name, COLUMNS) for name in (*QUIET, *TROUBLED)}, stage.writer
    direct = {**config.stores, "warehouse": StoreConfig(type="postgres", url=stage.url)}
    writer.write([(name, 0) for name in tables], put_right=True)
    with setting.running("checkpoints", config) as job:
        until(lambda: job.said("batch 1"), _STARTS_S)
        for name in TROUBLED:  # kept with the name of the table: a trigger of the schema's hand, as it were
            stage.execute(f"ALTER TABLE {name} ADD CHECK (v <> 'refused')")
        watches = {name: Watch(setting, store, [tables[of] for of in QUIET]) for name, store in direct.items()}
        for thread in (writer, *watches.values()):
            thread.start()
        time.sleep(_WARM_S)
        began_s = time.monotonic()
        time.sleep(seconds / 3)
        hard_s = time.monotonic()
        kinds: list[str] = []
        while time.monotonic() < began_s + seconds and job.failure is None:
            kinds = kinds or stage.random.sample([*FAULTS], len(FAULTS))
            kind = kinds.pop()
            found.faults[kind] += 1
            with suppress(psycopg2.Error):  # a table that is set aside for one fault may have no place for the next
                FAULTS[kind](stage)
            log.info("%s", kind)
            found.quarantined = max(found.quarantined, len(read_entries(config)))
            time.sleep(stage.random.uniform(0, 4))
        end_s = time.monotonic()
        writer.end()
        found.transactions = len(writer.committed)
        with suppress(AssertionError):
            until(lambda: not read_set_aside(config) or job.failure is not None, 180)
        if job.failure is not None:
            found.violations.append(f"the job ended: {job.failure}")
    setting.apply(replace(config, checkpoint=str(setting.folder / "checkpoints")))
    for name, watch in watches.items():
        watch.stop()
        gaps = stage.away if name == "warehouse" else []
        calm = watch.p99_s([of for of in writer.committed if began_s < of[1] < hard_s])
        left_out = [(since - calm, until) for since, until in gaps]  # what was on its way then had to wait, too
        hard = watch.p99_s(
            [of for of in writer.committed if hard_s < of[1] < end_s and not any(a < of[1] < b for a, b in left_out)]
        )
        found.p99_s[name] = calm, hard
        if hard > _TIMES * max(calm, _LEAST_S):
            found.slower.append(f"{name}: tables without a fault took {hard:.2f} s, and {calm:.2f} s before")
    _judge(setting, direct, tables, writer, found)
    left = len(read_entries(config))
    found.violations += [f"{left} rows are left in quarantine"] if left else []


def _judge(
    setting: Setting, stores: Mapping[str, StoreConfig], tables: Mapping[str, SourceTable], writer: Writer, found: Found
) -> None:
    for name, store in stores.items():
        alone = replace(setting.config(), stores={"copy": store})
        for of in tables.values():
            has: Any = setting.contents(of, alone)
            wanted: Any = setting.folded(of, [record for record in writer.good if record[0] == of.topic])
            if has != wanted:
                differ = sum(has.get(key) != wanted.get(key) for key in {*has, *wanted})
                found.violations.append(f"{of.name} in {name}: {differ} rows differ of {len(wanted)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.apply_soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--folder", type=Path, help="where servers and copies are")
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(message)s", stream=sys.stderr)
    log.setLevel(logging.INFO)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="cdc-apply-soak-"))).absolute()
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    found = soak_apply(seconds=given.seconds, seed=given.seed, folder=folder)
    print(found.table())
    return 1 if found.violations or found.slower else 0


if __name__ == "__main__":
    sys.exit(main())
