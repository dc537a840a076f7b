"""Turns a value's bytes in the log into the server's own text, type by type: what a SELECT prints. Pure.

Layouts: https://dev.mysql.com/doc/internals/en/date-and-time-data-type-representation.html, `decimal2bin` and `my_gcvt`
in the server's strings/decimal.cc and strings/dtoa.cc. Texts that repeat (days, clocks) are kept in dictionaries
that are emptied when they are full.
"""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Callable
from itertools import groupby
from typing import Final, TypeAlias

Print: TypeAlias = Callable[[bytes], bytes]

_big_endian: Final = int.from_bytes
"""It is called without its second argument, which is its default: that takes half the time."""
_CACHE_MAX: Final = 1 << 17
"""Entries of a dictionary of texts: above the 86,400 clocks of a day, and every day of 350 years."""
_FIXED_EXPONENTS: Final = range(-14, 16)
"""Where the point may stand, counted from the first digit, for a number to be printed without an exponent."""
_DIGITS_A_GROUP: Final = 9
_GROUP_BYTES: Final = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
_REPR_FIXED_MAX: Final = 1e15
_REPR_FIXED_MIN: Final = 1e-4


def double(value: float) -> bytes:
    """Print the fewest digits that read back; an exponent below 1e-15 and from 1e15 on, without plus or padding.

    A number with a fraction has none, however large it is: 1046017926401765.9.
    """
    digits = repr(value)
    if _REPR_FIXED_MIN <= abs(value) < _REPR_FIXED_MAX:
        return (digits[:-2] if digits[-2:] == ".0" else digits).encode()
    if value == 0:
        return b"-0" if digits[0] == "-" else b"0"
    mantissa, _, exponent = digits.partition("e")
    sign = "-" if mantissa[0] == "-" else ""
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    point = len(whole) + int(exponent or 0)
    significant = whole + fraction
    point -= len(significant) - len(significant.lstrip("0"))
    significant = significant.strip("0")
    if point not in _FIXED_EXPONENTS and not 0 < point < len(significant):
        rest = f".{significant[1:]}" if len(significant) > 1 else ""
        return f"{sign}{significant[0]}{rest}e{point - 1}".encode()
    if point <= 0:
        return f"{sign}0.{'0' * -point}{significant}".encode()
    if len(significant) <= point:
        return f"{sign}{significant.ljust(point, '0')}".encode()
    return f"{sign}{significant[:point]}.{significant[point:]}".encode()


