"""The two files a user writes, as frozen dataclasses: a connector's and an apply job's."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from cdc.config.apply_config import ApplySource, ApplyTable, QuarantineConfig, StoreConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.requirement import require
from cdc.config.source_config import MEANINGLESS, SourceConfig
from cdc.config.table_patterns import LEFT_OUT, is_pattern
from cdc.config.yaml.yaml_binding import BOUND_AS, load, text_at, top_level_keys
from cdc.model.errors import ConfigError
from cdc.model.interfaces import Log

DEBEZIUM_NAMES = {
    "topic.prefix": "topic_prefix",
    "slot.name": "slot",
    "publication.name": "publication",
    "bootstrap.servers": "bootstrap_servers",
    "provide.transaction.metadata": "transaction_metadata",
}
"""Debezium's option names taken for ours, where they mean the same."""

_NAME = re.compile(r"[a-z][a-z0-9_-]{0,39}")
_OF_REPLAY = "-AS-"
"""Stands between a job's name and a replay's, where no name can have it: what a replay notes is no other one's."""

ON_ERROR = ("stop", "dead_letter")
FILE_SINKS = ("jsonl", "duckdb")
"""The types of a sink that is a file, in place of Kafka."""
_SINKS = f"type: kafka, {' or '.join(FILE_SINKS)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotConfig:
    """How the initial snapshot is read: by how many sessions, in chunks of what size."""

    workers: int = 2
    """Sessions that read in parallel: different tables, or different key ranges of a large table."""
    chunk_rows: int = 50_000
    """How many rows' events share one Kafka transaction with their progress."""
    max_rows_per_second: int | None = None
    """How many rows snapshots read a second, on average; None: as many as they can."""

    def __post_init__(self) -> None:
        require(self.workers > 0, "workers: must be 1 or more")
        require(self.chunk_rows > 0, "chunk_rows: must be 1 or more")
        require(
            self.max_rows_per_second is None or self.max_rows_per_second > 0,
            "max_rows_per_second: must be 1 or more",
            "leave it out to read as fast as it goes; cdc pause holds a connector",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSink:
    """The file that changes go to in place of Kafka: their events a line each, or the rows of DuckDB tables."""

    type: str
    path: str

    def __post_init__(self) -> None:
        example = "./shop.duckdb" if self.type == "duckdb" else "./changes.jsonl"
        require(
            self.path.strip() and not self.path.endswith("/"), f"path: “{self.path}” is no file", f"path: {example}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectorConfig:
    """A connector's file, connector.yaml."""

    name: str
    source: SourceConfig
    sink: KafkaConfig
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    on_error: str = "stop"
    """What happens at a poison record, whose event cannot be written: ``stop``, or ``dead_letter``."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    into: FileSink | None = field(default=None, metadata={BOUND_AS: None})
    """The file that events go to in place of Kafka: see `cdc.config.file_connector`."""

    def __post_init__(self) -> None:
        _check_name(self.name)
        require(self.on_error in ON_ERROR, f"on_error: “{self.on_error}” is not known", f"one of {', '.join(ON_ERROR)}")
        outbox = self.source.outbox
        require(
            outbox is None or outbox.topic_prefix.partition(".")[0] != self.sink.topic_prefix,
            "source.outbox.topic_prefix begins with sink.topic_prefix: its topics would look like tables'",
            "another one of the two",
        )
        for table in self.sink.formats:
            require(
                is_pattern(table) or self.source.speaks_of(table),
                f"sink.formats: “{table}” is not captured",
                f"add it to source.tables, which has {', '.join(self.source.tables)}",
            )
        for table in self.sink.log.tables if self.sink.log is not None else ():
            require(
                is_pattern(table) or self.source.speaks_of(table),
                f"sink.log.tables: “{table}” is not captured",
                f"add it to source.tables, which has {', '.join(self.source.tables)}",
            )
        for at, route in enumerate(self.sink.route):
            require(
                is_pattern(route.tables) or self.source.speaks_of(route.tables),
                f"sink.route[{at}].from: “{route.tables}” is not captured",
                f"add it to source.tables, which has {', '.join(self.source.tables)}",
            )

    def without(self, tables: Collection[str]) -> ConnectorConfig:
        """Return it with tables left out, by ``schema.table``: as if the file said so."""
        left = [item for item in self.source.tables if item not in tables]
        left += (f"{LEFT_OUT}{name}" for name in sorted(tables))
        return replace(self, source=replace(self.source, tables=tuple(left)))

    def names(self, table: str) -> bool:
        """Whether the file names ``schema.table`` anywhere; otherwise just patterns bring it."""
        source, sink = self.source, self.sink
        said = [*source.tables, *source.keys, *source.columns, *source.where, *sink.formats]
        said += [*(sink.log.tables if sink.log is not None else ()), *(route.tables for route in sink.route)]
        said += [source.outbox.table] if source.outbox is not None else []
        return table in said

    @property
    def logs(self) -> frozenset[Log]:
        """The logs beside the tables' topics that this connector writes."""
        wanted: dict[Log, bool] = {
            "message": self.source.messages,
            "transaction": self.sink.transaction_metadata,
            "dead-letter": self.on_error == "dead_letter",
            "key": self.source.master_key is not None,
        }
        return frozenset(log for log, on in wanted.items() if on)

    @property
    def slot(self) -> str:
        return self.source.slot or f"cdc_{self.name.replace('-', '_')}"

    @property
    def publication(self) -> str:
        return self.source.publication or f"cdc_{self.name.replace('-', '_')}"

    @property
    def binding(self) -> dict[str, str]:
        """The settings that a position depends on and no other check compares; in the position topic, never secret.

        Partitions are compared with the topics', the tables with the position's, the server by its identity.
        """
        if "slot" in MEANINGLESS.get(self.source.type, ()):
            return {"source.type": self.source.type}
        return {
            "source.type": self.source.type,
            "source.slot": self.slot,
            "source.publication": self.publication,
        }


def _check_name(name: str) -> None:
    require(
        _NAME.fullmatch(name),
        f"name: “{name}” is not a name",
        "a lower-case letter, then lower-case letters, digits, _ and -, at most 40 in all",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplyConfig:
    """An apply job's file, apply.yaml."""

    name: str
    source: ApplySource
    stores: Mapping[str, StoreConfig]
    tables: Mapping[str, ApplyTable]
    checkpoint: str
    quarantine: QuarantineConfig = field(default_factory=QuarantineConfig)
    spark: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Spark properties, added to the job's own."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        for name in self.name.split(_OF_REPLAY, 1):
            _check_name(name)
        require(self.stores, "stores is empty", "stores: {warehouse: {type: iceberg, path: ./warehouse}}")
        require(self.tables, "tables is empty", "tables: {public.orders: {stores: [warehouse]}}")
        require(self.checkpoint.strip(), "checkpoint is empty", "checkpoint: ./checkpoints/shop-warehouse")
        for name, table in self.tables.items():
            require("." in name, f"tables: “{name}” is not schema.table", "public.orders, or public.*")
            require(table.stores, f"tables.{name}.stores is empty", f"one or more of {', '.join(self.stores)}")
            for store in table.stores:
                require(
                    store in self.stores,
                    f"tables.{name}.stores: there is no store “{store}”",
                    f"stores of this file: {', '.join(self.stores)}",
                )

    def replay_name(self, name: str) -> str:
        """Return what the replay that is called `name` is called among all jobs and replays."""
        return f"{self.name}{_OF_REPLAY}{name}"

    @property
    def is_replay(self) -> bool:
        return _OF_REPLAY in self.name


def load_connector(path: Path, *, references: Callable[[str], str] | None = None) -> ConnectorConfig:
    """Read the file of a connector that writes to Kafka. Raises ConfigError.

    `references` stands in for what replaces references, where their values are not to be had.
    """
    return _connector(path, None, references)


def parse_connector(text: str, where: Path, *, references: Callable[[str], str]) -> ConnectorConfig:
    """Read the same from a text, which messages call `where`. Raises ConfigError."""
    return _connector(where, text, references)


def _connector(path: Path, text: str | None, references: Callable[[str], str] | None) -> ConnectorConfig:
    if (kind := text_at(path, "sink", "type", text=text)) in FILE_SINKS:
        raise ConfigError(
            f"{path}: sink.type is {kind}: this connector has no topics",
            hint="cdc run CONNECTOR.yaml is the command for it; what it has written is in sink.path",
        )
    if kind not in (None, "kafka") and "${" not in kind:  # its keys would be said to be unknown
        raise ConfigError(f"{path}: sink: type: “{kind}” is not a sink", hint=_SINKS)
    config = load(path, ConnectorConfig, aliases=DEBEZIUM_NAMES, text=text, references=references)
    if config.sink.topic_prefix is not None:
        return config
    return replace(config, sink=replace(config.sink, topic_prefix=config.name))


def describes_apply(path: Path) -> bool:
    """Whether a file is an apply job's: those have `stores`, connectors have none. Raises ConfigError."""
    return "stores" in top_level_keys(path)


def load_apply(path: Path) -> ApplyConfig:
    """Read an apply job's file; relative paths in it are relative to the current directory. Raises ConfigError."""
    config = load(path, ApplyConfig, aliases=DEBEZIUM_NAMES)
    _check_name(config.name)  # a replay's is no file's
    return config
