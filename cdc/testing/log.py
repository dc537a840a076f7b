"""A twin of a database: a log, its tables, and views of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias, cast

from cdc.model.change import UNCHANGED, Change, Message, Op, Row, Table, Xid

Key: TypeAlias = tuple[bytes, ...]


def insert(table: Table, row: Row) -> Change:
    """Make the change of a new row."""
    return Change(Op.CREATE, table, None, row, 0)


def update(table: Table, row: Row, *, key: Key | None = None) -> Change:
    """Make the change of a row's values, UNCHANGED for one left out; `key` is the old key where it changed."""
    return Change(Op.UPDATE, table, None if key is None else _key_image(table, key), row, 0)


def delete(table: Table, key: Key) -> Change:
    """Make the change of a deleted row."""
    return Change(Op.DELETE, table, _key_image(table, key), None, 0)


def truncate(table: Table) -> Change:
    """Make the change of a truncated table."""
    return Change(Op.TRUNCATE, table, None, None, 0)


def key_of(table: Table, row: Row) -> Key:
    """Take a row's key, in key order."""
    return tuple(cast("bytes", row[index]) for index in table.key_indexes)


def _key_image(table: Table, key: Key) -> Row:
    at = dict(zip(table.key_indexes, key, strict=True))
    return tuple(at.get(index, UNCHANGED) for index in range(len(table.columns)))


@dataclass(frozen=True, slots=True)
class View:
    """A reader's view: the transactions below `next`, except those not visible yet."""

    next: int
    unseen: frozenset[int]
    end: int
    """The log's end after the view was taken."""

    def sees(self, xid: Xid) -> bool:
        return isinstance(xid, int) and xid < self.next and xid not in self.unseen


@dataclass(frozen=True, slots=True)
class Logged:
    """A transaction in the log; `carried` are the tables whose changes the log has for us."""

    xid: int
    commit: int
    end: int
    changes: tuple[Change | Message, ...]
    carried: frozenset[str]
    alone: bool = False
    """A message that belongs to no transaction, at `end`."""

    def writes(self, table: Table, key: Key) -> bool:
        """Whether it has written the row with this key, or all."""
        written = _touched(self.changes)
        return bool(written & {(table.qualified, key), (table.qualified, None)})


class MemoryLog:
    """A database: rows that views see, and a log of its transactions in commit order."""

    def __init__(self) -> None:
        self.transactions: list[Logged] = []
        self.carried: frozenset[str] = frozenset()
        """Tables whose changes reach the log."""
        self.held_from: int | None = None
        """From where the log is kept for the connector: its slot."""
        self.acknowledged = 0
        self.exported: dict[str, View] = {}
        self._unseen: set[int] = set()

    @property
    def end(self) -> int:
        return self.transactions[-1].end if self.transactions else 8

    def say(self, prefix: str, content: bytes) -> None:
        """Append a message that belongs to no transaction."""
        xid = len(self.transactions) + 1
        end = 16 * xid + 8
        self.transactions.append(Logged(xid, 16 * xid, end, (Message(prefix, content, end),), self.carried, alone=True))

    def commit(self, *changes: Change | Message, visible: bool = True) -> int:
        """Append a transaction, return its id. Not `visible`: it is logged, but views do not see it before `reveal`.

        Its changes wait for the locks of earlier transactions, as in a database: those become visible first.
        Raises ValueError for a change that its table does not admit.
        """
        touched = _touched(changes)
        for earlier in self.transactions:
            if earlier.xid in self._unseen and _meet(_touched(earlier.changes), touched):
                self.reveal([earlier.xid])
        xid = len(self.transactions) + 1
        of_rows = [change for change in changes if isinstance(change, Change)]
        tables = {change.table.qualified: change.table for change in of_rows}
        contents = {name: self.rows(table) for name, table in tables.items()}
        for change in of_rows:
            _apply(contents[change.table.qualified], change, strict=True)
        placed = tuple(change._replace(lsn=16 * xid - 4) for change in changes)
        self.transactions.append(Logged(xid, 16 * xid, 16 * xid + 8, placed, self.carried))
        if not visible:
            self._unseen.add(xid)
        return xid

    def reveal(self, xids: Iterable[int]) -> None:
        """Let new views see these transactions."""
        self._unseen -= set(xids)

    def reveal_before(self, position: int) -> None:
        """Wait for the transactions that committed before `position`: let new views see them."""
        self.reveal(logged.xid for logged in self.transactions if logged.commit < position)

    def view(self) -> View:
        """Take a view: what a reader sees now."""
        return View(len(self.transactions) + 1, frozenset(self._unseen), self.end)

    def rows(self, table: Table, view: View | None = None) -> dict[Key, Row]:
        """Return the table's rows by key: as `view` has them, or as the log has them."""
        found: dict[Key, Row] = {}
        for transaction in self.transactions:
            if view is None or view.sees(transaction.xid):
                for change in transaction.changes:
                    if isinstance(change, Change) and change.table.qualified == table.qualified:
                        _apply(found, change, strict=False)
        return found


def _touched(changes: Iterable[Change | Message]) -> set[tuple[str, Key | None]]:
    """Collect the tables and keys of changes, None for a whole table."""
    found: set[tuple[str, Key | None]] = set()
    for change in changes:
        if isinstance(change, Message):
            continue
        images = [row for row in (change.before, change.after) if row is not None]
        found |= {(change.table.qualified, key_of(change.table, row)) for row in images}
        if change.op is Op.TRUNCATE:
            found.add((change.table.qualified, None))
    return found


def _meet(one: set[tuple[str, Key | None]], other: set[tuple[str, Key | None]]) -> bool:
    return any(
        table == there and (key == their or key is None or their is None)
        for table, key in one
        for there, their in other
    )


def _apply(rows: dict[Key, Row], change: Change, *, strict: bool) -> None:
    if change.op is Op.TRUNCATE:
        rows.clear()
        return
    after = change.after
    new_key = key_of(change.table, after) if after is not None else None
    old_key = new_key if change.before is None else key_of(change.table, change.before)
    old = None if change.op is Op.CREATE else rows.pop(cast("Key", old_key), None)
    if strict and ((change.op is not Op.CREATE and old is None) or new_key in rows):
        raise ValueError(f"{change.op} of a row of {change.table.qualified} that is not there, or there already")
    if after is None or new_key is None:
        return
    if UNCHANGED in after:
        if old is None:
            raise ValueError(f"table {change.table.qualified}: a value left out, and no row that has it")
        after = tuple(was if now is UNCHANGED else now for was, now in zip(old, after, strict=True))
    rows[new_key] = after
