"""PostgreSQL's snapshot by triggers: as by its log, except that views are compared with the change tables."""

from __future__ import annotations

from contextlib import closing

import psycopg2.extensions

from cdc.config.config import ConnectorConfig
from connectors.postgres import same_server, session
from connectors.postgres.catalog.catalog import Catalog
from connectors.triggers.postgres.change_log import ChangeLog
from connectors.triggers.postgres.rounds import make_safe
from connectors.triggers.postgres.triggers import Names
from snapshot.postgres.snapshotter import PostgresSnapshotter


class ChangeTables:
    """What triggers write: a `snapshot.postgres.logs.Log`.

    No transaction that began before is late: CREATE TRIGGER has waited for all who had written to the table.
    """

    late = False
    looks = False

    def __init__(self, config: ConnectorConfig) -> None:
        self._params = session.parameters(config.source.url, f"cdc {config.name} view")
        self._name = config.name

    def catalog(self, connection: psycopg2.extensions.connection) -> Catalog:
        return Catalog(connection, by_triggers=True)

    def end(self, catalog: Catalog) -> int:
        """Draw a number in another session: a view is of a transaction that may only read."""
        del catalog
        with closing(same_server.beside(self._params)) as connection:
            return ChangeLog(connection, self._name).end()

    def nudge(self, catalog: Catalog) -> None:
        """Make safe from a crash what the view has seen; the reader gets there by itself."""
        make_safe(catalog, Names(self._name))


def open_snapshotter(config: ConnectorConfig) -> PostgresSnapshotter:
    """Make the snapshotter. It does not connect yet."""
    return PostgresSnapshotter(config, ChangeTables(config))
