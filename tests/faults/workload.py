"""The source's side: transactions of every awkward kind, each with a row of `ledger` that says what it did.

The ledger row is written last, in the same transaction, with the number of row events a reader must see of the
transaction (itself included; null where the source does not say: PostgreSQL's TRUNCATE). The sum of all balances never
changes. Choices come from the seed alone; what is skipped (a row that is gone, a deadlock) leaves nothing behind.
What a database says in its own way is in postgres.py and mysql.py.
"""

from __future__ import annotations

import base64
import contextlib
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any, ClassVar, Final

Row = dict[str, Any]
Kind = tuple[float, Callable[[Any], object]]
"""How often, and what: False where the number of events cannot be told."""

TABLES: Final = ("account", "churn", "evolving", "ledger", "list", "small", "wide")
APART: Final = "apart"
"""A table that no writer writes: the world changes what is around it (`tests.faults.world`)."""
HOSTILE: Final = "hostile "
"""What rows of sessions begin with that let the log be told less of them."""
KEYS: Final = {
    "account": ("id",),
    "churn": ("a", "b"),
    "evolving": ("id",),
    "ledger": ("id",),
    "list": ("id",),
    "small": ("id",),
    "wide": ("id",),
}
BALANCE: Final = 1000
_FAR: Final = 10_000_000
_LISTS: Final = 300
_PAUSE_S: Final = 0.02
_HOT: Final = 400

_FILLED: Final = 1000


class Skipped(Exception):  # noqa: N818 - not an error
    """The rows the choice fell on are not there: the transaction is rolled back."""


class Workload:
    """Writers on threads of their own, each with its own random numbers, until told to stop."""

    def __init__(
        self,
        kind: type[Writer],
        url: str,
        *,
        seed: int,
        accounts: int = 20_000,
        writers: int = 3,
        pause_s: float = _PAUSE_S,
    ) -> None:
        self.kind = kind
        self.url = url
        self.accounts = accounts
        self.total = accounts * BALANCE
        self.over = threading.Event()
        self.pause_s = pause_s
        self.writers = [kind(self, random.Random(f"{seed} {n}"), n, writers) for n in range(writers)]

    def prepare(self) -> None:
        """Make and fill the tables."""
        with closing(self.kind.connect(self.url)) as connection:
            with connection.cursor() as cursor:
                for statement in self.kind.schema:
                    cursor.execute(statement)
                for table, rows in _beginning(self.accounts):
                    for at in range(0, len(rows), _FILLED):
                        some = rows[at : at + _FILLED]
                        values = ", ".join(["(" + ", ".join(["%s"] * len(some[0])) + ")"] * len(some))
                        cursor.execute(f"INSERT INTO {table} VALUES {values}", [value for row in some for value in row])
            connection.commit()

    def start(self) -> None:
        for writer in self.writers:
            writer.start()

    def stop(self) -> None:
        """Return when all have ended."""
        self.over.set()
        for writer in self.writers:
            writer.join(60)

    @property
    def failures(self) -> list[str]:
        """What writers did not expect."""
        failed = [f"{w.name}: {type(w.failure).__name__}: {w.failure}" for w in self.writers if w.failure is not None]
        return [*failed, *(f"{w.name} does not end" for w in self.writers if w.is_alive())]

    def write(self, transactions: int) -> None:
        """So many transactions here and now, by the first writer, which need not have been started."""
        with closing(self.writers[0]):
            for _ in range(transactions):
                self.writers[0].transaction()

    @property
    def done(self) -> Counter[str]:
        """Transactions by outcome: committed, skipped, retried, and those whose outcome the ledger had to tell."""
        return sum((writer.done for writer in self.writers), Counter())

    def contents(self) -> dict[str, list[Row]]:
        """All rows of all tables as they are now, in the form events have."""
        found: dict[str, list[Row]] = {}
        with closing(self.kind.connect(self.url)) as connection, connection.cursor() as cursor:
            for table in TABLES:
                cursor.execute(f"SELECT * FROM {table}")
                names = [column[0] for column in cursor.description or ()]
                found[table] = [dict(zip(names, map(_as_event, row), strict=True)) for row in cursor]
        return found


