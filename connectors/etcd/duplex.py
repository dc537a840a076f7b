"""One request of the JSON gateway that is written on while its answer comes: how a watch is asked how far it has got.

The gateway reads messages from the request's body until that ends, and answers meanwhile; HTTP/1.1 has nothing against
it. Go's server reads what is left of a body before it begins to answer, unless more is left than it cares to read
(256 kB): therefore a length is declared that is never reached. It looks at what is left between two reads of the body,
and so is given line breaks, which mean nothing in JSON, until the answer has begun. A server that does otherwise, or a
proxy that keeps requests back, never begins to answer: that is an error here, and nothing is missed.

etcd's other way of streaming by JSON, a WebSocket, knows no login: it passes tokens on as ``Bearer``, which no etcd
takes. gRPC itself needs HTTP/2.
"""

from __future__ import annotations

import socket
import time
from contextlib import suppress
from typing import Any, Final

import orjson

from cdc.model.errors import CdcError, OperatorError, ProtocolError
from connectors.etcd.address import Endpoint
from connectors.etcd.gateway import TIMEOUT_S, Gateway, refusal, unreachable

_ENDLESS: Final = 1 << 62
_NUDGE_S: Final = 0.01
_AT_ONCE: Final = 1 << 18
_LONGEST_HEAD: Final = 1 << 16
_OK: Final = 200


class Duplex:
    """Sends messages and receives answers; for one thread."""

    def __init__(self, gateway: Gateway, path: str) -> None:
        """Begin the request at the endpoint that has answered last. Raises RetryableError, OperatorError."""
        self.endpoint: Endpoint = gateway.endpoint
        self._user = gateway.address.user
        token = gateway.token()
        self._socket = gateway.connect(self.endpoint)
        self._chunks = Chunks()
        self._head: bytearray | None = bytearray()
        self._begun_s = time.monotonic()
        login = f"Authorization: {token}\r\n" if token else ""
        self._write(
            f"POST {path} HTTP/1.1\r\nHost: {self.endpoint}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {_ENDLESS}\r\n{login}\r\n".encode()
        )

    def send(self, message: dict[str, Any]) -> None:
        """Send a message. Raises RetryableError."""
        self._write(orjson.dumps(message) + b"\n")

    def receive(self, wait_s: float) -> list[dict[str, Any]]:
        """Return the answers that come within a time, as soon as there are some. Raises what a refusal means."""
        until_s = time.monotonic() + wait_s
        while True:
            left_s = until_s - time.monotonic()
            if self._head is not None:
                self._nudge()
                left_s = min(left_s, _NUDGE_S)
            data = self._read(max(left_s, 0.001))
            if data:
                if self._head is not None:
                    data = self._after_head(data)
                if found := [self._answer(line) for line in self._chunks.feed(data)]:
                    return found
            if time.monotonic() >= until_s:
                return []

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _nudge(self) -> None:
        if time.monotonic() - self._begun_s > TIMEOUT_S:
            raise OperatorError(
                f"watching: etcd at {self.endpoint} does not begin to answer",
                hint="name the members themselves in source.url: a proxy in between must not keep requests back",
            )
        self._write(b"\n")

    def _after_head(self, data: bytes) -> bytes:
        """Take the answer's head off; return what is behind it."""
        head = self._head = (self._head or bytearray()) + data
        end = head.find(b"\r\n\r\n")
        if end < 0:
            if len(head) > _LONGEST_HEAD:
                raise ProtocolError(0, "an answer's head without an end")
            return b""
        words = bytes(head[:end]).split(None, 2)
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        if status != _OK or b"transfer-encoding: chunked" not in bytes(head[:end]).lower():
            body = bytes(head[end:])
            found = orjson.loads(body[body.find(b"{") : body.rfind(b"}") + 1] or b"{}") if b"{" in body else {}
            raise self._refused(found, f"it answers {status}")
        self._head = None
        return bytes(head[end + 4 :])

    def _answer(self, line: bytes) -> dict[str, Any]:
        try:
            answer = orjson.loads(line)
        except ValueError as exc:
            raise ProtocolError(0, "an answer that is no JSON") from exc
        if "result" not in answer:
            raise self._refused(answer, "it ends the watch")
        found: dict[str, Any] = answer["result"]
        return found

    def _refused(self, answer: dict[str, Any], instead: str) -> CdcError:
        error = answer.get("error", answer)
        of = error if isinstance(error, dict) else {**answer, "message": error}
        return refusal({"message": instead, "code": 14, **of}, "watching", self.endpoint, self._user)

    def _read(self, wait_s: float) -> bytes:
        try:
            self._socket.settimeout(wait_s)
            data = self._socket.recv(_AT_ONCE)
        except TimeoutError:
            return b""
        except OSError as exc:
            raise unreachable(exc, self.endpoint, "watching") from exc
        if not data:
            raise unreachable(ConnectionResetError(0, "the connection was closed"), self.endpoint, "watching")
        return data

    def _write(self, data: bytes) -> None:
        try:
            self._socket.settimeout(TIMEOUT_S)
            self._socket.sendall(data)
        except OSError as exc:
            raise unreachable(exc, self.endpoint, "watching") from exc


class Chunks:
    """Takes the lines out of a body in chunks, however it was cut."""

    def __init__(self) -> None:
        self._raw = bytearray()
        self._line: list[bytes] = []
        self._left = 0
        """How much of the current chunk, with the line break behind it, has not come yet; 0: its size comes next."""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the lines that end in these bytes. Raises ProtocolError."""
        self._raw += data
        lines: list[bytes] = []
        while self._raw:
            if not self._left:
                end = self._raw.find(b"\r\n")
                if end < 0:
                    break
                try:
                    size = int(bytes(self._raw[:end]).partition(b";")[0], 16)
                except ValueError as exc:
                    raise ProtocolError(0, "a chunk without its size") from exc
                del self._raw[: end + 2]
                self._left = size + 2
            part = bytes(self._raw[: self._left])
            del self._raw[: self._left]
            self._left -= len(part)
            lines += self._take(part if self._left > 1 else part[: len(part) - 2 + self._left])
        return lines

    def _take(self, part: bytes) -> list[bytes]:
        *whole, rest = part.split(b"\n")
        lines = []
        for each in whole:
            lines.append(b"".join([*self._line, each]))
            self._line = []
        if rest:
            self._line.append(rest)
        return [line for line in lines if line]
