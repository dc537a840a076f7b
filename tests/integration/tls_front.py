"""TLS before a PostgreSQL that was built without it: answers SSLRequest as a server does, and passes the rest on.

    tls_front.py CERTIFICATE PORT      prints the port it listens at

Who asks for no TLS is sent away, as by hostssl in pg_hba.conf. A process of its own: a client that connects in the
same one would hold the interpreter's lock and wait for itself.
https://www.postgresql.org/docs/current/protocol-flow.html#PROTOCOL-FLOW-SSL
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

_SSL_REQUEST = struct.pack(">ii", 8, 80877103)


@contextlib.contextmanager
def tls_front(certificate: Path, port: int) -> Iterator[int]:
    """The port where the server at `port` is reached by TLS."""
    command = [sys.executable, __file__, str(certificate), str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()


def _serve(client: socket.socket, context: ssl.SSLContext, port: int) -> None:
    with contextlib.suppress(OSError), client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if client.recv(8, socket.MSG_WAITALL) != _SSL_REQUEST:
            return
        client.sendall(b"S")
        with (
            context.wrap_socket(client, server_side=True) as secure,
            socket.create_connection(("127.0.0.1", port)) as server,
        ):
            server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _pass_on(secure, server)


def _pass_on(secure: ssl.SSLSocket, server: socket.socket) -> None:
    while True:
        waiting = [secure] if secure.pending() else select.select([secure, server], [], [])[0]
        for one in waiting:
            data = one.recv(65536)
            if not data:
                return
            (server if one is secure else secure).sendall(data)


if __name__ == "__main__":
    to_clients = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    to_clients.load_cert_chain(sys.argv[1])
    with socket.create_server(("127.0.0.1", 0)) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            accepted, _ = listener.accept()
            threading.Thread(target=_serve, args=(accepted, to_clients, int(sys.argv[2])), daemon=True).start()
