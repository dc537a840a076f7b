"""The binlog dump connection logs in and registers by the client libraries; then packets are read off the socket here.

Why nothing is lost or published twice between two dumps:

- The server holds nothing for us: it keeps its files as long as its settings say. The position is in Kafka alone, in
  the transaction of the events before it, and `continuity` stops a start whose position is no longer in the files.
- Nothing here reconnects, and nothing is dropped: all that follows the request is given on, event by event, in order.
- A position is always between two transactions. `MysqlSource` moves it, and adds a GTID to its set, only after the
  last event of the transaction has been read; the pipeline asks for it only after it has taken all changes. A session
  that dies in the middle of a transaction therefore asks for it again, whole.
- On the same server a dump asks for a binlog position, file and offset, also where there are GTIDs: a set of them does
  not tell of transactions that were written while gtid_mode was off, and a dump by the set begins behind their files.
  What the server then refuses to send (a transaction without a GTID in mode ON, one with a GTID in mode OFF) is a
  verdict. Where XA has something prepared, the dump begins at the oldest of it, and transactions that end before the
  position (`done`) are read but not published. A file of the same name after a reset is another file; its time of
  creation (`made_at`) tells them apart.
- Another server of the group continues by GTIDs. MySQL sends every transaction that is not in the set; what XA has
  prepared is left out of the set until it has ended, because its rows are published only then. MariaDB's GTIDs name the
  last transaction of each domain.
- A position ends with the time at which its last transaction was first committed (`last_transaction`): a server that
  was restored from an older copy, and has given its numbers out again since, has another one in that place.
- A first start on MySQL with GTIDs reads its file from the beginning, up to where the log ended (`sift`) without what
  is in the set: what was logged but not in the set yet, when that was taken, is published.

    server  packet  u24 size · u8 number · 0x00 · event        (0xFE: end, 0xFF: error); 0xFFFFFF: more follows
    client  COM_BINLOG_DUMP       0x12 · u32 offset · u16 flags · u32 server id · file
    client  COM_BINLOG_DUMP_GTID  0x1E · u16 flags · u32 server id · u32 size · file · u64 offset · u32 size · set

https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_binlog_dump_gtid.html
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable
from struct import pack
from typing import IO, Any, Final, TypeVar
from uuid import UUID, uuid5

import pymysql
from pymysql.constants import ER
from pymysqlreplication.binlogstream import ReportSlave

from cdc.config.config import ConnectorConfig
from cdc.machine.await_readable import await_readable
from cdc.model.errors import (
    CdcError,
    FencedError,
    GapError,
    OperatorError,
    ProtocolError,
    RetryableError,
    UnloggedError,
)
from connectors.mysql import same_server, session
from connectors.mysql.binlog.parser import PAYLOAD
from connectors.mysql.binlog.positions import FIRST, LARGEST, BinlogPosition, GtidSet
from connectors.mysql.binlog.spill import close_file, on_disk, open_file

HEARTBEAT_S: Final = 5
"""How often a server that has nothing to tell says so."""
_LATE_S: Final = 1.0
SILENT_S: Final = 60.0
"""A server that has said nothing for so long is taken for gone."""
_SEND_S: Final = 600
"""How long the server waits for us while Kafka is slow."""
_RECEIVE_BYTES: Final = 1 << 20
_WHOLE: Final = 0xFFFFFF
_HEAD: Final = 4
_TYPE_AT: Final = 5
"""Where a packet has the type of its event: behind its own first byte and the event's time."""
_OK, _END, _ERROR = 0x00, 0xFE, 0xFF
_NON_BLOCK: Final = 0x01
_THROUGH_GTID: Final = 0x04
_BINLOG_ERROR: Final = 1236
_SAME_NUMBER: Final = 4052
"""MariaDB's for a server_id that two replicas have."""
_OF_SERVERS: Final = 1000
"""Where the servers' own errors begin; below are those of files, which MariaDB gives as they are."""
_NAMESPACE: Final = UUID("6f0c6f5e-1c1e-4a53-a5a8-3d7f6f6a6b11")


