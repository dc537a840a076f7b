"""A pooler before PostgreSQL, as far as it matters: it keeps parameters of a session's start from the server.

    pooler.py PORT NAME…      prints the port it listens at; the named start-up parameters never reach the server

A process of its own: a client that connects in the same one would hold the interpreter's lock and wait for itself.
https://www.postgresql.org/docs/current/protocol-message-formats.html (StartupMessage)
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

_VERSION = 3
_BEHIND_THE_VERSION = 8


@contextlib.contextmanager
def pooler(port: int, *drops: str) -> Iterator[int]:
    """The port where the server at `port` is reached, but for what is dropped."""
    command = [sys.executable, __file__, str(port), *drops]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def without(startup: bytes, drops: Sequence[bytes]) -> bytes:
    """A StartupMessage without some parameters; any other message as it is."""
    _, version = struct.unpack_from(">ii", startup)
    if version >> 16 != _VERSION:
        return startup
    words = startup[_BEHIND_THE_VERSION:].split(b"\0")[:-2]
    kept = [word for name, value in zip(words[::2], words[1::2], strict=True) if name not in drops
            for word in (name, value)]  # fmt: skip
    rest = b"".join(word + b"\0" for word in kept) + b"\0"
    return struct.pack(">ii", _BEHIND_THE_VERSION + len(rest), version) + rest


def _serve(client: socket.socket, port: int, drops: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError), client, socket.create_connection(("127.0.0.1", port)) as server:
        while True:
            size = client.recv(4, socket.MSG_WAITALL)
            startup = size + client.recv(int.from_bytes(size, "big") - 4, socket.MSG_WAITALL)
            sent = without(startup, drops)
            server.sendall(sent)
            if sent[4:6] == _VERSION.to_bytes(2, "big"):
                break
            client.sendall(server.recv(1))  # whether it speaks TLS
        while True:
            for one in select.select([client, server], [], [])[0]:
                data = one.recv(65536)
                if not data:
                    return
                (server if one is client else client).sendall(data)


def main() -> None:
    port, drops = int(sys.argv[1]), [name.encode() for name in sys.argv[2:]]
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, port, drops), daemon=True).start()


if __name__ == "__main__":
    main()
