"""A table of MySQL being written while a connector follows it, and what its topic must be in the end."""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import ER

from tests.conftest import MySQLDatabase
from tests.integration.connector import Connector
from tests.integration.running import ordered

SEQUENCE = "(WITH RECURSIVE s(x) AS (SELECT 0 UNION ALL SELECT x + 1 FROM s WHERE x < {last}) SELECT x FROM s) s"


def filled(database: MySQLDatabase, table: str, *, keys: int, key: str = "id INT") -> None:
    """Make the table a Writer writes."""
    name = key.split(maxsplit=1)[0]
    database.execute(
        f"CREATE TABLE {table} ({key}, n INT, v TEXT, PRIMARY KEY ({name}))",
        f"SET SESSION {'cte_max_recursion_depth' if is_mysql(database) else 'max_recursive_iterations'} = 10000000",
        f"INSERT INTO {table} SELECT {_key(key, 'x')}, 0, 'seed' FROM {SEQUENCE.format(last=keys - 1)}",
    )


def is_mysql(database: MySQLDatabase) -> bool:
    return "MariaDB" not in str(database.rows("SELECT VERSION()")[0][0])


def _key(key: str, number: str) -> str:
    return number if "INT" in key else f"CONCAT('k', {number} * 7919 % 1000003)"


class Writer(threading.Thread):
    """Transactions on `(key, n, v)` until told to stop: updates, deletes, inserts, key changes; some rolled back."""

    def __init__(self, database: MySQLDatabase, table: str, *, keys: int, key: str) -> None:
        super().__init__(daemon=True)
        self._connection = database.connect(autocommit=False)
        self._table, self._keys, self._key, self._name = table, keys, key, key.split(maxsplit=1)[0]
        self._over = threading.Event()
        self._failed: BaseException | None = None
        self.transactions = 0

    def run(self) -> None:
        try:
            with self._connection.cursor() as cursor:
                for n in itertools.count(1):
                    if self._over.wait(0.002):  # a busy table, not a busy machine
                        return
                    try:
                        self._transaction(cursor, n)
                    except pymysql.OperationalError as exc:
                        if exc.args[0] != ER.LOCK_DEADLOCK:  # the server has rolled it back
                            raise
        except pymysql.Error as exc:
            self._failed = exc

    def _transaction(self, cursor: pymysql.cursors.Cursor, n: int) -> None:
        table, keys, name = self._table, self._keys, self._name

        def of(*numbers: int) -> str:
            return ", ".join(_key(self._key, str(number)) for number in numbers)

        at = n * 7919 % keys
        again, moved = (at + 100) % keys, (at + 200) % keys
        some = of(*range(at, at + 4))
        cursor.execute(f"UPDATE {table} SET n = n + 1, v = 'w{n}' WHERE {name} IN ({some})")
        cursor.execute(f"DELETE FROM {table} WHERE {name} = {of(again)}")
        if n % 5 == 0:
            self._connection.rollback()
            return
        cursor.execute(f"INSERT IGNORE INTO {table} SELECT {of(again)}, {n}, 'again'")
        cursor.execute(f"UPDATE IGNORE {table} SET {name} = {of(keys + n)} WHERE {name} = {of(moved)}")
        self._connection.commit()
        self.transactions += 1

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._connection.close()
        assert self._failed is None, self._failed
        assert self.transactions > 10


@contextlib.contextmanager
def writing(database: MySQLDatabase, table: str, *, keys: int, key: str = "id INT") -> Iterator[Writer]:
    """A writer at work inside the block."""
    writer = Writer(database, table, keys=keys, key=key)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def rows(database: MySQLDatabase, select: str) -> list[dict[str, Any]]:
    with closing(database.connect(cursorclass=pymysql.cursors.DictCursor)) as connection, connection.cursor() as cursor:
        cursor.execute(select)
        return list(cursor.fetchall())


def connector_of(
    folder: Path, prefix: str, database: MySQLDatabase, kafka: str, *tables: str, **more: Any
) -> Connector:
    """One that captures these tables of the database, or all."""
    names = [f"{database.name}.{table}" for table in tables or ("*",)]
    return Connector(folder, prefix, database.url, kafka, names, **more)


def same(connector: Connector, database: MySQLDatabase, table: str) -> None:
    """The folded topic is the table, whole; only for columns whose JSON is Python's value."""
    folded = ordered(connector.fold(f"{database.name}.{table}").values())
    assert folded == ordered(rows(database, f"SELECT * FROM {table}"))


class Life:
    """One run of the connector to its end, and how much memory it took at most."""

    def __init__(self, connector: Connector, *module: str) -> None:
        connector.put_right()
        command = [sys.executable, "-m", *module, str(connector.file), "--until-caught-up"]
        self.peak_mb = 0.0
        with subprocess.Popen(command, env=connector.environment, stderr=subprocess.PIPE, text=True) as process:
            over = threading.Event()
            watch = threading.Thread(target=self._watch, args=(process.pid, over))
            watch.start()
            _, self.stderr = process.communicate(timeout=400)
            over.set()
            watch.join()
        self.code = process.returncode

    def _watch(self, pid: int, over: threading.Event) -> None:
        """What the kernel tells is the peak so far; of a process that has ended it tells nothing."""
        while not over.wait(0.1):
            try:
                status = Path(f"/proc/{pid}/status").read_text()
            except OSError:  # it has just been waited for
                return
            found = re.search(r"VmHWM:\s+(\d+) kB", status)
            self.peak_mb = max(self.peak_mb, int(found[1]) / 1024 if found else 0.0)
