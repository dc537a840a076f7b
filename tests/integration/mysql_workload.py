"""The random workload on MySQL and MariaDB."""

from __future__ import annotations

import datetime as dt
import json
from contextlib import closing
from decimal import Decimal
from typing import Any

from tests.conftest import MySQLDatabase
from tests.integration.mysql_work import SEQUENCE, is_mysql
from tests.integration.workload import Workload, document_value, key_of

_SCHEMA = (
    (
        "CREATE TABLE accounts (id BIGINT PRIMARY KEY, owner TEXT NOT NULL, balance DECIMAL(14,2), active BOOLEAN,"
        " opened DATE, touched TIMESTAMP(6) NULL)"
    ),
    (
        "CREATE TABLE documents (`key` VARCHAR(60) COLLATE utf8mb4_bin PRIMARY KEY, body LONGTEXT, meta JSON,"
        " kind ENUM('draft', 'müde', 'done'), version INT UNSIGNED)"
    ),
    (
        "CREATE TABLE ledger (account BIGINT, seq INT, amount DECIMAL(30,6), note VARCHAR(40) CHARACTER SET latin1,"
        " at DATETIME(3), PRIMARY KEY (seq, account))"
    ),
    "CREATE TABLE blobs (id CHAR(32) PRIMARY KEY, data LONGBLOB, ratio DOUBLE, big BIGINT UNSIGNED)",
)
_KEYS = {"accounts": ("id",), "documents": ("key",), "ledger": ("seq", "account"), "blobs": ("id",)}
_FILL = (
    ("accounts", 1, ("x, CONCAT('owner ', x), x * 1.25, x % 3 = 0, '2020-01-01' + INTERVAL x % 900 DAY,"
     " '2024-05-05 10:00:00.123' + INTERVAL x SECOND")),
    ("documents", 10, ("CONCAT('doc-', x), REPEAT(LPAD(HEX(x), 32, 'f'), 1 + x % 120), JSON_OBJECT('n', x, 'x', NULL),"
     " 1 + x % 3, 1")),
    ("ledger", 1, "x, x % 7, x / 3.0, CONCAT('note ', x), '2024-01-01' + INTERVAL x * 17500 MICROSECOND"),
    ("blobs", 5, "LPAD(HEX(x), 32, '0'), UNHEX(LPAD(HEX(x * 7919), 16, '0')), x / 7e0, 18446744073709551615 - x"),
)  # fmt: skip


class MysqlWorkload(Workload):
    """Of one database."""

    def __init__(self, database: MySQLDatabase, *, rows: int, seed: int) -> None:
        super().__init__(rows=rows, seed=seed)
        self._database = database
        self.tables = tuple(f"{database.name}.{table}" for table in _KEYS)
        deep = "cte_max_recursion_depth" if is_mysql(database) else "max_recursive_iterations"
        database.execute(
            *_SCHEMA,
            f"SET SESSION {deep} = 10000000",
            *(f"INSERT INTO {t} SELECT {row} FROM {SEQUENCE.format(last=rows // of)}" for t, of, row in _FILL),
        )

    def connect(self) -> Any:
        return self._database.connect(autocommit=False)

    def contents(self, table: str) -> dict[str, dict[str, Any]]:
        name = table.rpartition(".")[2]
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT * FROM {name}")
            names = [column[0] for column in cursor.description or ()]
            rows = [dict(zip(names, row, strict=True)) for row in cursor]
        for row in rows:
            if row.get("touched") is not None:
                row["touched"] = row["touched"].replace(tzinfo=dt.UTC)  # the server's time zone
            row.update({column: document_value(value) for column, value in row.items()})
        return {key_of(_KEYS[name], row): row for row in rows}

    def _account(self, cursor: Any, some: int) -> int:
        pick = self._random.random()
        if pick < 0.4:
            cursor.execute(
                "UPDATE accounts SET balance = balance + %s, touched = NOW(6) WHERE id = %s",
                (Decimal(self._random.randint(-9999, 9999)) / 100, some),
            )
        elif pick < 0.6:
            cursor.execute("DELETE FROM accounts WHERE id = %s", (some,))
        elif pick < 0.7:  # a new key for the same row, often one that was deleted before
            cursor.execute("UPDATE IGNORE accounts SET id = %s WHERE id = %s", (some + 1, some))
        else:
            cursor.execute(
                "INSERT INTO accounts VALUES (%s, %s, NULL, TRUE, %s, NOW(6)) ON DUPLICATE KEY UPDATE"
                " owner = VALUES(owner), active = NOT active",
                (some, f'Ünï “{some}” \\ " \n\t', dt.date(1969, 12, 31)),
            )
        return int(cursor.rowcount)

    def _document(self, cursor: Any, some: int) -> int:
        pick, key = self._random.random(), f"doc-{some}"
        if pick < 0.5:
            cursor.execute("UPDATE documents SET version = version + 1 WHERE `key` = %s", (key,))
        elif pick < 0.6:
            body = "".join(self._random.choices('abcdefghij "\\é', k=self._random.randint(0, 9000)))
            cursor.execute("UPDATE documents SET body = %s, kind = %s WHERE `key` = %s", (body, "müde", key))
        elif pick < 0.7:
            cursor.execute("DELETE FROM documents WHERE `key` = %s", (key,))
        elif pick < 0.8:
            cursor.execute("UPDATE IGNORE documents SET `key` = %s WHERE `key` = %s", (key + "'", key))
        else:
            cursor.execute(
                "INSERT INTO documents VALUES (%s, %s, %s, NULL, 1) ON DUPLICATE KEY UPDATE meta = VALUES(meta)",
                (key, "w" * self._random.randint(0, 5000), json.dumps({"k": [1, 2.5, None, "ä"]})),
            )
        return int(cursor.rowcount)

    def _ledger(self, cursor: Any, some: int) -> int:
        if self._random.random() < 0.7:
            self._next += 1
            cursor.execute(
                "INSERT INTO ledger VALUES (%s, %s, %s, %s, NOW(3))",
                (some, self._next, Decimal(self._random.randint(-(10**18), 10**18)) / 10**6, "ñ" * (some % 40)),
            )
        else:
            cursor.execute("DELETE FROM ledger WHERE account = %s AND seq = %s", (some, some % 7))
        return int(cursor.rowcount)

    def _blob(self, cursor: Any, some: int) -> int:
        if self._random.random() < 0.5:
            data = self._random.randbytes(self._random.randint(0, 3000))
            cursor.execute("UPDATE blobs SET data = _binary %s WHERE id = LPAD(HEX(%s), 32, '0')", (data, some))
        else:
            cursor.execute(
                "UPDATE blobs SET ratio = %s, big = %s WHERE id = LPAD(HEX(%s), 32, '0')",
                (self._random.uniform(-1e9, 1e9), self._random.randint(0, 2**64 - 1), some),
            )
        return int(cursor.rowcount)
