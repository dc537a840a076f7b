"""Runs the demo's small shop: customers, products, orders, products_on_hand, and a bounded day of business."""

from __future__ import annotations

import datetime as dt
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import psycopg2
import psycopg2.extensions

TABLES: Final = ("public.customers", "public.orders", "public.products", "public.products_on_hand")
KEYS: Final = {
    "public.customers": "id",
    "public.orders": "id",
    "public.products": "id",
    "public.products_on_hand": "product_id",
}

_SCHEMA: Final = """
CREATE TABLE customers (
    id bigint PRIMARY KEY, name text NOT NULL, email varchar(120) NOT NULL, since date NOT NULL, vip boolean NOT NULL);
CREATE TABLE products (
    id bigint PRIMARY KEY, name text NOT NULL, description text, price numeric(10,2) NOT NULL, weight double precision);
CREATE TABLE products_on_hand (
    product_id bigint PRIMARY KEY REFERENCES products, quantity integer NOT NULL);
CREATE TABLE orders (
    id bigint PRIMARY KEY, customer_id bigint NOT NULL REFERENCES customers,
    product_id bigint NOT NULL REFERENCES products,
    quantity integer NOT NULL, status text NOT NULL, total numeric(12,2) NOT NULL, placed_at timestamptz NOT NULL);
"""

_THINGS: Final = ("mug", "teapot", "kettle", "grinder", "bowl", "tray", "jar", "spoon", "cloth", "scale")
_MAKES: Final = ("hand-thrown", "cast-iron", "porcelain", "oak", "linen", "copper", "glass", "bamboo", "steel", "cork")
_NAMES: Final = ("Sally Thomas", "George Bailey", "Edward Walker", "Anne Kretchmar", "Ada Lovelace", "Jürgen Weiß")


@dataclass(frozen=True, slots=True)
class Size:
    """The numbers of rows that the shop begins with."""

    customers: int = 1_000
    products: int = 100
    orders: int = 3_000


