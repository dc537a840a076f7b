"""Compares the rate of a rebuild with reading and parsing its topic alone: `python -m bench.derived.rebuild`.

They alternate in one Spark session, after one uncounted run each; figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from bench.measure.meter import timed
from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.dev.stack import DevServers
from cdc.model.errors import BugError
from spark_apply.events.envelope import parse
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.projected import columns_read
from spark_apply.events.quarantine import Quarantine
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.batch.one_topic import fill
from spark_apply.job.copies.route import Route
from spark_apply.job.job import run_apply
from spark_apply.model.store import Due, open_store
from spark_apply.model.target_table import target
from spark_apply.rebuild.diff import compare
from spark_apply.spark.session import open_session
from tests.spark.records import Publisher, SourceTable, position

COLUMNS: Mapping[str, Mapping[str, Any]] = {
    "id": {"kind": "int64"},
    "customer": {"kind": "string"},
    "status": {"kind": "string"},
    "total": {"kind": "decimal", "precision": 10, "scale": 2},
    "changed_at": {"kind": "timestamp_micros"},
}
_TRANSACTION = 10_000
_PARTITIONS = 6


def publish(bootstrap: str, table: SourceTable, events: int, keys: int) -> None:
    """Publish an insert for every key, then updates of random keys."""
    publisher, rng = Publisher(bootstrap, table.prefix), random.Random(1)
    publisher.create([table], partitions=_PARTITIONS)

    def records(begin: int) -> Iterator[tuple[str, bytes, bytes | None]]:
        for number in range(begin, min(begin + _TRANSACTION, events)):
            key = number if number < keys else rng.randrange(keys)
            row = {"id": key, "customer": f"customer {key}", "status": "paid", "total": f"{key % 1000}.50"}
            row["changed_at"] = 1_763_673_600_000_000 + number
            yield from table.event("c" if number < keys else "u", row, position(10 + number))

    for begin in range(0, events, _TRANSACTION):
        publisher.publish(records(begin))


def measure(spark: SparkSession, config: ApplyConfig, table: SourceTable, runs: int, events: int) -> dict[str, float]:
    """Print and return the figures."""
    made = target(schema_versions(config.source)[table.qualified], {})
    store = open_store(config.stores["warehouse"], name="warehouse", prefix=table.prefix, spark=spark)

    def read() -> None:
        records = read_topic(spark, config.source, made.topic, {}, committed_ends(config.source, made.topic))
        parse(records, columns_read(made)).write.format("noop").mode("overwrite").save()

    def build() -> None:
        beside = store.beside(made)
        applier = Applier({made.topic: Route(made, {"warehouse": beside})}, lambda route: route, Quarantine(config))
        end = fill(spark, config.source, applier, made.topic)
        if end is None:
            raise BugError("the backfill in one pass refused these events")
        built.append(timed(lambda: compare(store, beside, made)))
        store.swap(made, Due(uuid.uuid4().hex, end))

    built: list[float] = []
    read()
    build()
    built.clear()
    reading, building = [], []
    for _ in range(runs):
        reading.append(timed(read))
        building.append(timed(build))
    compared = statistics.median(built)
    read_s, build_s = statistics.median(reading), statistics.median(building) - compared
    print(f"  reading and parsing alone          {read_s:>6.1f} s {events / read_s:>10,.0f} events/s")
    print(f"  rebuilt into Iceberg and swapped   {build_s:>6.1f} s {events / build_s:>10,.0f} events/s")
    print(f"  rebuilt : read                     {read_s / build_s:>8.2f}")
    print(f"  compared with the live copy        {compared:>6.1f} s")
    return {"read_s": read_s, "rebuilt_s": build_s, "compared_s": compared, "ratio": read_s / build_s}


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--events", type=int, default=1_000_000)
    arguments.add_argument("--keys", type=int, default=500_000)
    arguments.add_argument("--runs", type=int, default=5)
    arguments.add_argument("--json", type=Path, metavar="FILE", help="write the figures here too")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="cdc-bench-") as name:
        folder = Path(name)
        with DevServers(folder / "servers", servers=("kafka",)) as servers:
            table = SourceTable("bench", "orders", COLUMNS)
            publish(servers["kafka"].url, table, given.events, given.keys)
            config = ApplyConfig(
                name="bench",
                source=ApplySource(bootstrap_servers=servers["kafka"].url, topic_prefix=table.prefix),
                stores={"warehouse": StoreConfig(type="iceberg", path=str(folder / "warehouse"))},
                tables={table.qualified: ApplyTable(stores=("warehouse",))},
                checkpoint=str(folder / "checkpoints"),
            )
            spark = open_session("bench")
            print(f"{given.events:,} events of {given.keys:,} keys, medians of {given.runs}")
            print(f"  the job's first run                {run_apply(config, once=True).seconds:>6.1f} s")
            found = measure(spark, config, table, given.runs, given.events)
            spark.stop()
    if given.json:
        given.json.write_text(json.dumps({"events": given.events, "keys": given.keys, **found}) + "\n")


if __name__ == "__main__":
    main()
