"""Reads what the triggers have written down, in an order of commits, transaction by transaction.

A number from a sequence tells which of two changes was written down first, not which was committed first: a
transaction that commits late has numbers smaller than those that were read long ago. Nor is it enough to wait until no
transaction older than a horizon (`pg_snapshot_xmin`) is open: an old transaction may change a row that a younger one
has changed and committed, and comes first, if another open one lies between their ids.

So the log is read in rounds. A round takes a snapshot, and gives the transactions that this snapshot sees and the
round's before it does not see, by the greatest number that each has. The position is the snapshot. Why that is an order
in which no row goes back:

1. Each transaction is in one round: once a snapshot sees it, all later ones do. None waits for another one.
2. If two transactions have changed one key, the second one waited for the first one's commit. So a snapshot that sees
   the second sees the first, and the first is in the same round or in an earlier one.
3. In the same round it comes first: what the second has written down of the key, it has written down after the first
   had ended, so its greatest number is greater than all of the first one's.

All of this needs numbers that rise. Who sets the sequence back is found out. Before a round's snapshot the greatest
number is looked at, and then the id of the next transaction: one that has that id or a later one has begun afterwards,
so all of its numbers are greater than that one. And no number is given twice. ALTER SEQUENCE shows in the catalog.

A server that crashes gives ids again that it had given to transactions without a commit that is safe, such as those
that were rolled back; and snapshots have seen these end. So the position does not keep a round's snapshot as it is: it
ends at the greatest id that the log has of the round (`upto_only`). What is left out of it has written down nothing.
Nor is what a snapshot sees safe: of a commit that nobody waits for (`synchronous_commit = off`), or of a number that
was drawn. So before anything of a round is given, or a place behind new numbers, it is made safe (`make_safe`).

Which transactions are in a round, and their order, follows from the two snapshots alone, for all of them have ended: so
a round is gone on with after a restart, behind the number that is in the position.

The commit position. It must rise, and a number that is drawn from the sequence now (`ChangeLog.end`) must lie above all
that has been committed before, and not above what is written afterwards. A transaction has its greatest number times
2**20, or the place behind the one before it, whichever is greater: late ones have. A round ends at (the greatest number
there was *before* its snapshot was taken, plus one) times 2**20. Take a transaction that is committed when a number is
drawn. If its own numbers decide its place, it is below. Else it is late: it was open when the last round's snapshot was
taken. So the number was drawn after that round looked at the greatest one (else the snapshot, taken later, has seen
it), it is greater than that one, and its place is at least 2**20 above the round's end; and of late transactions there
are fewer than 2**18, because a server has no more connections.
"""

from __future__ import annotations

import heapq
import io
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, cast

import psycopg2
from psycopg2 import sql

from cdc.model.change import Change, Offset, Op, Row, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, ChangedError, OperatorError
from cdc.model.state import State
from connectors.postgres.catalog.catalog import Catalog
from connectors.postgres.copy_text import parse_row
from connectors.triggers.change_tables import number_of
from connectors.triggers.postgres.change_log import ChangeLog
from connectors.triggers.postgres.sequence import ROOM, TOO_GREAT, too_great, went_back
from connectors.triggers.postgres.shape import quoted
from connectors.triggers.postgres.triggers import Names

log = logging.getLogger("cdc")

_DROPPED: Final = ("42P01", "3F000", "42703")
"""SQLSTATEs: no such table, schema, column."""
_LISTED: Final = 10_000
_SMALL: Final = 2_000
"""So many changes are given in a list."""
_PAGE: Final = 2_000

_LIST: Final = """
SELECT xid::text, max(seq), count(*), (extract(epoch FROM max(at)) * 1000000)::int8, array_agg(DISTINCT tableoid::int8)
FROM {changes}
WHERE xid >= pg_snapshot_xmin({seen}) AND NOT pg_visible_in_snapshot(xid, {seen})
  AND pg_visible_in_snapshot(xid, {upto})
GROUP BY xid HAVING max(seq) > {change} ORDER BY 2 LIMIT {limit}
"""
_BACK: Final = """
WITH round AS (
    SELECT xid, seq FROM {changes}
    WHERE xid >= pg_snapshot_xmin({seen}) AND NOT pg_visible_in_snapshot(xid, {seen})
      AND pg_visible_in_snapshot(xid, {upto})
)
SELECT seq FROM round WHERE seq <= {greatest} AND xid >= {following}::xid8
UNION ALL (SELECT seq FROM round GROUP BY seq HAVING count(*) > 1) LIMIT 1
"""


