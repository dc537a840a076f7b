"""Measures the apply job beside Flink's sinks, from the same topic: `make bench-flink`.

    python -m bench.derived.apply_beside_flink [--rows 100000] [--updates 200000] [--stores postgres,iceberg]

A table of nine columns (`bench/derived/backlog.py`) is in its topic: an insert of each key, then updates of random
keys. Each side reads the topic from its beginning to its end into an empty table and ends: `cdc apply --once`, and a
job with Flink's JDBC sink (upserts) or Iceberg's (``write.upsert.enabled``), exactly once where the sink can be, in a
cluster that is up already. For ours, time and CPU count from the start of the process, so with the start of Spark.
Then the table has to have each row as its last event has it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import psycopg2

from bench.derived.backlog import COLUMNS, Backlog, table
from bench.derived.following import database
from bench.measure import PROJECT, tell
from bench.measure.meter import Usage
from bench.peers import flink
from cdc.dev.stack import DevServers
from cdc.model.errors import CdcError, OperatorError
from spark_apply.spark.session import open_session

STORES: Final = ("postgres", "iceberg")
_BROKER: Final = "-XX:+UseSerialGC -Xshare:auto"
_HADOOP: Final = "3.4.1"
CONNECTORS: Final = (
    flink.KAFKA,
    "org.apache.flink:flink-connector-jdbc-core:4.0.0-2.0",
    "org.apache.flink:flink-connector-jdbc-postgres:4.0.0-2.0",
    "org.postgresql:postgresql:42.7.7",
    "org.apache.iceberg:iceberg-flink-runtime-2.1:1.11.0",
    f"org.apache.hadoop:hadoop-client-api:{_HADOOP}",
    f"org.apache.hadoop:hadoop-client-runtime:{_HADOOP}",
)
_KINDS: Final = {
    "int64": "BIGINT", "int32": "INT", "string": "STRING", "decimal": "DECIMAL(10, 2)", "boolean": "BOOLEAN",
    "timestamp_micros": "BIGINT", "timestamptz": "STRING",
}  # fmt: skip
"""Times stay what JSON has: Flink's JSON knows neither as we write them."""
_IN_POSTGRES: Final = {"STRING": "text", "DECIMAL(10, 2)": "numeric(10,2)"}
_WITHIN_S: Final = 1_800.0
_SUMS: Final = "count(*), count(DISTINCT id), sum(id), sum(CAST(substring(status, 8) AS bigint) * (id % 9973 + 1))"
"""What tells whether each key has its newest status, which ends in a digit."""

