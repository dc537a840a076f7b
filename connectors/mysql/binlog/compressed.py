"""Inflates the parts of events that MariaDB compresses. Pure.

u8 (0x80 | bytes of the size) · full size, big-endian · zlib stream.
"""

from __future__ import annotations

import zlib
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog.events import HEADER_SIZE

EVENT_MAX: Final = 1 << 30
"""What the servers allow an event, and so what a compressed part may grow to."""
_ZLIB_WIDTH_MAX: Final = 4
_ZLIB_RATIO: Final = 1032
"""What a byte of zlib may stand for at most: https://zlib.net/zlib_tech.html"""


def inflated(data: bytes) -> bytes:
    """Inflate MariaDB's compressed part of an event."""
    width = data[0] & 7 if data else 0
    if not data or data[0] & 0xF8 != 0x80 or not 1 <= width <= _ZLIB_WIDTH_MAX or len(data) <= width:  # noqa: PLR2004
        raise ProtocolError(HEADER_SIZE, "a compressed event that is not zlib")
    size = int.from_bytes(data[1 : 1 + width], "big")
    if size > min(EVENT_MAX, _ZLIB_RATIO * len(data)):
        raise ProtocolError(HEADER_SIZE, f"a compressed event of {size} bytes")
    inflate = zlib.decompressobj()
    try:
        plain = inflate.decompress(data[1 + width :], size + 1)
    except zlib.error as exc:
        raise ProtocolError(HEADER_SIZE, "a compressed event that zlib cannot read") from exc
    if len(plain) != size or not (inflate.eof or size == 0):
        raise ProtocolError(HEADER_SIZE, "a compressed event of another size")
    return plain
