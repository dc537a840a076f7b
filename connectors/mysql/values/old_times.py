"""Prints times with a fraction as MariaDB before 10.1 stored them, in tables that were not altered since. Pure.

| type | bytes, big-endian |
|---|---|
| datetime(n) | 6 to 8: (((year · 13 + month) · 32 + day) · 86,400 + seconds of the day) · 10ⁿ + fraction |
| time(n) | 4 to 6: (seconds + 3,020,400) · 10ⁿ + fraction, so that none is negative |
| timestamp(n) | 4: seconds since 1970; then 1 to 3: the fraction's n digits |

The log has the type's number of before MySQL 5.6, and not how many digits: only the catalog tells, which marks such
types by ``/* mariadb-5.3 */``. Those without a fraction are as `server_text` has them.
https://mariadb.com/docs/server/server-management/variables-and-modes/server-system-variables#mysql56_temporal_format
"""

from __future__ import annotations

from typing import Final

from connectors.mysql.values.server_text import Print, timestamp2

DATETIME_BYTES: Final = (8, 6, 6, 7, 7, 7, 8)
"""By digits; without any, it is another form."""
TIME_BYTES: Final = (3, 4, 4, 5, 5, 5, 6)
TIMESTAMP_BYTES: Final = (4, 5, 5, 6, 6, 7, 7)
_ZERO_SECONDS: Final = 838 * 3_600 + 59 * 60 + 59 + 1
_SECONDS_BYTES: Final = 4


def _clock(seconds: int) -> bytes:
    hours, rest = divmod(seconds, 3_600)
    return b"%02d:%02d:%02d" % (hours, *divmod(rest, 60))


def datetime(digits: int) -> Print:
    """Print DATETIME."""
    scale, form = 10**digits, b" %%b.%%0%dd" % digits

    def text(raw: bytes) -> bytes:
        seconds, fraction = divmod(int.from_bytes(raw), scale)
        days, second = divmod(seconds, 86_400)
        months, day = divmod(days, 32)
        return b"%04d-%02d-%02d" % (*divmod(months, 13), day) + form % (_clock(second), fraction)

    return text


def time(digits: int) -> Print:
    """Print TIME."""
    scale, form = 10**digits, b"%%b%%b.%%0%dd" % digits

    def text(raw: bytes) -> bytes:
        number = int.from_bytes(raw) - _ZERO_SECONDS * scale
        seconds, fraction = divmod(abs(number), scale)
        return form % (b"-" if number < 0 else b"", _clock(seconds), fraction)

    return text


def timestamp(digits: int) -> Print:
    """Print TIMESTAMP, in UTC."""
    seconds, form = timestamp2(0), b".%%0%dd" % digits

    def text(raw: bytes) -> bytes:
        return seconds(raw[:_SECONDS_BYTES]) + form % int.from_bytes(raw[_SECONDS_BYTES:])

    return text
