"""Opens the connections of a connector that must all reach one MySQL server: see `connectors.one_server`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final

from cdc.model.errors import CdcError
from connectors import one_server
from connectors.mysql import session

_WHICH: Final = "SHOW GLOBAL VARIABLES WHERE Variable_name IN ('server_uuid', 'server_id', 'hostname', 'port')"
"""Of a Galera cluster all may have one number."""
_NONE: Final[Mapping[str, str]] = MappingProxyType({})


def first(at: session.Address, *, settings: Mapping[str, str] = _NONE) -> session.Connection:
    """Open a source's own connection as `session.connect` does: those `beside` it must reach the same server."""
    connection = session.connect(at, settings=settings)
    try:
        one_server.note(at.endpoint, _server(connection))
    except CdcError:
        session.close(connection)
        raise
    return connection


def close(at: session.Address, connection: session.Connection | None) -> None:
    """Close what `first` has opened; safe for one that is closed."""
    one_server.forget(at.endpoint)
    session.close(connection)


def beside(
    at: session.Address,
    *,
    settings: Mapping[str, str] = _NONE,
    statements: Iterable[str] = (),
    read_timeout_s: float = session.STATEMENT_TIMEOUT_S,
) -> session.Connection:
    """Open another one as `session.connect` does. Raises RetryableError, too, where it has reached another server."""
    connection = session.connect(at, settings=settings, statements=statements, read_timeout_s=read_timeout_s)
    try:
        one_server.require(at.endpoint, _server(connection), "MySQL")
    except CdcError:
        session.close(connection)
        raise
    return connection


def _server(connection: session.Connection) -> str:
    return str(sorted(session.texts(connection, "asking which server it is", _WHICH)))
