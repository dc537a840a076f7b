"""Twins of a source and its snapshotter, over a log in memory."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from cdc.change import Change, Idle, Offset, Row, Table, Transaction
from cdc.errors import BugError, OperatorError
from cdc.interfaces import Chunk, Handover, Start
from cdc.state import State
from cdc.testing.faults import At, nothing
from cdc.testing.log import Key, Logged, MemoryLog, View, key_of


class MemorySource:
    """A `Source` over a `MemoryLog`."""

    name = "memory"

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

    def verify(self, state: State) -> None:
        offset = int(state.offset["at"])
        if self._log.held_from is None or self._log.acknowledged > offset:
            raise OperatorError(
                f"a gap: the log begins at {self._log.acknowledged}, Kafka holds changes up to {offset}",
                hint="start over under a new connector name",
            )
        gone = sorted(set(state.tables) - self._log.carried)
        if gone:
            raise OperatorError(f"the log no longer carries {', '.join(gone)}", hint="start over")

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
        self._log.reveal_before(self._log.end)

    def current(self) -> int:
        return self._log.end

    def stream(self, offset: Offset) -> Iterator[Transaction | Idle]:
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
            if logged.commit < resume:
                continue
            self._at("source.frame")
            yield Transaction(
                f"{logged.xid}:{logged.commit}", logged.xid, logged.commit, logged.commit, self._changes(logged)
            )
            if self._read_to < logged.end:
                raise BugError("a transaction was left before its end")

    def _changes(self, logged: Logged) -> Iterator[Change]:
        captured = {table.qualified for table in self._tables} & logged.carried
        for change in logged.changes:
            if change.table.qualified in captured:
                self._at("source.change")
                yield change
        self._read_to = logged.end

    def position(self) -> tuple[Offset, int]:
        return {"at": self._read_to}, self._read_to

    def acknowledge(self, offset: Offset) -> None:
        self._at("source.acknowledge")
        self._log.acknowledged = max(self._log.acknowledged, int(offset["at"]))

    def lag_bytes(self) -> int | None:
        return self._log.end - self._read_to

    def close(self) -> None:
        for view in self._views:
            self._log.exported.pop(view, None)
        self._views.clear()


class MemoryHandover:
    """Hides what the views of a `MemorySnapshotter` saw."""

    def __init__(self, progress: Mapping[str, Any]) -> None:
        self.views = {int(number): view_from(view) for number, view in progress.get("views", {}).items()}
        self._ranges: dict[str, list[tuple[Key | None, int]]] = {
            name: [(_upto(r["upto"]), r["view"]) for r in table["ranges"]]
            for name, table in progress.get("tables", {}).items()
        }

    def hides(self, change: Change, xid: int) -> bool:
        row = change.after if change.after is not None else change.before
        if row is None:
            return False
        number = self.view_of(change.table, key_of(change.table, row))
        return number is not None and self.saw(change.table, number, xid)

    def view_of(self, table: Table, key: Key) -> int | None:
        """Under which view the key's place was read; None: it was not."""
        for upto, number in self._ranges.get(table.qualified, []):
            if upto is None or key <= upto:
                return number
        return None

    def saw(self, table: Table, view: int, xid: int) -> bool:
        return table.qualified in self._ranges and view in self.views and self.views[view].sees(xid)

    def spent(self, commit: int) -> bool:
        return all(commit >= view.end for view in self.views.values())


def view_from(value: Mapping[str, Any]) -> View:
    """A view as progress holds it."""
    return View(value["next"], frozenset(value["unseen"]), value["end"])


def _upto(texts: Sequence[str] | None) -> Key | None:
    return None if texts is None else tuple(text.encode() for text in texts)


class MemorySnapshotter:
    """A `Snapshotter` over a `MemoryLog`: tables in key order, under a source's view or, resumed, one of its own."""

    def __init__(self, log: MemoryLog, *, rows_each: int = 2, at: At = nothing) -> None:
        self._log = log
        self._rows_each = rows_each
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
            yield from self._table(table, seen, number, done, views)

    def _table(
        self, table: Table, seen: View, number: int, done: dict[str, dict[str, Any]], views: Mapping[str, object]
    ) -> Iterator[Chunk]:
        was = done.get(table.qualified, {"rows": 0, "done": False, "ranges": []})
        after = _upto(was["ranges"][-1]["upto"]) if was["ranges"] else None
        rows = sorted(item for item in self._log.rows(table, seen).items() if after is None or item[0] > after)
        count = was["rows"]
        for start in range(0, len(rows) + 1, self._rows_each):
            self._at("snapshot.chunk")
            part = rows[start : start + self._rows_each]
            last = start + self._rows_each > len(rows)
            count += len(part)
            upto = None if last else [text.decode() for text in part[-1][0]]
            ranges = [*was["ranges"], {"upto": upto, "view": number}]
            done[table.qualified] = {"rows": count, "done": last, "ranges": ranges}
            yield Chunk(
                table, [row for _, row in part], {"tables": dict(done), "views": views}, number, time.time_ns() // 10**6
            )

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:  # noqa: ARG002 - the seam's
        made = MemoryHandover(progress)
        return made if made.views else None

    def row(self, table: Table, key: Sequence[bytes]) -> Row | None:
        self._at("snapshot.row")
        return self._log.rows(table).get(tuple(key))

    def close(self) -> None:
        pass
