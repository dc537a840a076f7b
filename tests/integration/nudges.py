"""A log that is never idle: a connector looks at what it has to do as the log moves, and else twice a second.

What is written is a message of a prefix that connectors keep for themselves: no reader of a topic sees any of it. For
tests that do not ask what an idle connector does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Final

import psycopg2
from psycopg2 import extensions

_EVERY_S: Final = 0.04


@contextlib.contextmanager
def nudged(url: str) -> Iterator[None]:
    """Move the log of this database of the owner's inside the block; of PostgreSQL's alone."""
    if url.startswith("mysql:"):
        yield
        return
    # Connected in the caller's thread: libpq reads the environment, which tests change.
    try:
        connection = psycopg2.connect(url)
    except psycopg2.Error:  # a server that is down needs no nudges
        yield
        return
    connection.autocommit = True
    over = threading.Event()
    thread = threading.Thread(target=_nudge, args=(connection, over), name="nudges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        connection.close()


def _nudge(connection: extensions.connection, over: threading.Event) -> None:
    with contextlib.suppress(psycopg2.Error), connection.cursor() as cursor:  # a server that is on its way down
        while not over.wait(_EVERY_S):
            cursor.execute("SELECT pg_logical_emit_message(true, 'cdc.nudge', '')")
