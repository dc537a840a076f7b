"""The oracles on streams made by hand: each law is broken once, and noticed as what it is."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from tests.faults import world
from tests.faults.oracles import Findings, Judge
from tests.faults.stage import StuckError
from tests.faults.workload import HOSTILE

TOTAL = 200
Record = tuple[str, bytes, bytes | None]


def key(**columns: Any) -> bytes:
    return json.dumps(columns, separators=(",", ":")).encode()


def event(
    table: str, commit: int, number: int, op: str, row: dict[str, Any], *, transaction: int | None = None
) -> Record:
    """A record; the row's key is its id."""
    body = {
        "op": op,
        "before": None,
        "after": None if op == "d" else row,
        "source": {"position": f"00000001.{commit:016x}.{number:08x}", "snapshot": "true" if op == "r" else "false"},
        "transaction": None
        if op == "r"
        else {"id": str(transaction if transaction is not None else commit), "total_order": number},
    }
    return table, key(id=row["id"]), json.dumps(body).encode()


def tombstone(table: str, number: int) -> Record:
    return table, key(id=number), None


def account(commit: int, number: int, at: int, balance: int, op: str = "u") -> Record:
    return event("account", commit, number, op, {"id": at, "balance": balance})


def ledger(commit: int, number: int, at: int, events: int | None) -> Record:
    return event("ledger", commit, number, "c", {"id": at, "events": events})


START = [account(5, 0, 1, 100, "r"), account(5, 0, 2, 100, "r")]
FIRST = [account(10, 1, 1, 90), account(10, 2, 2, 110), ledger(10, 3, 1, 3)]
SECOND = [account(20, 1, 2, 100), account(20, 2, 1, 100), ledger(20, 3, 2, 3)]
ENOUGH = [{"id": 1, "balance": 100}, {"id": 2, "balance": 100}]


def judged(
    *records: Record, accounts: list[dict[str, Any]] = ENOUGH, ledgers: int = 2, expected: int = 3, **tables: Any
) -> Findings:
    judge = Judge(total=TOTAL)
    for record in records:
        judge.feed(*record)
    rows = [{"id": n + 1, "events": expected} for n in range(ledgers)]
    return judge.finish({"account": accounts, "ledger": rows, **tables}, handed_over=6)


def counts(found: Findings) -> tuple[int, int, int, int]:
    return found.lost, found.doubled, found.torn, found.order_breaks


def test_a_good_stream() -> None:
    """Two transfers behind a snapshot, in the order of partitions and in any mixture of them."""
    assert counts(judged(*START, *FIRST, *SECOND)) == (0, 0, 0, 0)
    by_table = sorted([*START, *FIRST, *SECOND], key=lambda record: record[0])
    assert counts(judged(*by_table)) == (0, 0, 0, 0)


def test_a_lost_transaction() -> None:
    """Its ledger row is missing and the rows stand where they stood before it."""
    found = judged(*START, *FIRST)
    assert counts(found) == (3, 0, 0, 0)
    assert "lost: ledger 2" in found.said


def test_a_lost_event() -> None:
    """The transaction is there in part, the sum goes wrong at its end, the row differs."""
    found = judged(*START, *FIRST, *SECOND[1:])
    assert found.torn == 2
    assert found.lost == 1


def test_a_transaction_without_its_ledger_row() -> None:
    """The ledger's event is one of the transaction's: without it, it is torn, and the operation lost."""
    found = judged(*START, *FIRST, *SECOND[:2])
    assert counts(found) == (1, 0, 1, 0)


def test_a_round_of_several_transactions() -> None:
    """It has the events of all its ledger rows; one whose ledger row does not say how many is not counted."""
    behind = [account(10, 4, 2, 100), account(10, 5, 1, 100), ledger(10, 6, 2, 3)]
    assert counts(judged(*START, *FIRST, *behind)) == (0, 0, 0, 0)
    found = judged(*START, *FIRST, behind[0], behind[2])
    assert any("5 events of 6" in said for said in found.said)
    assert counts(found) == (1, 0, 2, 0)
    silent = [*FIRST[:2], ledger(10, 3, 1, None)]
    found = judged(*START, *silent, behind[0], behind[2])
    assert not any("events of" in said for said in found.said)
    assert counts(found) == (2, 0, 1, 0), "the sum and the rows tell of it"


