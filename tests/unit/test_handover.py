"""Which events a snapshot's rows contain: by visibility, by key, and by nothing else."""

from __future__ import annotations

import orjson
import pytest

from cdc.model.change import UNCHANGED, Change, Column, Kind, Op, Table
from cdc.model.errors import BugError
from cdc.testing import delete, insert, truncate, update
from snapshot.handover import PostgresView, Progress, Range, RangeHandover, TableProgress, key_order, sort_key
from tests.text_tables import text_column, text_table

NUMBER = Column("id", "bigint", Kind("int64"), bytes)
ORDERS = Table("s", "orders", (NUMBER, text_column("note")), ("id",))
PAIRS = text_table("pairs", ["a", NUMBER, "note"], key=("a", "id"))


def _handover(*ranges: Range, table: Table = ORDERS, **views: tuple[str, int]) -> RangeHandover:
    progress = Progress(
        {table.qualified: TableProgress(9, ranges, order=key_order(table))}, {int(n[1:]): v for n, v in views.items()}
    )
    return RangeHandover([ORDERS, PAIRS], progress, PostgresView.parse)


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
    view = PostgresView.parse(text)
    assert [xid for xid in seen + unseen if view.sees(xid)] == seen


def test_an_event_is_hidden_iff_its_keys_range_was_read_under_a_view_that_saw_it() -> None:
    """Keys up to 10 under the slot's view (hides nothing), to 20 under view 1, the rest under view 2."""
    handover = _handover(
        Range((b"10",), 0), Range((b"20",), 1), Range(None, 2), v1=("50:60:55", 1_000), v2=("70:80:", 2_000)
    )
    hidden = {
        (key, xid) for key in (1, 10, 11, 20, 21, 99) for xid in (40, 55, 65, 80) if handover.hides(_order(key), xid)
    }
    assert hidden == {(11, 40), (20, 40), (21, 40), (99, 40), (21, 55), (99, 55), (21, 65), (99, 65)}


def test_integers_order_by_number_and_text_by_bytes() -> None:
    """Key 9 lies before 10 as a bigint; as text it lies behind; a pair orders by its first column first."""
    handover = _handover(Range((b"10",), 1), Range(None, 0), v1=("5:9:", 1))
    assert handover.hides(_order(9), 3)
    assert not handover.hides(_order(11), 3)
    pairs = _handover(Range((b"b", b"10"), 1), Range(None, 0), table=PAIRS, v1=("5:9:", 1))
    assert [pairs.hides(insert(PAIRS, (a, n, b"")), 3) for a, n in [(b"b", b"9"), (b"b", b"11"), (b"a", b"99")]] == [
        True, False, True,
    ]  # fmt: skip
    assert sort_key(key_order(PAIRS), (b"\xc3\xa9", b"-5")) == (b"\xc3\xa9", -5)


def test_a_change_is_asked_about_by_the_key_it_has_after() -> None:
    """A delete by the key it had; a truncate has none and is never hidden as a whole."""
    handover = _handover(Range((b"10",), 1), Range(None, 0), v1=("5:9:", 1))
    assert handover.hides(delete(ORDERS, (b"3",)), 3)
    assert not handover.hides(delete(ORDERS, (b"30",)), 3)
    assert not handover.hides(update(ORDERS, (b"30", b"x"), key=(b"3",)), 3)
    assert not handover.hides(truncate(ORDERS), 3)
    with pytest.raises(BugError, match=r"s\.orders: a row or change without its key"):
        handover.hides(Change(Op.DELETE, ORDERS, (UNCHANGED, b"x"), None, 0), 3)


def test_rows_of_another_snapshot_are_not_taken_for_this_ones() -> None:
    """Each snapshot numbers its own views: of a table that an earlier one read, none of these saw anything."""
    handover = _handover(Range(None, 1), v1=("50:60:", 1_000))
    assert handover.saw(ORDERS, 1, 40)
    assert not handover.saw(ORDERS, 1, 60)
    assert not handover.saw(ORDERS, 0, 40)
    assert not handover.saw(PAIRS, 1, 40)
    assert not handover.saw(PAIRS, 7, 40)


def test_a_handover_is_spent_at_the_last_views_end() -> None:
    """Nothing that commits at or after the end of every view can have been seen by one."""
    handover = _handover(Range((b"3",), 1), Range(None, 2), v1=("5:6:", 900), v2=("7:8:", 1_200))
    assert [handover.spent(commit) for commit in (899, 1_199, 1_200)] == [False, False, True]


