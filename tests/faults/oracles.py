"""What a reader of the topics must never see: the laws, over records fed in the order of each partition. No I/O.

lost           a ledger row of the source without its event; a row that is not in the fold; a list's element left out
doubled        an event (transaction, number) or a ledger row seen twice; a row the fold has too many
torn           a transaction of which a part is there; a prefix whose balances do not add up; an event ahead of
               the position
order breaks   for one key: positions that do not rise, a row that comes twice or goes without having come
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from cdc.encode.truncates import TRUNCATED_AT_ONCE
from tests.faults.workload import HOSTILE, KEYS

SHOWN: Final = 10
EVERYTHING: Final = 1 << 64
PARTITIONS: Final = 3
_LONG: Final = TRUNCATED_AT_ONCE // 2 // PARTITIONS
"""Records of one partition, which has no more markers of transactions beside them than they are: who reads a topic from
its beginning may be fed one partition behind the other."""


@dataclass
class Findings:
    """Violations by law: how many, and the first of them in words (keys and numbers, no values)."""

    lost: int = 0
    doubled: int = 0
    torn: int = 0
    order_breaks: int = 0
    said: list[str] = field(default_factory=list)

    def add(self, law: str, what: str) -> None:
        setattr(self, law, getattr(self, law) + 1)
        if len(self.said) < SHOWN * 4 and sum(line.startswith(law) for line in self.said) < SHOWN:
            self.said.append(f"{law}: {what}")

    @property
    def any(self) -> bool:
        return bool(self.lost or self.doubled or self.torn or self.order_breaks)


@dataclass(slots=True)
class _Transaction:
    commit: int
    seen: bytearray = field(default_factory=bytearray)
    """One byte for each number of an event."""
    events: int = 0
    emptied_only: bool = True
    """Nothing but deletes of `small`."""
    hostile_only: bool = True
    """Nothing but rows that a session has written of whose images the log need not have all."""
    ledger: int | None = None
    expected: int | None = 0
    """By all ledger rows of it: a round of MySQL's triggers is of several transactions. None: one does not say."""
    settled: bool = False


