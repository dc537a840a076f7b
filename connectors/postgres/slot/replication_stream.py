"""Streams over the replication connection: libpq's COPY BOTH by psycopg's `pq` layer, which acknowledges nothing.

Messages inside COPY BOTH (https://www.postgresql.org/docs/current/protocol-replication.html), big-endian:

    server  w  data       int64 start LSN · int64 end of WAL · int64 clock · payload
    server  k  keepalive  int64 end of WAL · int64 clock · int8 reply wanted
    client  r  status     int64 written · int64 flushed · int64 applied · int64 clock · int8 reply wanted
"""

from __future__ import annotations

import array
import fcntl
import logging
import os
import select
import termios
import time
from collections.abc import Callable, Iterator
from struct import Struct
from typing import Any, Final, TypeAlias, TypeVar

import psycopg
from psycopg import pq

from cdc.machine.await_readable import await_readable
from cdc.model.change import Change
from cdc.model.errors import CdcError, GapError, OperatorError, ProtocolError, RetryableError, UnreadableError
from connectors.postgres import same_server, settings
from connectors.postgres.hangup import hung_up
from connectors.postgres.lsn import lsn_text
from connectors.postgres.pgoutput.fast_path import GetCopyData, Received
from connectors.postgres.pgoutput.messages import POSTGRES_EPOCH_US
from connectors.postgres.refused_logins import meaning
from connectors.postgres.session import GO_ON, SHORTER, endpoint, of_sqlstate
from connectors.postgres.slot.timeline import CLOSE_THE_GAP

log = logging.getLogger("cdc")

_BROKEN: Final = (psycopg.Error, psycopg.Warning, SystemError, OSError, ValueError)
"""All that libpq's wrapper raises; ValueError and OSError of a socket that is closed."""

_STREAM_BROKEN: Final = (psycopg.Error, psycopg.Warning, SystemError, OSError)
"""The same where decoders are called inside, whose ValueErrors are not the connection's."""

_DATA: Final = Struct(">QQq")
_KEEPALIVE: Final = Struct(">QqB")
_STATUS: Final = Struct(">cQQQqB")
_DATA_START: Final = 1 + _DATA.size

_INTERNAL: Final = b"XX"
"""The class of errors that should not be: damaged data, and faults of the server's own."""
_OF_VALUES: Final = b"22"
"""The class of errors of data: of a text that has no character in Unicode, for one."""
_UNDEFINED: Final = b"42704"
"""undefined_object: while the log is sent, a publication."""
_SYNTAX: Final = "42601"
"""syntax_error: only a walsender knows the commands of replication."""
_LONG_S: Final = 5.0
_GATHER_S: Final = 0.001
_GATHER_MOST_S: Final = 0.008
_MUCH_BYTES: Final = 16 * 1024

SILENT_S: Final = 60.0
"""A server that was asked for a keepalive and has sent nothing for so long is taken for gone.

Or, if that is longer, its own wal_sender_timeout, within which it speaks also while it reads what is not for us.
"""
SILENT_UNLIMITED_S: Final = 600.0
"""The same where wal_sender_timeout is 0."""

_TOLD_TIMES: Final = 4
STATUS_EVERY_S: Final = 10.0
"""Well under the server's wal_sender_timeout (60 s by default)."""

_T = TypeVar("_T")

Changes: TypeAlias = Callable[[GetCopyData, int], tuple[list[Change], bytes | None, int]]
Transactions: TypeAlias = Callable[[GetCopyData, Callable[[], None], int, int], tuple[Any, ...]]
"""Are given a connection's `get_copy_data`, and how many to read at most: see `pgoutput.fast_path`."""


