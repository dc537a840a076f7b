"""Writes the rows that are captured, and reads the log without decoding it: one class for each kind of source."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

import psycopg2
import pymysql
from psycopg2 import extensions

from cdc.dev.servers.process import Server
from cdc.dev.stack import DevServers
from cdc.model.errors import BugError
from connectors.mysql import session as mysql_session
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.catalog import server as mysql_server
from connectors.mysql.replication.dump_stream import BinlogDump
from connectors.postgres import session as postgres_session
from connectors.postgres.slot.replication_stream import ReplicationConnection

TABLE: Final = "orders"
COPY: Final = "copied"
"""The table that snapshots are taken of."""
_SILENT_S: Final = 60.0
_ROTATE: Final = 4


@dataclass(frozen=True, slots=True)
class Read:
    """The cost of reading a backlog, from its first message to its last."""

    seconds: float
    cpu_s: float
    """Of the reader."""


class Shape(NamedTuple):
    """The shape of a table: columns, and their values as expressions over `n`, for each kind of source."""

    title: str
    mysql: tuple[str, str]
    postgres: tuple[str, str]
    share: float = 1.0
    """The share of the usual number of events; with large rows it is lower."""


_NINE: Final = Shape(
    "9 columns",
    mysql=(
        """id bigint PRIMARY KEY, customer_id int NOT NULL, status varchar(20) NOT NULL, total decimal(10,2) NOT NULL,
        quantity int, note text, created_at datetime(6) NOT NULL, updated_at timestamp NULL, active tinyint NOT NULL""",
        """n, n %% 977, concat('status', n %% 7), n + (n %% 100) / 100, if(n %% 3, n %% 50, NULL),
        concat('a note of some length ', n),
        timestampadd(MICROSECOND, n, timestampadd(SECOND, n * 7 %% 86400, '2024-01-05')),
        timestampadd(SECOND, n, '2024-05-01'), n %% 2""",
    ),
    postgres=(
        """id bigint PRIMARY KEY, customer_id integer NOT NULL, status varchar(20) NOT NULL,
        total numeric(10,2) NOT NULL, quantity integer, note text, created_at timestamp NOT NULL,
        updated_at timestamptz(0), active smallint NOT NULL""",
        """n, n % 977, 'status' || n % 7, n + (n % 100) / 100.0, CASE WHEN n % 3 > 0 THEN n % 50 END,
        'a note of some length ' || n,
        timestamp '2024-01-05' + n * 7 % 86400 * interval '1 second' + n * interval '1 microsecond',
        timestamptz '2024-05-01' + n * interval '1 second', n % 2""",
    ),
)
_MORE: Final = range(10, 61)
_SIXTY: Final = Shape(
    "60 columns",
    (
        ", ".join([_NINE.mysql[0], *(f"c{i} {'int' if i % 2 else 'varchar(40)'}" for i in _MORE)]),
        ", ".join([_NINE.mysql[1], *(f"n + {i}" if i % 2 else f"concat('value {i} of ', n)" for i in _MORE)]),
    ),
    (
        ", ".join([_NINE.postgres[0], *(f"c{i} {'integer' if i % 2 else 'varchar(40)'}" for i in _MORE)]),
        ", ".join([_NINE.postgres[1], *(f"n + {i}" if i % 2 else f"'value {i} of ' || n" for i in _MORE)]),
    ),
    0.2,
)
_KEYED: Final = "id bigint PRIMARY KEY"
SHAPES: Final = {
    "9": _NINE,
    "3": Shape(
        "3 columns",
        (f"{_KEYED}, customer_id int NOT NULL, status varchar(20) NOT NULL", "n, n %% 977, concat('status', n %% 7)"),
        (f"{_KEYED}, customer_id integer NOT NULL, status varchar(20) NOT NULL", "n, n % 977, 'status' || n % 7"),
    ),
    "60": _SIXTY,
    "wide": Shape(
        "20 kB a row",
        (f"{_KEYED}, note mediumtext", "n, repeat(sha2(n, 256), 320)"),
        (f"{_KEYED}, note text", "n, repeat(md5(n::text), 640)"),
        0.02,
    ),
}
"""By name, as the command line has them."""


class Database(Protocol):
    """A server with the table in it."""

    kind: str
    """As the configuration of a connector names it."""
    title: str
    url: str
    schema: str

    def create(self) -> None:
        """Create the table, with one row."""

    def write(self, first: int, count: int, per_transaction: int = 1) -> None:
        """Insert rows numbered from `first`, in transactions of so many."""

    def copy(self, count: int) -> None:
        """Create a second table with as many of the rows."""

    def mark(self) -> None:
        """Mark the present end of the log: `read` starts there."""

    def read(self, count: int) -> Read:
        """Receive everything logged since the mark, and discard it."""

    def close(self) -> None: ...


class Mysql:
    kind = "mysql"

    def __init__(self, server: Server, shape: Shape = _NINE) -> None:
        self._columns, self._values = shape.mysql
        self.url = server.url + "?ssl_mode=disabled"
        self.schema = "dev"
        self._address = mysql_session.address(self.url)
        self._connection: Any = pymysql.connect(
            host=self._address.host,
            port=self._address.port,
            user=self._address.user,
            password=self._address.password,
            database=self.schema,
            autocommit=True,
            ssl_disabled=True,
        )
        self.title = f"MySQL {self._rows('SELECT VERSION()')[0][0].partition('-')[0]}"
        self._mark = BinlogPosition("", 0)

    def create(self) -> None:
        self._rows(f"CREATE TABLE {TABLE} ({self._columns})")
        self.write(1, 1)

    def write(self, first: int, count: int, per_transaction: int = 1) -> None:
        # no fsync at each commit: only reading is measured
        self._rows("SET GLOBAL sync_binlog = 0, GLOBAL innodb_flush_log_at_trx_commit = 2")
        for begin, end in transactions(first, count, per_transaction):
            self._rows(
                f"INSERT INTO {TABLE} WITH RECURSIVE g (n) AS (SELECT %s UNION ALL SELECT n + 1 FROM g WHERE n < %s)"
                f" SELECT {self._values} FROM g",
                (begin, end),
            )
        self._rows("SET GLOBAL sync_binlog = 1, GLOBAL innodb_flush_log_at_trx_commit = 1")

    def copy(self, count: int) -> None:
        self._rows(f"CREATE TABLE {COPY} LIKE {TABLE}")
        self._rows(f"INSERT INTO {COPY} SELECT * FROM {TABLE} ORDER BY id LIMIT %s", (count,))
        self._rows(f"ANALYZE TABLE {COPY}")

    def mark(self) -> None:
        self._mark = self._end()

    def _end(self) -> BinlogPosition:
        with closing(mysql_session.connect(self._address)) as sql:
            return mysql_server.status(sql, mysql_server.look(sql))[0]

    def read(self, count: int) -> Read:  # noqa: ARG002 - the end position decides
        end, at = self._end(), self._mark.number
        dump = BinlogDump(self._address, server_id=400_000_000, connector="bench", uuid=_UUID, mariadb=False)
        with closing(dump):
            dump.follow(self._mark)
            took = _Stopwatch()
            while True:
                event = dump.receive()
                if event is None:
                    took.waiting()
                    dump.wait(1)
                    continue
                took.message()
                if not isinstance(event, bytes):
                    raise BugError("the backlog has a transaction that takes a file")
                log_pos = int.from_bytes(event[13:17], "little")
                if event[4] == _ROTATE and log_pos:  # not one that only names the file asked for
                    at += 1
                elif at >= end.number and log_pos >= end.offset:
                    return took.read()

    def _rows(self, statement: str, values: tuple[object, ...] | None = None) -> list[tuple[Any, ...]]:
        with self._connection.cursor() as cursor:
            cursor.execute(statement, values)
            return list(cursor.fetchall())

    def close(self) -> None:
        self._connection.close()


class Postgres:
    kind = "postgres"

    def __init__(self, server: Server, shape: Shape = _NINE) -> None:
        self._columns, self._values = shape.postgres
        self.url = server.url
        self.schema = "public"
        self._connection = psycopg2.connect(self.url)
        self._connection.autocommit = True
        self.title = f"PostgreSQL {self._value('SHOW server_version').split()[0]}"

    def create(self) -> None:
        self._execute(f"CREATE TABLE {TABLE} ({self._columns})")
        self.write(1, 1)
        self._execute(f"CREATE PUBLICATION {_SLOT} FOR TABLE {TABLE}")

    def write(self, first: int, count: int, per_transaction: int = 1) -> None:
        self._execute("SET synchronous_commit = off")
        for begin, end in transactions(first, count, per_transaction):
            self._execute(f"INSERT INTO {TABLE} SELECT {self._values} FROM generate_series({begin}, {end}) n")
        self._execute("SET synchronous_commit = on")
        self._value("SELECT txid_current()")  # this commit flushes all earlier ones

    def copy(self, count: int) -> None:
        self._execute(
            f"CREATE TABLE {COPY} (LIKE {TABLE} INCLUDING ALL)",
            f"INSERT INTO {COPY} SELECT * FROM {TABLE} ORDER BY id LIMIT {count:d}",
            f"VACUUM ANALYZE {COPY}",
        )

    def mark(self) -> None:
        deadline = time.monotonic() + _SILENT_S
        while (
            active := self._value(f"SELECT active FROM pg_replication_slots WHERE slot_name = '{_SLOT}'")
        ) is not None:
            if not active:
                self._execute(f"SELECT pg_drop_replication_slot('{_SLOT}')")
            elif time.monotonic() > deadline:
                raise TimeoutError(f"slot {_SLOT} is still read")
            time.sleep(0.05)
        self._execute(f"SELECT pg_create_logical_replication_slot('{_SLOT}', 'pgoutput')")

    def read(self, count: int) -> Read:
        replication = ReplicationConnection(postgres_session.parameters(self.url, _SLOT))
        with closing(replication):
            replication.start(_SLOT, _SLOT, 0, messages=False)
            took, rows = _Stopwatch(), 0
            while True:
                message = replication.receive()
                if message is None:
                    took.waiting()
                    replication.wait(1)
                    continue
                if message[0] != _DATA:
                    continue
                took.message()
                kind = message[_PAYLOAD]
                rows += kind == _INSERT
                if rows >= count and kind == _COMMIT:
                    return took.read()

    def _execute(self, *statements: str) -> None:
        with self._connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def _value(self, statement: str) -> Any:  # noqa: ANN401 - what the statement gives
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return (cursor.fetchone() or (None,))[0]

    def close(self) -> None:
        self._connection.close()


_UUID: Final = "0b6d5c1e-8f0a-4f6b-9a55-6f1d2c3b4a59"
_SLOT: Final = "bench_reading_alone"
_DATA, _INSERT, _COMMIT = b"wIC"
_PAYLOAD: Final = 25

OPENED: Final[dict[str, tuple[str, Callable[[Server, Shape], Database]]]] = {
    "mysql": ("mysql", Mysql),
    "postgres": ("postgres18", Postgres),
}
"""By the source's name: which server of `cdc dev`, and what it is used by."""