T = TypeVar("T")


class LogEndedError(RetryableError):
    """All that a server has logged was sent, where the dump does not wait for more."""


class BinlogDump:
    """Is one dump. It registers as a replica named after the connector, so that the server can say who follows it.

    The server ends another dump of the same replica (MySQL: uuid, MariaDB: server_id).
    """

    def __init__(
        self, at: session.Address, *, server_id: int, connector: str, uuid: str, mariadb: bool, waits: bool = True
    ) -> None:
        """Connect. Without `waits` it is a look at what there is: nobody is registered, the dump ends with the log."""
        self._where = f"MySQL at {at.endpoint}"
        self._server_id = server_id
        self._connector = connector
        self._mariadb = mariadb
        settings = [
            "SET @master_binlog_checksum = @@global.binlog_checksum",
            "SET @source_binlog_checksum = @@global.binlog_checksum",
            f"SET @master_heartbeat_period = {HEARTBEAT_S * 10**9}, @source_heartbeat_period = {HEARTBEAT_S * 10**9}",
            f"SET @slave_uuid = '{uuid}', @replica_uuid = '{uuid}'",
        ]
        if mariadb:
            settings += ["SET @mariadb_slave_capability = 4", "SET @slave_gtid_strict_mode = 1"]
            settings += ["SET @slave_gtid_ignore_duplicates = 0"]
        patience = {"net_write_timeout": str(_SEND_S)}
        self._connection: Any = same_server.beside(at, settings=patience, statements=settings)
        self._flags = 0 if waits else _NON_BLOCK
        if waits:
            self._register()
        self._buffer = bytearray()
        self._parts: list[bytes] = []
        self._long: IO[bytes] | None = None
        self._at = 0
        self._heard_s = time.monotonic()

    def _register(self) -> None:
        packet = ReportSlave((replica_host(self._connector), "", "", 0)).encoded(self._server_id)
        connection = self._connection
        try:
            connection._write_bytes(packet)  # noqa: SLF001 - the library sends its command so too
            connection._next_seq_id = 1  # noqa: SLF001
            connection._read_packet()  # noqa: SLF001
        except session.DRIVER_ERRORS as exc:
            raise self._refused(exc) from exc

    def follow(self, begin: BinlogPosition) -> None:
        """Ask for everything from an offset on, which must be where an event begins, and `askable`."""
        self._ask(pack("<BIHI", 0x12, begin.offset, self._flags, self._server_id) + begin.file.encode())

    def follow_gtids(self, gtids: GtidSet) -> None:
        """Ask a MySQL server for every transaction that is not in the set."""
        known = gtids.encode()
        self._ask(pack("<BHIIQI", 0x1E, _THROUGH_GTID | self._flags, self._server_id, 0, FIRST, len(known)) + known)

    def follow_mariadb(self, position: str) -> None:
        """Ask a MariaDB server for everything behind a position of GTIDs."""
        session.rows(self._connection, "asking for the log", "SET @slave_connect_state = %s", (position,))
        self._ask(pack("<BIHI", 0x12, 4, 0, self._server_id))

    def _ask(self, command: bytes) -> None:
        connection = self._connection
        try:
            connection._next_seq_id = 0  # noqa: SLF001 - a command begins a conversation
            connection.write_packet(command)
            connection._sock.settimeout(0)  # noqa: SLF001 - from here on it is read here
        except session.DRIVER_ERRORS as exc:
            raise session.translate(exc, "asking for the log") from exc
        self._heard_s = time.monotonic()

    def read_buffered(self, read: Callable[[bytearray, int], tuple[int, T] | None]) -> T | None:
        """Return what `read` makes of the bytes that have come and are not taken; then it has taken them.

        `read` returns where in the bytes it has stopped, and what it has made; None takes nothing.
        """
        if self._parts or self._long is not None:  # inside a packet that was split
            return None
        found = read(self._buffer, self._at)
        if found is None:
            return None
        self._at, made = found
        if self._at == len(self._buffer) or self._at > _RECEIVE_BYTES:
            del self._buffer[: self._at]
            self._at = 0
        return made

    def receive(self) -> bytes | IO[bytes] | None:
        """Return the next event; None: nothing more has come. Raises OperatorError, RetryableError.

        A compressed transaction of more than 16 MB is in a file, which is the caller's to close.
        """
        buffer, at = self._buffer, self._at
        begin = at + _HEAD
        if begin < len(buffer):  # never in the middle of an event: then all whole packets have been taken out
            size = buffer[at] | buffer[at + 1] << 8 | buffer[at + 2] << 16
            end = begin + size
            if end < len(buffer) and end <= _RECEIVE_BYTES and size < _WHOLE and buffer[begin] == _OK and size:
                self._at = end
                return bytes(buffer[begin + 1 : end])  # as by `_packet`, but faster
        packet = self._packet()
        if not isinstance(packet, bytes):
            return packet
        if packet[0] == _OK:
            return packet[1:]
        if packet[0] == _ERROR:
            code = int.from_bytes(packet[1:3], "little")
            words = packet[3:]
            words = words[6:] if words[:1] == b"#" else words
            raise self._refused(pymysql.OperationalError(code, words.decode(errors="replace")))
        if packet[0] == _END:
            raise LogEndedError(f"{self._where} has ended the log's connection")
        raise ProtocolError(0, f"a packet of unknown kind 0x{packet[0]:02x} in the binlog")

    def _packet(self) -> bytes | IO[bytes] | None:
        """Return the next packet, joined from what it was split into; what has come of it so far is kept.

        A file holds the event without the packet's first byte.
        """
        while True:
            while len(self._buffer) - self._at < _HEAD:
                if not self._fill():
                    return None
            size = int.from_bytes(self._buffer[self._at : self._at + 3], "little")
            begin, end = self._at + _HEAD, self._at + _HEAD + size
            while len(self._buffer) < end:
                if not self._fill():
                    return None
            self._keep(bytes(memoryview(self._buffer)[begin:end]), more=size == _WHOLE)
            self._at = end
            if end == len(self._buffer) or end > _RECEIVE_BYTES:
                del self._buffer[:end]
                self._at = 0
            if size < _WHOLE:
                break
        long, self._long = self._long, None
        parts, self._parts = self._parts, []
        return long or (parts[0] if len(parts) == 1 else b"".join(parts))

    def _keep(self, part: bytes, *, more: bool) -> None:
        """Keep one part of a packet: in memory, as one row must be; a transaction need not."""
        if self._long is None and more and not self._parts and part[0] == _OK and part[_TYPE_AT] == PAYLOAD:
            self._long = open_file()
            part = part[1:]
        if self._long is not None:
            with on_disk():
                self._long.write(part)
        else:
            self._parts.append(part)

    def _fill(self) -> bool:
        """Read what has come; False: nothing has."""
        sock = self._connection._sock  # noqa: SLF001
        if sock is None:
            raise RetryableError("the log's connection is closed")
        try:
            got = sock.recv(_RECEIVE_BYTES)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            if time.monotonic() - self._heard_s > SILENT_S:
                raise RetryableError(
                    f"{self._where} has said nothing for {SILENT_S:.0f} s: the connection is taken for dead"
                ) from None
            return False
        except (OSError, ValueError) as exc:
            said = exc.strerror if isinstance(exc, OSError) else "it is closed"
            raise RetryableError(
                f"{self._where}: the log's connection was lost: {said or type(exc).__name__}", hint=session.GO_ON
            ) from exc
        if not got:
            raise RetryableError(f"{self._where} has closed the log's connection", hint=session.GO_ON)
        self._heard_s = time.monotonic()
        self._buffer += got
        return True

    def answers(self) -> bool:
        """Tell whether the server was heard of lately: else what it is asked may wait for a dead line to time out."""
        return time.monotonic() - self._heard_s < HEARTBEAT_S + _LATE_S

    def wait(self, timeout_s: float) -> None:
        """Wait until something comes, or the time is up."""
        sock = self._connection._sock  # noqa: SLF001
        if sock is not None:
            try:
                await_readable([sock.fileno()], timeout_s)
            except (OSError, ValueError) as exc:
                raise RetryableError(f"{self._where}: the log's connection was lost", hint=session.GO_ON) from exc

    def read(self, within_s: float) -> bytes:
        """Wait for the next event, which begins a file of the log, and so is short."""
        deadline = time.monotonic() + within_s
        while (event := self.receive()) is None:
            if time.monotonic() > deadline:
                raise RetryableError(f"{self._where}: no event of the log in {within_s:.0f} s")
            self.wait(0.2)
        if not isinstance(event, bytes):
            raise ProtocolError(4, "a compressed transaction at the beginning of a file of the log")
        return event

    def _refused(self, exc: Exception) -> CdcError:
        known = isinstance(exc, pymysql.MySQLError) and len(exc.args) > 1
        code, words = (exc.args[0], str(exc.args[1])) if known else (0, "")
        if code in (_BINLOG_ERROR, _SAME_NUMBER) or 0 < code < _OF_SERVERS:
            return refused_by_server(
                self._where, words, server_id=self._server_id, connector=self._connector, mariadb=self._mariadb
            )
        error = session.translate(exc, "asking for the log")
        if isinstance(error, OperatorError):
            hint = error.hint
            if session.denies(code):
                hint = "GRANT REPLICATION SLAVE ON *.* TO the connector's user"
            elif code == ER.UNKNOWN_COM_ERROR:
                hint = "source.url names a proxy that passes on no log: give it the server's own address"
            return OperatorError(f"{self._where} does not send its log: {words} ({code})", hint=hint)
        return error

    def close(self) -> None:
        if self._long is not None:
            close_file(self._long)
        session.break_off(self._connection)
        if self._connection.open:
            self._connection._force_close()  # noqa: SLF001 - to a dump, goodbye is not said


