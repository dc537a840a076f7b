"""Prints how fast rows go into a DuckDB file: `python -m bench.capture.duckdb_file`. No server.

Events of a table of four columns are made before; what is measured is the sink, from `write` to the end of `commit`, in
CPU time of this process, DuckDB's threads included: inserts in large commits, then updates in commits of several sizes.
The median of the runs.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Final

import orjson

from cdc.model.state import Phase, State
from sinks.duckdb.sink import DuckdbSink

_STATE: Final = State(connector="c", identity={}, phase=Phase.STREAM, epoch=1, tables=("s.t",))
_KINDS: Final = (
    ("id", "bigint", {"kind": "int64"}), ("status", "text", {"kind": "string"}),
    ("total", "numeric(10,2)", {"kind": "decimal", "precision": 10, "scale": 2}),
    ("at", "timestamptz", {"kind": "timestamptz"}),
)  # fmt: skip
INSERTS: Final = 50_000
UPDATES: Final = (50_000, 500, 10)


def described() -> bytes:
    """Describe the table, as a record of the schema topic."""
    columns = [{"name": name, "type": type_, **kind} for name, type_, kind in _KINDS]
    of = {"connector": "c", "schema": "s", "table": "t", "topic": "s.t", "version": 1, "position": "", "key": ["id"]}
    return orjson.dumps({**of, "columns": columns})


def event(op: str, number: int, at: int) -> tuple[bytes, bytes]:
    """Make key and value of a row's event."""
    row = {"id": number, "status": f"status {at}", "total": f"{at % 10_000}.50", "at": "2026-11-26T12:00:00.123456Z"}
    source = {"ts_ms": 1, "schema_version": 1, "position": f"{at:032}"}
    value = {"before": None, "after": row, "source": source, "transaction": None, "op": op, "ts_ms": 1}
    return orjson.dumps({"id": number}), orjson.dumps(value)


def rate(sink: DuckdbSink, events: list[tuple[bytes, bytes]], a_commit: int) -> float:
    """Return events a second of CPU time."""
    begun = time.process_time()
    for first in range(0, len(events), a_commit):
        for key, value in events[first : first + a_commit]:
            sink.write("s.t", key, value)
        sink.commit(_STATE)
    return len(events) / (time.process_time() - begun)


def measured(folder: Path) -> dict[str, float]:
    """Return the rates of one run, by what was done."""
    found = {}
    with closing(DuckdbSink(folder / "copy.duckdb", "c")) as sink:
        sink.fence()
        sink.schema(b"1", described())
        events = [event("c", number, number) for number in range(3 * INSERTS)]
        found[f"inserts, {INSERTS:,} a commit"] = rate(sink, events, INSERTS)
        for size in UPDATES:
            many = min(len(events), size * 100)
            events = [event("u", number * 7919 % (3 * INSERTS), number) for number in range(many)]
            found[f"updates, {size:,} a commit"] = rate(sink, events, size)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=3)
    runs = []
    for _ in range(parser.parse_args().runs):
        with tempfile.TemporaryDirectory() as folder:
            runs.append(measured(Path(folder)))
    for what in runs[0]:
        print(f"{what:30} {statistics.median(run[what] for run in runs):>9,.0f} events/s of CPU")


if __name__ == "__main__":
    main()
