"""MySQL and MariaDB under the soak."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar, Final, Literal
from urllib.parse import unquote, urlsplit

import pymysql

from cdc.dev.servers import mariadb, mysql
from cdc.dev.servers.mysqld import DATABASE
from cdc.dev.servers.process import Launch, Server
from connectors.mysql.binlog.positions import BinlogPosition
from tests.faults import world
from tests.faults.origin import Deck, Origin
from tests.faults.stage import Stage
from tests.faults.workload import APART, HOSTILE, KINDS, TABLES, Kind, Skipped, Writer
from tests.integration.mysql_user import MysqlUser

_PREPARE: Final[Mapping[str, Callable[[Path], Launch]]] = {"mysql": mysql.prepare, "mariadb": mariadb.prepare}
_PUBLISHED_S: Final = 30.0
_LISTED_S: Final = 2.0
"""MariaDB lists what is prepared some time after it stands in the log."""
_ENDED_S: Final = 120.0
_HOSTILE: Final = {
    "binlog_row_image = MINIMAL": 20,
    "binlog_format = MIXED": 1,
    "binlog_format = STATEMENT": 1,
}
"""What sessions set for themselves, and how often: a statement lets every table be read again, row images do not.

Mostly nothing is told of such a transaction but rows read again, so it needs no row in the ledger. An image that has
key and changed columns may be whole, if the table has no others: its rows say themselves whose they are. NOBLOB has
rows that are whole, where a long value was changed: `tests/cases/mysql_holes.py` has it.
"""
_FILL: Final = "INSERT INTO {0} SELECT id, 'filled', 'again {1}' FROM account WHERE id <= 150"
WORLD: Final = {
    "table made again": (
        ("DROP TABLE {0}", "CREATE TABLE {0} (id INT PRIMARY KEY, v VARCHAR(200), w VARCHAR(200))", _FILL),
        (),
    ),
    "table taken for another": (
        (
            "CREATE TABLE {0}_new LIKE {0}",
            "INSERT INTO {0}_new SELECT id, 'new {1}', w FROM {0}",
            "RENAME TABLE {0} TO {0}_old, {0}_new TO {0}",
            *world.WRITTEN,
            "DROP TABLE {0}_old",
        ),
        (),
    ),
    "table emptied and filled": (("TRUNCATE TABLE {0}", _FILL, *world.WRITTEN), ()),
    "column replaced": (
        ("ALTER TABLE {0} DROP COLUMN w, ADD COLUMN w VARCHAR(200) DEFAULT 'replaced {1}'", *world.WRITTEN),
        (),
    ),
    "columns swapped": (("ALTER TABLE {0} RENAME COLUMN v TO w, RENAME COLUMN w TO v",), ()),
    "column retyped, and back": (
        ("ALTER TABLE {0} MODIFY v TEXT", *world.WRITTEN, "ALTER TABLE {0} MODIFY v VARCHAR(200)"),
        (),
    ),
    "key of more columns, and back": (
        (
            "ALTER TABLE {0} DROP PRIMARY KEY, ADD PRIMARY KEY (id, v)",
            *world.WRITTEN,
            "ALTER TABLE {0} DROP PRIMARY KEY, ADD PRIMARY KEY (id)",
        ),
        (),
    ),
    "column that no log tells of": (
        (
            "SET sql_log_bin = 0; ALTER TABLE {0} ADD COLUMN x INT DEFAULT 5 AFTER id",
            *world.WRITTEN,
            "ALTER TABLE {0} DROP COLUMN x",
        ),
        (),
    ),
    "images that are not whole": (
        ("SET binlog_row_image = MINIMAL; UPDATE {0} SET v = 'minimal {1}' WHERE id BETWEEN 30 AND 39",),
        (),
    ),
}
"""What happens around a table, and the verdicts that are true meanwhile."""
_SETTINGS: Final = {
    "time_zone": "'+05:30'",
    "sql_mode": "'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,PIPES_AS_CONCAT,HIGH_NOT_PRECEDENCE,REAL_AS_FLOAT'",
    "character_set_client": "latin1",
    "character_set_results": "latin1",
    "collation_connection": "latin1_general_cs",
    "group_concat_max_len": "4",
    "div_precision_increment": "0",
    "net_read_timeout": "2",
    "net_write_timeout": "2",
    "lc_time_names": "'de_DE'",
}
"""What an operator sets for all sessions to come."""
_GONE: Final = (1094, 1095)
"""No such thread, or it is not ours."""


def _connect(url: str, **more: Any) -> pymysql.Connection[Any]:
    parts = urlsplit(url)
    login = {"user": unquote(parts.username or ""), "password": unquote(parts.password or "")}
    where = {"host": parts.hostname, "port": parts.port, "database": parts.path.removeprefix("/") or None}
    return pymysql.connect(**login, **where, charset="utf8mb4", connect_timeout=5, read_timeout=60, **more)


class MysqlWriter(Writer):
    """Statements that change a table's shape are transactions by themselves, without a row in the ledger."""

    driver = pymysql
    schema = (
        "CREATE TABLE account (id BIGINT PRIMARY KEY, owner TEXT NOT NULL, balance BIGINT NOT NULL)",
        "CREATE TABLE list (id INT PRIMARY KEY, items LONGTEXT NOT NULL)",
        "CREATE TABLE churn (a INT, b VARCHAR(20), v BIGINT, PRIMARY KEY (a, b))",
        "CREATE TABLE wide (id BIGINT PRIMARY KEY, n INT NOT NULL, body LONGTEXT NOT NULL, raw LONGBLOB)",
        "CREATE TABLE small (id INT PRIMARY KEY, v TEXT)",
        "CREATE TABLE evolving (id INT PRIMARY KEY, v TEXT)",
        "CREATE TABLE ledger (id BIGINT PRIMARY KEY, kind TEXT NOT NULL, events INT)",
        f"CREATE TABLE {APART} (id INT PRIMARY KEY, v VARCHAR(200), w VARCHAR(200))",
    )
    insert_new = "INSERT IGNORE INTO {0} VALUES ({1})"
    all_accounts_sql = (
        "UPDATE account a JOIN (SELECT id, ROW_NUMBER() OVER (ORDER BY id) AS n FROM account) numbered"
        " ON numbered.id = a.id SET a.balance = a.balance + IF(n %% 2 = 0, 1, -1)"
    )
    truncates_alone = True
    emptying: ClassVar = threading.Lock()
    """Held while a table is emptied: a MariaDB that is killed then may have done so without a word in its log."""
    client_flags: ClassVar = 0
    _xa: Literal["", "active", "prepared"] = ""

    @classmethod
    def connect(cls, url: str) -> pymysql.Connection[Any]:
        connection = _connect(url, client_flag=cls.client_flags)
        try:
            with connection.cursor() as cursor:
                cursor.execute("SET SESSION innodb_lock_wait_timeout = 2, lock_wait_timeout = 2")
                cursor.execute("SHOW VARIABLES LIKE 'binlog_transaction_compression'")
                if cursor.fetchone() is not None:
                    compressed = random.SystemRandom().choice(("ON", "OFF"))
                    cursor.execute(f"SET SESSION binlog_transaction_compression = {compressed}")
            connection.commit()
        except BaseException:
            with contextlib.suppress(pymysql.Error):
                connection.close()
            raise
        return connection

    def truncate(self) -> None:
        with self.emptying:
            self._cursor.execute("TRUNCATE TABLE small")
        self._fill_small()

    def change_columns(self) -> None:
        column = f"extra_{self._random.randint(1, 4)}"
        if self._has_column(column):
            self._cursor.execute(f"ALTER TABLE evolving DROP COLUMN {column}")
        else:
            where = self._random.choice(("", " FIRST", " AFTER id"))
            self._cursor.execute(f"ALTER TABLE evolving ADD COLUMN {column} BIGINT{where}")
            self._do(f"UPDATE evolving SET {column} = %s WHERE id <= 60", self._id)

    def hostile(self) -> None:
        """A session of its own, in which the log does not tell all: rows are read again, and nothing stops."""
        setting = self._random.choices(list(_HOSTILE), weights=list(_HOSTILE.values()))[0]
        at = self._random.randint(1, 100)
        with closing(self.connect(self._workload.url)) as session, session.cursor() as cursor:
            cursor.execute(f"SET SESSION {setting}")
            cursor.execute(
                "UPDATE evolving SET v = %s WHERE id BETWEEN %s AND %s", (f"{HOSTILE}{self._id}", at, at + 3)
            )
            session.commit()

    def distributed(self) -> None:
        """In two phases, with others' commits between them; committed or rolled back."""
        self._cursor.execute(f"XA START '{self._id}'")
        self._xa = "active"
        self.transfer()
        self.churn()

    def _commit(self) -> None:
        if not self._xa:
            super()._commit()
            return
        self._cursor.execute(f"XA END '{self._id}'")
        self._xa = "prepared"
        self._cursor.execute(f"XA PREPARE '{self._id}'")
        self._workload.over.wait(self._random.random() * 0.3)
        if self._random.random() < 0.3:
            raise Skipped
        self._cursor.execute(f"XA COMMIT '{self._id}'")
        self._xa = ""

    def _roll_back(self) -> bool:
        if not self._xa:
            return super()._roll_back()
        try:
            with self._connection.cursor() as cursor:
                with contextlib.suppress(pymysql.err.MySQLError):  # it is prepared, and not active any more
                    cursor.execute(f"XA END '{self._id}'")
                cursor.execute(f"XA ROLLBACK '{self._id}'")
            self._xa = ""
        except (pymysql.OperationalError, pymysql.InterfaceError):
            self.close()
            if self._xa == "active":  # it has ended with its session
                self._xa = ""
            return False
        return True

    def _in_ledger(self) -> bool:
        if self._xa:
            self._end_prepared()
        return super()._in_ledger()

    def _end_prepared(self) -> None:
        """What the lost session has prepared is committed or rolled back by another one."""
        ending = self._random.choice(("COMMIT", "ROLLBACK"))
        lost_s = time.monotonic()
        deadline = lost_s + _ENDED_S
        while self._xa:
            try:
                # MariaDB lets nobody end another session's without autocommit.
                with closing(_connect(self._workload.url, autocommit=True)) as session, session.cursor() as cursor:
                    while str(self._id) not in prepared_by(cursor) and time.monotonic() < lost_s + _LISTED_S:
                        time.sleep(0.1)
                    if str(self._id) in prepared_by(cursor):
                        cursor.execute(f"XA {ending} '{self._id}'")
                self._xa = ""
            except pymysql.Error as exc:
                time.sleep(0.1)  # the server is not there, or the lost session still has it
                if time.monotonic() > deadline:
                    raise RuntimeError(f"what was prepared as '{self._id}' can be ended by nobody") from exc

    kinds: ClassVar[dict[str, Kind]] = {**KINDS, "distributed": (2, distributed), "hostile": (2, hostile)}