def askable(position: BinlogPosition) -> BinlogPosition:
    """Return where to ask for the log from, to read it from a position on: the request has 32 bits for an offset.

    From the beginning of its file, where that is not enough.
    """
    return position if position.offset <= LARGEST else BinlogPosition(position.file, FIRST)


def replica_host(connector: str) -> str:
    """Return the name a connector registers under, which the server shows."""
    return f"cdc-{connector}"[:60]


def replica_uuid(config: ConnectorConfig) -> str:
    """Return as which replica a connector registers: always the same, so that the server drops what it had before."""
    return str(uuid5(_NAMESPACE, f"{config.sink.prefix}/{config.name}"))


def refused_by_server(where: str, words: str, *, server_id: int, connector: str, mariadb: bool = False) -> CdcError:
    """Explain the server's error 1236, which stands for a dozen reasons, by its words."""
    told = " ".join(words.split())[:300]
    low = told.lower()

    def says(*words: str) -> bool:
        return any(each in low for each in words)

    if says("same server_uuid", "same server_id", "same server-id"):
        # MySQL goes by the uuid, which only another copy has; MariaDB by the number, in the same words
        kind = FencedError if says("same server_uuid") and not mariadb else OperatorError
        return kind(
            f"duplicate server_id: another replica has connected to {where} with {server_id}, which is the server_id "
            f"of connector {connector}",
            hint="SHOW REPLICAS (MariaDB: SHOW REPLICA HOSTS) names those who are connected; set another "
            "source.server_id here, or run one copy of the connector",
        )
    if says("auto_position"):  # asked for by GTIDs, as another server's position is
        return RetryableError(
            f"{where}: gtid_mode was switched while the log was read: {told}",
            hint="nothing is lost: the connector goes on by file and offset; if it comes again: "
            "cdc snapshot start CONNECTOR.yaml --after-gap",
        )
    if says("anonymous transaction", "gtid-transaction"):
        return GapError(
            f"gtid_mode was switched before all was read: {where} does not send, in the mode that it has now, what was "
            f"written in another: {told}",
            hint="SET GLOBAL gtid_mode = ON_PERMISSIVE (from OFF: OFF_PERMISSIVE), in which both kinds are sent, until "
            f"the connector has caught up, before the next step; else {CLOSE_THE_GAP}",
        )
    if says("could not find first log", "purged", "could not find gtid", "not in the master"):
        return GapError(f"binlog purged: {where} has removed log that the position needs: {told}", hint=CLOSE_THE_GAP)
    if says("could not find next log"):
        return GapError(
            f"binlog reset: {where} has no file any more behind the one that was read: RESET BINARY LOGS AND GTIDS "
            f"(RESET MASTER), or its index of files was changed: {told}",
            hint=CLOSE_THE_GAP,
        )
    if says("> file size", "more gtids than", "has more gtid", "impossible position"):
        return GapError(
            f"server behind the position: {where} does not have what Kafka has: an older copy was restored, the binlog "
            f"was reset, or a crash has lost its end: {told}",
            hint=CLOSE_THE_GAP,
            may_pass=True,  # a replica behind a name of several servers comes up to it
        )
    if says(*_DIVERGED):
        return GapError(
            f"another server under the same name: {where} does not have in its log what the position ends with: {told}",
            hint=f"let source.url name a server that has it; or {CLOSE_THE_GAP}",
            may_pass=True,
        )
    unreadable_now = says(*_UNREADABLE)
    if unreadable_now or says(*_DAMAGED):
        return GapError(
            f"binlog damaged: {where} cannot read its own log where the position needs it: {told}",
            hint=f"{_LOOK_AT_SERVER if unreadable_now else ''}{CLOSE_THE_GAP}",
            may_pass=unreadable_now,
        )
    if says("server-id", "server_id"):
        return OperatorError(f"{where} does not send its log: {told}", hint="SET GLOBAL server_id = 1")
    if says("not open"):
        return UnloggedError(f"binlog off: {where} writes none", hint="start the server with --log-bin")
    return OperatorError(f"{where} does not send its log: {told}", hint="cdc check CONNECTOR.yaml")


