"""Connects to MySQL and MariaDB: the URL, TLS checked by identity, drivers' errors in our terms."""

from __future__ import annotations

import functools
import logging
import ssl
import struct
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

import pymysql
import pymysql.connections
import pymysql.cursors
from pymysql.constants import CR, ER, SERVER_STATUS

from cdc.machine.hosts import is_local_name
from cdc.machine.keep_alive import keep_alive
from cdc.machine.tls import was_cut
from cdc.model.errors import CdcError, ConfigError, LoginError, OperatorError, RetryableError
from connectors.mysql import session_settings

Connection: TypeAlias = pymysql.connections.Connection

MODES: Final = ("verify_identity", "verify_ca", "required", "preferred", "disabled")
SCHEMES: Final = ("mysql", "mariadb")

CONNECT_TIMEOUT_S: Final = 10
STATEMENT_TIMEOUT_S: Final = 60
"""How long a statement may say nothing before its connection is taken for gone; reading rows says something."""

VIEW: Final = (
    "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
    "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
)
"""Statements that take a view of the data."""

_HINT: Final = "url: mysql://user:${PASSWORD}@host:3306"
_OPTIONS: Final = frozenset({"ssl_mode", "ssl_ca", "ssl_cert", "ssl_key", "socket"})
_LOST: Final = frozenset(
    {
        CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST, CR.CR_CONN_HOST_ERROR, CR.CR_CONNECTION_ERROR, ER.SERVER_SHUTDOWN,
        ER.NET_READ_ERROR, ER.NET_WRITE_INTERRUPTED, ER.NET_READ_INTERRUPTED, ER.NET_ERROR_ON_WRITE,
        ER.QUERY_INTERRUPTED, ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.CON_COUNT_ERROR, 1927, 3024, 4031,
        ER.USER_LIMIT_REACHED, ER.TOO_MANY_USER_CONNECTIONS, ER.ABORTING_CONNECTION, ER.NEW_ABORTING_CONNECTION,
        ER.CANT_CREATE_THREAD, ER.OUT_OF_RESOURCES, ER.STATEMENT_TIMEOUT, 3032, 3168, 3169, 9001,
    }
)  # fmt: skip
"""What passes: connections cut, servers going down, locks not had in time, limits of connections and of memory.

1927, 3169: killed; 3024: out of time; 4031: idle for too long; 3032: in offline mode, as a server is while it is
upgraded or has left its group; 3168: not available; 9001: a proxy that does not reach the server for now.
"""
_LOCKED: Final = frozenset({ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK})
_READ_ONLY: Final = 1836
_NO_PASSWORD: Final = 1698
_INSECURE: Final = 3159
_ACCOUNT_LOCKED: Final = frozenset({3118, 4151})
_LOCKED_OUT: Final = _ACCOUNT_LOCKED | {ER.MUST_CHANGE_PASSWORD, ER.MUST_CHANGE_PASSWORD_LOGIN}
"""3118, 4151: the account is locked (MySQL, MariaDB); the others: its password has expired."""
_WITH_TLS: Final = "take ssl_mode=… out of source.url, and let ?ssl_ca=/path/to/ca.pem name who signed its certificate"
_ANOTHER_HOST: Final = (62, 64)
"""X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH"""
_DENIED: Final = frozenset({ER.SPECIFIC_ACCESS_DENIED_ERROR, ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR})

_QUOTING: Final = frozenset(
    {
        ER.TRUNCATED_WRONG_VALUE, ER.INVALID_CHARACTER_STRING, ER.TRUNCATED_WRONG_VALUE_FOR_FIELD,
        ER.ILLEGAL_VALUE_FOR_TYPE, ER.WRONG_VALUE_FOR_TYPE, 1525, 1690, 1918, 3854,
    }
)  # fmt: skip
"""Errors whose words have a value of a row, as where a virtual column is computed as it is read."""

