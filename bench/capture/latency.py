"""Measures the time from commit to visible (read_committed) at a steady rate: `python -m bench.capture.latency`.

A separate process inserts single rows into PostgreSQL, over four connections, as durably as the server is configured,
and notes when each commit returned. A read_committed consumer notes when each row came. Ours and Debezium run one after
the other: ours as it is installed, exactly once; Debezium at least once, with its default `poll.interval.ms` (500) and
with 5 ms, and with a producer that does not wait to fill its batches.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final, Self

import orjson
import psycopg2
from confluent_kafka import Consumer, KafkaException, TopicPartition

from bench.capture.databases import OPENED, SHAPES, TABLE, Database
from bench.capture.streams import Bench
from bench.measure import tell
from bench.measure.meter import Topic
from bench.peers import debezium
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError

CONNECTIONS: Final = 4
_BEHIND_S: Final = 30.0
_INSERT: Final = f"INSERT INTO {TABLE} VALUES (%s, 1, 'new', 1.5, 1, 'a note', now(), now(), 1)"


def write(url: str, first: int, count: int, rate: float) -> dict[int, float]:
    """Insert rows numbered from `first`, one a transaction; when each commit returned, on the machine's one clock."""
    committed: dict[int, float] = {}
    begun_s = time.monotonic()

    def some(number: int) -> None:
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            connection.autocommit = True
            for n in range(number, count, CONNECTIONS):
                due_s = begun_s + n / rate - time.monotonic()
                if due_s > 0:
                    time.sleep(due_s)
                cursor.execute(_INSERT, (first + n,))
                committed[first + n] = time.monotonic()

    threads = [threading.Thread(target=some, args=(number,)) for number in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return committed


class Watch:
    """Notes on a thread when each row came."""

    def __init__(self, kafka: str, topic: Topic, name: str) -> None:
        self._settings = {
            "bootstrap.servers": kafka,
            "group.id": "bench-latency",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": "5",
        }
        self._assigned = [TopicPartition(name, p, end) for p, end in enumerate(topic.ends())]
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.came: dict[int, float] = {}

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        with closing(Consumer(self._settings)) as consumer:
            consumer.assign(self._assigned)
            while not self._over.is_set():
                for message in consumer.consume(1_000, timeout=0.002):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    now_s = time.monotonic()
                    self.came.setdefault(orjson.loads(message.key() or b"{}").get("id", 0), now_s)


class Latency(Bench):
    """The latencies of PostgreSQL; `Bench` starts the programs."""

    def measured(self, *, rate: float, warm_s: float, seconds: float) -> dict[str, dict[str, float]]:
        """Return by program the milliseconds, and the rows written a second."""
        self._database.create()
        found = {}
        programs: dict[str, Callable[[], Iterator[None]]] = {
            "cdc": self._ours_runs,
            "Debezium, its defaults": lambda: self._peer_runs("peer-default", {"poll.interval.ms": "500"}),
            "Debezium, poll.interval.ms=5": lambda: self._peer_runs("peer-soon", {"poll.interval.ms": "5"}),
        }
        names = {
            "cdc": "latency",
            "Debezium, its defaults": "peer-default",
            "Debezium, poll.interval.ms=5": "peer-soon",
        }
        for program, running in programs.items():
            tell(f"{program}: {rate:,.0f} transactions/s")
            with contextmanager(running)():
                found[program] = self._delays(names[program], rate=rate, warm_s=warm_s, seconds=seconds)
        return found

    def _ours_runs(self) -> Iterator[None]:
        with self._running("latency", TABLE):
            self._await_row("latency")
            yield

    def _peer_runs(self, name: str, more: Mapping[str, str]) -> Iterator[None]:
        with debezium.Worker(self._folder / f"connect-{name}", self._database.kind, self._kafka) as worker:
            self._topic(name, TABLE).create()
            worker.start({**self._peer(name, TABLE), "producer.override.linger.ms": "0", **more})
            self._await_row(name)
            yield

    def _await_row(self, name: str) -> None:
        """Wait until a written row comes."""
        topic, deadline = self._topic(name, TABLE), time.monotonic() + 120
        while sum(topic.ends()) == 0:
            _in_time(deadline, name)
            time.sleep(0.2)
        time.sleep(3)
        before = sum(topic.ends())
        self._database.write(self._next, 1)
        self._next += 1
        while sum(topic.ends()) == before:
            _in_time(deadline, name)
            time.sleep(0.2)

    def _delays(self, name: str, *, rate: float, warm_s: float, seconds: float) -> dict[str, float]:
        first, count = self._next, round(rate * (warm_s + seconds))
        self._next += count
        with (
            Watch(self._kafka, self._topic(name, TABLE), f"{name}.{self._database.schema}.{TABLE}") as watch,
            multiprocessing.get_context("spawn").Pool(1) as pool,
        ):
            begun_s = time.monotonic()
            committed = pool.apply(write, (self._database.url, first, count, rate))
            took_s = time.monotonic() - begun_s
            deadline = time.monotonic() + _BEHIND_S
            while not committed.keys() <= watch.came.keys():
                _in_time(deadline, name)
                time.sleep(0.05)
        counted = [(watch.came[n] - at_s) * 1000 for n, at_s in committed.items() if n >= first + round(rate * warm_s)]
        cuts = statistics.quantiles(counted, n=100)
        return {"p50": cuts[49], "p99": cuts[98], "max": max(counted), "per_s": count / took_s, "rows": len(counted)}


def _in_time(deadline: float, name: str) -> None:
    if time.monotonic() > deadline:
        raise OperatorError(f"{name} does not come to what was committed")


def measured(folder: Path, *, rate: float, warm_s: float, seconds: float) -> dict[str, dict[str, float]]:
    server, opened = OPENED["postgres"]
    with DevServers(folder / "servers", servers=(server, "kafka")) as servers:
        database: Database = opened(servers[server], SHAPES["9"])
        with closing(database):
            return Latency(folder, database, servers, server).measured(rate=rate, warm_s=warm_s, seconds=seconds)


def table(found: Mapping[str, Mapping[str, float]]) -> str:
    lines = [f"{'commit to visible, ms':<32}{'p50':>8}{'p99':>8}{'max':>8}{'transactions/s':>16}"]
    lines += [
        f"  {name:<30}{of['p50']:>8.1f}{of['p99']:>8.1f}{of['max']:>8.1f}{of['per_s']:>16,.0f}"
        for name, of in found.items()
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=1_000, help="transactions a second (default: %(default)s)")
    parser.add_argument("--warm", type=float, default=20, help="seconds that do not count (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=30, help="seconds that count (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            found = measured(Path(name), rate=given.rate, warm_s=given.warm, seconds=given.seconds)
    except CdcError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(table(found))
    print(
        f"\n{given.seconds:.0f} s behind {given.warm:.0f} s that do not count; {os.cpu_count()} cores, load {load:.1f}."
    )
    print(f"cdc: exactly once. Debezium {debezium.VERSION}: at least once, a producer with linger.ms=0.")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
