"""Reads forward through bytes of a known end. Not for the hot path: there, readers of rows are generated.

Integers are little-endian. https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_basic_dt_integers.html
"""

from __future__ import annotations

from typing import Final

from cdc.model.errors import ProtocolError

_LENGTHS: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
_NULL: Final = 0xFB


class Cursor:
    """Is a position in `data`; nothing at or behind `end` is ever read."""

    __slots__ = ("at", "data", "end")

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self.data = data
        self.at = at
        self.end = end

    @property
    def left(self) -> int:
        """Return how many bytes are before the end."""
        return self.end - self.at

    def take(self, size: int) -> bytes:
        """Take the next `size` bytes."""
        start, self.at = self.at, self.at + size
        if self.at > self.end:
            raise ProtocolError(self.end, "the event ends early")
        return self.data[start : self.at]

    def rest(self) -> bytes:
        """Take all up to the end."""
        return self.take(self.left)

    def uint(self, size: int) -> int:
        """Take an unsigned integer of `size` bytes."""
        return int.from_bytes(self.take(size), "little")

    def packed(self) -> int:
        """Take a length-encoded integer."""
        first = self.uint(1)
        if first < _NULL:
            return first
        size = _LENGTHS.get(first)
        if size is None:
            raise ProtocolError(self.at - 1, f"a length that begins with 0x{first:02x}")
        return self.uint(size)

    def text(self, size: int) -> str:
        """Take `size` bytes of UTF-8: names of the server."""
        start = self.at
        try:
            return self.take(size).decode()
        except UnicodeDecodeError as exc:
            raise ProtocolError(start + exc.start, "a name that is not UTF-8") from exc

    def part(self, size: int) -> Cursor:
        """Take the next `size` bytes as a cursor of their own; this one goes on behind them."""
        start = self.at
        self.take(size)
        return Cursor(self.data, start, self.at)

    def finish(self) -> None:
        """Raise ProtocolError unless all has been read."""
        if self.at != self.end:
            raise ProtocolError(self.at, "bytes after the event's end")
