"""Which events a snapshot's rows contain: by visibility, by key, and by nothing else."""

from __future__ import annotations

import pytest

from cdc.change import UNCHANGED, Change, Column, Kind, Op, Table
from cdc.errors import BugError
from cdc.testing import delete, insert, truncate, update
from snapshot.handover import PostgresHandover, Progress, Range, TableProgress, View, sort_key
from tests.text_tables import text_column, text_table

NUMBER = Column("id", "bigint", Kind("int64"), bytes)
ORDERS = Table("s", "orders", (NUMBER, text_column("note")), ("id",))
PAIRS = text_table("pairs", ["a", NUMBER, "note"], key=("a", "id"))


def _handover(*ranges: Range, table: Table = ORDERS, **views: tuple[str, int]) -> PostgresHandover:
    progress = Progress({table.qualified: TableProgress(True, 9, ranges)}, {n.lstrip("v"): v for n, v in views.items()})
    return PostgresHandover([ORDERS, PAIRS], progress)


def _order(key: int) -> Change:
    return insert(ORDERS, (b"%d" % key, b"x"))


@pytest.mark.parametrize(
    ("text", "seen", "unseen"),
    [
        ("100:104:100,102", [3, 99, 101, 103], [100, 102, 104, 105]),
        ("100:100:", [99], [100, 101]),
        ("4294967290:4294967300:4294967295", [4294967289, 4294967294, 0, 3], [4294967295, 4, 5]),
        ("12884901890:12884901900:12884901895", [4294967295, 6, 8], [7, 12, 13]),
    ],
)
def test_a_view_sees_what_ended_before_it(text: str, seen: list[int], unseen: list[int]) -> None:
    """Below xmax and not in progress, whichever wrap of the 32-bit counter the log's id comes from."""
    view = View.parse(text)
    assert [xid for xid in seen + unseen if view.sees(xid)] == seen


def test_an_event_is_hidden_iff_its_keys_range_was_read_under_a_view_that_saw_it() -> None:
    """Keys up to 10 under the slot's view (hides nothing), to 20 under view 1, the rest under view 2."""
    handover = _handover(
        Range(("10",), None), Range(("20",), "1"), Range(None, "2"), v1=("50:60:55", 1_000), v2=("70:80:", 2_000)
    )
    hidden = {
        (key, xid) for key in (1, 10, 11, 20, 21, 99) for xid in (40, 55, 65, 80) if handover.hides(_order(key), xid)
    }
    assert hidden == {(11, 40), (20, 40), (21, 40), (99, 40), (21, 55), (99, 55), (21, 65), (99, 65)}


def test_integers_order_by_number_and_text_by_bytes() -> None:
    """Key 9 lies before 10 as a bigint; as text it lies behind; a pair orders by its first column first."""
    handover = _handover(Range(("10",), "1"), Range(None, None), v1=("5:9:", 1))
    assert handover.hides(_order(9), 3)
    assert not handover.hides(_order(11), 3)
    pairs = _handover(Range(("b", "10"), "1"), Range(None, None), table=PAIRS, v1=("5:9:", 1))
    assert [pairs.hides(insert(PAIRS, (a, n, b"")), 3) for a, n in [(b"b", b"9"), (b"b", b"11"), (b"a", b"99")]] == [
        True, False, True,
    ]  # fmt: skip
    assert sort_key(PAIRS.columns[:2], [b"\xc3\xa9", b"-5"]) == (b"\xc3\xa9", -5)


def test_a_change_is_asked_about_by_the_key_it_has_after() -> None:
    """A delete by the key it had; a truncate has none and is never hidden as a whole."""
    handover = _handover(Range(("10",), "1"), Range(None, None), v1=("5:9:", 1))
    assert handover.hides(delete(ORDERS, (b"3",)), 3)
    assert not handover.hides(delete(ORDERS, (b"30",)), 3)
    assert not handover.hides(update(ORDERS, (b"30", b"x"), key=(b"3",)), 3)
    assert not handover.hides(truncate(ORDERS), 3)
    with pytest.raises(BugError, match=r"s\.orders: a change without its key"):
        handover.hides(Change(Op.DELETE, ORDERS, (UNCHANGED, b"x"), None, 0), 3)


def test_rows_of_another_snapshot_are_not_taken_for_this_ones() -> None:
    """Views are numbered anew for each snapshot: of a table an earlier one read, none of these saw anything."""
    handover = _handover(Range(None, "1"), v1=("50:60:", 1_000))
    assert handover.saw(ORDERS, 1, 40)
    assert not handover.saw(ORDERS, 1, 60)
    assert not handover.saw(ORDERS, 0, 40)
    assert not handover.saw(PAIRS, 1, 40)
    assert not handover.saw(PAIRS, 7, 40)


def test_a_handover_is_spent_at_the_last_views_end() -> None:
    """Nothing that commits at or after the end of every view can have been seen by one."""
    handover = _handover(Range(("3",), "1"), Range(None, "2"), v1=("5:6:", 900), v2=("7:8:", 1_200))
    assert [handover.spent(commit) for commit in (899, 1_199, 1_200)] == [False, False, True]


def test_one_pass_under_the_slots_view_hides_nothing() -> None:
    """The log begins at exactly the point of that view."""
    assert _handover(Range(None, None)).hides_nothing
    assert PostgresHandover([ORDERS], Progress({}, {})).hides_nothing
    assert not _handover(Range(None, "1"), v1=("5:6:", 1)).hides_nothing


def test_progress_joins_chunks_of_one_view_and_survives_json() -> None:
    """One range for each run, however many chunks; what is stored reads back equal."""
    table = TableProgress().read(("5",), None, 5).read(("9",), None, 4).read(("12",), "1", 3).read(None, "1", 0)
    assert table == TableProgress(True, 12, (Range(("9",), None), Range(None, "1")))
    assert table.after is None
    progress = Progress({"s.orders": table}, {"1": ("5:6:", 77)})
    assert Progress.from_json(progress.to_json()) == progress
    assert Progress.from_json({}) == Progress({}, {})


def test_a_key_not_read_yet_is_never_hidden() -> None:
    """Past the last range nothing is known."""
    assert not _handover(Range(("5",), "1"), v1=("50:60:", 1)).hides(_order(6), 1)