DRIVER_ERRORS: Final = (
    pymysql.MySQLError, OSError, SystemError, RuntimeError, ValueError, LookupError, AttributeError, TypeError,
    AssertionError, struct.error,
)  # fmt: skip
"""All that PyMySQL raises: it reads a connection that ends, or that a thread closes, without looking first."""
GO_ON: Final = "nothing is lost: the connector goes on where it was; if it comes again, look into the server's log"
_WRITABLE: Final = (
    "SHOW GLOBAL VARIABLES LIKE '%read_only' tells; nothing is lost: the connector goes on once it is OFF; "
    "if another server has become the primary, source.url must name that one"
)
_LOOK: Final = "cdc check CONNECTOR.yaml tells what the server lets the connector do; the server's log says more"

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class Address:
    """Says where to connect, and as whom; no secret in its repr."""

    host: str
    port: int
    user: str
    password: str = field(repr=False)
    socket: str | None = None
    ssl_mode: str = "verify_identity"
    ssl_ca: str | None = None
    ssl_cert: str | None = None
    ssl_key: str | None = None

    @property
    def endpoint(self) -> str:
        """Return it for messages: no user, no secret."""
        return self.socket or f"{self.host}:{self.port}"


def address(url: str) -> Address:
    """Read a URL. Raises ConfigError, which never repeats the URL."""
    scheme, _, _ = url.partition("://")
    if scheme not in SCHEMES:
        raise ConfigError("source.url is not a MySQL URL", hint=_HINT)
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "localhost", parts.port or 3306
        given = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
    except ValueError:
        host, port, given = "", 0, []
    if not host or parts.netloc.count("@") > 1 or "@" in parts.path or "#" in url:  # the rest would be left out
        raise ConfigError(
            "source.url cannot be parsed",
            hint="percent-encode /, @, :, #, ? and % in user and password: mysql://user:p%40ss@host:3306; "
            "a port is 1 to 65535; IPv6 in brackets: @[::1]:3306",
        )
    options = {name.replace("-", "_").lower(): value for name, value in given}
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise ConfigError(
            f"source.url has options that are not known: {', '.join(unknown)}",
            hint=f"known: {', '.join(sorted(_OPTIONS))}",
        )
    local = "socket" in options or is_local_name(host)
    mode = options.get("ssl_mode", "preferred" if local else "verify_identity").lower().replace("-", "_")
    if mode not in MODES:
        raise ConfigError(f"source.url: ssl_mode={mode} is not known", hint=f"one of {', '.join(MODES)}")
    return Address(
        host, port, unquote(parts.username or ""), unquote(parts.password or ""), options.get("socket"), mode,
        options.get("ssl_ca"), options.get("ssl_cert"), options.get("ssl_key"),
    )  # fmt: skip


def weakness(at: Address) -> str | None:
    """Return what a connection that leaves this machine leaves unchecked; None where all is checked or local."""
    if at.socket or is_local_name(at.host):
        return None
    return {
        "verify_identity": None,
        "verify_ca": "ssl_mode=verify_ca does not check that the certificate is this host's",
        "required": "ssl_mode=required does not check who answers",
        "preferred": "ssl_mode=preferred may go without encryption, and never checks who answers",
        "disabled": "ssl_mode=disabled sends password and rows unencrypted",
    }[at.ssl_mode]


@functools.cache
def tell_of_weak_tls(where: str, weak: str | None) -> None:
    """Say once for each place what its connections do not check."""
    if weak is not None:
        log.warning("MySQL at %s: %s; the default, ssl_mode=verify_identity, checks both", where, weak)


def _tls(at: Address) -> dict[str, Any]:
    """Return TLS options for PyMySQL. Raises OperatorError for files that are not there, or are something else."""
    if at.ssl_mode == "disabled" or at.socket:
        return {"ssl_disabled": True}
    if at.ssl_mode == "preferred":
        return {}
    try:
        return {"ssl": _context(at)}
    except (OSError, ValueError) as exc:  # ssl.SSLError is one
        named = [f"{name}={path}" for name in ("ssl_ca", "ssl_cert", "ssl_key") if (path := getattr(at, name))]
        reason = getattr(exc, "reason", None) or getattr(exc, "strerror", None) or exc
        raise OperatorError(
            f"source.url: {', '.join(named) or 'the system’s authorities'}: no certificates can be read: {reason}",
            hint="each is a file in PEM format that the connector's user may read; ssl_key belongs to ssl_cert",
        ) from exc