Sums = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table."""

    store: str
    who: str
    events: int
    seconds: float
    cpu_seconds: float
    peak_mb: float


def expected(rows: int, changed: Mapping[int, int]) -> Sums:
    """Return what `_SUMS` is to be; `changed` has the status of each key."""
    weighted = sum(changed[key] * (key % 9973 + 1) for key in range(rows))
    return rows, rows, sum(range(rows)), weighted


class Flink:
    """Jobs that read the topic to its end."""

    name = f"Flink SQL {flink.VERSION}"

    def __init__(self, folder: Path, kafka: str, topic: str, warehouse: str) -> None:
        self._folder, self._warehouse = folder, urlsplit(warehouse)
        columns = {name: _KINDS[kind["kind"]] for name, kind in COLUMNS.items()}
        self._columns = ", ".join(f"`{name}` {kind}" for name, kind in columns.items())
        self._in_postgres = ", ".join(f'"{name}" {_IN_POSTGRES.get(kind, kind)}' for name, kind in columns.items())
        self._read = (
            f"CREATE TABLE read_ ({self._columns}, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'kafka', "
            f"'topic' = '{topic}', 'properties.bootstrap.servers' = '{kafka}', 'format' = 'debezium-json', "
            "'properties.isolation.level' = 'read_committed', 'properties.group.id' = 'flink', "
            "'scan.startup.mode' = 'earliest-offset', 'scan.bounded.mode' = 'latest-offset')"
        )

    def run(self, store: str) -> tuple[float, float, float]:
        """Return seconds, CPU seconds, and the peak in MB."""
        written = self._postgres() if store == "postgres" else self._iceberg()
        with flink.Cluster(self._folder / f"flink-{store}", *CONNECTORS) as cluster:
            usage = [Usage(server.pid) for server in cluster.servers if server.pid]
            before = sum(of.seconds(look=True) for of in usage)
            begun = cluster.submit([self._read, *written], [f"INSERT INTO {_TARGETS[store]} SELECT * FROM read_"])
            cluster.finished(_WITHIN_S)
            cpu = sum(of.seconds(look=True) for of in usage) - before
            return time.time() - begun, cpu, sum(of.peak_mb() for of in usage)

    def _postgres(self) -> list[str]:
        at = self._warehouse
        with closing(psycopg2.connect(at.geturl())) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE by_flink ({self._in_postgres}, PRIMARY KEY (id))")
            connection.commit()
        return [
            (
                f"CREATE TABLE by_flink ({self._columns}, PRIMARY KEY (id) NOT ENFORCED) WITH ('connector' = 'jdbc', "
                f"'url' = 'jdbc:postgresql://{at.hostname}:{at.port}{at.path}?reWriteBatchedInserts=true', "
                f"'table-name' = 'by_flink', 'username' = '{at.username}', 'password' = '{at.password}', "
                "'sink.buffer-flush.max-rows' = '5000', 'sink.buffer-flush.interval' = '1s')"
            )
        ]

    def _iceberg(self) -> list[str]:
        at = f"file://{self._folder}/flink-lake"
        return [
            f"CREATE CATALOG lake WITH ('type' = 'iceberg', 'catalog-type' = 'hadoop', 'warehouse' = '{at}')",
            "CREATE DATABASE lake.public",
            (
                f"CREATE TABLE lake.public.orders ({self._columns}, PRIMARY KEY (id) NOT ENFORCED) WITH "
                "('format-version' = '2', 'write.upsert.enabled' = 'true', 'write.format.default' = 'parquet')"
            ),
        ]


_TARGETS: Final = {"postgres": "by_flink", "iceberg": "lake.public.orders"}


class Ours:
    """`cdc apply --once`."""

    name = "cdc apply"

    def __init__(self, folder: Path, kafka: str, prefix: str, warehouse: str) -> None:
        self._folder = folder
        self._stores = {
            "postgres": {"type": "postgres", "url": warehouse},
            "iceberg": {"type": "iceberg", "path": str(folder / "our-lake")},
        }
        self._source = {"bootstrap_servers": kafka, "topic_prefix": prefix}

    def run(self, store: str) -> tuple[float, float, float]:
        """Return seconds, CPU seconds, and the peak in MB."""
        file = self._folder / f"{store}.yaml"
        config = {
            "name": f"ours-{store}",
            "source": self._source,
            "stores": {store: self._stores[store]},
            "tables": {"public.orders": {"stores": [store]}},
            "checkpoint": str(self._folder / f"checkpoint-{store}"),
        }
        file.write_text(json.dumps(config))
        command = [sys.executable, "-m", "cdc", "apply", str(file), "--once"]
        begun, cpu, peak = time.time(), 0.0, 0.0
        with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            usage = Usage(process.pid)
            while process.poll() is None:
                cpu, peak = max(cpu, usage.seconds()), max(peak, usage.peak_mb())
                time.sleep(0.2)
            told = process.stderr.read() if process.stderr is not None else b""
        if process.returncode:
            raise OperatorError(f"cdc apply ended with exit code {process.returncode}", hint=told.decode()[-2000:])
        return time.time() - begun, cpu, peak


def _sums_of(store: str, folder: Path, warehouse: str) -> Mapping[str, Callable[[], Sums]]:
    """Return what reads `_SUMS` of each side's table."""

    def postgres(name: str) -> Sums:
        with closing(psycopg2.connect(warehouse)) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT {_SUMS} FROM {name}")
            return tuple(map(int, cursor.fetchone() or ()))

    def iceberg(lake: str, name: str) -> Sums:
        spark: Any = open_session(
            "bench",
            {
                "spark.sql.catalog.read_": "org.apache.iceberg.spark.SparkCatalog",
                "spark.sql.catalog.read_.type": "hadoop",
                "spark.sql.catalog.read_.warehouse": f"file://{folder}/{lake}",
            },
        )
        found = tuple(map(int, spark.sql(f"SELECT {_SUMS} FROM read_.{name}").first()))
        spark.stop()
        return found

    if store == "postgres":
        return {Ours.name: lambda: postgres("public.orders"), Flink.name: lambda: postgres("by_flink")}
    return {
        Ours.name: lambda: iceberg("our-lake", "public.orders"),
        Flink.name: lambda: iceberg("flink-lake", "public.orders"),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=100_000, help="of the table (default: %(default)s)")
    parser.add_argument("--updates", type=int, default=200_000, help="of random keys (default: %(default)s)")
    parser.add_argument("--stores", default=",".join(STORES), help="comma-separated (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = parser.parse_args()
    os.environ.setdefault("KAFKA_JVM_PERFORMANCE_OPTS", _BROKER)
    about = {"cores": os.cpu_count(), "load": os.getloadavg()[0]}
    figures: list[Figure] = []
    try:
        with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
            folder = Path(name)
            with DevServers(folder / "servers", servers=("kafka", "postgres18")) as servers:
                kafka, warehouse = servers["kafka"].url, database(servers["postgres18"].url, "warehouse")
                tell(f"writing {given.rows:,} rows and {given.updates:,} updates")
                of = table("shop")
                backlog = Backlog(kafka, of, with_before=True)
                backlog.rows(given.rows)
                backlog.updates(given.updates, given.rows, seed=1)
                right = expected(given.rows, backlog.statuses)
                ours = Ours(folder, kafka, of.prefix, warehouse)
                for store in given.stores.split(","):
                    sums = _sums_of(store, folder, warehouse)
                    for side in (ours, Flink(folder, kafka, of.topic, warehouse)):
                        tell(f"{side.name}: {store}")
                        seconds, cpu, peak = side.run(store)
                        if (found := sums[side.name]()) != right:
                            raise OperatorError(f"{side.name}: {store}: {found} for {right}")
                        figures.append(Figure(store, side.name, given.rows + given.updates, seconds, cpu, peak))
    except CdcError as error:
        sys.exit(f"error: {error}\n{error.hint or ''}")
    except KeyboardInterrupt:
        sys.exit(130)
    print(f"{'':<10}{'':<18}{'events':>10} {'seconds':>8} {'events/s':>10} {'CPU µs/event':>13} {'peak MB':>8}")
    for each in figures:
        rate, micros = each.events / each.seconds, each.cpu_seconds / each.events * 1e6
        line = f"{each.store:<10}{each.who:<18}{each.events:>10,} {each.seconds:>8.1f} {rate:>10,.0f}"
        print(f"{line} {micros:>13,.0f} {each.peak_mb:>8,.0f}")
    print(f"\n{about['cores']} cores, load {about['load']:.1f} at the start; each table has what the last events say.")
    if given.json:
        given.json.write_text(json.dumps({**about, "figures": [asdict(each) for each in figures]}, indent=1) + "\n")


if __name__ == "__main__":
    main()
