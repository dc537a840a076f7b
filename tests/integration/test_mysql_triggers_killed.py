"""MySQL and MariaDB by triggers into a file, by a process that is killed again and again while others write."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pymysql
import pytest

from tests.conftest import FULL, MySQLDatabase
from tests.integration import trigger_laws as laws
from tests.integration.mysql_shop import ORDERS, MysqlShop

KILLS = 12 if FULL else 3
WRITERS = 3
STATEMENTS = (
    "UPDATE orders SET n = n + 1 WHERE id = {0}",
    "INSERT INTO orders VALUES ({0}, 'new', 0) ON DUPLICATE KEY UPDATE status = 'again'",
    "REPLACE INTO orders VALUES ({0}, 'replaced', 1)",
    "DELETE FROM orders WHERE id = {0}",
    "UPDATE orders SET id = id + 1000 WHERE id = {0}",
    "UPDATE orders SET id = id - 1000 WHERE id = {0} + 1000",
    "SELECT SLEEP(0.01 * ({0} % 3))",
)
SOAK_S = float(os.environ.get("CDC_TRIGGERS_SOAK_S", "0"))
"""For a soak: how long to write and kill, at least."""
SEED = int(os.environ.get("CDC_TRIGGERS_SEED", "1"))


def write(shop: MysqlShop, seed: int, over: threading.Event, done: dict[int, int]) -> None:
    """Transactions that cross those of others, each with a mark of its own; what fails is rolled back."""
    at = random.Random(seed)
    with closing(shop.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SET innodb_lock_wait_timeout = 1")
        while not over.wait(0.002):
            mark = seed % 10 * 10_000_000 + len(done)
            with suppress(pymysql.Error):
                connection.begin()
                cursor.execute(f"INSERT INTO marks VALUES ({mark}, 0)")
                for _ in range(at.randint(1, 5)):
                    cursor.execute(at.choice(STATEMENTS).format(at.randint(1, 60)))
                cursor.execute(f"UPDATE marks SET n = 1 WHERE id = {mark}")
                if at.random() < 0.7:
                    connection.commit()
                    done[mark] = 1
                    continue
            connection.rollback()
            done[mark] = 0


@pytest.mark.timeout(600)
def test_killed_in_the_middle_while_others_write(mysql_database: MySQLDatabase, tmp_path: Path) -> None:
    """Each change is in the file once, and all of them are; in an order in which the fold is the table.

    No transaction is divided: its first and its last change are of one transaction of events.
    """
    shop = MysqlShop(mysql_database, ORDERS, "CREATE TABLE marks (id int PRIMARY KEY, n int)")
    shop.do("INSERT INTO orders VALUES " + ", ".join(f"({n}, 'old', 0)" for n in range(1, 51)))
    run = laws.FileRun(shop, tmp_path, [f"{shop.schema}.{name}" for name in ("orders", "marks")])
    done = [dict[int, int]() for _ in range(WRITERS)]
    run.until_caught_up()
    kills, until_s = 0, time.monotonic() + SOAK_S
    with laws.writing(*(partial(write, shop, SEED * 10 + n, done=done[n]) for n in range(WRITERS))):
        while kills < KILLS or time.monotonic() < until_s:
            run.killed(10_000 * (kills % 4))
            kills += 1
    run.until_caught_up()
    folded, whole = run.folded(), dict[int, list[str]]()
    for event in run.events():
        if event["source"]["table"] == "marks" and event["transaction"] is not None:
            whole.setdefault(event["after"]["id"], []).append(event["transaction"]["id"])
    assert folded == {table: shop.rows(f"SELECT * FROM {table} ORDER BY id") for table in folded}
    committed = {mark for each in done for mark, kept in each.items() if kept}
    assert committed == whole.keys()
    assert all(len(told) == 2 and len(set(told)) == 1 for told in whole.values())
    print(f"{kills} kills, {len(committed)} transactions: 0 lost, 0 doubled, 0 torn")
