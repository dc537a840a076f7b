"""Prints what capture by triggers costs the application: `python -m bench.capture.triggers`. No server for SQLite.

The application's statements run in three files by turns: without a connector, with its triggers, and with them where a
second column is unique. The connector is connected, so that its change table and triggers are there, and does not run.
The median of the runs; rows of three columns. With `--postgres URL` the same on a PostgreSQL, in tables of its own,
without and with triggers; and with what the triggers would be if they wrote the row's text under settings of their own.
With `--mysql URL` on a MySQL or MariaDB, without and with triggers.
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

import psycopg2
import pymysql

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from connectors.mysql import session
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


_TEXT_CHANGES: Final = (
    "CREATE TABLE bench_text (seq bigserial, xid xid8, at timestamptz, op text, old text, new text)",
    (
        "CREATE FUNCTION bench_write() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET DateStyle = ISO "
        "SET IntervalStyle = iso_8601 SET TimeZone = 'UTC' SET extra_float_digits = 3 SET bytea_output = hex "
        "SET lc_monetary = 'C' AS $$ BEGIN INSERT INTO bench_text (xid, at, op, old, new) VALUES "
        "(pg_current_xact_id(), clock_timestamp(), TG_OP, CASE WHEN TG_OP <> 'INSERT' THEN OLD::text END, NEW::text); "
        "RETURN NULL; END $$"
    ),
    "CREATE TRIGGER bench AFTER INSERT OR UPDATE OR DELETE ON bench_2 FOR EACH ROW EXECUTE FUNCTION bench_write()",
)
POSTGRES_WAYS: Final = ("without", "with triggers", "with text and settings")
POSTGRES_WORK: Final = (
    ("inserts, one statement", "INSERT INTO {table} SELECT n, 'status ' || n, n % 7 FROM generate_series({0}, {1}) n"),
    ("updates, one statement", "UPDATE {table} SET n = n + 1 WHERE id BETWEEN {0} AND {1}"),
    ("deletes, one statement", "DELETE FROM {table} WHERE id BETWEEN {0} AND {1}"),
)


def postgres(url: str, count: int, runs: int) -> None:
    """Print the table of PostgreSQL. Its tables are made, and dropped at the end."""
    connection = psycopg2.connect(url)
    connection.autocommit = True
    source = SourceConfig(type="triggers", url=url, tables=("public.bench_1",))
    config = ConnectorConfig(name="bench", source=source, sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"))
    gone = ("DROP SCHEMA IF EXISTS cdc_bench CASCADE", "DROP TABLE IF EXISTS bench_0, bench_1, bench_2, bench_text")
    with closing(connection), connection.cursor() as cursor:
        for statement in (*gone, "DROP FUNCTION IF EXISTS bench_write"):
            cursor.execute(statement)
        for table in range(3):
            cursor.execute(f"CREATE TABLE bench_{table} (id int PRIMARY KEY, status text NOT NULL, n int)")
        with closing(open_source(config)) as triggers:
            triggers.connect()
            triggers.hold(triggers.tables())
        for statement in _TEXT_CHANGES:
            cursor.execute(statement)
        print(f"\n{'changes a second, PostgreSQL':<34}" + "".join(f"{way:>28}" for way in POSTGRES_WAYS))
        rates: dict[tuple[str, int], list[float]] = {}
        for run in range(runs):
            for title, statement in POSTGRES_WORK:
                for table in range(3):
                    first = 1 + run * count
                    begun = time.perf_counter()
                    cursor.execute(statement.format(first, first + count - 1, table=f"bench_{table}"))
                    rates.setdefault((title, table), []).append(count / (time.perf_counter() - begun))
        for title, _ in POSTGRES_WORK:
            print(f"  {title:<32}" + "".join(f"{statistics.median(rates[title, n]):>28,.0f}" for n in range(3)))
        for statement in (*gone, "DROP FUNCTION IF EXISTS bench_write"):
            cursor.execute(statement)


MYSQL_WAYS: Final = ("without", "with triggers")
_NUMBERS: Final = (
    "SELECT {0} + a.n + 100 * b.n + 10000 * c.n AS n FROM bench_digits a, bench_digits b, bench_digits c "
    "WHERE a.n + 100 * b.n + 10000 * c.n < {1} - {0} + 1"
)
MYSQL_WORK: Final = (
    (
        "inserts, one statement",
        f"INSERT INTO {{table}} SELECT n, CONCAT('status ', n), n % 7 FROM ({_NUMBERS}) AS numbers",
    ),
    ("updates, one statement", "UPDATE {table} SET n = n + 1 WHERE id BETWEEN {0} AND {1}"),
    ("deletes, one statement", "DELETE FROM {table} WHERE id BETWEEN {0} AND {1}"),
    ("inserts, a transaction each", "INSERT INTO {table} VALUES ({0}, 'status', {1})"),
)


def mysql(url: str, count: int, runs: int) -> None:
    """Print the table of MySQL or MariaDB. Its database `cdc_bench_of` is made, and dropped at the end."""
    at = session.address(url)
    connection = pymysql.connect(
        host=at.host, port=at.port, user=at.user, password=at.password, autocommit=True, unix_socket=at.socket
    )
    source = SourceConfig(type="triggers", url=url, tables=("cdc_bench_of.bench_1",))
    config = ConnectorConfig(name="bench", source=source, sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"))
    gone = ("DROP DATABASE IF EXISTS cdc_bench_of", "DROP DATABASE IF EXISTS cdc_bench")
    with closing(connection), connection.cursor() as cursor:
        for statement in (*gone, "CREATE DATABASE cdc_bench_of", "USE cdc_bench_of",
                          "CREATE TABLE bench_digits (n int PRIMARY KEY)",
                          "INSERT INTO bench_digits VALUES " + ", ".join(f"({n})" for n in range(100))):  # fmt: skip
            cursor.execute(statement)
        for table in range(2):
            cursor.execute(f"CREATE TABLE bench_{table} (id int PRIMARY KEY, status varchar(40) NOT NULL, n int)")
        with closing(open_source(config)) as triggers:
            triggers.connect()
            triggers.hold(triggers.tables())
        print(f"\n{'changes a second, MySQL, MariaDB':<34}" + "".join(f"{way:>28}" for way in MYSQL_WAYS))
        rates: dict[tuple[str, int], list[float]] = {}
        for run in range(runs):
            for title, statement in MYSQL_WORK:
                for table in range(2):
                    first, each = 1 + run * count, "each" in title
                    begun, times = time.perf_counter(), count // 50 if each else 1
                    for n in range(times):
                        cursor.execute(statement.format(first + n, first + count - 1, table=f"bench_{table}"))
                    changed = times if each else count
                    rates.setdefault((title, table), []).append(changed / (time.perf_counter() - begun))
                    if each:
                        cursor.execute(f"DELETE FROM bench_{table}")
        for title, _ in MYSQL_WORK:
            print(f"  {title:<32}" + "".join(f"{statistics.median(rates[title, n]):>28,.0f}" for n in range(2)))
        for statement in gone:
            cursor.execute(statement)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000, help="of single inserts; of others ten times as many")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--postgres", metavar="URL", help="a database to measure in, as a superuser or its owner")
    parser.add_argument("--mysql", metavar="URL", help="a MySQL or MariaDB to measure on, as an administrator")
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
    if given.postgres:
        postgres(given.postgres, given.rows * 10, given.runs)
    if given.mysql:
        mysql(given.mysql, given.rows * 10, given.runs)
    print(f"Medians of {given.runs} runs by turns; {os.cpu_count()} cores, load {load:.1f} at the start.")


if __name__ == "__main__":
    main()
