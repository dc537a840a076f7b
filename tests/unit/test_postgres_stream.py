"""When the replication connection is read: at once, or a little later, since more comes."""

from __future__ import annotations

import array
import select
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from cdc.model.errors import GapError, OperatorError, RetryableError, UnreadableError
from connectors.postgres.session import of_sqlstate
from connectors.postgres.slot import replication_stream
from connectors.postgres.slot.replication_stream import ReplicationConnection


class Server:
    """Sends so much in each millisecond for which the connection sleeps; it is a clock as well."""

    def __init__(self) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.sends: Iterator[int] = iter(())
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.theirs.sendall(bytes(next(self.sends, 0)))


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    made = Server()
    monkeypatch.setattr(replication_stream, "time", made)
    yield made
    made.ours.close()
    made.theirs.close()


def _wait(server: Server, timeout_s: float) -> None:
    connection: Any = ReplicationConnection.__new__(ReplicationConnection)
    connection._pg = SimpleNamespace(socket=server.ours.fileno())
    connection._queued = array.array("i", [0])
    connection._poll = select.poll()
    connection._poll.register(server.ours, select.POLLIN)
    connection.wait(timeout_s)


def test_what_comes_alone_waits_a_millisecond(server: Server) -> None:
    """The server would wake us for each message else."""
    server.theirs.sendall(b"w")
    _wait(server, 10)
    assert server.slept == [0.001]


@pytest.mark.parametrize(("each", "slept"), [(16 * 1024 - 2, 1), (16 * 1024, 8), (17_000, 8)])
def test_while_much_comes_more_is_waited_for(server: Server, each: int, slept: int) -> None:
    """Up to eight milliseconds."""
    server.theirs.sendall(b"w")
    server.sends = iter([each] * 8)
    _wait(server, 10)
    assert server.slept == [0.001] * slept


def test_it_is_read_as_soon_as_less_comes(server: Server) -> None:
    """In the millisecond after."""
    server.theirs.sendall(b"w")
    server.sends = iter([20_000, 20_000, 500, 20_000])
    _wait(server, 10)
    assert server.slept == [0.001] * 3


def test_nothing_is_waited_for_where_nothing_comes(server: Server) -> None:
    """Longer than was asked for."""
    _wait(server, 0.01)
    assert server.slept == []


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("XX000", "invalid memory alloc request size 1200000003"),  # one value
        ("54000", "string buffer exceeds maximum allowed length (1073741823 bytes)"),  # all of them
        ("54000", "out of memory"),  # the same, up to PostgreSQL 17
    ],
)
def test_a_row_that_is_too_long_to_be_sent(code: str, reason: str) -> None:
    """The log has it whatever becomes of it: no trying again helps, and behind the gap it must be shorter."""
    reading = of_sqlstate(code, reason, "reading table s.t")
    assert type(reading) is OperatorError
    result: Any = SimpleNamespace(error_field=lambda _: code.encode())
    following = replication_stream._unreadable(of_sqlstate(code, reason, "following the log"), result)
    assert type(following) is (UnreadableError if code == "XX000" else GapError)  # which may have another cause
    for said in (reading, following):
        assert "longer as text" in said.message
        assert "octet_length" in str(said.hint)
    assert "--after-gap" in str(following.hint)
    assert ("newest minor release" in str(following.hint)) is (code == "XX000")


@pytest.mark.parametrize("code", ["22P05", "22021"])
def test_a_text_that_the_server_cannot_write(code: str) -> None:
    """As above: its row can be repaired, the log keeps it, and to leave out its table does not keep it from coming."""
    result: Any = SimpleNamespace(error_field=lambda _: code.encode())
    following = replication_stream._unreadable(of_sqlstate(code, "quotes the bytes", "following the log"), result)
    assert type(following) is GapError
    assert "cannot send its own log" in following.message
    assert "quotes" not in str(following)
    assert "leave the table out" not in str(following.hint)
    assert "--after-gap" in str(following.hint)


def test_a_limit_of_the_server_does_not_pass() -> None:
    """It is no outage that ends by itself: where other tables are read meanwhile, it would be tried again for ever."""
    found = of_sqlstate("53400", 'temporary file size exceeds "temp_file_limit" (1024kB)', "reading table s.t")
    assert type(found) is OperatorError
    assert "temp_file_limit = -1" in str(found.hint)


def test_a_server_without_memory_is_tried_again() -> None:
    """Its own memory comes back."""
    assert isinstance(of_sqlstate("53200", "out of memory", "reading table s.t"), RetryableError)
