"""Encodes values that PostgreSQL and MySQL print alike: one bit, days of the calendar, clocks. Pure.

The calendar is proleptic Gregorian over all years. It repeats in 400 years, by which years are shifted into Python's
range. In: the server's text, or numbers from it. Out: JSON text, numbers. Each connector's `values` import it.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

DAY_MICROS: Final = 86_400_000_000
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_EPOCH_ORDINAL: Final = 719_163
_CLOCK: Final = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?").fullmatch


def bit(value: bytes) -> bytes:
    """Encode whether the one bit is set, which is printed as a number."""
    if value == b"1":
        return b"true"
    if value == b"0":
        return b"false"
    raise ValueError("bit(1) is neither 1 nor 0")


def days(year: int, month: int, day: int) -> int:
    """Return the days since 1970-01-01; year 0 is 1 BC. Raises ValueError for a day that is not in the calendar."""
    cycle, of_cycle = divmod(year, _CYCLE_YEARS)
    ordinal = dt.date(of_cycle + _CYCLE_YEARS, month, day).toordinal()
    return ordinal + (cycle - 1) * _CYCLE_DAYS - _EPOCH_ORDINAL


def date_of(number: int) -> tuple[int, int, int]:
    """Return year, month and day of a number of days since 1970-01-01."""
    cycle, ordinal = divmod(number + _EPOCH_ORDINAL - 1, _CYCLE_DAYS)
    of_cycle = dt.date.fromordinal(ordinal + 1)
    return of_cycle.year + cycle * _CYCLE_YEARS, of_cycle.month, of_cycle.day


def clock_micros(value: bytes) -> int | None:
    """Return the microseconds of ``HH:MM:SS[.ffffff]``; None for any other form."""
    match = _CLOCK(value)
    if match is None:
        return None
    hours, minutes, seconds, fraction = match.groups(b"")
    return ((int(hours) * 60 + int(minutes)) * 60 + int(seconds)) * 1_000_000 + int(fraction.ljust(6, b"0"))
