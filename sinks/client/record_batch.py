"""Writes a batch as a broker takes it: header, checksum, compressed records. No I/O.

https://kafka.apache.org/documentation/#recordbatch, big-endian; the checksum is of all behind it:

    int64 base offset · int32 length · int32 leader epoch · int8 magic 2 · uint32 CRC-32C
    int16 attributes · int32 last offset delta · int64 first timestamp · int64 last timestamp
    int64 producer id · int16 producer epoch · int32 base sequence · int32 records · records
"""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

import lz4.frame
import zstandard
from crc32c import crc32c

from sinks.client.varints import MORE

Compress = Callable[[bytes], bytes]

HEADER: Final = struct.Struct(">qiibI")
BEHIND: Final = struct.Struct(">hiqqqhii")
_TRANSACTIONAL: Final = 0x10
_MAGIC: Final = 2
_NO_EPOCH: Final = -1
_COUNTED: Final = HEADER.size + BEHIND.size - 12
"""What a batch's length counts of its header: not the base offset, not the length itself."""


class Codec(NamedTuple):
    """Names a compression by Kafka's number for it, and compresses records."""

    name: str
    number: int
    compress: Compress


def _lz4(records: bytes) -> bytes:
    """Compress in blocks that do not depend on each other, as Java reads them; of 64 kB, as Java and librdkafka do."""
    frame = lz4.frame.compress(records, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False)
    return bytes(frame)


def _zstd(records: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=3).compress(records)


CODECS: Final = {
    "none": Codec("none", 0, bytes),
    "gzip": Codec("gzip", 1, gzip.compress),
    "lz4": Codec("lz4", 3, _lz4),
    "zstd": Codec("zstd", 4, _zstd),
}


class Identity(NamedTuple):
    """Says which producer writes: a broker takes nothing of an id's older epochs."""

    producer_id: int
    epoch: int


def header(records: bytes, count: int, *, codec: int, at_ms: int, identity: Identity, sequence: int) -> bytes:
    """Return what stands before `records`, which are compressed as `codec` says."""
    behind = BEHIND.pack(
        codec | _TRANSACTIONAL, count - 1, at_ms, at_ms, identity.producer_id, identity.epoch, sequence, count
    )
    return HEADER.pack(0, _COUNTED + len(records), _NO_EPOCH, _MAGIC, crc32c(records, crc32c(behind))) + behind


def first(records: bytes) -> tuple[bytes, bytes | None, list[tuple[str, bytes]]]:
    """Return key, value and headers of the first record of a batch not compressed. Raises IndexError without one."""
    for found in records_of(records):
        return found
    raise IndexError("no record")


def records_of(records: bytes) -> Iterator[tuple[bytes, bytes | None, list[tuple[str, bytes]]]]:
    """Yield key, value and headers of each record of a batch that is not compressed."""
    at = 0

    def number() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = records[at]
            at += 1
            found |= (byte & ~MORE) << shift
            if byte < MORE:
                return found >> 1 ^ -(found & 1)
            shift += 7

    def text() -> bytes | None:
        nonlocal at
        size = number()
        if size < 0:
            return None
        at += size
        return records[at - size : at]

    while at < len(records):
        size = number()
        behind = at + size
        at += 1
        number()
        number()
        key, value = text() or b"", text()
        headers = [((text() or b"").decode(), text() or b"") for _ in range(number())] if at < behind else []
        yield key, value, headers
        at = behind
