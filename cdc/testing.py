"""In-memory twins of the seams: a log, a source and a snapshotter over it, and a Kafka with its transactions.

They keep the promises of `cdc.interfaces` and break where the real ones break: commits reach the log before a view
sees them, a commit that raised may have happened, a fenced producer cannot commit, aborted records stay in the topic.
To test a source of your own, run `cdc.pipeline.Pipeline` with it and a `MemorySink`, and compare
`MemoryKafka.committed` with your tables. To see that it survives, pass `at=Faults(("sink.commit.answer", 1))`.

`at` is called with a name of `POINTS` whenever one is passed, before what it names happens; whatever it raises
comes out of the twin's method. It may also change things, such as commit to the log while a snapshot is read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeAlias, cast

from cdc.change import UNCHANGED, Change, Idle, Offset, Op, Row, Table, Transaction
from cdc.errors import BugError, OperatorError, RetryableError
from cdc.interfaces import Chunk, Handover, Start
from cdc.state import State

At: TypeAlias = Callable[[str], None]
Key: TypeAlias = tuple[bytes, ...]

POINTS: Final = (
    "source.connect",
    "source.hold",
    "source.held",
    "source.extend",
    "source.frame",
    "source.change",
    "source.idle",
    "source.acknowledge",
    "snapshot.view",
    "snapshot.chunk",
    "snapshot.row",
    "sink.check",
    "sink.create",
    "sink.fence",
    "sink.fenced",
    "sink.schema",
    "sink.write",
    "sink.records",
    "sink.commit",
    "sink.commit.delayed",
    "sink.commit.answer",
)
"""Raising at ``sink.commit``: it did not happen; at ``sink.commit.delayed``: it happens when the next producer fences
this one; at ``sink.commit.answer``: it happened. The caller cannot tell which."""


class Killed(BaseException):
    """The process ended here: nothing of the pipeline may catch it."""


class Faults:
    """Raises at named points: each of `plan` is a point and on which passing of it; the next waits for the one before.

    `error` makes what is raised; RetryableError by default, so that the pipeline tries again.
    """

    def __init__(self, *plan: tuple[str, int], error: Callable[[str], BaseException] | None = None) -> None:
        unknown = sorted({point for point, _ in plan} - set(POINTS))
        if unknown:
            raise ValueError(f"no such point: {', '.join(unknown)}")
        self._plan = deque(plan)
        self._error = error or (lambda point: RetryableError(f"injected at {point}"))
        self._passed = 0
        self.fired: list[str] = []

    def __call__(self, point: str) -> None:
        if not self._plan or self._plan[0][0] != point:
            return
        self._passed += 1
        if self._passed >= self._plan[0][1]:
            self._plan.popleft()
            self._passed = 0
            self.fired.append(point)
            raise self._error(point)


def nothing(point: str) -> None:
    """No fault at any point."""


def insert(table: Table, row: Row) -> Change:
    """A new row."""
    return Change(Op.CREATE, table, None, row, 0)


def update(table: Table, row: Row, *, key: Key | None = None) -> Change:
    """A row's new values, UNCHANGED for a wide one left out; `key` is the old key where it changed."""
    return Change(Op.UPDATE, table, None if key is None else _key_image(table, key), row, 0)


def delete(table: Table, key: Key) -> Change:
    """A row gone."""
    return Change(Op.DELETE, table, _key_image(table, key), None, 0)


def truncate(table: Table) -> Change:
    """All rows gone."""
    return Change(Op.TRUNCATE, table, None, None, 0)


def key_of(table: Table, row: Row) -> Key:
    """A row's key in key order."""
    return tuple(cast("bytes", row[index]) for index in table.key_indexes)


def _key_image(table: Table, key: Key) -> Row:
    at = dict(zip(table.key_indexes, key, strict=True))
    return tuple(at.get(index, UNCHANGED) for index in range(len(table.columns)))


@dataclass(frozen=True, slots=True)
class View:
    """A reader's view: the transactions below `next`, except those not visible yet."""

    next: int
    unseen: frozenset[int]
    end: int
    """The log's end after the view was taken."""

    def sees(self, xid: int) -> bool:
        return xid < self.next and xid not in self.unseen


@dataclass(frozen=True, slots=True)
class Logged:
    """A transaction in the log; `carried` are the tables whose changes the log has for us."""

    xid: int
    commit: int
    end: int
    changes: tuple[Change, ...]
    carried: frozenset[str]


