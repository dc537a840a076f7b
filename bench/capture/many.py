"""Measures what many of one thing cost on one machine: `python -m bench.capture.many`. On servers of its own.

* Idle connectors under one `cdc run`, each with a slot, a table and metrics of its own: memory and CPU of all
  processes, once every one of them follows the log and nobody writes. Memory is the proportional set size (PSS of
  /proc/PID/smaps_rollup): what processes share counts once.
* One connector with many tables: how long it takes to read them for the first time, how long a start takes after that,
  and its peak memory (VmHWM). A start is the whole of `cdc run --until-caught-up` with one new row to publish.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.request import urlopen

import psycopg2
from psycopg2 import extensions

from bench.measure import tell
from bench.measure.meter import Usage, peak_kb
from cdc.dev.servers import kafka, launch, postgres
from cdc.dev.servers.process import Server
from cdc.model.errors import CdcError, OperatorError

_READY_WITHIN_S: Final = 600.0
_SETTLE_S: Final = 20.0
"""Work that follows a start, such as the first looks at the world, is not idleness."""
_PSS: Final = re.compile(r"^Pss:\s+(\d+) kB", re.MULTILINE)
_FIRST_PORT: Final = 19_187


class Many:
    """One PostgreSQL and one broker."""

    def __init__(self, folder: Path, database: extensions.connection, broker: str) -> None:
        self._folder = folder
        self._database = database
        self._kafka = broker

    def idle(self, number: int, seconds: float) -> str:
        """Run connectors that have nothing to do for so many seconds; return a line."""
        tell(f"{number} connectors")
        self._execute(*(f"CREATE TABLE idle_{n} (id int PRIMARY KEY)" for n in range(number)))
        ports = range(_FIRST_PORT, _FIRST_PORT + number)
        files = [self._file(f"idle{n}", [f"public.idle_{n}"], port) for n, port in enumerate(ports)]
        begun = time.monotonic()
        with (self._folder / "idle.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "cdc", "run", *map(str, files)], stderr=log)
            try:
                while not all(_is_ready(port) for port in ports):
                    if process.poll() is not None or time.monotonic() - begun > _READY_WITHIN_S:
                        raise OperatorError(f"not all connectors follow: {Path(log.name).read_text()[-2000:]}")
                    time.sleep(1)
                ready_s = time.monotonic() - begun
                time.sleep(_SETTLE_S)
                usage = Usage(process.pid)
                before, since = usage.seconds(look=True), time.monotonic()
                time.sleep(seconds)
                cpu = (usage.seconds() - before) / (time.monotonic() - since)
                memory_mb = sum(_pss_kb(pid) for pid in launch.family(process.pid)) / 1024
            finally:
                process.terminate()
                process.wait()
        return (
            f"{number} idle connectors: {memory_mb:,.0f} MB, {cpu * 100:.0f}% of a core "
            f"({memory_mb / number:.0f} MB and {cpu / number * 100:.2f}% each); all ready after {ready_s:.0f} s"
        )

    def tables(self, number: int, runs: int) -> str:
        """Start a connector of so many tables; return a line."""
        tell(f"{number} tables")
        self._execute(*(f"CREATE TABLE many_{n} (id int PRIMARY KEY, note text)" for n in range(number)))
        file = self._file("many", ["public.many_*"])
        first_s, first_mb = self._caught_up(file)
        took: list[tuple[float, float]] = []
        for run in range(runs):
            self._execute(f"INSERT INTO many_{run} VALUES (1, 'new')")
            took.append(self._caught_up(file))
        start_s, start_mb = (statistics.median(column) for column in zip(*took, strict=True))
        return (
            f"1 connector of {number:,} tables: first read in {first_s:.1f} s with {first_mb:.0f} MB; "
            f"a start after it {start_s:.1f} s, {start_mb:.0f} MB (medians of {runs})"
        )

    def _caught_up(self, file: Path) -> tuple[float, float]:
        """Return seconds and peak megabytes of `cdc run FILE --until-caught-up`."""
        begun, peak = time.monotonic(), 0
        with (self._folder / "many.log").open("wb") as log:
            process = subprocess.Popen([sys.executable, "-m", "cdc", "run", str(file), "--until-caught-up"], stderr=log)
            while process.poll() is None:
                peak = max(peak, peak_kb(process.pid))
                time.sleep(0.02)
        if process.returncode:
            raise OperatorError(f"cdc run has failed: {Path(log.name).read_text()[-2000:]}")
        return time.monotonic() - begun, peak / 1024

    def _file(self, name: str, tables: Sequence[str], port: int | None = None) -> Path:
        config: dict[str, Any] = {
            "name": name,
            "source": {"type": "postgres", "url": "${BENCH_URL}", "tables": tables},
            "sink": {"type": "kafka", "bootstrap_servers": self._kafka, "partitions": 1},
        }
        if port is not None:
            config["metrics"] = {"listen": f"127.0.0.1:{port}"}
        file = self._folder / f"{name}.yaml"
        file.write_text(json.dumps(config))
        return file

    def _execute(self, *statements: str) -> None:
        with self._database.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)


def _is_ready(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def _pss_kb(pid: int) -> int:
    try:
        found = _PSS.search(Path(f"/proc/{pid}/smaps_rollup").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connectors", type=int, default=100, help="0: none (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=60.0, help="of idleness (default: %(default)s)")
    parser.add_argument("--tables", type=int, default=2_000, help="0: none (default: %(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="starts with those tables (default: %(default)s)")
    given = parser.parse_args()
    room = str(given.connectors + 8)
    options = {
        "max_replication_slots": room,
        "max_wal_senders": room,
        "max_connections": str(4 * given.connectors + 50),
    }
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        servers = [
            Server("postgres18", folder / "postgres18", partial(postgres.prepare, major=18, options=options)),
            Server("kafka", folder / "kafka", kafka.prepare),
        ]
        try:
            for server in servers:
                server.start()
            url = os.environ["BENCH_URL"] = servers[0].url
            with closing(psycopg2.connect(url)) as database:
                database.autocommit = True
                many = Many(folder, database, servers[1].url)
                if given.tables:
                    print(many.tables(given.tables, given.runs), flush=True)
                if given.connectors:
                    print(many.idle(given.connectors, given.seconds), flush=True)
        except CdcError as error:
            sys.exit(f"error: {error}")
        except KeyboardInterrupt:
            sys.exit(130)
        finally:
            for server in servers:
                server.stop()
    print(f"{os.cpu_count()} cores, load {load:.1f} at the start.")


if __name__ == "__main__":
    main()
