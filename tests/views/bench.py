"""A view job on a real broker, with hand-made events of captured tables."""

from __future__ import annotations

import datetime as dt
import itertools
import json
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from cdc.config.views import MatchConfig, StreamConfig, StreamRegistry, ViewConfig, ViewsConfig
from cdc.model.state import Phase
from spark_apply.events.kafka.records import committed_records
from spark_apply.views.job import ViewSummary, run_views
from spark_apply.views.pattern.lowered import pattern_sql
from spark_apply.views.planning.definitions import texts_of
from spark_apply.views.rebuild import Rebuilt, rebuild_views
from spark_apply.views.running.commands import leave, new_command
from spark_apply.views.search.query import Asked, finds, read_search
from spark_apply.views.search.words import places
from tests.spark.records import Publisher, Record, SourceTable, logged, position

_COUNTER = itertools.count(int(time.time()))
Row = Mapping[str, Any]
Change = tuple[str, str, Row]
"""Table, op (``c``, ``u`` or ``d``) and row."""

EITHER = pytest.mark.parametrize(
    "engine", [pytest.param("duckdb"), pytest.param("spark", marks=[pytest.mark.full, pytest.mark.timeout(1800)])]
)
"""A test of both engines: on the embedded one with each push, on Spark in `make test-all`."""
EACH = pytest.mark.parametrize(
    "engine",
    [
        pytest.param("duckdb"),
        pytest.param("spark", marks=[pytest.mark.full, pytest.mark.timeout(1800)]),
        pytest.param("postgres", marks=pytest.mark.full),
    ],
)
"""The same of PostgreSQL too, which does not have all that the others have."""


class Stores:
    """Where views are kept by the engine `postgres`, if a test does not say."""

    url: str | None = None


