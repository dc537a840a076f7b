"""Offsets of events in files of any length: 64 bits, of which headers have 32; never back, never in silence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.errors import GapError
from connectors.mysql.binlog.events import Header
from connectors.mysql.binlog.offsets import FileOffsets

GIB = 1 << 30


def header(end: int, size: int) -> Header:
    """As a server writes it."""
    return Header(0, 31, 1, size, end % (4 * GIB), 0)


def standing(at: int) -> FileOffsets:
    made = FileOffsets()
    made.begin("b.000001", at)
    return made


steps = st.tuples(st.integers(19, GIB), st.just(0) | st.integers(0, GIB - 1))
back = st.integers(1, 2 * GIB - 1)


@given(st.integers(4, 20 * GIB), st.lists(steps, max_size=20))
def test_any_file_is_counted_through(begin: int, events: list[tuple[int, int]]) -> None:
    """Also where the server leaves events out in between."""
    at, offsets = begin, standing(begin)
    for size, left_out in events:
        at += left_out + size
        assert offsets.end_of(header(at, size)) == at
        assert offsets.at == at


@given(st.integers(2 * GIB + 19, 20 * GIB), st.integers(19, GIB), back)
def test_what_begins_before_the_end_of_the_last_goes_back(at: int, size: int, back: int) -> None:
    offsets = standing(at)
    with pytest.raises(GapError, match="the log goes back"):
        offsets.end_of(header(at + size - back, size))
    assert offsets.at == at
    with pytest.raises(GapError, match=r"the log goes back: in b\.000001, a transaction"):
        offsets.read(at - 1, at + 100)


def test_a_dump_by_gtids_leaves_out_what_is_known() -> None:
    """Of a file with one large transaction that may be more than 2 GiB; and there, too, nothing goes back."""
    offsets = FileOffsets(whole=False)
    offsets.begin("b.000001", 500)
    assert offsets.end_of(header(3 * GIB, 100)) == 3 * GIB
    with pytest.raises(GapError, match="the log goes back"):
        offsets.end_of(header(3 * GIB + 50, 100))
    with pytest.raises(GapError, match="the log goes back"):
        standing(500).end_of(header(3 * GIB, 100))


def test_a_heartbeat_is_no_event_of_the_file() -> None:
    offsets = standing(5 * GIB)
    assert offsets.told(GIB) == 5 * GIB
    assert offsets.told(GIB + 7) == 5 * GIB + 7
    assert offsets.told(3) == 4 * GIB + 3  # behind what was read: nobody goes back to it
    assert standing(8 * GIB - 5).told(7) == 8 * GIB + 7
    assert offsets.at == 5 * GIB


def test_an_end_that_is_not_told_is_counted() -> None:
    """MariaDB since 11.7 tells the ends of a transaction's first and last event; the server may leave others out."""
    offsets = standing(1000)
    assert offsets.counted(header(0, 50)) == 1050
    assert offsets.counted(header(0, 30)) == 1080
    assert offsets.end_of(header(1200, 31)) == 1200
