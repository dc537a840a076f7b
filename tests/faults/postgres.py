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
from tests.faults import world
from tests.faults.connector import NAME
from tests.faults.origin import Deck, Origin
from tests.faults.stage import Stage
from tests.faults.workload import APART, KINDS, TABLES, Kind, Writer

SOURCE: Final[dict[str, Any]] = {"type": "postgres", "tables": [f"public.{table}" for table in TABLES]}

_OUT: Final = f"ALTER PUBLICATION cdc_{NAME} DROP TABLE {{0}}"
_IN: Final = f"ALTER PUBLICATION cdc_{NAME} ADD TABLE {{0}}"
_OF: Final = f"ALTER PUBLICATION cdc_{NAME} SET TABLE {', '.join(TABLES)}, {{0}}"
_FILL: Final = "INSERT INTO {0} SELECT id, 'filled', 'again {1}' FROM account WHERE id <= 150"
_NOT_CARRIED: Final = ("no longer carries",)
WORLD: Final = {
    "publication: out and in": ((_OUT, *world.WRITTEN, _IN), _NOT_CARRIED),
    "publication: a filter": ((f"{_OF} WHERE (id > 100)", *world.WRITTEN, _OF), _NOT_CARRIED),
    "publication: a list": ((f"{_OF} (id, v)", *world.WRITTEN, _OF), _NOT_CARRIED),
    "unlogged for a while": (
        (_OUT, "ALTER TABLE {0} SET UNLOGGED", *world.WRITTEN, "ALTER TABLE {0} SET LOGGED", _IN),
        _NOT_CARRIED,
    ),
    "another schema, and back": (
        (
            "CREATE SCHEMA IF NOT EXISTS elsewhere; ALTER TABLE {0} SET SCHEMA elsewhere",
            "UPDATE elsewhere.{0} SET v = 'elsewhere {1}' WHERE id < 30",
            "ALTER TABLE elsewhere.{0} SET SCHEMA public",
        ),
        _NOT_CARRIED,
    ),
    "table made again": (
        ("DROP TABLE {0}; CREATE TABLE {0} (id int PRIMARY KEY, v text, w text); " + _FILL, *world.WRITTEN),
        _NOT_CARRIED,
    ),
    "table emptied and filled": (("TRUNCATE {0}", _FILL, *world.WRITTEN), ()),
    "column replaced": (
        ("ALTER TABLE {0} DROP COLUMN w, ADD COLUMN w text DEFAULT 'replaced {1}'", *world.WRITTEN),
        (),
    ),
    "columns swapped": (
        ("ALTER TABLE {0} RENAME v TO x; ALTER TABLE {0} RENAME w TO v; ALTER TABLE {0} RENAME x TO w",),
        (),
    ),
    "column retyped, and back": (
        ("ALTER TABLE {0} ALTER v TYPE varchar(300)", *world.WRITTEN, "ALTER TABLE {0} ALTER v TYPE text"),
        (),
    ),
    "identity FULL, and back": (
        ("ALTER TABLE {0} REPLICA IDENTITY FULL", *world.WRITTEN, "ALTER TABLE {0} REPLICA IDENTITY DEFAULT"),
        (),
    ),
    "key of more columns, and back": (
        (
            "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id, v)",
            *world.WRITTEN,
            "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey, ADD PRIMARY KEY (id)",
        ),
        (),
    ),
}
"""What happens around a table, and the verdicts that are true meanwhile."""
_SETTINGS: Final = {
    "DateStyle": "'German, DMY'",
    "IntervalStyle": "'sql_standard'",
    "TimeZone": "'Asia/Kathmandu'",
    "extra_float_digits": "-3",
    "bytea_output": "'escape'",
    "default_transaction_isolation": "'serializable'",
    "statement_timeout": "'2s'",
    "idle_in_transaction_session_timeout": "'2s'",
    "row_security": "off",
}
"""What an operator sets for the role that connects."""


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
        f"CREATE TABLE {APART} (id int PRIMARY KEY, v text, w text)",
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
        return {**SOURCE, "tables": [*SOURCE["tables"], f"public.{APART}"]}

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

    def do(self, statement: str) -> None:
        self._sql(statement)

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        return self._sql(statement)

    @property
    def faults(self) -> Deck:
        return {**world.deck(WORLD), "settings of the role": (2, self.set_otherwise)}

    def set_otherwise(self, stage: Stage) -> str:
        """As an operator may, who thinks of other sessions."""
        settings = [f"ALTER ROLE CURRENT_USER SET {name} = {value}" for name, value in _SETTINGS.items()]
        return world.otherwise(stage, settings, ["ALTER ROLE CURRENT_USER RESET ALL"])

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