def most_over(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    """Let so many rows lie over a table of the lake."""
    for module in ("kept_rows", "folding", "publishing", "step", "store", "stream_reader"):
        monkeypatch.setattr(f"spark_apply.views.cluster.{module}.MOST_OVER", rows)


@dataclass
class ViewBench:
    """Tables, a publisher, and the job's folder. Commits are numbered from 10."""

    bootstrap: str
    folder: Path
    columns: Mapping[str, Mapping[str, Any]]
    """By table, its columns; the first one is the key."""
    views: Mapping[str, ViewConfig]
    job: str = "shop-views"
    prefix: str = field(default_factory=lambda: f"v{next(_COUNTER)}")
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    engine: str | None = None
    logs: frozenset[str] = frozenset()
    """The tables that have a log."""
    streams: Mapping[str, StreamConfig] = field(default_factory=dict)
    registry: StreamRegistry | None = None
    store: str | None = None
    """The URL of the database, with `engine` postgres."""
    partitions: int = 3
    """Of the tables' topics; of many tables each is a task of each batch."""
    commit: int = 10
    seen: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.engine == "postgres":
            self.store = self.store or Stores.url
        self.publisher = Publisher(self.bootstrap, self.prefix)
        self.tables = {
            name: SourceTable(self.prefix, name, columns, key=tuple(self.keys.get(name, list(columns)[:1])))
            for name, columns in self.columns.items()
        }
        self.publisher.create(self.tables.values(), self.partitions, logs=self.logs)

    @property
    def config(self) -> ViewsConfig:
        return ViewsConfig(
            name=self.job,
            source=ApplySource(bootstrap_servers=self.bootstrap, topic_prefix=self.prefix),
            state=str(self.folder / "state"),
            views=self.views,
            engine=self.engine,
            store=self.store,
            streams=self.streams,
            registry=self.registry,
        )

    def records(self, changes: Iterable[Change], number: int = 1, *, at_ms: int = 0) -> list[Record]:
        """The records of one source transaction, committed at `at_ms`; rows of a snapshot (``r``) have one place."""
        self.commit += 2
        more = {"at_ms": at_ms} if at_ms else {}
        found: list[Record] = []
        for at, (table, op, row) in enumerate(changes, number):
            made = self.tables[table].event(op, row, position(self.commit, 0 if op == "r" else at), **more)
            found += logged(made) if table in self.logs else made
        return found

    def transaction(self, *changes: Change, at_ms: int = 0) -> None:
        """Commit a source transaction, with the position behind it; `at_ms` is the source's clock then."""
        self.stand(self.records(changes, at_ms=at_ms), at_ms=at_ms)

    def stand(self, records: Iterable[Record] = (), *, at_ms: int = 0) -> None:
        more = {"source_ms": at_ms} if at_ms else {}
        self.publisher.stand(Phase.STREAM, self.commit + 1, self.tables.values(), records, **more)

    def run(self) -> ViewSummary:
        return run_views(self.config, once=True)

    def redefine(self) -> ViewSummary:
        """Leave the command to publish the views as they are defined now; the job does it at its start."""
        leave(self.config, new_command(texts_of(self.config)))
        return self.run()

    def rebuild(self, *views: str) -> Rebuilt:
        """Publish views by the definitions that they have now, with no job beside."""
        return rebuild_views(self.config, only=views)

    def events(self, view: str) -> list[tuple[str, Any, Any]]:
        """The events of a view since the last call: op, key, row. Tombstones are checked and left out."""
        topic = f"{self.prefix}.view.{view}"
        source = self.config.source
        found = []
        for message in committed_records(source, topic, 6):
            key, value = message.key(), message.value()
            assert isinstance(key, bytes)
            event = json.loads(value) if value is not None else None
            at = event["source"]["position"] if event is not None else "~"
            found.append((at, json.loads(key), event))
        alive = [(at, key, event) for at, key, event in sorted(found, key=lambda one: one[0]) if event is not None]
        deletes = sum(event["op"] == "d" for _, _, event in alive)
        assert deletes == sum(event is None for _, _, event in found), "a delete without its tombstone"
        positions = [at for at, _, _ in alive]
        assert positions == sorted(set(positions))
        new = alive[self.seen.get(view, 0) :]
        self.seen[view] = len(alive)
        return [(event["op"], tuple(key.values()), event["after"]) for _, key, event in new]

    def whole_events(self, view: str) -> list[Any]:
        """Every event of a view, in the order of their positions."""
        messages = committed_records(self.config.source, f"{self.prefix}.view.{view}", 6)
        found = [json.loads(value) for message in messages if (value := message.value()) is not None]
        return sorted(found, key=lambda event: str(event["source"]["position"]))

    def signs(self, view: str) -> list[str]:
        """The same in short, sorted: +key, ~key or -key."""
        marks = {"c": "+", "u": "~", "d": "-"}
        return sorted(f"{marks[op]}{','.join(map(str, key))}" for op, key, _ in self.events(view))


def oracle(
    spark: SparkSession, view: ViewConfig, tables: Mapping[str, Sequence[Row]], bench: ViewBench, clock_ms: int
) -> dict[Any, Any]:
    """What Spark's batch answer is over these rows, by key, as events have values."""
    if view.match is not None:
        return _found(view, view.match, tables, bench)
    sql = view.sql
    if view.pattern is not None:
        table = view.pattern.of.removeprefix("public.")
        sql = pattern_sql(replace(view.pattern, of=table), "at", list(bench.columns[table])[:1])
        sql = sql.replace(f"`{table}`", f"public.{table}")
    assert sql is not None
    for name, rows in tables.items():
        columns = bench.columns[name]
        schema = ", ".join(f"`{column}` {_TYPES[kind['kind']]}" for column, kind in columns.items())
        values = [tuple(_of_event(kind["kind"], row.get(column)) for column, kind in columns.items()) for row in rows]
        spark.createDataFrame(values, schema).createOrReplaceTempView(f"oracle_{name}")
        sql = re.sub(rf"\bpublic\.{name}\b", f"oracle_{name}", sql)
    at = f"TIMESTAMP_NTZ '{_EPOCH + dt.timedelta(milliseconds=clock_ms)}'"
    found = spark.sql(sql.replace("clock()", at))
    rows = [
        {name: _to_event(value, found.schema[name].dataType.typeName()) for name, value in row.asDict().items()}
        for row in found.collect()
    ]
    return {tuple(row[name] for name in view.key): row for row in rows}


def _found(
    view: ViewConfig, match: MatchConfig, tables: Mapping[str, Sequence[Row]], bench: ViewBench
) -> dict[Any, Any]:
    """What each search finds, one by one."""
    queries, docs = match.queries.removeprefix("public."), match.docs.removeprefix("public.")
    ids = [next(iter(bench.columns[table])) for table in (queries, docs)]
    searches = {row[ids[0]]: read_search(row[match.query] or "") for row in tables[queries]}
    assert not any(isinstance(search, str) for search in searches.values())
    pairs = [
        {"query": query, "doc": row[ids[1]]}
        for query, asked in searches.items()
        for row in tables[docs]
        if isinstance(asked, Asked) and finds(asked.search, places([row[name] for name in match.fields]))
    ]
    return {tuple(row[name] for name in view.key): row for row in pairs}


_EPOCH = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the engine's timestamps have no zone
_TYPES = {"int64": "BIGINT", "string": "STRING", "timestamp_micros": "TIMESTAMP_NTZ", "float64": "DOUBLE"}


def _of_event(kind: str, value: Any) -> Any:
    return _EPOCH + dt.timedelta(microseconds=value) if kind == "timestamp_micros" and value is not None else value


def _to_event(value: Any, type_name: str) -> Any:
    if isinstance(value, dt.datetime):
        if type_name == "timestamp":
            return value.strftime("%Y-%m-%dT%H:%M:%SZ")
        return (value - _EPOCH) // dt.timedelta(microseconds=1)
    return str(value) if isinstance(value, Decimal) else value
