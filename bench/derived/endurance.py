"""Measures what an apply job needs over thousands of small batches, with hundreds of tables, and while nothing comes.

    python -m bench.derived.endurance [--store postgres] [--tables 1] [--batches 5000] [--idle 60]

Each batch is one transaction of one row in `--changed` of the tables; it begins when the one before it is in the store.
A line is printed ten times: seconds a batch, the resident memory of Python and of the JVM, and what of the JVM's heap
is in use once it was collected. Then nothing is written for `--idle` seconds: what both need meanwhile is printed. They
are the job's alone, but for the producer, which is Python's. At the end each row is compared.

    python -m bench.derived.endurance --backlog 10000000 [--store postgres] [--keys 1000000]

So many events (an insert of each key, then updates of random keys, of nine columns) are there when the job starts, with
the memory that it has by default. A line for each batch: its seconds, the rows that were handed to the store by then,
the resident memory of both processes. At the end CPU and their greatest sizes, and each row is compared.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.derived.apply import SETUPS
from bench.derived.backlog import Backlog
from bench.derived.backlog import table as made_table
from bench.derived.following import PATIENCE_S, database
from bench.measure import tell
from bench.measure.meter import cpu_ticks, peak_kb, stat
from cdc.config.apply_config import ApplySource, ApplyTable
from cdc.config.config import ApplyConfig
from cdc.dev.servers import launch
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.job import run_apply
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.spark.session import open_session
from tests.spark.records import Publisher, Record, SourceTable, position

PREFIX: Final = "endurance"
_COLUMNS: Final = {"id": {"kind": "int64"}, "status": {"kind": "string"}}
_KEYS: Final = 10
_AT_ONCE: Final = 500_000
"""So many events are made ahead of their writing, in this process, whose memory is counted."""
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_RSS: Final = re.compile(r"VmRSS:\s+(\d+) kB")


class Job:
    """The job on a thread; `batches` counts those that are in the store."""

    def __init__(self, config: ApplyConfig) -> None:
        self._config, self._stop = config, threading.Event()
        self._moved = threading.Condition()
        self.batches = 0
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="apply", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(PATIENCE_S)

    def wait(self, batches: int) -> None:
        """Wait for so many batches. Raises what ended the job."""
        with self._moved:
            there = self._moved.wait_for(lambda: self.failure is not None or self.batches >= batches, PATIENCE_S)
        if self.failure is not None:
            raise self.failure
        if not there:
            raise OperatorError(f"batch {batches} is not there within {PATIENCE_S:.0f} s")

    def _run(self) -> None:
        try:
            run_apply(self._config, once=False, stop=self._stop, progress=self._told)
        except BaseException as exc:  # noqa: BLE001 - raised where it is waited for
            with self._moved:
                self.failure = exc
                self._moved.notify_all()

    def _told(self, line: str) -> None:
        if line.startswith("batch "):
            with self._moved:
                self.batches = int(line.split()[1].rstrip(":"))
                self._moved.notify_all()


def _cpu_s(jvm: int) -> list[float]:
    """Return the CPU seconds of this process and of the JVM."""
    return [cpu_ticks(stat(pid)) / _TICKS for pid in (os.getpid(), jvm)]


def resident_mb(pid: int) -> float:
    found = _RSS.search(Path(f"/proc/{pid}/status").read_text())
    return int(found[1]) / 1024 if found else 0.0


@dataclass(frozen=True, slots=True)
class Scene:
    """Servers that run, a job's configuration, and Spark."""

    bootstrap: str
    config: ApplyConfig
    spark: Any
    jvm: int
    """The process of the JVM."""


@contextmanager
def scene(store: str, folder: Path) -> Iterator[Scene]:
    setup = SETUPS[store]
    servers = tuple(sorted({"kafka", *filter(None, [setup.server])}))
    tell("starting servers")
    with DevServers(folder / "servers", servers=servers) as running:
        urls = {name: running[name].url for name in servers}
        if setup.server == "postgres18":
            urls["warehouse"] = database(urls["postgres18"], PREFIX)
        config = ApplyConfig(
            name=PREFIX,
            source=ApplySource(bootstrap_servers=urls["kafka"], topic_prefix=PREFIX),
            stores={store: setup.config(folder, urls)},
            tables={"public.*": ApplyTable(stores=(store,))},
            checkpoint=str(folder / "checkpoints"),
        )
        spark: Any = open_session("bench")
        jvm = next(pid for pid in launch.family(os.getpid())[1:] if "java" in stat(pid))
        yield Scene(urls["kafka"], config, spark, jvm)
        spark.stop()