def decimal_size(precision: int, scale: int) -> int:
    """Return the bytes of a DECIMAL: four for every nine digits on a side of the point, fewer for what is left."""
    sides = (precision - scale, scale)
    return sum(digits // _DIGITS_A_GROUP * 4 + _GROUP_BYTES[digits % _DIGITS_A_GROUP] for digits in sides)


def decimal(precision: int, scale: int) -> Print:
    """Print big-endian groups of nine digits, the highest bit inverted; negative numbers with all bits inverted."""
    top = 1 << (8 * decimal_size(precision, scale) - 1)
    groups: list[tuple[int, int, int]] = []  # bits, mask, ten to the digits; from the lowest
    for digits, is_left_low in ((scale, True), (precision - scale, False)):
        many, left = divmod(digits, _DIGITS_A_GROUP)
        few = [(left, _GROUP_BYTES[left])] if left else []
        full = [(_DIGITS_A_GROUP, 4)] * many
        groups += [(8 * size, (1 << 8 * size) - 1, 10**n) for n, size in (few + full if is_left_low else full + few)]
    unit: int = 10**scale
    form: bytes = b"%%d.%%0%dd" % scale
    negative_form = b"-" + form

    def single(raw: bytes) -> bytes:
        number = _big_endian(raw)
        if number >= top:
            number -= top
            return form % (number >> bits, number & mask)
        number = top - 1 - number
        return negative_form % (number >> bits, number & mask)

    def grouped(raw: bytes) -> bytes:
        number = _big_endian(raw)
        sign = b""
        if number >= top:
            number -= top
        else:
            sign = b"-"
            number = top - 1 - number
        total, weight = 0, 1
        for group_bits, group_mask, tens in groups:
            total += (number & group_mask) * weight
            number >>= group_bits
            weight *= tens
        if not scale:
            return sign + b"%d" % total
        return sign + form % divmod(total, unit)

    if scale and scale <= _DIGITS_A_GROUP and precision - scale <= _DIGITS_A_GROUP:
        bits, mask, _ = groups[0]
        return single
    return grouped


class _Days(dict[int, bytes]):
    """Prints ``year * 13 + month << 5 | day`` as ``2024-03-05 ``: any numbers, also zero and days that do not exist."""

    def __missing__(self, packed: int) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        year, month = divmod(packed >> 5, 13)
        self[packed] = text = b"%04d-%02d-%02d " % (year, month, packed & 31)
        return text


class _DayHours(dict[int, bytes]):
    """Prints the same and the hour, ``… << 5 | hour``, with DATETIME's highest bit set, as ``2024-03-05 12``."""

    def __missing__(self, packed: int) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[packed] = text = _DAYS[packed - 0x800_0000 >> 5] + b"%02d" % (packed & 31)
        return text


class _Clocks(dict[int, bytes]):
    """Prints ``hour << 12 | minute << 6 | second`` as ``12:34:56``."""

    def __missing__(self, packed: int) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[packed] = text = b"%02d:%02d:%02d" % (packed >> 12, packed >> 6 & 63, packed & 63)
        return text


class _Dates(dict[bytes, bytes]):
    """Prints DATE's three bytes as ``2024-03-05``: day in 5 bits, month in 4, year."""

    def __missing__(self, raw: bytes) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        packed = int.from_bytes(raw, "little")
        self[raw] = text = b"%04d-%02d-%02d" % (packed >> 9, packed >> 5 & 15, packed & 31)
        return text


class _Hours(dict[int, bytes]):
    """Prints hours since 1970 as ``2024-03-05 12``."""

    def __missing__(self, hour: int) -> bytes:
        if len(self) >= _CACHE_MAX:
            self.clear()
        self[hour] = text = (_EPOCH + dt.timedelta(hours=hour)).strftime("%Y-%m-%d %H").encode()
        return text


_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_DAYS: Final = _Days()
_DAY_HOURS: Final = _DayHours()
_MINUTES: Final = [b":%02d:%02d" % (packed >> 6, packed & 63) for packed in range(1 << 12)]
_CLOCKS: Final = _Clocks()
_HOURS: Final = _Hours()
_OF_HOUR: Final = [b":%02d:%02d" % divmod(second, 60) for second in range(3_600)]
_ZERO: Final = b"0000-00-00 00:00:00"

date: Final = _Dates().__getitem__
"""The dictionary's own method: a function around it would double its time."""


def fraction_size(digits: int) -> int:
    """Return the bytes of that many digits behind a second."""
    return (digits + 1) // 2


def _fraction(digits: int) -> tuple[int, bytes, int]:
    """Return a fraction's bits, its format, and its number's divisor: odd digits are stored as even."""
    return 8 * fraction_size(digits), b".%%0%dd" % digits, 10 if digits & 1 else 1


def datetime2(digits: int) -> Print:
    """Print 40 bits: 1, year * 13 + month in 17, day in 5, hour 5, minute 6, second 6; then the fraction."""
    if not digits:

        def whole(raw: bytes) -> bytes:
            packed = _big_endian(raw)
            return _DAY_HOURS[packed >> 12] + _MINUTES[packed & 0xFFF]

        return whole
    bits, form, by = _fraction(digits)
    mask, to_hour = (1 << bits) - 1, bits + 12

    def fractional(raw: bytes) -> bytes:
        packed = _big_endian(raw)
        return _DAY_HOURS[packed >> to_hour] + _MINUTES[packed >> bits & 0xFFF] + form % ((packed & mask) // by)

    return fractional


def timestamp2(digits: int) -> Print:
    """Print seconds since 1970 in 32 bits, then the fraction: in UTC, as a session with time_zone '+00:00' does."""
    if not digits:

        def whole(raw: bytes) -> bytes:
            seconds = _big_endian(raw)
            return _HOURS[seconds // 3_600] + _OF_HOUR[seconds % 3_600] if seconds else _ZERO

        return whole
    bits, form, by = _fraction(digits)
    mask = (1 << bits) - 1

    def fractional(raw: bytes) -> bytes:
        packed = _big_endian(raw)
        seconds = packed >> bits
        second = _HOURS[seconds // 3_600] + _OF_HOUR[seconds % 3_600] if packed else _ZERO
        return second + form % ((packed & mask) // by)

    return fractional


def time2(digits: int) -> Print:
    """Print 24 bits: sign, 1 unused, hour 10, minute 6, second 6; then the fraction. Negative: complement of all."""
    bits, form, by = _fraction(digits)
    zero, mask = 0x80_0000 << bits, (1 << bits) - 1

    def text(raw: bytes) -> bytes:
        packed = _big_endian(raw) - zero
        sign = b""
        if packed < 0:
            sign, packed = b"-", -packed
        clock = sign + _CLOCKS[packed >> bits & 0x3F_FFFF]
        return clock + form % ((packed & mask) // by) if digits else clock

    return text


def old_timestamp(raw: bytes) -> bytes:
    """Print TIMESTAMP from before MySQL 5.6: seconds, little-endian."""
    return timestamp2(0)(raw[::-1])


def old_datetime(raw: bytes) -> bytes:
    """Print DATETIME from before MySQL 5.6: the decimal number YYYYMMDDhhmmss."""
    digits = b"%014d" % int.from_bytes(raw, "little")
    day = b"%b-%b-%b" % (digits[:-10], digits[-10:-8], digits[-8:-6])
    return b"%b %b:%b:%b" % (day, digits[-6:-4], digits[-4:-2], digits[-2:])


def old_time(raw: bytes) -> bytes:
    """Print TIME from before MySQL 5.6: the signed decimal number hhmmss."""
    number = int.from_bytes(raw, "little", signed=True)
    hours, rest = divmod(abs(number), 10_000)
    return b"%b%02d:%02d:%02d" % (b"-" if number < 0 else b"", hours, *divmod(rest, 100))


def packed_datetime(packed: int) -> tuple[bytes, int]:
    """Print a 64-bit datetime of JSON documents: date and clock, and microseconds."""
    seconds, micros = packed >> 24, packed & 0xFF_FFFF
    return _DAYS[seconds >> 17] + _CLOCKS[seconds & 0x1_FFFF], micros


def packed_time(packed: int) -> bytes:
    """Print a 64-bit time of JSON documents, with six fraction digits."""
    sign = b""
    if packed < 0:
        sign, packed = b"-", -packed
    return b"%b%b.%06d" % (sign, _CLOCKS[packed >> 24 & 0x3F_FFFF], packed & 0xFF_FFFF)


def uuid(raw: bytes) -> bytes:
    """Print MariaDB's UUID, in the order it is written in, no matter how the table stores it."""
    digits = raw.ljust(16, b"\0").hex()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])).encode()


def inet6(raw: bytes) -> bytes:
    """Print MariaDB's INET6 without the longest run of zeros, even of one; mapped and compatible IPv4 with points."""
    raw = raw.ljust(16, b"\0")
    words = [raw[at : at + 2].hex().lstrip("0") or "0" for at in range(0, 16, 2)]
    if words[:5] == ["0"] * 5 and (words[5] == "ffff" or (words[5] == "0" != words[6])):
        return b"::%b%b" % (b"ffff:" if words[5] == "ffff" else b"", inet4(raw[12:]))
    start = size = at = 0
    for word, run in groupby(words):
        length = len(list(run))
        if word == "0" and length > size:
            start, size = at, length
        at += length
    if not size:
        return ":".join(words).encode()
    return f"{':'.join(words[:start])}::{':'.join(words[start + size :])}".encode()


def inet4(raw: bytes) -> bytes:
    """Print MariaDB's INET4."""
    return str(ipaddress.IPv4Address(raw.ljust(4, b"\0"))).encode()
