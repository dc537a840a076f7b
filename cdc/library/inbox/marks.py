"""How far an inbox has come, in a table of the consumer's own database: one row for each partition of a topic.

| column | |
|---|---|
| `inbox`, `topic`, `part` | the key |
| `topic_id` | which topic of this name it is |
| `next_offset` | the offset from which on records are new |

What four drivers of Python have in common (PEP 249) is nearly enough. They differ in how a statement's parameters are
written, in how a transaction is begun, and in how they tell whether one is open.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

from cdc.model.errors import ConfigError

TABLE: Final = "cdc_inbox"
_NAMES: Final = {"ascii": " CHARACTER SET ascii COLLATE ascii_bin", "engine": " ENGINE=InnoDB"}
_OPEN: Final = (1, 2, 3)
"""libpq's ACTIVE, INTRANS and INERROR; of a connection that is broken it is UNKNOWN."""
_FAILED: Final = 3
_OF: Final = "inbox = %s AND topic = %s AND part = %s"

Place: TypeAlias = tuple[str, int]


class Mark(NamedTuple):
    """Where a partition goes on."""

    topic_id: str
    offset: int


class Marks:
    """The rows of one inbox. The connection is its user's, who has no transaction open between the calls."""

    def __init__(self, connection: Any, inbox: str) -> None:  # noqa: ANN401 - any driver's
        """Make the table if it is missing. Raises ConfigError for a connection that cannot be used."""
        self._connection, self._inbox = connection, inbox
        self._driver = _driver(connection)
        if self._driver != "sqlite3" and self._commits_by_itself():
            raise ConfigError(
                "cdc.inbox: the connection is in autocommit, where effects and mark are two transactions",
                hint="give the inbox a connection of its own, with autocommit off",
            )
        self.require_idle()
        self._make()

    def require_idle(self) -> None:
        """Raise ConfigError if a transaction is open: it would become a part of the inbox's."""
        if self.in_transaction():
            raise ConfigError(
                "cdc.inbox: a transaction is open on the connection, and would be committed with the next batch",
                hint="commit or roll back before the next batch, or give the inbox a connection of its own",
            )

    def in_transaction(self) -> bool:
        """Whether a transaction is open, as the driver knows it."""
        if self._driver == "sqlite3":
            return bool(self._connection.in_transaction)
        if self._driver == "pymysql":
            return bool(self._connection.server_status & 1)  # SERVER_STATUS_IN_TRANS
        return int(self._connection.info.transaction_status) in _OPEN

    def begin(self, places: Mapping[Place, Mark]) -> dict[Place, Mark]:
        """Return where partitions go on; those that are not known yet begin as `places` says."""
        found = self._seen(places, {})
        missing = {place: mark for place, mark in places.items() if place not in found}
        return self._seen(places, missing) if missing else found

    def _seen(self, places: Iterable[Place], missing: Mapping[Place, Mark]) -> dict[Place, Mark]:
        """Insert rows that nobody else has, and read all, in a transaction: it sees what it has waited for."""
        mysql = self._driver == "pymysql"
        insert = f"{'INSERT IGNORE' if mysql else 'INSERT'} INTO {TABLE} (inbox, topic, part, topic_id, next_offset)"
        insert += f" VALUES (%s, %s, %s, %s, %s){'' if mysql else ' ON CONFLICT DO NOTHING'}"
        try:
            if missing:
                self._lock_file()
            for (topic, part), mark in sorted(missing.items()):
                self._execute(insert, (self._inbox, topic, part, *mark))
            found = self._read(places, "")
        except BaseException:
            self.roll_back()
            raise
        self._connection.commit()
        return found

    def lock(self, places: Iterable[Place]) -> dict[Place, Mark]:
        """Begin a transaction that nobody else has with these partitions; return where they go on.

        Two consumers lock in the same order, so neither waits for the other for ever.
        """
        self._lock_file()
        return self._read(places, "" if self._driver == "sqlite3" else " FOR UPDATE")

    def move(self, offsets: Mapping[Place, int]) -> None:
        """Note in the open transaction where partitions go on, and have `require_moved` know the transaction again."""
        for (topic, part), offset in sorted(offsets.items()):
            self._execute(f"UPDATE {TABLE} SET next_offset = %s WHERE {_OF}", (offset, self._inbox, topic, part))  # noqa: S608
        self._execute(f"SAVEPOINT {TABLE}")

    def require_moved(self) -> None:
        """Raise ConfigError if the open transaction is not the one that `move` was called in.

        Whatever ends a transaction takes its savepoints: commit and rollback, DDL on MySQL, a deadlock. What follows
        would be committed without the marks, and the next batch would move them past what was rolled back.
        """
        if self._driver.startswith("psycopg") and int(self._connection.info.transaction_status) == _FAILED:
            raise ConfigError(
                "cdc.inbox: the block has caught an error of the database, behind which PostgreSQL rolls all of the "
                "batch back",
                hint="let the error out of the block; or do what may fail in a savepoint, and roll back to it",
            )
        there = self.in_transaction()
        try:
            if there:
                self._execute(f"RELEASE SAVEPOINT {TABLE}")
        except Exception as exc:
            if TABLE not in str(exc):  # which all four say of a savepoint that is not there
                raise
            there = False
        if not there:
            raise ConfigError(
                "cdc.inbox: the block has ended its batch's transaction: what it did is not in the batch's",
                hint="leave commit and rollback to the block's end; savepoints are free",
            )

    def commit(self) -> None:
        self._connection.commit()

    def roll_back(self) -> None:
        """End the transaction; on a connection that is broken, the server has."""
        try:
            self._connection.rollback()
        except Exception:  # noqa: BLE001, S110 - what came before it is what is told
            pass

    def _read(self, places: Iterable[Place], locking: str) -> dict[Place, Mark]:
        found = {}
        for topic, part in sorted(places):
            rows = self._execute(
                f"SELECT topic_id, next_offset FROM {TABLE} WHERE {_OF}{locking}",  # noqa: S608
                (self._inbox, topic, part),
            )
            for topic_id, offset in rows:
                found[topic, part] = Mark(str(topic_id), int(offset))
        return found

    def _lock_file(self) -> None:
        if (
            self._driver == "sqlite3"
        ):  # it has no locks of rows; a transaction that reads first could not be sure to write
            self._execute("BEGIN IMMEDIATE")

    def _execute(self, statement: str, parameters: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
        if self._driver == "sqlite3":
            statement = statement.replace("%s", "?")
        cursor = self._connection.cursor()
        try:
            cursor.execute(statement, parameters)
            rows: list[Any] = list(cursor.fetchall()) if cursor.description is not None else []
        finally:
            cursor.close()
        return [tuple(row.values()) if isinstance(row, dict) else tuple(row) for row in rows]

    def _make(self) -> None:
        look = f"SELECT 1 FROM {TABLE} WHERE inbox = %s AND topic = ''"  # noqa: S608
        try:
            self._execute(look, (self._inbox,))
        except Exception:  # noqa: BLE001 - four drivers' errors for a table that is missing
            self.roll_back()
        else:
            self.roll_back()
            return
        mysql = self._driver == "pymysql"
        text = _NAMES["ascii"] if mysql else ""
        try:
            self._execute(
                f"CREATE TABLE {TABLE} (inbox varchar(100){text} NOT NULL, topic varchar(249){text} NOT NULL,"
                f" part int NOT NULL, topic_id varchar(100){text} NOT NULL, next_offset bigint NOT NULL,"
                f" PRIMARY KEY (inbox, topic, part)){_NAMES['engine'] if mysql else ''}"
            )
            self._connection.commit()
        except Exception:
            self.roll_back()
            try:
                self._execute(look, (self._inbox,))  # another consumer may have made it at this moment
            except Exception:  # noqa: BLE001, S110 - the first one says why there is none
                pass
            else:
                self.roll_back()
                return
            self.roll_back()
            raise

    def _commits_by_itself(self) -> bool:
        if self._driver == "pymysql":
            return bool(self._connection.get_autocommit())
        return bool(self._connection.autocommit)


def _driver(connection: object) -> str:
    """Name the driver of a connection, or of a class derived from its own."""
    for of in type(connection).__mro__:
        module = of.__module__.partition(".")[0]
        if module in {"psycopg", "psycopg2", "pymysql", "sqlite3"}:
            return module
    raise ConfigError(
        f"cdc.inbox: {type(connection).__module__}.{type(connection).__qualname__} is no connection that is known",
        hint="a connection of psycopg2, psycopg, PyMySQL or sqlite3",
    )
