"""Prints a connector's peak memory, and fails above the bound: `make bench-memory`. On servers of its own.

The peak is VmHWM of /proc/PID/status: the greatest resident size, of this process alone. Of a table with large values,
updates of one row leave its value out, and a start must find it while the server waits ten seconds for an answer: of
the last update the source says it, of the one before the topic alone. 3,000,000 rows take 20 GB of disk.
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
WIDE_MB, WIDE_S = 200, 10
"""The bounds where a value is left out; how long a partition is read is a matter of its size."""
WIDE = "g AS id, 0 AS n, repeat(md5(g::text), 94) AS v"
IMPATIENT = "?options=-c%20wal_sender_timeout%3D10s"
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

    def run(self, table: str, what: str, rows: int) -> tuple[float, float]:
        """Run `cdc run --until-caught-up` on a table, print a line about it, and return its peak and its seconds."""
        file = self._folder / f"{table}.yaml"
        source = {"type": "postgres", "url": f"${{BENCH_URL}}{IMPATIENT}", "tables": [f"public.{table}"]}
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
        return peak_mb, took_s

    def left_out(self, rows: int) -> bool:
        """Have one value of many left out of updates, and say whether the bounds hold."""
        self.execute(
            "CREATE TABLE wide (id int PRIMARY KEY, n int, v text)",
            "ALTER TABLE wide ALTER v SET STORAGE EXTERNAL",
            f"INSERT INTO wide SELECT {WIDE} FROM generate_series(1, {rows}) g",
            "VACUUM ANALYZE wide",
        )
        self.run("wide", f"a snapshot of {rows:,} rows of 3 kB", rows)
        of_one = f"UPDATE wide SET n = n + 1 WHERE id = {rows // 2}"
        self.execute(of_one)
        last = self.run("wide", "a value left out of the last update", 1)
        self.execute(of_one, of_one)
        before = self.run("wide", "a value left out of the one before", 2)
        return max(last[0], before[0]) <= WIDE_MB and last[1] <= WIDE_S


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--snapshot-rows", type=int, default=5_000_000)
    parser.add_argument("--transaction-rows", type=int, default=2_000_000)
    parser.add_argument("--wide-rows", type=int, default=3_000_000, help="0: none (default: %(default)s)")
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
            bench.execute("DROP TABLE streamed, whole")
            holds = given.wide_rows == 0 or bench.left_out(given.wide_rows)
    if bench.highest_mb > BOUND_MB:
        sys.exit(f"above the bound of {BOUND_MB} MB")
    if not holds:
        sys.exit(f"where a value is left out: above the bound of {WIDE_MB} MB or {WIDE_S} s")


if __name__ == "__main__":
    main()
