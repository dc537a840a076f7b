"""A part of a real etcd cluster, and what an application does to it: by its own requests, not by the connector's."""

from __future__ import annotations

import json
import urllib.request
import uuid
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import KeyedTable, SourceConfig
from cdc.model.change import Row


def text(value: bytes) -> str:
    return b64encode(value).decode()


def end_of(prefix: bytes) -> bytes:
    return prefix[:-1] + bytes([prefix[-1] + 1])


class Etcd:
    """All names are below a prefix that no other test has."""

    def __init__(self, url: str, *, root: str | None = None) -> None:
        self.url = url
        self.root = f"/{uuid.uuid4().hex[:10]}/" if root is None else root

    def call(self, path: str, asked: Mapping[str, Any], *, token: str = "") -> dict[str, Any]:
        address = "http://" + self.url.removeprefix("etcd://").rpartition("@")[2].split(",")[0].partition("?")[0]
        headers = {"Authorization": token} if token else {}
        with urllib.request.urlopen(
            urllib.request.Request(f"{address}/v3/{path}", json.dumps(asked).encode(), headers), timeout=30
        ) as answer:
            found: dict[str, Any] = json.load(answer)
        return found

    def key(self, name: str) -> bytes:
        return f"{self.root}{name}".encode()

    def put(self, name: str, value: bytes, **more: Any) -> int:
        """The revision of it."""
        return self._revision(self.call("kv/put", {"key": text(self.key(name)), "value": text(value), **more}))

    def delete(self, name: str) -> int:
        return self._revision(self.call("kv/deleterange", {"key": text(self.key(name))}))

    def delete_all(self, name: str) -> int:
        prefix = self.key(name)
        return self._revision(self.call("kv/deleterange", {"key": text(prefix), "range_end": text(end_of(prefix))}))

    def commit(self, values: Mapping[str, bytes | None]) -> int:
        """Puts and deletes, None, in one transaction."""
        operations = [
            {"request_delete_range": {"key": text(self.key(name))}}
            if value is None
            else {"request_put": {"key": text(self.key(name)), "value": text(value)}}
            for name, value in values.items()
        ]
        return self._revision(self.call("kv/txn", {"success": operations}))

    def _revision(self, answer: Mapping[str, Any]) -> int:
        return int(answer["header"]["revision"])

    def revision(self) -> int:
        return self._revision(self.call("kv/range", {"key": text(b"?")}))

    def compact(self, revision: int) -> None:
        self.call("kv/compaction", {"revision": revision, "physical": True})

    def get(self, name: str) -> bytes | None:
        found = self.call("kv/range", {"key": text(self.key(name))}).get("kvs", [])
        return b64decode(found[0].get("value", "")) if found else None

    def found(self, name: str) -> list[dict[str, Any]]:
        """All keys below a name, as the gateway has them."""
        prefix = self.key(name)
        asked = {"key": text(prefix), "range_end": text(end_of(prefix))}
        return list(self.call("kv/range", asked).get("kvs", []))

    def rows(self, name: str) -> list[Row]:
        """Keys and values."""
        return [(b64decode(each["key"]), b64decode(each.get("value", ""))) for each in self.found(name)]

    def item(self, table: str, **more: Any) -> KeyedTable:
        return KeyedTable(table=table, prefix=f"{self.root}{table.rpartition('.')[2]}/", **more)

    def config(self, tables: Sequence[str], *, chunk_rows: int = 2, url: str | None = None) -> ConnectorConfig:
        items: Any = tuple(self.item(table) for table in tables)
        return ConnectorConfig(
            name="c",
            source=SourceConfig(type="etcd", url=url or self.url, tables=items),
            sink=KafkaConfig(bootstrap_servers="none", topic_prefix="p"),
            snapshot=SnapshotConfig(workers=1, chunk_rows=chunk_rows),
        )
