"""Reads what the triggers have written down, in an order of commits, in rounds that the database itself remembers.

A number tells which of two changes was written down first, not which was committed first: a transaction that commits
late has numbers smaller than those that were read long ago. Who reads on behind the greatest number loses it. Nor can a
trigger know its transaction: InnoDB's id of it costs a look at all transactions, and a session's variables outlive it.

So the log is read in rounds. Making a round (`pin`) takes a view of the data and writes down, in the table `rounds`,
the numbers of all changes that this view sees and that are in no earlier round. Who makes one holds a lock on the row
in `log`, so they are made one after the other, each with a view that was taken after the one before was written down.
A round is given as one transaction, in the order of its numbers. Why that is an order in which no row goes back:

1. Each change is in one round: once it is committed, the view of the next round sees it. None waits for another one,
   and as a view sees a transaction whole or not at all, no transaction is divided between rounds.
2. If two transactions have changed one key, the second one waited for the first one's commit, because each holds the
   row's lock in the primary key to its end. InnoDB makes a transaction visible before it lets go of its locks. So
   a view that sees the second sees the first, and the first is in the same round or in an earlier one. MariaDB's views
   can be torn: since 10.3 it notes which transactions are open one by one, while others commit (MDEV-15104), so a view
   may see the second and not the first. But a view that is taken later sees both. So each round is compared with a
   later view: if that has a change of a key which was written down before one of the round and is not in it, the round
   is not made, and another view is taken.
3. In the same round it comes first: the trigger draws a change's number after its row was changed, hence after the
   first transaction had ended; and numbers rise (`triggers`).

That an earlier round is still to be given, or was being given when the connector died, changes nothing: what is in it
stands in the database, committed, until it is acknowledged. A crash takes back no round that is given, and nothing that
a view has seen: where the server does not flush each commit, its next flush is waited for (`await_safe`).

The commit position of a round is twice its number: what is read again between two rounds has one of its own. A place
in the log that has all before it that is committed by now, and all behind it that comes later (`Pins.end`), is behind
the round that is made to find it; so it is reached at once.
"""

from __future__ import annotations

import heapq
import json
import logging
import re
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NamedTuple

import pymysql.cursors

from cdc.model.change import Change, Offset, Op, Row, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, ChangedError, GapError, OperatorError, RetryableError
from connectors.mysql import session
from connectors.triggers.change_tables import CLOSE_THE_GAP, number_of
from connectors.triggers.mysql.change_log import rounds_altered
from connectors.triggers.mysql.numbers import MOST, Numbers
from connectors.triggers.mysql.shape import Shape
from connectors.triggers.mysql.triggers import MISSED, Names

ROOM: Final = 1
"""A commit position is a round's number with so many bits below it."""
log = logging.getLogger("cdc")

_SMALL: Final = 2_000
"""So many changes are given in a list."""
_PAGE: Final = 2_000
_MOST_GAPS: Final = 500
_FETCHED: Final = 10_000
_AT_MS: Final = "COALESCE(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', at) DIV 1000, 0)"
_DROPPED: Final = (1146, 1049, 1054, 1412)
"""The servers' numbers: no such table, database, column; the definition has changed."""
_THERE: Final = 1062
"""The servers' number for a key that is there."""
_DOING: Final = "reading changes"
_VIEWS: Final = 50
"""So many views are taken for a round before it is left to a later time."""
_WRITTEN: Final = re.compile(r"Log sequence number\s+(\d+).*?Log flushed up to\s+(\d+)", re.DOTALL)
_SAFE_S: Final = 30
_LOOK_S: Final = 0.1


@contextmanager
def looking_again() -> Iterator[None]:
    """Raise ChangedError where something of the connector's has just been dropped or altered."""
    try:
        yield
    except OperatorError as exc:
        if session.code_of_exception(exc.__cause__) in _DROPPED:
            raise ChangedError(f"{exc.message}: it has just been dropped, looking again") from exc
        raise


class Round(NamedTuple):
    """Is a round as it stands in the database."""

    number: int
    token: str
    at_ms: int
    """When its last change was written down."""
    shapes: dict[int, int]
    """How many changes it has of each shape."""
    numbers: Numbers


