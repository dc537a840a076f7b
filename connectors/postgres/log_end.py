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

    To get there a message of ours is committed, which is never published. That flushes the log, and the server sends
    only what is flushed: without it, an idle log would be read this far only with the next commit. It is read so where
    the user may not write the message. Raises what `session.connect` raises.
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