class Listed(NamedTuple):
    """Is a transaction of a round, before its changes are read."""

    xid: str
    last: int
    changes: int
    at_us: int
    tables: Sequence[int]


@dataclass(frozen=True, slots=True)
class Place:
    """Is a place in the log: between two rounds, or behind a transaction of one."""

    log: str
    seen: str
    commit: int
    """As a commit position; the next transaction has this one or a later one."""
    last: str = ""
    """The last transaction that was given: a change's number, its transaction, when it was written."""
    upto: str = ""
    """The snapshot of the round that is being read."""
    end: int = 0
    """Where it ends."""
    change: int = 0
    """The greatest number of its last transaction."""
    drawn: str = ""
    """Just before `seen` was taken: the greatest number there was, and behind that the id that came next."""
    drawn_upto: str = ""
    """The same of `upto`."""
    newest: int | None = 0
    """The greatest id of the transactions that were given of the round; None: a position of before does not tell."""
    safe: int = 0
    """What `make_safe` gave last; 0: a position of before does not tell."""

    def of_next(self, listed: Listed) -> int:
        """Return the commit position of the transaction that comes next."""
        return max(self.commit, listed.last << ROOM)

    def behind(self, listed: Listed) -> Place:
        last = f"{listed.last} {listed.xid} {listed.at_us}"
        newest = None if self.newest is None else max(self.newest, int(listed.xid))
        return replace(self, commit=self.of_next(listed) + 1, last=last, change=listed.last, newest=newest)

    def begun(self, upto: str, greatest: int, following: int) -> Place:
        return replace(self, upto=upto, end=(greatest + 1) << ROOM, drawn_upto=f"{greatest} {following}")

    def ended(self) -> Place:
        seen = self.upto if self.newest is None else upto_only(self.newest, self.upto, self.seen)
        return Place(self.log, seen, max(self.end, self.commit), self.last, drawn=self.drawn_upto, safe=self.safe)

    def offset(self) -> Offset:
        found: Offset = {"log": self.log, "seen": self.seen, "number": self.commit}
        if self.last:
            found["last"] = self.last
        if self.drawn:
            found["drawn"] = self.drawn
        if self.safe:
            found["safe"] = self.safe
        if self.change:
            found |= {"round": self.upto, "end": self.end, "change": self.change, "drawn_upto": self.drawn_upto}
            if self.newest is not None:
                found["newest"] = self.newest
        return found

    @classmethod
    def of(cls, offset: Offset) -> Place:
        return cls(
            str(offset["log"]),
            str(offset["seen"]),
            int(offset["number"]),
            str(offset.get("last", "")),
            str(offset.get("round", "")),
            int(offset.get("end", 0)),
            int(offset.get("change", 0)),
            str(offset.get("drawn", "")),
            str(offset.get("drawn_upto", "")),
            int(offset["newest"]) if "newest" in offset else None if "round" in offset else 0,
            int(offset.get("safe", 0)),
        )


def upto_only(newest: int, snapshot: str, before: str) -> str:
    """End a snapshot behind the transaction `newest`, or where the one `before` it ends, if that is later."""
    xmin, xmax, running = snapshot.split(":")
    end = min(int(xmax), max(newest + 1, int(before.split(":")[1])))
    still = [xid for xid in running.split(",") if xid and int(xid) < end]
    return f"{min(int(xmin), end)}:{end}:{','.join(still)}"


def make_safe(catalog: Catalog, names: Names) -> int:
    """Have no crash take back what any view has seen by now: a commit that has written flushes all that is before it.

    A lock is written too, leaves no dead row behind, and notes who has locked: so a server that has this transaction,
    which is returned, has all that is before it (`ChangeLog.refusals`). One at a time may lock: of several, no id is
    noted.
    """
    statement = f"SELECT pg_current_xact_id()::text::int8 FROM {names.of('log')} FOR NO KEY UPDATE"
    ((safe,),) = catalog.rows("making changes safe", statement)
    return int(safe)


def with_views(state: State) -> Offset:
    """Return a position as that of all that was published: rows of a first snapshot may have been read behind it.

    A view is made safe before its rows are published, by a transaction that began behind it.
    """
    views = cast("Mapping[str, Mapping[str, str]]", state.snapshot.get("views", {})).values()
    safe = max([int(state.offset.get("safe", 0)), *(int(view["snapshot"].split(":")[1]) for view in views)])
    return {**state.offset, "safe": safe}


