"""Ends what a connection waits for, from another thread, and does not wait for a server that is gone."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Final

import psycopg2
import psycopg2.extensions

_ANSWER_S: Final = 2.0
_SSL_REQUEST: Final = struct.pack("!ii", 8, 80877103)
"""Each server answers it at once, by one byte: https://www.postgresql.org/docs/current/protocol-flow.html"""


def cancel(connection: psycopg2.extensions.connection) -> None:
    """Have the server end what runs on a connection; where it does not answer, cut the connection. Raises nothing.

    The driver asks on a connection of its own, without a limit of time, and lets no other thread run meanwhile: at a
    host that is gone without a word the whole process would stand still for minutes. So it is asked for a sign first.
    """
    try:
        with socket.socket(fileno=os.dup(connection.fileno())) as there:
            if not _answers(there.family, there.getpeername()):
                there.shutdown(socket.SHUT_RDWR)
                return
    except (OSError, psycopg2.Error):  # the connection is gone already
        return
    with contextlib.suppress(psycopg2.Error, SystemError):
        connection.cancel()


def _answers(family: int, address: object) -> bool:
    with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_STREAM) as asked:
        asked.settimeout(_ANSWER_S)
        asked.connect(address)  # type: ignore[arg-type]  # what `getpeername` gives
        asked.sendall(_SSL_REQUEST)
        return bool(asked.recv(1))
    return False
