"""Converts log sequence numbers between text and number, and finds where a record ends. Pure."""

from __future__ import annotations

from typing import Final

_PAGE: Final = 8192
_PAGE_HEADERS: Final = (24, 40)


def lsn_text(lsn: int) -> str:
    """Write it as ``0/16B3748``."""
    return f"{lsn >> 32:X}/{lsn & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Return the 64-bit number of ``0/16B3748``."""
    high, low = text.split("/")
    return int(high, 16) << 32 | int(low, 16)


def at_record_end(lsn: int) -> int:
    """Turn an insert position into the end of the record before it.

    Where a record ends with its page, the server gives an insert position behind the next page's header. The log that
    it sends does not reach that position before there is another record.
    """
    into_page = lsn % _PAGE
    return lsn - into_page if into_page in _PAGE_HEADERS else lsn
