"""Closes holes of the log: what it does not say of captured tables is read again, by key where keys are told.

A session may log statements in the place of rows, rows without some of their columns, or parts of documents. What such
an event changed is not in the log. So it becomes changes of the operation READ, which the loop turns into a request to
read the row of a key, or all rows of a table; the request is committed together with the position behind the hole, or
neither is. Until it is carried out the topic is behind the table, as if the log were read later.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cdc.model.change import UNCHANGED, Change, Op, Row, Table, Value
from cdc.model.errors import GapError, OperatorError
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.binlog.query_events import INCIDENT
from connectors.mysql.catalog.catalog import Catalog
from connectors.mysql.catalog.reach import Reach
from connectors.mysql.rows.row_images import Images
from connectors.mysql.statements.tokens import Name

TOLD_S: Final = 60.0
"""A session that goes on like this is not told of more often."""
_MOST: Final = 1_000
XA_COMMIT: Final = "XA COMMIT"
_LOST: Final = {
    INCIDENT: (
        "INCIDENT in the log at %s: the server could not log what a statement has changed",
        "the server's error log says why (max_binlog_stmt_cache_size, a full disk)",
    ),
    XA_COMMIT: (
        "XA COMMIT in the log at %s of what was prepared before the log was followed: its rows are not there",
        "GRANT XA_RECOVER_ADMIN ON *.* TO the connector's user (MySQL) lets a start wait for what is prepared",
    ),
}
"""What is in the log where rows of any table are in none of it, and what helps."""

log = logging.getLogger("cdc")


class Holes:
    """Gives what follows of events that do not say what they changed. `stops`: an error, where `on_hole` is stop."""

    def __init__(self, *, stops: bool) -> None:
        self._stops = stops
        self._told_s: dict[tuple[str, str], float] = {}
        self._reach: Reach | None = None
        self._reached: dict[tuple[Name, ...], frozenset[Name] | None] = {}
        """What statements on these tables reach, as it was last looked at."""
        self._looked_at = 0
        """Where the log ended by then."""

    def looked_at(self) -> set[Name]:
        """Return the tables that were looked at for what hangs on them, since the last DDL."""
        by_keys = frozenset() if self._reach is None else self._reach.seen
        return {name for written in self._reached for name in written} | by_keys

    def altered(self, captured: Mapping[Name, Table], at: BinlogPosition, *, dropped: bool) -> Iterator[Change]:
        """Note that DDL may have changed what hangs on what; `dropped`: something may hang there no longer.

        The server is asked as it is now, which may be after this DDL. Then it did not tell of what it has dropped, and
        statements before it may have reached more tables than were read again: all are.
        """
        unsound = dropped and bool(self._reached) and at.commit < self._looked_at
        self._reach = None
        self._reached.clear()
        if unsound:
            yield from self.of_statement("a statement before DDL", None, captured, at, None)

    def of_images(
        self,
        op: Op,
        table: Table,
        images: Iterable[Images],
        at: BinlogPosition,
        *,
        partial: bool,
        generated: frozenset[str] = frozenset(),
    ) -> Iterator[Change]:
        """Give the changes of rows whose images are not whole; `partial`: they hold parts of documents.

        `generated` are columns that the server computes, which MariaDB since 11.7 leaves out of rows that change.
        """
        whole_table = False
        for number, (before, told) in enumerate(images):
            after = told if partial or before is None or told is None else _kept(table, before, told, generated)
            if not partial and UNCHANGED not in _needed(table, before, after):
                yield tuple.__new__(Change, (op, table, before, after, (at.offset, number)))
                continue
            if (
                partial
                or after is None
                or any(
                    value is UNCHANGED and column.name not in generated
                    for column, value in zip(table.columns, after, strict=True)
                )
            ):
                self._not_whole(table, at, partial=partial)
            else:
                what = f"rows in the log at {at} lack generated columns, which this server does not log"
                self._tell(table.qualified, "GENERATED", f"{what}: they are read again by their keys", hole=False)
            keys = _keys(table, before, after)
            if not keys and not whole_table:
                whole_table = True
                yield Change(Op.READ, table, None, None, (at.offset, number))
            for key in keys:
                yield Change(Op.READ, table, None, key, (at.offset, number))

    def _not_whole(self, table: Table, at: BinlogPosition, *, partial: bool) -> None:
        setting, value = ("binlog_row_value_options", "''") if partial else ("binlog_row_image", "FULL")
        was = "PARTIAL_JSON" if partial else "MINIMAL or NOBLOB"
        if self._stops:
            raise GapError(
                f"table {table.qualified}: a row in the log at {at} is not whole: a session has set {setting} to {was}",
                hint=f"SET GLOBAL {setting} = {value}; find the session that sets it; then "
                "cdc snapshot start CONNECTOR.yaml --after-gap; or source.on_hole: reread",
            )
        what = f"a row in the log at {at} is not whole, since a session has set {setting} to {was}"
        self._tell(table.qualified, setting, f"{what}: such rows are read again by their keys")

    def of_statement(
        self,
        verb: str,
        written: Sequence[Name] | None,
        captured: Mapping[Name, Table],
        at: BinlogPosition,
        catalog: Callable[[], Catalog] | None,
    ) -> Iterator[Change]:
        """Give what follows of a statement in the place of rows, which may write `written` itself; None: any table."""
        if written is not None and not written:
            return
        touched = None if written is None or catalog is None else self._of(tuple(written), captured, catalog)
        names = sorted(captured.keys() if touched is None else touched & captured.keys())
        if not names:
            return
        if verb in _LOST:
            self._lost(verb, names, at)
        else:
            self._written(verb, names, at, known=touched is not None)
        for name in names:
            yield Change(Op.READ, captured[name], None, None, (at.offset, 0))

    def _lost(self, verb: str, names: Sequence[Name], at: BinlogPosition) -> None:
        what, first = _LOST[verb][0] % (at,), _LOST[verb][1]
        if self._stops:
            hint = f"{first}; then cdc snapshot start CONNECTOR.yaml --after-gap; or source.on_hole: reread"
            raise GapError(what, hint=hint)
        self._tell(_list(names), verb, f"{what}: all rows are read again; {first}")

    def _written(self, verb: str, names: Sequence[Name], at: BinlogPosition, *, known: bool) -> None:
        if self._stops:
            raise GapError(
                f"a statement ({verb}) in the place of rows in the log at {at}: a session has set binlog_format to "
                "STATEMENT or MIXED",
                hint="SET GLOBAL binlog_format = ROW; find the session that sets it; then close the gap: "
                "cdc snapshot start CONNECTOR.yaml --after-gap; or source.on_hole: reread",
            )
        why = "" if known else (
            ", which may have written any table (a function, a procedure, a view, a trigger, or a table that may not "
            "be seen: GRANT TRIGGER, SELECT ON *.* TO the connector's user tells)"
        )  # fmt: skip
        what = f"a statement ({verb}) in the place of rows in the log at {at}{why}: all rows are read again"
        self._tell(_list(names), verb, what)

    def _of(
        self, written: tuple[Name, ...], captured: Mapping[Name, Table], catalog: Callable[[], Catalog]
    ) -> frozenset[Name] | None:
        if written not in self._reached:
            if self._reach is None:
                self._reach = catalog().reach(captured)
            if len(self._reached) >= _MOST:
                self._reached.pop(next(iter(self._reached)))
            self._reached[written] = self._reach.of(written)
            self._looked_at = max(self._looked_at, self._reach.log_end())
        return self._reached[written]

    def cascaded(self, table: Table, parent: str, at: BinlogPosition) -> Change:
        """Give what follows of rows of `parent` that took rows of this table along: no session can help it."""
        what = f"rows of {parent} in the log at {at} changed its rows by a foreign key, which this server does not log"
        return self._again(table, at, "FOREIGN KEY", what, hole=False)

    def parted(self, table: Table, at: BinlogPosition) -> Change:
        """Give what follows of DDL before which rows of another table may have taken rows of this one along."""
        what = f"a foreign key to it, or of it, had another name or was there before the statement in the log at {at}"
        return self._again(table, at, "DDL OF A FOREIGN KEY", what, hole=False)

    def unkeyed(self, table: Table, at: BinlogPosition, why: str) -> Change:
        """Give what follows of rows that were written while their table had no key, or other types, as it has now."""
        return self._again(table, at, why, f"rows in the log at {at} {why}", hole=False)

    def unnamed(self, table: Table, at: BinlogPosition) -> Change:
        """Give what follows of rows whose columns have no names in the log: today's may not be those of then."""
        if self._stops:
            raise GapError(
                f"table {table.qualified}: the log at {at} has no names of its columns: it was written without "
                "binlog_row_metadata = FULL, and today's columns may not be those of then",
                hint="SET PERSIST binlog_row_metadata = FULL (MariaDB: SET GLOBAL); then "
                "cdc snapshot start CONNECTOR.yaml --after-gap; or source.on_hole: reread",
            )
        what = f"the log at {at} has no names of its columns, as binlog_row_metadata is not FULL"
        return self._again(table, at, "NO NAMES", what)

    def undecodable(self, table: Table, at: BinlogPosition, why: ValueError) -> Change:
        """Give what follows of a value that is none of its column's: the log keeps it, whatever becomes of the row.

        Bytes that stand for no letter are stored where a character set lets them; a SELECT has question marks there.
        """
        if self._stops:
            raise OperatorError(
                f"table {table.qualified}, the log at {at}: {why}",
                hint="source.on_hole: reread, which takes what the server says of such a row; or leave the table out",
            )
        return self._again(table, at, "NO LETTER", f"the log at {at}: {why}")

    def rolled_back(self, table: Table, at: BinlogPosition) -> Change:
        """Give what follows of a transaction of which a part was rolled back, and nobody can tell which."""
        if self._stops:
            raise GapError(
                f"the transaction at {at} was rolled back in part, and wrote tables without transactions too: which of "
                "its rows are left cannot be told from the log",
                hint="ALTER TABLE … ENGINE=InnoDB for the tables without transactions; then "
                "cdc snapshot start CONNECTOR.yaml --after-gap; or source.on_hole: reread",
            )
        what = f"the transaction at {at} was rolled back in part, and nobody can tell which"
        return self._again(table, at, "ROLLBACK", what)

    def _again(self, table: Table, at: BinlogPosition, reason: str, what: str, *, hole: bool = True) -> Change:
        """Say why all rows of a table are read again, in the place of what the log does not tell."""
        self._tell(table.qualified, reason, f"{what}: all rows are read again", hole=hole)
        return Change(Op.READ, table, None, None, (at.offset, 0))

    def _tell(self, tables: str, reason: str, said: str, *, hole: bool = True) -> None:
        now_s = time.monotonic()
        if now_s - self._told_s.get((tables, reason), float("-inf")) >= TOLD_S:
            self._told_s[tables, reason] = now_s
            shown = tables if len(tables) < 200 else f"{tables[:200]}…"  # noqa: PLR2004
            log.warning("%s: %s%s", shown, said, "; source.on_hole: stop would stop here" if hole else "")


