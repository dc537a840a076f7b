"""A dump of a binlog of which a part has come, as the replication connection hands it over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Dump:
    """A dump of which this has come; `at_once`: small transactions are read so."""

    def __init__(self, sent: bytes, *, at_once: bool) -> None:
        self._buffer = bytearray(sent)
        self._at = 0
        self._at_once = at_once

    def read_buffered(self, read: Callable[[bytearray, int], Any]) -> Any:
        found = read(self._buffer, self._at) if self._at_once else None
        if found is None:
            return None
        self._at = found[0]
        return found[1]

    def receive(self) -> bytes:
        begin = self._at + 4
        end = begin + int.from_bytes(self._buffer[self._at : self._at + 3], "little")
        if begin > len(self._buffer) or end > len(self._buffer):
            raise EOFError
        self._at = end
        return bytes(self._buffer[begin + 1 : end])
