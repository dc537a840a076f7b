"""Inflates the values of MariaDB's COMPRESSED columns, within bounds. Pure."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Final

from cdc.model.errors import ProtocolError

_INFLATED_MAX: Final = 1 << 26
_INFLATED_RATIO: Final = 64
"""What MariaDB's COMPRESSED values of one event may come to: so many bytes, and so many for each byte of its rows."""


class Room:
    """Limits what the compressed values of one event may come to.

    A few bytes of zlib can stand for a thousand times as many, and an event holds many values: without a limit for all
    of them together, 400 kB would take 800 MB. Events are read one at a time, by one thread.
    """

    def __init__(self) -> None:
        self._left = _INFLATED_MAX

    def begin(self, body: bytes) -> None:
        self._left = _INFLATED_MAX + _INFLATED_RATIO * len(body)

    def take(self, size: int) -> None:
        if size > self._left:
            raise ProtocolError(0, f"a compressed value of {size} bytes, above what its event may come to")
        self._left -= size


ROOM: Final = Room()


def inflating(convert: Callable[[bytes], bytes] | None, *, most: int) -> Callable[[bytes], bytes]:
    """Inflate MariaDB's COMPRESSED columns: u8 (method << 4 | is raw << 3 | bytes of size) · size · stream.

    `most`: the bytes of the column's longest value.
    """

    def text(raw: bytes) -> bytes:
        if raw:
            method, width = raw[0] >> 4, raw[0] & 7
            if method == 0:
                raw = raw[1:]
            elif method == 8:  # noqa: PLR2004 - zlib
                size = int.from_bytes(raw[1 : 1 + width], "big")
                if size > most:
                    raise ProtocolError(0, f"a compressed value of {size} bytes in a column of {most} at most")
                ROOM.take(size)
                inflate = zlib.decompressobj(-zlib.MAX_WBITS if raw[0] & 8 else zlib.MAX_WBITS)
                try:
                    raw = inflate.decompress(raw[1 + width :], size + 1)
                except zlib.error as exc:
                    raise ProtocolError(0, "a compressed value that zlib cannot read") from exc
                if len(raw) != size:
                    raise ProtocolError(0, "a compressed value of another size")
            else:
                raise ProtocolError(0, f"a compressed value of method {method}")
        return raw if convert is None else convert(raw)

    return text
