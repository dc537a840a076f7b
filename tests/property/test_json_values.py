"""What both servers print alike: days of a calendar over all years, clocks, one bit."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from connectors.json_values import DAY_MICROS, bit, clock_micros, date_of, days

EPOCH = dt.date(1970, 1, 1)


@given(st.dates())
def test_days_are_those_of_the_calendar(date: dt.date) -> None:
    assert days(date.year, date.month, date.day) == (date - EPOCH).days


@given(st.integers(-2_500_000, 2_200_000_000))
def test_a_number_of_days_has_one_date(number: int) -> None:
    """Also before the year 1 and after 9999, as PostgreSQL has them (4713 BC to 5874897)."""
    assert days(*date_of(number)) == number


@given(st.integers(-4712, 5_874_897), st.integers(1, 12), st.integers(1, 28))
def test_a_date_has_one_number_of_days(year: int, month: int, day: int) -> None:
    assert date_of(days(year, month, day)) == (year, month, day)


@pytest.mark.parametrize("date", [(2023, 2, 29), (1900, 2, 29), (-1, 2, 29), (2024, 0, 1), (2024, 1, 0), (0, 0, 0)])
def test_days_that_are_not_in_the_calendar(date: tuple[int, int, int]) -> None:
    """The year 0 (1 BC) has a 29 February, the year before it has none."""
    assert date_of(days(0, 2, 29)) == (0, 2, 29)
    with pytest.raises(ValueError, match=r"range|must be"):
        days(*date)


@given(st.times(), st.integers(0, 6))
def test_clocks(time: dt.time, digits: int) -> None:
    micros = time.microsecond // 10 ** (6 - digits) * 10 ** (6 - digits)
    text = time.strftime("%H:%M:%S") + (f".{micros:06d}"[: digits + 1] if digits else "")
    whole = dt.timedelta(hours=time.hour, minutes=time.minute, seconds=time.second)
    assert clock_micros(text.encode()) == whole // dt.timedelta(microseconds=1) + micros


@pytest.mark.parametrize("text", [b"", b"1:02:03", b"01:02", b"01:02:03.", b"01:02:03.1234567", b"-01:02:03", b"x"])
def test_what_is_no_clock(text: bytes) -> None:
    assert clock_micros(b"24:00:00") == DAY_MICROS
    assert clock_micros(text) is None


def test_one_bit() -> None:
    assert (bit(b"1"), bit(b"0")) == (b"true", b"false")
    for text in (b"", b"10", b"t"):
        with pytest.raises(ValueError, match="neither 1 nor 0"):
            bit(text)