def _list(names: Sequence[Name]) -> str:
    return ",".join(".".join(name) for name in names)


def _needed(table: Table, before: Row | None, after: Row | None) -> Row:
    """Return what must be there of a change: the new row, or the key of one that is gone."""
    return after if after is not None else tuple(before[index] for index in table.key_indexes) if before else ()


def _kept(table: Table, before: Row, after: Row, generated: frozenset[str]) -> Row:
    """Give a new row the values of the old one that are not told again: MariaDB's binlog_row_image=FULL_NODUP."""
    return tuple(
        old if new is UNCHANGED and column.name not in generated else new
        for column, old, new in zip(table.columns, before, after, strict=True)
    )


def _keys(table: Table, before: Row | None, after: Row | None) -> list[Row]:
    """Return rows with nothing but the keys that a row had and has; none where an image does not tell one."""
    keys = []
    if before is not None:
        keys.append([before[index] for index in table.key_indexes])
    if after is not None:
        new = [after[index] for index in table.key_indexes]
        if keys:
            new = [then if now is UNCHANGED else now for then, now in zip(keys[0], new, strict=True)]
        keys.append(new)
    if any(not isinstance(value, bytes) for key in keys for value in key):
        return []
    distinct = {tuple(key): None for key in keys}
    found = []
    for key in distinct:
        row: list[Value] = [UNCHANGED] * len(table.columns)
        for index, value in zip(table.key_indexes, key, strict=True):
            row[index] = value
        found.append(tuple(row))
    return found
