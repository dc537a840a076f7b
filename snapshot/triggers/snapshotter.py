"""The snapshotter of each kind of database that is captured by triggers."""

from __future__ import annotations

from collections.abc import Callable

from cdc.config.config import ConnectorConfig
from cdc.model.interfaces import Snapshotter
from connectors.triggers.source import kind
from snapshot.triggers import mysql, postgres, sqlite


def open_snapshotter(config: ConnectorConfig) -> Snapshotter:
    """Make the snapshotter for the registry. It does not connect yet."""
    return _OPENERS[kind(config.source.url)](config)


_OPENERS: dict[str, Callable[[ConnectorConfig], Snapshotter]] = {
    "sqlite": sqlite.open_snapshotter,
    "postgres": postgres.open_snapshotter,
    "mysql": mysql.open_snapshotter,
}
