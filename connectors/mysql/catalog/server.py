"""Judges whether anything of the server can be captured, and finds where its log ends."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import OperatorError, UnloggedError
from connectors.mysql import session
from connectors.mysql.binlog.positions import BinlogPosition

log = logging.getLogger("cdc")

_TOLD_S: Final = 10.0
_PREPARED_EVERY_S: Final = 0.5
OLDEST_MYSQL: Final = (8, 0, 14)
OLDEST_MARIADB: Final = (10, 5, 2)
_VARIABLES: Final = (
    "version", "log_bin", "binlog_format", "binlog_row_image", "binlog_row_metadata", "binlog_row_value_options",
    "gtid_mode", "server_id", "server_uuid", "binlog_expire_logs_seconds", "expire_logs_days", "log_slave_updates",
    "log_replica_updates", "binlog_order_commits", "lower_case_table_names", "innodb_native_foreign_keys",
    "basedir", "max_binlog_total_size", "binlog_space_limit",
)  # fmt: skip
_LOGGED_CASCADES: Final = (9, 6)
"""From this version on MySQL itself carries out foreign keys, and not InnoDB, unless it is told otherwise."""
_AT_RDS: Final = "/rdsdbbin"
_RETENTION: Final = "binlog retention hours"
_DAY_S: Final = 86_400
SHORTEST_S: Final = 3 * _DAY_S
"""Log kept for less may be gone after a weekend."""


@dataclass(frozen=True, slots=True)
class Server:
    """Holds one look at a server, as the user who looks sees it."""

    shown: str
    variables: dict[str, str]
    user: str
    """``name@host``, the account the server takes us for."""

    @property
    def mariadb(self) -> bool:
        return "mariadb" in self.shown.lower()

    @property
    def version(self) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", self.shown.replace("5.5.5-", "", 1))[:3])

    @property
    def family(self) -> str:
        return "mariadb" if self.mariadb else "mysql"

    @property
    def has_log(self) -> bool:
        return self.variables.get("log_bin", "").upper() in ("ON", "1")

    @property
    def gtids(self) -> bool:
        """Tell whether every transaction has a GTID by which a view and a position can be told exactly (MySQL)."""
        return self.variables.get("gtid_mode", "").upper() == "ON"

    @property
    def logs_cascades(self) -> bool:
        """Tell whether rows that foreign keys delete or change are in the log."""
        native = self.variables.get("innodb_native_foreign_keys", "OFF").upper() in ("ON", "1")
        return not self.mariadb and self.version >= _LOGGED_CASCADES and not native

    @property
    def folds(self) -> bool:
        """Tell whether it compares names of databases and tables in small letters."""
        return self.variables.get("lower_case_table_names", "0") != "0"

    @property
    def lineage(self) -> str:
        """Return which server of its replication group this is."""
        return self.variables.get("server_id", "") if self.mariadb else self.variables.get("server_uuid", "")

    @property
    def expires_s(self) -> int | None:
        """Return how long the log is kept; None: for ever."""
        if _RETENTION in self.variables:
            return int(float(self.variables[_RETENTION] or 0) * 3600)
        seconds = int(float(self.variables.get("binlog_expire_logs_seconds") or 0))
        days = float(self.variables.get("expire_logs_days") or 0)
        return seconds or int(days * _DAY_S) or None

    @property
    def at_rds(self) -> bool:
        """Tell whether it is at Amazon (RDS, Aurora), which removes the log by a setting of its own."""
        return self.variables.get("basedir", "").startswith(_AT_RDS)

    @property
    def tells_retention(self) -> bool:
        """Tell whether how long the log is kept is known."""
        return not self.at_rds or _RETENTION in self.variables

    @property
    def kept_bytes(self) -> int:
        """Return how large the log may become before its oldest file is removed; 0: there is no such limit."""
        limits = (self.variables.get(name) or 0 for name in ("max_binlog_total_size", "binlog_space_limit"))
        return max(int(float(limit)) for limit in limits)

    @property
    def account(self) -> str:
        """Return the user as GRANT names it."""
        name, _, host = self.user.rpartition("@")
        return f"'{name}'@'{host}'"


_UNTIL_THEN: Final = "what is written until then is in no log: a connector that has run reads its tables again"


def look(connection: session.Connection) -> Server:
    """Ask the server."""
    names = ", ".join(f"'{name}'" for name in _VARIABLES)
    statement = f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({names})"
    variables = {name.lower(): value for name, value in session.texts(connection, "reading settings", statement)}
    ((user,),) = session.texts(connection, "reading settings", "SELECT CURRENT_USER()")
    found = Server(variables.get("version", ""), variables, user)
    if found.at_rds:
        with suppress(OperatorError):  # who may not read it: `cdc check` says so
            statement = f"SELECT value FROM mysql.rds_configuration WHERE name = '{_RETENTION}'"  # noqa: S608
            kept = session.texts(connection, "reading how long the log is kept", statement)
            variables[_RETENTION] = kept[0][0] if kept else ""
    return found


def refusals(server: Server, where: str, *, but_log: bool = False) -> Iterator[OperatorError]:
    """Give why this server cannot be captured. `but_log`: whether it writes a log is left out."""
    oldest = OLDEST_MARIADB if server.mariadb else OLDEST_MYSQL
    of = server.variables
    if server.version < oldest:
        yield OperatorError(
            f"the server at {where} is {server.shown}; {server.family} {'.'.join(map(str, oldest))} or newer is needed",
            hint="upgrade the server",
        )
    if not but_log and not server.has_log:
        yield UnloggedError(
            f"binlog off: the server at {where} writes none",
            hint=f"start the server with --log-bin --binlog-format=ROW (my.cnf: log_bin = binlog); {_UNTIL_THEN}",
        )
    for name, wanted, why in (
        ("binlog_format", "ROW", "statements do not say which rows they change"),
        ("binlog_row_image", "FULL", "an event would have holes"),
        (
            "binlog_row_metadata",
            "FULL",
            "a row in the log has no names of columns, and today's may not be those of its time",
        ),
    ):
        if of.get(name, "").upper() != wanted:
            yield OperatorError(
                f"{name} is {of.get(name) or 'not known'} at {where}: {why}",
                hint=f"SET {'GLOBAL' if server.mariadb else 'PERSIST'} {name} = {wanted}; sessions that are connected "
                "keep what they have",
            )
    if "PARTIAL_JSON" in of.get("binlog_row_value_options", "").upper():
        yield OperatorError(
            f"binlog_row_value_options is PARTIAL_JSON at {where}: an event would have a part of a value",
            hint="SET PERSIST binlog_row_value_options = ''",
        )
    if of.get("binlog_order_commits", "ON").upper() in ("OFF", "0"):
        yield OperatorError(
            f"binlog_order_commits is OFF at {where}: commits may become visible in another order than they are logged",
            hint="SET PERSIST binlog_order_commits = ON",
        )


def replicates(connection: session.Connection, server: Server) -> bool | None:
    """Tell whether it is itself a replica of another server; None: we may not know, and it may have been one."""
    statement = "SHOW ALL SLAVES STATUS" if server.mariadb else "SHOW REPLICA STATUS"
    if not server.mariadb and server.version < (8, 0, 22):
        statement = "SHOW SLAVE STATUS"
    try:
        return bool(session.rows(connection, "asking what it replicates", statement))
    except OperatorError as exc:
        if not session.is_denied(exc):
            raise
    if not server.mariadb:
        return None
    ((_, running),) = session.texts(connection, "asking what it replicates", "SHOW GLOBAL STATUS LIKE 'Slaves_running'")
    if running != "0":
        return True
    return None if global_text(connection, "gtid_slave_pos") else False


NOT_HANDED_ON: Final = "what it replicates from another server is not in its own log"


def logs_what_it_replicates(server: Server) -> bool:
    """Tell whether what the server replicates from another one is in its own log, too."""
    of = server.variables
    logs = of.get("log_replica_updates") or of.get("log_slave_updates", "ON")
    return logs.upper() in ("ON", "1")


def unlogged(connection: session.Connection, server: Server, where: str) -> Iterator[OperatorError | None]:
    """Give why what this server replicates would never come; None: we may not know whether it replicates."""
    if logs_what_it_replicates(server):
        return
    found = replicates(connection, server)
    name = "log_replica_updates" if not server.mariadb and server.version >= (8, 0, 26) else "log_slave_updates"
    if found:
        yield OperatorError(
            f"{name} is OFF at {where}, which is a replica: {NOT_HANDED_ON}",
            hint=f"point source.url at the server it replicates; or start it with --{name.replace('_', '-')} (my.cnf: "
            f"{name} = ON), and where there is a position already: cdc snapshot start CONNECTOR.yaml --after-gap; or, "
            "if it replicates no more, let its administrator take the settings of the replica away",
        )
    elif found is None:
        yield None


def status(connection: session.Connection, server: Server) -> tuple[BinlogPosition, str]:
    """Return where the log ends, and MySQL's executed GTIDs, read no later than that. Raises OperatorError."""
    newer = not server.mariadb and server.version >= (8, 2)
    statement = "SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS"
    try:
        found = session.texts(connection, "reading the log's end", statement)
    except OperatorError as exc:
        if session.is_denied(exc):
            right = "BINLOG MONITOR" if server.mariadb else "REPLICATION CLIENT"
            raise OperatorError(
                f"user {server.user} may not ask where the log stands",
                hint=f"GRANT REPLICATION SLAVE, {right} ON *.* TO {server.account}",
            ) from exc
        raise
    if not found:
        raise UnloggedError(
            "binlog off: the server writes none",
            hint="start the server with --log-bin; if it was, it has closed its log on an error, which its error log "
            f"tells (binlog_error_action), and a restart opens it again; {_UNTIL_THEN}",
        )
    file, offset, *more = found[0]
    return BinlogPosition(file, int(offset)), more[2].replace("\n", "") if len(more) > 2 and not server.mariadb else ""  # noqa: PLR2004


