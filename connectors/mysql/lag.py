"""Measures how far the server is ahead of a position: for `cdc status`."""

from __future__ import annotations

from contextlib import suppress

from cdc.config.config import ConnectorConfig
from cdc.model.errors import CdcError
from cdc.model.state import Phase, State
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.replication.claim import is_held
from connectors.mysql.replication.continuity import resumes_at
from connectors.mysql.replication.dump_stream import replica_uuid
from connectors.mysql.replication.dumps import server_id


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the server now; `lag_bytes` is None without a position.

    `reading`: something follows as this connector, or a copy of it is at work without its log: paused, or before its
    tables are read. None where we may not know. Raises what `session.connect` raises.
    """
    connection = session.connect(session.address(config.source.url))
    try:
        found = server.look(connection)
        clock_ms = server.clock_ms(connection)
        end, _ = server.status(connection, found)
        known = replicas(connection, found)
        reading = None if known is None else server_id(config) in {int(one.server_id) for one in known}
        if not reading and state is not None and (state.phase is not Phase.STREAM or state.paused_ms):
            reading = is_held(connection, replica_uuid(config)) or reading
        owner = _owner(connection) if reading is not False else None
        behind = None
        if state is not None and "file" in state.offset:
            behind = server.bytes_between(connection, resumes_at(state), end)
    finally:
        session.close(connection)
    return {
        "log_end": str(end),
        "log_end_number": end.commit,
        "lag_bytes": behind,
        "reading": reading,
        "owner": owner,
        "clock_ms": clock_ms,
        "binlog": {"kept_for_seconds": found.expires_s},
    }


def replicas(connection: session.Connection, found: server.Server) -> list[server.Replica] | None:
    """Return who is registered to follow the log; None: we may not know."""
    with suppress(CdcError):
        return server.replicas(connection, found)
    return None


def _owner(connection: session.Connection) -> dict[str, object] | None:
    """Return who follows the log under our user, and since when; None where it is not the only one, or not known."""
    statement = (
        "SELECT HOST, ROUND((UNIX_TIMESTAMP(NOW(3)) - TIME) * 1000) FROM information_schema.PROCESSLIST"
        " WHERE COMMAND IN ('Binlog Dump', 'Binlog Dump GTID') AND USER = SUBSTRING_INDEX(CURRENT_USER(), '@', 1)"
    )
    with suppress(CdcError):
        rows = session.texts(connection, "reading who follows the log", statement)
        if len(rows) == 1:
            return {"who": f"a connection from {rows[0][0]}", "since_ms": int(float(rows[0][1]))}
    return None
