"""Compares the server's own filters with the captured tables: what they leave out never reaches the log.

| filter | leaves out of the log |
|---|---|
| binlog_do_db, binlog_ignore_db | rows of a database; statements (ALTER, TRUNCATE …) whose session was in one |
| replicate_do_db … replicate_rewrite_db, of a replica | what its source does: its tables do not have it either |

What a session does under ``sql_log_bin = 0`` is in no log, and no setting of the server's tells of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from cdc.model.change import Table
from cdc.model.errors import OperatorError
from connectors.mysql import session
from connectors.mysql.catalog.names import as_compared
from connectors.mysql.catalog.server import Server

_DO, _IGNORE = 2, 3
"""Where the log's status has the two filters."""
_OF_REPLICA: Final = ("replicate_do_", "replicate_ignore_", "replicate_wild_", "replicate_rewrite_")


def refusals(
    connection: session.Connection, server: Server, tables: Sequence[Table], where: str
) -> Iterator[OperatorError]:
    """Give the captured databases whose rows the server does not log."""
    do, ignore = _of_log(connection, server)
    for schema in sorted({table.schema for table in tables}):
        name = as_compared(schema, folds=server.folds)
        if (do and name not in do) or (not do and name in ignore):
            setting = "binlog_do_db" if do else "binlog_ignore_db"
            yield OperatorError(
                f"{setting} leaves database {schema} out of the log at {where}: changes of its tables never come",
                hint=f"in my.cnf {'add it to' if do else 'take it out of'} {setting}, restart the server, then "
                "cdc snapshot start CONNECTOR.yaml --after-gap; or leave its tables out of source.tables",
            )


def warnings(connection: session.Connection, server: Server) -> Iterator[str]:
    """Give what filters leave out that no setting tells exactly."""
    do, ignore = _of_log(connection, server)
    for setting, names in (("binlog_do_db", do), ("binlog_ignore_db", ignore)):
        if names:
            yield (
                f"{setting} is set: ALTER, TRUNCATE, RENAME and DROP of a captured table are not in the log if their "
                "session is in a database that is left out; let sessions USE the table's database"
            )
    for setting, value in _of_replication(connection, server):
        yield f"{setting} is {value} on this replica: what it leaves out of its tables does not come either"


def _of_log(connection: session.Connection, server: Server) -> tuple[set[str], set[str]]:
    newer = not server.mariadb and server.version >= (8, 2)
    statement = "SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS"
    found = session.texts(connection, "reading the log's filters", statement)
    if not found:
        return set(), set()
    do, ignore = (
        {as_compared(name.strip(), folds=server.folds) for name in found[0][at].split(",") if name.strip()}
        for at in (_DO, _IGNORE)
    )
    return do, ignore


def replication(connection: session.Connection, server: Server) -> list[dict[str, str]]:
    """Return what the server says of each source that it replicates, by names in small letters; none: not told."""
    statement = "SHOW ALL SLAVES STATUS" if server.mariadb else "SHOW REPLICA STATUS"
    if not server.mariadb and server.version < (8, 0, 22):
        statement = "SHOW SLAVE STATUS"
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            names = [column[0].lower() for column in cursor.description or ()]
            rows = list(cursor.fetchall())
    except session.DRIVER_ERRORS as exc:
        error = session.translate(exc, "asking what it replicates")
        error.__cause__ = exc
        if session.is_denied(error):
            return []  # who may not ask is warned of where it matters: see `server.unlogged`
        raise error from exc
    return [
        {name: (value or b"").decode(errors="replace") for name, value in zip(names, row, strict=True)} for row in rows
    ]


def _of_replication(connection: session.Connection, server: Server) -> Iterator[tuple[str, str]]:
    for of in replication(connection, server):
        for name, value in of.items():
            if value and name.startswith(_OF_REPLICA) and name != "replicate_ignore_server_ids":
                yield name, value