def test_one_pass_under_the_slots_view_hides_nothing() -> None:
    """The log begins at exactly the point of that view."""
    assert _handover(Range(None, 0)).hides_nothing
    assert RangeHandover([ORDERS], Progress({}, {}), PostgresView.parse).hides_nothing
    assert not _handover(Range(None, 1), v1=("5:6:", 1)).hides_nothing


ID = key_order(ORDERS)


def test_progress_joins_chunks_of_one_view_and_survives_json() -> None:
    """One range for each run, however many chunks; what is stored reads back equal."""
    table = TableProgress(estimate=11, order=ID)
    assert list(table.gaps()) == [(None, None)]
    table = table.read(after=None, upto=(b"5",), view=0, rows=5)
    table = table.read(after=(b"5",), upto=(b"9",), view=0, rows=4)
    assert (table.done, list(table.gaps())) == (False, [((b"9",), None)])
    table = table.read(after=(b"9",), upto=(b"12",), view=1, rows=3)
    table = table.read(after=(b"12",), upto=None, view=1, rows=0)
    assert table == TableProgress(12, (Range((b"9",), 0), Range(None, 1)), 11, ID)
    assert table.done
    progress = Progress({"s.orders": table}, {1: ("5:6:", 77)}, 1_700_000_000_000, 9)
    assert Progress.from_json(orjson.loads(orjson.dumps(progress.to_json()))) == progress
    assert Progress.from_json({}) == Progress()


def test_several_places_of_one_gap_are_read_at_once() -> None:
    """Each reader splits the gap it stands in; where they meet, ranges of one view join."""
    table = TableProgress(order=ID).read(after=(b"9",), upto=(b"20",), view=0, rows=10)
    assert table.ranges == (Range((b"9",), None), Range((b"20",), 0), Range(None, None))
    table = table.read(after=None, upto=(b"4",), view=0, rows=4)
    assert list(table.gaps()) == [((b"4",), (b"9",)), ((b"20",), None)]
    table = table.read(after=(b"4",), upto=(b"9",), view=1, rows=5)
    assert table.ranges == (Range((b"4",), 0), Range((b"9",), 1), Range((b"20",), 0), Range(None, None))
    assert table.read(after=(b"20",), upto=None, view=0, rows=0).ranges[-1] == Range(None, 0)
    assert table.read(after=(b"20",), upto=(b"20",), view=0, rows=0) == table


@pytest.mark.parametrize(("after", "upto"), [(None, (b"3",)), ((b"4",), (b"7",)), ((b"4",), None), ((b"7",), (b"9",))])
def test_what_was_read_is_not_read_again(after: tuple[bytes] | None, upto: tuple[bytes] | None) -> None:
    """Keys read twice would double their rows: that is refused as a bug."""
    table = TableProgress(5, (Range((b"5",), 0), Range((b"6",), None), Range((b"8",), 1), Range(None, None)), order=ID)
    with pytest.raises(BugError, match="read before"):
        table.read(after=after, upto=upto, view=1, rows=1)


def test_a_key_not_read_yet_is_never_hidden() -> None:
    """In a gap nothing is known, before, between and after what was read."""
    gaps = (Range((b"3",), None), Range((b"5",), 1), Range((b"8",), None), Range((b"9",), 1), Range(None, None))
    handover = _handover(*gaps, v1=("50:60:", 1))
    assert [key for key in range(12) if handover.hides(_order(key), 1)] == [4, 5, 9]


def test_a_bound_of_any_bytes_survives_json() -> None:
    """Keys of a SQL_ASCII database are bytes of no known encoding."""
    table = TableProgress(1, (Range((b"caf\xe9", "ü".encode()), 0), Range(None, None)), order=key_order(PAIRS))
    assert TableProgress.from_json(orjson.loads(orjson.dumps(table.to_json()))) == table


RETYPED = Table("s", "orders", (text_column("id"), text_column("note")), ("id",))
REKEYED = Table("s", "orders", (NUMBER, text_column("note")), ("note",))


@pytest.mark.parametrize("now", [RETYPED, REKEYED, Table("s", "orders", REKEYED.columns, ("id", "note"))])
def test_ranges_of_another_key_say_nothing(now: Table) -> None:
    """Its values have no place among them: the table is read from its beginning, and nothing of the log is hidden."""
    progress = Progress({"s.orders": TableProgress(5, (Range((b"5",), 1), Range(None, None)), 9, ID)}, {1: ("9:9:", 1)})
    assert progress.of(now) == TableProgress(order=key_order(now))
    assert progress.of(ORDERS).rows == 5
    handover = RangeHandover([now], progress, PostgresView.parse)
    assert not handover.hides(insert(now, (b"x" if now is RETYPED else b"3", b"x")), 3)
    assert handover.hides(_order(3), 3), "an event from before the change"