def clock_ms(connection: session.Connection) -> int:
    """Return the server's time in ms since 1970: SYSDATE, as the setting `timestamp` holds all other clocks."""
    statement = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', SYSDATE(6)) DIV 1000"  # time_zone is UTC
    ((now_ms,),) = session.texts(connection, "reading the clock", statement)
    return int(now_ms)


def global_text(connection: session.Connection, name: str) -> str:
    """Return a global variable that changes as the server runs."""
    ((value,),) = session.texts(connection, f"reading {name}", f"SELECT @@GLOBAL.{name}")
    return value.replace("\n", "")


def files(connection: session.Connection) -> list[tuple[str, int]]:
    """Return the binlog's files and their sizes, oldest first."""
    return [(row[0], int(row[1])) for row in session.texts(connection, "reading the log's files", "SHOW BINARY LOGS")]


def bytes_between(connection: session.Connection, begin: BinlogPosition, end: BinlogPosition) -> int:
    """Return how many bytes of the log's files lie between two positions."""
    sizes = files(connection) if begin.file != end.file else []
    between = sum(size for file, size in sizes if begin.number <= BinlogPosition(file, 0).number < end.number)
    return max(0, between + end.offset - begin.offset)


def prepared(connection: session.Connection) -> set[tuple[str, ...]] | None:
    """Return what XA has prepared and nobody has ended; None where we may not know."""
    try:
        return {tuple(row) for row in session.texts(connection, "reading what is prepared", "XA RECOVER")}
    except OperatorError:
        return None


