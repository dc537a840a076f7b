"""Whole numbers of any size as Avro and Protobuf have them: seven bits a byte, the lowest first. Pure."""

from __future__ import annotations

from typing import Final

_MORE: Final = 0x80
"""The bit of a byte behind which another one comes."""
_BITS: Final = 64


def varint(number: int) -> bytes:
    """Encode a number that is not negative."""
    out = bytearray()
    while number >= _MORE:
        out.append(number & (_MORE - 1) | _MORE)
        number >>= 7
    out.append(number)
    return bytes(out)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number and where it ends. Raises IndexError for one that does not end, or has more than 64 bits."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & (_MORE - 1)) << shift
        if byte < _MORE:
            return number, at
        shift += 7
        if shift > _BITS:
            raise IndexError
