"""Compares our streams with Debezium's over the same log, on servers of its own: `make bench-streams`.

The rows are written while nothing reads; then ours and Debezium read the same backlog, one after the other, alternating
which is first. The time counts from the first event that a read_committed consumer can see to the last, so start-up is
not included; CPU is the user and system time in that period, of a process and its children.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from bench.capture.databases import COPY, OPENED, SHAPES, TABLE, Database, Shape
from bench.measure import PROJECT, report, tell
from bench.measure.meter import Sample, Topic, Usage
from bench.measure.report import COLD, OURS, PEER, RAW, Run
from bench.peers import debezium
from cdc.dev.java import java
from cdc.dev.servers.process import Launch, Server
from cdc.dev.stack import DevServers
from cdc.encode.envelope import row_codegen
from cdc.model.errors import CdcError, OperatorError

PARTITIONS: Final = 6
_STREAM: Final = "bench"
_PEER: Final = "peer"
_SLOWEST: Final = 500
"""A run with fewer events a second is aborted."""
_SMALL: Final = 10
_ENOUGH: Final = 100_000
"""Of fewer events all may be in one commit: nothing is measured between the first and the last that are visible."""
_STARTS_WITHIN_S: Final = 120.0


class Start(NamedTuple):
    """The end offsets of a topic before a run, and the time."""

    ends: Sequence[int]
    at_s: float


class Backlog(NamedTuple):
    """The changes of a run."""

    events: int
    per_transaction: int

    @classmethod
    def of(cls, events: int, per_transaction: int) -> Backlog:
        """Return the backlog; with small transactions it has fewer events, because writing takes long."""
        return cls(events if per_transaction >= _SMALL else max(events // 5, min(events, _ENOUGH)), per_transaction)


class Bench:
    """The measurements of one source, given running servers."""

    def __init__(
        self, folder: Path, database: Database, servers: DevServers, name: str, shape: Shape = SHAPES["9"]
    ) -> None:
        self._shape = shape
        self._folder = folder
        self._database = database
        self._kafka = servers["kafka"].url
        self._usage = {"database": Usage(_pid(servers[name])), "broker": Usage(_pid(servers["kafka"]))}
        self._events = 0
        self._next = 2  # the first row is the table's own
        self.runs: list[Run] = []
        os.environ["BENCH_URL"] = database.url

    def all(self, backlogs: Sequence[Backlog], runs: int, *, snapshots: bool = True) -> None:
        """Measure one run with a new JVM, then `runs` of each backlog, and of a snapshot of the first one's size."""
        self._database.create()
        peer = self._peer(_PEER, TABLE)
        topic = self._topic(_PEER, TABLE)
        topic.create()
        with debezium.Worker(self._folder / "connect", self._database.kind, self._kafka) as worker:
            self._position(worker, peer, topic)
            self._stream(worker, peer, backlogs[0], 0)
            for backlog in backlogs:
                for number in range(1, runs + 1):
                    self._stream(worker, peer, backlog, number)
            if not snapshots:
                return
            self._events = backlogs[0].events
            self._database.copy(self._events)
            case = f"{self._database.title}, a snapshot: {self._events:,} rows"
            for number in range(1, runs + 1):
                self._snapshot(worker, case, number)

    def _stream(self, worker: debezium.Worker, peer: dict[str, str], backlog: Backlog, number: int) -> None:
        """Measure run `number` over the log; in run 0 the JVM is new, and ours does not count."""
        self._events, size = backlog
        of = "" if self._shape is SHAPES["9"] else f", {self._shape.title}"
        case = f"{self._database.title}, the log: {self._events:,} inserts{of}, {size} a transaction"
        tell(f"{self._database.title}: writing {self._events:,} rows")
        self._database.mark()
        self._database.write(self._next, *backlog)
        self._next += self._events
        turns: tuple[Callable[[], None], ...] = (
            partial(self._ours, case, _STREAM, TABLE, kept=number > 0),
            partial(self._theirs, case, worker, peer, new=number == 0),
        )
        for turn in turns if number % 2 else reversed(turns):
            turn()
        self._alone(case, kept=number > 0)

    def _snapshot(self, worker: debezium.Worker, case: str, number: int) -> None:
        """Measure a snapshot, with new connectors and topics each time."""
        turns: tuple[Callable[[], None], ...] = (
            partial(self._ours, case, f"{_STREAM}-{number}", COPY),
            partial(self._their_snapshot, case, worker, f"{_PEER}-{number}"),
        )
        for turn in turns if number % 2 else reversed(turns):
            turn()

    def _position(self, worker: debezium.Worker, peer: dict[str, str], topic: Topic) -> None:
        """Let both read the table and follow the log, so that both have a position; then stop them."""
        tell(f"{self._database.title}: positions for both")
        with self._running(_STREAM, TABLE) as server:
            self._watch(self._topic(_STREAM, TABLE), [0] * PARTITIONS, 1, server)
            worker.start(peer)
            self._watch(topic, [0] * PARTITIONS, 1, worker.server)
            worker.running(_PEER)
            topics = (self._topic(_STREAM, TABLE), server), (topic, worker.server)
            begun = [each.ends() for each, _ in topics]
            self._database.write(self._next, 1)
            self._next += 1
            for (each, writes), begin in zip(topics, begun, strict=True):
                self._watch(each, begin, 1, writes)
        worker.halt(_PEER)
        worker.stop()

    def _ours(self, case: str, name: str, table: str, *, kept: bool = True) -> None:
        topic = self._topic(name, table)
        start = Start(topic.ends(), time.monotonic())
        with self._running(name, table) as server:
            self._measure(case, OURS, topic, start, server, kept=kept)

    def _theirs(self, case: str, worker: debezium.Worker, peer: dict[str, str], *, new: bool) -> None:
        topic = self._topic(_PEER, TABLE)
        start = Start(topic.ends(), time.monotonic())
        if new:
            worker.start(peer)
        else:
            worker.resume(_PEER)
        self._measure(case, COLD if new else PEER, topic, start, worker.server)
        worker.halt(_PEER)

    def _alone(self, case: str, *, kept: bool) -> None:
        database = self._usage["database"]
        before_s = database.seconds(look=True)
        read = self._database.read(self._events)
        run = Run(
            case=case,
            program=RAW,
            events=self._events,
            seconds=read.seconds,
            capture_cpu_s=read.cpu_s,
            database_cpu_s=database.seconds(look=True) - before_s,
            broker_cpu_s=None,
        )
        self._add(run, kept=kept)

    def _their_snapshot(self, case: str, worker: debezium.Worker, name: str) -> None:
        topic = self._topic(name, COPY)
        topic.create()
        start = Start(topic.ends(), time.monotonic())
        worker.add(self._peer(name, COPY) | {"snapshot.mode": "initial_only"})
        self._measure(case, PEER, topic, start, worker.server)
        worker.remove(name)

    def _measure(
        self, case: str, program: str, topic: Topic, start: Start, server: Server, *, kept: bool = True
    ) -> None:
        usage = {"capture": Usage(_pid(server)), **self._usage}
        first, last = self._watch(topic, start.ends, self._events, server, usage)
        peak_mb = usage["capture"].peak_mb()
        found = topic.count(start.ends)
        if found.keys != self._events or (program == OURS and found.records != self._events):
            raise OperatorError(f"{program}: {found.records} records of {found.keys} keys for {self._events} changes")
        events = round(self._events * (1 - first.visible / last.visible))  # control records have offsets, too
        run = Run(
            case=case,
            program=program,
            events=events,
            seconds=last.at_s - first.at_s,
            **{f"{name}_cpu_s": last.cpu_s[name] - first.cpu_s[name] for name in usage},
            first_s=first.at_s - start.at_s,
            whole_s=last.at_s - start.at_s,
            peak_mb=peak_mb,
            event_bytes=found.value_bytes / found.records,
            repeated=found.records - found.keys,
        )
        self._add(run, kept=kept)

    def _add(self, run: Run, *, kept: bool = True) -> None:
        tell(f"{run.case}: {run.program}: {run.rate:,.0f} events/s{'' if kept else ' (not counted)'}")
        if kept:
            self.runs.append(run)

    def _watch(
        self,
        topic: Topic,
        begin: Sequence[int],
        expected: int,
        server: Server,
        usage: dict[str, Usage] | None = None,
    ) -> tuple[Sample, Sample]:
        try:
            return topic.watch(
                begin,
                expected,
                usage=usage or {},
                alive=lambda: server.running,
                within_s=_STARTS_WITHIN_S + expected / _SLOWEST,
            )
        except OperatorError as exc:
            tail = "\n".join(server.log.read_text(errors="replace").splitlines()[-15:])
            raise OperatorError(f"{exc.message}; the end of the log of {server.name}:\n{tail}") from exc

    @contextmanager
    def _running(self, name: str, table: str) -> Iterator[Server]:
        """Run `cdc run` until the block ends."""
        file = self._folder / f"{name}.yaml"
        source = {"type": self._database.kind, "url": "${BENCH_URL}", "tables": [f"{self._database.schema}.{table}"]}
        sink = {"type": "kafka", "bootstrap_servers": self._kafka, "partitions": PARTITIONS}
        file.write_text(json.dumps({"name": name, "source": source, "sink": sink}))
        argv = (sys.executable, "-m", "cdc", "run", str(file))
        launch = Launch(argv, ready=lambda _pid: True, url="-", env=(("PYTHONPATH", str(PROJECT)),))
        server = Server("cdc", self._folder / f"cdc-{name}", lambda _folder: launch)
        server.start()
        try:
            yield server
        finally:
            server.stop(timeout_s=30)

    def _topic(self, name: str, table: str) -> Topic:
        return Topic(self._kafka, f"{name}.{self._database.schema}.{table}", PARTITIONS)

    def _peer(self, name: str, table: str) -> dict[str, str]:
        return debezium.connector(
            self._database.kind,
            name,
            self._database.url,
            f"{self._database.schema}.{table}",
            folder=self._folder,
            partitions=PARTITIONS,
        )


