"""Judges whether anything of the server can be captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from cdc.model.errors import CdcError, OperatorError, RetryableError
from connectors.postgres.catalog.catalog import OLDEST, Catalog
from connectors.postgres.session import TO_THE_PRIMARY, identifier


class _Service(NamedTuple):
    """Tells how a managed service gives what an administrator of a server of one's own sets by statements."""

    wal_level: str
    replication: str = "ALTER ROLE {} REPLICATION"


_OWN: Final = _Service("ALTER SYSTEM SET wal_level = logical; then restart the server")
_SERVICES: Final = {
    "rds_replication": _Service(
        "set rds.logical_replication to 1 in the parameter group of the instance, or of the cluster; then reboot it",
        "GRANT rds_replication TO {}",
    ),
    "cloudsqlsuperuser": _Service("set the flag cloudsql.logical_decoding of the instance to on, which restarts it"),
    "alloydbsuperuser": _Service("set the flag alloydb.logical_decoding of the instance to on, which restarts it"),
    "azure_pg_admin": _Service("set the server parameter wal_level to LOGICAL; then restart the server"),
}
"""By a role that each of them makes: Amazon's RDS and Aurora, Google's Cloud SQL and AlloyDB, Microsoft's Azure."""


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
    service: _Service = _OWN


def look(catalog: Catalog) -> Server:
    """Ask the server."""
    ((*of, service),) = catalog.rows(
        "reading settings",
        "SELECT current_database()::text, current_setting('server_version_num')::int,"
        " current_setting('server_version'), current_setting('wal_level'), pg_is_in_recovery(), current_user::text,"
        " (SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user)"
        " OR EXISTS (SELECT FROM pg_roles WHERE rolname = 'rds_replication' AND pg_has_role(oid, 'member')),"
        " (SELECT min(rolname::text) FROM pg_roles WHERE rolname = ANY (%s))",
        ([*_SERVICES],),
    )
    return replace(Server(*of), service=_SERVICES.get(service, _OWN))


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
            hint=server.service.wal_level,
        )
    if server.standby:
        yield _standby(where)
    if not server.may_replicate:
        yield OperatorError(
            f"PostgreSQL at {where}: user {server.user} may not replicate",
            hint=server.service.replication.format(identifier(server.user)),
        )
