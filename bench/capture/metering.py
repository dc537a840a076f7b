"""Measures what metrics cost: CPU of an event with and without a meter, and how long a scrape of 200 tables takes.

    python -m bench.capture.metering

The logs and the sink are those of `bench.capture.hotpath`: no server. Runs with and without a meter take turns; of
each the least CPU counts, because other load only adds. What is inside the meter's calls is timed by itself, too: it
is small beside what two runs differ in by chance.
"""

from __future__ import annotations

import argparse
import gc
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from typing import Any, Final
from unittest import mock

from bench.capture.hotpath import _HUNDREDS, _ONES, RUNS, _Nowhere, _Snapshotter
from bench.capture.recorded import LOGS, MysqlLog, PostgresLog, config
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.kafka_config import KafkaConfig
from cdc.encode.event_writer import EventWriter
from cdc.model.meter import NO_METER, Commit, Meter
from cdc.model.state import Phase, State
from cdc.telemetry.connector_meter import ConnectorMeter
from cdc.telemetry.metrics import MOST_TABLES
from cdc.telemetry.server import MetricsServer

_SCRAPES: Final = 20

Counts = Mapping[tuple[str, str], int]


def run(log: PostgresLog | MysqlLog, meter: Meter) -> float:
    """Return the CPU of one run, in s."""
    source, made, snapshotter = log.source(), config(log.kind), _Snapshotter
    state = State(
        connector=made.name, identity={"server": "memory"}, phase=Phase.STREAM, epoch=1, offset=source.start(),
        tables=(log.table,),
    )  # fmt: skip
    open_snapshotter: Any = snapshotter
    pipeline = Pipeline(
        Settings(connector=made.name, prefix="bench"),
        open_source=lambda: source,
        open_snapshotter=open_snapshotter,
        sink=_Nowhere(KafkaConfig(bootstrap_servers="localhost:1", topic_prefix="bench"), state),
        observe=lambda report: pipeline.stop() if report.state.commit >= log.end else None,
        meter=meter,
    )
    gc.collect()
    begun_s = time.process_time()
    pipeline.run()
    return time.process_time() - begun_s


class _Timed(ConnectorMeter):
    """Times its own calls, and the reading of the counts that it is given."""

    def __init__(self, kind: str) -> None:
        super().__init__(config(kind))
        self.inside_s = 0.0

    def committed(self, commit: Commit) -> None:
        begun_s = time.process_time()
        super().committed(commit)
        self.inside_s += time.process_time() - begun_s

    def taken(self, read: Callable[[EventWriter], Counts]) -> Callable[[EventWriter], Counts]:
        """Time `EventWriter.taken`."""

        def timed(writer: EventWriter) -> Counts:
            begun_s = time.process_time()
            found = read(writer)
            self.inside_s += time.process_time() - begun_s
            return found

        return timed


def measure(kind: str, count: int, per_transaction: int, runs: int) -> tuple[float, float, float]:
    """Return µs an event without a meter and with one, and the part of it that is inside the meter."""
    log = LOGS[kind](count, per_transaction)
    without, with_meter, inside = float("inf"), float("inf"), float("inf")
    for _ in range(runs):
        without = min(without, run(log, NO_METER))
        with_meter = min(with_meter, run(log, ConnectorMeter(config(kind))))
        timed = _Timed(kind)
        with mock.patch.object(EventWriter, "taken", timed.taken(EventWriter.taken)):
            run(log, timed)
        inside = min(inside, timed.inside_s)
    return without / count * 1e6, with_meter / count * 1e6, inside / count * 1e6


def scrapes_ms(accept: str) -> list[float]:
    """Return how long scrapes of many tables took, in order of their time."""
    meter = ConnectorMeter(config("postgres"))
    tables = {f"public.t{n}": {"rows": 7, "done": False, "estimate": 20} for n in range(MOST_TABLES)}
    state = State(
        connector="bench", identity={}, phase=Phase.SNAPSHOT, epoch=1, tables=tuple(tables), unread=tuple(tables),
        snapshot={"tables": tables},
    )  # fmt: skip
    events = {(name, op): 5 for name in tables for op in "rcud"}
    meter.opened(state, lambda: (0, 0))
    meter.committed(Commit(state=state, events=events, transactions=[], records=1, size_bytes=1, took_s=0.01, epochs=1))
    found = []
    with MetricsServer(("127.0.0.1", 0), meter.figures.registry, meter) as server:
        request = urllib.request.Request(f"http://127.0.0.1:{server.port}/metrics", headers={"Accept": accept})
        for _ in range(_SCRAPES):
            begun_s = time.perf_counter()
            urllib.request.urlopen(request).read()
            found.append((time.perf_counter() - begun_s) * 1000)
    return sorted(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    print("CPU µs/event                without        with       ratio  inside the meter")
    for kind in LOGS:
        for per_transaction, count in ((100, _HUNDREDS), (1, _ONES)):
            without, with_meter, inside = measure(kind, count, per_transaction, options.runs)
            title = f"{kind}, {per_transaction} a transaction"
            ratio = with_meter / without
            print(f"{title:<24}{without:>11.3f}{with_meter:>12.3f}{ratio:>12.4f}{inside / without:>16.2%}", flush=True)
    for name, accept in (("text", "text/plain"), ("OpenMetrics", "application/openmetrics-text")):
        took = scrapes_ms(accept)
        print(f"/metrics of {MOST_TABLES} tables, {name}: median {took[len(took) // 2]:.1f} ms, most {took[-1]:.1f} ms")


if __name__ == "__main__":
    main()
