"""Packets of the dump connection, as they come off a socket: whole, in pieces, joined; silence, ends, refusals."""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from cdc.model.errors import GapError, ProtocolError, RetryableError
from connectors.mysql.binlog.parser import PAYLOAD
from connectors.mysql.replication import dump_stream
from connectors.mysql.replication.dump_stream import BinlogDump


@pytest.fixture
def wire() -> Iterator[tuple[BinlogDump, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(0)
    dump = BinlogDump.__new__(BinlogDump)
    dump._where, dump._server_id, dump._connector, dump._mariadb = "MySQL at x", 7, "c", False
    dump._connection = SimpleNamespace(_sock=ours, open=False)
    dump._buffer, dump._at, dump._parts, dump._heard_s = bytearray(), 0, [], time.monotonic()
    dump._long = None
    yield dump, theirs
    ours.close()
    theirs.close()


def packet(payload: bytes, number: int = 1) -> bytes:
    return len(payload).to_bytes(3, "little") + bytes([number]) + payload


def test_events_come_whole_however_they_were_sent(wire: tuple[BinlogDump, socket.socket]) -> None:
    dump, server = wire
    sent = packet(b"\x00first") + packet(b"\x00" + b"x" * 1000) + packet(b"\x00")
    for n in range(0, len(sent), 7):
        server.sendall(sent[n : n + 7])
        if n == 0:
            assert dump.receive() is None
    assert [dump.receive(), dump.receive(), dump.receive(), dump.receive()] == [b"first", b"x" * 1000, b"", None]
    for n in range(3):
        server.sendall(packet(b"\x00%d" % n) * 2)
        assert [dump.receive(), dump.receive()] == [b"%d" % n] * 2


def test_an_event_of_more_than_a_packet(
    wire: tuple[BinlogDump, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packet of the greatest size says that more follows, also if that is nothing."""
    dump, server = wire
    monkeypatch.setattr(dump_stream, "_WHOLE", 10)
    server.sendall(packet(b"\x00123456789") + packet(b"abcdefghij"))
    assert dump.receive() is None
    server.sendall(packet(b"") + packet(b"\x00next"))
    assert dump.receive() == b"123456789abcdefghij"
    assert dump.receive() == b"next"


def test_a_long_compressed_transaction_is_in_a_file(
    wire: tuple[BinlogDump, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be a gigabyte, and is nothing that must be in memory at once."""
    dump, server = wire
    monkeypatch.setattr(dump_stream, "_WHOLE", 10)
    event = b"time" + bytes([PAYLOAD]) + b"and so on, unt\x00il end"  # whose last part begins as an event does
    sent = b"\x00" + event
    for begin in (0, 10):
        server.sendall(packet(sent[begin : begin + 10]))
        assert dump.receive() is None
    server.sendall(packet(sent[20:]) + packet(b"\x00next"))
    file = dump.receive()
    assert file is not None
    assert not isinstance(file, bytes)
    with file:
        file.seek(0)
        assert file.read() == event
    assert dump.receive() == b"next"


def test_a_dead_connection_is_noticed(wire: tuple[BinlogDump, socket.socket]) -> None:
    dump, server = wire
    dump._heard_s = time.monotonic()
    assert dump.answers()
    dump._heard_s = time.monotonic() - dump_stream.SILENT_S + 5
    assert not dump.answers()
    assert dump.receive() is None
    dump._heard_s = time.monotonic() - dump_stream.SILENT_S - 1
    with pytest.raises(RetryableError, match="said nothing for 60 s"):
        dump.receive()
    server.close()
    with pytest.raises(RetryableError, match="has closed"):
        dump.receive()


@pytest.mark.parametrize(
    ("payload", "error", "said"),
    [
        (b"\xfe\x00\x00\x02\x00", RetryableError, "has ended"),
        (b"\xff\xd4\x04#HY000Could not find first log file name in binary log index file", GapError, "binlog purged"),
        (b"\x07", ProtocolError, "unknown kind 0x07"),
    ],
)
def test_what_is_no_event(
    wire: tuple[BinlogDump, socket.socket], payload: bytes, error: type[Exception], said: str
) -> None:
    dump, server = wire
    server.sendall(packet(payload))
    with pytest.raises(error, match=said):
        dump.receive()


def test_a_program_may_have_many_files_open(wire: tuple[BinlogDump, socket.socket]) -> None:
    """A socket has whichever number is free; the wait took one of 1,024 or more for a connection that is lost."""
    dump, server = wire
    ours = dump._connection._sock
    dump._connection._sock = socket.socket(fileno=fcntl.fcntl(ours, fcntl.F_DUPFD, 1_500))
    ours.close()
    dump.wait(0)
    server.sendall(packet(b"\0an event"))
    dump.wait(10)
    assert dump.receive() == b"an event"
    dump._connection._sock.close()
