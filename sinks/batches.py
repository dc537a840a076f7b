"""Records on their way to the client, which takes them by the thousand. In C, where there is `cdc.compiled`."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias, TypedDict

from cdc.rowcode import compiled


class Record(TypedDict):
    """As the client's `produce_batch` takes it."""

    key: bytes
    value: bytes | None


Batch: TypeAlias = tuple[str, list[Record], int]
"""Topic, records in order, and their bytes."""


class PlainBatches:
    """What an open transaction holds that was not handed over yet."""

    def __init__(
        self, begin: Callable[[], None], send: Callable[[], None], *, most_records: int, most_bytes: int
    ) -> None:
        """`begin` is called before the first record of a transaction, `send` whenever so much waits: it takes it."""
        self._begin = begin
        self._send = send
        self._most_records, self._most_bytes = most_records, most_bytes
        self.clear()

    def clear(self) -> None:
        """No transaction is open; what waits is forgotten."""
        self._waiting: dict[str, tuple[list[Record], list[int]]] = {}
        self._count = self._size = 0
        self._begun = False
        self.records = self.bytes = 0

    def add(self, topic: str, key: bytes, value: bytes | None) -> None:
        """One more."""
        if not self._begun:
            self._begin()
            self._begun = True
        of = self._waiting.get(topic)
        if of is None:
            of = self._waiting[topic] = ([], [])
        size = len(key) if value is None else len(key) + len(value)
        of[0].append({"key": key, "value": value})
        of[1].append(size)
        self.count(1, size)
        self._count += 1
        self._size += size
        if self._count >= self._most_records or self._size >= self._most_bytes:
            self._send()

    def count(self, records: int, size: int) -> None:
        """The transaction has so many more, which do not wait here."""
        self.records += records
        self.bytes += size

    def take(self) -> list[Batch]:
        """What waits, in the order of the topics' first records."""
        waiting, self._waiting = self._waiting, {}
        self._count = self._size = 0
        return [(topic, records, sum(sizes)) for topic, (records, sizes) in waiting.items()]


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 - type checkers read the branch
    Batches = PlainBatches
else:
    Batches = compiled.Batches
