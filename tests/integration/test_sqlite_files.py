"""SQLite by triggers with no server at all: into a file by the command line, and into a Python program."""

from __future__ import annotations

import json
import os
import random
import threading
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import cdc
from cdc.model.errors import OperatorError
from tests.conftest import FULL
from tests.integration import in_process
from tests.integration import trigger_laws as laws
from tests.integration.sqlite_shop import ORDERS, Shop

KILLS = 12 if FULL else 3


def test_a_pipeline_without_a_server(tmp_path: Path) -> None:
    """A file of SQLite into a file of JSON lines, by the command line: nothing else runs."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders (status) VALUES ('new')")
    out, file = tmp_path / "changes.jsonl", tmp_path / "connector.yaml"
    file.write_text(
        json.dumps(
            {
                "name": "shop",
                "source": {"type": "triggers", "url": f"sqlite:///{shop.path}", "tables": ["main.orders"]},
                "sink": {"type": "jsonl", "path": str(out)},
            }
        )
    )
    for script in ("", "UPDATE orders SET status = 'paid'; INSERT INTO orders (status) VALUES ('late')"):
        shop.do(script)
        done = in_process.cdc(["run", str(file), "--until-caught-up"], {**os.environ})
        assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in out.read_bytes().splitlines()]
    assert [(event["op"], event["after"]["status"]) for event in events] == [("r", "new"), ("u", "paid"), ("c", "late")]


def test_the_library_follows_a_file(tmp_path: Path) -> None:
    """Without Kafka: `cdc.follow`, which makes nothing unless it is asked to."""
    shop = Shop(tmp_path, ORDERS, "INSERT INTO orders (status) VALUES ('new')")
    with pytest.raises(OperatorError, match=r"."), cdc.follow(f"sqlite:///{shop.path}", tables=["main.orders"],
                                                              position=tmp_path / "orders.pos") as changes:  # fmt: skip
        next(changes)
    assert shop.select("SELECT count(*) FROM sqlite_schema WHERE name LIKE 'cdc%'") == [(0,)]
    told = []
    for script in ("", "UPDATE orders SET status = 'paid'"):
        shop.do(script)
        with cdc.follow(f"sqlite:///{shop.path}", tables=["main.orders"], position=tmp_path / "orders.pos",
                        create=True, until_caught_up=True) as changes:  # fmt: skip
            for transaction in changes:
                told += [(change.op, change.after["status"]) for change in transaction if change.after]
                transaction.done()
    assert told == [("r", "new"), ("u", "paid")]


def test_killed_in_the_middle_while_others_write(tmp_path: Path) -> None:
    """A process, and writers in several threads: each change is in the file once, and all of them are."""
    shop = Shop(tmp_path, ORDERS, *(f"INSERT INTO orders (status, n) VALUES ('{n}', 0)" for n in range(50)))

    def write(seed: int, over: threading.Event) -> None:
        at = random.Random(seed)
        with closing(shop.connect()) as connection:
            connection.execute("PRAGMA busy_timeout = 60000")
            connection.execute("PRAGMA synchronous = OFF")
            while not over.wait(0.002):
                connection.execute("BEGIN IMMEDIATE")
                for _ in range(at.randint(1, 4)):
                    key = at.randint(1, 60)
                    connection.execute(
                        at.choice(
                            [
                                "UPDATE orders SET n = n + 1 WHERE id = ?",
                                "INSERT OR REPLACE INTO orders VALUES (?, 'new', 0)",
                                "DELETE FROM orders WHERE id = ?",
                                "UPDATE OR IGNORE orders SET id = id + 1 WHERE id = ?",
                            ]
                        ),
                        (key,),
                    )
                connection.execute(at.choice(["COMMIT", "COMMIT", "ROLLBACK"]))

    run = laws.FileRun(shop, tmp_path, ["main.orders"])
    with laws.writing(*(partial(write, seed) for seed in range(2))):
        for kills in range(KILLS):
            run.killed(10_000 * kills)
    run.until_caught_up()
    assert run.folded() == {"orders": shop.rows()}
