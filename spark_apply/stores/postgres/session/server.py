"""Connects a store to PostgreSQL: the writer's session, transactions, the driver's errors in our terms."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext, suppress
from typing import Any

import psycopg2
import psycopg2.extensions
from psycopg2 import sql

from cdc.machine.hosts import is_local
from cdc.model.errors import CdcError, ConfigError, OperatorError, RetryableError
from spark_apply.model.store import Patience
from spark_apply.spark.failures import StoreAwayError

Cursor = psycopg2.extensions.cursor

_AWAY_S = 10.0
"""So long the server may not answer before its copies are set aside; from then on it is asked once at a time."""
_AGAIN_S = 0.5
_POOLER_LOOKS = 5
_LAST_PORT = 65_535
_LINGERS_S = 5.0
_ROWS_AT_ONCE = 2_000
_LOCK_MS = 2_000  # above deadlock_timeout, after which an autovacuum is cancelled
_LOCK_AGAIN_MS = 200
_STRINGS = "standard_conforming_strings"
_SETTINGS = {
    "DateStyle": "ISO",
    "TimeZone": "UTC",
    "extra_float_digits": "1",
    "bytea_output": "hex",
    "search_path": "pg_catalog",
    "quote_all_identifiers": "off",  # on, the type of a column is another: "text", with the quotes
    "array_nulls": "on",  # off, a null in an array of texts is the text NULL
    "default_transaction_isolation": "read committed",  # what follows a lock sees what was done before it
    "default_transaction_read_only": "off",
    _STRINGS: "on",
    "statement_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "idle_session_timeout": "0",
    "transaction_timeout": "0",
}
"""What rows, and how long a batch may take, rest on, whatever the role, the database or the URL sets."""
_PIN = sql.SQL(
    "SELECT count(pg_catalog.set_config(s.name, w.setting, false)) FROM pg_catalog.pg_settings s,"
    " (VALUES {}) AS w (name, setting)"
    " WHERE w.name = s.name AND (s.name <> 'synchronous_commit' OR s.setting = 'off')"
)
"""Sets those that the server has: servers differ, and a pooler may drop what is asked for at the start of a session."""
_FLUSHED = {"synchronous_commit": "local"}
"""Where a crash may take commits back: they are noted elsewhere, as an event that has left the quarantine.

