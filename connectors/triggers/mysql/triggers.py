"""Writes the change tables and triggers of one table as SQL. Pure.

**What is written down** is typed: a column of the change table has the type of the table's, and the server prints the
value when the connector reads it, under the connector's settings. A trigger has the sql_mode and character sets that it
was made with, whatever the writing session has. So no setting of that session decides what a value is.

**A trigger writes what it was told.** Triggers that change a row further (BEFORE) have run by then, and the servers
refuse a statement that is nested in another one and writes the same table. So the images of a key are written in the
order in which its row was changed. A row's image of before is a row of the change table by itself, whose number the one
of after has too (`pair`): two images in one row could be wider than the server allows.

MariaDB calls them also for a row that an UPDATE IGNORE has left as it was, since another row has its key, or for a
foreign key. That can be only where a column of an index gets another value; then the trigger looks at the row itself.

**The number of a change** is `UUID_SHORT()`: it counts in the server's memory, for all tables alike; no session can set
it, as it can the next AUTO_INCREMENT (`SET insert_id`), and nobody waits for it. After a restart it goes on above,
unless the server's clock or the last byte of its server_id went back: see `change_log`.

**The application's statement must not fail** because its table, or the change table, is not any more what the triggers
were written for: a column that is gone, a value that does not fit, a change table that was dropped. Whatever fails is
caught, and a miss (`x`) is written down in place of the change. If that fails too, because there is no such table any
more, the miss is noted in a table that all share: the change table may be back before anybody looks. If that one is
gone, nothing is written: then the connector finds that. sql_mode is strict, so that a value which does not fit is an
error and not another value. Tables may hold dates that are none: MySQL copies them as they are stored, and looks at
them, by the session's zone, only where a mode names dates; MariaDB looks at those of its formats before 10.1, which
need a mode that allows them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from connectors.mysql.values.mapping import quoted_name as quoted
from connectors.triggers.mysql.shape import Shape, stored

EVENTS: Final = ("insert", "update", "delete")
_STRICT: Final = "STRICT_ALL_TABLES"
MARKED: Final = "cdc: changes of connector "
"""What the comment on a connector's tables begins with; `connectors.mysql.catalog` leaves such tables out."""
LONGEST: Final = 36
"""The longest name of a connector: the servers take names of 64 letters."""
MISSED: Final = "x"
_TRUNCATED: Final = 1265
"""The servers' number for a value that does not fit: an error in strict mode, with the SQLSTATE of a warning."""
FORGETS: Final = "@cdc_forgets"
"""The variable by which a session says that it is the connector, which deletes what it has read."""
_GUARDED: Final = ("delete", "update")


def sql_mode(*, mariadb: bool) -> str:
    """Return the sql_mode of triggers."""
    return f"{_STRICT},ALLOW_INVALID_DATES" if mariadb else _STRICT


@dataclass(frozen=True, slots=True)
class Names:
    """What a connector's database, tables and triggers are called."""

    connector: str

    @property
    def schema(self) -> str:
        return f"cdc_{self.connector}"

    def of(self, name: str) -> str:
        """Return what a table of the database is called, as SQL writes it."""
        return f"{quoted(self.schema)}.{quoted(name)}"

    def change_table(self, shape: int) -> str:
        return f"changes_{shape}"

    @property
    def triggers(self) -> str:
        """What the names of all triggers on others' tables begin with."""
        return f"cdc:{self.connector}:"

    def trigger(self, shape: int, event: str) -> str:
        return f"{self.triggers}{shape}:{event}"


@dataclass(frozen=True, slots=True)
class Trigger:
    """Is a trigger as it is to be."""

    schema: str
    name: str
    timing: str
    event: str
    table: str
    body: str

    @property
    def statement(self) -> str:
        return (
            f"CREATE TRIGGER {quoted(self.schema)}.{quoted(self.name)} {self.timing} {self.event} ON "
            f"{quoted(self.schema)}.{quoted(self.table)} FOR EACH ROW {self.body}"
        )


