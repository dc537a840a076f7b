"""A connector's file, read again while the connector runs: what may be another now, and what needs a start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import load_any
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.errors import StartNeededError


def reread(path: Path, before: ConnectorConfig) -> ConnectorConfig:
    """Read a running connector's file again. Raises ConfigError, of what needs a start StartNeededError."""
    now = load_any(path)
    of = before.source
    free = replace(
        now.source,
        url=of.url,
        tables=of.tables,
        keys=of.keys,
        prefixes=of.prefixes,
        heartbeat_s=of.heartbeat_s,
        on_hole=of.on_hole,
    )
    changed = [
        name
        for name, ours, theirs in (
            ("name", now.name, before.name),
            *_keys("source", free, of),
            *_keys("sink", now.sink, before.sink),
            ("sink", now.into, before.into),
            ("on_error", now.on_error, before.on_error),
            ("metrics", now.metrics, before.metrics),
        )
        if ours != theirs
    ]
    if changed:
        raise StartNeededError(
            f"{', '.join(changed)} cannot be changed while the connector runs",
            hint="start it again; source.url, tables, heartbeat_s and on_hole, and snapshot, can be",
        )
    return now


def _keys(
    of: str, now: SourceConfig | KafkaConfig, before: SourceConfig | KafkaConfig
) -> Iterator[tuple[str, object, object]]:
    """Give the keys of a part of the file, and what both files say there."""
    for field in fields(now):
        yield f"{of}.{field.name}", getattr(now, field.name), getattr(before, field.name)
