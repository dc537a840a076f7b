"""Databases of every kind, as the laws of sources use them: two tables of an integer and a text, and what is done."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from cdc.config import registry
from cdc.config.config import ConnectorConfig, SnapshotConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Offset, Row
from cdc.model.interfaces import Snapshotter, Source
from cdc.testing import MemoryLog, MemorySnapshotter, MemorySource, delete, insert, truncate, update
from tests.conftest import Database, MySQLDatabase
from tests.etcd_cluster import Etcd as Cluster
from tests.text_tables import text_table


class Put(NamedTuple):
    """Inserts a row, or changes its value."""

    table: str
    key: int
    value: str
    new: bool = False


class Drop(NamedTuple):
    """Deletes a row."""

    table: str
    key: int


class Rekey(NamedTuple):
    """Gives a row another key."""

    table: str
    key: int
    to: int


class Empty(NamedTuple):
    """Truncates a table."""

    table: str


Act = Put | Drop | Rekey | Empty


class Open(Protocol):
    """A transaction that is open."""

    def do(self, *acts: Act) -> None: ...

    def commit(self) -> None: ...


class Origin(Protocol):
    """A database of its own, with tables a and b (id integer primary key, v text), and sources that follow it."""

    waits: bool
    """Whether a second writer waits for the first one's commit."""
    in_rounds: bool
    """Whether what is committed between two looks is given as one transaction."""
    by_key: bool
    """Whether a transaction writes a key once at most, and a key change is a delete and a create."""
    schema: str
    columns: Sequence[str]

    def source(self) -> Source:
        """A copy of the connector's source, not connected yet."""

    def snapshotter(self, *, chunk_rows: int = 2) -> Snapshotter:
        """Its snapshotter."""

    def begin(self) -> Open:
        """A transaction in a session of its own."""

    def rows(self, table: str) -> dict[Row, Row]:
        """The table's rows by key, as SELECT has them."""

    def shown(self, row: Row) -> Row:
        """The integer and the text of a row that the source gave."""

    def key(self, table: str, number: int) -> tuple[bytes, ...]:
        """The key of the row with this integer, as the source has it."""

    def beyond(self, offset: Offset) -> Offset:
        """A place in the log that the log has not reached: of another server, or from before a restore."""

    def close(self) -> None: ...


def write(origin: Origin, *acts: Act) -> None:
    """In one transaction."""
    transaction = origin.begin()
    transaction.do(*acts)
    transaction.commit()


class _Plain:
    """What tables of two columns have in common."""

    by_key = False
    columns: Sequence[str] = ("id", "v")

    def shown(self, row: Row) -> Row:
        return row

    def key(self, table: str, number: int) -> tuple[bytes, ...]:
        return (b"%d" % number,)


class Memory(_Plain):
    """The twin."""

    waits = True
    in_rounds = True
    schema = "s"

    def __init__(self) -> None:
        self.log = MemoryLog()
        self.tables = {name: text_table(name, ["id", "v"]) for name in ("a", "b")}

    def source(self) -> Source:
        return MemorySource(self.log, list(self.tables.values()))

    def snapshotter(self, *, chunk_rows: int = 2) -> Snapshotter:
        return MemorySnapshotter(self.log, rows_each=chunk_rows)

    def begin(self) -> Open:
        return _InMemory(self)

    def rows(self, table: str) -> dict[Row, Row]:
        return dict(self.log.rows(self.tables[table]))

    def beyond(self, offset: Offset) -> Offset:
        return {"at": int(offset["at"]) + 10**6}

    def close(self) -> None:
        pass


class _InMemory:
    """Its changes are committed together."""

    def __init__(self, origin: Memory) -> None:
        self._origin = origin
        self._acts: list[Act] = []

    def do(self, *acts: Act) -> None:
        self._acts += acts

    def commit(self) -> None:
        tables, rows = self._origin.tables, {name: self._origin.rows(name) for name in self._origin.tables}
        changes = []
        for act in self._acts:
            table = tables[act.table]
            match act:
                case Put(name, key, value, new):
                    row = (b"%d" % key, value.encode())
                    changes.append(insert(table, row) if new else update(table, row))
                    rows[name][(row[0],)] = row
                case Drop(name, key):
                    changes.append(delete(table, (b"%d" % key,)))
                    rows[name].pop((b"%d" % key,))
                case Rekey(name, key, to):
                    row = (b"%d" % to, rows[name].pop((b"%d" % key,))[1])
                    changes.append(update(table, row, key=(b"%d" % key,)))
                    rows[name][(row[0],)] = row
                case Empty(name):
                    changes.append(truncate(table))
                    rows[name].clear()
        self._origin.log.commit(*changes)


