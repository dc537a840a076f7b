"""MySQL and MariaDB servers of a test's own: for what changes a whole server, or needs two of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cdc.dev import mariadb, mysql
from cdc.dev.process import Server
from cdc.model.errors import CdcError
from tests.conftest import MySQLDatabase, unavailable

_PREPARE: Final = {"mysql": mysql.prepare, "mariadb": mariadb.prepare}


class OwnServer:
    """One server and its database `dev`; `options` are the server's, without their dashes."""

    def __init__(self, kind: str, folder: Path, **options: str) -> None:
        self.kind = kind
        told = {name.replace("_", "-"): value for name, value in options.items()}
        self.server = Server(kind, folder, functools.partial(_PREPARE[kind], options=told))

    @property
    def database(self) -> MySQLDatabase:
        return MySQLDatabase(self.server.url, "dev")

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2].partition("/")[0])

    def start(self) -> None:
        try:
            self.server.start()
        except CdcError as exc:
            unavailable(self.kind, str(exc))


@contextlib.contextmanager
def own_server(kind: str, folder: Path, **options: str) -> Iterator[OwnServer]:
    """Started here, stopped at the end."""
    own = OwnServer(kind, folder, **options)
    own.start()
    try:
        yield own
    finally:
        own.server.stop()
