"""Writes the triggers of one table as SQL. Pure.

A trigger writes down what the row is *when it fires*, read by its key, and not what it was told. The application may
have triggers of its own on the table, which SQLite may call first; if one of them changes the row again, its change is
written down before ours. Why the last image that is written down of a key in a transaction is still the right one: each
change of a key is followed by a call of ours, which reads the key's state at that moment. The call that follows the
last change reads the final state; calls that come later, for changes that came earlier, read the same. A delete is
written down only if the key is not there by then.

`INSERT OR REPLACE` removes rows that share a unique value with the new one, and calls no delete trigger (unless
the application sets recursive_triggers). So before an insert or update the rows that share one are noted, and after it
those of them that are gone are written down as deleted. A row that shares the primary key is replaced under its key;
where not all rows are published (`some`), it is written down as deleted, too: the topic may not get the new one.
An update that leaves all unique values as they are replaces no row, and leaves alone what is noted: it may be nested in
a statement that does, as where a trigger of the application changes other rows of the table before one is inserted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from connectors.triggers.sqlite.catalog import MOST_KEY_COLUMNS, Found
from connectors.triggers.sqlite.session import literal, quoted
from connectors.triggers.sqlite.values import affinity

MARK: Final = "m"
"""The op of a row that no trigger wrote: it stands between two transactions."""
SAFE: Final = -1
"""The shape whose columns are the number of the row before which all changes are safe."""
NOW: Final = "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"
"""Milliseconds since 1970, by functions that old versions have."""


@dataclass(frozen=True, slots=True)
class Names:
    """What a connector's tables and triggers are called."""

    connector: str

    @property
    def changes(self) -> str:
        return f"cdc_{self.connector}_changes"

    @property
    def shapes(self) -> str:
        return f"cdc_{self.connector}_shapes"

    @property
    def replaced(self) -> str:
        return f"cdc_{self.connector}_replaced"

    @property
    def marks(self) -> str:
        return f"cdc_{self.connector}_marks"

    def guard(self, event: str) -> str:
        return f"kept:{self.connector}:{event}"

    @property
    def last(self) -> str:
        """An object made after all triggers: none of them is the newest in the schema."""
        return f"cdc_{self.connector}_last"

    def trigger(self, table: str, event: str) -> str:
        return f"{self.triggers}{table}:{event}"

    @property
    def triggers(self) -> str:
        """What the names of all its triggers begin with: no connector's name has a colon."""
        return f"cdc:{self.connector}:"


def tables(names: Names) -> Iterator[str]:
    """Give the statements that make the change table and what it needs."""
    yield (
        f"CREATE TABLE {quoted(names.changes)} (seq INTEGER PRIMARY KEY AUTOINCREMENT, shape INTEGER NOT NULL, "
        "op TEXT NOT NULL, before TEXT, after TEXT, at_ms INTEGER NOT NULL)"
    )
    yield f"CREATE INDEX {quoted(names.marks)} ON {quoted(names.changes)} (seq) WHERE op = '{MARK}'"
    yield f"CREATE TABLE {quoted(names.shapes)} (shape INTEGER PRIMARY KEY, name TEXT NOT NULL, columns TEXT NOT NULL)"
    keys = ", ".join(f"k{number}" for number in range(MOST_KEY_COLUMNS))
    yield f"CREATE TABLE {quoted(names.replaced)} (name TEXT NOT NULL, image TEXT NOT NULL, {keys})"


def guards(names: Names) -> dict[str, str]:
    """Give the statements of the triggers that keep others from deleting or altering changes, by the triggers' names.

    SQLite has nothing by which a session could say that it is the connector's. So the connector notes up to which row
    it has been told that changes are safe, and what lies before that may be deleted.
    """
    table, of = quoted(names.changes), names.connector
    said = literal(f"changes of connector {of}, which it may not have read: they are its own to delete")
    safe = f"(SELECT CAST(columns AS INTEGER) FROM {quoted(names.shapes)} WHERE shape = {SAFE})"
    conditions = {"delete": f"WHEN OLD.seq >= coalesce({safe}, 0) ", "update": ""}
    return {
        names.guard(event): f"CREATE TRIGGER {quoted(names.guard(event))} BEFORE {event.upper()} ON {table} "
        f"{condition}BEGIN SELECT RAISE(ABORT, {said}); END"
        for event, condition in conditions.items()
    }


