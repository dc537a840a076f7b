"""Turns dates and times as MySQL prints them, time_zone '+00:00', into JSON text. Pure; bytes to bytes.

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

import re
from typing import Final

from connectors.json_values import DAY_MICROS, clock_micros, days

_CACHE_MAX: Final = 65_536
_NONE: Final = -(1 << 62)
"""What stands in the cache for a day that is not."""

_DATE: Final = re.compile(rb"(\d{4})-(\d\d)-(\d\d)").fullmatch
_TIME: Final = re.compile(rb"(-?)(\d{2,3}):(\d\d):(\d\d)(?:\.(\d{1,6}))?").fullmatch
_TO_ISO: Final = bytes.maketrans(b" ", b"T")
_DATE_SIZE: Final = 10
_SECOND_SIZE: Final = 19
_MICRO_SIZE: Final = 26


class _Days(dict[bytes, int]):
    """Maps ``2024-03-05`` to days since 1970."""

    def __missing__(self, value: bytes) -> int:
        match = _DATE(value)
        if match is None:
            raise ValueError("date is not as MySQL prints it")
        try:
            number = days(*map(int, match.groups()))
        except ValueError:
            number = _NONE
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[value] = number
        return number


class _HourSeconds(dict[bytes, int]):
    """Maps ``2024-03-05 12`` to seconds since 1970; KeyError for a day that does not exist, or any other form."""

    def __missing__(self, hour: bytes) -> int:
        if len(hour) != len("2024-03-05 12") or hour[10:11] != b" " or not hour[11:].isdigit():
            raise KeyError(hour)
        number = _DAYS[hour[:_DATE_SIZE]]
        if number == _NONE:
            raise KeyError(hour)
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[hour] = seconds = number * 86_400 + int(hour[11:]) * 3_600
        return seconds


_DAYS: Final = _Days()
_HOUR_SECONDS: Final = _HourSeconds()
_OF_HOUR: Final = {b":%02d:%02d" % divmod(second, 60): second for second in range(3_600)}
_HOURS: Final = {b"%02d" % hour: hour * 3_600 for hour in range(24)}


def _unreal(value: bytes) -> bytes:
    return b'"%b"' % value


def date(value: bytes) -> bytes:
    """Encode days since 1970-01-01; the text of a day that is not in the calendar."""
    number = _DAYS[value]
    return b"%d" % number if number != _NONE else _unreal(value)


def date_or_null(value: bytes) -> bytes:
    """Encode days since 1970-01-01; null for a day that is not in the calendar."""
    number = _DAYS[value]
    return b"%d" % number if number != _NONE else b"null"


def time(value: bytes) -> bytes:
    """Encode microseconds of a duration."""
    if len(value) == 8:  # noqa: PLR2004 - HH:MM:SS
        try:
            return b"%d" % ((_HOURS[value[:2]] + _OF_HOUR[value[2:]]) * 1_000_000)
        except KeyError:
            pass  # a sign, a longer day
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
    number = _DAYS[value[:_DATE_SIZE]]
    clock = clock_micros(value[_DATE_SIZE + 1 :])
    if clock is None:
        raise ValueError("time of day is not as MySQL prints it")
    return number * DAY_MICROS + clock if number != _NONE else None


def _fast(value: bytes, digits: int) -> bytes | None:
    """Encode seconds and `digits` of fraction, for the common form after 1970."""
    try:
        seconds = _HOUR_SECONDS[value[:13]] + _OF_HOUR[value[13:_SECOND_SIZE]]
    except KeyError:
        return None
    fraction = value[_SECOND_SIZE + 1 :]
    if seconds <= 0 or len(fraction) > digits or not (fraction.isdigit() or len(value) == _SECOND_SIZE):
        return None
    return b"%d%b" % (seconds, fraction.ljust(digits, b"0"))


def datetime_millis(value: bytes) -> bytes:
    """Encode milliseconds since 1970-01-01T00:00, for datetime(0..3)."""
    return _fast(value, 3) or _millis(value) or _unreal(value)


def datetime_millis_or_null(value: bytes) -> bytes:
    """Encode the same, null for a day that is not in the calendar."""
    return _fast(value, 3) or _millis(value) or b"null"


def _millis(value: bytes) -> bytes | None:
    micros = _micros(value)
    if micros is None:
        return None
    millis, lost = divmod(micros, 1_000)
    if lost:
        raise ValueError("datetime(0..3) has more than three fraction digits")
    return b"%d" % millis


def datetime_micros(value: bytes) -> bytes:
    """Encode microseconds since 1970-01-01T00:00, for datetime(4..6)."""
    return _fast(value, 6) or _plain_micros(value) or _unreal(value)


def datetime_micros_or_null(value: bytes) -> bytes:
    """Encode the same, null for a day that is not in the calendar."""
    return _fast(value, 6) or _plain_micros(value) or b"null"


def _plain_micros(value: bytes) -> bytes | None:
    micros = _micros(value)
    return None if micros is None else b"%d" % micros


def timestamp(value: bytes) -> bytes:
    """Encode the instant in UTC; the text of the zero timestamp."""
    return _instant(value) or _unreal(value)


def timestamp_or_null(value: bytes) -> bytes:
    """Encode the instant in UTC; null for the zero timestamp."""
    return _instant(value) or b"null"


def _instant(value: bytes) -> bytes | None:
    whole = value[:_SECOND_SIZE]
    try:
        _HOUR_SECONDS[whole[:13]] + _OF_HOUR[whole[13:]]
    except KeyError:
        if _micros(value) is None:
            return None
    fraction = value[_SECOND_SIZE + 1 :]
    if not fraction.strip(b"0") and (fraction or len(value) == _SECOND_SIZE):
        return b'"%bZ"' % whole.translate(_TO_ISO)
    if value[_SECOND_SIZE:][:1] != b"." or not fraction.isdigit() or len(value) > _MICRO_SIZE:
        raise ValueError("timestamp is not as MySQL prints it")
    return b'"%bZ"' % value.ljust(_MICRO_SIZE, b"0").translate(_TO_ISO)
