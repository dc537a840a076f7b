"""The hand-over from snapshot to stream: which events of the log the snapshot's rows already contain. Pure.

The state. The keys of a table have an order (`sort_key`), and ranges of keys cover all of them. Each range is either
not read yet (its view is None) or was read once, under the view with its number. `TableProgress.read` makes the only
transition, from None to a view, and it is committed in one Kafka transaction with the rows that were read. View 0 is
the one that the replication slot exported; a run after a crash takes a view of its own, while the log still starts at
the slot's point. The rows' positions lie before those of all events of the log, which is followed once every range has
been read.

The rule. An event of key k and transaction T is hidden if and only if the view V that k was read under sees T. What V
sees is decided by visibility (``pg_current_snapshot()``), never by LSN: PostgreSQL writes a commit to the log before it
makes it visible, so a transaction that lies before V's place in the log may be one that V does not see.

Why no change is lost and none is undone:

1. The log is complete. A transaction that is not in the log committed before the slot's point, and every view sees it:
   view 0 by the slot's definition, a later view because it is taken only after all older transactions have ended
   (`await_older_transactions`). So what V does not see of k is in the log.
2. What V sees of k comes first. Two transactions that write one key are ordered by the row's lock: the second goes on
   only when the first is visible, and the log has their commits in that order. So if V sees one of them, it sees all
   that wrote k before, and the hidden events of k are the first ones that the log has of it.
3. Therefore the row as V has it (or its absence), followed by the events that are not hidden, is the history of k from
   V on. Hiding more would lose a change; hiding less would show an older state of k after a newer one.
4. Keys are judged one by one. A key change is a delete of the old key and a create of the new one, each judged by its
   own range. A truncate has no key: it deletes the topic's live keys, except rows read under a view that saw it
   (`saw`).
5. The rule ends. The log's end is read after each view is taken, so all that a view sees has its commit before that
   end. Behind the last of these ends nothing can be hidden (`spent`).

Views of MySQL's log (`snapshot.mysql.visibility`) know only a part of what they see: the GTIDs executed before the view
was taken or, without GTIDs, all commits below a place in the log. By 2 that part too has the first transactions of each
key, so the rest of what was seen is published again, in order, and the last event of each key is still the right one.
All other views know the whole of it.

PostgreSQL: https://www.postgresql.org/docs/current/logicaldecoding-explanation.html (exported snapshots) and
https://www.postgresql.org/docs/current/functions-info.html (``pg_snapshot``). The watermarks of DBLog (Andreakis and
Papapanagiotou, https://arxiv.org/abs/2010.12597) compare log positions, which needs commits to be visible in log order.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol, TypeAlias

from cdc.model.change import UNCHANGED, Change, Column, Row, Table, Xid
from cdc.model.errors import BugError
from cdc.model.state import Key, key_from_json, key_to_json

_MYSQL_INTEGERS: Final = ("tinyint", "smallint", "mediumint", "int", "bigint")
INTEGERS: Final = frozenset(
    {"smallint", "integer", "bigint", "oid", *_MYSQL_INTEGERS, *(f"{name} unsigned" for name in _MYSQL_INTEGERS)}
)
"""Types that order by their number; all others order by their text's bytes in UTF-8."""

SortKey: TypeAlias = tuple[int | bytes, ...]
KeyOrder: TypeAlias = tuple[tuple[str, bool], ...]
"""The key's columns in key order, and whether each orders by its number."""


class ReadView(Protocol):
    """Knows which transactions a view saw."""

    def sees(self, xid: Xid) -> bool:
        """Whether the view certainly saw the transaction with this xid."""