def statement(act: Act, *, truncates: bool = True) -> str:
    """An act as SQL."""
    match act:
        case Put(table, key, value, True):
            return f"INSERT INTO {table} (id, v) VALUES ({key}, '{value}')"
        case Put(table, key, value):
            return f"UPDATE {table} SET v = '{value}' WHERE id = {key}"
        case Drop(table, key):
            return f"DELETE FROM {table} WHERE id = {key}"
        case Rekey(table, key, to):
            return f"UPDATE {table} SET id = {to} WHERE id = {key}"
        case Empty(table):
            return f"TRUNCATE TABLE {table}" if truncates else f"DELETE FROM {table}"


class BySQL:
    """A transaction of a driver's connection, which is not in autocommit."""

    def __init__(self, connection: Any, *, truncates: bool = True) -> None:
        self._connection, self._truncates = connection, truncates

    def do(self, *acts: Act) -> None:
        with closing(self._connection.cursor()) as cursor:
            for act in acts:
                cursor.execute(statement(act, truncates=self._truncates))

    def commit(self) -> None:
        self._connection.commit()
        self._connection.close()


_TABLES = tuple(f"CREATE TABLE {name} (id integer PRIMARY KEY, v text)" for name in ("a", "b"))


class _OnAServer(_Plain):
    """What the databases behind a driver have in common."""

    waits = False
    in_rounds = False
    schema: str

    def __init__(self, type_: str, url: str, name: str, select: Callable[[str], Sequence[tuple[Any, ...]]]) -> None:
        self._type, self._url, self._name, self._select = type_, url, name, select

    def _config(self, chunk_rows: int = 2) -> ConnectorConfig:
        tables = (f"{self.schema}.a", f"{self.schema}.b")
        return ConnectorConfig(
            name=self._name,
            source=SourceConfig(type=self._type, url=self._url, tables=tables),
            sink=KafkaConfig(bootstrap_servers="none", topic_prefix=self._name),
            snapshot=SnapshotConfig(workers=1, chunk_rows=chunk_rows),
        )

    def source(self) -> Source:
        return registry.source(self._config())()

    def snapshotter(self, *, chunk_rows: int = 2) -> Snapshotter:
        return registry.snapshotter(self._config(chunk_rows))()

    def rows(self, table: str) -> dict[Row, Row]:
        found = self._select(f"SELECT id, v FROM {table}")
        return {(b"%d" % key,): (b"%d" % key, value.encode()) for key, value in found}

    def close(self) -> None:
        pass


class Postgres(_OnAServer):
    """PostgreSQL, by its log."""

    schema = "public"

    def __init__(self, database: Database, type_: str = "postgres") -> None:
        super().__init__(type_, database.url, database.name, database.rows)
        self._database = database
        database.execute(*_TABLES)

    def begin(self) -> Open:
        connection = self._database.connect()
        connection.autocommit = False
        return BySQL(connection)

    def beyond(self, offset: Offset) -> Offset:
        return {**offset, "lsn": "FFFF/0"}


class PostgresTriggered(Postgres):
    """PostgreSQL, by triggers."""

    def __init__(self, database: Database) -> None:
        super().__init__(database, "triggers")

    def beyond(self, offset: Offset) -> Offset:
        return {**offset, "seen": "4000000000:4000000000:", "number": int(offset["number"]) + (10**6 << 20)}


