"""Keeps the change table of a connector in a SQLite file, and the triggers that write to it.

Why nothing that was committed is missed, and nothing comes half:

- SQLite has one writer at a time, and a reader sees whole transactions. So the numbers of the change table rise in the
  order of commits, and all that a reader sees ends where a transaction ends. Rows that lie between two looks are given
  as one transaction, however many the application had: no look ever divides one.
- The numbers have no holes: AUTOINCREMENT counts in the transaction, so a rollback takes its numbers back, and goes on
  behind the greatest number there is. A hole means that somebody has deleted rows.
- What triggers have written is deleted when it is acknowledged, and by nobody else: triggers on the change table refuse
  it (`guards`).
- The row that a position names stays in the table until a later one is acknowledged, and the position knows when it was
  written: so a file that was restored, or is another one, is found out.
- A view of the data is taken behind a mark: a row of the change table that is written while no other writer can commit.
  What lies before the mark the view has seen, what lies behind it has not; and no transaction that is given spans a
  mark.
- Triggers are compared as they stand in the schema, with their places in it: a trigger that was taken away and made
  again has another place, and what was written meanwhile is not known. The table is then read again.
"""

from __future__ import annotations

import hashlib
import itertools
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from cdc.config.table_patterns import matches
from cdc.model.change import Offset
from cdc.model.errors import CdcError, ChangedError, GapError, OperatorError
from cdc.model.state import State
from connectors.triggers.change_tables import CLOSE_THE_GAP
from connectors.triggers.sqlite.catalog import SCHEMA, Catalog, Found, Shape
from connectors.triggers.sqlite.session import Session, quoted
from connectors.triggers.sqlite.triggers import MARK, NOW, SAFE, Names, guards, tables, triggers, written

_LOG: Final = 0
"""The shape that marks have; its columns are the change table's id."""
_DELETED_AT_ONCE: Final = 10_000
_PREPARED: Final = itertools.count()
"""Makes statements differ: Python keeps prepared ones, and EXPLAIN does not look whether the schema is another."""


@dataclass(frozen=True, slots=True)
class Logged:
    """Is a row of the change table."""

    seq: int
    shape: int
    op: str
    before: bytes | None
    after: bytes | None
    at_ms: int

    @classmethod
    def of(cls, row: Sequence[Any]) -> Logged:
        seq, shape, op, before, after, at_ms = row
        return cls(seq, shape, op.decode(), before, after, at_ms)


def offset(log: str, seq: int, at_ms: int) -> Offset:
    """Return where to resume behind a row of the change table."""
    return {"log": log, "change": seq, "at_ms": at_ms}


def with_views(state: State) -> Offset:
    """Return a position as that of all that was published: a first snapshot may have read rows behind later marks."""
    at = state.offset
    for view in cast("Mapping[str, Mapping[str, str]]", state.snapshot.get("views", {})).values():
        seq, _, at_ms = view["snapshot"].partition(" ")
        if at_ms and int(seq) > int(at["change"]):
            at = {**at, "change": int(seq), "at_ms": int(at_ms)}
    return at


