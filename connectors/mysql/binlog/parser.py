"""Parses the binlog, version 4: bytes of an event in, one value out.

`parse` takes one whole event, header to checksum, as the file holds it and a dump sends it behind its OK byte. Bytes
that end early, go on too long, are of another protocol or do not match their checksum raise `ProtocolError`; nothing
here reads, waits or remembers. A type that is not known comes out as `Unknown` (or `Ignorable`, where the server
marked it so): the reader that follows the log takes what it understands and stops at the rest.

Layout, little-endian; `[4 crc32]` of all before it at the end, if the FORMAT_DESCRIPTION says so:

    header  u32 timestamp · u8 type · u32 server · u32 size · u32 end position · u16 flags
      15    format: u16 4 · 50 server version · u32 created · u8 19 · u8 × types · u8 checksum algorithm · 4 crc32
       4    rotate: u64 position · file
       2    query: u32 thread · u32 seconds · u8 schema size · u16 error · u16 size · variables · schema · 0 · text
      16    xid: u64
      38    xa prepare: u8 one phase · u32 format · u32 gtrid size · u32 bqual size · both
      19    table map: see `table_map`
   23-25    rows, 1st version: u48 table · u16 flags · packed n · n bits, twice in updates · row images
   30-32    rows, 2nd version: the same with, behind flags, u16 size (its own two bytes included) · extra data
   166-171  the same two, row images compressed
      165   query, text compressed
       26   incident: u16 number · u8 size, text
      40    transaction payload: (packed type · packed size · content)* · 0 · content; 1 size, 2 method, 3 full size
      27    heartbeat: file    41 heartbeat: (packed type · packed size · content)*; 1 file, 2 position
    162 163 33 34 35 42  GTIDs: see `gtid_events`
      29    rows query: u8 · text    160 annotate: text    161 checkpoint: u32 size, file    164 encryption: u8 · u32

MariaDB compresses with zlib: u8 (0x80 | bytes of the size) · full size, big-endian · zlib stream.

https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_replication_binlog_event.html
https://mariadb.com/kb/en/2-binlog-event-header/
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from struct import Struct
from typing import Final, TypeAlias

from cdc.model.change import Op
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import charsets, gtid_events, query_events
from connectors.mysql.binlog.compressed import inflated
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import (
    HEADER_SIZE,
    IGNORABLE,
    AnnotateRows,
    BinlogCheckpoint,
    Event,
    FormatDescription,
    Header,
    Heartbeat,
    Ignorable,
    PartialUpdateRows,
    Query,
    Rotate,
    Rows,
    RowsQuery,
    StartEncryption,
    Stop,
    TableMap,
    TransactionPayload,
    Unknown,
    ViewChange,
    XaPrepare,
    Xid,
)
from connectors.mysql.binlog.fast_path import READERS, learn
from connectors.mysql.binlog.table_map import table_map

_HEADER: Final = Struct("<IBIIIH")
CRC_SIZE: Final = 4
_CRC_OF_ALL: Final = 0x2144DF1C
"""The CRC32 of bytes that end in their own CRC32, and of no others."""
_FORMAT: Final = 15
_ROTATE: Final = 4
_TABLE_MAP: Final = 19
_HEARTBEATS: Final = (27, 41)
_VERSION: Final = 4
_VERSION_TEXT: Final = 50
_CHECKSUM_ALGORITHMS: Final = (0, 1)
_ZSTD: Final = 0
PLAIN: Final = 255
_XA_PART_MAX: Final = 64


def parse(data: bytes, described: FormatDescription | None = None) -> Event:
    """Parse one event, which must fill `data` exactly. Raises ProtocolError.

    `described` is the last FORMAT_DESCRIPTION, None while there was none: only what may come before it is taken then.
    """
    if len(data) < HEADER_SIZE:
        raise ProtocolError(len(data), "the event's header ends early")
    header: Header = tuple.__new__(Header, _HEADER.unpack_from(data))
    if header.size != len(data):
        raise ProtocolError(min(header.size, len(data)), f"an event of {header.size} bytes in {len(data)}")
    if header.type == _FORMAT:
        return _format(header, data)
    if described is not None:
        checksum = described.checksum
    elif header.type == _ROTATE or header.type in _HEARTBEATS:
        checksum = len(data) >= HEADER_SIZE + CRC_SIZE and _crc_matches(data)
    else:
        raise ProtocolError(4, f"{header.name} before a FORMAT_DESCRIPTION_EVENT")
    end = len(data)
    if checksum:
        end -= CRC_SIZE
        if end < HEADER_SIZE or not _crc_matches(data):
            raise ProtocolError(max(end, HEADER_SIZE), f"{header.name} does not match its checksum")
    if header.type == _TABLE_MAP:
        return _table_map(header, data, end, mariadb=described is not None and described.mariadb)
    fast = READERS.get(header.type)
    if fast is not None and (event := fast(header, data, end)) is not None:
        return event
    return plain(header, data, end)


def header_of(data: bytes) -> Header:
    """Read the header that stands at the beginning of at least `HEADER_SIZE` bytes."""
    return Header(*_HEADER.unpack_from(data))


def plain(header: Header, data: bytes, end: int) -> Event:
    """Read what stands between header and checksum, field by field: the oracle of `fast_path`."""
    reader = _READERS.get(header.type)
    if reader is None:
        return Ignorable(header) if header.flags & IGNORABLE else Unknown(header)
    event = reader(header, Cursor(data, HEADER_SIZE, end))
    if isinstance(event, Query):
        learn(event, data, end)
    return event


MAPS: Final[dict[tuple[bytes, bool], TableMap]] = {}
"""Keeps table maps by their bytes, and whether MariaDB wrote them."""
_MOST_MAPS: Final = 1000
_LONGEST_KEPT: Final = 1 << 16
"""Bytes of a table map that is kept: the server may send many, and longer ones."""


def _table_map(header: Header, data: bytes, end: int, *, mariadb: bool) -> TableMap:
    """Read a table map, once for the same bytes: each statement describes its tables nearly always as the last did."""
    known = data[HEADER_SIZE:end], mariadb
    found = MAPS.get(known)
    if found is not None:
        return tuple.__new__(TableMap, (header, *found[1:]))
    found = table_map(header, Cursor(data, HEADER_SIZE, end), mariadb=mariadb)
    if end - HEADER_SIZE <= _LONGEST_KEPT:
        if len(MAPS) >= _MOST_MAPS:
            MAPS.clear()
        MAPS[known] = found
    return found


PAYLOAD: Final = 40
"""The type of the only event that may be longer than memory: a compressed transaction."""


def _crc_matches(data: bytes) -> bool:
    return zlib.crc32(data) == _CRC_OF_ALL


def _format(header: Header, data: bytes) -> FormatDescription:
    """Read what servers since MySQL 5.6 and MariaDB 5.3 write, with a checksum at the end whatever the algorithm."""
    body = Cursor(data, HEADER_SIZE, len(data))
    version = body.uint(2)
    if version != _VERSION:
        raise ProtocolError(HEADER_SIZE, f"binlog version {version} where {_VERSION} is needed")
    server_version = body.take(_VERSION_TEXT).partition(b"\0")[0].decode("ascii", "replace")
    created_at_s, header_size = body.uint(4), body.uint(1)
    if header_size != HEADER_SIZE:
        raise ProtocolError(body.at - 1, f"event headers of {header_size} bytes")
    lengths = body.take(max(0, body.left - 1 - CRC_SIZE))
    algorithm = body.uint(1)
    if algorithm not in _CHECKSUM_ALGORITHMS:
        raise ProtocolError(body.at - 1, f"checksum algorithm {algorithm}")
    if algorithm and not _crc_matches(data):
        raise ProtocolError(body.at, f"{header.name} does not match its checksum")
    return FormatDescription(header, version, server_version, created_at_s, lengths, bool(algorithm))


def _rotate(header: Header, body: Cursor) -> Rotate:
    return Rotate(header, body.uint(8), body.text(body.left))


def _xid(header: Header, body: Cursor) -> Xid:
    xid = body.uint(8)
    body.finish()
    return Xid(header, xid)


def _xa_prepare(header: Header, body: Cursor) -> XaPrepare:
    one_phase, format_id, gtrid_size, bqual_size = body.uint(1), body.uint(4), body.uint(4), body.uint(4)
    if max(gtrid_size, bqual_size) > _XA_PART_MAX:
        raise ProtocolError(body.at, "an XA transaction's name of more than 64 bytes")
    return XaPrepare(header, bool(one_phase), format_id, body.take(gtrid_size), body.take(bqual_size))


_OPS: Final = (Op.CREATE, Op.UPDATE, Op.DELETE)


def _rows(first: int, *, extra: bool, compressed: bool = False) -> dict[int, _Reader]:
    """Make readers of three row event types that begin with `first`."""
    return {first + i: _rows_reader(op, extra=extra, compressed=compressed) for i, op in enumerate(_OPS)}


def _rows_reader(op: Op, *, extra: bool, compressed: bool) -> Callable[[Header, Cursor], Rows]:
    def read(header: Header, body: Cursor) -> Rows:
        table_id, flags = body.uint(6), body.uint(2)
        if extra:
            size = body.uint(2)
            if size < 2:  # noqa: PLR2004 - it counts its own two bytes
                raise ProtocolError(body.at - 2, f"extra data of {size} bytes")
            body.take(size - 2)
        count = body.packed()
        bits = (count + 7) // 8
        first = body.take(bits)
        second = body.take(bits) if op is Op.UPDATE else b""
        before, after = (b"", first) if op is Op.CREATE else (first, second)
        images = inflated(body.rest()) if compressed else body.rest()
        return Rows(header, op, table_id, flags, count, before, after, images)

    return read


def _partial_update_rows(header: Header, body: Cursor) -> PartialUpdateRows:
    _, _, table_id, flags, count, before, after, images = _whole_update(header, body)
    return PartialUpdateRows(header, table_id, flags, count, before, after, images)


_whole_update: Final[Callable[[Header, Cursor], Rows]] = _rows_reader(Op.UPDATE, extra=True, compressed=False)


def _parameter(header: Header, _body: Cursor) -> Ignorable:
    """Pass over what the next statement is given: variables, or a part of the file that it loads."""
    return Ignorable(header)


def _fields(body: Cursor) -> dict[int, Cursor]:
    """Read content by type, up to type 0, which has no size."""
    fields = {}
    while kind := body.packed():
        fields[kind] = body.part(body.packed())
    return fields


def _transaction_payload(header: Header, body: Cursor) -> TransactionPayload:
    compression, size, full_size = payload_head(body)
    payload = body.rest()
    size = payload_size(len(payload), size, body.at)
    return TransactionPayload(header, compression, size if full_size is None else full_size, payload)


def payload_size(found: int, told: int | None, at: int) -> int:
    """Return the size that was found, which must be what was told."""
    if told is not None and told != found:
        raise ProtocolError(at, f"a transaction payload of {found} bytes, not {told}")
    return found


def payload_head(body: Cursor) -> tuple[int, int | None, int | None]:
    """Read how it is compressed, its size as it is and as it was, if they are told."""
    fields = _fields(body)
    size, compression, full_size = (fields[i].packed() if i in fields else None for i in (1, 2, 3))
    if compression is None:
        compression = PLAIN
    if compression not in (_ZSTD, PLAIN):
        raise ProtocolError(body.at, f"a transaction payload of compression {compression}")
    return compression, size, full_size


def _heartbeat(header: Header, body: Cursor) -> Heartbeat:
    return Heartbeat(header, body.text(body.left), header.log_pos)


def _heartbeat_v2(header: Header, body: Cursor) -> Heartbeat:
    fields = _fields(body)
    if not {1, 2} <= fields.keys():
        raise ProtocolError(body.at, "a heartbeat without file and position")
    return Heartbeat(header, fields[1].text(fields[1].left), fields[2].packed())


def _annotate_rows(header: Header, body: Cursor) -> AnnotateRows:
    return AnnotateRows(header, charsets.lenient("utf8mb4", body.rest()))


def _rows_query(header: Header, body: Cursor) -> RowsQuery:
    body.take(1)  # a size that overflows: the text goes to the end
    return RowsQuery(header, charsets.lenient("utf8mb4", body.rest()))


def _binlog_checkpoint(header: Header, body: Cursor) -> BinlogCheckpoint:
    return BinlogCheckpoint(header, body.text(body.uint(4)))


def _start_encryption(header: Header, body: Cursor) -> StartEncryption:
    return StartEncryption(header, body.uint(1), body.uint(4))


def _stop(header: Header, _body: Cursor) -> Stop:
    return Stop(header)


def _view_change(header: Header, _body: Cursor) -> ViewChange:
    return ViewChange(header)


_Reader: TypeAlias = Callable[[Header, Cursor], Event]

_READERS: Final[dict[int, _Reader]] = {
    2: query_events.query,
    3: _stop,
    4: _rotate,
    **dict.fromkeys((5, 9, 11, 13, 14, 17), _parameter),
    16: _xid,
    18: query_events.execute_load_query,
    26: query_events.incident,
    27: _heartbeat,
    29: _rows_query,
    33: gtid_events.gtid,
    34: gtid_events.anonymous_gtid,
    35: gtid_events.previous_gtids,
    37: _view_change,
    38: _xa_prepare,
    39: _partial_update_rows,
    PAYLOAD: _transaction_payload,
    41: _heartbeat_v2,
    42: gtid_events.tagged_gtid,
    160: _annotate_rows,
    161: _binlog_checkpoint,
    162: gtid_events.mariadb_gtid,
    163: gtid_events.mariadb_gtid_list,
    164: _start_encryption,
    165: query_events.query_compressed,
    **_rows(23, extra=False),
    **_rows(30, extra=True),
    **_rows(166, extra=False, compressed=True),
    **_rows(169, extra=True, compressed=True),
}
