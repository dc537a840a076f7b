"""A PostgreSQL database, its application, and a connector of it by triggers, into the twin of a broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg2.extensions

from cdc.testing import MemoryKafka
from tests.conftest import Database
from tests.integration.sqlite_shop import Shop

ORDERS = "CREATE TABLE orders (id int PRIMARY KEY, status text NOT NULL, n int)"


class PostgresShop(Shop):
    """As SQLite's, on a server."""

    schema = "public"

    def __init__(self, database: Database, *scripts: str, tables: Sequence[str] = ("public.orders",)) -> None:
        self.database = database
        self.login = database.url
        self.kafka = MemoryKafka()
        self.rules = {}
        self.tables = tuple(tables)
        self.do(*scripts)

    @property
    def url(self) -> str:
        return self.login

    def connect(self) -> psycopg2.extensions.connection:
        return self.database.connect()

    def begin(self, connection: psycopg2.extensions.connection) -> None:
        connection.autocommit = False

    def do(self, *scripts: str) -> None:
        self.database.execute(*scripts)

    def select(self, statement: str) -> list[tuple[Any, ...]]:
        return self.database.rows(statement)

    def rows(self, statement: str = "SELECT * FROM orders ORDER BY id") -> list[dict[str, Any]]:
        """As events have them."""
        connection = self.connect()
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                names = [of[0] for of in cursor.description or ()]
                return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
        finally:
            connection.close()