_DAMAGED: Final = (
    *("bogus data", "corrupt", "log event entry exceeded", "truncated in the middle", "crc check", "bad magic number"),
    *("invalid event in binary log", "invalid format", "find format", "not correspond to the location of any"),
)
"""What a server says of a file that was cut, written over, or begins another event than was asked for."""
_UNREADABLE: Final = (
    *("could not open log file", "errcode: ", "i/o error", "error reading", "failed to read", "could not read"),
    *("unknown error", "crypt", "keyring", "memory allocation", "out of memory"),
)
"""What it says of one that is not there, or that it may not, or cannot, read for now."""
_DIVERGED: Final = ("missing the gtid", "gtid state not found")
"""What MariaDB says of a transaction that it does not have, though it has others behind it."""
_LOOK_AT_SERVER: Final = (
    "the server's error log says why: a file that was removed by hand, rights, a disk, a key that is not loaded; put "
    "that right and start the connector again; where the file cannot be had any more: "
)
CLOSE_THE_GAP: Final = (
    "what happened since is not in Kafka: cdc snapshot start CONNECTOR.yaml --after-gap, then run it: it follows the "
    "log from now on, reads every table again and deletes what has gone; or restore server and topics to one point"
)


def unreadable(read_to: BinlogPosition, why: ProtocolError) -> GapError:
    """Return the error of a log that cannot be read behind a position."""
    return GapError(
        f"the log cannot be read behind {read_to}: {why.what} (byte {why.offset} of the event)",
        hint="start the connector again: it may have been garbled on its way. If it comes again, the file is damaged "
        "(mysqlbinlog --verify-binlog-checksum tells), or please report it with the server's version; either way: "
        f"{CLOSE_THE_GAP}",
        may_pass=True,
    )
