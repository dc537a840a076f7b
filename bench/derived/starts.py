"""Measures how long a start takes: of `cdc apply` to a row in its store, and of Spark alone to its first answer.

    python -m bench.derived.starts [--runs 5] [--stores postgres,iceberg]

*cdc apply*: a job is started whose topic has one row that its store does not have yet, and ended when the store says
that it is complete up to there; the store is asked every 20 ms, without Spark. The first start makes the store's table
and the checkpoint, those after it go on; the seconds are from the start of the process, medians of the others, and
`starting Spark` and `following` are when the job says so. *CPU* is what its processes have used until the row is there.

*Spark*: seconds to its first answer with the archive of its classes and without, alternating, medians.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.derived.apply import SETUPS
from bench.derived.following import database
from bench.measure import PROJECT, tell
from bench.measure.meter import Usage
from cdc.config.apply_config import ApplySource, StoreConfig
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError
from cdc.model.state import Phase
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.model.store import open_store
from spark_apply.model.target_table import target
from spark_apply.spark.jvm.build_class_archive import make
from tests.spark.records import Publisher, SourceTable, position

_ASKS: Final = """
from pathlib import Path
from spark_apply.spark.jvm import class_archive
from spark_apply.spark import session
if not {archive}: class_archive.archive = lambda: Path("nowhere")
session.open_session("start").range(10).groupBy("id").count().collect()
"""
_COLUMNS: Final = {"id": {"kind": "int64"}, "status": {"kind": "string"}}
_SAID: Final = ("starting Spark", "following")
_LOOK_S: Final = 0.02
_WITHIN_S: Final = 180.0


def seconds(*, archive: bool) -> float:
    begun = time.monotonic()
    subprocess.run([sys.executable, "-c", _ASKS.format(archive=archive)], check=True)
    return time.monotonic() - begun


@dataclass(frozen=True, slots=True)
class Started:
    """Seconds from the start of a process."""

    said: Mapping[str, float]
    row: float
    cpu: float


@dataclass(slots=True)
class Job:
    """A job of one table and one store, started again and again."""

    folder: Path
    bootstrap: str
    kind: str
    store: StoreConfig
    _commit: int = 0
    _table: SourceTable = field(init=False)
    _publisher: Publisher = field(init=False)

    def __post_init__(self) -> None:
        prefix = f"starts-{self.kind}"
        self._table, self._publisher = SourceTable(prefix, "orders", _COLUMNS), Publisher(self.bootstrap, prefix)
        self._publisher.create([self._table])
        about = {"type": self.store.type, "url": self.store.url, "path": self.store.path}
        job = {
            "name": prefix,
            "source": {"bootstrap_servers": self.bootstrap, "topic_prefix": prefix},
            "stores": {"copy": {name: value for name, value in about.items() if value is not None}},
            "tables": {"public.orders": {"stores": ["copy"]}},
            "checkpoint": str(self.folder / f"{prefix}-checkpoint"),
        }
        self._file.write_text(json.dumps(job))

    @property
    def _file(self) -> Path:
        return self.folder / f"starts-{self.kind}.yaml"

    def start(self) -> Started:
        """Write a row, start the job, and wait for the row. Raises OperatorError if it does not come."""
        self._commit += 10
        row = self._table.event("u", {"id": 1, "status": f"at {self._commit}"}, position(self._commit))
        self._publisher.stand(Phase.STREAM, self._commit + 5, [self._table], row)
        begun, said, wanted = time.monotonic(), dict[str, float](), position(self._commit + 5, 0)
        with self._process() as process:
            usage, lines = Usage(process.pid), process.stderr

            def read() -> None:
                for line in lines or ():
                    said.update({each: time.monotonic() - begun for each in _SAID if each in line and each not in said})

            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            while not self._holds(wanted):
                if process.poll() is not None or time.monotonic() > begun + _WITHIN_S:
                    raise OperatorError(f"{self.kind}: no row was there after {time.monotonic() - begun:.0f} s")
                time.sleep(_LOOK_S)
            found = Started(said, time.monotonic() - begun, usage.seconds(look=True))
            process.send_signal(signal.SIGTERM)
            process.wait(_WITHIN_S)
            reading.join()
        return found

    @contextmanager
    def _process(self) -> Iterator[subprocess.Popen[str]]:
        words = [sys.executable, "-m", "cdc", "apply", str(self._file)]
        process = subprocess.Popen(words, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def _holds(self, wanted: str) -> bool:
        made = target(schema_versions(self._source)[self._table.qualified], {})
        with closing(open_store(self.store, name="copy", prefix=self._source.topic_prefix, spark=None)) as store:
            mark = store.mark(made)
        return mark is not None and mark.complete is not None and mark.complete.position >= wanted

    @property
    def _source(self) -> ApplySource:
        return ApplySource(bootstrap_servers=self.bootstrap, topic_prefix=f"starts-{self.kind}")


def jobs(kinds: list[str], runs: int) -> None:
    """Print a line for each store."""
    servers = tuple(sorted({"kafka", *(server for kind in kinds if (server := SETUPS[kind].server))}))
    tell("starting servers")
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name, DevServers(Path(name) / "s", servers=servers) as up:
        urls = {server: up[server].url for server in servers}
        if "postgres18" in urls:
            urls["warehouse"] = database(urls["postgres18"], "starts")
        print(f"{'cdc apply':<14} {'first start':>12} {_SAID[0]:>15} {_SAID[1]:>10} {'row':>6} {'CPU':>6}")
        for kind in kinds:
            job = Job(Path(name), urls["kafka"], kind, SETUPS[kind].config(Path(name), urls))
            first, *again = [job.start() for _ in range(runs + 1)]
            told = [statistics.median(one.said[each] for one in again) for each in _SAID]
            row, cpu = (statistics.median(getattr(one, each) for one in again) for each in ("row", "cpu"))
            print(f"  {kind:<12} {first.row:>10.1f} s {told[0]:>13.1f} s {told[1]:>8.1f} s {row:>4.1f} s {cpu:>4.1f} s")


def spark(runs: int) -> None:
    """Print the time to Spark's first answer."""
    found = [(seconds(archive=True), seconds(archive=False)) for _ in range(runs)]
    there, without = (statistics.median(times) for times in zip(*found, strict=True))
    print("Spark alone")
    print(f"  with the archive     {there:>5.1f} s")
    print(f"  without              {without:>5.1f} s")
    print(f"  with : without       {there / without:>6.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="default: %(default)s")
    parser.add_argument("--stores", default="postgres,iceberg", help="comma-separated (default: %(default)s)")
    given = parser.parse_args()
    try:
        make()
        print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the start, medians of {given.runs}")
        jobs(given.stores.split(","), given.runs)
        spark(given.runs)
    except CdcError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
