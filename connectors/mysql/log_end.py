"""Finds where the log ends, for `cdc token`."""

from __future__ import annotations

from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError
from cdc.model.interfaces import LINEAGE
from cdc.model.state import State
from connectors.mysql import session
from connectors.mysql.catalog import server


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call.

    Raises OperatorError if this is another server than the connector follows: its files count differently.
    """
    address = session.address(config.source.url)
    connection = session.connect(address)
    try:
        found = server.look(connection)
        if state.identity.get(LINEAGE, found.lineage) != found.lineage:
            msg = f"MySQL at {address.endpoint} is not the server that connector {config.name} has followed so far"
            raise OperatorError(
                msg, hint="take it again when the connector follows this one: cdc status CONNECTOR.yaml"
            )
        return server.status(connection, found)[0].commit
    finally:
        session.close(connection)
