"""PostgreSQL by triggers into a file, by a process that is killed again and again while others write."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg2
import pytest

from tests.conftest import FULL, Database
from tests.integration import in_process
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
    out, file = tmp_path / "changes.jsonl", tmp_path / "connector.yaml"
    source = {"type": "triggers", "url": postgres18.url, "tables": ["public.orders"]}
    file.write_text(json.dumps({"name": "c", "source": source, "sink": {"type": "jsonl", "path": str(out)}}))
    over = threading.Event()
    writers = [threading.Thread(target=write, args=(shop, seed, over)) for seed in range(WRITERS)]
    for writer in writers:
        writer.start()
    words = [sys.executable, "-m", "cdc", "run", str(file)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    try:
        for kills in range(KILLS):
            running = subprocess.Popen(words, env=environment, stderr=subprocess.DEVNULL)
            size = out.stat().st_size if out.exists() else 0
            while running.poll() is None and (not out.exists() or out.stat().st_size <= size + 10_000 * kills):
                over.wait(0.01)
            running.kill()
            running.wait()
    finally:
        over.set()
        for writer in writers:
            writer.join()
    done = in_process.cdc(["run", str(file), "--until-caught-up"], {**os.environ})
    assert done.returncode == 0, done.stderr
    rows: dict[int, Any] = {}
    seen = set()
    for event in map(json.loads, out.read_bytes().splitlines()):
        if event["transaction"] is not None:
            at = (event["source"]["change"], event["op"])  # a key change is two
            assert at not in seen
            seen.add(at)
        for image in ("before", "after"):
            if event[image] is not None:
                rows.pop(event[image]["id"], None)
        if event["after"] is not None:
            rows[event["after"]["id"]] = event["after"]
    assert [rows[key] for key in sorted(rows)] == shop.rows()
    assert len(seen) > 50