class Shop:
    """Does business on one connection to the shop's database."""

    def __init__(self, url: str, *, seed: int = 1) -> None:
        self._connection = psycopg2.connect(url)
        self._random = random.Random(seed)  # noqa: S311 - a workload, not a secret
        self._size = Size()
        self._next_order = self._next_customer = 0
        self.transactions = self.changes = 0

    def close(self) -> None:
        self._connection.close()

    def build(self, size: Size) -> int:
        """Make and fill the tables; give the number of rows."""
        self._size = size
        self._next_order, self._next_customer = 10_001 + size.orders, 1_001 + size.customers
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(_SCHEMA)
            for id_ in range(1_001, 1_001 + size.customers):
                self._customer(cursor, id_)
            for id_ in range(101, 101 + size.products):
                what = f"{self._random.choice(_MAKES)} {self._random.choice(_THINGS)}"
                cursor.execute(
                    "INSERT INTO products VALUES (%s, %s, %s, %s, %s)",
                    (id_, what, f"A {what}, no. {id_}", self._price(), round(self._random.uniform(0.1, 9), 3)),
                )
                cursor.execute("INSERT INTO products_on_hand VALUES (%s, %s)", (id_, self._random.randint(0, 500)))
            for id_ in range(10_001, 10_001 + size.orders):
                self._order(cursor, id_)
        self.changes = 0
        return size.customers + 2 * size.products + size.orders

    def trade(self, transactions: int, *, per_second: float, stopped: Callable[[], bool]) -> None:
        """Run `transactions` of business at a pace, each of one to five changes."""
        begun = time.monotonic()
        for number in range(transactions):
            if stopped():
                return
            time.sleep(max(0.0, begun + number / per_second - time.monotonic()))
            with self._connection, self._connection.cursor() as cursor:
                self._business(cursor)
            self.transactions += 1

    def execute(self, statement: str) -> None:
        """Run one statement and commit."""
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(statement)

    def contents(self, table: str) -> dict[str, dict[str, Any]]:
        """Read all rows of a table as the derived stores' documents have them, by the JSON of their key."""
        with self._connection, self._connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {table}")  # noqa: S608 - one of TABLES
            names = [column.name for column in cursor.description or ()]
            rows = [{n: _document(v) for n, v in zip(names, row, strict=True)} for row in cursor]
        key = KEYS[table]
        return {f'{{"{key}":{row[key]}}}': row for row in rows}

    def _business(self, cursor: psycopg2.extensions.cursor) -> None:
        kind = self._random.random()
        some_order = self._random.randint(10_001, self._next_order - 1)
        if kind < 0.45:  # noqa: PLR2004 - shares of a day's business
            self._order(cursor, self._next_order)
            self._next_order += 1
        elif kind < 0.75:  # noqa: PLR2004
            status = self._random.choice(("paid", "packed", "shipped", "delivered"))
            cursor.execute("UPDATE orders SET status = %s WHERE id = %s", (status, some_order))
            self.changes += cursor.rowcount
        elif kind < 0.85:  # noqa: PLR2004
            cursor.execute("DELETE FROM orders WHERE id = %s", (some_order,))
            self.changes += cursor.rowcount
        elif kind < 0.95:  # noqa: PLR2004
            product = self._random.randint(101, 100 + self._size.products)
            cursor.execute("UPDATE products SET price = %s WHERE id = %s", (self._price(), product))
            cursor.execute(
                "UPDATE products_on_hand SET quantity = quantity + %s WHERE product_id = %s",
                (self._random.randint(1, 50), product),
            )
            self.changes += 2
        else:
            self._customer(cursor, self._next_customer)
            self._next_customer += 1

    def _customer(self, cursor: psycopg2.extensions.cursor, id_: int) -> None:
        name = self._random.choice(_NAMES)
        since = dt.date(2015, 1, 1) + dt.timedelta(days=self._random.randint(0, 4_000))
        cursor.execute(
            "INSERT INTO customers VALUES (%s, %s, %s, %s, %s)",
            (id_, name, f"{name.split()[0].lower()}.{id_}@example.com", since, self._random.random() < 0.1),  # noqa: PLR2004
        )
        self.changes += 1

    def _order(self, cursor: psycopg2.extensions.cursor, id_: int) -> None:
        customer = self._random.randint(1_001, 1_000 + self._size.customers)
        product = self._random.randint(101, 100 + self._size.products)
        quantity = self._random.randint(1, 9)
        cursor.execute(
            "INSERT INTO orders SELECT %s, %s, id, %s, 'new', price * %s, clock_timestamp()"
            " FROM products WHERE id = %s",
            (id_, customer, quantity, quantity, product),
        )
        cursor.execute(
            "UPDATE products_on_hand SET quantity = quantity - %s WHERE product_id = %s", (quantity, product)
        )
        self.changes += 2

    def _price(self) -> Decimal:
        return Decimal(self._random.randint(150, 25_000)) / 100


def _document(value: Any) -> Any:  # noqa: ANN401 - one of the shop's types
    if isinstance(value, Decimal):
        return str(value)
    if isinstance(value, dt.datetime):
        text = value.astimezone(dt.UTC).replace(tzinfo=None).isoformat()
        return (text.rstrip("0").rstrip(".") if "." in text else text) + "Z"
    if isinstance(value, dt.date):
        return value.isoformat()
    return value


@dataclass(frozen=True, slots=True)
class Difference:
    """The differences of two contents, by key."""

    missing: tuple[str, ...]
    extra: tuple[str, ...]
    changed: tuple[str, ...]

    @property
    def count(self) -> int:
        return len(self.missing) + len(self.extra) + len(self.changed)


def difference(wanted: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> Difference:
    """Compare whole rows, column by column."""
    return Difference(
        missing=tuple(sorted(wanted.keys() - found.keys())),
        extra=tuple(sorted(found.keys() - wanted.keys())),
        changed=tuple(sorted(_changed(wanted, found))),
    )


def _changed(wanted: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> Iterator[str]:
    return (key for key in wanted.keys() & found.keys() if wanted[key] != found[key])
