"""Copies a table into SQLite exactly once, straight from the database's log: no Kafka, no Spark.

    python examples/copy_to_sqlite.py postgresql://user:password@host:5432/database public.orders copy.db [--once]

Publication and slot (`cdc_copy`) are made at the first start. Stop it, kill it, start it again: it goes on where it
was.
The rows are kept as JSON, with the position of the last transaction in the same transaction of SQLite.
"""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import cdc


def copy(url: str, table: str, path: str, *, once: bool = False) -> None:
    """Follow the table."""
    with closing(sqlite3.connect(path, isolation_level=None)) as store:
        store.execute("CREATE TABLE IF NOT EXISTS rows (key TEXT PRIMARY KEY, value TEXT)")
        store.execute("CREATE TABLE IF NOT EXISTS position (at TEXT)")
        with cdc.follow(
            url, tables=[table], position=f"{path}.pos", name="copy", create=True, until_caught_up=once
        ) as following:
            for transaction in following:
                take(store, transaction)
                transaction.done()


def take(store: sqlite3.Connection, transaction: cdc.Transaction) -> None:
    """Take a transaction whole, unless it is taken already."""
    (at,) = store.execute("SELECT max(at) FROM position").fetchone()
    if transaction.id is not None and at is not None and transaction.position <= at:
        return  # it was taken, and `done` was not reached
    store.execute("BEGIN")
    for change in transaction:
        key = json.dumps(change.key, default=str)
        if change.op == "t":
            store.execute("DELETE FROM rows")
        elif change.after is None:
            store.execute("DELETE FROM rows WHERE key = ?", (key,))
        else:
            row = {name: value for name, value in change.after.items() if value is not cdc.UNCHANGED}
            if len(row) < len(change.after):
                was = store.execute("SELECT value FROM rows WHERE key = ?", (key,)).fetchone()
                row = {**json.loads(was[0]), **row} if was else row
            store.execute("REPLACE INTO rows VALUES (?, ?)", (key, json.dumps(row, default=str)))
    if transaction.id is not None:  # of rows that are read the positions are alike, and they replace themselves
        store.execute("DELETE FROM position")
        store.execute("INSERT INTO position VALUES (?)", (transaction.position,))
    store.execute("COMMIT")


if __name__ == "__main__":
    copy(*sys.argv[1:4], once="--once" in sys.argv)