class ChangeLog:
    """Is one connector's change table, through a session that stays the caller's."""

    def __init__(self, session: Session, connector: str, where: Collection[str] = ()) -> None:
        """`where` names the tables of which not all rows are published, for who makes or compares triggers."""
        self._session, self._where = session, where
        self.names = Names(connector)
        self._changes = quoted(self.names.changes)
        self._shapes = quoted(self.names.shapes)

    @property
    def catalog(self) -> Catalog:
        return Catalog(self._session)

    @property
    def place(self) -> str:
        return self.names.changes

    def exists(self) -> bool:
        """Whether there is a change table of its name."""
        return self.identity() is not None

    def identity(self) -> str | None:
        """Return the change table's id; None: there is none."""
        if self._exists(self.names.changes) and self._exists(self.names.shapes):
            for (text,) in self._ask(f"SELECT columns FROM {self._shapes} WHERE shape = ?", _LOG):
                return str(text.decode())
        return None

    def _exists(self, name: str) -> bool:
        return bool(self._ask("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", name))

    def make(self, found: Iterable[Found]) -> Offset:
        """Make the change table and all triggers, in place of any there were; return where it begins."""
        log = str(uuid.uuid4())
        with self.writing():
            end = self.last()  # what has waited for a place in the old table finds it in the new one
            for name in self._ours():
                self._do(f"DROP TRIGGER {quoted(name)}")
            for name in (self.names.last, self.names.replaced, self.names.shapes, self.names.changes):
                self._do(f"DROP TABLE IF EXISTS {quoted(name)}")
            for statement in tables(self.names):
                self._do(statement)
            self._ask(f"INSERT INTO {self._shapes} VALUES (?, '', ?), (?, '', '0')", _LOG, log, SAFE)
            self._put_guards()
            self._ask("INSERT INTO sqlite_sequence VALUES (?, ?)", self.names.changes, end)
            for one in found:
                self._install(one)
            self._put_last()
            seq = self.mark()
            at_ms = self.written_at(seq)
        return offset(log, seq, at_ms or 0)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep all other writers out."""
        self._do("BEGIN IMMEDIATE")
        try:
            yield
            self._do("COMMIT")
        finally:
            self._session.rollback()

    def mark(self) -> int:
        """Write a mark and return its number. Called inside `writing`."""
        rows = self._ask(
            f"INSERT INTO {self._changes} (shape, op, at_ms) VALUES ({_LOG}, '{MARK}', {NOW}) RETURNING seq"
        )
        return int(rows[0][0])

    def written_at(self, seq: int) -> int | None:
        """Return when a row was written, in ms; None: it is not there."""
        rows = self._ask(f"SELECT at_ms FROM {self._changes} WHERE seq = ?", seq)
        return int(rows[0][0]) if rows else None

    def last(self) -> int:
        """Return the number of the newest row, whether it is still there or not."""
        if not self._exists("sqlite_sequence") or not self._exists(self.names.changes):
            return 0
        rows = self._ask(
            "SELECT max(coalesce((SELECT seq FROM sqlite_sequence WHERE name = ?), 0), "
            f"coalesce((SELECT max(seq) FROM {self._changes}), 0))",
            self.names.changes,
        )  # OR FAIL keeps rows that are not counted yet, and an application may have all numbers begin at 1 again
        return int(rows[0][0])

    def was_moved(self, then: str, here: str, at: Offset) -> bool:
        """Whether this is the file that a position names by another path: it has that log, and nothing is there now.

        A copy beside the first one has the log, too: that the first is gone, or the same, tells them apart.
        """
        if then == here or "log" not in at or self.identity() != at["log"]:
            return False
        path = Path(then)
        return not path.exists() or path.samefile(here)

    def has(self, seq: int) -> bool:
        """Whether a row is there."""
        return bool(self._ask(f"SELECT 1 FROM {self._changes} WHERE seq = ?", seq))

    def refusals(self, at: Offset) -> Iterator[OperatorError]:
        """Give why the change table cannot be followed from a position without a gap."""
        for name in self._others():
            yield GapError(
                f"changes altered: trigger {name} is on a table of connector {self.names.connector} and is not its "
                "own: what it has changed, or kept from being written down, is not known",
                hint=CLOSE_THE_GAP,
            )
        log, seq, end = self.identity(), int(at["change"]), 0
        if log is None:
            yield GapError(f"change table missing: {self.names.changes} is gone from {self._session.path}",
                           hint=CLOSE_THE_GAP)  # fmt: skip
            return
        if log != at["log"]:
            yield GapError(
                f"change table made again: {self.names.changes} is not the one that the position is of",
                hint=CLOSE_THE_GAP,
            )
            return
        if (end := self.last()) < seq:
            yield GapError(
                f"file behind the position: its changes end at {end}, but Kafka holds those up to {seq}: an older copy "
                "was restored, and the topics have what it does not",
                hint=CLOSE_THE_GAP,
            )
            return
        written_at = self.written_at(seq)
        if written_at is None:
            yield self.hole(seq)
        elif written_at != at["at_ms"]:
            yield GapError(
                f"another file: change {seq} of {self.names.changes} was written at another time than the one that "
                "Kafka holds: a copy was restored and written to",
                hint=CLOSE_THE_GAP,
            )

    def hole(self, seq: int) -> GapError:
        """Return the error of a change that somebody has deleted."""
        return GapError(
            f"changes deleted: {self.names.changes} has no row {seq}, which Kafka does not hold yet",
            hint=CLOSE_THE_GAP,
        )

    def shape(self, number: int) -> tuple[str, Shape]:
        """Return the table and the columns of a shape."""
        for name, columns in self._ask(f"SELECT name, columns FROM {self._shapes} WHERE shape = ?", number):
            if (found := _shape(columns)) is not None:
                return name.decode(), found
        raise GapError(f"changes altered: {self.names.shapes} has no shape {number}", hint=CLOSE_THE_GAP)

    def standing(self, found: Sequence[Found]) -> dict[str, str | None]:
        """Return in a word how the triggers of each table stand in the schema; None: they are not as they were made.

        Names are as in `tables`.
        """
        newest = {}
        if self.identity() is not None:
            for number, name, columns in self._ask(f"SELECT shape, name, columns FROM {self._shapes} ORDER BY shape"):
                newest[name.decode()] = (number, _shape(columns) if number > _LOG else None)
        there = {
            name.decode(): (rowid, statement.decode())
            for rowid, name, statement in self._ask("SELECT rowid, name, sql FROM sqlite_schema WHERE type = 'trigger'")
        }
        return {one.qualified: self._stands(one, newest.get(one.name), there) for one in found}

    def _stands(
        self, found: Found, newest: tuple[int, Shape | None] | None, there: Mapping[str, tuple[int, str]]
    ) -> str | None:
        if newest is None or newest[1] != found.shape:
            return None
        wanted = self._triggers(found, newest[0]) | guards(self.names)
        if any(there.get(name, (0, ""))[1] != statement for name, statement in wanted.items()):
            return None
        places = [f"{there[name][0]} {statement}" for name, statement in sorted(wanted.items())]
        return hashlib.sha256("\n".join(places).encode()).hexdigest()[:16]

    def renamed(self, name: str) -> str | None:
        """Return what a table that is gone is called now: a table takes its triggers with it."""
        rows = self._ask(
            "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' AND name = ?",
            self.names.trigger(name.removeprefix(f"{SCHEMA}."), "insert"),
        )
        if not rows and not self.exists():
            raise OperatorError(f"change table missing: {self.names.changes} is gone from {self._session.path}")
        return f"{SCHEMA}.{rows[0][0].decode()}" if rows else None

    def install(self, found: Iterable[Found], captured: Iterable[Found]) -> None:
        """Make the triggers of tables, in place of theirs; drop those of tables that are not captured any more."""
        keep = {name for one in captured for name in self._triggers(one, 0)}
        with self.writing():
            for name in self._ours():
                if name not in keep:
                    self._do(f"DROP TRIGGER {quoted(name)}")
            self._put_guards()
            for one in found:
                self._install(one)
            self._put_last()

    def _put_guards(self) -> None:
        there = dict(self._ask("SELECT name, sql FROM sqlite_schema WHERE type = 'trigger'"))
        for name, statement in guards(self.names).items():
            if there.get(name.encode()) != statement.encode():
                self._do(f"DROP TRIGGER IF EXISTS {quoted(name)}")
                self._do(statement)

    def _others(self) -> list[str]:
        """Return the triggers on the tables that are ours that are not."""
        rows = self._ask(
            "SELECT name FROM sqlite_schema WHERE type = 'trigger' AND tbl_name IN (?, ?, ?) ORDER BY name",
            self.names.changes, self.names.shapes, self.names.replaced,
        )  # fmt: skip
        return [name.decode() for (name,) in rows if name.decode() not in guards(self.names)]

    def _install(self, found: Found) -> None:
        now = self.catalog.find(found.name)
        if now is None or (now.kind, now.shape) != (found.kind, found.shape):
            raise ChangedError(f"table {found.qualified} has just been altered, dropped or renamed: looking again")
        for name in self._ours():
            if name.startswith(self.names.trigger(found.name, "")):
                self._do(f"DROP TRIGGER {quoted(name)}")
        rows = self._ask(
            f"INSERT INTO {self._shapes} (name, columns) VALUES (?, ?) RETURNING shape", found.name,
            found.shape.to_json(),
        )  # fmt: skip
        broken = [self._broken(statement) for statement in written(found)]
        for statement in self._triggers(found, rows[0][0]).values():
            self._do(statement)
        for statement, before in zip(written(found), broken, strict=True):
            if (wrong := self._broken(statement)) is not None and before is None:
                raise OperatorError(
                    f"table {found.qualified}: with triggers on it the application could not write it "
                    f"({wrong.message}), and none were made",
                    hint=f'leave it out: source.tables: […, "!{found.qualified}"]',
                ) from wrong

    def _triggers(self, found: Found, shape: int) -> dict[str, str]:
        some = any(matches(pattern, found.qualified) for pattern in self._where)
        return triggers(self.names, found, shape, some=some)

    def _broken(self, statement: str) -> CdcError | None:
        """Return why a statement cannot be prepared, which looks up all that the triggers name; None: it can.

        It may need functions and collations that are the application's own: what is missing just here does not count.
        Without triggers a collation may not be needed, as where all rows are deleted at once.
        """
        try:
            self._do(f"EXPLAIN {statement} -- {next(_PREPARED)}")
        except CdcError as exc:
            return None if "no such collation sequence" in exc.message else exc
        return None

    def _put_last(self) -> None:
        """A trigger that is made again then never gets the place that it had."""
        self._do(f"DROP TABLE IF EXISTS {quoted(self.names.last)}")
        self._do(f"CREATE TABLE {quoted(self.names.last)} (placeholder)")

    def _ours(self) -> list[str]:
        rows = self._ask("SELECT name FROM sqlite_schema WHERE type = 'trigger'")
        return [name.decode() for (name,) in rows if name.decode().startswith(self.names.triggers)]

    def forget_before(self, seq: int) -> None:
        """Delete what lies before a row, some at a time: a writer of the application waits only for those."""
        # older versions did not make the row
        self._ask(f"INSERT OR REPLACE INTO {self._shapes} VALUES (?, '', ?)", SAFE, str(seq))
        while True:
            rows = self._ask(f"SELECT min(seq) FROM {self._changes} WHERE seq < ?", seq)
            if rows[0][0] is None:
                return
            upto = min(seq, rows[0][0] + _DELETED_AT_ONCE)
            self._ask(f"DELETE FROM {self._changes} WHERE seq < ?", upto)

    def count(self) -> int:
        """Return how many rows the change table has at most."""
        rows = self._ask(f"SELECT min(seq), max(seq) FROM {self._changes}")
        return 0 if rows[0][0] is None else int(rows[0][1] - rows[0][0] + 1)

    def _do(self, statement: str) -> None:
        self._session.rows(f"keeping {self.names.changes}", statement)

    def _ask(self, statement: str, *parameters: object) -> list[tuple[Any, ...]]:
        return self._session.rows(f"reading {self.names.changes}", statement, parameters)


def _shape(columns: bytes) -> Shape | None:
    """Read a shape; None: somebody has altered it."""
    try:
        return Shape.from_json(columns)
    except (ValueError, KeyError, TypeError):
        return None
