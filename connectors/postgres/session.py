"""Connects to PostgreSQL: the same session settings for every connection, and drivers' errors in our terms.

The server's output functions are shared by COPY and the log, so two sessions with the same settings print the same
bytes for the same value: that is what makes snapshot and stream equal.
"""

from __future__ import annotations

import difflib
import functools
import logging
import os
import re
from typing import Any, Final, cast

import psycopg2
import psycopg2.extensions

from cdc.machine.hosts import is_local
from cdc.model.errors import CdcError, ConfigError, OperatorError, RetryableError
from connectors.postgres import settings
from connectors.postgres.refused_logins import TOO_MANY_HINT, meaning
from connectors.postgres.services import service_parameters

DRIVER_ERRORS: Final = (psycopg2.Error, psycopg2.Warning, SystemError, OSError, ValueError)
"""All that psycopg2 raises: SystemError where a thread has closed it, ValueError for bytes that are no text."""

_PASSING: Final = ("", "08", "57", "53", "58", "40", "XX")
"""SQLSTATE classes of what passes: connections, shutdowns, resources, files, conflicts, and the server's own faults."""
_ALSO_PASSING: Final = ("55006", "55P03", "25P03", "25P04", "72000")
"""In use, lock not had in time, a session ended by a timeout of its own, a snapshot that is too old."""
_CORRUPTED: Final = ("XX001", "XX002")
_LIMITS: Final = "53400"
"""Passes no more than a missing right does: somebody has to raise a limit, or to give up what is counted."""
_NO_TEXTS: Final = {
    "22021": "a text is not valid UTF-8",
    "22P05": "a text has bytes that are no character in Unicode, though the database's encoding takes them",
}
_LOCKED: Final = "55P03"
_OTHERS: Final = frozenset({_LOCKED, "40P01", "40001"})
"""What others are the cause of and leave by themselves: a lock, a deadlock, a transaction that crosses ours."""
_HINTS: Final = {
    "42501": "grant what is missing to the connector's role: cdc check CONNECTOR.yaml has the statement",
    "53100": "make room on the server's disk",
    "53200": "the server has no memory left; where it is shared memory, it has no room for more locks, as of thousands "
    "of partitions: ALTER SYSTEM SET max_locks_per_transaction = 512; then restart the server",
    "53300": TOO_MANY_HINT,
    _LIMITS: "raise the limit of the message. temp_file_limit: ALTER SYSTEM SET temp_file_limit = -1; SELECT "
    "pg_reload_conf(); a role or a database may have its own. Of slots cdc check CONNECTOR.yaml has the statement; "
    "SELECT slot_name, database, active FROM pg_replication_slots tells who has them",
    _LOCKED: "others hold a lock that this waits for: SELECT a.pid, a.state, a.xact_start, a.query FROM pg_locks l "
    "JOIN pg_stat_activity a USING (pid) WHERE l.mode IN ('AccessExclusiveLock', 'ExclusiveLock', "
    "'ShareRowExclusiveLock', 'ShareLock', 'ShareUpdateExclusiveLock')",
    "57P03": "the server is starting or stopping: wait until pg_isready says that it accepts connections",
    "XX001": "the server found damaged data: its log names the file; restore it from a backup or a standby",
    "XX002": "REINDEX the index that the server's log names",
}
SHORTER: Final = (
    "make the row's values shorter: octet_length() of the large columns tells which row it is, and each "
    "byte of a bytea is two characters"
)
GO_ON: Final = "nothing is lost: the connector goes on where it was; if it comes again, look into the server's log"
TO_THE_PRIMARY: Final = (
    "point source.url at the primary; with several hosts: …?target_session_attrs=read-write, which takes the primary"
)
_LOOK: Final = "cdc check CONNECTOR.yaml tells what the server lets the connector do; the server's log says more"

log = logging.getLogger("cdc")

_URL = re.compile(r"postgres(?:ql)?://")
_URL_HINT: Final = "url: postgresql://user:${PASSWORD}@host:5432/database"
_PARAMETERS: Final = (
    "sslmode", "sslrootcert", "sslcert", "sslkey", "sslpassword", "connect_timeout", "target_session_attrs", "host",
    "hostaddr", "port", "dbname", "user", "password", "passfile", "service", "options", "application_name",
    "channel_binding", "require_auth", "ssl_min_protocol_version", "keepalives", "tcp_user_timeout",
)  # fmt: skip
"""Those of libpq's that a URL may need."""
_LAST_PORT: Final = 65_535
_OF_STANDBYS: Final = ("0A000", "25006", "55000", "XX000")
"""What standbys refuse statements with: one of the codes is for faults of a server's own."""
_READ_ONLY: Final = "25006"
"""A standby alone refuses a write with this: every session of ours has `default_transaction_read_only` off."""
_IN_RECOVERY = re.compile(r"recovery is in progress|during recovery|RO \(Read Only\) node")
"""The last of a reader of Amazon's Aurora, as its endpoint may lead to one while the cluster fails over."""
_TOO_LONG = re.compile(r"invalid memory alloc request size|string buffer exceeds|out of memory$")


