"""PostgreSQL by triggers into a file, by a process that is killed again and again while others write."""

from __future__ import annotations

import random
import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import psycopg2
import pytest

from tests.conftest import FULL, Database
from tests.integration import trigger_laws as laws
from tests.integration.postgres_shop import ORDERS, PostgresShop

KILLS = 12 if FULL else 3
WRITERS = 3
STATEMENTS = (
    "UPDATE orders SET n = n + 1 WHERE id = %s",
    "INSERT INTO orders VALUES (%s, 'new', 0) ON CONFLICT (id) DO UPDATE SET status = 'again'",
    "DELETE FROM orders WHERE id = %s",
    "UPDATE orders SET id = id + 1000 WHERE id = %s",
    "UPDATE orders SET id = id - 1000 WHERE id = %s + 1000",
    "SELECT pg_sleep(0.01 * (%s %% 3))",
)


def write(shop: PostgresShop, seed: int, over: threading.Event) -> None:
    """Transactions that cross those of others; what fails is rolled back."""
    at = random.Random(seed)
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET lock_timeout = '50ms'; SET synchronous_commit = off")
        connection.autocommit = False
        while not over.wait(0.002):
            with suppress(psycopg2.Error):
                for _ in range(at.randint(1, 5)):
                    cursor.execute(at.choice(STATEMENTS), (at.randint(1, 60),))
                if at.random() < 0.7:
                    connection.commit()
            connection.rollback()


@pytest.mark.timeout(300)
def test_killed_in_the_middle_while_others_write(postgres18: Database, tmp_path: Path) -> None:
    """Each change is in the file once, and all of them are; in an order in which the fold is the table."""
    shop = PostgresShop(postgres18, ORDERS, "INSERT INTO orders SELECT n, 'old', 0 FROM generate_series(1, 50) n")
    run = laws.FileRun(shop, tmp_path, ["public.orders"])
    with laws.writing(*(partial(write, shop, seed) for seed in range(WRITERS))):
        for kills in range(KILLS):
            run.killed(10_000 * kills)
    run.until_caught_up()
    assert run.folded() == {"orders": shop.rows()}