class ReplicationConnection:
    """Is one walsender. First it takes statements, then at most one stream; it never reconnects by itself."""

    def __init__(self, params: dict[str, str]) -> None:
        self._endpoint = endpoint(params)
        conninfo = psycopg.conninfo.make_conninfo(**{**params, "replication": "database"})
        try:
            self._pg = pq.PGconn.connect(conninfo.encode())
        except _BROKEN as exc:
            said = str(exc) if isinstance(exc, psycopg.Error) else type(exc).__name__
            raise meaning(self._endpoint, params, said) from None
        if self._pg.status != pq.ConnStatus.OK:
            message = self._pg.error_message.decode(errors="replace")
            self._pg.finish()
            raise meaning(self._endpoint, params, message)
        self._queued = array.array("i", [0])
        self._written = self._flushed = 0
        self._sent_at_s = 0.0
        self._asked_at_s: float | None = None
        self._silent_s = SILENT_S
        self._patience_s = float("inf")
        """The server's wal_sender_timeout."""
        self._streaming = self._over = False
        try:
            self._verify()
            server = same_server.told(lambda: self.query(same_server.WHICH, "asking which server it is"))
            same_server.require(self._endpoint, server)
        except CdcError:
            self._pg.finish()
            raise
        if self._pg.parameter_status(b"server_encoding") == b"SQL_ASCII":
            # the server would check text only when it sends it to us: one row that is not UTF-8 would end the stream
            self.query("SET client_encoding TO 'SQL_ASCII'", "setting client_encoding")

    def _verify(self) -> None:
        """Set what could not be asked for at the start, and read everything back, as every session does."""
        doing = f"PostgreSQL at {self._endpoint}: reading the replication session's settings"
        for statement in settings.later(self._pg.server_version, os.environ):
            self.query(statement, doing)
        refused = settings.differences(self._endpoint, dict(self.query(settings.READ_BACK, doing)))
        if refused is not None:
            raise refused

    def query(self, statement: str, doing: str, *, within_s: float | None = SILENT_S) -> list[list[str]]:
        """Run a replication command (simple protocol) and give its rows as text.

        Raises RetryableError if there is no answer `within_s`. None is for making a slot, which waits for the longest
        open transaction.
        """
        try:
            result = self._result(statement, doing, within_s)
            while self._pg.get_result() is not None:
                pass
        except _BROKEN as exc:
            raise self._lost(doing) from exc
        if result.status not in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK):
            raise _translate(self._pg, result, doing)
        return [
            [(result.get_value(row, column) or b"").decode(errors="replace") for column in range(result.nfields)]
            for row in range(result.ntuples)
        ]

    def _result(self, statement: str, doing: str, within_s: float | None) -> pq.abc.PGresult:
        """Wait in slices, since a signal is only heard between calls."""
        self._pg.send_query(statement.encode())
        self._pg.flush()
        begun_s, told = time.monotonic(), False
        while self._pg.is_busy():
            await_readable([self._pg.socket], 0.5)
            self._pg.consume_input()
            if within_s is not None and time.monotonic() - begun_s > within_s:
                raise RetryableError(f"PostgreSQL at {self._endpoint}: {doing}: no answer in {within_s:.0f} s")
            if not told and time.monotonic() - begun_s > _LONG_S:
                log.warning(
                    "%s: waiting, as a rule for transactions that began before it: "
                    "SELECT pid, xact_start, query FROM pg_stat_activity WHERE backend_xid IS NOT NULL; "
                    "SELECT gid, prepared FROM pg_prepared_xacts",
                    doing,
                )
                told = True
        result = self._pg.get_result()
        if result is None:
            raise RetryableError(f"{doing}: the connection was lost")
        return result

    def start(self, slot: str, publication: str, lsn: int, *, messages: bool, flushed: int | None = None) -> None:
        """Begin to stream from `lsn`: transactions whose commit record starts there or later, whole.

        `messages`: also what applications write with pg_logical_emit_message. `flushed`: what is kept, if not `lsn`.
        """
        names = '"' + publication.replace('"', '""') + '"'
        statement = (
            f'START_REPLICATION SLOT "{slot}" LOGICAL {lsn_text(lsn)} '
            f"(proto_version '1', publication_names '{names.replace(chr(39), chr(39) * 2)}'"
            f"{', messages ' + chr(39) + 'true' + chr(39) if messages else ''})"
        )
        ((limit_ms,),) = self.query(
            "SELECT setting FROM pg_settings WHERE name = 'wal_sender_timeout'", "reading wal_sender_timeout"
        )
        self._patience_s = int(limit_ms) / 1000 or float("inf")
        self._silent_s = max(SILENT_S, int(limit_ms) / 1000) if int(limit_ms) else SILENT_UNLIMITED_S
        try:
            result = self._result(statement, f"starting replication from slot {slot}", self._silent_s)
        except _BROKEN as exc:
            raise self._lost(f"starting replication from slot {slot}") from exc
        if result.status != pq.ExecStatus.COPY_BOTH:
            raise _unreadable(_translate(self._pg, result, f"starting replication from slot {slot}"), result)
        self._streaming = True
        self._written, self._flushed = lsn, lsn if flushed is None else flushed
        self._poll = select.poll()
        self._poll.register(self._pg.socket, select.POLLIN)

    @property
    def kept(self) -> int:
        """Return the position up to which the server need keep nothing."""
        return self._flushed

    def receive_transactions(self, read: Transactions, after: int, most: int) -> Received:
        """Return what `read` makes of what has come.

        Raises RetryableError at the stream's end, and when a keepalive that was asked for does not come.
        """
        if self._over:
            raise self._ended()
        try:
            found = Received(*read(self._pg.get_copy_data, self._pg.consume_input, after, most))
        except _STREAM_BROKEN as exc:
            raise self._broken() from exc
        if found.something:
            self._over = found.status < 0  # what came before it counts
            self._asked_at_s = None
        elif found.status < 0:
            raise self._ended()
        else:
            self._hear_nothing()
        return found

    def receive(self) -> bytes | None:
        """Return the next message of the server; None when none has come yet.

        Raises RetryableError at the stream's end, and when a keepalive that was asked for does not come.
        """
        if self._over:
            raise self._ended()
        try:
            size, data = self._pg.get_copy_data(1)
            if size == 0:
                self._pg.consume_input()
                size, data = self._pg.get_copy_data(1)
        except _BROKEN as exc:
            raise self._broken() from exc
        if size > 0:
            self._asked_at_s = None
            return bytes(data)
        if size < 0:
            raise self._ended()
        self._hear_nothing()
        return None

    def _hear_nothing(self) -> None:
        """Raise RetryableError once nothing has come for too long."""
        if self._asked_at_s is not None and time.monotonic() - self._asked_at_s > self._silent_s:
            raise RetryableError(
                f"PostgreSQL at {self._endpoint}: asked for a sign of life, it has said nothing for "
                f"{self._silent_s:.0f} s: the connection is half open"
            )

    def receive_changes(self, read: Changes, most: int) -> tuple[list[Change], bytes | None]:
        """Return what `read` makes of the messages that have come, and the first that it makes nothing of, if any.

        It asks the server for nothing: `receive` does, and must be called where this gives nothing.
        """
        try:
            changes, message, size = read(self._pg.get_copy_data, most)
        except _STREAM_BROKEN as exc:
            raise self._broken() from exc
        self._over = size < 0  # what came before it counts
        if changes or message is not None:
            self._asked_at_s = None
        return changes, message

    def _broken(self) -> RetryableError:
        return RetryableError(f"PostgreSQL at {self._endpoint}: the replication stream broke", hint=GO_ON)

    def _lost(self, doing: str) -> RetryableError:
        return RetryableError(f"PostgreSQL at {self._endpoint}: {doing}: the connection was lost", hint=GO_ON)

    def _ended(self) -> CdcError:
        try:
            result = self._pg.get_result()
        except _BROKEN:
            return self._broken()
        if result is not None and result.status == pq.ExecStatus.FATAL_ERROR:
            if result.error_field(pq.DiagnosticField.SQLSTATE) == _UNDEFINED:
                return _not_published(result)
            return _unreadable(_translate(self._pg, result, "following the log"), result)
        return RetryableError(f"PostgreSQL at {self._endpoint} ended the replication stream")

    def wait(self, timeout_s: float) -> None:
        """Return when there may be something to receive, or after `timeout_s`.

        It returns a little later: a server that wakes a waiting reader for every message pays more for that than for
        decoding a row. More has come by then; while much comes, it waits a little longer.
        """
        try:
            self._gather(timeout_s)
        except OSError as exc:
            raise self._broken() from exc

    def _gather(self, timeout_s: float) -> None:
        if not self._poll.poll(timeout_s * 1000):
            return
        queued, came, until_s = 0, _MUCH_BYTES, time.monotonic() + _GATHER_MOST_S
        while came >= _MUCH_BYTES and time.monotonic() < until_s:
            time.sleep(_GATHER_S)
            fcntl.ioctl(self._pg.socket, termios.FIONREAD, self._queued)
            came, queued = self._queued[0] - queued, self._queued[0]

    def written(self, lsn: int) -> None:
        """Note that the log has been read up to `lsn`."""
        self._written = max(self._written, lsn)

    def flushed(self, lsn: int) -> None:
        """Let the server forget the log before `lsn`, which the next `status` tells it."""
        self._flushed = max(self._flushed, lsn)

    def status(self, *, every_s: float = STATUS_EVERY_S, reply: bool = False) -> None:
        """Tell the server how far we are, unless it was told less than `every_s` ago; `reply` asks for a keepalive.

        It is told sooner where its patience is short: it hears us also while nothing is read of what it sends.
        """
        clock_s = time.monotonic()
        if not self._streaming or clock_s - self._sent_at_s < min(every_s, self._patience_s / _TOLD_TIMES):
            return
        at_us = time.time_ns() // 1000 - POSTGRES_EPOCH_US
        written = max(self._written, self._flushed)
        message = _STATUS.pack(b"r", written, self._flushed, self._flushed, at_us, reply)
        try:
            self._pg.put_copy_data(message)
            self._pg.flush()
        except _BROKEN as exc:
            raise RetryableError(
                f"PostgreSQL at {self._endpoint}: the replication connection was lost", hint=GO_ON
            ) from exc
        self._sent_at_s = clock_s
        if reply and self._asked_at_s is None:
            self._asked_at_s = clock_s

    def require_open(self) -> None:
        """Raise RetryableError if the server has hung up, where nothing is read that would say so."""
        if self._streaming and hung_up(self._pg.socket):
            raise RetryableError(f"PostgreSQL at {self._endpoint}: the replication connection was lost", hint=GO_ON)

    def close(self) -> None:
        self._streaming = False
        self._pg.finish()