def parameters(url: str, application: str) -> dict[str, str]:
    """Return libpq's parameters for `url`. Raises ConfigError, which never repeats the URL."""
    if not _URL.match(url):
        raise ConfigError("source.url is not a PostgreSQL URL", hint=_URL_HINT)
    hint = "percent-encode /, @, : and % in user and password: postgresql://user:p%40ss@host:5432/database"
    authority, _, path = _URL.sub("", url).partition("?")[0].partition("/")
    if authority.count("@") > 1 or "@" in path:  # libpq would take part of a password for a host or a database
        raise ConfigError("source.url cannot be parsed: an @ too many", hint=hint)
    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(url)
    except psycopg2.ProgrammingError as exc:
        raise _unparsed(str(exc), hint) from None
    _refuse_ports(given.get("port", ""))
    service = given.pop("service", "") or os.environ.get("PGSERVICE", "")
    if service:  # below the URL, above the environment, as libpq has it
        given = {**service_parameters(service), **given}
    defaults = {
        "connect_timeout": "10",
        "keepalives_idle": "30",
        "keepalives_interval": "10",
        "keepalives_count": "3",
        "tcp_user_timeout": "60000",
    }
    host, address = (given.get(n) or os.environ.get(v, "") for n, v in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR")))
    if "," in f"{host}{address}" and "PGTARGETSESSIONATTRS" not in os.environ:  # no connection may end at a standby
        defaults["target_session_attrs"] = "read-write"
    if not is_local(host, address):
        defaults["sslmode"] = "verify-full"
        if given.get("sslmode", "verify-full") == "verify-full":
            defaults["sslrootcert"] = "system"
    fixed = {**settings.APART, "application_name": application}
    return {**defaults, **given, **fixed, "options": f"{given.get('options', '')} {settings.options()}".strip()}


def _unparsed(said: str, hint: str) -> ConfigError:
    """Return the error of a URL that libpq cannot parse, from its words: it quotes parts of a password, too."""
    unknown = re.search(r'invalid URI query parameter: "([A-Za-z_]+)"\s*$', said)
    if unknown is None:
        return ConfigError("source.url cannot be parsed", hint=hint)
    near = difflib.get_close_matches(unknown[1], _PARAMETERS, n=1)
    return ConfigError(
        f"source.url: libpq has no parameter {unknown[1]}", hint=f"{_URL_HINT}?{near[0]}=…" if near else _URL_HINT
    )


def _refuse_ports(given: str) -> None:
    """Refuse what stands for a port and is none, without repeating it: where the @ is missing, it is a password."""
    if not all(not port or (port.isdecimal() and 0 < int(port) <= _LAST_PORT) for port in given.split(",")):
        raise ConfigError(
            "source.url: what stands for the port is no number from 1 to 65535",
            hint=f"{_URL_HINT}; IPv6 in brackets: @[::1]:5432",
        )


def weakness(params: dict[str, str]) -> str | None:
    """Return what a connection that leaves this machine leaves unchecked; None where all is checked or local."""
    host, address = (
        params.get(n) or os.environ.get(v, "") for n, v in (("host", "PGHOST"), ("hostaddr", "PGHOSTADDR"))
    )
    if is_local(host, address):
        return None
    mode = params.get("sslmode", "")
    return _UNCHECKED.get(mode, f"sslmode={mode} may go without encryption, and never checks who answers")


@functools.cache
def tell_of_weak_tls(where: str, weak: str | None) -> None:
    """Say once for each place what its connections do not check."""
    if weak is not None:
        log.warning("PostgreSQL at %s: %s; the default, sslmode=verify-full, checks both", where, weak)


_UNCHECKED: Final = {
    "verify-full": None,
    "verify-ca": "sslmode=verify-ca does not check that the certificate is this host's",
    "require": "sslmode=require does not check who answers",
    "disable": "sslmode=disable sends password and rows unencrypted",
}


def endpoint(params: dict[str, str]) -> str:
    """Say where a connection goes, for messages: host, port and database, no secret."""
    host = params.get("hostaddr") or params.get("host") or "localhost"
    return f"{host}:{params.get('port', '5432')}/{params.get('dbname') or params.get('user', '')}"


def connect(params: dict[str, str]) -> psycopg2.extensions.connection:
    """Open a psycopg2 connection in autocommit. Raises OperatorError or RetryableError."""
    try:
        connection: psycopg2.extensions.connection = psycopg2.connect(**cast("dict[str, Any]", params))
        connection.autocommit = True
    except DRIVER_ERRORS as exc:
        said = str(exc) if isinstance(exc, psycopg2.Error) else type(exc).__name__
        raise meaning(endpoint(params), params, said) from None
    try:
        _verify(connection, endpoint(params))
    except CdcError:
        connection.close()
        raise
    return connection


def _verify(connection: psycopg2.extensions.connection, where: str) -> None:
    """Set what could not be asked for at the start, and read everything back. Raises OperatorError, RetryableError."""
    doing = f"PostgreSQL at {where}: reading the session's settings"
    try:
        with connection.cursor() as cursor:
            for statement in settings.later(connection.server_version, os.environ):
                cursor.execute(statement)
            cursor.execute(settings.READ_BACK)
            found = dict(cursor.fetchall())
    except DRIVER_ERRORS as exc:
        raise translate(exc, doing) from exc
    refused = settings.differences(where, found)
    if refused is not None:
        raise refused


def key_encoding(connection: psycopg2.extensions.connection) -> str:
    """Return in which encoding text is compared by its bytes: UTF8, or SQL_ASCII where the server does not know."""
    return "SQL_ASCII" if connection.get_parameter_status("server_encoding") == "SQL_ASCII" else "UTF8"


def is_standby(connection: psycopg2.extensions.connection) -> bool:
    """Tell whether the server is one, which it reports to each session in no language."""
    return not connection.closed and connection.get_parameter_status("in_hot_standby") == "on"


def translate(exc: Exception, doing: str, *, standby: bool = False) -> CdcError:
    """Return a statement's error in our terms; the server's DETAIL is left out, it may quote values.

    `standby`: whether the server has said that it is one.
    """
    if isinstance(exc, UnicodeError):
        return OperatorError(
            f"{doing}: the server sends a text that is not UTF-8",
            hint="if the server's messages are in another encoding: ALTER ROLE of the connector SET lc_messages = 'C'",
        )
    if isinstance(exc, ValueError) and "NUL" in str(exc):  # the driver says so before it asks the server
        return OperatorError(
            f"{doing}: it was asked for with a NUL character, which no text of PostgreSQL has",
            hint="who has written that key, or that name? No row and no table can have it",
        )
    if not isinstance(exc, psycopg2.Error):
        return RetryableError(f"{doing}: the connection broke inside the driver ({type(exc).__name__})", hint=GO_ON)
    reason = (exc.diag.message_primary or "the connection was lost") if exc.diag else "the connection was lost"
    return of_sqlstate(exc.pgcode or "", reason, doing, standby=standby)


def is_too_long(code: str, reason: str) -> bool:
    """Tell whether a row is longer, as text, than the server can make it."""
    return code in ("54000", "XX000") and _TOO_LONG.match(reason) is not None


def of_sqlstate(code: str, reason: str, doing: str, *, standby: bool = False) -> CdcError:
    """Return what the server's code for an error means to us; without a code the connection was lost."""
    of_standby = (standby and code in _OF_STANDBYS) or code == _READ_ONLY  # a pooler may not pass on what it reports
    if of_standby or _IN_RECOVERY.search(reason):
        return RetryableError(f"{doing}: {reason}: the server is a standby", hint=TO_THE_PRIMARY)
    if is_too_long(code, reason):
        said = f"{doing}: {reason}: a row is longer as text than the 1 GB that PostgreSQL can send, or is damaged"
        return OperatorError(said, hint=SHORTER)
    if code not in (*_CORRUPTED, _LIMITS) and (code[:2] in _PASSING or code in _ALSO_PASSING):
        return RetryableError(f"{doing}: {reason}", hint=_HINTS.get(code, GO_ON), at_start=code in _OTHERS)
    if code[:2] == "22":  # data exceptions: their messages quote the value
        what = _NO_TEXTS.get(code, "the server cannot read a value")
        return OperatorError(f"{doing}: {what} ({code})", hint="repair the row, or leave the table out")
    return OperatorError(f"{doing}: {reason} ({code})", hint=_HINTS.get(code, _LOOK))


def identifier(*names: str) -> str:
    """Write a name as SQL does, quoted where it must be: for statements shown to a person."""
    return ".".join(
        name if re.fullmatch(r"[a-z_][a-z0-9_]*", name) else '"' + name.replace('"', '""') + '"' for name in names
    )
