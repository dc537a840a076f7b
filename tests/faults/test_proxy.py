"""The proxy, between a client and a server of the test's own."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

import pytest

from tests.faults.proxy import END_TXN, PRODUCE, Proxy, Trap

SOON_S = 0.3


class Echo:
    """A server that answers each request with its correlation id."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.heard: list[int] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            while head := connection.recv(4, socket.MSG_WAITALL):
                body = connection.recv(int.from_bytes(head, "big"), socket.MSG_WAITALL)
                self.heard.append(struct.unpack_from(">h", body)[0])
                connection.sendall(struct.pack(">i", 4) + body[4:8])

    def close(self) -> None:
        self._listener.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    server = Echo()
    yield server
    server.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(kafka=True) as made:
        made.lead_to(echo.port)
        yield made


class Client:
    """Asks and waits."""

    def __init__(self, proxy: Proxy) -> None:
        self._socket = socket.create_connection(("127.0.0.1", proxy.port), timeout=10)
        self._correlation = 0

    def ask(self, api_key: int) -> None:
        self._correlation += 1
        self._socket.sendall(struct.pack(">ihhi", 8, api_key, 0, self._correlation))

    def answered(self, within_s: float = 10) -> bool:
        """Whether the answer comes in time; raises ConnectionError if the connection ends instead."""
        self._socket.settimeout(within_s)
        try:
            answer = self._socket.recv(8, socket.MSG_WAITALL)
        except TimeoutError:
            return False
        if not answer:
            raise ConnectionResetError
        return answer == struct.pack(">ii", 4, self._correlation)

    def asked(self) -> None:
        """Ask, and wait for the answer."""
        self.ask(PRODUCE)
        assert self.answered()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()


def test_passes(proxy: Proxy, echo: Echo) -> None:
    """Left alone it changes nothing."""
    with Client(proxy) as client:
        for api_key in (PRODUCE, END_TXN):
            client.ask(api_key)
            assert client.answered()
    assert echo.heard == [PRODUCE, END_TXN]


def test_cuts_and_refuses(proxy: Proxy) -> None:
    """Connections end; new ones are reset while it refuses, and taken afterwards."""
    with Client(proxy) as client:
        client.ask(PRODUCE)
        assert client.answered()
        proxy.refuse(True)
        assert proxy.cut() == 1
        with pytest.raises(ConnectionError):
            client.answered()
    with Client(proxy) as client, pytest.raises(ConnectionError):
        client.asked()
    proxy.heal()
    with Client(proxy) as client:
        client.ask(PRODUCE)
        assert client.answered()


def test_freezes(proxy: Proxy, echo: Echo) -> None:
    """Nothing passes and nothing is closed, until it thaws."""
    with Client(proxy) as client:
        client.ask(PRODUCE)
        assert client.answered()
        proxy.freeze()
        client.ask(END_TXN)
        assert not client.answered(SOON_S)
        assert echo.heard == [PRODUCE]
        proxy.thaw()
        assert client.answered()


def test_holds_a_request_of_its_kind(proxy: Proxy, echo: Echo) -> None:
    """The trap is for one kind, once; what was held arrives, also when its sender has gone."""
    trap = proxy.arm(Trap(END_TXN, "request", hold=True))
    with Client(proxy) as client:
        client.ask(PRODUCE)
        assert client.answered()
        client.ask(END_TXN)
        assert trap.sprung.wait(60)
        assert not client.answered(SOON_S)
    assert echo.heard == [PRODUCE]
    trap.release()
    with Client(proxy) as client:
        client.ask(END_TXN)
        assert client.answered()
    for _ in range(100):
        if len(echo.heard) == 3:
            break
        threading.Event().wait(0.1)
    assert echo.heard == [PRODUCE, END_TXN, END_TXN]


@pytest.mark.parametrize(("side", "heard"), [("request", []), ("response", [END_TXN])])
def test_loses(side: str, heard: list[int], proxy: Proxy, echo: Echo) -> None:
    """A lost request was not heard, the request of a lost response was; either way the connection is gone."""
    proxy.arm(Trap(END_TXN, "request" if side == "request" else "response", lose=True))
    with Client(proxy) as client:
        client.ask(END_TXN)
        with pytest.raises(ConnectionError):
            client.answered()
    assert echo.heard == heard