class MySQL(_OnAServer):
    """MySQL or MariaDB, by its log."""

    def __init__(self, database: MySQLDatabase, type_: str = "mysql") -> None:
        self.schema = database.name
        super().__init__(type_, database.url, database.name.replace("_", "-"), database.rows)
        self._database = database
        database.execute(*_TABLES)

    def begin(self) -> Open:
        return _Truncating(self._database.connect(autocommit=False))

    def beyond(self, offset: Offset) -> Offset:
        at = {**offset, "file": "binlog.999999"}
        if "gtids" in at:
            at["gtids"] = f"{at['gtids']},7d9f04a1-0000-4000-8000-000000000001:1-5".removeprefix(",")
        return at


class MySQLTriggered(MySQL):
    """MySQL or MariaDB, by triggers."""

    in_rounds = True

    def __init__(self, database: MySQLDatabase) -> None:
        super().__init__(database, "triggers")

    def beyond(self, offset: Offset) -> Offset:
        return {**offset, "round": int(offset["round"]) + 10**6}


class _Truncating(BySQL):
    """A session of a server whose TRUNCATE commits what is open: rows are deleted instead."""

    def __init__(self, connection: Any) -> None:
        super().__init__(connection, truncates=False)


class SQLite(_OnAServer):
    """A file, by triggers."""

    schema = "main"
    waits = True
    in_rounds = True

    def __init__(self, path: Path) -> None:
        self._path = path
        with closing(self.connect()) as connection:
            for statement_ in ("PRAGMA journal_mode = WAL", *_TABLES):
                connection.execute(statement_)
        super().__init__("triggers", f"sqlite:///{path}", "c", self._rows)

    def connect(self) -> sqlite3.Connection:
        return sqlite3.connect(self._path)

    def _rows(self, select: str) -> list[tuple[Any, ...]]:
        with closing(self.connect()) as connection:
            return connection.execute(select).fetchall()

    def begin(self) -> Open:
        return BySQL(self.connect(), truncates=False)

    def beyond(self, offset: Offset) -> Offset:
        return {**offset, "change": int(offset["change"]) + 1_000_000}


class Etcd:
    """Two prefixes of a cluster: the integer is the key behind its prefix, the text is the value."""

    waits = True
    in_rounds = False
    by_key = True
    schema = "s"
    columns = ("key", "value", "version", "create_revision", "mod_revision", "lease")

    def __init__(self, url: str) -> None:
        self._cluster = Cluster(url)

    def _config(self, chunk_rows: int = 2) -> ConnectorConfig:
        return self._cluster.config(("s.a", "s.b"), chunk_rows=chunk_rows)

    def source(self) -> Source:
        return registry.source(self._config())()

    def snapshotter(self, *, chunk_rows: int = 2) -> Snapshotter:
        return registry.snapshotter(self._config(chunk_rows))()

    def begin(self) -> Open:
        return _InOneTxn(self)

    def commit(self, acts: Sequence[Act]) -> None:
        """What is left of acts for each key, in one transaction."""
        values: dict[str, bytes | None] = {}
        for act in acts:
            match act:
                case Put(table, key, value):
                    values[f"{table}/{key}"] = value.encode()
                case Drop(table, key):
                    values[f"{table}/{key}"] = None
                case Rekey(table, key, to):
                    moved = values.get(f"{table}/{key}") or self._cluster.get(f"{table}/{key}")
                    values |= {f"{table}/{key}": None, f"{table}/{to}": moved}
                case Empty(table):
                    self._cluster.delete_all(f"{table}/")
        self._cluster.commit(values)

    def rows(self, table: str) -> dict[Row, Row]:
        found = (self.shown(row) for row in self._cluster.rows(f"{table}/"))
        return {row[:1]: row for row in found}

    def shown(self, row: Row) -> Row:
        key, value, *_ = row
        assert isinstance(key, bytes)
        return (key.rpartition(b"/")[2], value)

    def key(self, table: str, number: int) -> tuple[bytes, ...]:
        return (self._cluster.key(f"{table}/{number}"),)

    def beyond(self, offset: Offset) -> Offset:
        return {**offset, "revision": int(offset["revision"]) + 10**6}

    def close(self) -> None:
        pass


class _InOneTxn:
    """Its acts become one transaction."""

    def __init__(self, origin: Etcd) -> None:
        self._origin = origin
        self._acts: list[Act] = []

    def do(self, *acts: Act) -> None:
        self._acts += acts

    def commit(self) -> None:
        self._origin.commit(self._acts)
