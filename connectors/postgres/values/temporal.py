"""Turns dates and times as PostgreSQL prints them, DateStyle=ISO, TimeZone=UTC, into JSON text. Pure; bytes to bytes.

| type | JSON |
|---|---|
| date | days since 1970-01-01 |
| time | microseconds of the day, 24:00:00 included |
| timestamp | milliseconds or microseconds since 1970-01-01T00:00 |
| timetz, timestamptz | ISO 8601 in UTC, no fraction or six digits of it |

The calendar is proleptic Gregorian, as the server's, over all its years (4713 BC to 5874897). ISO years are
astronomical: 1 BC is 0000, 44 BC is -0043; years over 9999 carry a plus. Each hot type has a fast path for the common
form, by dictionaries of text pieces, and a plain one for the rest.
https://www.postgresql.org/docs/current/datatype-datetime.html
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from connectors.json_values import DAY_MICROS, clock_micros, date_of, days

_ISO_YEAR_MAX: Final = 9999
_CACHE_MAX: Final = 65_536
"""How many entries a cache may hold before it is emptied: seven years of hours, or every day of 179 years."""

_INFINITIES: Final = {b"infinity": b'"infinity"', b"-infinity": b'"-infinity"'}
_DATE: Final = re.compile(rb"(\d{4,7})-(\d\d)-(\d\d)( BC)?").fullmatch
_ZONE: Final = rb"([+-])(\d\d)(?::(\d\d))?(?::(\d\d))?"
_TIMETZ: Final = re.compile(rb"([\d:.]+)" + _ZONE).fullmatch
_TIMESTAMP: Final = re.compile(rb"([\d-]+) ([\d:.]+)( BC)?").fullmatch
_TIMESTAMPTZ: Final = re.compile(rb"([\d-]+) ([\d:.]+)" + _ZONE + rb"( BC)?").fullmatch


class _DateTexts(dict[bytes, bytes]):
    def __missing__(self, value: bytes) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[value] = json = _INFINITIES.get(value) or b"%d" % _days(value)
        return json


class _HourSeconds(dict[bytes, int]):
    """Maps ``2024-03-05 12`` to seconds since the epoch; KeyError for every other form.

    A day that is not in the calendar counts as before the epoch, which leaves the fast path: BC has other leap years.
    """

    def __missing__(self, hour: bytes) -> int:
        if len(hour) != len("2024-03-05 12") or hour[10:11] != b" " or not hour[11:].isdigit():
            raise KeyError(hour)
        if len(self) >= _CACHE_MAX:
            self.clear()
        try:
            seconds = _days(hour[:10]) * 86_400 + int(hour[11:]) * 3_600
        except ValueError:
            seconds = -3_600
        self[hour] = seconds
        return seconds


_HOUR_SECONDS: Final = _HourSeconds()
_OF_HOUR: Final = {b":%02d:%02d" % divmod(second, 60): second for second in range(3_600)}
_HOURS: Final = {b"%02d" % hour: hour * 3_600 for hour in range(25)}
_TO_ISO: Final = bytes.maketrans(b" +", b"TZ")

date: Final = _DateTexts().__getitem__
"""Days since 1970-01-01. The cache's own method, because a function around it would double the 20 ns it takes."""


def time(value: bytes) -> bytes:
    """Encode microseconds of the day."""
    try:
        seconds = _HOURS[value[:2]] + _OF_HOUR[value[2:8]]
    except KeyError:
        seconds = 0
    if seconds > 0:
        if len(value) == 8:  # noqa: PLR2004 - HH:MM:SS
            return b"%d000000" % seconds
        fraction = value[9:]
        if fraction.isdigit():
            return b"%d%b" % (seconds, fraction.ljust(6, b"0"))
    return b"%d" % _time_micros(value)


def timetz(value: bytes) -> bytes:
    """Encode the time of day in UTC; what leaves the day at one end by the offset comes back at its other end.

    ``24:00:00+00`` stays 24:00:00Z: the server tells it from 00:00:00+00.
    """
    match = _TIMETZ(value)
    if match is None:
        raise ValueError("timetz is not as DateStyle=ISO prints it")
    micros, offset = _time_micros(match[1]), _offset_micros(*match.groups()[1:])
    if offset or micros > DAY_MICROS:
        micros = (micros - offset) % DAY_MICROS
    return b'"%bZ"' % _iso_time(micros)


