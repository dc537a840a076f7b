"""Hand-made records in exactly the contract's JSON (docs/events.md), and a producer with transactions."""

from __future__ import annotations

import json
import time
from collections.abc import Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import Consumer, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.encode.table_log import log_of
from cdc.model.state import Phase, State

COMPACT = (",", ":")
Record = tuple[str, bytes, bytes | None]
Columns = Mapping[str, Mapping[str, Any]]
_SETTLES_S = 5.0
"""Column name -> its record in the schema topic, without the name."""


def position(commit: int, number: int = 1, epoch: int = 1) -> str:
    return f"{epoch:08x}.{commit:016x}.{number:08x}"


def dumps(value: object) -> bytes:
    return json.dumps(value, separators=COMPACT, ensure_ascii=False).encode()


@dataclass(frozen=True)
class SourceTable:
    """One version of a source table."""

    prefix: str
    name: str
    columns: Columns
    key: tuple[str, ...] = ("id",)
    schema: str = "public"
    version: int = 1
    topic_name: str | None = None
    since: int = 0
    """The commit of its first event."""

    @property
    def topic(self) -> str:
        return self.topic_name or f"{self.prefix}.{self.schema}.{self.name}"

    @property
    def qualified(self) -> str:
        return f"{self.schema}.{self.name}"

    def schema_record(self) -> tuple[bytes, bytes]:
        about = {"schema": self.schema, "table": self.name, "version": self.version}
        columns = [{"name": name, "type": "any", **column} for name, column in self.columns.items()]
        value = {
            "connector": self.prefix,
            "source": "postgresql",
            "db": "shop",
            "schema": self.schema,
            "table": self.name,
            "topic": self.topic,
            "version": self.version,
            "position": position(self.since),
            "key": list(self.key),
            "columns": columns,
        }
        return dumps(about), dumps(value)

    def event(
        self, op: str, row: Mapping[str, Any], at: str, *, at_ms: int = 1763673600123
    ) -> list[tuple[str, bytes, bytes | None]]:
        """The records of one change: a delete brings its tombstone."""
        key = dumps({name: row[name] for name in self.key})
        commit = int(at.split(".")[1], 16)
        value = {
            "before": {name: row[name] for name in self.key} if op == "d" else None,
            "after": None if op == "d" else dict(row),
            "source": {
                "version": "0.1.0",
                "connector": "postgresql",
                "name": self.prefix,
                "ts_ms": at_ms,
                "snapshot": "true" if op == "r" else "false",
                "db": "shop",
                "schema": self.schema,
                "table": self.name,
                "txId": commit,
                "lsn": commit,
                "position": at,
                "schema_version": self.version,
            },
            "transaction": None if op == "r" else {"id": f"{commit}", "total_order": 1, "data_collection_order": 1},
            "op": op,
            "ts_ms": 1763673600131,
        }
        records: list[tuple[str, bytes, bytes | None]] = [(self.topic, key, dumps(value))]
        return [*records, (self.topic, key, None)] if op == "d" else records


def logged(records: Iterable[Record]) -> list[Record]:
    """Records of tables, and what their logs have of them."""
    kept = list(records)
    return [*kept, *((log_of(topic), key, value) for topic, key, value in kept if value is not None)]


@dataclass
class Publisher:
    """A transactional producer of one connector."""

    bootstrap: str
    prefix: str
    _producer: Producer = field(init=False)
    _probe: Consumer = field(init=False)
    _written: dict[tuple[str, int], int] = field(default_factory=dict)
    """The last offset of the open transaction in each partition."""

    def __post_init__(self) -> None:
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "transactional.id": f"{self.prefix}.test",
                "partitioner": "murmur2_random",
                "linger.ms": 5,
                "log_level": 0,
                "queue.buffering.max.messages": 1_000_000,
            }
        )
        self._producer.init_transactions(30)
        group = {"group.id": f"{self.prefix}.test", "isolation.level": "read_committed"}
        self._probe = Consumer({"bootstrap.servers": self.bootstrap, "log_level": 0, **group})

    def create(self, tables: Iterable[SourceTable], partitions: int = 3, *, logs: Container[str] = ()) -> None:
        """Make the topics, and those of the logs of tables that `logs` names, and publish the tables' versions."""
        config = {"cleanup.policy": "compact"}
        tables = list(tables)
        ours = (f"{self.prefix}.schema", f"{self.prefix}.position-{self.prefix}")
        wanted = [NewTopic(name, 1, 1, config=config) for name in ours]
        wanted += [NewTopic(table.topic, partitions, 1, config=config) for table in tables]
        wanted += [NewTopic(log_of(table.topic), partitions, 1) for table in tables if table.name in logs]
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        futures = admin.create_topics(wanted)
        for future in futures.values():
            future.result(30)
        self.versions(tables)

    def versions(self, tables: Iterable[SourceTable]) -> None:
        with self.transaction():
            for table in tables:
                key, value = table.schema_record()
                self.write([(f"{self.prefix}.schema", key, value)])

    def stand(
        self, phase: Phase, commit: int, tables: Iterable[SourceTable], records: Iterable[Record] = (), **more: Any
    ) -> None:
        """Write records and, last, where the connector stands, in one transaction."""
        names = tuple(table.qualified for table in tables)
        state = State(connector=self.prefix, identity={}, phase=phase, epoch=1, commit=commit, tables=names, **more)
        last = (f"{self.prefix}.position-{self.prefix}", self.prefix.encode(), state.to_bytes())
        self.publish([*records, last])

    def publish(self, records: Iterable[tuple[str, bytes, bytes | None]], *, commit: bool = True) -> None:
        """Write records in one transaction, committed or aborted."""
        with self.transaction(commit=commit):
            self.write(records)

    def write(self, records: Iterable[tuple[str, bytes, bytes | None]]) -> None:
        """Write records in the transaction that is open."""
        for topic, key, value in records:
            self._producer.produce(topic, key=key, value=value, on_delivery=self._delivered)
            self._producer.poll(0)

    def _delivered(self, _error: object, message: Message) -> None:
        self._written[message.topic() or "", message.partition() or 0] = message.offset() or 0

    def _settle(self) -> None:
        """Wait until readers see the transaction's end: a broker writes it into the partitions after its answer.

        Not for long: another one may be open there.
        """
        until_s = time.monotonic() + _SETTLES_S
        for (topic, partition), last in self._written.items():
            while self._probe.get_watermark_offsets(TopicPartition(topic, partition), timeout=30)[1] <= last:
                if time.monotonic() > until_s:
                    return
                time.sleep(0.01)

    @contextmanager
    def transaction(self, *, commit: bool = True) -> Iterator[None]:
        """Write in one transaction; who reads after it finds all of it, or nothing."""
        self._written.clear()
        self._producer.begin_transaction()
        yield
        self._producer.flush(30)
        if commit:
            self._producer.commit_transaction(30)
        else:
            self._producer.abort_transaction(30)
        self._settle()