class Rounds:
    """Reads on a session of its own, from a place on."""

    def __init__(
        self,
        log: ChangeLog,
        place: Place,
        *,
        table_of: Callable[[int], Table | None],
        missed: Callable[[int], bool],
        parts: dict[int, tuple[str, str]],
        partitioned: Callable[[int], bool],
    ) -> None:
        """`table_of` gives the table of a shape's number; None: it is not captured any more.

        `missed` notes that changes of a shape are lost, and returns whether anybody is to look again. `parts` is given
        the partitions that have had rows, each with its table (see `ledger.with_parts`), of shapes that `partitioned`.
        """
        self._log, self._table_of, self._missed = log, table_of, missed
        self._parts, self._partitioned = parts, partitioned
        self.place = place
        """Where to resume once everything that was given is safe."""
        self._tables: dict[int, int] = {}

    def read(self) -> Iterator[Transaction | TransactionBatch]:
        """Give all that is committed now. Raises ChangedError if something of the schema has just been dropped."""
        try:
            yield from self._read()
        except OperatorError as exc:
            if _is_dropped(exc):
                raise ChangedError(f"{exc.message}: it has just been dropped, looking again") from exc
            raise

    def _read(self) -> Iterator[Transaction | TransactionBatch]:
        if not self.place.upto:
            last, following, seen = self._log.now()
            if last >= TOO_GREAT:
                raise too_great(self._log.names.schema)
            self.place = self.place.begun(seen, last, following)
        listed = self._list()
        if listed or self.place.end > self.place.commit:
            safe = make_safe(self._log.catalog, self._log.names)
        if listed:  # a standby that is behind by numbers that we have drawn alone has all changes
            self.place = replace(self.place, safe=safe)
            self._prove_numbers()
        while True:
            for batch in _batches(listed):
                if len(batch) == 1 and batch[0].changes > _SMALL:
                    yield self._large(batch[0])
                    continue
                given = self._batch(batch)
                if given:
                    yield TransactionBatch(given)
            if len(listed) < _LISTED:
                break
            listed = self._list()
        self.place = self.place.ended()

    def _list(self) -> list[Listed]:
        statement = sql.SQL(_LIST).format(
            changes=sql.SQL(self._log.names.changes),
            seen=sql.Literal(self.place.seen),
            upto=sql.Literal(self.place.upto),
            change=sql.Literal(self.place.change),
            limit=sql.Literal(_LISTED),
        )
        return [Listed(*row) for row in self._log.catalog.rows("reading changes", statement)]

    def _prove_numbers(self) -> None:
        """Raise GapError if the sequence was set back: then numbers are no order."""
        greatest, following = self.place.drawn.split() or ("0", "0")
        statement = sql.SQL(_BACK).format(
            changes=sql.SQL(self._log.names.changes),
            seen=sql.Literal(self.place.seen),
            upto=sql.Literal(self.place.upto),
            greatest=sql.Literal(int(greatest)),
            following=sql.Literal(following),
        )
        for (number,) in self._log.catalog.rows("reading changes", statement):
            raise went_back(self._log.names.schema, number)

    def _batch(self, batch: Sequence[Listed]) -> list[Transaction]:
        """Read some small transactions, and move behind them."""
        changes: dict[str, list[Change]] = {listed.xid: [] for listed in batch}
        xids = "{" + ",".join(changes) + "}"
        for oid in sorted({oid for listed in batch for oid in listed.tables}):
            where = sql.SQL("xid = ANY ({}::xid8[])").format(sql.Literal(xids))
            for xid, change in self._changes(oid, where):
                changes[xid].append(change)
        given = []
        for listed in batch:
            found = changes[listed.xid]
            found.sort(key=number_of)
            commit, self.place = self.place.of_next(listed), self.place.behind(listed)
            if found:
                given.append(_transaction(listed, commit, found))
        return given

    def _large(self, listed: Listed) -> Transaction:
        return _transaction(listed, self.place.of_next(listed), self._streamed(listed))

    def _streamed(self, listed: Listed) -> Iterator[Change]:
        """Read a transaction's changes page by page, and move behind it when the last one has come."""
        pages = [self._paged(oid, listed.xid) for oid in listed.tables]
        yield from heapq.merge(*pages, key=number_of)
        self.place = self.place.behind(listed)

    def _paged(self, oid: int, xid: str) -> Iterator[Change]:
        after = 0
        while True:
            where = sql.SQL("xid = {}::xid8 AND seq > {}").format(sql.Literal(xid), sql.Literal(after))
            lines = self._lines(oid, where, limit=_PAGE)
            if not lines:
                return
            after = int(lines[-1].split(b"\t", 2)[1])
            yield from (change for _, change in self._parsed(oid, lines))

    def _changes(self, oid: int, where: sql.Composable) -> Iterator[tuple[str, Change]]:
        return self._parsed(oid, self._lines(oid, where))

    def _lines(self, oid: int, where: sql.Composable, *, limit: int | None = None) -> list[bytes]:
        table = self._table(oid)
        if table is None:
            return []
        width = len(table.columns)
        columns = [f"{image}{at}" for image in ("o", "n") for at in range(1, width + 1)]
        if self._partitioned(self._tables[oid]):
            columns.append("part")
        statement = sql.SQL("COPY (SELECT {} FROM ONLY {} WHERE {} ORDER BY seq{}) TO STDOUT").format(
            sql.SQL(", ").join(map(sql.Identifier, ["xid", "seq", "op", *columns])),
            sql.SQL(self._log.names.of(self._log.names.change_table(self._tables[oid]))),
            where,
            sql.SQL("" if limit is None else f" LIMIT {limit}"),
        )
        found = io.BytesIO()
        try:
            self._log.catalog.copy(f"reading changes of table {table.qualified}", statement, found)
        except OperatorError as exc:
            if not _is_dropped(exc) or self._missed(self._tables[oid]):
                raise
            log.warning(
                "table %s: changes that an older change table had cannot be read any more, for it was altered: its "
                "rows are read again",
                table.qualified,
            )
            return []
        return found.getvalue().splitlines(keepends=True)

    def _table(self, oid: int) -> Table | None:
        if oid not in self._tables:
            self._tables = self._log.change_tables()
        if oid not in self._tables:
            raise ChangedError(f"change table {oid} of {quoted(self._log.names.schema)} is gone: looking at it again")
        return self._table_of(self._tables[oid])

    def _parsed(self, oid: int, lines: Sequence[bytes]) -> Iterator[tuple[str, Change]]:
        table = self._table(oid)
        if table is None:
            return
        width, divided = len(table.columns), self._partitioned(self._tables[oid])
        for line in lines:
            xid, seq, op, *values = parse_row(line, 3 + 2 * width + divided)
            if divided and isinstance(part := values.pop(), bytes):
                self._parts[int(part)] = table.qualified, ""
            if not (isinstance(xid, bytes) and isinstance(seq, bytes) and isinstance(op, bytes)):
                raise BugError("a change without its number")
            yield xid.decode(), _change(table, op, int(seq), tuple(values[:width]), tuple(values[width:]))


