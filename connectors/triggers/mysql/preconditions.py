"""Judges whether a server can be captured by triggers, and what its connector's user may not do that is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cdc.model.errors import OperatorError
from connectors.mysql import session
from connectors.mysql.catalog import server
from connectors.mysql.catalog.catalog import Captured
from connectors.mysql.catalog.server import Server
from connectors.triggers.change_tables import too_wide
from connectors.triggers.mysql.change_log import ChangeLog
from connectors.triggers.mysql.rights import no_database, no_right, not_trusted

_VARIABLES: Final = (
    "log_bin", "log_bin_trust_function_creators", "binlog_format", "wsrep_on", "wsrep_cluster_address",
    "group_replication_group_name", "group_replication_single_primary_mode", "read_only", "super_read_only",
)  # fmt: skip
_ON: Final = ("ON", "1")
_OFF: Final = ("OFF", "0")
MOST_COLUMNS: Final = 1_017 - 4
"""InnoDB's tables have at most 1,017 columns, and a change table has four of its own."""
_NOT_CALLED: Final = "what it replicates calls no trigger here, and would never come"
_PRIVILEGES: Final = """
SELECT PRIVILEGE_TYPE FROM information_schema.USER_PRIVILEGES WHERE GRANTEE = {me}
UNION SELECT PRIVILEGE_TYPE FROM information_schema.SCHEMA_PRIVILEGES WHERE GRANTEE = {me} AND %s LIKE TABLE_SCHEMA
UNION SELECT PRIVILEGE_TYPE FROM information_schema.TABLE_PRIVILEGES
      WHERE GRANTEE = {me} AND TABLE_SCHEMA = %s AND TABLE_NAME = %s
"""
_NEEDED: Final = frozenset({"CREATE", "DROP", "SELECT", "INSERT", "UPDATE", "DELETE", "TRIGGER"})


def variables(connection: session.Connection) -> dict[str, str]:
    """Return the settings that matter, as the server has them."""
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    statement = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
    return {name.lower(): value for name, value in session.texts(connection, "reading settings", statement)}


def refusals(connection: session.Connection, found: Server, where: str) -> Iterator[OperatorError | None]:
    """Give why no table of this server can be captured; None: we may not know whether it replicates."""
    oldest = server.OLDEST_MARIADB if found.mariadb else server.OLDEST_MYSQL
    if found.version < oldest:
        yield OperatorError(
            f"the server at {where} is {found.shown}; {found.family} {'.'.join(map(str, oldest))} or newer is needed",
            hint="upgrade the server",
        )
    of = variables(connection)
    if of.get("wsrep_on", "").upper() in _ON and of.get("wsrep_cluster_address"):
        yield OperatorError(
            f"the server at {where} is of a Galera cluster: {_NOT_CALLED}, and others' locks do not order its commits",
            hint="capture it by its binlog: source.type: mysql",
        )
    if of.get("group_replication_group_name") and of.get("group_replication_single_primary_mode", "").upper() == "OFF":
        yield OperatorError(
            f"the server at {where} is of a group with several primaries: {_NOT_CALLED}",
            hint="capture it by its binlog: source.type: mysql",
        )
    replicates = server.replicates(connection, found)
    if replicates:
        yield OperatorError(
            f"the server at {where} is a replica: {_NOT_CALLED}", hint="point source.url at the server it replicates"
        )
    elif replicates is None:
        yield None


def warnings(connection: session.Connection, where: str) -> Iterator[tuple[str, str]]:
    """Give what a run goes on with, or waits for, each with what changes it."""
    of = variables(connection)
    closed = [name for name in ("read_only", "super_read_only") if of.get(name, "OFF").upper() not in _OFF]
    if closed:
        what = (
            f"{' and '.join(closed)} at {where}: the server takes no changes, but of some users, and the connector "
            "keeps tables of its own there: unless its user is one of those, it has to wait until that changes"
        )
        yield what, "SET GLOBAL read_only = OFF, if it is to be the primary; else name the primary in source.url"
    if of.get("log_bin", "").upper() in _ON and of.get("binlog_format", "").upper() == "STATEMENT":
        what = (
            f"binlog_format is STATEMENT at {where}: the server refuses what the connector writes, with error 1665, "
            "and notes each statement that calls a trigger as unsafe; its replicas call the triggers too, if they have "
            "them"
        )
        yield what, "SET GLOBAL binlog_format = 'MIXED'"


def rights(connection: session.Connection, changes: ChangeLog, found: Server, captured: Sequence[Captured]) -> Iterator[
    OperatorError
]:  # fmt: skip
    """Give what this user may not do that is needed. Roles are not looked into: who has one is given nothing."""
    me = (
        "CONCAT('''', SUBSTRING_INDEX(CURRENT_USER(), '@', 1), '''@''', SUBSTRING_INDEX(CURRENT_USER(), '@', -1), '''')"
    )

    def may(schema: str, table: str) -> set[str]:
        rows = session.texts(connection, "reading rights", _PRIVILEGES.format(me=me), (schema, schema, table))
        return {name.upper() for (name,) in rows}

    for one in captured:
        if (width := len(one.table.columns)) > MOST_COLUMNS:
            yield too_wide(one.table.qualified, width, MOST_COLUMNS)
    of, anywhere = variables(connection), may("", "")
    if _has_roles(connection):
        return
    if not may(changes.names.schema, "") >= _NEEDED:
        yield no_database(found, changes.names)
    logged = of.get("log_bin", "").upper() in _ON
    if logged and of.get("log_bin_trust_function_creators", "").upper() not in _ON and "SUPER" not in anywhere:
        yield not_trusted(found)
    for one in captured:
        if "TRIGGER" not in may(one.table.schema, one.table.name):
            yield no_right(found, one.table.schema, one.table.name)


def _has_roles(connection: session.Connection) -> bool:
    ((role,),) = session.texts(connection, "reading rights", "SELECT CURRENT_ROLE()")
    return role.upper() not in ("", "NONE")
