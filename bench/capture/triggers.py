"""Prints what capture by triggers costs a SQLite application: `python -m bench.capture.triggers`. No server.

The application's statements run in three files by turns: without a connector, with its triggers, and with them where a
second column is unique. The connector is connected, so that its change table and triggers are there, and does not run.
The median of the runs; rows of three columns.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import statistics
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Final

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from connectors.triggers.source import open_source

WAYS: Final = ("without", "with triggers", "and a second unique index")
_A_TRANSACTION: Final = 1_000
Work = Callable[[sqlite3.Connection, int, int], float]
"""Changes so many rows from a number on; returns the seconds."""


def single(connection: sqlite3.Connection, first: int, count: int) -> float:
    begun = time.perf_counter()
    for number in range(first, first + count):
        connection.execute("INSERT INTO t VALUES (?, ?, ?)", (number, f"status {number}", number % 7))
    return time.perf_counter() - begun


def many(connection: sqlite3.Connection, first: int, count: int) -> float:
    begun = time.perf_counter()
    for begin in range(first, first + count, _A_TRANSACTION):
        connection.execute("BEGIN")
        rows = ((number, f"status {number}", number % 7) for number in range(begin, begin + _A_TRANSACTION))
        connection.executemany("INSERT INTO t VALUES (?, ?, ?)", rows)
        connection.execute("COMMIT")
    return time.perf_counter() - begun


def updates(connection: sqlite3.Connection, first: int, count: int) -> float:
    """Of rows that `many` has written."""
    many(connection, first, count)
    begun = time.perf_counter()
    connection.execute("BEGIN")
    connection.executemany("UPDATE t SET n = n + 1 WHERE id = ?", ((number,) for number in range(first, first + count)))
    connection.execute("COMMIT")
    return time.perf_counter() - begun


WORK: Final[tuple[tuple[str, Work, int], ...]] = (
    ("inserts, a transaction each", single, 1),
    ("inserts, 1,000 a transaction", many, 10),
    ("updates by key, one transaction", updates, 10),
)


def made(folder: Path, way: str) -> sqlite3.Connection:
    """Make a file with a table, and with a connector's triggers where they are asked for."""
    path = folder / f"{WAYS.index(way)}.db"
    connection = sqlite3.connect(path, isolation_level=None)
    unique = "UNIQUE" if way == WAYS[2] else ""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"CREATE TABLE t (id INTEGER PRIMARY KEY, status TEXT NOT NULL {unique}, n INT)")
    if way != WAYS[0]:
        source = SourceConfig(type="triggers", url=f"sqlite:///{path}", tables=("main.t",))
        config = ConnectorConfig(name="c", source=source, sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"))
        with closing(open_source(config)) as triggers:
            triggers.connect()
            triggers.hold(triggers.tables())
    return connection


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="of single inserts; of others ten times as many")
    parser.add_argument("--runs", type=int, default=5)
    given = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        files = {way: made(Path(name), way) for way in WAYS}
        print(f"{'changes a second':<34}" + "".join(f"{way:>28}" for way in WAYS))
        first = 1
        for title, work, times in WORK:
            count = given.rows * times
            rates: dict[str, list[float]] = {way: [] for way in WAYS}
            for _ in range(given.runs):
                for way, connection in files.items():
                    rates[way].append(count / work(connection, first, count))
                first += count
            print(f"  {title:<32}" + "".join(f"{statistics.median(rates[way]):>28,.0f}" for way in WAYS), flush=True)
        for connection in files.values():
            connection.close()
    print(f"Medians of {given.runs} runs by turns; {os.cpu_count()} cores, load {load:.1f} at the start.")


if __name__ == "__main__":
    main()
