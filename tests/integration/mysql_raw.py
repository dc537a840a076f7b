"""Raw events of a server's binlog: COM_BINLOG_DUMP spoken by hand, so that nothing but the server is between."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

COM_BINLOG_DUMP = 0x12
NON_BLOCK = 1
SERVER_ID = 424_242


@dataclass(frozen=True)
class Server:
    """A MySQL or MariaDB that takes `url`: mysql://user:password@host:port/database."""

    url: str

    def connect(self, *, database: str | None = None) -> pymysql.Connection[Any]:
        parts = urlsplit(self.url)
        return pymysql.connect(
            host=parts.hostname or "127.0.0.1",
            port=parts.port or 3306,
            user=unquote(parts.username or "root"),
            password=unquote(parts.password or ""),
            database=database,
            charset="utf8mb4",
            autocommit=True,
            use_unicode=False,
            conv={},
            ssl_disabled=True,
        )

    def end(self) -> tuple[str, int]:
        """File and position behind the last event."""
        with self.connect() as connection, connection.cursor() as cursor:
            try:
                cursor.execute("SHOW BINARY LOG STATUS")
            except pymysql.err.Error:
                cursor.execute("SHOW MASTER STATUS")
            row = cursor.fetchone()
            assert row is not None
            return row[0].decode(), int(row[1])

    def events(self, file: str, position: int) -> Iterator[bytes]:
        """Whole events from there to the present end, the artificial ones of the dump's beginning included."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                for name in ("master_binlog_checksum", "source_binlog_checksum"):
                    cursor.execute(f"SET @{name} = @@global.binlog_checksum")
                cursor.execute("SET @mariadb_slave_capability = 4")
            payload = struct.pack("<IHI", position, NON_BLOCK, SERVER_ID) + file.encode()
            connection._execute_command(COM_BINLOG_DUMP, payload)
            while True:
                packet = connection._read_packet()
                if packet.is_eof_packet():
                    break
                data = packet.get_all_data()
                assert data[0] == 0
                yield data[1:]
        finally:
            connection._force_close()
