"""A server on loopback that answers Kafka's requests by a script: also wrongly, in pieces, or not at all."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import closing, suppress
from typing import Any, Final, TypeAlias

from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

from sinks.client.connection import Connection, ConnectionConfig

API_VERSIONS, HANDSHAKE, AUTHENTICATE = 18, 17, 36
VERSIONS: Final = {0: (3, 11), 3: (0, 12), 22: (0, 4), 17: (0, 1), 36: (0, 2), 24: (4, 5)}


class Asked:
    """A request as it came, and ways to answer it."""

    def __init__(self, connection: socket.socket, body: bytes) -> None:
        self.key, self.version, self.correlation_id = struct.unpack_from(">hhi", body)
        self.body = body
        self._connection = connection

    def framed(self, answer: Any, *, correlation_id: int | None = None) -> bytes:
        answer.with_header(self.correlation_id if correlation_id is None else correlation_id)
        return bytes(answer.encode(framed=True, header=True))

    def send(self, answer: Any) -> None:
        self.send_bytes(self.framed(answer))

    def send_bytes(self, answer: bytes) -> None:
        self._connection.sendall(answer)

    def hang_up(self) -> None:
        self._connection.shutdown(socket.SHUT_RDWR)

    def send_each_byte(self, answer: bytes) -> None:
        self._connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for n in range(len(answer)):
            self.send_bytes(answer[n : n + 1])


Script: TypeAlias = Mapping[int, Callable[[Asked], None]]
"""What is done at a request, by its kind; where nothing is said, the connection ends."""


class Broker:
    """One port, behind which every connection follows the script."""

    def __init__(self, script: Script) -> None:
        self._script: Script = {API_VERSIONS: agree, **script}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.asked: list[Asked] = []
        self._connections: list[socket.socket] = []
        self._thread = threading.Thread(target=self._listen, name="broker", daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), closing(connection), connection.makefile("rb") as read:
            while size := read.read(4):
                asked = Asked(connection, read.read(int.from_bytes(size)))
                self.asked.append(asked)
                if asked.key not in self._script:
                    return
                self._script[asked.key](asked)

    def cut(self) -> None:
        """End the connections there are."""
        for connection in self._connections:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)
        self.cut()


def agree(asked: Asked, *, error: int = 0, version: int = 3) -> None:
    """Tell the versions."""
    kind = ApiVersionsResponse.ApiVersion
    feature = ApiVersionsResponse.FinalizedFeatureKey
    keys = [kind(api_key=key, min_version=least, max_version=most) for key, (least, most) in VERSIONS.items()]
    features = [feature(name="transaction.version", max_version_level=2, min_version_level=0)]
    told = {"finalized_features": features} if version else {}
    asked.send(ApiVersionsResponse(version=version, error_code=error, api_keys=keys, **told))


def metadata(asked: Asked) -> Any:
    """An answer about nothing."""
    return MetadataResponse(version=asked.version, brokers=[], topics=[], cluster_id="c" * 9)


def connection_config(options: Mapping[str, object] | None = None, *, answer_s: float = 5.0) -> ConnectionConfig:
    return ConnectionConfig(client_id="cdc", answer_s=answer_s, options=options or {})


class Connecting:
    """Makes connections, each to a broker of its own that follows a script; and ends them."""

    def __init__(self) -> None:
        self._opened: list[Broker | Connection] = []

    def __call__(
        self, script: Script, options: Mapping[str, object] | None = None, *, answer_s: float = 5.0
    ) -> tuple[Connection, Broker]:
        broker = Broker(script)
        self._opened.append(broker)
        connection = Connection("127.0.0.1", broker.port, connection_config(options, answer_s=answer_s))
        self._opened.append(connection)
        return connection, broker

    def close(self) -> None:
        for each in reversed(self._opened):
            each.close()
