"""MySQL and MariaDB servers of a test's own: for what changes a whole server, or needs two of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cdc.dev.servers.process import Server
from cdc.model.errors import CdcError
from tests.conftest import MySQLDatabase, unavailable
from tests.servers.mysql_data import made, prepare


class OwnServer:
    """One server and its database `dev`; `options` are the server's, without their dashes."""

    def __init__(self, kind: str, folder: Path, **options: str) -> None:
        self.kind = kind
        told = {name.replace("_", "-"): value for name, value in options.items()}
        self.server = Server(kind, folder, functools.partial(prepare, kind, options=told))

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
    """Started here, gone at the end."""
    with own_servers(OwnServer(kind, folder, **options)) as (own,):
        yield own


@contextlib.contextmanager
def own_servers(*servers: OwnServer) -> Iterator[tuple[OwnServer, ...]]:
    """Started all at once. At the end they are killed, as nobody needs their data."""
    for kind in {server.kind for server in servers}:  # one after the other: each is made once
        try:
            made(kind)
        except CdcError as exc:
            unavailable(kind, str(exc))
    try:
        with ThreadPoolExecutor(len(servers)) as pool:
            for _ in pool.map(OwnServer.start, servers):
                pass
        yield servers
    finally:
        for server in servers:
            server.server.kill()
