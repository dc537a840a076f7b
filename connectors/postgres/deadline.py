"""An end to waiting on an SQL connection whose other side is gone without a word."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import psycopg2.extensions


@contextlib.contextmanager
def answered_within(connection: psycopg2.extensions.connection, timeout_s: float) -> Iterator[None]:
    """Cut the connection if what is done inside takes longer; the statement then fails as on a lost connection.

    The kernel's own timers see nothing where something in between, a proxy or a firewall, keeps acknowledging.
    """
    doubled = socket.socket(fileno=os.dup(connection.fileno()))

    def cut() -> None:
        with contextlib.suppress(OSError):  # closed a moment ago
            doubled.shutdown(socket.SHUT_RDWR)

    timer = threading.Timer(timeout_s, cut)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        doubled.close()
