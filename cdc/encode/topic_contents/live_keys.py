"""The live keys of one topic are kept in a temporary SQLite file, so that memory stays flat however many they are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Self

from cdc.encode.topic_contents import foreign
from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.change import Position, Table


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

    def of_topic(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        table: Table,
        topic: str,
        *,
        bound: str,
        kept: Callable[[int], bool],
    ) -> None:
        """Take the keys that a table's topic has before the position `bound`.

        A row that was read is left out if it is `kept`: the view with this number is of a later time than `bound`.
        """
        for key, value in records:
            if value is None:
                continue
            event = foreign.event_of(value)
            if event is None:
                foreign.tell(topic, table.qualified, value)
                if foreign.names_a_row(key, table.key):
                    self.put(key)  # it stands where a row would, and no row is left
                continue
            position = event["source"]["position"]
            if position >= bound:
                continue  # aborted: it lies ahead of where we are
            view = Position.parse(position).number if event["op"] == "r" else 0
            if event["op"] == "d" or kept(view):
                self.discard(key)
            else:
                self.put(key)

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
