"""Finds the captured tables whose rows go or change with a row of another, where the server does not log that.

InnoDB carries out ON DELETE and ON UPDATE of foreign keys by itself: MariaDB, and MySQL before 9.6 or with
`innodb_native_foreign_keys`, log the row of the parent and nothing else. Which rows of the child it took along is
nowhere: they are gone, or have lost what told them apart from others. So the child's table is read again.

A row that is deleted takes along what hangs on it. One that is updated does so only if a column that is referenced
has another value, which its images tell; or if that gives it an end, which is how a table WITH SYSTEM VERSIONING logs
its deletes (`rows.own_columns`). What hangs on the child is taken to go along with it.

Foreign keys are read as the server has them, which may be later than the place in the log: DELETE, then RENAME of the
parent, and the rows of the DELETE are those of a table that nothing seems to hang on. But whatever parts a child from
its parent is a statement on one of them, and the log has it behind those rows. The tables that hang on what it names by
now, or on what it leaves behind, are all that can have been passed over: they are read again (`parted`). A foreign key
that was looked at before the statement was known all the time, and asks for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from cdc.model.change import UNCHANGED, Op, Value
from cdc.model.errors import OperatorError, ProtocolError, UnloggedError
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import PartialUpdateRows, Rows, TableColumn, TableMap
from connectors.mysql.catalog.foreign_keys import ForeignKey, upwards
from connectors.mysql.rows.own_columns import MICROS, NO_END
from connectors.mysql.rows.row_images import Images, Reader
from connectors.mysql.statements.tokens import Name

_NO_FOREIGN_KEY_CHECKS: Final = 2
"""A flag of rows: the session had `foreign_key_checks = 0`, under which nothing cascades."""


@dataclass(frozen=True, slots=True)
class _Edge:
    key: ForeignKey
    reached: frozenset[Name]
    """The captured tables whose rows may go along: the child, and what hangs on it."""


class Cascades:
    """Holds the foreign keys that lead to captured tables; `read` gives those of a table, None where it cannot."""

    def __init__(
        self,
        captured: Iterable[Name],
        read: Callable[[Name], Sequence[ForeignKey] | None],
        compared: Callable[[Name], Name] = lambda name: name,
        log_end: Callable[[], int] = lambda: 0,
    ) -> None:
        """`compared` gives what of a name the server compares, `log_end` the commit position of the log's end."""
        self._captured, self._read, self._compared = frozenset(captured), read, compared
        self._log_end = log_end
        self._keys = upwards(self._captured, self._read_one)
        self._looked_at = 0
        """Where the log ended when the foreign keys had been read."""
        with suppress(UnloggedError):  # without a log none is followed, which the start says next, and notes
            self._looked_at = log_end() if self._captured else 0
        self._edges = self._joined()

    def __contains__(self, name: Name) -> bool:
        return name in self._edges

    def __bool__(self) -> bool:
        return bool(self._edges)

    def altered(self, names: set[Name]) -> bool:
        """Note that DDL has changed these tables; True if other foreign keys are of interest now."""
        if not names & self._keys.keys():
            return False
        known = {
            name: keys
            for name, keys in self._keys.items()
            if name not in names and not any(key.parent in names for key in keys or ())
        }
        self._keys = upwards(self._captured, lambda name: known[name] if name in known else self._read_one(name))
        self._looked_at = max(self._looked_at, self._log_end())
        before, self._edges = self._edges, self._joined()
        return before != self._edges

    def parted(self, names: set[Name], database: str | None, commit: int) -> frozenset[Name]:
        """Return the captured tables that hang on those that DDL at `commit` names, or on one of a `database`.

        Empty where their foreign keys were looked at before it. Called before `altered`.
        """
        if commit >= self._looked_at:
            return frozenset()
        named = [edges for name, edges in self._edges.items() if name in names or name[0] == database]
        return frozenset().union(*(edge.reached for edges in named for edge in edges))

    def reached(self, event: Rows | PartialUpdateRows, told: TableMap, name: Name) -> frozenset[Name]:
        """Return the captured tables of which a row event of table `name` may have changed rows."""
        op = Op.UPDATE if isinstance(event, PartialUpdateRows) else event.op
        edges = self._edges.get(name, ())
        if op is Op.CREATE or event.flags & _NO_FOREIGN_KEY_CHECKS:
            return frozenset()
        ends = _ends(told)
        changed: dict[str, set[Value]] | None = {}
        if op is Op.UPDATE and (ends or any(edge.key.on_update for edge in edges)):
            changed = _changed(event, told)
        ended = changed is None or any(changed.get(name, set()).intersection(NO_END) for name in ends)
        gone = op is Op.DELETE or (bool(ends) and ended)

        def goes_along(key: ForeignKey) -> bool:
            moved = changed is None or not changed.keys().isdisjoint(column.lower() for column in key.referenced)
            return (key.on_delete and gone) or (key.on_update and moved)

        return frozenset().union(*(edge.reached for edge in edges if goes_along(edge.key)))

    def _read_one(self, name: Name) -> list[ForeignKey] | None:
        keys = self._read(name)
        if keys is None:
            return None
        return [
            ForeignKey(
                key.name, name, self._compared(key.parent), key.referenced, key.on_delete, key.on_update, key.actions
            )
            for key in keys
        ]

    def _joined(self) -> dict[Name, tuple[_Edge, ...]]:
        children: dict[Name, set[Name]] = {}
        keys = [key for found in self._keys.values() for key in found or ()]
        for key in keys:
            children.setdefault(key.parent, set()).add(key.child)
        edges: dict[Name, list[_Edge]] = {}
        for key in keys:
            below, waiting = {key.child}, [key.child]
            while waiting:
                new = children.get(waiting.pop(), set()) - below
                below |= new
                waiting += new
            edges.setdefault(key.parent, []).append(_Edge(key, frozenset(below & self._captured)))
        return {parent: tuple(found) for parent, found in edges.items()}


def _ends(told: TableMap) -> list[str]:
    """Name the columns that may say until when a row was true: MariaDB makes it a part of each unique key."""
    keyed = None if told.primary_key is None else {column for column, _ in told.primary_key}
    return [
        _small(column)
        for at, column in enumerate(told.columns)
        if (column.type, column.meta) == (table_map.TIMESTAMP2, MICROS) and (keyed is None or at in keyed)
    ]


def _changed(event: Rows | PartialUpdateRows, told: TableMap) -> dict[str, set[Value]] | None:
    """Return the columns that an UPDATE gives other values, with those that they had; None: that cannot be told."""
    if not told.has_metadata or isinstance(event, PartialUpdateRows):
        return None
    found: dict[str, set[Value]] = {}
    try:
        images: Iterable[Images] = Reader(told)(event)
    except (OperatorError, ProtocolError, ValueError):
        return None
    for before, after in images:
        for column, old, new in zip(told.columns, before or (), after or (), strict=True):
            if new is not UNCHANGED and old != new:
                found.setdefault(_small(column), set()).add(old)
    return found


def _small(column: TableColumn) -> str:
    return (column.name or "").lower()
