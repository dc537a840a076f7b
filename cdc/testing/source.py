"""Twins of a source and its snapshotter, over a log in memory."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

from cdc.encode.envelope.frame import in_wal
from cdc.model.change import Change, Coordinates, Idle, Message, Offset, Row, Table, Transaction, TransactionBatch, Xid
from cdc.model.errors import BugError, GapError, OperatorError
from cdc.model.interfaces import Chunk, Handover, Start, Window
from cdc.model.state import State
from cdc.model.table_schema import Description
from cdc.testing.faults import At, nothing
from cdc.testing.log import Key, Logged, MemoryLog, View, key_of

_TOGETHER = 3
"""The most changes of a small transaction, and the most transactions of a batch."""


class MemorySource:
    """A `Source` over a `MemoryLog`."""

    name = "memory"
    places: tuple[str, ...] = ("txId", "lsn")

    def __init__(self, log: MemoryLog, tables: Sequence[Table], *, at: At = nothing) -> None:
        self._log = log
        self._tables = tuple(sorted(tables, key=lambda table: table.qualified))
        self._at = at
        self._read_to = 0
        self._views: list[str] = []
        self.database = "memory"

    def connect(self) -> Mapping[str, str]:
        self._at("source.connect")
        return {"database": self.database}

    def tables(self) -> tuple[Table, ...]:
        return self._tables

    def unused(self) -> None:
        if self._log.held_from is not None:
            raise OperatorError("the log is held already, and no position knows of it", hint="let go of it")

    def verify(self, state: State) -> tuple[Offset, int] | None:
        offset = int(state.offset["at"])
        if self._log.held_from is None or self._log.acknowledged > offset:
            raise GapError(
                f"a gap: the log begins at {self._log.acknowledged}, Kafka holds changes up to {offset}",
                hint="start over under a new connector name",
            )
        if offset > self._log.end:
            raise GapError(
                f"the log ends at {self._log.end}, Kafka holds changes up to {offset}: an older copy was restored",
                hint="start over under a new connector name",
            )
        gone = sorted(set(state.tables) - self._log.carried)
        if gone:
            raise OperatorError(f"the log no longer carries {', '.join(gone)}", hint="start over")
        return None

    def hold(self, tables: Sequence[Table]) -> Start:
        self._at("source.hold")
        log, end = self._log, self._log.end
        log.carried |= {table.qualified for table in tables}
        log.held_from = log.acknowledged = end
        view = f"held-{end}"
        log.exported[view] = View(len(log.transactions) + 1, frozenset(), end)
        self._views.append(view)
        self._at("source.held")
        return Start({"at": end}, end, view)

    def extend(self, tables: Sequence[Table]) -> None:
        self._at("source.extend")
        self._log.carried |= {table.qualified for table in tables}

    def carried(self) -> Mapping[str, str]:
        return dict.fromkeys(self._log.carried, "")

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        pass

    def tend(self) -> None:
        pass

    def current(self) -> int:
        return self._log.end

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        resume = self._read_to = int(offset["at"])
        read = 0
        while True:
            transactions = self._log.transactions
            if read == len(transactions):
                self._read_to = max(self._read_to, self._log.end)
                yield Idle()
                self._at("source.idle")
                continue
            logged = transactions[read]
            read += 1
            if (logged.end <= resume) if logged.alone else (logged.commit < resume):
                continue
            self._at("source.frame")
            if logged.alone:
                self._read_to = logged.end
                yield from (m for m in logged.changes if isinstance(m, Message))
                continue
            together = [logged]
            while _small(logged) and len(together) < _TOGETHER and read < len(transactions):
                if not _small(transactions[read]):
                    break
                self._at("source.frame")
                together.append(transactions[read])
                read += 1
            if len(together) > 1:
                yield TransactionBatch([_transaction(one, list(self._changes(one))) for one in together])
                continue
            yield _transaction(logged, self._changes(logged))
            if self._read_to < logged.end:
                raise BugError("a transaction was left before its end")

    def _changes(self, logged: Logged) -> Iterator[Change | Message]:
        captured = {table.qualified for table in self._tables} & logged.carried
        for change in logged.changes:
            if isinstance(change, Message) or change.table.qualified in captured:
                self._at("source.change")
                yield change
        self._read_to = logged.end

    def position(self) -> tuple[Offset, int]:
        return {"at": self._read_to}, self._read_to

    def acknowledge(self, offset: Offset) -> None:
        self._at("source.acknowledge")
        self._log.acknowledged = max(self._log.acknowledged, int(offset["at"]))

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        return in_wal(None), commit

    def lag_bytes(self) -> int | None:
        return self._log.end - self._read_to

    def close(self) -> None:
        for view in self._views:
            self._log.exported.pop(view, None)
        self._views.clear()


def _small(logged: Logged) -> bool:
    return not logged.alone and len(logged.changes) <= _TOGETHER


def _transaction(logged: Logged, changes: Iterable[Change | Message]) -> Transaction:
    name = f"{logged.xid}:{logged.commit}"
    return Transaction(name, logged.xid, logged.commit, logged.commit, changes, in_wal(logged.xid))


class MemoryHandover:
    """Hides what the views of a `MemorySnapshotter` saw."""

    def __init__(self, progress: Mapping[str, Any]) -> None:
        self.views = {int(number): view_from(view) for number, view in progress.get("views", {}).items()}
        self._ranges = {name: _ranges(table) for name, table in progress.get("tables", {}).items()}

    def hides(self, change: Change, xid: Xid) -> bool:
        row = change.after if change.after is not None else change.before
        if row is None:
            return False
        number = self.view_of(change.table, key_of(change.table, row))
        return number is not None and self.saw(change.table, number, xid)

    def view_of(self, table: Table, key: Key) -> int | None:
        """Return the view that the key was read under; None: it was not read."""
        for upto, number in self._ranges.get(table.qualified, []):
            if upto is None or key <= upto:
                return number
        return None

    def saw(self, table: Table, view: int, xid: Xid) -> bool:
        return table.qualified in self._ranges and view in self.views and self.views[view].sees(xid)

    def spent(self, commit: int) -> bool:
        return all(commit >= view.end for view in self.views.values())


def view_from(value: Mapping[str, Any]) -> View:
    """Read a view from progress."""
    return View(value["next"], frozenset(value["unseen"]), value["end"])


_Range: TypeAlias = tuple[Key | None, int | None]
"""The last key, None: to the end; and the view it was read under, None: not yet."""


def _ranges(progress: Mapping[str, Any]) -> list[_Range]:
    return [
        (None if r["upto"] is None else tuple(k.encode() for k in r["upto"]), r["view"]) for r in progress["ranges"]
    ]


def _progress(rows: int, ranges: Sequence[_Range]) -> dict[str, Any]:
    written = [{"upto": upto and [text.decode() for text in upto], "view": view} for upto, view in ranges]
    return {"rows": rows, "done": all(view is not None for _, view in ranges), "ranges": written}


def _after_reading(ranges: Sequence[_Range], after: Key | None, upto: Key | None, view: int) -> Iterator[_Range]:
    """Mark the keys behind `after` up to `upto`, part of one unread range, as read under `view`."""
    start: Key | None = None
    for end, seen in ranges:
        begins = start is None or (after is not None and start <= after)
        if seen is None and begins and (end is None or (upto is not None and upto <= end)):
            if start != after:
                yield after, None
            yield upto, view
            if end != upto:
                yield end, None
        else:
            yield end, seen
        start = end


@dataclass(slots=True)
class _KeyRange:
    """Rows of one table that one reader reads, in order."""

    table: Table
    after: Key | None
    upto: Key | None
    rows: list[tuple[Key, Row]]


class MemorySnapshotter:
    """A `Snapshotter` over a `MemoryLog`, under a source's view or, resumed, one of its own.

    `workers` key ranges of the tables are read in turns, each in key order.
    """

    def __init__(
        self, log: MemoryLog, *, rows_each: int = 2, workers: int = 1, tells: bool = True, at: At = nothing
    ) -> None:
        """Not `tells`: it does not know which transaction has written a row last."""
        self._tells = tells
        self._log = log
        self._rows_each = rows_each
        self._workers = workers
        self._at = at

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        done = cast("dict[str, dict[str, Any]]", dict(progress.get("tables", {})))  # type: ignore[call-overload]
        views = cast("dict[str, dict[str, Any]]", dict(progress.get("views", {})))  # type: ignore[call-overload]
        remaining = [table for table in tables if not done.get(table.qualified, {}).get("done")]
        if not remaining:
            return
        self._at("snapshot.view")
        number = 0
        if view is not None:
            seen = self._log.exported[view]
        else:
            self._log.reveal_before(self._log.held_from or 0)
            seen = self._log.view()
            number = len(views) + 1
            views[str(number)] = {"next": seen.next, "unseen": sorted(seen.unseen), "end": seen.end}
        for table in remaining:
            done.setdefault(table.qualified, _progress(0, [(None, None)]))
        waiting = [
            piece for table in remaining for piece in self._key_ranges(table, seen, _ranges(done[table.qualified]))
        ]
        reading, waiting = waiting[: self._workers], waiting[self._workers :]
        while reading:
            self._at("snapshot.chunk")
            piece = reading.pop(0)
            rows, piece.rows = piece.rows[: self._rows_each], piece.rows[self._rows_each :]
            last = len(rows) < self._rows_each
            upto = piece.upto if last else rows[-1][0]
            was = done[piece.table.qualified]
            ranges = _ranges(was)
            if piece.after is None or piece.after != upto:
                ranges = list(_after_reading(ranges, piece.after, upto, number))
            done[piece.table.qualified] = _progress(was["rows"] + len(rows), ranges)
            piece.after = upto
            reading += [piece] if not last else waiting[:1]
            waiting = waiting[1:] if last else waiting
            yield Chunk(
                piece.table,
                [row for _, row in rows],
                {"tables": dict(done), "views": views},
                number,
                time.time_ns() // 10**6,
            )

    def _key_ranges(self, table: Table, seen: View, ranges: Sequence[_Range]) -> Iterator[_KeyRange]:
        """List the ranges not read yet, split where there are fewer gaps than workers."""
        rows = sorted(self._log.rows(table, seen).items())
        shares = self._workers if sum(view is None for _, view in ranges) < self._workers else 1
        after: Key | None = None
        for upto, view in ranges:
            if view is None:
                inside = [r for r in rows if (after is None or r[0] > after) and (upto is None or r[0] <= upto)]
                cuts = sorted(
                    {inside[len(inside) * share // shares][0] for share in range(1, shares) if inside} - {upto}
                )
                for cut in (*cuts, upto):
                    part = [r for r in inside if cut is None or r[0] <= cut]
                    inside = inside[len(part) :]
                    yield _KeyRange(table, after, cut, part)
                    after = cut
            after = upto

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:  # noqa: ARG002 - the seam's
        made = MemoryHandover(progress)
        return made if made.views else None

    def window(self, table: Table, after: Key | None, rows: int, *, key: str, first: bool) -> Window | None:
        self._at("snapshot.window")
        if first:
            self._log.reveal_before(self._log.end)
        if table.key_order != key:
            after = None
        view = self._log.view()
        found = sorted(item for item in self._log.rows(table, view).items() if after is None or item[0] > after)[:rows]
        last = found[-1][0] if len(found) == rows else None
        read = [row for _, row in found]
        return Window(table, read, last, view.sees, self._log.end, None, time.time_ns() // 10**6)

    def rows(self, table: Table, keys: Sequence[Key], *, first: bool) -> Window | None:
        self._at("snapshot.window")
        if first:
            self._log.reveal_before(self._log.end)
        view = self._log.view()
        found = self._log.rows(table, view)
        read = [found[key] for key in keys if key in found]
        return Window(table, read, None, view.sees, self._log.end, None, time.time_ns() // 10**6)

    def sizes(self, tables: Sequence[Table]) -> Mapping[str, int]:
        return {table.qualified: len(self._log.rows(table)) for table in tables}

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        self._at("snapshot.row")
        return self._log.rows(table).get(tuple(key))

    def row_written_last(self, table: Table, key: Sequence[bytes], xid: Xid) -> Row | None:
        view = self._log.view()
        for logged in reversed(self._log.transactions) if self._tells else ():
            if view.sees(logged.xid) and logged.writes(table, tuple(key)):
                return self._log.rows(table, view).get(tuple(key)) if logged.xid == xid else None
        return None

    def close(self) -> None:
        pass
