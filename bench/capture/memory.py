"""Prints a connector's peak memory, and fails above the bound: `make bench-memory`. On servers of its own.

The peak is VmHWM of /proc/PID/status: the greatest resident size, of this process alone.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from psycopg2 import extensions

from bench.capture.databases import postgres_and_kafka
from bench.measure.meter import peak_kb

BOUND_MB = 300
ROW = "g AS n, 'name ' || g AS name, g / 3.0 AS amount, md5(g::text) AS note"


class Bench:
    def __init__(self, folder: Path, database: extensions.connection, kafka: str) -> None:
        self._folder = folder
        self._database = database
        self._kafka = kafka
        self.highest_mb = 0.0

    def execute(self, *statements: str) -> None:
        with self._database.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def fill(self, table: str, rows: int) -> None:
        self.execute(
            f"CREATE TABLE {table} AS SELECT g AS id, {ROW} FROM generate_series(1, {rows}::bigint) g",
            f"ALTER TABLE {table} ADD PRIMARY KEY (id)",
            f"VACUUM ANALYZE {table}",
        )

    def run(self, table: str, what: str, rows: int) -> None:
        """Run `cdc run --until-caught-up` on a table, and print a line about it."""
        file = self._folder / f"{table}.yaml"
        source = {"type": "postgres", "url": "${BENCH_URL}", "tables": [f"public.{table}"]}
        sink = {"type": "kafka", "bootstrap_servers": self._kafka}
        file.write_text(json.dumps({"name": table, "source": source, "sink": sink}))
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc", "run", str(file), "--until-caught-up"], stderr=subprocess.DEVNULL
        )
        peak_mb = 0.0
        while process.poll() is None:
            peak_mb = max(peak_mb, peak_kb(process.pid) / 1024)
            time.sleep(0.05)
        took_s = time.monotonic() - begun
        if process.returncode != 0:
            sys.exit(f"cdc run failed with exit code {process.returncode}")
        self.highest_mb = max(self.highest_mb, peak_mb)
        print(f"  {what:<44}{peak_mb:>6.0f} MB {took_s:>8.1f} s {rows / took_s:>10,.0f} rows/s", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshot-rows", type=int, default=5_000_000)
    parser.add_argument("--transaction-rows", type=int, default=2_000_000)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        with postgres_and_kafka(folder) as (database, kafka):
            bench = Bench(folder, database, kafka)
            print("peak memory of one cdc run --until-caught-up, its start included")
            for table, rows in (("tenth", given.snapshot_rows // 10), ("whole", given.snapshot_rows)):
                bench.fill(table, rows)
                bench.run(table, f"a snapshot of {rows:,} rows", rows)
            bench.execute("DROP TABLE tenth", "TRUNCATE whole")
            bench.fill("streamed", 1)
            bench.run("streamed", "a snapshot of 1 row", 1)
            rows = given.transaction_rows
            bench.execute(f"INSERT INTO streamed SELECT g, {ROW} FROM generate_series(2, {rows + 1}::bigint) g")
            bench.run("streamed", f"a transaction of {rows:,} rows", rows)
    if bench.highest_mb > BOUND_MB:
        sys.exit(f"above the bound of {BOUND_MB} MB")


if __name__ == "__main__":
    main()
