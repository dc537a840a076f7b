"""Dates and times as MySQL prints them, time_zone '+00:00', to JSON text. Pure; bytes to bytes.

| type | JSON |
|---|---|
| date | days since 1970-01-01 |
| time | microseconds, signed, up to 838:59:59.999999 |
| datetime | milliseconds or microseconds since 1970-01-01T00:00 |
| timestamp | ISO 8601 in UTC, no fraction or six digits of it |

The calendar is proleptic Gregorian. What is not in it (``0000-00-00``, ``2024-02-00``, ``2024-02-30``) has no number:
it is null where the column allows it (`…_or_null`), else the server's text as a string.
https://dev.mysql.com/doc/refman/en/date-and-time-types.html
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Final

_DAY_MICROS: Final = 86_400_000_000
_CYCLE_YEARS: Final = 400
_CYCLE_DAYS: Final = 146_097
_EPOCH_ORDINAL: Final = 719_163
_CACHE_MAX: Final = 65_536
_NONE: Final = -(1 << 62)
"""What stands in the cache for a day that is not."""

_DATE: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)").fullmatch
_CLOCK: Final = re.compile(rb"(\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?").fullmatch
_TIME: Final = re.compile(rb"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?").fullmatch
_TO_ISO: Final = bytes.maketrans(b" ", b"T")
_DATE_SIZE: Final = 10
_SECOND_SIZE: Final = 19
_MILLI_SIZE: Final = 23
_MICRO_SIZE: Final = 26


class _Days(dict[bytes, int]):
    """``2024-03-05`` to days since 1970."""

    def __missing__(self, value: bytes) -> int:
        match = _DATE(value)
        if match is None:
            raise ValueError("date is not as MySQL prints it")
        year, month, day = map(int, match.groups())
        try:
            days = dt.date(year + _CYCLE_YEARS, month, day).toordinal() - _CYCLE_DAYS - _EPOCH_ORDINAL
        except ValueError:
            days = _NONE
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[value] = days
        return days


_DAYS: Final = _Days()
_CLOCKS: dict[bytes, int] = {}


def _clock_micros(value: bytes) -> int:
    """Of ``12:34:56.789``; whole seconds are remembered."""
    seconds = _CLOCKS.get(value[:8])
    if seconds is None or len(value) > _SECOND_SIZE - _DATE_SIZE - 1:
        match = _CLOCK(value)
        if match is None:
            raise ValueError("time of day is not as MySQL prints it")
        hours, minutes, second, fraction = match.groups(b"")
        seconds = (int(hours) * 60 + int(minutes)) * 60 + int(second)
        _CLOCKS[value[:8]] = seconds
        return seconds * 1_000_000 + int(fraction.ljust(6, b"0"))
    return seconds * 1_000_000


def _unreal(value: bytes) -> bytes:
    return b'"%b"' % value


def date(value: bytes) -> bytes:
    """Days since 1970-01-01; the text of a day that is not in the calendar."""
    days = _DAYS[value]
    return b"%d" % days if days != _NONE else _unreal(value)


def date_or_null(value: bytes) -> bytes:
    """Days since 1970-01-01; null for a day that is not in the calendar."""
    days = _DAYS[value]
    return b"%d" % days if days != _NONE else b"null"


def time(value: bytes) -> bytes:
    """Microseconds of a duration."""
    match = _TIME(value)
    if match is None:
        raise ValueError("time is not as MySQL prints it")
    sign, hours, minutes, second, fraction = match.groups(b"")
    seconds = (int(hours) * 60 + int(minutes)) * 60 + int(second)
    micros = seconds * 1_000_000 + int(fraction.ljust(6, b"0"))
    return b"%d" % (-micros if sign else micros)


def _micros(value: bytes) -> int | None:
    if value[_DATE_SIZE : _DATE_SIZE + 1] != b" ":
        raise ValueError("datetime is not as MySQL prints it")
    days = _DAYS[value[:_DATE_SIZE]]
    clock = _clock_micros(value[_DATE_SIZE + 1 :])
    return days * _DAY_MICROS + clock if days != _NONE else None


def datetime_millis(value: bytes) -> bytes:
    """Milliseconds since 1970-01-01T00:00, for datetime(0..3)."""
    micros = _micros(value)
    return b"%d" % _whole_millis(micros) if micros is not None else _unreal(value)


def datetime_millis_or_null(value: bytes) -> bytes:
    """The same, null for a day that is not in the calendar."""
    micros = _micros(value)
    return b"%d" % _whole_millis(micros) if micros is not None else b"null"


def _whole_millis(micros: int) -> int:
    millis, lost = divmod(micros, 1_000)
    if lost:
        raise ValueError("datetime(0..3) has more than three fraction digits")
    return millis


def datetime_micros(value: bytes) -> bytes:
    """Microseconds since 1970-01-01T00:00, for datetime(4..6)."""
    micros = _micros(value)
    return b"%d" % micros if micros is not None else _unreal(value)


def datetime_micros_or_null(value: bytes) -> bytes:
    """The same, null for a day that is not in the calendar."""
    micros = _micros(value)
    return b"%d" % micros if micros is not None else b"null"


def timestamp(value: bytes) -> bytes:
    """The instant in UTC; the text of the zero timestamp."""
    return _instant(value) or _unreal(value)


def timestamp_or_null(value: bytes) -> bytes:
    """The instant in UTC; null for the zero timestamp."""
    return _instant(value) or b"null"


def _instant(value: bytes) -> bytes | None:
    if len(value) > _SECOND_SIZE and not value[_SECOND_SIZE + 1 :].strip(b"0"):
        value = value[:_SECOND_SIZE]
    micros = _micros(value)
    if micros is None:
        return None
    if len(value) > _SECOND_SIZE:
        value = value.ljust(_MICRO_SIZE, b"0")
    return b'"%bZ"' % value.translate(_TO_ISO)
