"""From snapshot to stream: which events of the log the snapshot's rows already contain. Pure.

A table is read in key order. Each run of the connector that reads part of it adds a range: the keys up to where the run
got, and the view it read under. The first run reads under the view the slot exported; the log starts at exactly that
point, so nothing is hidden. A later run takes a view of its own while the log still starts at the old point: an event
of a key in its range is hidden if and only if the view saw the event's transaction. Visibility, not LSN, decides: a
commit reaches the log before it becomes visible.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from cdc.change import UNCHANGED, Change, Column, Row, Table
from cdc.errors import BugError

INTEGERS: Final = frozenset({"smallint", "integer", "bigint", "oid"})
"""Types that order by their number; all others order by their text's bytes in UTF-8."""

SortKey: TypeAlias = tuple[int | bytes, ...]


@dataclass(frozen=True, slots=True)
class View:
    """``pg_current_snapshot()``: which transactions a read saw."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> View:
        """From ``xmin:xmax:xip,xip``, 64-bit transaction ids."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: int) -> bool:
        """Whether the transaction with the 32-bit id `xid` (as the log gives it) had become visible."""
        full = (self.xmax & ~0xFFFFFFFF) | xid
        if full - self.xmax > 1 << 31:
            full -= 1 << 32
        elif self.xmax - full > 1 << 31:
            full += 1 << 32
        return full < self.xmax and full not in self.in_progress


@dataclass(frozen=True, slots=True)
class Range:
    """Keys up to and including `upto` (None: to the end) and after the range before it; read under `view`."""

    upto: tuple[str, ...] | None
    view: str | None
    """A number in the progress' views; None: the slot's own, which hides nothing."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """How far one table has been read."""

    done: bool = False
    rows: int = 0
    ranges: tuple[Range, ...] = ()

    @property
    def after(self) -> tuple[str, ...] | None:
        """The last key read."""
        return self.ranges[-1].upto if self.ranges else None

    def read(self, upto: tuple[str, ...] | None, view: str | None, rows: int) -> TableProgress:
        """After `rows` more rows under `view`; `upto` None: the table is done."""
        ranges = self.ranges
        if ranges and ranges[-1].view == view:
            ranges = ranges[:-1]
        return TableProgress(upto is None, self.rows + rows, (*ranges, Range(upto, view)))

    def to_json(self) -> dict[str, object]:
        return {
            "done": self.done,
            "rows": self.rows,
            "ranges": [{"upto": list(r.upto) if r.upto else None, "view": r.view} for r in self.ranges],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableProgress:
        ranges = (Range(tuple(r["upto"]) if r["upto"] else None, r["view"]) for r in value["ranges"])
        return cls(value["done"], value["rows"], tuple(ranges))


@dataclass(frozen=True, slots=True)
class Progress:
    """A snapshot's state: tables by `schema.table`, views by name."""

    tables: Mapping[str, TableProgress]
    views: Mapping[str, tuple[str, int]]
    """Number from 1, as text -> (``pg_current_snapshot()``, the log's end taken after it)."""

    def to_json(self) -> dict[str, object]:
        return {
            "tables": {name: progress.to_json() for name, progress in self.tables.items()},
            "views": {name: {"snapshot": text, "end": end} for name, (text, end) in self.views.items()},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        return cls(
            {name: TableProgress.from_json(table) for name, table in value.get("tables", {}).items()},
            {name: (view["snapshot"], view["end"]) for name, view in value.get("views", {}).items()},
        )


def sort_key(columns: Sequence[Column], values: Sequence[bytes]) -> SortKey:
    """A key's place in the order tables are read in."""
    return tuple(
        int(value) if column.type in INTEGERS else value for column, value in zip(columns, values, strict=True)
    )


class PostgresHandover:
    """The ranges of all tables, ready to be asked about every change."""

    def __init__(self, tables: Sequence[Table], progress: Progress) -> None:
        self._views = {name: View.parse(text) for name, (text, _) in progress.views.items()}
        self._end = max((end for _, end in progress.views.values()), default=0)
        self._ranges: dict[str, list[tuple[SortKey | None, View | None]]] = {}
        for table in tables:
            done = progress.tables.get(table.qualified)
            if done is None or all(r.view is None for r in done.ranges):
                continue
            columns = [table.columns[i] for i in table.key_indexes]
            self._ranges[table.qualified] = [
                (
                    sort_key(columns, [v.encode() for v in r.upto]) if r.upto is not None else None,
                    self._views[r.view] if r.view is not None else None,
                )
                for r in done.ranges
            ]

    @property
    def hides_nothing(self) -> bool:
        return not self._ranges

    def hides(self, change: Change, xid: int) -> bool:
        """True if the rows read already contain this change, which must be of one key: a key change is two."""
        ranges = self._ranges.get(change.table.qualified)
        if ranges is None:
            return False
        row = change.after if change.after is not None else change.before
        if row is None:
            return False  # a truncate belongs to no key: see `saw`
        return self._hidden(ranges, change.table, row, xid)

    def _hidden(self, ranges: Sequence[tuple[SortKey | None, View | None]], table: Table, row: Row, xid: int) -> bool:
        columns = [table.columns[i] for i in table.key_indexes]
        values = []
        for index in table.key_indexes:
            value = row[index]
            if value is None or value is UNCHANGED:
                raise BugError(f"table {table.qualified}: a change without its key")
            values.append(value)
        key = sort_key(columns, values)
        for upto, view in ranges:
            if upto is None or key <= upto:
                return view is not None and view.sees(xid)
        return False

    def saw(self, table: Table, view: int, xid: int) -> bool:
        """Whether rows of `table` read under the view with this number (0: the slot's own) saw the transaction."""
        of = self._views.get(str(view)) if table.qualified in self._ranges else None
        return of is not None and of.sees(xid)

    def spent(self, commit: int) -> bool:
        return commit >= self._end
