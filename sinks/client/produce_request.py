"""Writes a Produce request around batches that are not copied, and reads the codes of the usual answer. No I/O.

kafka-python's own copies each batch twice, and makes an object of each partition's answer.

https://kafka.apache.org/protocol.html#The_Messages_Produce. From version 9 on lengths are unsigned varints, one more
than what they count, and each structure ends with its tagged fields, of which there are none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from sinks.client.varints import read_unsigned, unsigned

OLDEST, NEWEST = 3, 12
"""The versions with transactions, and with names of topics rather than ids."""
IMPLICIT: Final = 12
"""From this version on a broker adds a partition to the transaction by itself (KIP-890)."""

_API_KEY: Final = 0
_FLEXIBLE: Final = 9
_ALL_IN_SYNC: Final = -1
_NO_TAGS: Final = b"\0"
_THROTTLE: Final = 5
"""An int32 and no tags end the answer."""
_PARTITION: Final = struct.Struct(">ihqqqBBB")
"""Number, error, three offsets and times; no record's error, no message, no tags: as nearly every answer has it."""

TopicBatches = Mapping[str, Sequence[tuple[int, bytes, bytes]]]
"""Are by topic: partition, a batch's header, its records."""
ErrorCodes = Sequence[tuple[str, Sequence[tuple[int, int]]]]
"""Are by topic: partition, error code."""


def request(
    version: int, sent: TopicBatches, *, correlation_id: int, client_id: str, transactional_id: str, timeout_ms: int
) -> list[bytes]:
    """Return the frame, in pieces."""
    flexible = version >= _FLEXIBLE
    tags = _NO_TAGS if flexible else b""
    client = client_id.encode()
    name = transactional_id.encode()
    pieces = [
        b"",
        struct.pack(">hhih", _API_KEY, version, correlation_id, len(client)) + client + tags,
        _text(name, flexible=flexible) + struct.pack(">hi", _ALL_IN_SYNC, timeout_ms),
        _count(len(sent), flexible=flexible),
    ]
    begin = b""
    for topic, partitions in sent.items():
        begin += _text(topic.encode(), flexible=flexible) + _count(len(partitions), flexible=flexible)
        for partition, header, records in partitions:
            size = _count(len(header) + len(records), flexible=flexible)
            pieces += begin + partition.to_bytes(4) + size + header, records
            begin = tags
        begin = tags + tags
    pieces.append(begin + tags)
    pieces[0] = sum(map(len, pieces)).to_bytes(4)
    return pieces


def codes(version: int, answer: bytes) -> ErrorCodes | None:
    """Read what an answer says, without its header; None for an older version, or where it says more than most do."""
    if version < _FLEXIBLE:
        return None
    count, at = read_unsigned(answer, 0)
    found = []
    for _ in range(count - 1):
        size, at = read_unsigned(answer, at)
        name = answer[at : at + size - 1].decode()
        partitions, at = read_unsigned(answer, at + size - 1)
        end = at + (partitions - 1) * _PARTITION.size
        if not at <= end < len(answer):
            return None
        said = []
        for number, code, _offset, _appended, _start, errors, message, tags in _PARTITION.iter_unpack(answer[at:end]):
            if errors != 1 or message or tags:
                return None
            said.append((number, code))
        if answer[end]:
            return None
        found.append((name, said))
        at = end + 1
    return found if len(answer) == at + _THROTTLE and answer.endswith(_NO_TAGS) else None


def throttle_ms(answer: bytes) -> int:
    """Return for how long the broker wants nothing sent, of an answer that `codes` can read."""
    return int.from_bytes(answer[-_THROTTLE:-1], signed=True)


def _text(text: bytes, *, flexible: bool) -> bytes:
    return (unsigned(len(text) + 1) if flexible else len(text).to_bytes(2)) + text


def _count(number: int, *, flexible: bool) -> bytes:
    """Write the number of an array's elements, or of a text's bytes."""
    return unsigned(number + 1) if flexible else number.to_bytes(4)
