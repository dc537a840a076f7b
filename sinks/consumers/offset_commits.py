"""Reads the records of Kafka's topic of offsets: which group has committed which offset, and when. Pure.

The forms are Kafka's own, ``OffsetCommitKey.json`` and ``OffsetCommitValue.json`` of its group coordinator. Texts and
numbers are big-endian:

    key    version 0 or 1: int16, group: string, topic: string, partition: int32
    value  version: int16, offset: int64, [3: leader epoch: int32], metadata: string, committed at: int64, …

A string is an int16 of its length and UTF-8. Version 4 and later are in another form (KIP-482); what they begin with is
the same but for lengths, which are varints of the length and one.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

TOPIC: Final = "__consumer_offsets"
_OF_OFFSETS: Final = (0, 1)
_WITH_EPOCH: Final = 3
_FLEXIBLE: Final = 4
_VARINT_MORE: Final = 0x80
_LEAST: Final = -(1 << 31)
"""Java's Integer.MIN_VALUE, which has no absolute value of its own: Kafka takes 0."""


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """A commit, as it was written down."""

    group: str
    topic: str
    partition: int
    offset: int
    at_ms: int


def parse(key: bytes | None, value: bytes | None) -> OffsetCommit | None:
    """Read a record; None for one that is no commit: a group's members, a tombstone, a form that is not known."""
    if not key or not value:
        return None
    try:
        (version,) = struct.unpack_from(">h", key)
        if version not in _OF_OFFSETS:
            return None
        group, at = _text(key, 2)
        topic, at = _text(key, at)
        (partition,) = struct.unpack_from(">i", key, at)
        offset, at_ms = _value(value)
    except (struct.error, UnicodeDecodeError, IndexError):
        return None
    return OffsetCommit(group, topic, partition, offset, at_ms)


def partition_of(group: str, partitions: int) -> int:
    """Return which partition of the topic has a group's commits: Kafka's ``Utils.abs(group.hashCode()) % partitions``.

    That is the hash without its sign, not without its highest bit, which is how producers place keys.
    """
    found = 0
    data = group.encode("utf-16-be", "surrogatepass")
    for high, low in zip(data[::2], data[1::2], strict=True):
        found = (31 * found + (high << 8 | low)) & 0xFFFFFFFF
    signed = found - (1 << 32) if found >> 31 else found
    return (0 if signed == _LEAST else abs(signed)) % partitions


def _value(value: bytes) -> tuple[int, int]:
    version, offset = struct.unpack_from(">hq", value)
    at = 10 + (4 if version >= _WITH_EPOCH else 0)
    if version >= _FLEXIBLE:
        length, at = _varint(value, at)
        at += max(0, length - 1)
    else:
        (length,) = struct.unpack_from(">h", value, at)
        at += 2 + max(0, length)
    (at_ms,) = struct.unpack_from(">q", value, at)
    return offset, at_ms


def _text(data: bytes, at: int) -> tuple[str, int]:
    (length,) = struct.unpack_from(">h", data, at)
    end = at + 2 + length
    if length < 0 or end > len(data):
        raise IndexError(at)
    return data[at + 2 : end].decode(), end


def _varint(data: bytes, at: int) -> tuple[int, int]:
    found = shift = 0
    while True:
        byte = data[at]
        found |= (byte & ~_VARINT_MORE) << shift
        at, shift = at + 1, shift + 7
        if byte < _VARINT_MORE:
            return found, at
