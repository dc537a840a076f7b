"""A MySQL or MariaDB database, its application, and a connector of it by triggers, into the twin of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pymysql

from cdc.testing import MemoryKafka
from tests.conftest import MySQLDatabase
from tests.integration.sqlite_shop import Shop

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status varchar(20) NOT NULL, n int)"
ROWS = "INSERT INTO orders (id, status) VALUES (1, 'a'), (2, 'b'), (3, 'c'), (4, 'd')"
CHANGES = "cdc_c"


class MysqlShop(Shop):
    """As SQLite's, on a server. Its connector's database is taken away before and after."""

    def __init__(self, database: MySQLDatabase, *scripts: str, tables: Sequence[str] = ("orders",)) -> None:
        self.database = database
        self.login = database.url
        self.schema = database.name
        self.kafka = MemoryKafka()
        self.rules = {}
        self.tables = tuple(f"{database.name}.{table}" for table in tables)
        self.do(f"DROP DATABASE IF EXISTS {CHANGES}", *scripts)

    @property
    def url(self) -> str:
        return self.login

    def connect(self) -> Any:
        return self.database.connect()

    def begin(self, connection: Any) -> None:
        connection.begin()

    def do(self, *scripts: str) -> None:
        """Run scripts; a statement ends with a semicolon."""
        self.database.execute(*(part.strip() for script in scripts for part in script.split(";") if part.strip()))

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.rows(statement)

    @property
    def newest(self) -> int:
        """The number of the newest change table."""
        ((number,),) = self.select("SELECT MAX(shape) FROM cdc_c.shapes")
        return int(number)

    def changes(self) -> int:
        """How many rows all change tables have."""
        tables = "SELECT TABLE_NAME FROM information_schema.TABLES WHERE TABLE_SCHEMA = 'cdc_c'"
        named = [name for (name,) in self.select(tables) if name.startswith("changes_")]
        return sum(self.select(f"SELECT COUNT(*) FROM cdc_c.{name}")[0][0] for name in named)

    def rows(self, statement: str = "SELECT * FROM orders ORDER BY id") -> list[dict[str, Any]]:
        """As events have them."""
        with closing(self.connect()) as connection, connection.cursor(pymysql.cursors.DictCursor) as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())