class Pins:
    """Makes rounds. `locking` holds the lock and writes them down."""

    def __init__(self, locking: session.Connection, names: Names) -> None:
        self._locking, self._names = locking, names
        self._known: dict[int, Numbers] = {}
        self.seen = Numbers()
        """What is in rounds that were not forgotten when it was looked at."""
        self._unread = within(self.seen.gaps(_MOST_GAPS))

    def pin(self, view: session.Connection, begin: Sequence[str], change_tables: Sequence[int]) -> int:
        """Take a view and make the round of what it sees, if that is anything.

        Returns the last round there is; the view has seen all of it, and of changes that are in no round by now none.
        `begin` are the statements that take the view, on `view`, which stays open.
        """
        log = self._names.of("log")
        # each statement has a view of its own
        session.rows(self._locking, _DOING, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        session.rows(self._locking, _DOING, "BEGIN")
        try:
            found = session.texts(self._locking, _DOING, f"SELECT round FROM {log} FOR UPDATE")
            if not found:
                raise ChangedError(f"database {self._names.schema} is not whole any more: looking again")
            last = int(found[0][0])
            self._learn()  # before the view is taken: what it sees is never of a round that was forgotten meanwhile
            made = self._seen_whole(view, begin, change_tables)
            if made.shapes:
                last += 1
                self._write(last, made)
                session.rows(self._locking, _DOING, f"UPDATE {log} SET round = %s", (str(last),))
            session.rows(self._locking, _DOING, "COMMIT")
        except BaseException:
            if self._locking.open:
                session.rows(self._locking, "rolling back", "ROLLBACK")
            raise
        return last

    def _write(self, number: int, made: Round) -> None:
        statement = f"INSERT INTO {self._names.of('rounds')} VALUES (%s, %s, %s, %s, %s, %s)"
        of = (
            str(number), str(uuid.uuid4()), str(made.at_ms), str(made.numbers.last), json.dumps(made.shapes),
            made.numbers.text,
        )  # fmt: skip
        try:
            session.rows(self._locking, _DOING, statement, of)
        except OperatorError as exc:
            if session.code_of_exception(exc.__cause__) != _THERE:
                raise
            raise rounds_altered(self._names, f"round {number}, which is to be made, is there") from exc

    def end(self, change_tables: Sequence[int]) -> int:
        """Make a round of all that is committed, and return the commit position behind it."""
        return behind(self.pin(self._locking, (), change_tables))

    def _learn(self) -> None:
        """Read the rounds that were made, by whomever, since it was called last."""
        rounds = self._names.of("rounds")
        there = {int(n) for (n,) in session.texts(self._locking, _DOING, f"SELECT round FROM {rounds}")}
        self._known = {number: of for number, of in self._known.items() if number in there}
        for number in sorted(there - self._known.keys()):
            rows = session.texts(
                self._locking, _DOING, f"SELECT numbers FROM {rounds} WHERE round = %s", (str(number),)
            )
            self._known[number] = Numbers.parse(rows[0][0] if rows else "")
        self.seen = Numbers.union(self._known.values())
        self._unread = within(self.seen.gaps(_MOST_GAPS))

    def _seen_whole(self, view: session.Connection, begin: Sequence[str], change_tables: Sequence[int]) -> Round:
        """Return the round of a view that is not torn."""
        for _ in range(_VIEWS):
            for statement in begin:
                session.rows(view, _DOING, statement)
            made = self._unseen(view, change_tables)
            if not made.shapes or not self._is_torn(made, change_tables):
                return made
            if begin:
                session.rows(view, _DOING, "ROLLBACK")
        raise RetryableError(
            f"views torn: each of {_VIEWS} views saw a change of a row and not the one before it",
            hint="XA RECOVER; and SELECT * FROM information_schema.INNODB_TRX ORDER BY trx_started; where thousands of "
            "transactions are open or prepared, MariaDB takes long for a view",
        )

    def _is_torn(self, made: Round, change_tables: Sequence[int]) -> bool:
        """Tell whether a view saw a change of a key, and not one that was written down and committed before it."""
        late: dict[int, list[int]] = {}
        statement = self._statement(change_tables, before=made.numbers.last)
        for seq, shape, _ in _streamed(self._locking, statement):
            number = int(seq)
            if number not in made.numbers and number not in self.seen:
                late.setdefault(int(shape), []).append(number)
        return any(self._overtaken(shape, numbers, made) for shape, numbers in late.items())

    def _overtaken(self, shape: int, late: Sequence[int], made: Round) -> bool:
        """Tell whether a round has a later change of a key that one of some changes has which are not in it."""
        table = self._names.of(self._names.change_table(shape))
        described = f"SELECT described FROM {self._names.of('shapes')} WHERE shape = %s"
        found = session.texts(self._locking, _DOING, described, (str(shape),))
        if not found:
            return False  # somebody has deleted it: nobody reads its changes
        of = Shape.from_json(found[0][0]).key_stored
        statement = (
            f"SELECT seq, {', '.join(of)} FROM {table} WHERE seq BETWEEN {late[0]} AND {made.numbers.last} ORDER BY seq"
        )
        # once through all of them: there may be many, as of a large transaction that ended just now
        unseen, before, overtaken = frozenset(late), set[tuple[bytes, ...]](), False
        for seq, *key in _streamed(self._locking, statement):
            number = int(seq)
            if number in unseen:
                before.add(tuple(key))
            elif not overtaken and tuple(key) in before:
                overtaken = number in made.numbers
        return overtaken

    def _unseen(self, view: session.Connection, change_tables: Sequence[int]) -> Round:
        """Return the round of all that a view sees and that is in no round."""
        shapes: Counter[int] = Counter()
        latest = 0

        def numbers() -> Iterator[int]:
            nonlocal latest
            for seq, shape, at_ms in _streamed(view, self._statement(change_tables)):
                number = int(seq)
                if number not in self.seen:
                    shapes[int(shape)] += 1
                    latest = max(latest, int(at_ms))
                    yield number

        found = Numbers(numbers()) if change_tables else Numbers()
        return Round(0, "", latest, dict(shapes), found)

    def _statement(self, change_tables: Sequence[int], *, before: int = MOST) -> str:
        each = [
            f"SELECT seq, {shape} AS shape, {_AT_MS} AS at_ms FROM {self._names.of(self._names.change_table(shape))} "
            f"WHERE {self._unread} AND seq < {before}"
            for shape in change_tables
        ]
        return f"{' UNION ALL '.join(each)} ORDER BY seq"

    def anything(self, asking: session.Connection, change_tables: Sequence[int]) -> bool:
        """Tell whether there is something to make a round of, without a lock."""
        tables = [self._names.of(self._names.change_table(shape)) for shape in change_tables]
        each = [f"(SELECT 1 FROM {table} WHERE {self._unread} LIMIT 1)" for table in tables]
        return bool(each and session.rows(asking, _DOING, f"{' UNION ALL '.join(each)} LIMIT 1"))


def within(ranges: Sequence[tuple[int, int]]) -> str:
    """Write as SQL that a change's number is in one of some ranges."""
    return "(" + " OR ".join(f"seq BETWEEN {first} AND {last}" for first, last in ranges) + ")"


def _streamed(connection: session.Connection, statement: str) -> Iterator[tuple[bytes, ...]]:
    """Give rows as they come. What is not read to its end is of no use any more."""
    try:
        cursor = connection.cursor(pymysql.cursors.SSCursor)
        try:
            cursor.execute(statement)
            while rows := cursor.fetchmany(_FETCHED):
                yield from rows
        except BaseException:
            session.leave(connection)
            raise
        cursor.close()
    except session.DRIVER_ERRORS as exc:
        raise session.translate(exc, _DOING) from exc


def await_safe(connection: session.Connection) -> None:
    """Wait until no crash takes back what is committed by now: not all servers flush each commit."""
    upto, until_s = None, time.monotonic() + _SAFE_S
    while session.texts(connection, _DOING, "SELECT @@GLOBAL.innodb_flush_log_at_trx_commit")[0][0] != "1":
        told = session.texts(connection, _DOING, "SHOW ENGINE INNODB STATUS")[0][-1]
        if (found := _WRITTEN.search(told)) is None:  # as where the server is another maker's
            return
        upto = int(found[1]) if upto is None else upto
        if int(found[2]) >= upto:
            return
        if time.monotonic() > until_s:
            raise RetryableError(
                f"commits not flushed: innodb_flush_log_at_trx_commit is not 1, and InnoDB has not flushed its log for "
                f"{_SAFE_S} s: a crash would take back what is to be published",
                hint="SET GLOBAL innodb_flush_log_at_timeout = 1",
            )
        time.sleep(_LOOK_S)


@dataclass(frozen=True, slots=True)
class Place:
    """Is a place in the log: behind a round."""

    log: str
    round: int
    token: str

    def offset(self) -> Offset:
        return {"log": self.log, "round": self.round, "token": self.token}

    @classmethod
    def of(cls, offset: Offset) -> Place:
        return cls(str(offset["log"]), int(offset["round"]), str(offset["token"]))

    @property
    def commit(self) -> int:
        return behind(self.round)


def behind(number: int) -> int:
    """Return the commit position behind a round, which is that of the next one."""
    return (number + 1) << ROOM


class Rounds:
    """Reads on a session of its own, from a place on."""

    def __init__(
        self,
        reading: session.Connection,
        names: Names,
        place: Place,
        *,
        table_of: Callable[[int], tuple[Shape, Table] | None],
        missed: Callable[[int], bool],
    ) -> None:
        """`table_of` gives the table of a shape's number; None: it is not captured any more.

        `missed` notes a miss of a shape, and returns whether anybody is to look again.
        """
        self._reading, self._names = reading, names
        self._table_of, self._missed = table_of, missed
        self.place = place
        """Where to resume once everything that was given is safe."""

    def read(self) -> Iterator[Transaction | TransactionBatch]:
        """Give the rounds that were made behind the place. Raises ChangedError if some of it was just dropped."""
        with looking_again():
            while (found := self._next()) is not None:
                yield from self._given(found)

    def _next(self) -> Round | None:
        statement = (
            f"SELECT round, token, at_ms, shapes, numbers FROM {self._names.of('rounds')} WHERE round > %s "
            "ORDER BY round LIMIT 1"
        )
        for number, token, at_ms, shapes, numbers in session.texts(
            self._reading, _DOING, statement, (str(self.place.round),)
        ):
            if int(number) != self.place.round + 1:
                raise GapError(
                    f"rounds deleted: {self._names.schema} has no round {self.place.round + 1}, which Kafka does not "
                    "hold yet",
                    hint=CLOSE_THE_GAP,
                )
            await_safe(self._reading)
            counts = {int(shape): int(rows) for shape, rows in json.loads(shapes).items()}
            return Round(int(number), token, int(at_ms), counts, Numbers.parse(numbers))
        return None

    def _given(self, found: Round) -> Iterator[Transaction | TransactionBatch]:
        place = Place(self.place.log, found.number, found.token)
        if found.numbers.count > _SMALL:
            yield self._transaction(found, self._moving(found, place))
            return
        changes = list(self._changes(found))
        self.place = place
        if changes:
            yield TransactionBatch([self._transaction(found, changes)])

    def _transaction(self, found: Round, changes: Iterator[Change] | list[Change]) -> Transaction:
        where = b'"round":%d,"change":"%%d"' % found.number
        return Transaction(str(found.number), found.number, found.number << ROOM, found.at_ms, changes, where)

    def _moving(self, found: Round, place: Place) -> Iterator[Change]:
        yield from self._changes(found)
        self.place = place

    def _changes(self, found: Round) -> Iterator[Change]:
        """Give a round's changes in the order of their numbers."""
        each = [self._of_shape(found, shape, rows) for shape, rows in sorted(found.shapes.items())]
        yield from heapq.merge(*each, key=number_of)

    def _of_shape(self, found: Round, shape: int, rows: int) -> Iterator[Change]:
        known = self._table_of(shape)
        if known is None:
            return
        described, table = known
        try:
            yield from self._read_shape(found, shape, rows, described, table)
        except OperatorError as exc:
            if session.code_of_exception(exc.__cause__) not in _DROPPED:
                raise
            if self._missed(shape):
                raise ChangedError(f"{exc.message}: its change table was altered, looking again") from exc
            log.warning(
                "table %s: changes that an older change table had are gone with it: its rows are read again",
                table.qualified,
            )

    def _read_shape(self, found: Round, shape: int, rows: int, described: Shape, table: Table) -> Iterator[Change]:
        read, before = 0, dict[int, Row]()
        for seq, op, of, row in self._rows(found, shape, described):
            read += 1
            if op == MISSED:
                if self._missed(shape):
                    raise ChangedError(f"table {table.qualified}: a change could not be written down: looking again")
            elif op == "b":
                before[seq] = row
            elif op == "u":
                if of not in before:
                    break
                yield Change(Op.UPDATE, table, before.pop(of), row, seq)
            elif op == "c":
                yield Change(Op.CREATE, table, None, row, seq)
            elif op == "d":
                yield Change(Op.DELETE, table, row, None, seq)
            else:
                raise BugError(f"a change of the kind {op!r}")
        if read != rows and self._missed(shape):
            raise ChangedError(f"table {table.qualified}: changes of it were deleted: looking again")

    def _rows(self, found: Round, shape: int, described: Shape) -> Iterator[tuple[int, str, int, Row]]:
        table = self._names.of(self._names.change_table(shape))
        columns = ", ".join(["seq", "op", "COALESCE(pair, 0)", *described.selected])
        doing = f"reading changes of table {described.qualified}"
        low = next(iter(found.numbers.ranges()))[0]
        while True:
            ranges = [(low, found.numbers.last)]
            if len(found.numbers) <= _MOST_GAPS:
                ranges = [(max(first, low), last) for first, last in found.numbers.ranges_from(low)]
            if not ranges:
                return
            statement = f"SELECT {columns} FROM {table} WHERE {within(ranges)} ORDER BY seq LIMIT {_PAGE}"
            rows = session.rows(self._reading, doing, statement)
            for seq, op, of, *image in rows:
                number = int(seq)
                low = number + 1
                if number in found.numbers:
                    if any(image[at] == b"" for at in described.documents):
                        raise OperatorError(
                            f"{doing}: a JSON document is longer than the server's max_allowed_packet, and would be "
                            "read as nothing",
                            hint="SET GLOBAL max_allowed_packet = 1073741824",
                        )
                    yield number, op.decode(), int(of), tuple(image)
            if len(rows) < _PAGE or low > found.numbers.last:
                return
