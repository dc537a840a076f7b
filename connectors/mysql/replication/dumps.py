"""Opens dump connections: as the connector's own replica, or for a look under an id that is nobody's."""

from __future__ import annotations

import secrets
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Final
from uuid import uuid4

from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError, ProtocolError
from connectors.mysql import session
from connectors.mysql.binlog import events, parser
from connectors.mysql.binlog.positions import FIRST, BinlogPosition
from connectors.mysql.catalog import server
from connectors.mysql.replication.dump_stream import BinlogDump, askable, replica_uuid, unreadable

_HEAD_S: Final = 60.0
"""How long the head of a file may take to come."""
_SERVER_IDS: Final = (1_000_000_000, 1_000_000_000)
"""Where a server_id is taken from that the configuration does not give: from, how many."""


def server_id(config: ConnectorConfig) -> int:
    """Return the configured number, or one made of the connector's name."""
    first, count = _SERVER_IDS
    return config.source.server_id or first + zlib.crc32(f"{config.sink.prefix}/{config.name}".encode()) % count


def duplicates(config: ConnectorConfig, found: server.Server) -> Iterator[OperatorError]:
    """Refuse the server's own number as ours: it would send us nothing that it wrote itself."""
    if str(server_id(config)) == found.variables.get("server_id"):
        yield OperatorError(
            f"duplicate server_id: {server_id(config)} of connector {config.name} is the server's own",
            hint="set source.server_id to a number that no server or replica has",
        )


def follow(config: ConnectorConfig, at: session.Address, found: server.Server) -> BinlogDump:
    """Open a connection that asks for nothing yet."""
    return BinlogDump(
        at, server_id=server_id(config), connector=config.name, uuid=replica_uuid(config), mariadb=found.mariadb
    )


def glance(config: ConnectorConfig, at: session.Address, found: server.Server) -> BinlogDump:
    """Open one for a look, under an id that is nobody's: it ends no other dump, such as a running connector's."""
    nobody = (1 << 31) + secrets.randbelow(1 << 31)
    return BinlogDump(
        at, server_id=nobody, connector=config.name, uuid=str(uuid4()), mariadb=found.mariadb, waits=False
    )


def file_made_at(connect: Callable[[], BinlogDump], position: BinlogPosition) -> int:
    """Return when the file was begun, in seconds since 1970; an event must begin at the position."""
    dump = connect()
    try:
        dump.follow(askable(position))
        deadline = time.monotonic() + _HEAD_S
        while True:
            event = parser.parse(dump.read(max(0.1, deadline - time.monotonic())), None)
            if isinstance(event, events.FormatDescription):
                return event.header.timestamp_s
    except ProtocolError as exc:
        raise unreadable(BinlogPosition(position.file, FIRST), exc) from exc
    finally:
        dump.close()