def triggers(names: Names, found: Found, shape: int, *, some: bool = False) -> dict[str, str]:
    """Give the statements that make a table's triggers, by the triggers' names. `some`: of its rows are published."""
    writer = _Writer(names, found, shape, some=some)
    made = {
        "insert": writer.trigger("insert", "AFTER INSERT", [*writer.gone(), writer.inserted()]),
        "update": writer.trigger(
            "update", "AFTER UPDATE", [*writer.gone(writer.moves), writer.moved_away(), writer.updated()]
        ),
        "delete": writer.trigger("delete", "AFTER DELETE", [writer.deleted(), *writer.told()]),
    }
    if writer.replaceable:
        of = "" if set(writer.shared) & found.generated else f" OF {', '.join(map(quoted, writer.shared))}"
        there = writer.taken() if writer.only_by_key else ""
        made["before insert"] = writer.trigger(
            "before insert", "BEFORE INSERT", writer.candidates(), condition=there and f"WHEN {there} "
        )
        made["before update"] = writer.trigger(
            "before update", f"BEFORE UPDATE{of}", writer.candidates(but="OLD"),
            condition=f"WHEN {writer.moves}{there and f' AND {there}'} ",
        )  # fmt: skip
    return {names.trigger(found.name, event): statement for event, statement in made.items()}


def written(found: Found) -> tuple[str, ...]:
    """Give statements that call all triggers of a table."""
    names = [quoted(name) for name, _, _ in found.shape.columns if name not in found.generated]
    sets = ", ".join(f"{name} = {name}" for name in names)
    return (
        f"INSERT INTO {found.sql} DEFAULT VALUES", f"UPDATE {found.sql} SET {sets}", f"DELETE FROM {found.sql}",
    )  # fmt: skip


