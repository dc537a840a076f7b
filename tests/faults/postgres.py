"""PostgreSQL under the soak."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Final

import psycopg2
from psycopg2 import extensions

from cdc.dev.servers import postgres
from cdc.dev.servers.process import Server
from connectors.postgres.lsn import lsn_number
from tests.faults.origin import Origin
from tests.faults.workload import KINDS, TABLES, Kind, Writer

SOURCE: Final[dict[str, Any]] = {"type": "postgres", "tables": [f"public.{table}" for table in TABLES]}


class PostgresWriter(Writer):
    driver = psycopg2
    schema = (
        "CREATE TABLE account (id bigint PRIMARY KEY, owner text NOT NULL, balance bigint NOT NULL)",
        "CREATE TABLE list (id int PRIMARY KEY, items text NOT NULL)",
        "CREATE TABLE churn (a int, b text, v bigint, PRIMARY KEY (a, b))",
        "CREATE TABLE wide (id bigint PRIMARY KEY, n int NOT NULL, body text NOT NULL, raw bytea)",
        "ALTER TABLE wide ALTER COLUMN body SET STORAGE EXTERNAL, ALTER COLUMN raw SET STORAGE EXTERNAL",
        "CREATE TABLE small (id int PRIMARY KEY, v text)",
        "CREATE TABLE evolving (id int PRIMARY KEY, v text)",
        "CREATE TABLE ledger (id bigint PRIMARY KEY, kind text NOT NULL, events int)",
    )
    kinds: ClassVar[dict[str, Kind]] = KINDS
    insert_new = "INSERT INTO {0} VALUES ({1}) ON CONFLICT DO NOTHING"
    all_accounts_sql = (
        "WITH numbered AS (SELECT id, row_number() OVER (ORDER BY id) AS n FROM account) UPDATE account a"
        " SET balance = balance + CASE WHEN n %% 2 = 0 THEN 1 ELSE -1 END FROM numbered WHERE numbered.id = a.id"
    )

    @classmethod
    def connect(cls, url: str) -> extensions.connection:
        connection = psycopg2.connect(url, connect_timeout=5)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET lock_timeout = '2s'")
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection

    def truncate(self) -> bool:
        self._cursor.execute("TRUNCATE small")
        self._fill_small()
        return False

    def change_columns(self) -> None:
        column = f"extra_{self._random.randint(1, 4)}"
        self._cursor.execute("LOCK TABLE evolving")
        if self._has_column(column):
            self._cursor.execute(f"ALTER TABLE evolving DROP COLUMN {column}")
        else:
            self._do("UPDATE evolving SET v = 'just before' WHERE id <= 5")
            self._cursor.execute(f"ALTER TABLE evolving ADD COLUMN {column} bigint")
            self._do(f"UPDATE evolving SET {column} = %s WHERE id <= 60", self._id)


class Postgres(Origin):
    writer = PostgresWriter
    schema = "public"

    def __init__(self, folder: Path, *, major: int) -> None:
        super().__init__(Server(f"postgres{major}", folder / "database", partial(postgres.prepare, major=major)))
        self._watch: extensions.connection | None = None

    def die(self) -> None:
        """An immediate shutdown, as `pg_ctl stop -m immediate`: no checkpoint, recovery at the start."""
        pid = self.server.pid
        if pid is None:
            raise RuntimeError("PostgreSQL does not run")
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + 30
        while self.server.running:
            if time.monotonic() > deadline:
                self.server.kill()
            time.sleep(0.02)

    def close(self) -> None:
        self._forget()
        super().close()

    def captured(self) -> dict[str, Any]:
        return SOURCE

    def version(self) -> str:
        return f"PostgreSQL {self._sql('SHOW server_version')[0][0]}"

    def log_end(self) -> int:
        return lsn_number(str(self._sql("SELECT pg_current_wal_insert_lsn()::text")[0][0]))

    def held(self, connector: str) -> int | None:
        """The slot's confirmed_flush_lsn."""
        try:
            if self._watch is None:
                self._watch = psycopg2.connect(self.url, connect_timeout=5)
                self._watch.autocommit = True
            with self._watch.cursor() as cursor:
                cursor.execute(
                    "SELECT confirmed_flush_lsn::text FROM pg_replication_slots WHERE slot_name = %s",
                    (f"cdc_{connector}",),
                )
                row = cursor.fetchone()
        except psycopg2.Error:
            self._forget()
            return None
        return lsn_number(row[0]) if row is not None and row[0] is not None else None

    def _forget(self) -> None:
        if self._watch is not None:
            with contextlib.suppress(psycopg2.Error):
                self._watch.close()
            self._watch = None

    def end_readers(self, connector: str) -> None:
        """The process that has the slot, or is only about to take it."""
        self._sql(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            f" WHERE backend_type = 'walsender' AND application_name = 'cdc {connector}'"
        )

    def end_sessions(self, connector: str) -> None:
        self._sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name ~ '^cdc {connector}'")

    def _sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run it on a connection of its own."""
        connection = psycopg2.connect(self.url, connect_timeout=10)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()
