"""MySQL and MariaDB by triggers into a file, by a process that is killed again and again while others write."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
import pytest

from tests.conftest import FULL, MySQLDatabase
from tests.integration import in_process
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
    out, file = tmp_path / "changes.jsonl", tmp_path / "connector.yaml"
    tables = [f"{shop.schema}.{name}" for name in ("orders", "marks")]
    source = {"type": "triggers", "url": mysql_database.url, "tables": tables}
    file.write_text(json.dumps({"name": "c", "source": source, "sink": {"type": "jsonl", "path": str(out)}}))
    over, done = threading.Event(), [dict[int, int]() for _ in range(WRITERS)]
    writers = [threading.Thread(target=write, args=(shop, SEED * 10 + n, over, done[n])) for n in range(WRITERS)]
    words = [sys.executable, "-m", "cdc", "run", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    in_process.cdc(["run", str(file), "--until-caught-up"], {**os.environ})
    for writer in writers:
        writer.start()
    kills, until_s = 0, time.monotonic() + SOAK_S
    try:
        while kills < KILLS or time.monotonic() < until_s:
            running = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
            size = out.stat().st_size
            while running.poll() is None and out.stat().st_size <= size + 10_000 * (kills % 4):
                over.wait(0.01)
            running.kill()
            running.wait()
            kills += 1
    finally:
        over.set()
        for writer in writers:
            writer.join()
    end = in_process.cdc(["run", str(file), "--until-caught-up"], {**os.environ})
    assert end.returncode == 0, end.stderr
    rows: dict[str, dict[int, Any]] = {"orders": {}, "marks": {}}
    seen, whole = set[tuple[str, str, str]](), dict[int, list[str]]()
    for event in map(json.loads, out.read_bytes().splitlines()):
        table = event["source"]["table"]
        if event["transaction"] is not None:
            at = (table, event["source"]["change"], event["op"])  # a key change is two
            assert at not in seen
            seen.add(at)
            if table == "marks":
                whole.setdefault(event["after"]["id"], []).append(event["transaction"]["id"])
        for image in ("before", "after"):
            if event[image] is not None:
                rows[table].pop(event[image]["id"], None)
        if event["after"] is not None:
            rows[table][event["after"]["id"]] = event["after"]
    for table, found in rows.items():
        assert [found[key] for key in sorted(found)] == shop.rows(f"SELECT * FROM {table} ORDER BY id")
    committed = {mark for each in done for mark, kept in each.items() if kept}
    assert committed == whole.keys()
    assert all(len(told) == 2 and len(set(told)) == 1 for told in whole.values())
    assert len(seen) > 50
    print(f"{kills} kills, {len(committed)} transactions, {len(seen)} events: 0 lost, 0 doubled, 0 torn")