def await_prepared(connection: session.Connection, tend: Callable[[], None]) -> bool:
    """Wait for what XA has prepared by now: who reads what comes from here on would not have its rows.

    `tend` is called meanwhile. Returns whether it is known: we may not be allowed to look.
    """
    told, before = False, prepared(connection)
    begun_s = time.monotonic()
    while before:
        tend()
        if not told and time.monotonic() - begun_s > _TOLD_S:
            log.warning("waiting for %d XA transactions that are prepared: XA RECOVER lists them", len(before))
            told = True
        time.sleep(_PREPARED_EVERY_S)
        before &= prepared(connection) or set()
    return before is not None


@dataclass(frozen=True, slots=True)
class Replica:
    """Is registered with the server."""

    server_id: int
    host: str
    uuid: str


def replicas(connection: session.Connection, server: Server) -> list[Replica]:
    """Return all who follow its log now. Raises OperatorError where we may not know."""
    statement = "SHOW REPLICA HOSTS" if server.mariadb else "SHOW REPLICAS"
    if not server.mariadb and server.version < (8, 0, 22):
        statement = "SHOW SLAVE HOSTS"
    found = session.texts(connection, "reading the replicas", statement)
    return [Replica(int(row[0]), row[1], row[4] if len(row) > 4 else "") for row in found]  # noqa: PLR2004