def readable(frames: Iterator[_T], read_to: Callable[[], int]) -> Iterator[_T]:
    """Give what is read of the log. Raises GapError where its bytes are none of the protocol's."""
    try:
        yield from frames
    except ProtocolError as exc:
        raise GapError(
            f"the log cannot be read behind {lsn_text(read_to())}: {exc.message} of a message",
            hint="start the connector again: it may have been garbled on its way. If it comes again, please report it "
            f"with the server's version, and {CLOSE_THE_GAP}",
            may_pass=True,
        ) from exc


def data(message: bytes) -> tuple[int, bytes]:
    """Return LSN and payload of a data message."""
    if len(message) < _DATA_START:
        raise ProtocolError(len(message), "a data message that ends early")
    return int.from_bytes(message[1:9], "big"), message[_DATA_START:]


def keepalive(message: bytes) -> tuple[int, bool]:
    """Return the end of the log as the server has sent it, and whether it wants an answer."""
    if len(message) != 1 + _KEEPALIVE.size:
        raise ProtocolError(len(message), "a keepalive of another length")
    end, _clock, reply = _KEEPALIVE.unpack_from(message, 1)
    return end, bool(reply)


def _not_published(result: pq.abc.PGresult) -> GapError:
    """Return what it means that a publication was not there when the log was written that is being sent now.

    PostgreSQL up to 17 reads it as it was then, and stops, each time, whatever is there by now; 18 sends nothing.
    """
    reason = (result.error_field(pq.DiagnosticField.MESSAGE_PRIMARY) or b"").decode(errors="replace")
    return GapError(
        f"publication missing in the log: {reason} where the log has got to; one that was made since does not change "
        "what was written before it",
        hint=CLOSE_THE_GAP,
    )