def literal(text: str) -> str:
    """Write a text of ours as SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "''") + "'"


def schema(names: Names, first: int) -> Iterator[str]:
    """Give the statements that make what all tables share; `first` is the number of the first shape."""
    yield create_database(names)
    yield (
        f"CREATE TABLE {names.of('log')} (one TINYINT NOT NULL PRIMARY KEY, id CHAR(36) NOT NULL, "
        f"round BIGINT UNSIGNED NOT NULL) {_of(names)}"
    )
    yield (
        f"CREATE TABLE {names.of('rounds')} (round BIGINT UNSIGNED NOT NULL PRIMARY KEY, token CHAR(36) NOT NULL, "
        "at_ms BIGINT NOT NULL, greatest BIGINT UNSIGNED NOT NULL, shapes LONGTEXT NOT NULL, "
        f"numbers LONGTEXT NOT NULL) {_of(names)}"
    )
    yield (
        f"CREATE TABLE {names.of('shapes')} (shape INT NOT NULL AUTO_INCREMENT PRIMARY KEY, "
        "missed TINYINT NOT NULL DEFAULT 0, made VARCHAR(32) NOT NULL DEFAULT '', "
        f"described LONGTEXT NOT NULL) {_of(names)} AUTO_INCREMENT = {first}"
    )
    yield missed_table(names)


def missed_table(names: Names) -> str:
    """Return the statement that makes the table of misses, if it is not there.

    Its key is nobody's, but there are servers that take no table without one. Older versions made it without.
    """
    columns = "shape INT NOT NULL, seq BIGINT UNSIGNED NOT NULL DEFAULT (UUID_SHORT()) PRIMARY KEY"
    return f"CREATE TABLE IF NOT EXISTS {names.of('missed')} ({columns}) {_of(names)}"


def create_database(names: Names) -> str:
    """Return the statement that makes the database, if it is not there."""
    return f"CREATE DATABASE IF NOT EXISTS {quoted(names.schema)} CHARACTER SET utf8mb4"


def _of(names: Names) -> str:
    return f"ENGINE=InnoDB ROW_FORMAT=DYNAMIC CHARACTER SET utf8mb4 COMMENT = {literal(MARKED + names.connector)}"


def change_table(names: Names, number: int, shape: Shape, *, temporary: bool = False) -> str:
    """Return the statement that makes the change table of a shape."""
    columns = "".join(f", {quoted(stored(at))} {of.stored}" for at, of in enumerate(shape.columns, start=1))
    create = "CREATE TEMPORARY TABLE" if temporary else "CREATE TABLE"
    return (
        f"{create} {names.of(names.change_table(number))} (seq BIGINT UNSIGNED NOT NULL PRIMARY KEY, "
        "pair BIGINT UNSIGNED NULL DEFAULT NULL, at TIMESTAMP(6) NULL DEFAULT NULL, "
        f"op CHAR(1) CHARACTER SET ascii NOT NULL{columns}) {_of(names)}"
    )


def guards(names: Names, number: int) -> Sequence[Trigger]:
    """Return the triggers that keep others from deleting or altering changes."""
    table = names.change_table(number)
    said = f"changes of connector {names.connector}, which it may not have read: they are its own to delete"
    body = (
        f"IF NOT ({FORGETS} <=> {literal(names.connector)}) THEN "
        f"SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = {literal(said)}; END IF"
    )
    return [Trigger(names.schema, f"kept:{number}:{event}", "BEFORE", event.upper(), table, body) for event in _GUARDED]


def triggers(names: Names, number: int, shape: Shape) -> Sequence[Trigger]:
    """Return the triggers of a table."""
    writer = _Writer(names, number, shape)
    rows = {"insert": [("c", "NEW")], "update": [("b", "OLD"), ("u", "NEW")], "delete": [("d", "OLD")]}
    return [
        Trigger(
            shape.schema, names.trigger(number, event), "AFTER", event.upper(), shape.name, writer.body(rows[event])
        )
        for event in EVENTS
    ]


class _Writer:
    """Holds what a table's triggers have in common."""

    def __init__(self, names: Names, number: int, shape: Shape) -> None:
        self._into = f"INSERT INTO {names.of(names.change_table(number))}"
        self._missed = f"INSERT INTO {names.of('missed')} (shape) VALUES ({number});"
        self._shape = shape

    def body(self, rows: Sequence[tuple[str, str]]) -> str:
        of = [quoted(stored(at + 1)) for at in range(len(self._shape.columns))]
        columns = ", ".join(["seq", "pair", "at", "op", *of])
        paired = len(rows) > 1
        begin = "BEGIN DECLARE was BIGINT UNSIGNED DEFAULT UUID_SHORT(); " if paired else "BEGIN "
        numbers = [("was", "NULL"), ("UUID_SHORT()", "was")] if paired else [("UUID_SHORT()", "NULL")]
        values = ", ".join(self._values(*of, *row) for of, row in zip(numbers, rows, strict=True))
        missed = f"{self._into} (seq, at, op) VALUES (UUID_SHORT(), SYSDATE(6), '{MISSED}');"
        handler = "DECLARE CONTINUE HANDLER FOR SQLSTATE '42S02' BEGIN"
        gone = f"{handler} {handler} END; {self._missed} END;"
        write = f"{self._into} ({columns}) VALUES {values};"
        if paired and self._shape.indexed:
            write = f"IF {self._updated()} THEN {write} END IF;"
        return (
            f"{begin}BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION, {_TRUNCATED} BEGIN {gone} {missed} END; "
            f"{write} END; END"
        )

    def _updated(self) -> str:
        """Tell whether a row has been updated: no row of its old key is there that has other values than it got.

        It is read as it is now, and not as the transaction's view has it; its lock is held.
        """
        table, names = self._shape, [quoted(name) for name in self._shape.indexed]
        same = " AND ".join(f"OLD.{name} <=> NEW.{name}" for name in names)
        got = " AND ".join(f"t.{name} <=> NEW.{name}" for name in names)
        key = " AND ".join(f"t.{quoted(name)} = OLD.{quoted(name)}" for name in table.primary)
        there = f"SELECT 1 FROM {table.sql} AS t WHERE {key} AND NOT ({got}) LOCK IN SHARE MODE"
        return f"({same}) OR NOT EXISTS ({there})"

    def _values(self, number: str, pair: str, op: str, row: str) -> str:
        images = [f"{row}.{quoted(of.name)}" for of in self._shape.columns]
        return f"({', '.join([number, pair, 'SYSDATE(6)', literal(op), *images])})"
