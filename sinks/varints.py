"""Numbers as Kafka writes them in few bytes: seven bits a byte, the lowest first."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_SEVEN, MORE = 0x7F, 0x80
_REMEMBERED: Final = 1 << 13


def unsigned(number: int) -> bytes:
    """As requests have them."""
    written = bytearray()
    while number > _SEVEN:
        written.append(number & _SEVEN | MORE)
        number >>= 7
    written.append(number)
    return bytes(written)


@lru_cache(_REMEMBERED)
def zigzag(number: int) -> bytes:
    """As records have them: 0, -1, 1, -2, … are 0, 1, 2, 3, …"""
    return unsigned((number << 1) ^ (number >> 63))
