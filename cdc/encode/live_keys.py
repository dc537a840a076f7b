"""The live keys of one topic are kept in a temporary SQLite file, so that memory stays flat however many they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Self

from cdc.config.temporary_files import TemporaryDatabase


class LiveKeys:
    """A set of keys in a file; iterating gives them in the order of their bytes. Close it, or use it in a `with`."""

    def __init__(self) -> None:
        self._db = TemporaryDatabase(
            "the list of a topic's keys", "CREATE TABLE live (key BLOB PRIMARY KEY) WITHOUT ROWID; BEGIN"
        )

    def put(self, key: bytes) -> None:
        self._db.run("INSERT OR IGNORE INTO live VALUES (?)", (key,))

    def discard(self, key: bytes) -> None:
        self._db.run("DELETE FROM live WHERE key = ?", (key,))

    def after(self, key: bytes | None, most: int) -> list[bytes]:
        """Return the next keys in their order, as many as `most`."""
        found = self._db.rows("SELECT key FROM live WHERE key > ? ORDER BY key LIMIT ?", (key or b"", most))
        return [key for (key,) in found]

    def __iter__(self) -> Iterator[bytes]:
        for (key,) in self._db.rows("SELECT key FROM live ORDER BY key"):
            yield key

    def close(self) -> None:
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
