"""Events that wait for the end of their transaction: as many as they may be, what is too much for memory on a disk."""

from __future__ import annotations

import marshal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import IO, Any, Final, Generic, TypeVar

from cdc.machine.temporary_files import on_temporary_disk

IN_MEMORY: Final = 32 * 1024 * 1024
"""What is larger of one transaction is kept in a temporary file."""
_WHAT: Final = "a large transaction"

Item = TypeVar("Item", bound=tuple[Any, ...])
"""Plain texts, bytes and numbers."""


class LargeEvents(Generic[Item]):
    """Items in the order in which they were added."""

    def __init__(self) -> None:
        self._held: list[Item] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def add(self, item: Item, size: int) -> None:
        """Add an item of about so many bytes."""
        if self._bytes < IN_MEMORY:
            self._held.append(item)
            self._bytes += size
            return
        with on_temporary_disk(_WHAT):
            if self._file is None:
                self._file = tempfile.TemporaryFile()  # noqa: SIM115 - it is closed with this object
            marshal.dump(item, self._file)

    def __iter__(self) -> Iterator[Item]:
        yield from self._held
        if self._file is None:
            return
        at = 0
        while True:
            with on_temporary_disk(_WHAT):
                self._file.seek(at)
                try:
                    item: Item = marshal.load(self._file)  # noqa: S302 - our own file
                except EOFError:
                    return
                at = self._file.tell()
            yield item

    def __del__(self) -> None:
        if self._file is not None:
            with suppress(OSError):  # what a full disk did not take is not asked for any more
                self._file.close()
