"""Measures the cost of an event by the number of events and of tables: `python -m bench.capture.growth`.

Our connector reads PostgreSQL alone, in a process of its own, from when it begins to follow the log until it has caught
up (`bench.capture.run`). The cost of a run with a single transaction is subtracted, so that the start is not divided
among few events. CPU is user and system time of the process with its threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Final, NamedTuple

import psycopg2

from bench.capture.databases import SHAPES, transactions
from bench.measure import PROJECT, tell
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError

PARTITIONS: Final = 6
COLUMNS, VALUES = SHAPES["9"].postgres
_MANY: Final = 2_000_000
"""From so many events on, only every other run is made."""
_FEW: Final = 300_000
"""Below so many events, more runs are made instead of one: other load disturbs a short run more."""
_PER_TRANSACTION: Final = 100


class Case(NamedTuple):
    """A number of events in a number of tables."""

    title: str
    name: str
    number: int
    events: int


class Used(NamedTuple):
    """The resources of a process; CPU and seconds since it began to follow the log."""

    cpu_s: float
    seconds: float
    peak_mb: float


class Cost(NamedTuple):
    """The cost of an event, without that of the start."""

    title: str
    events: int
    cpu_us: float
    per_s: float
    peak_mb: float


class Growth:
    """One PostgreSQL and one broker."""

    def __init__(self, folder: Path, url: str, kafka: str) -> None:
        self._folder, self._url, self._kafka = folder, url, kafka
        self._connection = psycopg2.connect(url)
        self._connection.autocommit = True
        self._next = 1
        self._partitions: dict[str, int] = {}

    def close(self) -> None:
        self._connection.close()

    def events(self, counts: Sequence[int], runs: int) -> list[Cost]:
        """Measure by the number of events."""
        self._tables("events", 1)
        return self._costs([Case(f"{n:,} events", "events", 1, n) for n in counts], runs)

    def tables(self, numbers: Sequence[int], count: int, runs: int, partitions: int = PARTITIONS) -> list[Cost]:
        """Measure by the number of tables, in topics of so many partitions."""
        each = "" if partitions == PARTITIONS else f", {partitions} each"
        cases = [Case(f"of {n} tables{each}", f"of{n}_{partitions}", n, count) for n in numbers]
        for case in cases:
            self._tables(case.name, case.number, partitions)
        return self._costs(cases, runs)

    def _tables(self, name: str, number: int, partitions: int = PARTITIONS) -> None:
        self._partitions[name] = partitions
        self._execute(*(f"CREATE TABLE {name}_{n} ({COLUMNS})" for n in range(number)))
        tell(f"{name}: {number} tables")
        self._run(name)

    def _costs(self, cases: Sequence[Case], runs: int) -> list[Cost]:
        """Return medians of alternating runs, so that other load disturbs all cases alike."""
        made: dict[Case, list[Cost]] = {case: [] for case in cases}
        for turn in range(runs):
            for case in cases:
                if case.events < _MANY or turn % 2 == 0:
                    for _ in range(max(1, _FEW // case.events)):
                        made[case].append(self._cost(case))
        return [
            Cost(
                case.title,
                case.events,
                statistics.median(of.cpu_us for of in costs),
                statistics.median(of.per_s for of in costs),
                statistics.median(of.peak_mb for of in costs),
            )
            for case, costs in made.items()
        ]

    def _cost(self, case: Case) -> Cost:
        title, name, number, count = case
        self._run(name)  # reads over the changes of other tables
        self._write(name, number, _PER_TRANSACTION)
        begun = self._run(name)
        self._write(name, number, count)
        whole = self._run(name)
        cpu_us = (whole.cpu_s - begun.cpu_s) / count * 1e6
        tell(f"{title}: {cpu_us:.2f} µs")
        return Cost(title, count, cpu_us, count / max(0.001, whole.seconds - begun.seconds), whole.peak_mb)

    def _write(self, name: str, number: int, count: int) -> None:
        self._execute("SET synchronous_commit = off")
        for turn, (first, last) in enumerate(transactions(self._next, count, _PER_TRANSACTION)):
            table = f"{name}_{turn % number}"
            self._execute(f"INSERT INTO {table} SELECT {VALUES} FROM generate_series({first}, {last}) n")
        self._next += count
        self._execute("SET synchronous_commit = on", "SELECT txid_current()")

    def _run(self, name: str) -> Used:
        file = self._folder / f"{name}.yaml"
        config = {
            "name": name,
            "source": {"type": "postgres", "url": "${BENCH_URL}", "tables": [f"public.{name}_*"]},
            "sink": {"type": "kafka", "bootstrap_servers": self._kafka, "partitions": self._partitions[name]},
        }
        file.write_text(json.dumps(config))
        said = self._folder / f"{name}.json"
        with (self._folder / f"{name}.log").open("wb") as log, said.open("wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "bench.capture.run", str(file)],
                env={**os.environ, "BENCH_URL": self._url, "PYTHONPATH": str(PROJECT)},
                stdout=out,
                stderr=log,
            )
            _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise OperatorError(f"cdc run has failed: {Path(log.name).read_text()[-2000:]}")
        used = json.loads(said.read_text().splitlines()[-1])
        return Used(used["cpu_s"], used["seconds"], usage.ru_maxrss / 1024)

    def _execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def table(found: Sequence[Cost]) -> str:
    lines = [f"{'':<24}{'CPU µs/event':>14}{'events/s':>12}{'peak MB':>10}"]
    lines += [f"  {of.title:<22}{of.cpu_us:>14.2f}{of.per_s:>12,.0f}{of.peak_mb:>10,.0f}" for of in found]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--events", default="100000,1000000,10000000", help="comma-separated (default: %(default)s)")
    parser.add_argument("--tables", default="1,20,200", help="comma-separated (default: %(default)s)")
    parser.add_argument(
        "--partitions", default=f"{PARTITIONS},1", help="of a table's topic, comma-separated (default: %(default)s)"
    )
    parser.add_argument("--of", type=int, default=1_000_000, help="events of those tables (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=7, help="of each below two million events (default: %(default)s)")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    counts = [int(count) for count in given.events.split(",") if count]
    numbers = [int(number) for number in given.tables.split(",") if number]
    partitions = [int(number) for number in given.partitions.split(",") if number]
    found: list[Cost] = []
    load = os.getloadavg()[0]
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            folder = Path(name)
            with (
                DevServers(folder / "servers", servers=("postgres18", "kafka")) as servers,
                closing(Growth(folder, servers["postgres18"].url, servers["kafka"].url)) as growth,
            ):
                found += growth.events(counts, given.runs)
                for number in partitions:
                    found += growth.tables(numbers, given.of, given.runs, number)
    except CdcError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(table(found))
    rarely = (given.runs + 1) // 2
    print(
        f"\nMedians of {given.runs} alternating runs ({rarely} of {_MANY:,} events and more; of fewer than {_FEW:,} "
        f"some more\ninstead of one), rows of nine columns, 100 a transaction, topics of {PARTITIONS} partitions "
        "unless said otherwise."
    )
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start.")
    if given.json:
        given.json.write_text(json.dumps([of._asdict() for of in found], indent=1) + "\n")


if __name__ == "__main__":
    main()