def timestamp_micros(value: bytes) -> bytes:
    """Encode microseconds since 1970-01-01T00:00, for timestamp and timestamp(4..6)."""
    try:
        seconds = _HOUR_SECONDS[value[:13]] + _OF_HOUR[value[13:19]]
    except KeyError:
        seconds = 0
    if seconds > 0:
        size = len(value)
        if size == 19:  # noqa: PLR2004 - YYYY-MM-DD HH:MM:SS
            return b"%d000000" % seconds
        fraction = value[20:]
        if fraction.isdigit():  # and not "BC"
            return b"%d%b" % (seconds, fraction if size == 26 else fraction.ljust(6, b"0"))  # noqa: PLR2004
    return _INFINITIES.get(value) or b"%d" % _timestamp_micros(value)


def timestamp_millis(value: bytes) -> bytes:
    """Encode milliseconds since 1970-01-01T00:00, for timestamp(0..3)."""
    try:
        seconds = _HOUR_SECONDS[value[:13]] + _OF_HOUR[value[13:19]]
    except KeyError:
        seconds = 0
    if seconds > 0:
        size = len(value)
        if size == 19:  # noqa: PLR2004 - YYYY-MM-DD HH:MM:SS
            return b"%d000" % seconds
        fraction = value[20:]
        if size <= 23 and fraction.isdigit():  # noqa: PLR2004 - three digits at most, and not "BC"
            return b"%d%b" % (seconds, fraction if size == 23 else fraction.ljust(3, b"0"))  # noqa: PLR2004
    if value in _INFINITIES:
        return _INFINITIES[value]
    millis, lost = divmod(_timestamp_micros(value), 1_000)
    if lost:
        raise ValueError("timestamp(0..3) has more than three fraction digits")
    return b"%d" % millis


def timestamptz(value: bytes) -> bytes:
    """Encode the instant in UTC."""
    size = len(value)
    # Only these two lengths need no padding; a year of five digits with five of fraction also makes 29.
    if (size == 22 or (size == 29 and value[10] == 32)) and value[-3:] == b"+00":  # noqa: PLR2004
        return b'"%b"' % value[:-2].translate(_TO_ISO)
    if 24 <= size < 29 and value[10] == 32 and value[-3:] == b"+00":  # noqa: PLR2004
        return b'"%bT%bZ"' % (value[:10], value[11:-3].ljust(15, b"0"))
    return _INFINITIES.get(value) or _timestamptz(value)


def _timestamptz(value: bytes) -> bytes:
    match = _TIMESTAMPTZ(value)
    if match is None:
        raise ValueError("timestamptz is not as DateStyle=ISO prints it")
    day, clock, *zone, era = match.groups()
    micros = _days(day + (era or b"")) * DAY_MICROS + _time_micros(clock) - _offset_micros(*zone)
    number, micros = divmod(micros, DAY_MICROS)
    year, month, of_month = date_of(number)
    iso_year = b"%04d" % year if 0 <= year <= _ISO_YEAR_MAX else b"%+05d" % year
    return b'"%b-%02d-%02dT%bZ"' % (iso_year, month, of_month, _iso_time(micros))


def _timestamp_micros(value: bytes) -> int:
    match = _TIMESTAMP(value)
    if match is None:
        raise ValueError("timestamp is not as DateStyle=ISO prints it")
    day, clock, era = match.groups()
    return _days(day + (era or b"")) * DAY_MICROS + _time_micros(clock)


@lru_cache(maxsize=_CACHE_MAX)
def _days(value: bytes) -> int:
    """Return days since 1970-01-01 of ``YYYY-MM-DD[ BC]``."""
    match = _DATE(value)
    if match is None:
        raise ValueError("date is not as DateStyle=ISO prints it")
    year = int(match[1])
    return days(1 - year if match[4] else year, int(match[2]), int(match[3]))


def _time_micros(value: bytes) -> int:
    micros = clock_micros(value)
    if micros is None:
        raise ValueError("time is not as DateStyle=ISO prints it")
    return micros


def _offset_micros(sign: bytes, hours: bytes, minutes: bytes | None, seconds: bytes | None) -> int:
    """Return how far a zone is ahead of UTC; local mean times have seconds."""
    micros = ((int(hours) * 60 + int(minutes or 0)) * 60 + int(seconds or 0)) * 1_000_000
    return -micros if sign == b"-" else micros


def _iso_time(micros: int) -> bytes:
    seconds, fraction = divmod(micros, 1_000_000)
    minutes, second = divmod(seconds, 60)
    text = b"%02d:%02d:%02d" % (*divmod(minutes, 60), second)
    return b"%b.%06d" % (text, fraction) if fraction else text
