"""The source of each kind of database that is captured by triggers, by its URL."""

from __future__ import annotations

from collections.abc import Callable

from cdc.config.config import ConnectorConfig
from cdc.model.errors import ConfigError
from cdc.model.interfaces import Source
from connectors.triggers.mysql import source as mysql
from connectors.triggers.postgres import source as postgres
from connectors.triggers.sqlite import source as sqlite


def kind(url: str) -> str:
    """Return the kind of database that a URL names. Raises ConfigError."""
    scheme = url.partition(":")[0].partition("+")[0]
    if scheme not in _KINDS:
        raise ConfigError(
            "source.url names no database that triggers are written for",
            hint="sqlite:///shop.db, postgresql://user:${PASSWORD}@host:5432/database, or "
            "mysql://user:${PASSWORD}@host:3306",
        )
    return _KINDS[scheme]


def open_source(config: ConnectorConfig) -> Source:
    """Make the source, for the registry. Connects to nothing yet."""
    return _OPENERS[kind(config.source.url)](config)


_KINDS = {"sqlite": "sqlite", "postgresql": "postgres", "postgres": "postgres", "mysql": "mysql", "mariadb": "mysql"}
_OPENERS: dict[str, Callable[[ConnectorConfig], Source]] = {
    "sqlite": sqlite.open_source,
    "postgres": postgres.open_source,
    "mysql": mysql.open_source,
}