class Judge:
    """Fed with every record of every table's topic; each partition in its order, partitions in any."""

    def __init__(self, *, total: int, truncates_alone: bool = False, read_again: frozenset[str] = frozenset()) -> None:
        """`read_again`: tables that may be changed without an event, and are read again then."""
        self._read_again = read_again
        self._total = total
        self._truncates_alone = truncates_alone
        self.found = Findings()
        self.fold: dict[str, dict[bytes, bytes]] = {table: {} for table in KEYS}
        """The last record of each key; tombstones applied."""
        self._last: dict[tuple[str, bytes], str] = {}
        self._doomed: set[tuple[str, bytes]] = set()
        """Deleted, and their tombstone still to come."""
        self._records = Counter[tuple[str, int]]()
        """How many each partition of each topic has had."""
        self._items: dict[bytes, str] = {}
        self._ledger: dict[int, int] = {}
        self._transactions: dict[str, _Transaction] = {}
        self._open: dict[str, _Transaction] = {}
        self._balances: list[tuple[str, bytes, int | None]] = []
        self.events = 0
        self.newest = 0
        """The greatest commit position of a transaction seen."""

    @property
    def transactions(self) -> int:
        return len(self._transactions)

    def feed(self, table: str, key: bytes, value: bytes | None, partition: int = 0) -> None:
        """The next record of a partition."""
        at = (table, key)
        self._records[table, partition] += 1
        if value is None:
            if at not in self._doomed:
                self.found.add("order_breaks", f"{table} {key.decode()}: a tombstone that follows no delete")
            self._doomed.discard(at)
            return
        self.events += 1
        event = orjson.loads(value)
        position, op, after = event["source"]["position"], event["op"], event["after"]
        again = event["source"]["snapshot"] == "incremental"  # read beside the log: it may repeat what is there
        if at in self._doomed:
            self.found.add("order_breaks", f"{table} {key.decode()} at {position}: a delete without its tombstone")
            self._doomed.discard(at)
        if position <= self._last.get(at, ""):
            what = f"{table} {key.decode()}: {position} after {self._last[at]}"
            self.found.add("order_breaks", what)
        self._last[at] = max(position, self._last.get(at, ""))
        known = key in self.fold[table]
        is_long = table == "small" and self._records[table, partition] > _LONG
        self._rows(at, op, value if after is not None else None, position, again=again, is_long=is_long)
        if table == "list" and not (again and known):
            self._elements(key, op, after, position)
        if event["transaction"] is not None:
            self._of_transaction(event, table, after, position)
        elif op != "r" and not again:
            self.found.add("torn", f"{table} {key.decode()} at {position}: an event of no transaction")
        if table == "ledger" and after is not None and not (again and known):
            self._ledger[after["id"]] = self._ledger.get(after["id"], 0) + 1
        if table == "account":
            self._balances.append((position, key, after["balance"] if after is not None else None))

    def _rows(
        self, at: tuple[str, bytes], op: str, value: bytes | None, position: str, *, again: bool, is_long: bool
    ) -> None:
        """Rows come and go in turn, but for those read `again`; `value` is the row's record, None where it went.

        A row that was asked for by its key and is gone by then has a delete, also where the log has told it before. Of
        a topic that is too long for a truncate at once, rows come again before what is gone has its delete.
        """
        table, key = at
        rows = self.fold[table]
        was = key in rows
        turns = {("r", False), ("c", False), ("u", True), ("d", True)}
        if is_long:
            turns.add(("c", True))
        if (op, was) not in turns and not (again and op in ("r", "d")) and table not in self._read_again:
            told = "is there" if was else "is not there"
            self.found.add("order_breaks", f"{table} {key.decode()} at {position}: {op} of a row that {told}")
        if value is None:
            rows.pop(key, None)
            self._doomed.add(at)
        else:
            rows[key] = value

    def _elements(self, key: bytes, op: str, after: Mapping[str, Any] | None, position: str) -> None:
        """Every update of a list adds one element, or empties it."""
        items = after["items"] if after is not None else ""
        before = self._items.get(key, "")
        if op == "u" and items and not (items.startswith(before) and items.count(",") == before.count(",") + 1):
            self.found.add("lost", f"list {key.decode()} at {position}: not one element more than before")
        self._items[key] = items

    def _of_transaction(
        self, event: Mapping[str, Any], table: str, after: Mapping[str, Any] | None, position: str
    ) -> None:
        name, number = event["transaction"]["id"], event["transaction"]["total_order"]
        transaction = self._transactions.get(name)
        if transaction is None:
            transaction = self._transactions[name] = self._open[name] = _Transaction(int(position[9:25], 16))
            self.newest = max(self.newest, transaction.commit)
        if number >= len(transaction.seen):
            transaction.seen.extend(bytes(number + 1 - len(transaction.seen)))
        if transaction.seen[number]:
            self.found.add("doubled", f"transaction {name}, event {number} ({table} at {position})")
        else:
            transaction.seen[number] = 1
            transaction.events += 1
            if transaction.settled:
                self.found.add("torn", f"transaction {name}: event {number} came after its position")
        transaction.emptied_only &= table == "small" and after is None
        transaction.hostile_only &= after is not None and str(after.get("v", "")).startswith(HOSTILE)
        if table == "ledger" and after is not None and after["id"] not in self._ledger:
            told, before = after["events"], transaction.expected
            transaction.ledger, transaction.expected = after["id"], None if None in (told, before) else told + before

    def settle(self, published: int, *, handed_over: int) -> None:
        """Everything up to commit position `published` has been fed: each transaction up to there must be whole.

        Up to `handed_over` the rows of a snapshot may hold what a transaction did, in place of its events.
        """
        for name, transaction in list(self._open.items()):
            if transaction.commit >= published:
                continue
            del self._open[name]
            transaction.settled = True
            if transaction.commit < handed_over:
                continue
            if (transaction.emptied_only and self._truncates_alone) or transaction.hostile_only:
                continue
            if transaction.ledger is None:
                self.found.add("torn", f"transaction {name}: {transaction.events} events without its ledger row")
            elif transaction.expected is not None and transaction.events != transaction.expected:
                law = "torn" if transaction.events < transaction.expected else "doubled"
                seen = [number for number, there in enumerate(transaction.seen) if there]
                what = f"ledger {transaction.ledger}: {transaction.events} events of {transaction.expected}"
                what += f", transaction {name}, numbers {', '.join(map(str, seen[:SHOWN]))}"
                self.found.add(law, what)

    def ahead(self, published: int) -> None:
        """`published` was read after the last record fed: nothing may have been seen beyond it."""
        if self.newest >= published:
            self.found.add("torn", f"an event of commit {self.newest:x} was seen before position {published:x}")
            self.newest = 0

    def finish(self, source: Mapping[str, Sequence[Mapping[str, Any]]], *, handed_over: int) -> Findings:
        """All has been fed, and `source` is what the tables hold now."""
        self.settle(EVERYTHING, handed_over=handed_over)
        for table, key in self._doomed:
            self.found.add("order_breaks", f"{table} {key.decode()}: a delete without its tombstone")
        self._count_ledger(row["id"] for row in source["ledger"])
        self._compare(source)
        self._add_up(handed_over)
        return self.found

    def _count_ledger(self, ids: Iterable[int]) -> None:
        there = set(ids)
        for number in sorted(there - self._ledger.keys()):
            self.found.add("lost", f"ledger {number}")
        for number, times in self._ledger.items():
            if times > 1:
                self.found.add("doubled", f"ledger {number}: {times} times")
            if number not in there:
                self.found.add("doubled", f"ledger {number}: it never happened")

    def _compare(self, source: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
        """The fold must be the source, whole rows. A column younger than a row's last event is null there."""
        for table, rows in source.items():
            fold = {_key(table, orjson.loads(value)["after"]): value for value in self.fold[table].values()}
            wanted = {_key(table, row): row for row in rows}
            if table != "ledger":  # which is counted
                for key in fold.keys() - wanted.keys():
                    self.found.add("doubled", f"{table} {key}: a row the source does not have")
                for key in wanted.keys() - fold.keys():
                    self.found.add("lost", f"{table} {key}: the row")
            for key in fold.keys() & wanted.keys():
                row = wanted[key]
                after = orjson.loads(fold[key])["after"]
                differing = [name for name, value in row.items() if after.get(name) != value]
                if differing:
                    self.found.add("lost", f"{table} {key}: {', '.join(differing)} not as in the source")

    def _add_up(self, handed_over: int) -> None:
        """The balances after each transaction, in the order of positions: each time the sum goes wrong is one tear."""
        total, right = 0, True
        balances: dict[bytes, int] = {}
        events = sorted(self._balances)
        for index, (position, key, balance) in enumerate(events):
            total -= balances.pop(key, 0)
            if balance is not None:
                balances[key] = balance
                total += balance
            end = index + 1 == len(events) or events[index + 1][0][:25] != position[:25]
            if not end or int(position[9:25], 16) < handed_over:
                continue
            if (total == self._total) != right:
                right = not right
                if not right:
                    self.found.add("torn", f"after {position[:25]} the balances add up to {total - self._total:+d}")


def _key(table: str, row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in KEYS[table])
