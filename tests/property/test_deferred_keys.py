"""A transaction may pass rows through one key: the fold of what is written is what the transaction ended in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.encode.deferred_keys import DeferredKeys
from cdc.model.change import Change, Column, Kind, Op, Row, Table
from cdc.model.errors import OperatorError

TEXT = Kind("string")
COLUMNS = tuple(Column(name, "text", TEXT, bytes) for name in ("pos", "v"))
TABLE = Table("s", "t", COLUMNS, ("pos",), deferred_key=True)
KEYS = (b"1", b"2", b"3")
VALUES = (b"x", b"y")

steps = st.lists(
    st.tuples(
        st.sampled_from(["insert", "update", "delete"]),
        st.integers(0, 5),
        st.sampled_from(KEYS),
        st.sampled_from(VALUES),
    ),
    max_size=12,
)


def done(rows: list[Row], wanted: Iterable[tuple[str, int, bytes, bytes]]) -> Iterator[Change]:
    """Changes of rows as the log tells them; `rows` is the table, and may have two rows of one key meanwhile."""
    for lsn, (what, at, key, value) in enumerate(wanted):
        row = (key, value)
        if what == "insert":
            rows.append(row)
            yield Change(Op.CREATE, TABLE, None, row, lsn)
        elif rows and what == "update":
            old, rows[at % len(rows)] = rows[at % len(rows)], row
            yield Change(Op.UPDATE, TABLE, old, row, lsn)
        elif rows:
            yield Change(Op.DELETE, TABLE, rows.pop(at % len(rows)), None, lsn)


def fold(topic: dict[bytes, Row], changes: Iterable[Change]) -> None:
    """As events are written: a delete and a tombstone for the old key of a row that moves."""
    for change in changes:
        if change.before is not None and (change.after is None or change.before[0] != change.after[0]):
            topic.pop(bytes(change.before[0] or b""), None)  # type: ignore[arg-type]
        if change.after is not None:
            topic[bytes(change.after[0] or b"")] = change.after  # type: ignore[arg-type]


@given(st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)), st.lists(steps, max_size=3))
def test_the_fold_is_what_each_transaction_ended_in(start: dict[bytes, bytes], transactions: list[object]) -> None:
    """Chains, swaps, a row put beside another and taken away, the same row twice: all that ends with a key each."""
    rows: list[Row] = list(start.items())
    topic: dict[bytes, Row] = {key: (key, value) for key, value in start.items()}
    deferred = DeferredKeys()
    for wanted in transactions:
        made = list(done(rows, wanted))  # type: ignore[arg-type]
        for surplus in [n for n, row in enumerate(rows) if row[0] in {other[0] for other in rows[:n]}][::-1]:
            made.append(Change(Op.DELETE, TABLE, rows.pop(surplus), None, 0))  # the check at the end allows no other
        fold(topic, (settled for change in made for settled in deferred.settle(change)))
        fold(topic, deferred.end())
        assert sorted(topic.values()) == sorted(rows)
    deferred.close()


def test_rows_are_handed_on_when_the_table_changes() -> None:
    """DDL within the transaction: what is held has the old columns, and would not be found by an old row of the new."""
    deferred = DeferredKeys()
    more = replace(TABLE, columns=(*COLUMNS, Column("w", "text", TEXT, bytes)))
    put = Change(Op.CREATE, TABLE, None, (b"1", b"x"), 1)
    gone = Change(Op.DELETE, more, (b"1", b"x", None), None, 2)
    assert list(deferred.settle(put)) == []
    assert list(deferred.settle(gone)) == [put, gone]
    assert list(deferred.end()) == []
    deferred.close()


def test_a_truncate_empties_what_is_held() -> None:
    deferred = DeferredKeys()
    truncate = Change(Op.TRUNCATE, TABLE, None, None, 2)
    put = [Change(Op.CREATE, TABLE, None, (key, b"x"), 1) for key in KEYS[:2]]
    assert [out for change in (put[0], truncate, put[1]) for out in deferred.settle(change)] == [truncate]
    assert list(deferred.end()) == [put[1]]
    deferred.close()


def test_an_old_row_that_is_not_whole_stops() -> None:
    """Rows that share a key cannot be told apart by it."""
    deferred = DeferredKeys()
    with pytest.raises(OperatorError, match="is DEFERRABLE, and the log does not have the whole old row"):
        list(deferred.settle(Change(Op.UPDATE, TABLE, None, (b"1", b"x"), 1)))
    deferred.close()
