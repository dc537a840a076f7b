"""A part of an etcd cluster, its application, and a connector of it, into the twin of a broker."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from cdc.capture.pipeline import Pipeline
from cdc.capture.settings import Settings
from cdc.config import registry
from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.rules.capture_rules import CaptureRules
from cdc.testing import MemoryKafka, MemorySink, nothing
from tests.etcd_cluster import Etcd
from tests.integration.sqlite_shop import Shop

Row = dict[str, Any]


class EtcdShop(Shop):
    """As SQLite's; tables are prefixes, each of text."""

    schema = "s"

    def __init__(self, url: str, *, tables: Sequence[str] = ("s.orders",), root: str | None = None) -> None:
        self.etcd = Etcd(url, root=root)
        self.login = url
        self.kafka = MemoryKafka()
        self.rules = {}
        self.tables = tuple(tables)
        self.items: Any = None
        self.more: dict[str, Any] = {}
        """What the pipeline's settings say besides."""

    @property
    def url(self) -> str:
        return self.login

    @property
    def config(self) -> ConnectorConfig:
        items = self.items or tuple(self.etcd.item(table, text=True) for table in self.tables)
        return ConnectorConfig(
            name="c",
            source=SourceConfig(type="etcd", url=self.url, tables=items, **self.rules),
            sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"),
            snapshot=SnapshotConfig(chunk_rows=3),
        )

    def pipeline(self, at: Callable[[str], None] = nothing) -> Pipeline:
        config = self.config
        settings = Settings(
            connector="c", prefix="p", chunk_rows=3, config=config.binding,
            rules=CaptureRules.of_source(config.source), **self.more,
        )  # fmt: skip
        return Pipeline(
            settings,
            open_source=registry.source(config),
            open_snapshotter=registry.snapshotter(config),
            sink=MemorySink(self.kafka, "c", "p", at=at),
        )

    def fold(self, table: str = "orders") -> list[Row]:
        """The topic's rows, in the order of their keys."""
        rows: dict[bytes | None, bytes | None] = {}
        positions: list[str] = []
        for record in self.kafka.committed(f"p.s.{table}"):
            rows[record.key] = record.value
            if record.value is not None:
                positions.append(orjson.loads(record.value)["source"]["position"])
        assert positions == sorted(positions)
        found = [orjson.loads(value)["after"] for value in rows.values() if value is not None]
        return sorted(found, key=lambda row: str(row["key"]))

    def there(self, table: str = "orders", *, text: bool = True) -> list[Row]:
        """What the cluster has, as events have it."""

        def shown(value: str) -> str:
            return b64decode(value).decode() if text else value

        rows = []
        for each in self.etcd.found(f"{table}/"):
            numbers = {name: int(each[name]) for name in ("version", "create_revision", "mod_revision")}
            lease = int(each["lease"]) if "lease" in each else None
            rows.append({"key": shown(each["key"]), "value": shown(each.get("value", "")), **numbers, "lease": lease})
        return sorted(rows, key=lambda row: str(row["key"]))

    def moves(self, table: str = "orders") -> list[tuple[str, str | None, str | None]]:
        """What events say of values, without those of the snapshot."""

        def value(row: Row | None) -> str | None:
            return None if row is None else row["value"]

        found = [event for event in self.events(table) if event["op"] != "r"]
        return [(event["op"], value(event["before"]), value(event["after"])) for event in found]
