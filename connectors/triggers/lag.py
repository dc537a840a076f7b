"""Measures how far a database that is captured by triggers is ahead of a position, for `cdc status`."""

from __future__ import annotations

from cdc.config.config import ConnectorConfig
from cdc.model.state import State
from connectors.triggers.mysql import check as mysql
from connectors.triggers.postgres import check as postgres
from connectors.triggers.source import kind
from connectors.triggers.sqlite import check as sqlite


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the change table now."""
    return _STANDINGS[kind(config.source.url)](config, state)


_STANDINGS = {"sqlite": sqlite.standing, "postgres": postgres.standing, "mysql": mysql.standing}