class _Writer:
    """Holds what a table's triggers have in common."""

    def __init__(self, names: Names, found: Found, shape: int, *, some: bool) -> None:
        self._names, self._found, self._shape, self._some = names, found, shape, some
        self._key = found.shape.key
        self.replaceable = [unique.collations for unique in found.unique if unique.collations]
        if not all(found.is_bytewise(name) for name in self._key):
            self.replaceable.append(found.collations or {})  # a row of another key may be taken for one of the same
        self.only_by_key = some and not self.replaceable
        if some:
            self.replaceable.append(found.collations or dict.fromkeys(self._key, "BINARY"))
        self.shared = sorted({column for unique in self.replaceable for column in unique})

    @property
    def moves(self) -> str:
        """Whether an update changes what is unique."""
        return f"NOT ({self._same('OLD', 'NEW', self.shared)})"

    def trigger(self, event: str, when: str, statements: Sequence[str], *, condition: str = "") -> str:
        body = " ".join(f"{statement};" for statement in statements)
        name = quoted(self._names.trigger(self._found.name, event))
        return f"CREATE TRIGGER {name} {when} ON {self._found.sql} {condition}BEGIN {body} END"

    def inserted(self) -> str:
        return f"{self._into()} SELECT {self._shape}, 'c', NULL, {self._image('t')}, {NOW} {self._found_by('NEW')}"

    def updated(self) -> str:
        same, still = self._same("OLD", "NEW"), f"NOT EXISTS (SELECT 1 {self._found_by('OLD', alias='o')})"
        before = f"CASE WHEN ({same}) OR {still} THEN {self._image('OLD')} END"
        return f"{self._into()} SELECT {self._shape}, 'u', {before}, {self._image('t')}, {NOW} {self._found_by('NEW')}"

    def moved_away(self) -> str:
        """A row whose key was changed, and which is at neither key any more."""
        return (
            f"{self._into()} SELECT {self._shape}, 'd', {self._image('OLD')}, NULL, {NOW} "
            f"WHERE NOT ({self._same('OLD', 'NEW')}) AND NOT EXISTS (SELECT 1 {self._found_by('OLD', alias='o')}) "
            f"AND NOT EXISTS (SELECT 1 {self._found_by('NEW')})"
        )

    def deleted(self) -> str:
        return (
            f"{self._into()} SELECT {self._shape}, 'd', {self._image('OLD')}, NULL, {NOW} "
            f"WHERE NOT EXISTS (SELECT 1 {self._found_by('OLD')})"
        )

    def candidates(self, *, but: str = "") -> list[str]:
        """Note the rows that the new one may replace; `but`: the row that becomes the new one is none of them."""
        replaced, name = quoted(self._names.replaced), literal(self._found.name)
        into = ", ".join(["name", "image", *(f"k{number}" for number in range(len(self._key)))])
        keys = ", ".join(f"t.{quoted(column)}" for column in self._key)
        statements = [f"DELETE FROM {replaced} WHERE name = {name}"]
        others = f" AND NOT ({self._there('t', but)})" if but else ""
        for columns in self.replaceable:
            shared = " AND ".join(
                f"t.{quoted(column)} = {self._to_be(column)} COLLATE {quoted(collation)}"
                for column, collation in columns.items()
            )
            statements.append(
                f"INSERT INTO {replaced} ({into}) SELECT {name}, {self._image('t')}, {keys} "
                f"FROM {self._found.sql} AS t WHERE {shared}{others}"
            )
        return statements

    def taken(self) -> str:
        """Whether a row has the key that the new one will have."""
        key = " AND ".join(self._equal(f"t.{quoted(column)}", self._to_be(column), column) for column in self._key)
        return f"EXISTS (SELECT 1 FROM {self._found.sql} AS t WHERE {key})"

    def told(self) -> list[str]:
        """Take a row off what is noted whose delete is written down: with recursive_triggers, REPLACE calls for it."""
        if not self.replaceable:
            return []
        replaced, name = quoted(self._names.replaced), literal(self._found.name)
        key = " AND ".join(self._equal(f"k{number}", f"OLD.{quoted(of)}", of) for number, of in enumerate(self._key))
        return [f"DELETE FROM {replaced} WHERE name = {name} AND {key}"]

    def _to_be(self, column: str) -> str:
        """What a column will hold: REPLACE puts the default in place of a NULL that may not be."""
        default, told = self._found.defaults.get(column), f"NEW.{quoted(column)}"
        return told if default is None else f"ifnull({told}, {default})"

    def gone(self, condition: str = "1") -> list[str]:
        """Write down those that are not there any more."""
        if not self.replaceable:
            return []
        replaced, name = quoted(self._names.replaced), literal(self._found.name)
        there = " AND ".join(
            self._equal(f"t.{quoted(column)}", f"r.k{number}", column) for number, column in enumerate(self._key)
        )
        missing = f"NOT EXISTS (SELECT 1 FROM {self._found.sql} AS t WHERE {there})"
        if self._some:
            same = (self._equal(f"r.k{number}", f"NEW.{quoted(of)}", of) for number, of in enumerate(self._key))
            of_key = f"({' AND '.join(same)})"
            # else the note may be of a statement before, which replaced nothing: it stays where no row has the key
            missing = of_key if self.only_by_key else f"({of_key} OR {missing})"
        mine = f"{condition} AND name = {name}"
        gone = f"SELECT DISTINCT {self._shape}, 'd', r.image, NULL, {NOW} FROM {replaced} AS r WHERE {mine}"
        return [f"{self._into()} {gone} AND {missing}", f"DELETE FROM {replaced} WHERE {mine}"]

    def _into(self) -> str:
        return f"INSERT INTO {quoted(self._names.changes)} (shape, op, before, after, at_ms)"

    def _found_by(self, row: str, *, alias: str = "t") -> str:
        return f"FROM {self._found.sql} AS {alias} WHERE {self._there(alias, row)}"

    def _there(self, alias: str, row: str) -> str:
        return " AND ".join(
            self._equal(f"{alias}.{quoted(column)}", f"{row}.{quoted(column)}", column) for column in self._key
        )

    def _same(self, one: str, other: str, columns: Sequence[str] = ()) -> str:
        return " AND ".join(
            f"{one}.{quoted(column)} IS {other}.{quoted(column)} COLLATE BINARY" for column in columns or self._key
        )

    def _equal(self, there: str, wanted: str, column: str) -> str:
        """Compare by the index, and where that takes other texts for equal, by the bytes too."""
        collation = (self._found.collations or {}).get(column)
        by_index = f"{there} IS {wanted}" if collation is None else f"{there} IS {wanted} COLLATE {quoted(collation)}"
        return by_index if self._found.is_bytewise(column) else f"{by_index} AND {there} IS {wanted} COLLATE BINARY"

    def _image(self, row: str) -> str:
        return _joined([_quote(f"{row}.{quoted(name)}", of, integers=only) for name, of, only in self._columns])

    @property
    def _columns(self) -> tuple[tuple[str, str, bool], ...]:
        return self._found.shape.columns


def image(alias: str, found: Found) -> str:
    """Return the expression of a row's image, as the triggers write it: what reads the table uses the same."""
    return _joined([_quote(f"{alias}.{quoted(name)}", of, integers=only) for name, of, only in found.shape.columns])


def _quote(value: str, declared: str, *, integers: bool) -> str:
    if integers or affinity(declared) == "real":
        return f"quote({value})"
    nul = f"typeof({value}) = 'text' AND instr({value}, char(0)) > 0"
    return f"CASE WHEN {nul} THEN 'T' || quote(CAST({value} AS BLOB)) ELSE quote({value}) END"


def _joined(parts: Sequence[str]) -> str:
    """Put commas between; a balanced tree, for SQLite bounds the depth of an expression."""
    if len(parts) == 1:
        return parts[0]
    half = len(parts) // 2
    return f"({_joined(parts[:half])} || ',' || {_joined(parts[half:])})"