class MemoryLog:
    """A database: rows that views see, and a log of its transactions in commit order."""

    def __init__(self) -> None:
        self.transactions: list[Logged] = []
        self.carried: frozenset[str] = frozenset()
        """Tables whose changes reach the log."""
        self.held_from: int | None = None
        """Where the log begins to be kept for the connector: its slot."""
        self.acknowledged = 0
        self.exported: dict[str, View] = {}
        self._unseen: set[int] = set()

    @property
    def end(self) -> int:
        return self.transactions[-1].end if self.transactions else 8

    def commit(self, *changes: Change, visible: bool = True) -> int:
        """Append a transaction, give its id. Not `visible`: it is in the log, but views do not see it before `reveal`.

        Its changes wait for the locks of earlier ones, as in a database: what they touch becomes visible first.
        Raises ValueError for a change that its table does not admit.
        """
        touched = _touched(changes)
        for earlier in self.transactions:
            if earlier.xid in self._unseen and _meet(_touched(earlier.changes), touched):
                self.reveal([earlier.xid])
        xid = len(self.transactions) + 1
        tables = {change.table.qualified: change.table for change in changes}
        contents = {name: self.rows(table) for name, table in tables.items()}
        for change in changes:
            _apply(contents[change.table.qualified], change, strict=True)
        placed = tuple(change._replace(lsn=16 * xid - 4) for change in changes)
        self.transactions.append(Logged(xid, 16 * xid, 16 * xid + 8, placed, self.carried))
        if not visible:
            self._unseen.add(xid)
        return xid

    def reveal(self, xids: Iterable[int]) -> None:
        """Let new views see these transactions."""
        self._unseen -= set(xids)

    def reveal_before(self, position: int) -> None:
        """Wait for the transactions that committed before `position`: let new views see them."""
        self.reveal(logged.xid for logged in self.transactions if logged.commit < position)

    def view(self) -> View:
        """What a reader sees now."""
        return View(len(self.transactions) + 1, frozenset(self._unseen), self.end)

    def rows(self, table: Table, view: View | None = None) -> dict[Key, Row]:
        """The table's rows by key: as `view` has them, or as the log says."""
        found: dict[Key, Row] = {}
        for transaction in self.transactions:
            if view is None or view.sees(transaction.xid):
                for change in transaction.changes:
                    if change.table.qualified == table.qualified:
                        _apply(found, change, strict=False)
        return found


def _touched(changes: Iterable[Change]) -> set[tuple[str, Key | None]]:
    """Tables and keys, None for a whole table."""
    found: set[tuple[str, Key | None]] = set()
    for change in changes:
        images = [row for row in (change.before, change.after) if row is not None]
        found |= {(change.table.qualified, key_of(change.table, row)) for row in images}
        if change.op is Op.TRUNCATE:
            found.add((change.table.qualified, None))
    return found


def _meet(one: set[tuple[str, Key | None]], other: set[tuple[str, Key | None]]) -> bool:
    return any(
        table == there and (key == their or key is None or their is None)
        for table, key in one
        for there, their in other
    )


def _apply(rows: dict[Key, Row], change: Change, *, strict: bool) -> None:
    if change.op is Op.TRUNCATE:
        rows.clear()
        return
    after = change.after
    new_key = key_of(change.table, after) if after is not None else None
    old_key = new_key if change.before is None else key_of(change.table, change.before)
    old = None if change.op is Op.CREATE else rows.pop(cast("Key", old_key), None)
    if strict and ((change.op is not Op.CREATE and old is None) or new_key in rows):
        raise ValueError(f"{change.op} of a row of {change.table.qualified} that is not there, or there already")
    if after is None or new_key is None:
        return
    if UNCHANGED in after:
        if old is None:
            raise ValueError(f"table {change.table.qualified}: a value left out, and no row that has it")
        after = tuple(was if now is UNCHANGED else now for was, now in zip(old, after, strict=True))
    rows[new_key] = after


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


