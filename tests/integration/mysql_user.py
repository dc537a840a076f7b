"""The least a connector's user may do on MySQL and MariaDB, as `cdc check` prints it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pymysql

from tests.canary import CANARY


class MysqlUser:
    """May follow the log, ask where it stands, and read one database; made by the owner of `owner_url`."""

    def __init__(self, owner_url: str) -> None:
        parts = urlsplit(owner_url)
        database = parts.path.removeprefix("/")
        self.name = f"cdc_capture_{database}"
        self.url = f"mysql://{self.name}:{CANARY}@{parts.netloc.rpartition('@')[2]}"
        login = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
        statements = (
            f"CREATE USER IF NOT EXISTS '{self.name}'@'%' IDENTIFIED BY '{CANARY}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{self.name}'@'%'",
            f"GRANT SELECT ON `{database}`.* TO '{self.name}'@'%'",
        )
        owner = pymysql.connect(host=parts.hostname, port=parts.port, **login)
        with closing(owner) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def mend(self, file: Path, environment: dict[str, str]) -> None:
        """Nothing more is needed."""