It is not `on`: where it was off, no commit has waited for a synchronous standby, which may be away.
"""
_PASSING = ("08", "57", "53", "40")
"""SQLSTATE classes to retry: connection lost, operator intervention, resources, serialization."""
_UNQUOTED = {
    "22": "a value does not fit",
    "P0": "a trigger or a function refuses it",
    "38": "a function refuses it",
    "39": "a function refuses it",
}
"""Words for SQLSTATE classes whose messages quote values."""
_APPLYING = "applying a batch"
_UNDO = (
    "has another hand altered the table, as by an identity, a rule, a generated column or another key? Undo that, and "
    "it goes on by itself; or give the table another target in apply.yaml"
)
_ALTERED = ("428C9", "0A000", "42P10", "55000")
"""SQLSTATEs of a table that another hand has altered: an identity or a generated column, a rule, a key that is gone, or
deferrable, a publication without a replica identity."""
_UNFOUND = ("3F000", "42704", "42883", "42P01")
"""SQLSTATEs of a name that is of nothing: a schema's, an object's, a function's, a table's."""
_FUNCTION = re.compile(r'function ([\w.$"]+)\(')
"""In what the server says of where an error is."""
_SHORT = "53"
_LOCKED = "55P03"
"""What a ``lock_timeout`` says: ours, or one of the role or the database."""
_STANDBY = "25006"
"""What a server says that is a standby, as after a fail-over: the address may lead to another one soon."""


class ShortageError(RetryableError):
    """The server is short of something while it writes a table, as a disk: other tables may lie on another one."""


class LockedError(RetryableError):
    """Another session has kept a lock on a table, or on rows of it, for too long."""


class Server:
    """Connects when needed, and again after the connection was lost. Not thread-safe."""

    def __init__(self, url: str, where: str, *, by_transaction: bool = False) -> None:
        """Raises ConfigError, which does not repeat the URL, if it is not a PostgreSQL URL.

        `by_transaction`: nothing is kept in the session between two transactions.
        """
        self._url = url
        self._where = where
        self._parameters = _parameters(url, where)
        self._connection: psycopg2.extensions.connection | None = None
        self._locks: list[str] = []
        self._by_transaction = by_transaction
        self._has_a_session = by_transaction
        """Whether it is known that a pooler in between keeps a session for us, or does not matter."""
        self._away = False
        """Whether it was waited for in vain; each copy that is tried again must not wait as long, with all others."""
        self.patience = Patience(_AWAY_S)
        self.session = 0
        """The number of the connection; a new number means that session state (temporary tables) is lost."""

    def another(self) -> Server:
        """Return the same server with a connection of its own."""
        return Server(self._url, self._where)

    @contextmanager
    def transaction(self, doing: str) -> Iterator[Cursor]:
        """Run statements in one transaction. Raises RetryableError if the same may succeed later."""
        connection = self._connected()
        try:
            with connection, connection.cursor() as cur:
                yield cur
        except psycopg2.Error as exc:
            error = self.translated(exc, doing)
            if connection.closed or exc.pgcode == _STANDBY:
                self.close()
            raise error from exc

    def begin(self, doing: str) -> Cursor:
        """Return a cursor in a transaction that the next `transaction` continues and commits."""
        try:
            return self._connected().cursor()
        except psycopg2.Error as exc:
            raise self.translated(exc, doing) from exc

    @contextmanager
    def reading(self, doing: str) -> Iterator[tuple[Cursor, Cursor]]:
        """Yield two cursors of a separate session, on one snapshot; the second one streams its rows."""
        connection = self._connect()
        try:
            connection.set_session(isolation_level="REPEATABLE READ", readonly=True)
            with connection.cursor() as cur, connection.cursor(name="cdc_rows") as many:
                many.itersize = _ROWS_AT_ONCE
                wait_for_locks(cur)
                yield cur, many
        except psycopg2.Error as exc:
            raise self.translated(exc, doing) from exc
        finally:
            connection.close()

    def lock(self, name: str) -> bool:
        """Hold an advisory lock until `close`, also after reconnecting; False if another session has it.

        Waits some seconds for a killed holder, whose session ends when the server notices.
        """
        with self.transaction("taking a lock") as cur:
            taken = _locked(cur, name)
        if taken:
            self._locks.append(name)
        return taken

    def close(self) -> None:
        """Close the connection; safe to call twice."""
        if self._connection is not None:
            with suppress(psycopg2.Error):
                self._connection.rollback()
                self._connection.cursor().execute("SELECT pg_advisory_unlock_all()")  # the session itself may end later
            with suppress(psycopg2.Error):
                self._connection.close()
            self._connection = None

    def _connected(self) -> psycopg2.extensions.connection:
        if self._connection is None or self._connection.closed:
            self._connection = connection = self._connect()
            self.session += 1
            try:
                with connection, connection.cursor() as cur:
                    lost = [name for name in self._locks if not _locked(cur, name)]
            except psycopg2.Error as exc:
                self.close()
                raise self.translated(exc, "connecting") from exc
            if lost:
                self.close()
                msg = f"{self._where}: another job took this one's place while the connection was lost"
                raise OperatorError(msg, hint="let one job write a store")
        return self._connection

    def _connect(self) -> psycopg2.extensions.connection:
        until = time.monotonic() + (0 if self._away else self.patience.seconds)
        while True:
            try:
                connection = self._opened()
            except psycopg2.OperationalError as exc:
                text = " ".join(str(exc).split())
                lasting = (
                    "password" in text or "does not exist" in text or "pg_hba.conf" in text or "certificate" in text
                )
                if lasting or self.session == 0 or time.monotonic() > until:
                    said = text.rsplit("FATAL: ", 1)[-1].rsplit("failed: ", 1)[-1][:200]
                    msg = f"PostgreSQL of {self._where} does not let us in: {said}"
                    self._away = not lasting
                    error = OperatorError if lasting else StoreAwayError
                    raise error(msg, hint="is it up, are host, database, user and password right?") from None
                time.sleep(_AGAIN_S)
            else:
                self._away = False
                self._require_a_session(connection)
                return self._pinned(connection)

    def _opened(self) -> psycopg2.extensions.connection:
        """Connect so that values are quoted as they are read: the driver learns just once how, while it connects."""
        connection: psycopg2.extensions.connection = psycopg2.connect(**self._parameters)
        if connection.get_parameter_status(_STRINGS) == "off":
            connection.close()
            options = f"{self._parameters.get('options', '')} -c {_STRINGS}=on"
            connection = psycopg2.connect(**{**self._parameters, "options": options})
        if connection.get_parameter_status(_STRINGS) == "off":
            connection.close()
            msg = (
                f"PostgreSQL of {self._where}: standard_conforming_strings stays off: a pooler drops what is asked for"
            )
            raise OperatorError(msg, hint=f"for the role of the store's url: ALTER ROLE ROLE SET {_STRINGS} = on")
        return connection

    def _require_a_session(self, connection: psycopg2.extensions.connection) -> None:
        """Raise OperatorError behind a pooler that gives each transaction another session, before one is changed.

        Locks would stay there when we are gone, and what is set would be set for others. A pooler names another process
        than the server does; it is asked whether a session that our transaction gave back goes to others.
        """
        if self._has_a_session:
            return
        try:
            pid = _process(connection)
            looks = 0 if pid == connection.info.backend_pid else _POOLER_LOOKS
            with closing(psycopg2.connect(**self._parameters)) if looks else nullcontext(connection) as other:
                for _ in range(looks):
                    given, ours = _process(other, ends=False), _process(connection)
                    other.rollback()
                    if given == pid or ours != pid:
                        msg = f"PostgreSQL of {self._where}: a pooler in between gives each transaction another session"
                        raise OperatorError(msg, hint="the server's own address, or the pooler's in session mode")
            self._has_a_session = True
        except (psycopg2.Error, OperatorError) as exc:
            connection.close()
            raise exc if isinstance(exc, OperatorError) else self.translated(exc, "connecting") from exc

    def _pinned(self, connection: psycopg2.extensions.connection) -> psycopg2.extensions.connection:
        try:
            with connection, connection.cursor() as cur:
                # a pooler by transactions gives the session to others, whose commits need not be flushed
                settings = _SETTINGS if self._by_transaction else _SETTINGS | _FLUSHED
                pairs = sql.SQL(", ").join(
                    sql.SQL("({}, {})").format(sql.Literal(name), sql.Literal(setting))
                    for name, setting in settings.items()
                )
                cur.execute(_PIN.format(pairs))
        except psycopg2.Error as exc:
            connection.close()
            raise self.translated(exc, "connecting") from exc
        return connection

    def translated(self, exc: psycopg2.Error, doing: str = _APPLYING) -> CdcError:
        """Translate an error without the server's DETAIL and without messages of data exceptions: they quote values."""
        code = exc.pgcode or ""
        if is_locked(exc):
            hint = (
                "SELECT pid, usename, state, query FROM pg_stat_activity WHERE state <> 'idle' shows who may have it; "
            )
            return LockedError(
                f"{self._where}: {doing}: another session keeps a table, or rows of it, locked ({code})",
                hint=f"{hint}it goes on once the lock is gone",
            )
        if passes(exc):
            said = f"{exc.diag.message_primary} ({code})" if code else "the connection was lost"
            hint = "is PostgreSQL up, with room on its disk? Start again: what was done is whole, the rest comes again"
            error = ShortageError if code.startswith(_SHORT) else RetryableError
            return error(f"{self._where}: {doing}: {said}", hint=hint)
        reason = _UNQUOTED.get(code[:2]) or str(exc.diag.message_primary)
        reason = f"{reason} ({code})"
        undo = _UNDO if doing == _APPLYING and code in _ALTERED else None
        missing = "grant what is missing to this user" if code == "42501" else undo or unfound_in(exc)
        return OperatorError(f"{self._where}: {doing}: {reason}", hint=missing)


