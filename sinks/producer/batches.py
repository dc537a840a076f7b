"""Encodes records into batches as they come, by partition. In C, where there is `cdc.encode.compiled`.

A record (https://kafka.apache.org/documentation/#record), all numbers but the second zigzag varints:

    length · int8 attributes 0 · time delta 0 · offset delta · key length · key · value length or -1 · value
    number of headers · for each: name length · name · value length · value

A batch's header is put before its records when it is sent (`sinks/client/record_batch.py`): only then its sequence is
known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from struct import unpack_from
from typing import TYPE_CHECKING, Final, NamedTuple

from cdc.encode.envelope.row_codegen import compiled
from cdc.model.interfaces import Headers
from sinks.client.varints import zigzag


class Batch(NamedTuple):
    """Holds records of one partition, in order."""

    topic: str
    partition: int
    count: int  # type: ignore[assignment]  # a tuple's own `count` is of no use here
    records: bytes


Partitions = Callable[[str], tuple[int, str | None]]
"""Returns how many partitions a topic has, and the topic that a copy of each record, but no tombstone, goes to."""

_FILLERS: Final = 10_000
_SEED: Final = 0x9747B28C
_MULTIPLIER: Final = 0x5BD1E995
_MASK: Final = 0xFFFFFFFF
_NO_VALUE: Final = b"\x01"
_NO_HEADERS: Final = b"\0"
_AROUND: Final = 40
"""How many bytes a record has around its key, value and headers, at most."""


class _PartitionRecords:
    """Holds the records of a partition that wait."""

    __slots__ = ("count", "records")

    def __init__(self) -> None:
        self.records = bytearray()
        self.count = 0


class PlainBatches:
    """Holds those records of an open transaction that were not taken yet."""

    def __init__(
        self,
        begin: Callable[[], None],
        send: Callable[[], None],
        partitions: Partitions,
        *,
        most_records: int,
        most_bytes: int,
        batch_bytes: int,
    ) -> None:
        """`begin` is called before the first record of a transaction; `partitions` before the first of a topic.

        `send` is called each time `most_records` or `most_bytes` more wait, and may take them. A batch has at most
        `batch_bytes`, unless a single record is larger.
        """
        self._begin, self._send, self._partitions = begin, send, partitions
        self._most_records, self._most_bytes, self._batch_bytes = most_records, most_bytes, batch_bytes
        self._topics: dict[str, tuple[int, str | None]] = {}
        self.clear()

    def clear(self) -> None:
        """Forget what waits; no transaction is open."""
        self._waiting: dict[tuple[str, int], _PartitionRecords] = {}
        self._full: list[Batch] = []
        self._begun = False
        self.records = self.bytes = 0
        self._taken()

    def _taken(self) -> None:
        self.waiting_records = self.waiting_bytes = 0
        self._due_records, self._due_bytes = self._most_records, self._most_bytes

    def add(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        """Add a record, and the same record to the topic's log if it has one."""
        end = encoded(headers) if headers else _NO_HEADERS
        if not self._begun:
            self._begin()
            self._begun = True
        known = self._topics.get(topic)
        if known is None:
            known = self._partitions(topic)
            if known[1] is not None and known[1] not in self._topics:
                self._topics[known[1]] = self._partitions(known[1])[0], None
            self._topics[topic] = known
        partitions, log = known
        self._append(topic, partition_of(key, partitions), key, value, end)
        if log is not None and value is not None:
            self._append(log, partition_of(key, self._topics[log][0]), key, value, end)
        if self.waiting_records >= self._due_records or self.waiting_bytes >= self._due_bytes:
            self._send()
            self._due_records = self.waiting_records + self._most_records
            self._due_bytes = self.waiting_bytes + self._most_bytes

    def _append(self, topic: str, partition: int, key: bytes, value: bytes | None, end: bytes) -> None:
        found = self._waiting.get((topic, partition))
        if found is None:
            found = self._waiting[topic, partition] = _PartitionRecords()
        count, key_size = found.count, len(key)
        size = key_size if value is None else key_size + len(value)
        if count and len(found.records) + size + len(end) + _AROUND > self._batch_bytes:
            self._full.append(Batch(topic, partition, count, bytes(found.records)))
            found.records.clear()
            count = 0
        offset, of_key = zigzag(count), zigzag(key_size)
        of_value = _NO_VALUE if value is None else zigzag(len(value))
        whole = zigzag(len(offset) + len(of_key) + len(of_value) + size + len(end) + 2)
        found.records += b"%b\0\0%b%b%b%b%b%b" % (whole, offset, of_key, key, of_value, value or b"", end)
        found.count = count + 1
        self.records += 1
        size += len(end) - 1
        self.bytes += size
        self.waiting_records += 1
        self.waiting_bytes += size

    def partitions(self) -> int:
        """Return of how many partitions records wait."""
        return len(self._waiting)

    def take(self) -> list[Batch]:
        """Return what waits: of a partition the oldest batch first."""
        waiting, self._waiting = self._waiting, {}
        taken, self._full = self._full, []
        taken += [Batch(*at, found.count, bytes(found.records)) for at, found in waiting.items()]
        self._taken()
        return taken


def encoded(headers: Headers) -> bytes:
    """Encode a record's headers."""
    parts = [zigzag(len(headers))]
    for name, value in headers:
        of_name = name.encode()
        parts += zigzag(len(of_name)), of_name, zigzag(len(value)), value
    return b"".join(parts)


def fillers(counts: Mapping[str, Mapping[int, int]]) -> Iterator[Batch]:
    """Make batches of so many records that say nothing, by topic and partition, to take offsets."""
    size = 1 << 30
    made = PlainBatches(
        lambda: None, lambda: None, lambda _: (1, None), most_records=size, most_bytes=size, batch_bytes=size
    )
    for topic, of in counts.items():
        for partition, count in of.items():
            for at in range(0, count, _FILLERS):
                for _ in range(min(_FILLERS, count - at)):
                    made.add(topic, b"", None)
                yield from (batch._replace(partition=partition) for batch in made.take())


def partition_of(key: bytes, partitions: int) -> int:
    """Return the partition where Java's default partitioner puts a key."""
    return (murmur2(key) & 0x7FFFFFFF) % partitions


def murmur2(key: bytes) -> int:
    """Hash as `org.apache.kafka.common.utils.Utils.murmur2` does, unsigned."""
    size = len(key)
    found = _SEED ^ size
    whole = size >> 2
    for word in unpack_from(f"<{whole}I", key):
        mixed = word * _MULTIPLIER & _MASK
        found = found * _MULTIPLIER & _MASK ^ (mixed ^ mixed >> 24) * _MULTIPLIER & _MASK
    if size & 3:
        found = (found ^ int.from_bytes(key[whole << 2 :], "little")) * _MULTIPLIER & _MASK
    found = (found ^ found >> 13) * _MULTIPLIER & _MASK
    return found ^ found >> 15


if TYPE_CHECKING or compiled is None:  # noqa: SIM108 - type checkers read the branch
    Batches = PlainBatches
else:
    Batches = compiled.Batches
