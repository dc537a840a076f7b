"""Measures the CPU of an event from log to sink, in µs, without a server: `python -m bench.capture.hotpath`.

The bytes that a server would send are in memory (`bench.capture.recorded`). The connector receives, decodes, encodes
and writes them, up to a sink whose client discards the batches. Each stage runs with all stages before it; its cost is
the difference. CPU is that of this process, and the least of a few runs counts, because other load only adds. With
`--kafka HOST:PORT` there is a last stage with the real client, including the CPU of its threads.
"""

from __future__ import annotations

import argparse
import cProfile
import gc
import json
import logging
import platform
import pstats
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from bench.capture.recorded import LOGS, MysqlLog, PostgresLog, config
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.kafka_config import KafkaConfig
from cdc.encode.envelope import row_codegen
from cdc.formats.wires import RegisteredWires
from cdc.model.change import Table, Transaction, TransactionBatch
from cdc.model.state import Phase, State
from cdc.rules.flat import Formats
from sinks.kafka import KafkaSink
from sinks.producer.batches import Batch

RUNS: Final = 5
PARTITIONS: Final = 6
OTHER_FORMS: Final = ("as flat", "as avro", "flat avro", "as protobuf", "flat protobuf")
"""Stages that write what `written` writes, in another format."""
_HUNDREDS: Final = 40_000
_ONES: Final = 10_000


class _Snapshotter:
    """A snapshotter with nothing left to read."""

    def handover(self, *_: object) -> None: ...
    def close(self) -> None: ...


class _Producer:
    """A producer that discards everything."""

    interrupted = False

    def partitions(self, _topic: str, _beside: Sequence[str]) -> int:
        return PARTITIONS

    def there(self, _topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        return {}

    def ready(self) -> bool:
        return True

    def send(self, _batches: Sequence[Batch]) -> None: ...
    def flush(self) -> None: ...
    def commit(self) -> None: ...
    def close(self) -> None: ...


class _Registry:
    """A schema registry that takes everything."""

    def forget(self) -> None: ...

    def same(self) -> bool:
        return True

    def takes(self) -> bool:
        return False

    def schema(self, number: int) -> tuple[str, str] | None: ...

    def newest(self, subject: str) -> str | None:  # noqa: ARG002 - the seam's
        return None

    def register(self, subject: str, text: str, *, type_: str, ours: Sequence[str]) -> int:  # noqa: ARG002 - the seam's
        return 1


class _Kafka(KafkaSink):
    """The real sink, after a finished snapshot, with the given state."""

    def __init__(self, sink: KafkaConfig, state: State) -> None:
        super().__init__(sink, state.connector)
        self._state = state

    def check(self, tables: Sequence[Table]) -> bool:
        super().check(tables)
        return True

    def peek(self) -> State | None:
        return self._state

    def fence(self) -> State | None:
        super().fence()
        return self._state

    def schemas(self) -> Iterator[bytes]:
        return iter(())


class _Nowhere(_Kafka):
    """The same sink, with a producer that discards everything."""

    def check(self, tables: Sequence[Table]) -> bool:  # noqa: ARG002 - the seam's
        return True

    def create(self, tables: Sequence[Table]) -> None: ...

    def fence(self) -> State | None:
        self._producer = _Producer()  # type: ignore[assignment]
        return self._state

    def commands(self) -> list[tuple[bytes, bytes]]:
        return []


def received(log: PostgresLog | MysqlLog) -> None:
    log.receive()


def decoded(log: PostgresLog | MysqlLog) -> None:
    source = log.source()
    source.connect()
    left = log.events
    for frame in source.stream(source.start()):
        whole = (
            frame.transactions
            if isinstance(frame, TransactionBatch)
            else [frame]
            if isinstance(frame, Transaction)
            else []
        )
        for transaction in whole:
            for _ in transaction.changes:
                left -= 1
        if not left:
            return


def written(log: PostgresLog | MysqlLog, servers: str | None = None, form: str = "envelope") -> None:
    source = log.source()
    made = config(log.kind)
    sink = KafkaConfig(bootstrap_servers=servers or "localhost:1", topic_prefix=f"bench-{uuid4()}")
    state = State(
        connector=made.name, identity={"server": "memory"}, phase=Phase.STREAM, epoch=1, offset=source.start(),
        tables=(log.table,),
    )  # fmt: skip
    to = _Kafka(sink, state) if servers else _Nowhere(sink, state)
    snapshotter: Any = _Snapshotter
    formats = Formats(form)
    wires = None if formats.plain else RegisteredWires(formats, registry=_Registry())
    pipeline = Pipeline(
        Settings(connector=made.name, prefix=sink.prefix, formats=formats, wires=wires),
        open_source=lambda: source,
        open_snapshotter=snapshotter,
        sink=to,
        observe=lambda report: pipeline.stop() if report.state.commit >= log.end else None,
    )
    pipeline.run()


def cpu_us(run: Callable[[], None], events: int, runs: int) -> float:
    """Return the least CPU of these runs, in µs an event."""
    least = float("inf")
    for _ in range(runs):
        gc.collect()
        begun_s = time.process_time()
        run()
        least = min(least, time.process_time() - begun_s)
    return least / events * 1e6


def measure(kind: str, count: int, per_transaction: int, runs: int, servers: str | None) -> dict[str, float]:
    """Return the CPU of each stage with all before it, in µs an event."""
    log = LOGS[kind](count, per_transaction)
    stages: dict[str, Callable[[], None]] = {
        "received": lambda: received(log),
        "decoded": lambda: decoded(log),
        "written": lambda: written(log),
        "as flat": lambda: written(log, form="flat"),
        "as avro": lambda: written(log, form="avro"),
        "flat avro": lambda: written(log, form="flat avro"),
        "as protobuf": lambda: written(log, form="protobuf"),
        "flat protobuf": lambda: written(log, form="flat protobuf"),
    }
    if servers:
        stages["produced"] = lambda: written(log, servers)
    return {name: round(cpu_us(run, count, runs), 2) for name, run in stages.items()}


def profile(kind: str, count: int, per_transaction: int) -> None:
    log = LOGS[kind](count, per_transaction)
    profiler = cProfile.Profile()
    profiler.runcall(written, log)
    pstats.Stats(profiler, stream=sys.stdout).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", default="postgres,mysql")
    parser.add_argument("--runs", type=int, default=RUNS)
    parser.add_argument("--kafka", help="a broker, for the stage with the real client")
    parser.add_argument("--profile", action="store_true", help="where the time goes, function by function, instead")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    logging.disable(logging.INFO)
    found = []
    for kind in options.sources.split(","):
        for per_transaction, count in ((100, _HUNDREDS), (1, _ONES)):
            if options.profile:
                profile(kind, count, per_transaction)
                continue
            stages = measure(kind, count, per_transaction, options.runs, options.kafka)
            found.append({"source": kind, "per_transaction": per_transaction, "events": count, "us": stages})
            if len(found) == 1:
                print(f"CPU µs/event           {''.join(f'{name:>14}' for name in stages)}")
            title = f"{kind}, {per_transaction} a transaction"
            print(f"{title:<27}{''.join(f'{us:>14.2f}' for us in stages.values())}", flush=True)
            ratios = ", ".join(f"{name} {stages[name] / stages['written']:.2f}" for name in OTHER_FORMS)
            print(f"{'':<27}CPU an event, an envelope of JSON being 1: {ratios}", flush=True)
    if not options.profile:
        how = "compiled" if row_codegen.compiled is not None else "nothing compiled"
        python = platform.python_version()
        print(f"Each stage with all before it; the least of {options.runs} runs; {how}, Python {python}.")
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
