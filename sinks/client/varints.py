"""Reads and writes numbers as Kafka does in few bytes: seven bits a byte, the lowest first."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

_SEVEN, MORE = 0x7F, 0x80
_WIDEST: Final = 63
"""How far the last seven bits of a number are shifted."""
_REMEMBERED: Final = 1 << 13


def unsigned(number: int) -> bytes:
    """Write a number as requests have it."""
    if number <= _SEVEN:
        return bytes((number,))
    if number < 1 << 14:
        return bytes((number & _SEVEN | MORE, number >> 7))
    if number < 1 << 21:
        return bytes((number & _SEVEN | MORE, number >> 7 & _SEVEN | MORE, number >> 14))
    written = bytearray()
    while number > _SEVEN:
        written.append(number & _SEVEN | MORE)
        number >>= 7
    written.append(number)
    return bytes(written)


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """A number and where it ends. Raises IndexError where the data ends before, ValueError for one above 64 bits."""
    found = shift = 0
    while (byte := data[at]) >= MORE:
        if shift >= _WIDEST:
            raise ValueError("a number of more than 64 bits")
        found |= (byte & _SEVEN) << shift
        shift += 7
        at += 1
    return found | byte << shift, at + 1


@lru_cache(_REMEMBERED)
def zigzag(number: int) -> bytes:
    """Write a number as records have it: 0, -1, 1, -2, … are 0, 1, 2, 3, …"""
    return unsigned((number << 1) ^ (number >> 63))
