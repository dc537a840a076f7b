"""A SQLite file, its application, and a connector of it, into the twin of a broker."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, Self

import orjson

from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline
from cdc.capture.settings import Settings
from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import CdcError
from cdc.model.state import State
from cdc.rules.capture_rules import CaptureRules
from cdc.testing import MemoryKafka, MemorySink, Outcome, Record, nothing
from connectors.triggers.source import open_source
from snapshot.triggers.snapshotter import open_snapshotter

ORDERS = "CREATE TABLE orders (id INTEGER PRIMARY KEY, status TEXT NOT NULL, n INT)"


class Shop:
    """A file, its application, and a connector of it."""

    rules: dict[str, Any]
    """What `source` says besides: columns, where."""
    schema = "main"

    def __init__(self, folder: Path, *scripts: str, tables: Sequence[str] = ("main.orders",)) -> None:
        self.path = folder / "shop.db"
        self.kafka = MemoryKafka()
        self.rules = {}
        self.tables = tuple(tables)
        self.do("PRAGMA journal_mode = WAL", *scripts)

    @property
    def url(self) -> str:
        return f"sqlite:///{self.path}"

    def connect(self) -> Any:
        """As the application, which brings a collation of its own."""
        connection = sqlite3.connect(self.path, isolation_level=None)
        connection.create_collation("ours", lambda one, other: (one > other) - (one < other))
        return connection

    def begin(self, connection: Any) -> None:
        connection.execute("BEGIN IMMEDIATE")

    def do(self, *scripts: str) -> None:
        with closing(self.connect()) as connection:
            for script in scripts:
                connection.executescript(script)

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return connection.execute(statement).fetchall()

    def rows(self, statement: str = "SELECT * FROM orders ORDER BY id") -> list[dict[str, Any]]:
        """As events have them."""
        return as_events(self, statement)

    @property
    def config(self) -> ConnectorConfig:
        return ConnectorConfig(
            name="c",
            source=SourceConfig(type="triggers", url=self.url, tables=self.tables, **self.rules),
            sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"),
            snapshot=SnapshotConfig(chunk_rows=3),
        )

    def pipeline(self, at: Callable[[str], None] = nothing) -> Pipeline:
        config = self.config
        return Pipeline(
            Settings(
                connector="c",
                prefix="p",
                chunk_rows=3,
                config=config.binding,
                rules=CaptureRules.of_source(config.source),
                by_pattern=lambda table: table not in self.tables,
            ),
            open_source=lambda: open_source(config),
            open_snapshotter=lambda: open_snapshotter(config),
            sink=MemorySink(self.kafka, "c", "p", at=at),
        )

    def run(self, at: Callable[[str], None] = nothing) -> None:
        self.pipeline(at).run(until_caught_up=True)

    def running(self) -> Running:
        return Running(self.pipeline())

    def events(self, table: str = "orders") -> list[dict[str, Any]]:
        found = self.kafka.committed(f"p.{self.schema}.{table}")
        return [orjson.loads(record.value) for record in found if record.value is not None]

    def fold(self, table: str = "orders") -> list[dict[str, Any]]:
        rows: dict[bytes | None, bytes | None] = {}
        positions: list[str] = []
        for record in self.kafka.committed(f"p.{self.schema}.{table}"):
            rows[record.key] = record.value
            if record.value is not None:
                positions.append(orjson.loads(record.value)["source"]["position"])
        assert positions == sorted(positions)
        found = [orjson.loads(value)["after"] for value in rows.values() if value is not None]
        return sorted(found, key=lambda row: row["id"])

    def state(self) -> State:
        state = self.kafka.state("p", "c")
        assert state is not None
        return state

    def ask(self, command: Command) -> None:
        """As `cdc snapshot` does."""
        topic = "p.signal-c"
        self.kafka.topics[topic].append(Record(topic, b"1", command.to_bytes("1"), self.kafka.begin("cli")))
        self.kafka.end("cli", Outcome.COMMITTED)


class Running:
    """The connector in a thread, until the block is left."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.raised: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self._pipeline.run()
        except CdcError as exc:
            self.raised = exc

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._pipeline.stop()
        self._thread.join()

    def eventually(self, holds: Callable[[], bool]) -> None:
        for _ in range(600):
            if holds() or self.raised is not None:
                break
            self._thread.join(0.05)
        assert holds()


def as_events(shop: Shop, statement: str = "SELECT * FROM orders ORDER BY id") -> list[dict[str, Any]]:
    with closing(shop.connect()) as connection:
        cursor = connection.execute(statement)
        names = [of[0] for of in cursor.description]
        return [dict(zip(names, row, strict=True)) for row in cursor]
