"""Reads compressed transactions, which may be longer than memory: event by event, from bytes or from a file.

Nothing is kept of what was read before.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import IO, Final, Protocol, Self, cast

import zstandard

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog.compressed import EVENT_MAX
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import HEADER_SIZE, Event, FormatDescription, Section, TransactionPayload
from connectors.mysql.binlog.parser import (
    CRC_SIZE,
    PAYLOAD,
    PLAIN,
    header_of,
    parse,
    payload_head,
    payload_size,
)

_LONGEST_HEAD: Final = 1024
"""How long the header and the fields before the content of a compressed transaction may be."""
_READ_SIZE: Final = 1 << 20


def parse_long(file: IO[bytes], described: FormatDescription | None) -> TransactionPayload:
    """Parse a compressed transaction that fills `file`, which stays open until `events` has been read."""
    if described is None:
        raise ProtocolError(4, "a compressed transaction before a FORMAT_DESCRIPTION_EVENT")
    size = file.seek(0, io.SEEK_END)
    file.seek(0)
    head = file.read(_LONGEST_HEAD)
    if len(head) < HEADER_SIZE:
        raise ProtocolError(len(head), "the event's header ends early")
    header = header_of(head)
    if header.size != size:
        raise ProtocolError(min(header.size, size), f"an event of {header.size} bytes in {size}")
    if header.type != PAYLOAD:
        raise ProtocolError(4, f"a {header.name} of {size} bytes")
    end = size
    if described.checksum:
        end -= CRC_SIZE
        if end < HEADER_SIZE or not _crc_of_file_matches(file, end):
            raise ProtocolError(max(end, HEADER_SIZE), f"{header.name} does not match its checksum")
    body = Cursor(head, HEADER_SIZE, min(len(head), end))
    compression, length, full_size = payload_head(body)
    section = Section(file, body.at, end)
    length = payload_size(end - body.at, length, body.at)
    return TransactionPayload(header, compression, length if full_size is None else full_size, section)


def _crc_of_file_matches(file: IO[bytes], end: int) -> bool:
    file.seek(0)
    crc, left = 0, end
    while left and (part := file.read(min(left, _READ_SIZE))):
        crc, left = zlib.crc32(part, crc), left - len(part)
    return not left and crc == int.from_bytes(file.read(CRC_SIZE), "little")


def events(payload: TransactionPayload, described: FormatDescription) -> Iterator[tuple[Event, bytes]]:
    """Give the events of a compressed transaction, each with its bytes, so that it never lies in memory whole.

    Inner events have no checksum of their own.
    """
    inner = described._replace(checksum=False)
    with _plain(payload) as source:
        size = 0
        while head := source.read(HEADER_SIZE):
            length = int.from_bytes(head[9:13], "little")
            if len(head) < HEADER_SIZE or not HEADER_SIZE <= length <= EVENT_MAX:
                raise ProtocolError(HEADER_SIZE, "a transaction payload that holds no event")
            size += length
            if size > payload.size:
                raise ProtocolError(HEADER_SIZE, f"a transaction payload of more than its {payload.size} bytes")
            raw = head + source.read(length - HEADER_SIZE)
            yield parse(raw, inner), raw
    if size != payload.size:
        raise ProtocolError(HEADER_SIZE, "a transaction payload of another size")


def _plain(payload: TransactionPayload) -> _Plain:
    content = payload.payload
    source = cast("IO[bytes]", _SectionReader(content) if isinstance(content, Section) else io.BytesIO(content))
    if payload.compression == PLAIN:
        return _Plain(source)
    return _Plain(zstandard.ZstdDecompressor().stream_reader(source, read_across_frames=True))


class _Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...

    def close(self) -> None: ...


class _SectionReader:
    """Reads a section as a file that ends where it does; closing it leaves the file open."""

    def __init__(self, section: Section) -> None:
        self._file, self._left = section.file, section.end - section.begin
        section.file.seek(section.begin)

    def read(self, size: int = -1, /) -> bytes:
        got = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(got)
        return got

    def close(self) -> None:
        pass


class _Plain:
    """Reads what zstd makes of a payload, bit by bit."""

    def __init__(self, source: _Readable) -> None:
        self._source = source

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._source.close()

    def read(self, size: int) -> bytes:
        try:
            return self._source.read(size)
        except zstandard.ZstdError as exc:
            raise ProtocolError(HEADER_SIZE, "a transaction payload that zstd cannot read") from exc