def caught_up(given: argparse.Namespace, folder: Path) -> None:
    """Apply a backlog in one run."""
    with scene(given.store, folder) as at:
        of, keys = made_table(PREFIX), min(given.keys, given.backlog)
        tell(f"writing {given.backlog:,} events")
        backlog = Backlog(at.bootstrap, of)
        backlog.rows(keys)
        for seed, begin in enumerate(range(keys, given.backlog, _AT_ONCE)):
            backlog.updates(min(_AT_ONCE, given.backlog - begin), keys, seed=seed)
        print(f"{given.store}: a backlog of {given.backlog:,} events of {keys:,} keys")
        print(f"{'batch':>6} {'seconds':>8} {'rows':>12} {'Python MB':>10} {'JVM MB':>8}")
        used, begun = _cpu_s(at.jvm), time.monotonic()
        last = begun

        def told(line: str) -> None:
            nonlocal last
            if not line.startswith("batch "):
                return
            number, rows = map(int, re.findall(r"\d+", line)[:2])
            now, mine, theirs = time.monotonic(), resident_mb(os.getpid()), resident_mb(at.jvm)
            print(f"{number:>6} {now - last:>8.1f} {rows:>12,} {mine:>10,.0f} {theirs:>8,.0f}", flush=True)
            last = now

        run_apply(at.config, once=True, progress=told)
        took, peaks = time.monotonic() - begun, [peak_kb(pid) / 1024 for pid in (os.getpid(), at.jvm)]
        spent = [1e6 * (now - was) / given.backlog for now, was in zip(_cpu_s(at.jvm), used, strict=True)]
        print(f"all in {took:.0f} s, {given.backlog / took:,.0f} events/s (Spark was up)")
        print(f"CPU an event: {spent[0]:.1f} µs in Python, {spent[1]:.1f} µs in the JVM")
        print(f"at most {peaks[0]:,.0f} MB in Python, {peaks[1]:,.0f} MB in the JVM")
        _compare(at.config, [of], {(of.name, key): f"status {new}" for key, new in backlog.statuses.items()})


def measured(given: argparse.Namespace, folder: Path) -> None:
    """Apply batch after batch, then nothing."""
    with scene(given.store, folder) as at:
        tables = [SourceTable(PREFIX, f"t{number:03}", _COLUMNS) for number in range(given.tables)]
        publisher = Publisher(at.bootstrap, PREFIX)
        publisher.create(tables, partitions=1)
        job, rows = Job(at.config), dict[tuple[str, int], str]()

        def change(commit: int) -> None:
            some = [tables[(commit * given.changed + n) % len(tables)] for n in range(given.changed)]
            records: list[Record] = []
            for of in some if commit else tables:
                row = {"id": commit % _KEYS, "status": f"at {commit}"}
                rows[of.name, commit % _KEYS] = f"at {commit}"
                records += of.event("u", row, position(10 * commit + 5))
            publisher.stand(Phase.STREAM, 10 * commit + 9, tables, records)

        begun = time.monotonic()
        change(0)
        job.start()
        job.wait(1)
        print(
            f"{given.store}, {given.tables} tables: the first row after {time.monotonic() - begun:.1f} s (Spark was up)"
        )
        print(f"{'batches':>8} {'s a batch':>10} {'Python MB':>10} {'JVM MB':>8} {'heap MB':>8}")
        step, done = max(1, given.batches // 10), 0
        while done < given.batches:
            begun, before = time.monotonic(), job.batches
            for _ in range(min(step, given.batches - done)):
                done, were = done + 1, job.batches
                change(done)
                job.wait(were + 1)
            each = (time.monotonic() - begun) / (job.batches - before)
            at.spark._jvm.java.lang.System.gc()
            heap = at.spark._jvm.java.lang.Runtime.getRuntime()
            alive = (heap.totalMemory() - heap.freeMemory()) / 1e6
            mine, theirs = resident_mb(os.getpid()), resident_mb(at.jvm)
            print(f"{job.batches:>8,} {each:>10.3f} {mine:>10,.0f} {theirs:>8,.0f} {alive:>8,.0f}", flush=True)
        used = _cpu_s(at.jvm)
        time.sleep(given.idle)
        shares = [100 * (now - was) / given.idle for now, was in zip(_cpu_s(at.jvm), used, strict=True)]
        print(f"idle for {given.idle} s: {shares[0]:.1f}% of a core in Python, {shares[1]:.1f}% in the JVM")
        print(f"{resident_mb(os.getpid()):,.0f} MB in Python, {resident_mb(at.jvm):,.0f} MB in the JVM")
        job.stop()
        _compare(at.config, tables, rows)


def _compare(config: ApplyConfig, tables: list[SourceTable], rows: dict[tuple[str, int], str]) -> None:
    """Raise OperatorError unless the copies have exactly these rows."""
    ((name, about),) = config.stores.items()
    versions = schema_versions(config.source)
    store = open_store(about, name=name, prefix=config.source.topic_prefix, spark=open_session("bench"))
    found: dict[tuple[str, int], object] = {}
    for of in tables:
        for row in store.rows(target(versions[of.qualified], {}, rekeys=True)):
            document = json.loads(row.document)
            found[of.name, int(document["id"])] = document["status"]
    store.close()
    if found != rows:
        raise OperatorError(f"{len(found)} rows are in the copies, {len(rows)} were to be; or some differ")
    print(f"all {len(rows):,} rows are as they were written last")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", default="postgres", choices=[*SETUPS])
    parser.add_argument("--tables", type=int, default=1, help="default: %(default)s")
    parser.add_argument("--changed", type=int, default=1, help="tables in a batch (default: %(default)s)")
    parser.add_argument("--batches", type=int, default=5_000, help="default: %(default)s")
    parser.add_argument("--idle", type=int, default=60, help="seconds (default: %(default)s)")
    parser.add_argument("--backlog", type=int, metavar="EVENTS", help="that are there at the start, instead of batches")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of a backlog (default: %(default)s)")
    given = parser.parse_args()
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start")
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            (caught_up if given.backlog else measured)(given, Path(name))
    except CdcError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
