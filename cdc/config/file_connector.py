"""A connector without Kafka: its file says `sink: {type: jsonl, path: …}`, or `duckdb`."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from cdc.config.config import DEBEZIUM_NAMES, FILE_SINKS, ConnectorConfig, FileSink, SnapshotConfig, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.source_config import SourceConfig
from cdc.config.yaml.yaml_binding import load, text_at
from cdc.model.errors import ConfigError

BEGIN_AGAIN: Final = (
    "another sink.path and another name begin with a new snapshot; what was changed in the gap is told by that alone"
)
"""What helps behind a gap: no command reads rows again into a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileConnector:
    """The file of such a connector."""

    name: str
    source: SourceConfig
    sink: FileSink
    snapshot: SnapshotConfig = field(default_factory=SnapshotConfig)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if self.source.outbox is not None:
            raise ConfigError("source.outbox needs topics, and there are none", hint="sink: {type: kafka, …}")
        if self.source.master_key is not None:
            raise ConfigError(
                "source.master_key needs a topic for the keys, and there is none",
                hint="sink: {type: kafka, …}; or exclude or mask the columns in place of encrypt",
            )


def load_any(path: Path) -> ConnectorConfig:
    """Read a connector's file, whatever its sink is; relative paths are relative to the current directory.

    Raises ConfigError.
    """
    if text_at(path, "sink", "type") not in FILE_SINKS:
        return load_connector(path)
    found = load(path, FileConnector, aliases=DEBEZIUM_NAMES)
    return ConnectorConfig(
        name=found.name,
        source=found.source if found.sink.type == "jsonl" else replace(found.source, messages=False),
        sink=KafkaConfig(bootstrap_servers="none", topic_prefix=found.name),
        snapshot=found.snapshot,
        metrics=found.metrics,
        into=found.sink,
    )
