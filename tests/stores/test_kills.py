"""One job with every type of store, killed at each step of a batch: docs/guarantees.md, line by line."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig, load_apply
from cdc.model.state import Phase
from spark_apply.model.completeness import Mark
from spark_apply.model.store import open_store
from spark_apply.verify.contents import Contents, contents
from tests.conftest import FULL, Database
from tests.spark.cluster import cluster
from tests.spark.crashing import POINTS, WHO, WORKER
from tests.spark.laws import Record, Setting, until
from tests.spark.records import SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

SEED = 20
PATIENCE_S = 240
STORES = ("opensearch", "tantivy", "iceberg", "delta", "postgres")
COLUMNS = {"id": {"kind": "int64"}, "balance": {"kind": "int64"}, "note": {"kind": "string"}}
ACCOUNTS = 12
TOTAL = 2 * ACCOUNTS * 100
LOCAL = {"spark.master": "local[2]"}
Kill = tuple[str, int, str]
"""Point, which passing of it, who dies."""
BEGINNING = [("iceberg.commit", 1, "driver")]
"""The first batch is written to Iceberg in another way than those after it."""
STREAM = [
    ("opensearch.before", 1, "all"),
    ("opensearch.in", 1, "driver"),
    ("opensearch.after", 1, "all"),
    ("tantivy.in", 1, "all"),
    ("tantivy.commit", 1, "driver"),
    ("tantivy.after", 1, "all"),
    ("iceberg.in", 1, "all"),
    ("iceberg.commit", 1, "driver"),
    ("iceberg.after", 1, "all"),
    ("delta.in", 1, "all"),
    ("delta.commit", 1, "driver"),
    ("delta.after", 2, "all"),
    ("postgres.commit", 1, "driver"),
    ("mark", 4, "all"),
    ("delta.commit", 4, "all"),
]
"""A batch of two tables comes again after each kill, and gets a step further; the last kill is in the one after it."""
AGAIN = [("postgres.in", 1, "all"), ("postgres.after", 1, "driver")]
"""With the checkpoint deleted."""
SOME: Mapping[int, list[Kill]] = {
    0: [],
    1: [("delta.commit", 1, "driver")],
    2: [("postgres.in", 1, "all")],
}
"""Of the three lists, what `make test` tries: before a commit and in one, and each of who may die."""
SAME = {
    "tantivy.before": "opensearch.after",
    "iceberg.before": "tantivy.after",
    "delta.before": "iceberg.after",
    "postgres.before": "delta.after",
}


@dataclass
class Bank:
    """Accounts in two tables; a source transaction writes both and leaves the sum of all balances as it was."""

    here: SourceTable
    there: SourceTable
    rng: random.Random
    commit: int = 10
    told: list[tuple[str, str, int, dict[str, Any] | None]] = field(default_factory=list)
    """Table, position, id, the row from then on."""
    records: list[Record] = field(default_factory=list)
    _balances: dict[str, dict[int, int]] = field(default_factory=dict)
    _number: int = 0

    def __post_init__(self) -> None:
        self._balances = {table.name: dict.fromkeys(range(ACCOUNTS), 100) for table in (self.here, self.there)}

    def snapshot(self) -> list[Record]:
        self._number = -1
        return [r for t in (self.here, self.there) for id_ in range(ACCOUNTS) for r in self._event("r", t, id_)]

    def transaction(self) -> list[Record]:
        """A transfer; with it, now and then, an account is closed, opened, or gets another number."""
        self.commit, self._number = self.commit + 1, 0
        one, other = self.rng.sample((self.here, self.there), 2)
        mine, theirs = self._balances[one.name], self._balances[other.name]
        giver, taker = self.rng.choice(sorted(mine)), self.rng.choice(sorted(theirs))
        amount = self.rng.randrange(1, 50)
        kind, free = self.rng.random(), self.rng.choice([n for n in range(40) if n not in mine])
        records: list[Record] = []
        if kind < 0.2 and len(mine) > 3:
            amount = mine.pop(giver)
            records += self._event("d", one, giver)
        elif kind < 0.4:
            mine[free] = -amount
            records += self._event("c", one, free)
        elif kind < 0.6:
            mine[free] = mine.pop(giver) - amount
            records += self._event("d", one, giver)
            records += self._event("c", one, free)
        else:
            mine[giver] -= amount
            records += self._event("u", one, giver)
        theirs[taker] += amount
        return records + self._event("u", other, taker)

    def _event(self, op: str, table: SourceTable, id_: int) -> list[Record]:
        self._number += 1
        at = position(self.commit, max(self._number, 0) if op != "r" else 0)
        row = {"id": id_, "balance": self._balances[table.name].get(id_, 0), "note": f"{op} {at} ☂"}
        self.told.append((table.name, at, id_, None if op == "d" else row))
        made = table.event(op, row, at)
        self.records += made
        return made

    def states(self, table: SourceTable, below: str) -> dict[str, list[dict[str, Any] | None]]:
        """Of each key, the state that all events before a position give, and those that later ones give."""
        found: dict[str, list[dict[str, Any] | None]] = {}
        for name, at, id_, row in self.told:
            if name == table.name:
                states = found.setdefault(json.dumps({"id": id_}, separators=(",", ":")), [None])
                if at < below:
                    states[:] = [row]
                else:
                    states.append(row)
        return found


class Reader(threading.Thread):
    """Looks at the sum over both tables all the while, as a user of the warehouse does."""

    def __init__(self, database: Database) -> None:
        super().__init__(daemon=True)
        self._database, self._over = database, threading.Event()
        self.sums: set[int | None] = set()
        self.moved: set[object] = set()

    def run(self) -> None:
        connection = self._database.connect()
        with connection.cursor() as cursor:
            while not self._over.wait(0.02):
                with contextlib.suppress(Exception):  # the tables are not there yet
                    cursor.execute("SELECT sum(balance) FROM here UNION ALL SELECT sum(balance) FROM there")
                    one, other = (found for (found,) in cursor.fetchall())
                    self.sums.add(None if one is None and other is None else (one or 0) + (other or 0))
                    self.moved.add(one)
        connection.close()

    def stop(self) -> None:
        self._over.set()
        self.join()


class Jobs:
    """Processes of the job, each killed by itself; of `runs` the next one starts up while one is at work."""

    def __init__(self, file: Path, runs: int = 0) -> None:
        self._file, self._runs = file, runs
        self._all: list[tuple[subprocess.Popen[str], Path]] = []
        self._ready: list[tuple[subprocess.Popen[str], Path]] = []

    def _start(self) -> tuple[subprocess.Popen[str], Path]:
        log = self._file.with_name(f"job{len(self._all)}.log")
        with log.open("w") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.spark.crashing", str(self._file)],
                stdin=subprocess.PIPE, stdout=said, stderr=said, text=True, start_new_session=True,
            )  # fmt: skip
        self._all.append((process, log))
        return process, log

    def killed(self, point: str, times: int, who: str) -> None:
        process, log = self._ready.pop() if self._ready else self._start()
        if len(self._all) < self._runs:
            self._ready.append(self._start())
        process.communicate(f"{who} {point} {times}\n", timeout=PATIENCE_S)
        assert process.returncode == -signal.SIGKILL, (point, times, who, log.read_text())

    def survives(self, point: str, workers: Iterable[int]) -> None:
        """To its end, while a worker is killed."""
        self.undisturbed(" ".join(map(str, (WORKER, point, 1, *workers))))
        assert f"{WORKER} killed" in self._all[-1][1].read_text(), point

    def undisturbed(self, asked: str = "nobody") -> None:
        """To its end."""
        process, log = self._ready.pop() if self._ready else self._start()
        process.communicate(f"{asked}\n", timeout=PATIENCE_S)
        assert process.returncode == 0, (asked, log.read_text())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process, _ in self._all:
            if _is_there(process.pid):  # a JVM may outlive its Python
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@dataclass
class Copies:
    """The stores of a job, as others see them."""

    setting: Setting
    config: ApplyConfig

    @contextlib.contextmanager
    def store(self, name: str) -> Iterator[Any]:
        spark = self.setting.spark.newSession()
        opened = open_store(self.config.stores[name], name=name, prefix=self.setting.prefix, spark=spark)
        try:
            yield opened
        finally:
            opened.close()

    def marked(self, name: str, *tables: SourceTable) -> Iterator[tuple[SourceTable, Mark, Contents]]:
        """Marks, and contents that they spoke of when they were read; not of tables of which nothing is complete."""
        with self.store(name) as store:
            for table in tables:
                before: Mark | None = None
                found: Contents = {}
                made = self.setting.target(table)
                while (mark := store.mark(made)) is not None and mark.complete is not None:
                    if mark == before:  # else a JVM, or a server, that was at it when its client was killed
                        yield table, mark, found
                        break
                    before, found = mark, contents(store, made)


def _file(folder: Path, prefix: str, kafka: str, urls: Mapping[str, str], spark: Mapping[str, str]) -> Path:
    server = {"options": {"shards": 1, "replicas": 0}}
    stores = {
        name: {"type": name, **({"url": urls[name]} if name in urls else {"path": str(folder / name)})}
        for name in STORES
    }
    stores["opensearch"] |= server
    config = {
        "name": "killed",
        "source": {"bootstrap_servers": kafka, "topic_prefix": prefix},
        "stores": stores,
        "tables": {"public.*": {"stores": list(STORES)}},
        "checkpoint": str(folder / "checkpoints"),
        "spark": {"spark.driver.memory": "1g", **spark},
    }
    file = folder / "apply.yaml"
    file.write_text(json.dumps(config))
    return file


def _hold_what_they_say(copies: Copies, bank: Bank, names: Iterable[str], where: object) -> int:
    """How many marks were looked at: each copy has all before its position; that in PostgreSQL, nothing else."""
    looked_at = 0
    for name in names:
        for table, mark, found in copies.marked(name, bank.here, bank.there):
            assert mark.complete is not None
            states = bank.states(table, mark.complete.position)
            assert found.keys() <= states.keys(), (where, name, table.name)
            for key, allowed in states.items():
                possible = allowed[:1] if name == "postgres" else allowed
                assert found.get(key) in possible, (where, name, table.name, key, mark.complete.position)
            looked_at += 1
    return looked_at


@dataclass
class Stage:
    """A bank, its job with every type of store, and a reader of the warehouse."""

    setting: Setting
    urls: Mapping[str, str]
    database: Database
    spark: Mapping[str, str]
    seed: int = field(default_factory=lambda: int(os.environ.get("SEED", SEED)))
    looked_at: int = 0
    """How many marks were held against what is in the stores."""
    _left: list[Record] = field(default_factory=list)

    def __post_init__(self) -> None:
        print(f"SEED={self.seed}")
        setting, self.publisher = self.setting, self.setting.publisher()
        self.bank = Bank(setting.table("here", COLUMNS), setting.table("there", COLUMNS), random.Random(self.seed))
        self.tables = [self.bank.here, self.bank.there]
        self.publisher.create(self.tables)
        self.file = _file(setting.folder, setting.prefix, setting.bootstrap, self.urls, self.spark)
        self.copies = Copies(setting, load_apply(self.file))
        self.publisher.stand(Phase.SNAPSHOT, self.bank.commit, self.tables, self.bank.snapshot())
        self.reader = Reader(self.database)

    def work(self) -> None:
        """A batch can end in the middle of a transaction, but for a delete and its tombstone."""
        for _ in range(12):
            self.publisher.stand(Phase.STREAM, self.bank.commit + 1, self.tables, self._left)
            self._left = self.bank.transaction()
        begun = 2 if self._left[1][2] is None else 1
        self.publisher.publish(self._left[:begun])
        self._left = self._left[begun:]

    def look(self, names: Iterable[str], where: object) -> None:
        self.looked_at += _hold_what_they_say(self.copies, self.bank, names, (self.seed, where))

    def end(self) -> None:
        """In the end all copies are the fold, and the reader has never seen half a transfer."""
        self.publisher.stand(Phase.STREAM, self.bank.commit + 1, self.tables, self._left)
        self.setting.apply(self.copies.config)
        folded = {table.name: self.setting.folded(table, self.bank.records) for table in self.tables}
        whole, ended = position(self.bank.commit + 1, 0), 0
        for name in STORES:
            for table, mark, found in self.copies.marked(name, *self.tables):
                assert (mark.complete.position, found) == (whole, folded[table.name]), (self.seed, name, table.name)
                ended += 1
        assert ended == len(STORES) * len(self.tables)
        self.reader.stop()
        assert self.reader.sums - {None} == {TOTAL}, self.seed
        assert len(self.reader.moved - {None}) > 1, "nothing moved while it was looked at"


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
def test_a_kill_at_every_step(
    *, workers: int, apply_spark: SparkSession, kafka: str, opensearch: str, postgres18: Database, tmp_path: Path
) -> None:
    """Each run recovers from the kill before it, and is killed itself; in the end all copies are the fold.

    Also where executors of a cluster, which are not killed with it, read and write what is in a batch.
    """
    setting = Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="none"))
    urls = {"opensearch": opensearch, "postgres": postgres18.url}
    lists = (BEGINNING, STREAM, AGAIN) if FULL else tuple(SOME.values())
    with contextlib.ExitStack() as stack:
        at = stack.enter_context(cluster(tmp_path / "cluster", workers)) if workers else None
        stage = Stage(setting, urls, postgres18, LOCAL if at is None else at.settings)
        stage.reader.start()
        runs = sum(map(len, lists)) + FULL
        jobs = stack.enter_context(Jobs(stage.file, runs if at is None else 0))  # two would wait for each other's cores
        for number, kills in enumerate(lists):
            if number == 1:
                stage.work()
            if number == 1 and FULL:
                jobs.undisturbed()
            elif number == 1:  # the same in a Spark that is up
                setting.apply(stage.copies.config)
            if number == 2:
                shutil.rmtree(tmp_path / "checkpoints")
            for point, times, who in kills:
                begun = time.monotonic()
                stage.work()
                jobs.killed(point, times, who)
                middle = time.monotonic()
                killed = STORES if point == "mark" else {point.partition(".")[0], "postgres"}
                stage.look(killed, (point, times, who))
                print(f"{point} {times} {who}: {middle - begun:.1f} s, looked at in {time.monotonic() - middle:.1f} s")
        stage.end()
        assert stage.looked_at > len(lists[1])


@pytest.mark.full  # test_two_workers_fold_what_one_would_and_one_of_them_may_be_killed
@pytest.mark.timeout(3600)
def test_a_worker_that_is_killed_at_every_step(
    *, apply_spark: SparkSession, kafka: str, opensearch: str, postgres18: Database, tmp_path: Path
) -> None:
    """With the executor that has the batch: the job goes on with the other one, and all copies are the fold."""
    setting = Setting(apply_spark, kafka, tmp_path, lambda _: StoreConfig(type="none"))
    with cluster(tmp_path / "cluster", 2) as at:
        urls = {"opensearch": opensearch, "postgres": postgres18.url}
        stage = Stage(setting, urls, postgres18, at.settings)
        stage.reader.start()
        with Jobs(stage.file) as jobs:
            for point in sorted({point for point, _, _ in BEGINNING + STREAM + AGAIN}):
                stage.work()
                jobs.survives(point, [worker.pid or 0 for worker in at.workers])
                stage.look(STORES if point == "mark" else {point.partition(".")[0], "postgres"}, point)
                for worker in at.workers:
                    worker.start()
                until(lambda: at.alive() == len(at.workers))
        stage.end()


def test_every_point_is_tried() -> None:
    """A point nobody passes proves nothing."""
    tried = {point for point, _, _ in BEGINNING + STREAM + AGAIN}
    assert {SAME.get(point, point) for point in POINTS} == tried


def test_some_of_each_kind_are_tried_each_time() -> None:
    """Under way in the fourth store is after the first three, which have the batch: it comes again to them."""
    some = [kill for kills in SOME.values() for kill in kills]
    assert all(set(SOME[at]) <= set(kills) for at, kills in enumerate((BEGINNING, STREAM, AGAIN)))
    assert {point.partition(".")[2] for point, _, _ in some} == {"in", "commit"}
    assert {who for _, _, who in some} == set(WHO)
