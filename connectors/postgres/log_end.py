"""Finds where the log ends, for `cdc token`."""

from __future__ import annotations

import logging

from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError
from cdc.model.state import State
from connectors.postgres import session
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.lsn import at_record_end, lsn_number
from connectors.postgres.slot.heartbeat import TOKEN

log = logging.getLogger("cdc")


def end(config: ConnectorConfig, state: State) -> int:
    """Return an LSN behind all that was committed before the call.

    A message of ours is committed there: that flushes the log, and the server sends no more of it than is flushed, so
    that an idle one is followed past this place at once. It is never published. Without the right to write it, the
    place is reached with the next commit of anybody. Raises what `session.connect` raises.
    """
    del state  # its positions go on counting after a fail-over
    connection = session.connect(session.parameters(config.source.url, f"cdc {config.name} token"))
    try:
        catalog = Catalog(connection)
        try:
            statement = "SELECT pg_logical_emit_message(true, %s, '')::text"
            ((text,),) = catalog.rows("writing a message into the log", statement, (TOKEN,))
            end = lsn_number(text)
        except OperatorError as exc:
            log.warning("%s: an idle database may reach this token late", exc.message)
            end = catalog.end()
    finally:
        connection.close()
    return at_record_end(end)
