"""A connector's file, read again while the connector runs: what may be another now, and what needs a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cdc.config.config import ConnectorConfig
from cdc.config.file_connector import load_any
from cdc.model.errors import ConfigError


def reread(path: Path, before: ConnectorConfig) -> ConnectorConfig:
    """Read a running connector's file again. Raises ConfigError, also for a change that needs a start."""
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
            ("source", free, of),
            ("sink", (now.sink, now.into), (before.sink, before.into)),
            ("on_error", now.on_error, before.on_error),
            ("metrics", now.metrics, before.metrics),
        )
        if ours != theirs
    ]
    if changed:
        raise ConfigError(
            f"{', '.join(changed)} cannot be changed while the connector runs",
            hint="start it again; source.url, tables, heartbeat_s and on_hole, and snapshot, can be",
        )
    return now