class Outcome(Enum):
    """What became of a Kafka transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Record:
    """A record in a topic, whatever became of its transaction."""

    topic: str
    key: bytes
    value: bytes | None = field(repr=False)
    transaction: int


class MemoryKafka:
    """A broker: topics of one partition, transactions, and one epoch for each producer."""

    def __init__(self, *, largest_bytes: int = 32 * 1024 * 1024) -> None:
        self.topics: dict[str, list[Record]] = {}
        self.outcomes: list[Outcome] = []
        self.largest_bytes = largest_bytes
        self.epochs: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.delayed: set[int] = set()

    def begin(self, producer: str) -> int:
        """A new transaction of `producer`."""
        self.outcomes.append(Outcome.OPEN)
        self.open[producer] = len(self.outcomes) - 1
        return self.open[producer]

    def end(self, producer: str, outcome: Outcome) -> None:
        """Decide the open transaction of `producer`, if there is one."""
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            self.outcomes[transaction] = outcome

    def fence(self, producer: str) -> int:
        """Shut out older copies; what they had open is decided on return."""
        under_way = self.open.get(producer) in self.delayed
        self.end(producer, Outcome.COMMITTED if under_way else Outcome.ABORTED)
        self.epochs[producer] = self.epochs.get(producer, 0) + 1
        return self.epochs[producer]

    def committed(self, topic: str) -> list[Record]:
        """What a read_committed reader sees."""
        return [r for r in self.topics.get(topic, []) if self.outcomes[r.transaction] is Outcome.COMMITTED]


class MemorySink:
    """A `Sink` into a `MemoryKafka`; each pipeline that runs against the same broker has one of its own."""

    def __init__(self, kafka: MemoryKafka, connector: str, prefix: str, *, at: At = nothing) -> None:
        self._kafka = kafka
        self._connector = connector
        self._prefix = prefix
        self._at = at
        self._epoch: int | None = None
        self._transaction: int | None = None
        self._records = self._bytes = 0
        self.position_topic = f"{prefix}.position-{connector}"
        self.schema_topic = f"{prefix}.schema"

    def topic(self, table: Table) -> str:
        return f"{self._prefix}.{table.schema}.{table.name}"

    def check(self, tables: Sequence[Table]) -> None:  # noqa: ARG002 - the seam's
        self._at("sink.check")

    def create(self, tables: Sequence[Table]) -> None:
        self._at("sink.create")
        for topic in (self.position_topic, self.schema_topic, *map(self.topic, tables)):
            self._kafka.topics.setdefault(topic, [])

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        return [topic for topic in map(self.topic, tables) if self._kafka.committed(topic)]

    def fence(self) -> State | None:
        self.close()
        self._at("sink.fence")
        self._epoch = self._kafka.fence(self._producer)
        self._at("sink.fenced")
        found = [r.value for r in self._kafka.committed(self.position_topic) if r.key == self._connector.encode()]
        if not found or found[-1] is None:
            return None
        return State.from_bytes(found[-1], where=f"topic {self.position_topic}")

    @property
    def _producer(self) -> str:
        return f"{self._prefix}.{self._connector}"

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        self._at("sink.write")
        self._append(topic, key, value)

    def schema(self, key: bytes, value: bytes) -> None:
        self._at("sink.schema")
        self._append(self.schema_topic, key, value)

    def _append(self, topic: str, key: bytes, value: bytes | None) -> None:
        if self._epoch is None:
            raise BugError("the sink is not fenced: nothing may be written")
        size = len(key) + len(value or b"")
        if size > self._kafka.largest_bytes:
            raise OperatorError(f"a record of {size} bytes is too large for topic {topic}", hint="raise the limit")
        self._records += 1
        self._bytes += size
        if self._fenced():
            return  # a broker takes nothing from it; `commit` says so
        if self._transaction is None:
            self._transaction = self._kafka.begin(self._producer)
        self._kafka.topics[topic].append(Record(topic, key, value, self._transaction))

    def _fenced(self) -> bool:
        return self._kafka.epochs.get(self._producer) != self._epoch

    def commit(self, state: State) -> None:
        self._append(self.position_topic, self._connector.encode(), state.to_bytes())
        if self._fenced():
            raise OperatorError(f"another copy of connector {self._connector} has fenced this one off")
        transaction = cast("int", self._transaction)
        self._epoch, epoch = None, self._epoch  # nothing goes on after an error
        self._at("sink.commit")
        try:
            self._at("sink.commit.delayed")
        except BaseException:
            self._kafka.delayed.add(transaction)
            raise
        self._kafka.end(self._producer, Outcome.COMMITTED)
        self._at("sink.commit.answer")
        self._epoch, self._transaction = epoch, None
        self._records = self._bytes = 0

    def pending(self) -> tuple[int, int]:
        return self._records, self._bytes

    def schemas(self) -> Iterator[bytes]:
        return iter([r.value for r in self._kafka.committed(self.schema_topic) if r.value is not None])

    def records(self, table: Table) -> Iterator[tuple[bytes, bytes | None]]:
        self._at("sink.records")
        return iter([(r.key, r.value) for r in self._kafka.topics[self.topic(table)]])

    def close(self) -> None:
        """Let go, as a process that dies does: what is open stays open until the next `fence`."""
        self._epoch = self._transaction = None
        self._records = self._bytes = 0