def unfound_in(exc: psycopg2.Error) -> str | None:
    """Say what helps where a function of somebody's, as of a trigger, finds no name: it does in their own sessions."""
    function = _FUNCTION.search(exc.diag.context or "")
    if function is None or exc.pgcode not in _UNFOUND:
        return None
    return (
        f"function {function[1]} has to name it with its schema, or to be given a search_path (ALTER FUNCTION … SET "
        "search_path = …): the job’s sessions look in pg_catalog alone, as PostgreSQL’s own subscriptions do"
    )


def wait_for_locks(cur: Cursor, *, again: bool = False) -> None:
    """Bound how long what follows in the transaction waits for a lock: another session may keep a table for hours.

    `again`: one was waited for in vain already. All tables wait meanwhile, so no other is waited for as long.
    """
    cur.execute(sql.SQL("SET LOCAL lock_timeout = {}").format(sql.Literal(_LOCK_AGAIN_MS if again else _LOCK_MS)))


def is_locked(exc: psycopg2.Error) -> bool:
    """Whether a lock was waited for in vain: that concerns the one table."""
    return exc.pgcode == _LOCKED


def is_of_one_table(exc: psycopg2.Error) -> bool:
    """Whether what passes may concern the one table alone that is written: a lock on it, or its disk that is full."""
    return is_locked(exc) or (exc.pgcode or "").startswith(_SHORT)


