"""Says what the connector's user may not do, with the statement that grants it."""

from __future__ import annotations

from cdc.model.errors import OperatorError
from connectors.mysql.catalog.server import Server
from connectors.mysql.values.mapping import quoted_name as quoted
from connectors.triggers.mysql.triggers import Names


def not_trusted(server: Server) -> OperatorError:
    """Return the error of a server that lets administrators alone make triggers."""
    return OperatorError(
        f"user {server.user} may not make triggers while the binlog is on: log_bin_trust_function_creators is OFF",
        hint="SET GLOBAL log_bin_trust_function_creators = ON (and in my.cnf)",
    )


def no_right(server: Server, schema: str, table: str) -> OperatorError:
    """Return the error of a table that this user may not make triggers on."""
    return OperatorError(
        f"table {schema}.{table}: user {server.user} may not make triggers on it",
        hint=f"GRANT TRIGGER ON {quoted(schema)}.{quoted(table)} TO {server.account}",
    )


def no_process(server: Server) -> OperatorError:
    """Return the error of a user who cannot be told when a table was truncated."""
    return OperatorError(
        f"user {server.user} may not see InnoDB's tables: no trigger tells of TRUNCATE, but their ids do",
        hint=f"GRANT PROCESS ON *.* TO {server.account}",
    )


def no_database(server: Server, names: Names) -> OperatorError:
    """Return the error of a user who may not have change tables."""
    pattern = names.schema.replace("_", "\\_")
    return OperatorError(
        f"user {server.user} may not make the database {names.schema} and its tables",
        hint=f"GRANT ALL ON {quoted(pattern)}.* TO {server.account}",
    )