def test_rows_that_say_that_they_have_no_ledger_row() -> None:
    """They may come whole, without one; in a transaction with others they may not."""
    by_hand = event("evolving", 30, 1, "c", {"id": 9, "v": f"{HOSTILE}9"})
    there = {"evolving": [{"id": 9, "v": f"{HOSTILE}9"}]}
    assert counts(judged(*START, *FIRST, *SECOND, by_hand, **there)) == (0, 0, 0, 0)
    other = event("evolving", 30, 2, "c", {"id": 8, "v": "8"})
    there["evolving"].append({"id": 8, "v": "8"})
    assert counts(judged(*START, *FIRST, *SECOND, by_hand, other, **there)) == (0, 0, 1, 0)


def test_a_doubled_transaction() -> None:
    """Every event twice: doubled by number, the ledger twice, and the keys' positions do not rise."""
    found = judged(*START, *FIRST, *SECOND, *SECOND)
    assert found.doubled == 4
    assert found.order_breaks == 4
    assert found.torn == 0


def test_out_of_order() -> None:
    """One key's events in the wrong order."""
    found = judged(*START, *SECOND, *FIRST)
    assert found.order_breaks == 2
    assert found.lost == 2, "and the fold ends with the older rows"


@pytest.mark.parametrize(("table", "length", "breaks"), [("small", 3_000, 1), ("small", 3_400, 0), ("churn", 3_400, 1)])
def test_rows_that_come_behind_a_truncate(table: str, length: int, breaks: int) -> None:
    """Of a long topic its deletes follow in parts; of others a row that is there cannot come."""
    judge = Judge(total=TOTAL)
    for record in (event(table, 10, number, "u" if number else "r", {"id": 1}) for number in range(length)):
        judge.feed(*record)
    judge.feed(*event(table, 20, 1, "c", {"id": 1}))
    assert judge.found.order_breaks == breaks


def test_half_a_transaction_seen() -> None:
    """A reader at a published position holds a part of what the position covers."""
    judge = Judge(total=TOTAL)
    for record in [*START, *FIRST, *SECOND[1:]]:
        judge.feed(*record)
    judge.settle(20, handed_over=6)
    assert not judge.found.any, "the position does not cover the second yet"
    judge.settle(21, handed_over=6)
    assert judge.found.torn == 1
    judge.feed(*SECOND[0])
    assert judge.found.torn == 2, "and what comes late is late"


def test_seen_before_its_position() -> None:
    """An event is visible though no position that covers it has been published."""
    judge = Judge(total=TOTAL)
    for record in [*START, *FIRST]:
        judge.feed(*record)
    judge.ahead(11)
    assert not judge.found.any
    judge.ahead(10)
    assert judge.found.torn == 1


def test_a_sum_that_is_wrong_for_a_while() -> None:
    """Two transactions each of which tears the sum and repairs what the other tore: the end alone would look right."""
    torn = [account(10, 1, 1, 90), ledger(10, 2, 1, 2), account(20, 1, 2, 110), ledger(20, 2, 2, 2)]
    accounts = [{"id": 1, "balance": 90}, {"id": 2, "balance": 110}]
    assert counts(judged(*START, *torn, accounts=accounts, expected=2)) == (0, 0, 1, 0)


def test_the_handover_is_not_judged_by_sums() -> None:
    """Before the snapshot's last view is passed, its rows hold what the events left out did."""
    early = [event("account", 5, 2, "u", {"id": 1, "balance": 120}, transaction=9), ledger(5, 3, 1, 3)]
    assert judged(*START, *early, account(7, 1, 2, 80), ledger(7, 2, 2, 2), ledgers=2,
                  accounts=[{"id": 1, "balance": 120}, {"id": 2, "balance": 80}]).torn == 0  # fmt: skip