def passes(exc: psycopg2.Error) -> bool:
    """Whether the same may succeed later: the connection was lost, or the server is short of something."""
    code = exc.pgcode or ""
    lost = not code and isinstance(exc, psycopg2.OperationalError | psycopg2.InterfaceError)
    return lost or code[:2] in _PASSING or code in (_LOCKED, _STANDBY)


def _process(connection: psycopg2.extensions.connection, *, ends: bool = True) -> int:
    """Return the server's process of a transaction, which has begun with this unless one is open, and ends with it."""
    with connection.cursor() as cur:
        cur.execute("SELECT pg_catalog.pg_backend_pid()")
        ((pid,),) = cur.fetchall()
    if ends:
        connection.rollback()
    return int(pid)


def _locked(cur: Cursor, name: str) -> bool:
    until = time.monotonic() + _LINGERS_S
    while True:
        cur.execute("SELECT pg_try_advisory_lock(hashtextextended(%s, 0))", (name,))
        ((taken,),) = cur.fetchall()
        if taken or time.monotonic() > until:
            return bool(taken)
        time.sleep(_AGAIN_S)


def _parameters(url: str, where: str) -> dict[str, Any]:
    hint = "url: postgresql://user:${PASSWORD}@host:5432/database, with /, @, : and % in it percent-encoded"
    if not url.startswith(("postgresql://", "postgres://")):
        raise ConfigError(f"{where}.url is not a PostgreSQL URL", hint=hint)
    try:
        given: dict[str, str] = psycopg2.extensions.parse_dsn(url)
    except psycopg2.ProgrammingError:
        raise ConfigError(f"{where}.url cannot be parsed", hint=hint) from None
    ports = [port for port in given.get("port", "").split(",") if port]
    if "@" in given.get("host", "") or not all(port.isdecimal() and int(port) <= _LAST_PORT for port in ports):
        raise ConfigError(f"{where}.url: what stands for host and port is neither", hint=hint)  # a part of a password
    defaults = {"connect_timeout": "10", "keepalives_idle": "30", "keepalives_interval": "10", "keepalives_count": "3"}
    defaults["tcp_user_timeout"] = "60000"  # what was sent and is not acknowledged has no keepalive: fifteen minutes
    if "," in given.get("host", "") + given.get("hostaddr", ""):  # copies are written, and read as they were written
        defaults["target_session_attrs"] = "primary"
    if not is_local(given.get("host", ""), given.get("hostaddr", "")):
        defaults["sslmode"] = "verify-full"
        if given.get("sslmode", "verify-full") == "verify-full":
            defaults["sslrootcert"] = "system"
    fixed = {"client_encoding": "UTF8", "application_name": "cdc apply"}
    return {**defaults, **given, **fixed}
