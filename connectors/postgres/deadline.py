"""Ends waiting on an SQL connection whose other side is gone without a word."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator

import psycopg2.extensions


class Deadline:
    """Watches one connection. Its thread outlives what it waited for, and then watches over what is done next.

    The kernel's own timers do not notice it where a proxy or a firewall in between keeps acknowledging.
    """

    def __init__(self, connection: psycopg2.extensions.connection, timeout_s: float) -> None:
        self._connection = connection
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._doubled = -1
        """The connection's socket under another number, while an answer is awaited: libpq may close its own."""
        self._until_s = 0.0
        self._watched = False

    @contextlib.contextmanager
    def answered(self) -> Iterator[None]:
        """Cut the connection if what is done inside takes too long; the statement then fails as on a lost one.

        Do not nest it: a connection has one deadline.
        """
        with self._lock:
            self._doubled = os.dup(self._connection.fileno())
            self._until_s = time.monotonic() + self._timeout_s
            if not self._watched:
                threading.Thread(target=self._watch, name="cdc-deadline", daemon=True).start()
                self._watched = True
        try:
            yield
        finally:
            with self._lock:
                os.close(self._doubled)
                self._doubled = -1

    def _watch(self) -> None:
        left_s = self._timeout_s
        while left_s > 0:
            time.sleep(left_s)
            with self._lock:
                left_s = self._until_s - time.monotonic() if self._doubled >= 0 else 0
                if left_s <= 0:
                    self._watched = False
                    self._cut()

    def _cut(self) -> None:
        if self._doubled >= 0:
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(self._doubled)) as cut:
                cut.shutdown(socket.SHUT_RDWR)