def prepared_by(cursor: Any) -> set[str]:
    """Names of the XA transactions that are prepared on the cursor's server."""
    cursor.execute("XA RECOVER")
    names = (row[3] for row in cursor.fetchall())  # MariaDB: bytes
    return {name.decode() if isinstance(name, bytes) else str(name) for name in names}


class Mysql(Origin):
    """Either of the two. Files of the log are small, so that many begin."""

    writer = MysqlWriter
    schema = DATABASE
    superseded = (*Origin.superseded, "duplicate server_id")

    def __init__(self, folder: Path, *, kind: str) -> None:
        super().__init__(Server(kind, folder / "database", _PREPARE[kind]))
        self._user: MysqlUser | None = None

    def start(self) -> None:
        super().start()
        self._sql("SET GLOBAL max_binlog_size = 2097152")

    def die(self) -> None:
        with MysqlWriter.emptying if self.server.name == "mariadb" else contextlib.nullcontext():
            self.server.kill()

    @property
    def proxied_url(self) -> str:
        if self._user is None:
            self._user = MysqlUser(self.url)
            if "MariaDB" not in self.version():
                self._sql(f"GRANT XA_RECOVER_ADMIN ON *.* TO '{self._user.name}'@'%'")
        return self._proxied(self._user.url)

    def captured(self) -> dict[str, Any]:
        return {"type": "mysql", "tables": [f"{DATABASE}.{table}" for table in (*TABLES, APART)]}

    def version(self) -> str:
        said = str(self._sql("SELECT VERSION()")[0][0])
        return said if "MariaDB" in said else f"MySQL {said}"

    def log_end(self) -> int:
        return self._end().commit

    def _end(self) -> BinlogPosition:
        newer = self.server.name == "mysql"
        file, offset, *_ = self._sql("SHOW BINARY LOG STATUS" if newer else "SHOW MASTER STATUS")[0]
        return BinlogPosition(str(file), int(str(offset)))

    def end_readers(self, connector: str) -> None:
        self._kill("command LIKE 'Binlog Dump%'")

    def end_sessions(self, connector: str) -> None:
        self._kill("TRUE")

    def _kill(self, which: str) -> None:
        user = self._user.name if self._user is not None else ""
        found = self._sql(f"SELECT id FROM information_schema.processlist WHERE user = '{user}' AND {which}")
        for (session,) in found:
            try:
                self._sql(f"KILL {session}")
            except pymysql.Error as exc:
                if exc.args[0] not in _GONE:
                    raise

    def _sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run it on a connection of its own."""
        with closing(_connect(self.url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(statement)
            return list(cursor.fetchall())

    @property
    def faults(self) -> Deck:
        return {
            "log rotated": (2, self.rotated),
            "log purged": (3, self.purged),
            "settings of the server": (2, self.set_otherwise),
            **world.deck(WORLD),
        }

    def set_otherwise(self, stage: Stage) -> str:
        """As an operator may, who thinks of other sessions."""
        kept = {name: self._sql(f"SELECT @@GLOBAL.{name}")[0][0] for name in _SETTINGS}
        settings = [f"SET GLOBAL {name} = {value}" for name, value in _SETTINGS.items()]
        return world.otherwise(stage, settings, [f"SET GLOBAL {name} = {value!r}" for name, value in kept.items()])

    def do(self, statement: str) -> None:
        with closing(_connect(self.url, autocommit=True)) as connection, connection.cursor() as cursor:
            for part in statement.split("; "):
                cursor.execute(part)

    def rows(self, statement: str) -> list[tuple[object, ...]]:
        return self._sql(statement)

    def rotated(self, stage: Stage) -> str:
        for _ in range(3):
            self._sql("FLUSH BINARY LOGS")
        return ""

    def purged(self, stage: Stage) -> str:
        """All that the position does not need any more is removed; the connector dies and comes back."""
        self._sql("FLUSH BINARY LOGS")
        end, open_ = self._end(), self._open()
        time.sleep(_LISTED_S)
        open_ |= self._open()
        if not stage.until(lambda: not open_ & self._open(), within_s=_PUBLISHED_S):
            return "not reached"
        decided = self._end()  # until a position is behind it, the log is needed from where those were prepared

        def published() -> bool:
            stage.connector.revive()
            newest = stage.positions.newest()
            return newest is not None and newest.commit >= decided.commit

        if not stage.until(published, within_s=_PUBLISHED_S):
            return "not reached"
        killed_at_s = stage.kill()
        self.end_readers(stage.connector.name)

        def removed() -> bool:
            self._sql(f"PURGE BINARY LOGS TO '{end.file}'")
            return self._sql("SHOW BINARY LOGS")[0][0] == end.file

        if not stage.until(removed, within_s=_PUBLISHED_S):
            stage.violations.append("the log cannot be purged")
        stage.restart(killed_at_s)
        return ""

    def left(self) -> list[str]:
        return [f"XA {xid} is still prepared" for xid in sorted(self._open())]

    def _open(self) -> set[str]:
        with closing(_connect(self.url)) as connection, connection.cursor() as cursor:
            return prepared_by(cursor)