def test_rows_that_should_not_be_there() -> None:
    """A row the source does not have, and an operation that never happened."""
    found = judged(*START, *FIRST, *SECOND, account(30, 1, 3, 0, "c"), ledger(30, 2, 3, 2))
    assert found.doubled == 2


def test_deletes_and_tombstones() -> None:
    """A delete is followed by its tombstone, and a tombstone follows a delete; rows come and go in turn."""
    gone = [account(30, 1, 2, 0, "d"), tombstone("account", 2)]
    back = [account(30, 2, 2, 100, "c"), ledger(30, 3, 3, 3)]
    assert counts(judged(*START, *FIRST, *SECOND, *gone, *back, ledgers=3)) == (0, 0, 0, 0)
    assert judged(*START, *FIRST, *SECOND, gone[0], *back, ledgers=3).order_breaks == 1
    assert judged(*START, *FIRST, *SECOND, *gone, *gone[1:], *back, ledgers=3).order_breaks == 1
    assert judged(*START, *FIRST, *SECOND, *back, ledgers=3).order_breaks == 1


def test_lists_grow_by_one() -> None:
    """An element left out between two updates of a list is noticed, though its last record is right."""

    def added(commit: int, items: str) -> list[Record]:
        return [event("list", commit, 1, "u", {"id": 1, "items": items}), ledger(commit, 2, commit, 2)]

    begun = [*START, event("list", 5, 0, "r", {"id": 1, "items": ""})]
    rows = {"list": [{"id": 1, "items": ",7,8"}]}

    def lost(*records: Record) -> list[str]:
        return [line for line in judged(*begun, *records, ledgers=0, **rows).said if line.startswith("lost")]

    assert lost(*added(7, ",7"), *added(8, ",7,8")) == []
    (line,) = lost(*added(8, ",7,8"))
    assert "not one element more" in line


def test_a_younger_column_is_null_in_older_rows() -> None:
    """A column added since a row's last event is null there in the source; a value there has been lost."""
    first = event("evolving", 5, 0, "r", {"id": 1, "v": "x"})

    def lost(row: dict[str, Any]) -> int:
        return judged(*START, *FIRST, *SECOND, first, evolving=[row]).lost

    assert lost({"id": 1, "v": "x", "extra": None}) == 0
    assert lost({"id": 1, "v": "x", "extra": 5}) == 1
    assert lost({"id": 1, "v": "y"}) == 1


@pytest.mark.parametrize(("snapshot", "breaks"), [("false", 1), ("incremental", 0)])
def test_a_delete_of_a_row_that_is_not_there(snapshot: str, breaks: int) -> None:
    """From the log it breaks the order; of a row that was asked for by its key it says what the reader knows."""
    first, last = event("evolving", 5, 0, "r", {"id": 1}), event("evolving", 6, 1, "d", {"id": 1})
    table, at, value = event("evolving", 7, 2, "d", {"id": 1})
    body = json.loads(value or b"")
    body["source"]["snapshot"] = snapshot
    tombstone: Record = (table, at, None)
    again: Record = (table, at, json.dumps(body).encode())
    found = judged(*START, *FIRST, *SECOND, first, last, tombstone, again, tombstone, evolving=[])
    assert found.order_breaks == breaks


def test_a_topic_that_is_not_its_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether a row is missing, too many or another one: the connector is revived in time, and then it is stuck."""
    revived: list[bool] = []
    stage: Any = SimpleNamespace(
        connector=SimpleNamespace(revive=lambda: revived.append(True), copy=SimpleNamespace(log="l"))
    )
    there: list[tuple[object, ...]] = [(1, "a", "b"), (2, "a", "b"), (3, "a", "b")]
    monkeypatch.setattr(world, "RECOVERED_S", -1)
    monkeypatch.setattr(world, "_rows", lambda _: there)
    monkeypatch.setattr(world, "_folded", lambda _: [(1, "a", "b"), (2, "a", "other"), (4, "a", "b")])
    with pytest.raises(StuckError, match=r"keys \[2, 3, 4\]"):
        world.await_fold(stage)
    assert revived == [True]
    monkeypatch.setattr(world, "_folded", lambda _: there[::-1])
    world.await_fold(stage)
