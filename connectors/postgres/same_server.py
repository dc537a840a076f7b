"""Opens the connections of a connector that must all reach one PostgreSQL server: see `connectors.one_server`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Final

import psycopg2.extensions

from cdc.model.errors import CdcError, OperatorError
from connectors import one_server
from connectors.postgres import session

WHICH: Final = "SELECT extract(epoch FROM pg_postmaster_start_time())::text"
"""Tells a server from all others, also from one that is a copy of it."""

log = logging.getLogger("cdc")


def first(params: dict[str, str]) -> psycopg2.extensions.connection:
    """Open a source's own connection as `session.connect` does: those `beside` it must reach the same server."""
    connection = session.connect(params)
    try:
        server = _server(connection)
    except CdcError:
        connection.close()
        raise
    if server:
        one_server.note(session.endpoint(params), server)
    else:
        one_server.forget(session.endpoint(params))
    return connection


def close(params: dict[str, str], connection: psycopg2.extensions.connection | None) -> None:
    """Close what `first` has opened."""
    one_server.forget(session.endpoint(params))
    if connection is not None:
        connection.close()


def beside(params: dict[str, str]) -> psycopg2.extensions.connection:
    """Open another one as `session.connect` does. Raises RetryableError, too, where it has reached another server."""
    connection = session.connect(params)
    try:
        require(session.endpoint(params), _server(connection))
    except CdcError:
        connection.close()
        raise
    return connection


def require(where: str, server: str) -> None:
    """Raise RetryableError where what was asked by `WHICH` is another server than a source's own connection reached."""
    if server:
        one_server.require(where, server, "PostgreSQL")


def told(ask: Callable[[], Sequence[Sequence[object]]]) -> str:
    """Return what `WHICH` gives, or nothing where the function is forbidden: such a role has captured before, too."""
    try:
        ((server,),) = ask()
    except OperatorError as exc:
        log.debug("connections are not compared: %s", exc.message)
        return ""
    return str(server)


def _server(connection: psycopg2.extensions.connection) -> str:
    def ask() -> list[tuple[object, ...]]:
        try:
            with connection.cursor() as cursor:
                cursor.execute(WHICH)
                return cursor.fetchall()
        except session.DRIVER_ERRORS as exc:
            raise session.translate(exc, "asking which server it is") from exc

    return told(ask)