@dataclass(frozen=True, slots=True)
class PostgresView:
    """A view of PostgreSQL's, ``pg_current_snapshot()``: it knows which transactions a read saw."""

    xmin: int
    xmax: int
    in_progress: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> PostgresView:
        """Parse ``xmin:xmax:xip,xip``, 64-bit transaction ids."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), frozenset(int(x) for x in running.split(",") if x))

    def sees(self, xid: Xid) -> bool:
        """Whether the transaction with the 32-bit id `xid`, as the log gives it, was visible.

        The log's ids are at most 2**31 from the view's: PostgreSQL itself allows no more.
        """
        if isinstance(xid, str):
            raise BugError("PostgreSQL's transactions have numbers")
        full = (self.xmax & ~0xFFFFFFFF) | xid
        if full - self.xmax > 1 << 31:
            full -= 1 << 32
        elif self.xmax - full > 1 << 31:
            full += 1 << 32
        return full < self.xmax and full not in self.in_progress


@dataclass(frozen=True, slots=True)
class Range:
    """A range of keys, up to and including `upto` (None: to the end) and behind the range before it."""

    upto: Key | None
    view: int | None
    """The number of the view they were read under; 0 is the slot's own, which hides nothing; None: not read yet."""


@dataclass(frozen=True, slots=True)
class TableProgress:
    """Knows which keys of one table have been read, and under which view: ranges that cover all keys, in order.

    Neighbours differ in their view, so the list stays short: it has an item for each place where a run was interrupted
    or a session is reading.
    """

    rows: int = 0
    ranges: tuple[Range, ...] = (Range(None, None),)
    estimate: int = 0
    """The estimated number of rows at the beginning."""
    order: KeyOrder = ()
    """The order of the key that the ranges are of."""

    @property
    def done(self) -> bool:
        return all(r.view is not None for r in self.ranges)

    def gaps(self) -> Iterator[tuple[Key | None, Key | None]]:
        """List the keys not read yet: behind one key (None: from the start), up to and including another."""
        after = None
        for r in self.ranges:
            if r.view is None:
                yield after, r.upto
            after = r.upto

    def read(self, *, after: Key | None, upto: Key | None, view: int, rows: int) -> TableProgress:
        """Mark the keys behind `after` up to and including `upto`, all of one gap, as read, with `rows` more rows.

        Raises BugError for keys that were read before.
        """
        if after is not None and after == upto:
            return replace(self, rows=self.rows + rows)
        made: list[Range] = []
        found = False
        start: Key | None = None
        for r in self.ranges:
            if r.view is None and _holds(self.order, (start, r.upto), (after, upto)):
                found = True
                if start != after:
                    made.append(Range(after, None))
                made.append(Range(upto, view))
                if r.upto != upto:
                    made.append(r)
            else:
                made.append(r)
            start = r.upto
        if not found:
            raise BugError("a snapshot read keys that it had read before")
        return replace(self, rows=self.rows + rows, ranges=tuple(_merged(made)))

    def to_json(self) -> dict[str, object]:
        return {
            "done": self.done,
            "rows": self.rows,
            "estimate": self.estimate,
            "order": self.order,
            "ranges": [{"upto": None if r.upto is None else key_to_json(r.upto), "view": r.view} for r in self.ranges],
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> TableProgress:
        ranges = (Range(None if r["upto"] is None else key_from_json(r["upto"]), r["view"]) for r in value["ranges"])
        return cls(value["rows"], tuple(ranges), value["estimate"], tuple((name, n) for name, n in value["order"]))


def _holds(order: KeyOrder, gap: tuple[Key | None, Key | None], part: tuple[Key | None, Key | None]) -> bool:
    (gap_after, gap_upto), (after, upto) = gap, part
    begins = gap_after is None or (after is not None and sort_key(order, gap_after) <= sort_key(order, after))
    ends = gap_upto is None or (upto is not None and sort_key(order, upto) <= sort_key(order, gap_upto))
    return begins and ends


def _merged(ranges: Iterable[Range]) -> Iterator[Range]:
    held: Range | None = None
    for r in ranges:
        if held is not None and held.view != r.view:
            yield held
        held = r
    if held is not None:
        yield held


@dataclass(frozen=True, slots=True)
class Progress:
    """The progress of a snapshot: tables by `schema.table`, views by number from 1."""

    tables: Mapping[str, TableProgress] = field(default_factory=dict)
    views: Mapping[int, tuple[str, int]] = field(default_factory=dict)
    """What each view saw (``pg_current_snapshot()``), and the log's end, read after it."""
    started_at_ms: int = 0
    """When the current run began to read."""
    rows_before: int = 0
    """How many rows earlier runs had read."""

    def of(self, table: Table) -> TableProgress:
        """Return what has been read by the key that the table has now: if the key has changed, nothing."""
        order = key_order(table)
        found = self.tables.get(table.qualified)
        return found if found is not None and found.order == order else TableProgress(order=order)

    def with_table(self, table: Table, progress: TableProgress) -> Progress:
        return replace(self, tables={**self.tables, table.qualified: progress})

    def to_json(self) -> dict[str, object]:
        return {
            "tables": {name: progress.to_json() for name, progress in self.tables.items()},
            "views": {str(number): {"snapshot": text, "end": end} for number, (text, end) in self.views.items()},
            "run": {"started_at_ms": self.started_at_ms, "rows_before": self.rows_before},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Progress:
        run = value.get("run", {})
        return cls(
            {name: TableProgress.from_json(table) for name, table in value.get("tables", {}).items()},
            {int(number): (view["snapshot"], view["end"]) for number, view in value.get("views", {}).items()},
            run.get("started_at_ms", 0),
            run.get("rows_before", 0),
        )


def key_order(table: Table) -> KeyOrder:
    """Return how the table's keys are ordered."""
    return tuple((column.name, column.type in INTEGERS) for column in key_columns(table))


def sort_key(order: KeyOrder, values: Key) -> SortKey:
    """Make what sorts keys in the order that tables are read in."""
    return tuple(int(value) if number else value for (_, number), value in zip(order, values, strict=True))


def key_columns(table: Table) -> tuple[Column, ...]:
    """Return the key's columns in key order."""
    return tuple(table.columns[index] for index in table.key_indexes)


def key_of(table: Table, row: Row) -> Key:
    """Take a row's key. Raises BugError for a row without a part of it."""
    key = []
    for index in table.key_indexes:
        value = row[index]
        if value is None or value is UNCHANGED:
            raise BugError(f"table {table.qualified}: a row or change without its key")
        key.append(value)
    return tuple(key)


class RangeHandover:
    """Answers for every change of the log whether the ranges read already contain it."""

    def __init__(self, tables: Sequence[Table], progress: Progress, parse: Callable[[str], ReadView]) -> None:
        """`parse` makes a view from its text in `progress`."""
        self._views = {number: parse(text) for number, (text, _) in progress.views.items()}
        self._end = max((end for _, end in progress.views.values()), default=0)
        self._ranges: dict[str, tuple[KeyOrder, list[SortKey], list[ReadView | None]]] = {}
        for name in (table.qualified for table in tables):
            at = progress.tables.get(name, TableProgress())
            if any(r.view for r in at.ranges):
                self._ranges[name] = (
                    at.order,
                    [sort_key(at.order, r.upto) for r in at.ranges if r.upto is not None],
                    [self._views[r.view] if r.view else None for r in at.ranges],
                )

    @property
    def hides_nothing(self) -> bool:
        return not self._ranges

    def hides(self, change: Change, xid: Xid) -> bool:
        """True if the rows read already contain this change of one key; a key change must be split first."""
        ranges = self._ranges.get(change.table.qualified)
        if ranges is None:
            return False
        row = change.after if change.after is not None else change.before
        if row is None:
            return False  # a truncate belongs to no key: see `saw`
        order, bounds, views = ranges
        if key_order(change.table) != order:
            return False  # of another key than the rows were read by: the table is read again
        view = views[bisect_left(bounds, sort_key(order, key_of(change.table, row)))]
        return view is not None and view.sees(xid)

    def saw(self, table: Table, view: int, xid: Xid) -> bool:
        """Whether the view with this number (0: the slot's own), under which rows of `table` were read, saw `xid`."""
        of = self._views.get(view) if table.qualified in self._ranges else None
        return of is not None and of.sees(xid)

    def spent(self, commit: int) -> bool:
        return commit >= self._end