def _as_event(value: Any) -> Any:
    return base64.b64encode(bytes(value)).decode() if isinstance(value, (bytes, memoryview)) else value


def _beginning(accounts: int) -> Iterable[tuple[str, Sequence[tuple[object, ...]]]]:
    """The rows there are before anything happens."""
    choose = random.Random(0)
    yield "account", [(g, f"owner {g}", BALANCE) for g in range(1, accounts + 1)]
    yield "list", [(g, "") for g in range(1, _LISTS + 1)]
    yield "churn", [(g, f"b{g}", 0) for g in range(1, max(300, accounts // 3) + 1)]
    wide = range(1, max(50, accounts // 14) + 1)
    yield "wide", [(g, 0, choose.randbytes(1440 + 16 * (g % 100)).hex(), choose.randbytes(1280)) for g in wide]
    yield "small", [(g, "first") for g in range(1, 101)]
    yield "evolving", [(g, "first") for g in range(1, max(50, accounts // 10) + 1)]
    yield APART, [(g, f"v{g}", f"w{g}") for g in range(1, 201)]
    yield "ledger", [(-g, "before", None) for g in range(1, accounts + 1)]


class Writer(threading.Thread, ABC):
    """One session after another. Its ledger ids are its own."""

    driver: ClassVar[Any]
    """The DB-API's module."""
    schema: ClassVar[tuple[str, ...]]
    """Statements that make the tables."""
    kinds: ClassVar[dict[str, Kind]]
    truncates_alone: ClassVar[bool] = False
    """TRUNCATE is a transaction by itself, without a row in the ledger."""
    read_again: ClassVar[frozenset[str]] = frozenset()
    """Tables that may be changed without an event, and are read again then: their rows need not come and go in turn."""

    def __init__(self, workload: Workload, choose: random.Random, number: int, stride: int) -> None:
        super().__init__(name=f"writer-{number}", daemon=True)
        self._workload, self._random = workload, choose
        self._id, self._stride = number - stride + 1, stride
        self._connection: Any = None
        self._cursor: Any = None
        self._events = 0
        self.done: Counter[str] = Counter()
        self.failure: BaseException | None = None

    @classmethod
    @abstractmethod
    def connect(cls, url: str) -> Any:
        """A session that waits for a lock no longer than 2 s, and commits when told to."""

    def run(self) -> None:
        try:
            while not self._workload.over.is_set():
                self.transaction()
                self._workload.over.wait(self._random.random() * 2 * self._workload.pause_s)
        except BaseException as exc:  # noqa: BLE001 - told by `failures`
            self.failure = exc
        finally:
            self.close()

    def close(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(self.driver.Error):
                self._connection.close()
            self._connection = None

    def transaction(self) -> None:
        """One, to its end: committed, or nothing of it is there."""
        self._id += self._stride
        (name,) = self._random.choices(list(self.kinds), weights=[weight for weight, _ in self.kinds.values()])
        sent = False
        try:
            connection = self._connected()
            self._events = 0
            with connection.cursor() as self._cursor:
                counted = self.kinds[name][1](self) is not False
                events = self._events + 1 if counted else None
                self._cursor.execute("INSERT INTO ledger VALUES (%s, %s, %s)", (self._id, name, events))
                sent = True
                self._commit()
            self.done["committed"] += 1
        except (Skipped, self.driver.IntegrityError):  # or another writer has just made that row
            if not self._roll_back() and sent:
                self._in_ledger()  # which ends what is prepared, one way or the other
            self.done["skipped"] += 1
        except (self.driver.OperationalError, self.driver.InterfaceError):
            if self._roll_back():
                self.done["retried"] += 1  # deadlock, lock timeout
            else:
                self.done["committed" if sent and self._in_ledger() else "lost connection"] += 1

    def _commit(self) -> None:
        self._connection.commit()

    def _roll_back(self) -> bool:
        """End the transaction in hand; False if the connection is gone, and the transaction's outcome with it."""
        try:
            if self._connection is not None:
                self._connection.rollback()
                return True
        except (self.driver.OperationalError, self.driver.InterfaceError):
            pass  # the server died after it had answered
        self.close()
        return False

    def _connected(self) -> Any:
        while self._connection is None:
            try:
                self._connection = self.connect(self._workload.url)
            except self.driver.Error:
                time.sleep(0.1)
        return self._connection

    def _in_ledger(self) -> bool:
        """Whether the transaction in hand was committed, though nobody said so."""
        while True:
            try:
                with self._connected().cursor() as cursor:
                    cursor.execute("SELECT 1 FROM ledger WHERE id = %s", (self._id,))
                    there = cursor.fetchone() is not None
                self._connection.rollback()
            except self.driver.Error:
                self.close()
            else:
                self.done["outcome by ledger"] += 1
                return there

    # --- What transactions do -----------------------------------------------------------------------------------------

    def _do(self, statement: str, *values: Any, events: int = 1) -> int:
        """Run it and count what a reader will see: `events` for each row."""
        self._cursor.execute(statement, values)
        rows = int(self._cursor.rowcount)
        self._events += events * rows
        return rows

    insert_new: ClassVar[str]
    """An INSERT of one row that does nothing where its key is taken: `{0}` the table, `{1}` the values."""

    def _add(self, table: str, *values: Any) -> int:
        """A row, unless its key is taken."""
        return self._do(self.insert_new.format(table, ", ".join(["%s"] * len(values))), *values)

    def _one(self, statement: str, *values: Any, events: int = 1) -> None:
        if self._do(statement, *values, events=events) != 1:
            raise Skipped

    def _account(self) -> int:
        top = _HOT if self._random.random() < 0.8 else self._workload.accounts
        return self._random.randint(1, min(top, self._workload.accounts))

    def transfer(self) -> None:
        giver, taker = self._account(), self._account()
        amount = self._random.randint(1, 100)
        if giver == taker:
            raise Skipped
        for account, change in sorted([(giver, -amount), (taker, amount)]):
            self._one("UPDATE account SET balance = balance + %s WHERE id = %s", change, account)

    def transfers(self) -> None:
        for _ in range(self._random.randint(5, 40)):
            self.transfer()

    def move_account(self) -> None:
        here, there = (at := self._account(), at + _FAR)[:: self._random.choice((1, -1))]
        self._one("UPDATE account SET id = %s WHERE id = %s", there, here, events=2)

    def swap_accounts(self) -> None:
        """Two rows change keys with each other, by way of a third key."""
        one, other = self._account(), self._account()
        if one == other:
            raise Skipped
        free = -self._id - 1
        for old, new in ((one, free), (other, one), (free, other)):
            self._one("UPDATE account SET id = %s WHERE id = %s", new, old, events=2)

    all_accounts_sql: ClassVar[str]

    def all_accounts(self) -> None:
        """A large one: every balance changes, and the sum does not."""
        if self._do(self.all_accounts_sql) != self._workload.accounts:  # one moved while we waited for its lock
            raise Skipped

    def append(self) -> None:
        for _ in range(self._random.randint(1, 4)):
            which = self._random.randint(1, _LISTS)
            if self._random.random() < 0.02:
                self._do("UPDATE list SET items = '' WHERE id = %s", which)
            else:
                self._do("UPDATE list SET items = CONCAT(items, %s) WHERE id = %s", f",{self._id}", which)

    def churn(self) -> None:
        """Deletes and re-inserts of the same keys, in one transaction and across several."""
        for _ in range(self._random.randint(1, 8)):
            at = self._random.randint(1, 200)
            if self._random.random() < 0.6:
                self._do("DELETE FROM churn WHERE a = %s AND b = %s", at, f"b{at}")
            if self._random.random() < 0.6:
                self._add("churn", at, f"b{at}", self._id)
            if self._random.random() < 0.3:
                self._do("UPDATE churn SET v = %s WHERE a = %s AND b = %s", self._id, at, f"b{at}")

    def move_churn(self) -> None:
        at, to = self._random.randint(1, 200), self._random.randint(1, 200)
        if at == to:
            raise Skipped
        self._one("UPDATE churn SET a = %s, b = %s WHERE a = %s AND b = %s", to, f"b{to}", at, f"b{at}", events=2)

    def wide(self) -> None:
        """Values out of line: mostly left as they are, now and then replaced, also through a key change."""
        at, pick = self._random.randint(1, 50), self._random.random()
        if pick < 0.5:
            self._do("UPDATE wide SET n = n + 1 WHERE id IN (%s, %s)", at, at + _FAR)
        elif pick < 0.7:
            body = self._random.choice("abcdef") * self._random.randint(0, 9000)
            self._do("UPDATE wide SET body = %s, n = n + 1 WHERE id = %s", f"{self._id} {body}", at)
        elif pick < 0.8:
            self._do(
                "UPDATE wide SET raw = %s WHERE id = %s", self._random.randbytes(self._random.randint(0, 5000)), at
            )
        elif pick < 0.9:
            here, there = (at, at + _FAR)[:: self._random.choice((1, -1))]
            self._one("UPDATE wide SET id = %s, n = n + 1 WHERE id = %s", there, here, events=2)
        else:
            self._do("DELETE FROM wide WHERE id = %s", at)
            self._add("wide", at, 0, "w" * 6000, None)

    @abstractmethod
    def truncate(self) -> object:
        """Also followed by rows under the same keys."""

    def _fill_small(self) -> None:
        for at in self._random.sample(range(1, 150), k=self._random.randint(0, 100)):
            self._add("small", at, f"after {self._id}")

    def small(self) -> None:
        at = self._random.randint(1, 150)
        if not self._add("small", at, str(self._id)):
            self._do("UPDATE small SET v = %s WHERE id = %s", str(self._id), at)

    def evolve(self) -> None:
        """Rows of a table whose columns come and go."""
        at = self._random.randint(1, 100)
        pick = self._random.random()
        if pick < 0.6:
            self._do("UPDATE evolving SET v = %s WHERE id BETWEEN %s AND %s", str(self._id), at, at + 2)
        elif pick < 0.8:
            self._do("DELETE FROM evolving WHERE id = %s", at)
        else:
            self._add("evolving (id, v)", at, str(self._id))

    @abstractmethod
    def change_columns(self) -> object:
        """One column more, filled in some rows, or one less: rows before and after have the columns of their time."""

    def _has_column(self, column: str) -> bool:
        self._cursor.execute(
            "SELECT COUNT(*) FROM information_schema.columns WHERE table_name = 'evolving' AND column_name = %s",
            (column,),
        )
        return bool(self._cursor.fetchone()[0])

    def savepoints(self) -> None:
        """What is rolled back to a savepoint is seen by nobody."""
        self.transfer()
        kept = self._events
        self._cursor.execute("SAVEPOINT here")
        self._do("UPDATE account SET balance = balance + 1000000 WHERE id BETWEEN 1 AND 20")
        self._do("DELETE FROM churn WHERE a < 50")
        self._cursor.execute("ROLLBACK TO here")
        self._events = kept
        if self._random.random() < 0.5:
            self._cursor.execute("SAVEPOINT released")
            self._do("UPDATE list SET items = CONCAT(items, %s) WHERE id = 1", f",{self._id}")
            self._cursor.execute("RELEASE SAVEPOINT released")

    def rolled_back(self) -> None:
        self._do("UPDATE account SET balance = 0 WHERE id BETWEEN 1 AND 50")
        raise Skipped

    def nothing(self) -> None:
        """The ledger's row alone."""


KINDS: Final[dict[str, Kind]] = {
    "transfer": (30, Writer.transfer),
    "transfers": (4, Writer.transfers),
    "move account": (4, Writer.move_account),
    "swap accounts": (3, Writer.swap_accounts),
    "all accounts": (0.1, Writer.all_accounts),
    "append": (14, Writer.append),
    "churn": (14, Writer.churn),
    "move churn": (4, Writer.move_churn),
    "wide": (10, Writer.wide),
    "truncate": (0.4, lambda writer: writer.truncate()),
    "small": (4, Writer.small),
    "evolve": (5, Writer.evolve),
    "change columns": (0.4, lambda writer: writer.change_columns()),
    "savepoints": (4, Writer.savepoints),
    "rolled back": (2, Writer.rolled_back),
    "nothing": (2, Writer.nothing),
}
"""What every database can be made to do."""
