"""Prints the figures that docs/adr quotes: `make bench-decisions`. Medians of three, on servers of its own.

With `--wide 3000000` only how a connector goes on with one wide value that the log left out, on a table of so many rows
and a server that waits ten seconds for an answer. The disk holds the rows three times: in the table, its log, a topic.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import click
from psycopg2 import extensions

from bench.capture.databases import postgres_and_kafka
from bench.measure.meter import timed

ROWS, KEYS, WIDE = 1_000_000, 200_000, 50_000
KINDS = {"bigint": "g", "text": "md5(g::text)", "uuid": "md5(g::text)::uuid"}


def copy_orders(database: extensions.connection) -> None:
    """ADR 0002: time COPY of a whole table in heap order, in key order, and by the bytes of the key's text."""
    print(f"COPY of {ROWS:,} rows         heap order   key order    by bytes")
    for kind, key in KINDS.items():
        execute(
            database,
            f"CREATE TABLE ordered AS SELECT {key} AS k, g AS a, 'name ' || g AS b, g / 3.0 AS c"
            f" FROM generate_series(1, {ROWS}) g",
            "ALTER TABLE ordered ADD PRIMARY KEY (k)",
            "VACUUM ANALYZE ordered",
        )
        figures = []
        for clause in ("", "ORDER BY k", "ORDER BY convert_to(format('%s', k), 'UTF8')"):
            statement = f"COPY (SELECT * FROM ordered {clause}) TO STDOUT"
            figures.append(statistics.median(timed(partial(copy, database, statement)) for _ in range(3)))
        print(f"  {kind:<24}{figures[0]:>10.2f} s {figures[1]:>9.2f} s {figures[2]:>9.2f} s")
        execute(database, "DROP TABLE ordered")


def copy(database: extensions.connection, statement: str) -> None:
    with database.cursor() as cursor, Path(os.devnull).open("wb") as nowhere:
        cursor.copy_expert(statement, nowhere)


def execute(database: extensions.connection, *statements: str) -> None:
    with database.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


def connector(folder: Path, name: str, kafka: str) -> Callable[[], tuple[float, float]]:
    """Return a run of `cdc run --until-caught-up` on one table, which gives seconds and peak MB of the process."""
    file = folder / f"{name}.yaml"
    source = {"type": "postgres", "url": "${BENCH_URL}", "tables": [f"public.{name}"]}
    file.write_text(json.dumps({"name": name, "source": source, "sink": {"type": "kafka", "bootstrap_servers": kafka}}))

    def run() -> tuple[float, float]:
        begun = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "cdc", "run", str(file), "--until-caught-up"], stderr=subprocess.DEVNULL
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            sys.exit(f"cdc run failed with exit code {process.returncode}")
        return time.monotonic() - begun, usage.ru_maxrss / 1024

    return run


def show(what: str, figures: Sequence[tuple[float, float]]) -> None:
    seconds, peak = (statistics.median(column) for column in zip(*figures, strict=True))
    print(f"  {what:<58}{seconds:>6.1f} s {peak:>6.0f} MB", flush=True)


def truncates(database: extensions.connection, folder: Path, kafka: str) -> None:
    """ADR 0003: time a truncate."""
    print("one cdc run --until-caught-up, its start included")
    fill = f"INSERT INTO emptied SELECT g, 'name ' || g FROM generate_series(1, {KEYS}) g"
    execute(database, "CREATE TABLE emptied (id bigint PRIMARY KEY, name text)", fill)
    run = connector(folder, "emptied", kafka)
    run()
    show("nothing to do", [run() for _ in range(3)])
    figures = []
    for _ in range(3):
        execute(database, "TRUNCATE emptied")
        figures.append(run())
        execute(database, fill)
        run()
    show(f"a truncate of {KEYS:,} keys", figures)


def unchanged_wide_values(database: extensions.connection, folder: Path, kafka: str, rows: int, changed: int) -> None:
    """ADR 0004: time updates without their TOASTed value: one, one of which the source cannot tell, and `changed`."""
    step = min(rows, WIDE)
    execute(
        database,
        "ALTER SYSTEM SET wal_sender_timeout = '10s'",
        "SELECT pg_reload_conf()",
        "CREATE TABLE wide (id bigint PRIMARY KEY, n integer, body text)",
        "ALTER TABLE wide ALTER COLUMN body SET STORAGE EXTERNAL",
        *(
            "INSERT INTO wide SELECT g, 0, repeat(md5(g::text), 100)"
            f" FROM generate_series({first}, {first + step - 1}) g"
            for first in range(1, rows, step)
        ),
    )
    run = connector(folder, "wide", kafka)
    run()
    show(f"nothing to do, {rows:,} rows in the topic", [run() for _ in range(3)])
    one = "UPDATE wide SET n = n + 1 WHERE id = 7"
    cases = {"1 update without its wide value": one, "1 update in a savepoint": f"BEGIN; SAVEPOINT a; {one}; COMMIT"}
    if changed:
        cases[f"{changed:,} updates"] = f"UPDATE wide SET n = n + 1 WHERE id <= {changed}"
    for what, statement in cases.items():
        figures = []
        for _ in range(3):
            execute(database, statement)
            figures.append(run())
        show(what, figures)


@click.command()
@click.option("--wide", type=int, help="Only unchanged wide values, in a table of so many rows.")
def main(*, wide: int | None) -> None:
    """Print the figures that docs/adr quotes."""
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        with postgres_and_kafka(folder) as (database, kafka):
            if wide is not None:
                unchanged_wide_values(database, folder, kafka, wide, 0)
                return
            copy_orders(database)
            truncates(database, folder, kafka)
            unchanged_wide_values(database, folder, kafka, WIDE, WIDE)


if __name__ == "__main__":
    main()
