"""Compares the columns of rows in the log with those that the catalog shows: what else the log has is left out. Pure.

| the log has besides | who shows it | then |
|---|---|---|
| a column that was dropped since, or renamed | nobody any more | published: events have the columns of their time |
| ``DB_ROW_HASH_1``: of a UNIQUE key of long values (MariaDB) | nobody | left out |
| ``row_start``, ``row_end`` of a table WITH SYSTEM VERSIONING (MariaDB) that does not name them | nobody | left out |
| ``!hidden!…``: of an index of an expression (MySQL, should it ever be logged) | nobody | left out |
| any other, where the connector's user may not read all columns | those who may | left out: it may be one of them |

A table WITH SYSTEM VERSIONING has, beside each row, what it was before: an UPDATE writes the old row once more, with an
end, and a DELETE is the UPDATE that gives a row its end. SELECT shows what has no end yet, and so do its events.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cdc.model.change import UNCHANGED, Change, Op, Row, Table
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import Rows, TableMap
from connectors.mysql.rows.image_codegen import Read
from connectors.mysql.rows.row_images import Images, Reader

_HIDDEN: Final = re.compile(r"DB_ROW_HASH_\d+|!hidden!.*", re.DOTALL).fullmatch
_VERSIONED: Final = ("row_start", "row_end")
MICROS: Final = 6
NO_END: Final = (b"2038-01-19 03:14:07.999999", b"2106-02-07 06:28:15.999999", b"18446744073709551615")
"""What `row_end` says of a row that is true now: a time (MariaDB up to 11.4, and newer), or a transaction's number."""


@dataclass(frozen=True, slots=True)
class Shown:
    """What the catalog shows of a table's columns."""

    names: frozenset[str]
    row_end: str | None = None
    """The column that says until when a row was true, if the table's definition names it."""


@dataclass(frozen=True, slots=True)
class OwnColumns:
    """Says which columns of the log's rows are published, and which rows."""

    kept: tuple[int, ...]
    row_end: int | None = None
    unreadable: tuple[str, ...] = ()
    """Names of columns that are left out because the user may not read them."""

    def cut(self, row: Row | None) -> Row | None:
        return None if row is None else tuple([row[at] for at in self.kept])

    def change(self, op: Op, old: Row | None, new: Row | None) -> tuple[Op, Row | None, Row | None] | None:
        """Return what a change is to who sees no history; None: nothing."""
        if self.row_end is not None:
            old = None if old is None or self._ended(old) else old
            new = None if new is None or self._ended(new) else new
            if old is None and new is None:
                return None
            op = Op.DELETE if new is None else Op.CREATE if old is None else op
        return op, self.cut(old), self.cut(new)

    def _ended(self, row: Row) -> bool:
        end = row[self.row_end or 0]
        return end is not UNCHANGED and end not in NO_END


def compare(told: TableMap, shown: Shown, restricted: Callable[[], bool], *, mariadb: bool) -> OwnColumns | None:
    """Return what is a table's own in the log; None: all of it.

    `restricted` asks whether the user may not read all columns of the table; only where the log has one too many.
    """
    names = [column.name or "" for column in told.columns]
    row_end = next((at for at, name in enumerate(names) if name == shown.row_end), None)
    hidden = {at for at, name in enumerate(names) if name not in shown.names and _HIDDEN(name)}
    if mariadb and _is_versioned(told) and not shown.names & set(_VERSIONED):
        row_end = len(names) - 1
        hidden |= {row_end - 1, row_end}
    others = [at for at, name in enumerate(names) if name not in shown.names and at not in hidden]
    unreadable = set(others) if others and restricted() else set()
    if row_end is None and not hidden and not unreadable:
        return None
    kept = tuple(at for at in range(len(names)) if at not in hidden | unreadable)
    return OwnColumns(kept, row_end, tuple(names[at] for at in sorted(unreadable)))


def _is_versioned(told: TableMap) -> bool:
    """Tell whether the log's last columns are those that a table WITH SYSTEM VERSIONING has by itself."""
    last = told.columns[-2:]
    ends = [(table_map.TIMESTAMP2, MICROS)] * 2
    at = len(told.columns) - 1
    keyed = told.primary_key is None or at in [column for column, _ in told.primary_key]
    return keyed and tuple(c.name for c in last) == _VERSIONED and [(c.type, c.meta) for c in last] == ends


class RowReader(Protocol):
    """Decodes the Rows events of one table."""

    def whole(self) -> Read | None:
        """Return what reads one image of all columns; None where rows cannot be read so."""

    def changes(self, rows: Rows, table: Table, offset: int) -> Iterable[Change]: ...

    def own(self, images: Iterable[Images]) -> Iterable[Images]:
        """Return of images of all columns what is the table's own."""

    def __call__(self, rows: Rows) -> Iterable[Images]:
        """Return the images of one event, which may not be whole."""


class NoRows:
    """Stands for rows that cannot be told apart, or whose columns have no names: they are read again by SELECT."""

    def __init__(self, *, named: bool = True, why: str = "were written while it had no primary key") -> None:
        self.named, self.why = named, why

    def whole(self) -> Read | None:
        return None

    def own(self, images: Iterable[Images]) -> Iterable[Images]:  # noqa: ARG002 - there are none
        return ()

    def __call__(self, rows: Rows) -> Iterable[Images]:  # noqa: ARG002
        return ()

    def changes(self, rows: Rows, table: Table, offset: int) -> Iterable[Change]:  # noqa: ARG002
        return (Change(Op.READ, table, None, None, (offset, 0)),)


class OwnReader:
    """A `Reader` that gives of each row what is the table's own, and of history nothing."""

    def __init__(self, told: TableMap, own: OwnColumns) -> None:
        self._reader, self._own = Reader(told), own

    def whole(self) -> Read | None:
        return None

    def own(self, images: Iterable[Images]) -> list[Images]:
        return [
            (self._own.cut(old), self._own.cut(new))
            for old, new in images
            if self._own.change(Op.UPDATE, old, new) is not None
        ]

    def __call__(self, rows: Rows) -> list[Images]:
        return self.own(self._reader(rows))

    def changes(self, rows: Rows, table: Table, offset: int) -> Sequence[Change]:
        images: list[Images] = self._reader(rows)
        found = ((n, self._own.change(rows.op, *of)) for n, of in enumerate(images))
        return [Change(*of[:1], table, *of[1:], (offset, n)) for n, of in found if of is not None]