def _unreadable(error: CdcError, result: pq.abc.PGresult) -> CdcError:
    """Return an error of the server while it reads its own log: one that may stay, or, of damaged data, that will.

    A row that is too long to be sent, or that the server cannot write as text, stays in the log, whatever becomes of it
    in its table. But an allocation that is refused may have another cause, as a fault of the server's version.
    """
    code = result.error_field(pq.DiagnosticField.SQLSTATE) or b""
    too_long = isinstance(error, OperatorError) and error.hint == SHORTER
    if code.startswith(_OF_VALUES) or (too_long and not code.startswith(_INTERNAL)):
        first = SHORTER if too_long else "repair the row in its table: the server's log names its bytes"
        return GapError(f"the server cannot send its own log: {error.message}", hint=f"{first}. Then: {CLOSE_THE_GAP}")
    if not code.startswith(_INTERNAL):
        return error
    said = f"the server fails to read its own log: {error.message}"
    if not (isinstance(error, RetryableError) or too_long):
        return GapError(said, hint=f"the server's log names what is damaged; {CLOSE_THE_GAP}")
    shorter = f". Or {SHORTER}. Then" if too_long else ""
    return UnreadableError(
        said,
        hint="it is tried again, and the server's log says more. If it comes each time, log or catalog are damaged "
        "there, or it is a fault of the server's version, which an update to its newest minor release may end"
        f"{shorter}: {CLOSE_THE_GAP}",
    )


def _translate(connection: pq.abc.PGconn, result: pq.abc.PGresult, doing: str) -> CdcError:
    def field(code: pq.DiagnosticField) -> str:
        return (result.error_field(code) or b"").decode(errors="replace")

    code, reason = field(pq.DiagnosticField.SQLSTATE), field(pq.DiagnosticField.MESSAGE_PRIMARY)
    if code == "55006":  # object in use: another walsender has the slot
        return RetryableError(
            f"{doing}: {reason}",
            hint="another copy of this connector runs, or its connection has not timed out yet; "
            "SELECT pid, application_name, client_addr FROM pg_stat_replication",
            at_start=True,
        )
    if code == _SYNTAX:
        return OperatorError(
            f"{doing}: {reason}: a pooler in between has made an ordinary session of it", hint=settings.POOLED
        )
    if code == "42501":
        return OperatorError(f"{doing}: {reason}", hint="ALTER ROLE … REPLICATION")
    standby = connection.status == pq.ConnStatus.OK and connection.parameter_status(b"in_hot_standby") == b"on"
    return of_sqlstate(code, reason or "the connection was lost", doing, standby=standby)
