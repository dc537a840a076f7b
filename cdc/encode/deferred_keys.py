"""Orders a transaction's changes of a table whose key is only unique at the transaction's end (DEFERRABLE).

Such a transaction may pass two rows through one key. `UPDATE t SET pos = pos + 1` moves the first row to key 2 while
the second is still there, and then moves the second on: taken one by one, the delete of key 2 comes last and removes
the row that has it now. So a row that comes to a key is held until the transaction ends, and only what leaves a key, or
changes in its place, is handed on at once.

Why the topic then ends with what the transaction ends with. For each key think of the rows that have it at a moment:
those that are held, and at most one that has been in the topic since before the transaction. A change names the old row
whole (REPLICA IDENTITY FULL):

- The old row is among those held for its key: that one leaves, or is replaced. Nothing of it was written, and nothing
  need be taken back. If the topic's row is the very same in all columns, it makes no difference which of the two left.
- It is not: then it is the topic's row. Its delete or its update is written at once.

Thus the rows held and the topic's row always are the rows of the table, key by key. At the end each key has at most one
row. If that is the topic's, nothing is held for the key. If it is a held one, then the topic's row, if there was one,
has left the key before, so the delete is written and the row that is written now comes behind it.

A row that was put and taken away within the transaction has no event, and one that was put and changed has one.

What is held is in a temporary SQLite file, so that memory stays flat however large the transaction is.
"""

from __future__ import annotations

import marshal
from collections.abc import Iterator
from typing import Final, cast

from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.change import UNCHANGED, Change, Op, Row, Table
from cdc.model.errors import OperatorError

_TABLE: Final = (
    "CREATE TABLE held (number INTEGER PRIMARY KEY, relation TEXT, key BLOB, held BLOB, lsn BLOB);"
    "CREATE INDEX held_by_key ON held (relation, key); BEGIN"
)


class DeferredKeys:
    """Holds the rows that have come to a key in the transaction at hand."""

    def __init__(self) -> None:
        self._file: TemporaryDatabase | None = None
        self._tables: dict[str, Table] = {}
        """By name, the tables that rows are held of."""

    def settle(self, change: Change) -> Iterator[Change]:
        """Give what can be written by now, in its order.

        A table that DDL changed within the transaction has no key with two rows at that moment: the server refuses
        DDL while the check of a key is pending. So what is held by then is handed on.
        """
        name = change.table.qualified
        held = self._tables.setdefault(name, change.table)
        if held is not change.table:
            if (held.columns, held.key) != (change.table.columns, change.table.key):
                yield from self._release(held)
            self._tables[name] = change.table
        match change.op:
            case Op.CREATE:
                self._hold(change)
            case Op.UPDATE | Op.DELETE:
                yield from self._leave(change)
            case Op.TRUNCATE:
                self._db().run("DELETE FROM held WHERE relation = ?", (name,))
                yield change
            case _:
                yield change

    def end(self) -> Iterator[Change]:
        """Give the rows that are held at the transaction's end, table by table."""
        while self._tables:
            _, table = self._tables.popitem()
            yield from self._release(table)

    def _leave(self, change: Change) -> Iterator[Change]:
        if change.before is None or UNCHANGED in change.before:
            raise OperatorError(
                f"table {change.table.qualified}: its key ({', '.join(change.table.key)}) is DEFERRABLE, and the log "
                "does not have the whole old row of an update",
                hint="set REPLICA IDENTITY FULL for the table, and for each of its partitions; or make the key NOT "
                "DEFERRABLE",
            )
        old, new = change.before, change.after
        key = _key(change.table, old)
        number = self._find(change.table, key, old)
        in_place = new is not None and _key(change.table, new) == key
        if number is None and in_place:
            yield change
            return
        if number is None:
            yield change._replace(op=Op.DELETE, after=None)
        elif new is not None and in_place:
            self._db().run("UPDATE held SET held = ? WHERE number = ?", (_packed(new), number))
            return
        else:
            self._db().run("DELETE FROM held WHERE number = ?", (number,))
        if new is not None:
            self._hold(change)

    def _hold(self, change: Change) -> None:
        if change.after is None:
            return
        key = _key(change.table, change.after)
        held = (change.table.qualified, key, _packed(change.after), marshal.dumps(change.lsn))
        self._db().run("INSERT INTO held (relation, key, held, lsn) VALUES (?, ?, ?, ?)", held)

    def _find(self, table: Table, key: bytes, row: Row) -> int | None:
        found = self._db().rows(
            "SELECT number FROM held WHERE relation = ? AND key = ? AND held = ? LIMIT 1",
            (table.qualified, key, _packed(row)),
        )
        return next((number for (number,) in found), None)

    def _release(self, table: Table) -> Iterator[Change]:
        found = self._db().rows("SELECT held, lsn FROM held WHERE relation = ? ORDER BY number", (table.qualified,))
        for row, lsn in found:
            yield Change(Op.CREATE, table, None, marshal.loads(row), marshal.loads(lsn))  # noqa: S302 - our own file
        self._db().run("DELETE FROM held WHERE relation = ?", (table.qualified,))

    def _db(self) -> TemporaryDatabase:
        if self._file is None:
            self._file = TemporaryDatabase("the rows that a transaction puts under deferrable keys", _TABLE)
        return self._file

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


_MARSHAL: Final = 2
"""Marshal's format from before references to objects: equal rows have equal bytes."""


def _packed(row: Row) -> bytes:
    return marshal.dumps(cast("tuple[bytes | None, ...]", row), _MARSHAL)


def _key(table: Table, row: Row) -> bytes:
    return _packed(tuple(row[index] for index in table.key_indexes))
