"""A log that is never idle: a connector looks at what it has to do as the log moves, and else twice a second.

What is written is no connector's: on PostgreSQL a message of a prefix that they keep for themselves, on MySQL a row of
another database. No reader of a topic sees any of it. For tests that do not ask what an idle connector does.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg2
import pymysql

_EVERY_S: Final = 0.04
_FAILED: Final = (psycopg2.Error, pymysql.Error, OSError)


@contextlib.contextmanager
def nudged(url: str) -> Iterator[None]:
    """Move the log of this database of the owner's inside the block."""
    # Connected in the caller's thread: libpq reads the environment, which tests change.
    try:
        connection, nudge = _mysql(url) if url.startswith("mysql:") else _postgres(url)
    except _FAILED:  # a server that is down needs no nudges
        yield
        return
    over = threading.Event()
    thread = threading.Thread(target=_nudge, args=(connection, nudge, over), name="nudges", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(*_FAILED):  # it has been cut off
            connection.close()


def _postgres(url: str) -> tuple[Any, str]:
    connection = psycopg2.connect(url)
    connection.autocommit = True
    return connection, "SELECT pg_logical_emit_message(true, 'cdc.nudge', '')"


def _mysql(url: str) -> tuple[Any, str]:
    at = urlsplit(url)
    connection = pymysql.connect(
        host=at.hostname,
        port=at.port or 3306,
        user=unquote(at.username or ""),
        password=unquote(at.password or ""),
        autocommit=True,
        ssl_disabled=True,
    )
    with connection.cursor() as cursor:
        cursor.execute("CREATE DATABASE IF NOT EXISTS nudges")
        cursor.execute("CREATE TABLE IF NOT EXISTS nudges.t (id INT PRIMARY KEY AUTO_INCREMENT)")
    return connection, "INSERT INTO nudges.t VALUES ()"


def _nudge(connection: Any, nudge: str, over: threading.Event) -> None:
    with contextlib.suppress(*_FAILED), connection.cursor() as cursor:  # a server that is on its way down
        while not over.wait(_EVERY_S):
            cursor.execute(nudge)
