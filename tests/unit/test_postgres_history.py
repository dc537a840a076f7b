"""A server's log before a position is the one that was followed, or it is told: for any log, copy and position."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import GapError
from connectors.postgres.pgoutput.messages import Begin
from connectors.postgres.slot.history import LastTransaction, Proof


@dataclass(frozen=True)
class Committed:
    """A transaction that the publication has rows of."""

    lsn: int
    end: int
    xid: int
    at_ms: int


def _log(sizes: list[int], *, lsn: int, xid: int, at_ms: int) -> list[Committed]:
    """Transactions one after the other; between them is what nobody follows."""
    found = []
    for number, size in enumerate(sizes):
        lsn += size
        found.append(Committed(lsn, lsn + 8, xid + number, at_ms + number))
        lsn += 8
    return found


def _proved(last: Committed | None, sent: list[Committed], *, confirmed: int, position: int) -> bool:
    of = LastTransaction.none_yet(messages=True)
    if last is not None:
        of = LastTransaction.of(last.lsn, last.xid, last.at_ms, messages=True)
    proof = Proof(LastTransaction.parse(str(of)), confirmed=confirmed, position=position)
    try:
        for each in sent:
            if each.lsn < confirmed:  # as the server has it
                continue
            proof.begin(Begin(each.lsn, each.at_ms * 1000 + 7, each.xid))
            if not proof.is_over:
                proof.reach(each.end)
            if proof.is_over:
                return True
        proof.reach(position)
    except GapError:
        return False
    assert proof.is_over
    return True


_SIZES = st.lists(st.integers(1, 50), max_size=8)


@given(st.data())
def test_only_the_log_that_was_followed_passes(data: st.DataObject) -> None:
    """A copy with other transactions before the position is refused; the log itself is not, whatever is confirmed."""
    log = _log(data.draw(_SIZES.filter(bool)), lsn=100, xid=700, at_ms=10_000)
    seen = log[: data.draw(st.integers(0, len(log)))]
    last, end = (seen[-1], seen[-1].end) if seen else (None, 100)
    behind = log[len(seen)].lsn if len(seen) < len(log) else end + 100
    position = data.draw(st.integers(end, behind))
    copied = data.draw(st.integers(100, position))
    confirmed = data.draw(st.integers(100, copied).filter(lambda at: not any(each.lsn < at < each.end for each in log)))
    assert _proved(last, log, confirmed=confirmed, position=position)
    kept = list(takewhile(lambda each: each.end <= copied, log))
    other = _log(data.draw(_SIZES), lsn=copied, xid=700 + len(kept), at_ms=20_000)
    same = len(kept) >= len(seen) and not any(each.lsn < position for each in other)
    assert _proved(last, kept + other, confirmed=confirmed, position=position) is same


def test_the_same_number_at_the_same_place_is_another_transaction_at_another_time() -> None:
    """What a test or a replayed workload writes after the copy looks like what was there, but for its time."""
    was, now = Committed(200, 208, 700, 10_000), Committed(200, 208, 700, 10_001)
    assert _proved(was, [was], confirmed=150, position=208)
    assert not _proved(was, [now], confirmed=150, position=208)
    with pytest.raises(GapError, match="another history") as refused:
        Proof(LastTransaction.of(200, 700, 1, messages=True), confirmed=150, position=208).reach(208)
    assert "--after-gap" in str(refused.value.hint)


@pytest.mark.parametrize("messages", [True, False])
def test_whether_messages_came_is_kept(messages: bool) -> None:
    """Without them a transaction of nothing else never comes, and is not missed."""
    of = LastTransaction.of(2**33 + 5, 7, 1, messages=messages)
    assert LastTransaction.parse(str(of)) == of
    assert of.messages is messages