def _context(at: Address) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=at.ssl_ca)
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT  # certificates that MySQL makes for itself are not strict
    context.check_hostname = at.ssl_mode == "verify_identity"
    if at.ssl_mode == "required":
        context.verify_mode = ssl.CERT_NONE
    if at.ssl_cert:
        context.load_cert_chain(at.ssl_cert, at.ssl_key)
    return context


def connect(
    at: Address,
    *,
    settings: Mapping[str, str] = MappingProxyType({}),
    statements: Iterable[str] = (),
    read_timeout_s: float = STATEMENT_TIMEOUT_S,
) -> Connection:
    """Open a connection in autocommit whose rows are the server's bytes. Raises OperatorError or RetryableError.

    It never reconnects. Its settings are those of `session_settings`, but for what `settings` has instead; then
    `statements` are run.
    """
    tls = _tls(at)
    try:
        connection = pymysql.connect(
            host=at.host, port=at.port, user=at.user, password=at.password, unix_socket=at.socket, autocommit=None,
            connect_timeout=CONNECT_TIMEOUT_S, read_timeout=read_timeout_s, write_timeout=STATEMENT_TIMEOUT_S,
            charset="utf8mb4", use_unicode=False, conv={}, program_name="cdc", **tls,
        )  # fmt: skip
    except DRIVER_ERRORS as exc:
        raise connect_failed(at, exc) from None
    if connection._sock is not None:  # noqa: SLF001 - the library has no option for it
        keep_alive(connection._sock)  # noqa: SLF001
    try:
        _prepare(connection, at, settings, statements)
    except CdcError:
        close(connection)
        raise
    return connection


def _prepare(connection: Connection, at: Address, settings: Mapping[str, str], statements: Iterable[str]) -> None:
    doing = "preparing a session"
    rows(connection, doing, session_settings.FIRST)
    if connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS:
        rows(connection, doing, session_settings.LEAVE)
    session_settings.settle(functools.partial(texts, connection, doing), at.endpoint, settings)
    for statement in statements:
        rows(connection, doing, statement)


def check_settings(connection: Connection) -> None:
    """Raise OperatorError if it is no longer the session that `connect` has prepared."""
    ask = functools.partial(texts, connection, "looking at a session's settings")
    session_settings.still(ask, f"{connection.host}:{connection.port}")


