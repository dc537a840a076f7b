"""Judges whether anything of the server can be captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from cdc.model.errors import CdcError, OperatorError, RetryableError
from connectors.postgres.catalog.catalog import OLDEST, Catalog
from connectors.postgres.session import TO_THE_PRIMARY, identifier


@dataclass(frozen=True, slots=True)
class Server:
    """Holds one look at a server, as the user who looks sees it."""

    database: str
    version: int
    shown: str
    """The version as the server prints it."""
    wal_level: str
    standby: bool
    user: str
    may_replicate: bool


def look(catalog: Catalog) -> Server:
    """Ask the server."""
    (row,) = catalog.rows(
        "reading settings",
        "SELECT current_database()::text, current_setting('server_version_num')::int,"
        " current_setting('server_version'), current_setting('wal_level'), pg_is_in_recovery(), current_user::text,"
        " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)",
    )
    server = Server(*row)
    if server.may_replicate or not _has_managed_replication(catalog):
        return server
    return replace(server, may_replicate=True)


def _has_managed_replication(catalog: Catalog) -> bool:
    """Tell whether a managed service gives the right, through membership in a role of its own."""
    rows = catalog.rows(
        "reading roles",
        "SELECT 1 FROM pg_roles WHERE rolname IN ('rds_replication', 'cloudsqlsuperuser', 'azure_pg_admin')"
        " AND pg_has_role(oid, 'member')",
    )
    return bool(rows)


def refusals_by_triggers(server: Server, where: str) -> Iterator[CdcError]:
    """Give why no table of this server can be captured by triggers."""
    if server.version < OLDEST:
        yield _too_old(server, where)
    if server.standby:
        yield _standby(where)


def _standby(where: str) -> RetryableError:
    """Return the error of a standby, which may be the next primary: one that has run waits for that."""
    return RetryableError(f"PostgreSQL at {where} is a standby", hint=TO_THE_PRIMARY)


def _too_old(server: Server, where: str) -> OperatorError:
    return OperatorError(f"PostgreSQL at {where} is {server.shown}; 14 or newer is needed", hint="upgrade the server")


def refusals(server: Server, where: str) -> Iterator[CdcError]:
    """Give why this server cannot be captured by this user."""
    if server.version < OLDEST:
        yield _too_old(server, where)
    if server.wal_level != "logical":
        yield OperatorError(
            f"PostgreSQL at {where} has wal_level={server.wal_level}: its log has no rows to read",
            hint="ALTER SYSTEM SET wal_level = logical; then restart the server",
        )
    if server.standby:
        yield _standby(where)
    if not server.may_replicate:
        yield OperatorError(
            f"PostgreSQL at {where}: user {server.user} may not replicate",
            hint=f"ALTER ROLE {identifier(server.user)} REPLICATION",
        )
