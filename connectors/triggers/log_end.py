"""Finds where a change table ends, for `cdc token`."""

from __future__ import annotations

from cdc.config.config import ConnectorConfig
from cdc.model.state import State
from connectors.triggers.mysql import check as mysql
from connectors.triggers.postgres import check as postgres
from connectors.triggers.source import kind
from connectors.triggers.sqlite import check as sqlite


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call."""
    return _ENDS[kind(config.source.url)](config, state)


_ENDS = {"sqlite": sqlite.end, "postgres": postgres.end, "mysql": mysql.end}