def rows(connection: Connection, doing: str, statement: str, parameters: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Run one statement and give its rows, as bytes. Raises what `translate` makes of an error."""
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, parameters or None)
            return list(cursor.fetchall())
    except DRIVER_ERRORS as exc:
        raise translate(exc, doing) from exc


def texts(connection: Connection, doing: str, statement: str, parameters: tuple[Any, ...] = ()) -> list[list[str]]:
    """Give `rows` as text; NULL is empty."""
    found = rows(connection, doing, statement, parameters)
    return [[("" if value is None else value.decode(errors="replace")) for value in row] for row in found]


def leave(connection: Connection) -> None:
    """Drop a result that is not read to its end; its connection cannot be used any more.

    The library would read on to the end of it, or, where the connection is lost, fail while it is collected as garbage.
    """
    result = connection._result  # noqa: SLF001 - there is no other way
    if result is not None and result.unbuffered_active:
        result.unbuffered_active = False
        result.connection = None
        connection._force_close()  # noqa: SLF001


def break_off(connection: Connection) -> None:
    """End what runs on it, from any thread; raises nothing. The connection is of no use afterwards."""
    sock = connection._sock  # noqa: SLF001 - there is no other way to end a statement of another thread at once
    if sock is not None:
        with suppress(OSError, ValueError):
            sock.shutdown(2)


def close(connection: Connection | None) -> None:
    """Close it; safe for one that is closed."""
    if connection is not None and connection.open:
        with suppress(*DRIVER_ERRORS):
            connection.close()


def wait_until(deadline_s: float, pause_s: float = 0.02) -> bool:
    """Pause, unless the deadline has passed."""
    if time.monotonic() >= deadline_s:
        return False
    time.sleep(pause_s)
    return True


def connect_failed(at: Address, exc: Exception) -> CdcError:
    """Return what a failed connection means."""
    code, words = _code_and_message(exc)
    where = f"MySQL at {at.endpoint}"
    cause = getattr(exc, "original_exception", exc)
    refused = not was_cut(cause) if isinstance(cause, ssl.SSLError) else code == CR.CR_SSL_CONNECTION_ERROR
    if refused:
        reason = getattr(cause, "verify_message", "") or getattr(cause, "reason", "") or words
        hint = "add ?ssl_ca=/path/to/ca.pem to source.url; ?ssl_mode=required gives up checking who answers"
        if getattr(cause, "verify_code", 0) in _ANOTHER_HOST:
            hint = (
                "write in source.url the name that the server's certificate is for; ?ssl_mode=verify_ca gives up "
                "checking it, and takes any certificate of the authority's"
            )
        elif "support" in words:  # the library says so of a server that offers no TLS
            hint = "switch TLS on at the server; ?ssl_mode=disabled sends password and rows unencrypted"
        return OperatorError(f"{where}: no trusted TLS connection: {reason}", hint=hint)
    login = _login_refused(at, where, code, words)
    if login is not None:
        return login
    if code in (ER.HOST_NOT_PRIVILEGED, ER.HOST_IS_BLOCKED):
        hint = f"grant the host: CREATE USER '{at.user}'@'HOST' IDENTIFIED BY '…', with this machine's name or address"
        if code == ER.HOST_IS_BLOCKED:
            hint = (
                "max_connect_errors logins in turn have failed: TRUNCATE TABLE performance_schema.host_cache, where "
                "they are counted; on MariaDB: FLUSH HOSTS"
            )
        return OperatorError(f"{where} admits no connection from here ({code})", hint=hint)
    if "init_connect" in words:
        return OperatorError(
            f"{where}: the server ends each new session, as its init_connect fails: {words}",
            hint="SHOW GLOBAL VARIABLES LIKE 'init_connect' shows what it runs; correct that",
        )
    if _passes(code, words) or isinstance(cause, OSError) or not isinstance(exc, pymysql.MySQLError):
        return RetryableError(
            f"{where} cannot be reached: {words or type(exc).__name__}",
            hint=f"is it running? mysqladmin ping -h {at.host} -P {at.port} --protocol=tcp",
        )
    return OperatorError(f"{where}: {words} ({code})", hint=_LOOK)


def _login_refused(at: Address, where: str, code: int, words: str) -> OperatorError | None:
    """Return why a server does not take a user; None for any other reason."""
    unencrypted = at.ssl_mode in ("disabled", "preferred")
    if code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, _NO_PASSWORD):
        return LoginError(
            f"{where} refuses user {at.user}: wrong password, or not admitted from here"
            + (", or not without TLS" if unencrypted else ""),
            hint="set the password in source.url through ${NAME} or ${file:/path}; "
            f"to make the user: CREATE USER '{at.user}'@'%' IDENTIFIED BY '…'"
            + (f"; where it was made with REQUIRE SSL: {_WITH_TLS}" if unencrypted else ""),
        )
    if code in _LOCKED_OUT:
        return LoginError(f"{where} refuses user {at.user}: {words} ({code})", hint=locked_out(code, at.user))
    if code == _INSECURE:
        return OperatorError(f"{where} takes no connection without TLS: {words}", hint=_WITH_TLS)
    if "cryptography" in words:
        return OperatorError(
            f"{where}: logging in with a password needs TLS, or the package cryptography",
            hint="leave ssl_mode=disabled out of source.url; or pip install cryptography",
        )
    if "pynacl" in words:
        return OperatorError(
            f"{where}: the login of user {at.user} is of kind ed25519, which needs the package PyNaCl",
            hint="pip install PyNaCl",
        )
    if code == CR.CR_AUTH_PLUGIN_CANNOT_LOAD:
        return OperatorError(
            f"{where}: the login of user {at.user} is of a kind that the driver does not know: {words}",
            hint=f"ALTER USER '{at.user}'@'%' IDENTIFIED WITH caching_sha2_password BY '…'; on MariaDB: "
            f"ALTER USER '{at.user}'@'%' IDENTIFIED BY '…'",
        )
    return None


def locked_out(code: int, user: str) -> str:
    """Return what unlocks an account, or gives it a password that has not expired."""
    if code in _ACCOUNT_LOCKED:
        return f"ALTER USER '{user}'@'%' ACCOUNT UNLOCK, with the account's host in the place of %"
    return (
        f"ALTER USER '{user}'@'%' IDENTIFIED BY '…', and the same password in source.url; with PASSWORD EXPIRE NEVER "
        "it does not come again"
    )


def translate(exc: Exception, doing: str) -> CdcError:
    """Return a statement's error in our terms."""
    if isinstance(exc, UnicodeError):
        return OperatorError(f"{doing}: the server sends a text that is not UTF-8", hint=_LOOK)
    if not isinstance(exc, (pymysql.MySQLError, OSError)):
        return RetryableError(f"{doing}: the connection broke inside the driver ({type(exc).__name__})", hint=GO_ON)
    code, words = _code_and_message(exc)
    if _is_read_only(code, words):
        return RetryableError(f"{doing}: {words} ({code})", hint=_WRITABLE)
    if _passes(code, words) or code == 0 or isinstance(exc, (pymysql.InterfaceError, OSError)):
        said = f"{doing}: {words or 'the connection was lost'} ({code})"
        return RetryableError(said, hint=GO_ON, at_start=code in _LOCKED)
    if code in _QUOTING:
        return OperatorError(
            f"{doing}: the server cannot compute a value, or convert it ({code})",
            hint="a virtual column? SELECT tells the value, which no log of ours has: repair the row, or the column's "
            "expression; or leave the table out",
        )
    hint = "grant what is missing to the connector's user" if code in _DENIED else _LOOK
    if code in _LOCKED_OUT:
        hint = locked_out(code, "…")
    return OperatorError(f"{doing}: {words} ({code})", hint=hint)


def _passes(code: int, words: str) -> bool:
    """Tell whether an error is one that passes; 1047 only of a Galera node that is not in its cluster (yet)."""
    return code in _LOST or (code == ER.UNKNOWN_COM_ERROR and "wsrep" in words.lower())


def _is_read_only(code: int, words: str) -> bool:
    """Tell whether a server takes no changes for now: in maintenance, at a fail-over, with a disk that is full."""
    return code == _READ_ONLY or (code == ER.OPTION_PREVENTS_STATEMENT and "read-only" in words.replace("_", "-"))


def is_denied(error: CdcError) -> bool:
    """Tell whether the server said that a right is missing."""
    return denies(code_of_exception(error.__cause__))


def denies(code: int) -> bool:
    """Tell whether the server's number says that a right is missing."""
    return code in _DENIED or code in (ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR)


def code_of_exception(exc: BaseException | None) -> int:
    """Return the server's number for what it refused; 0 where it gave none."""
    return _code_and_message(exc)[0] if isinstance(exc, pymysql.Error) else 0


def _code_and_message(exc: Exception) -> tuple[int, str]:
    code, words = 0, ""
    if exc.args and isinstance(exc.args[0], int):
        code = exc.args[0]
        words = str(exc.args[1]) if len(exc.args) > 1 else ""
    elif exc.args:
        words = str(exc.args[0])
    return code, " ".join(words.split())[:300]
