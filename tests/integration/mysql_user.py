"""The least a connector's user may do on MySQL and MariaDB, as `cdc check` prints it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pymysql

from cdc.config.config import load_connector
from connectors.mysql.check import check
from tests.canary import CANARY
from tests.integration.in_process import environ


class MysqlUser:
    """May follow the log, ask where it stands, and read one database; made by the owner of `owner_url`."""

    def __init__(self, owner_url: str) -> None:
        parts = urlsplit(owner_url)
        database = parts.path.removeprefix("/")
        self.name = f"cdc_capture_{database}"
        self.url = f"mysql://{self.name}:{CANARY}@{parts.netloc.rpartition('@')[2]}"
        self._owner: dict[str, Any] = {
            "host": parts.hostname,
            "port": parts.port,
            "user": unquote(parts.username or ""),
            "password": unquote(parts.password or ""),
            "ssl_disabled": True,
        }
        self._execute(
            f"CREATE USER IF NOT EXISTS '{self.name}'@'%' IDENTIFIED BY '{CANARY}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{self.name}'@'%'",
            f"GRANT SELECT ON `{database}`.* TO '{self.name}'@'%'",
        )

    def _execute(self, *statements: str) -> None:
        with closing(pymysql.connect(**self._owner)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def put_right(self, file: Path, environment: dict[str, str]) -> None:
        """Run as the owner what `cdc check` prints for a server without GTIDs."""
        with environ(environment):
            found = check(load_connector(file), None)
        self._execute(*(f.fix for f in found.findings if f.fix and f.fix.startswith("GRANT LOCK TABLES")))