@contextmanager
def postgres_and_kafka(folder: Path) -> Iterator[tuple[extensions.connection, str]]:
    """Start both servers; yield a connection in autocommit and Kafka's address. BENCH_URL is the database's url."""
    with DevServers(folder / "servers", servers=("postgres18", "kafka")) as servers:
        url = os.environ["BENCH_URL"] = servers["postgres18"].url
        with closing(psycopg2.connect(url)) as database:
            database.autocommit = True
            yield database, servers["kafka"].url


class _Stopwatch:
    """Measures time and CPU from the first message to now."""

    def __init__(self) -> None:
        self._begun: tuple[float, float] | None = None
        self._heard_s = time.monotonic()

    def message(self) -> None:
        if self._begun is None:
            self._begun = time.monotonic(), time.process_time()

    def waiting(self) -> None:
        """Note that nothing has come. Raises TimeoutError after too long."""
        now = time.monotonic()
        if self._begun is None:
            if now - self._heard_s > _SILENT_S:
                raise TimeoutError(f"nothing to read in {_SILENT_S:.0f} s")
        elif now - self._begun[0] > 10 * _SILENT_S:
            raise TimeoutError(f"not read to its end in {10 * _SILENT_S:.0f} s")

    def read(self) -> Read:
        began_s, cpu_s = self._begun or (time.monotonic(), time.process_time())
        return Read(time.monotonic() - began_s, time.process_time() - cpu_s)


def transactions(first: int, count: int, size: int) -> list[tuple[int, int]]:
    """Return first and last number of each transaction."""
    end = first + count
    return [(begin, min(begin + size, end) - 1) for begin in range(first, end, size)]