def _is_dropped(error: OperatorError) -> bool:
    return isinstance(error.__cause__, psycopg2.Error) and error.__cause__.pgcode in _DROPPED


def _change(table: Table, op: bytes, seq: int, before: Row, after: Row) -> Change:
    match op:
        case b"c":
            return Change(Op.CREATE, table, None, after, seq)
        case b"u":
            return Change(Op.UPDATE, table, before, after, seq)
        case b"d":
            return Change(Op.DELETE, table, before, None, seq)
        case b"t":
            return Change(Op.TRUNCATE, table, None, None, seq)
    raise BugError(f"a change of the kind {op!r}")


def _batches(listed: Sequence[Listed]) -> Iterator[list[Listed]]:
    batch: list[Listed] = []
    rows = 0
    for one in listed:
        if batch and rows + one.changes > _SMALL:
            yield batch
            batch, rows = [], 0
        batch.append(one)
        rows += one.changes
    if batch:
        yield batch


def _transaction(listed: Listed, commit: int, changes: Iterator[Change] | list[Change]) -> Transaction:
    """`xid`: the lower half of the id, as the log has it, and views know it."""
    xid = int(listed.xid)
    where = b'"txId":%d,"change":%%d' % xid
    return Transaction(f"{xid}:{commit}", xid & 0xFFFFFFFF, commit, listed.at_us // 1000, changes, where)
