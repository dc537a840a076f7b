"""Asks a database that is captured by triggers, for `cdc check`."""

from __future__ import annotations

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked
from cdc.model.state import State
from connectors.triggers.mysql import check as mysql
from connectors.triggers.postgres import check as postgres
from connectors.triggers.source import kind
from connectors.triggers.sqlite import check as sqlite


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the database as the connector's user; `known` False: whether there is a position was not learnt."""
    return _CHECKS[kind(config.source.url)](config, state, known=known)


_CHECKS = {"sqlite": sqlite.check, "postgres": postgres.check, "mysql": mysql.check}
