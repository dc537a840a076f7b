"""A statement is ended within seconds, whether or not its server is still there."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any, cast

import pytest

from connectors.postgres import cancelling
from connectors.postgres.cancelling import cancel


class Waiting:
    """A connection to a server, as far as ending what it waits for goes."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port))
        self.cancelled = False

    def fileno(self) -> int:
        return self._socket.fileno()

    def cancel(self) -> None:
        self.cancelled = True

    def is_cut(self) -> bool:
        self._socket.settimeout(0.0)
        try:
            return self._socket.recv(1) == b""
        except BlockingIOError:
            return False

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def server() -> Iterator[socket.socket]:
    """One that takes connections, as the kernel does for a process that has stopped, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def waiting(server: socket.socket) -> Iterator[Waiting]:
    made = Waiting(server.getsockname()[1])
    theirs, _ = server.accept()
    with theirs:
        yield made
    made.close()


def test_a_server_that_answers_is_asked(server: socket.socket, waiting: Waiting) -> None:
    def answer() -> None:
        asked, _ = server.accept()
        with asked:
            assert asked.recv(8) == bytes.fromhex("0000000804d2162f")
            asked.sendall(b"N")

    answering = threading.Thread(target=answer)
    answering.start()
    cancel(cast("Any", waiting))
    answering.join()
    assert (waiting.cancelled, waiting.is_cut()) == (True, False)


@pytest.mark.parametrize("there", [True, False])
def test_one_that_is_gone_is_not_waited_for(
    *, there: bool, server: socket.socket, waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver would wait for it, and no thread of the process would run."""
    monkeypatch.setattr(cancelling, "_ANSWER_S", 0.1)
    if not there:
        server.close()
    cancel(cast("Any", waiting))
    assert (waiting.cancelled, waiting.is_cut()) == (False, True)


def test_a_connection_that_is_closed_is_left_alone(waiting: Waiting) -> None:
    waiting.close()
    cancel(cast("Any", waiting))
    assert not waiting.cancelled