def _pid(server: Server) -> int:
    pid = server.pid
    if pid is None:
        raise OperatorError(f"{server.name} has ended; the end of {server.log} may say why")
    return pid


def measured(source: str, folder: Path, backlogs: Sequence[Backlog], runs: int, shape: Shape) -> list[Run]:
    """Measure one source; a table of an unusual shape only in large transactions of the log."""
    name, opened = OPENED[source]
    tell(f"starting {name} and kafka")
    most = shape is SHAPES["9"]
    if not most:
        backlogs = [Backlog(max(1, round(backlogs[0].events * shape.share)), backlogs[0].per_transaction)]
    with (
        DevServers(folder / "servers", servers=(name, "kafka")) as servers,
        closing(opened(servers[name], shape)) as database,
    ):
        bench = Bench(folder, database, servers, name, shape)
        bench.all(backlogs, runs, snapshots=most)
        return bench.runs


def about(backlogs: Sequence[Backlog], runs: int) -> dict[str, Any]:
    said = subprocess.run([java(), "-version"], capture_output=True, text=True, check=False).stderr.splitlines()
    return {
        "cores": os.cpu_count(),
        "load": os.getloadavg()[0],
        "python": platform.python_version(),
        "compiled": "compiled" if row_codegen.compiled is not None else "nothing compiled",
        "java": said[0] if said else "",
        "debezium": debezium.VERSION,
        "kafka": debezium.KAFKA,
        "backlogs": [backlog._asdict() for backlog in backlogs],
        "runs": runs,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", default=",".join(OPENED), help="comma-separated (default: %(default)s)")
    parser.add_argument("--events", type=int, default=300_000, help="changes a run (default: %(default)s)")
    parser.add_argument(
        "--per-transaction",
        default="100,1",
        help=f"changes a transaction, comma-separated; below {_SMALL} a fifth as many a run, or {_ENOUGH:,} "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--shapes", default="9", help=f"what tables look like, of {', '.join(SHAPES)} (default: %(default)s columns)"
    )
    parser.add_argument("--runs", type=int, default=3, help="runs of each (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every run, medians and ratios here too")
    given = parser.parse_args()
    sources = given.sources.split(",")
    if unknown := set(sources) - OPENED.keys():
        parser.error(f"unknown source {', '.join(sorted(unknown))}; there are: {', '.join(OPENED)}")
    shapes = given.shapes.split(",")
    if unknown := set(shapes) - SHAPES.keys():
        parser.error(f"unknown shape {', '.join(sorted(unknown))}; there are: {', '.join(SHAPES)}")
    sizes = [int(size) if size.isdecimal() else 0 for size in given.per_transaction.split(",")]
    if min(given.events, given.runs, *sizes) < 1:
        parser.error("--events, --runs and --per-transaction are at least 1")
    backlogs = [Backlog.of(given.events, size) for size in sizes]
    facts = about(backlogs, given.runs)
    runs: list[Run] = []
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            for source, shape in itertools.product(sources, shapes):
                folder = Path(name) / f"{source}-{shape}"
                folder.mkdir()
                runs += measured(source, folder, backlogs, given.runs, SHAPES[shape])
    except CdcError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:  # all servers have been stopped by now
        sys.exit(130)
    print(report.table(runs))
    print(f"\n{_explained(facts)}")
    if given.json:
        given.json.write_text(json.dumps(report.as_json(runs, facts), indent=1) + "\n")


def _explained(facts: dict[str, Any]) -> str:
    return (
        f"Medians of {facts['runs']} runs, by turns, over one backlog, rows of nine columns unless said otherwise;"
        f" {facts['cores']} cores, load {facts['load']:.1f} at the start.\n"
        f"events/s and CPU: from the first event visible to read_committed to the last.\n"
        f"{OURS}: Python {facts['python']}, {facts['compiled']}, exactly once, a new process each run.\n"
        f"{PEER} {facts['debezium']}: at least once, in Kafka Connect {facts['kafka']}, in a JVM that has streamed a"
        f" backlog before; in “{COLD}” it has not.\n"
        f"{RAW}: the log received by our connection and thrown away."
    )


if __name__ == "__main__":
    main()
