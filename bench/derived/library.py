"""Measures how fast the library gives a million rows: topics to Arrow, a table, and a database's log without Kafka.

    python -m bench.derived.library [--rows N] [--runs N]

And how fast a connector reads a topic back, as at a start. Prints rows a second of wall time, the median of the runs,
and the CPU seconds that a million rows cost: on a machine that does something else too, only these can be compared.
What is asked of `.arrow()` is 300,000 rows a second.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Final

import psycopg2

import cdc
from bench.measure import PROJECT, tell
from cdc.dev.stack import DevServers
from sinks.topics.records.read_back import read_to_end

ASKED: Final = 300_000
_MILLION: Final = 1_000_000
_TABLE: Final = """CREATE TABLE orders (
    id bigint PRIMARY KEY, customer int, status text, total numeric(10,2), placed_at timestamptz, note text)"""
_ROWS: Final = (
    "INSERT INTO orders SELECT i, i %% 1000, 'paid', (i %% 10000) / 100.0, now() + i * interval '1 ms', 'note ' || i"
    " FROM generate_series(1, %s) i"
)


def measure(rows: int, runs: int, ways: dict[str, Callable[[], int]]) -> Iterator[str]:
    """Run each way so often; a line for each."""
    for name, way in ways.items():
        walls, cpus = [], []
        for _ in range(runs):
            begun_s, cpu_s = time.perf_counter(), time.process_time()
            found = way()
            walls.append(time.perf_counter() - begun_s)
            cpus.append(time.process_time() - cpu_s)
            if found != rows:
                raise SystemExit(f"{name}: {found:,} rows, and {rows:,} are there")
        rate, cpu_s = rows / statistics.median(walls), statistics.median(cpus) * _MILLION / rows
        yield f"{name:24} {rate:>11,.0f} rows/s {cpu_s:>7.2f} s of CPU for a million"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=_MILLION)
    parser.add_argument("--runs", type=int, default=3)
    asked = parser.parse_args()
    with (
        tempfile.TemporaryDirectory() as name,
        DevServers(Path(name) / "servers", servers=("postgres18", "kafka")) as dev,
    ):
        folder, servers = Path(name), dev.start(progress=tell)
        url = str(servers.postgres18_url)
        with closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
            cursor.execute(_TABLE)
            cursor.execute(_ROWS, (asked.rows,))
            connection.commit()
        file = folder / "connector.yaml"
        file.write_text(
            f"name: bench\nsource: {{type: postgres, url: '{url}', tables: [public.orders]}}\n"
            f"sink: {{bootstrap_servers: '{servers.kafka}'}}\n"
        )
        subprocess.run(
            [sys.executable, "-m", "cdc", "run", str(file), "--until-caught-up"],
            check=True, cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)},
        )  # fmt: skip

        numbers = itertools.count()

        def followed() -> int:
            position = folder / f"bench_{next(numbers)}.pos"
            with cdc.follow(
                url, tables=["public.orders"], position=position, create=True, until_caught_up=True
            ) as following:
                return sum(1 for transaction in following for _ in transaction)

        ways: dict[str, Callable[[], int]] = {
            ".arrow(rows=50_000)": lambda: sum(
                batch.num_rows for batch in cdc.follow(file, until_caught_up=True).arrow(rows=50_000)
            ),
            "table.to_arrow()": lambda: int(cdc.table(file, "public.orders").to_arrow().num_rows),
            "changes of the topics": lambda: sum(1 for _ in cdc.follow(file, until_caught_up=True)),
            "changes without Kafka": followed,
            "a topic read back": lambda: sum(
                1 for _ in read_to_end(str(servers.kafka), {}, "bench.public.orders", "read_committed")
            ),
        }
        for line in measure(asked.rows, asked.runs, ways):
            print(line, flush=True)
    print(f"asked of .arrow(): {ASKED:,} rows/s")


if __name__ == "__main__":
    main()
