"""A Produce request around batches that are not copied: kafka-python's own copies each twice. No I/O.

https://kafka.apache.org/protocol.html#The_Messages_Produce. From version 9 on lengths are unsigned varints, one more
than what they count, and each structure ends with its tagged fields, of which there are none.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final

from sinks.varints import unsigned

OLDEST, NEWEST = 3, 12
"""With transactions; with names of topics in the place of their ids."""
IMPLICIT: Final = 12
"""From this version on a broker adds a partition to the transaction by itself (KIP-890)."""

_API_KEY: Final = 0
_FLEXIBLE: Final = 9
_ALL_IN_SYNC: Final = -1
_NO_TAGS: Final = b"\0"

Sent = Mapping[str, Sequence[tuple[int, bytes, bytes]]]
"""By topic: partition, a batch's header, its records."""


def request(
    version: int, sent: Sent, *, correlation_id: int, client_id: str, transactional_id: str, timeout_ms: int
) -> list[bytes]:
    """The frame, in pieces."""
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
    add = pieces.append
    for topic, partitions in sent.items():
        begin = _text(topic.encode(), flexible=flexible) + _count(len(partitions), flexible=flexible)
        for partition, header, records in partitions:
            size = len(header) + len(records)
            add(begin + partition.to_bytes(4) + _count(size, flexible=flexible) + header)
            add(records)
            begin = tags
        add(tags + tags)
    add(tags)
    pieces[0] = sum(map(len, pieces)).to_bytes(4)
    return pieces


def _text(text: bytes, *, flexible: bool) -> bytes:
    return (unsigned(len(text) + 1) if flexible else len(text).to_bytes(2)) + text


def _count(number: int, *, flexible: bool) -> bytes:
    """Of an array's elements, or a text's bytes."""
    return unsigned(number + 1) if flexible else number.to_bytes(4)
