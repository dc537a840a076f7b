"""Reads the GTID events of both servers: types 33, 34, 35, 42 (MySQL), 162 and 163 (MariaDB). Pure.

    33 34  u8 flags · 16 uuid · i64 gno · [u8 2 · u64 last committed · u64 sequence number
           · [u56 immediate commit µs · [u56 original commit µs, if bit 55 was set]
           · [packed transaction length · [u32 server version …]]]]
    42     mysql::serialization message: varlen version, size, last field that must be known,
           then fields by number: 0 flags · 1 uuid · 2 gno · 3 tag · 4 last committed · 5 sequence number
           · 6 immediate commit µs · 7 original, if another · 8 transaction length · 9… versions, ticket
    35     u64 count, its highest byte 1 where tags are (then the count is bits 8–55)
           · count × (16 uuid · [varlen size, tag] · u64 n · n × (u64 first · u64 behind the last))
    162    u64 sequence · u32 domain · u8 flags · [u64 commit id, if flag 2]
           · [u32 format · u8 · u8 · gtrid bqual, if flag 64 or 128] · what later versions add
    163    u32 count, its highest 4 bits flags · count × (u32 domain · u32 server · u64 sequence)

https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Gtid__event.html
https://dev.mysql.com/doc/dev/mysql-server/latest/PageLibsMysqlSerialization.html
https://mariadb.com/kb/en/gtid_event/ https://mariadb.com/kb/en/gtid_list_event/
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import (
    AnonymousGtid,
    Gtid,
    GtidIntervals,
    Header,
    MariadbGtid,
    MariadbGtidList,
    PreviousGtids,
)

_LOGICAL_CLOCK: Final = 2
_COMMIT_SIZE: Final = 7
_HAS_ORIGINAL: Final = 1 << 55
_TAGGED: Final = 1
_VARLEN_MAX: Final = 8
_GROUP_COMMIT_ID: Final = 2
_XA: Final = 64 | 128
_TAG_FIELDS: Final = range(9)
_UNREAD_FIELDS: Final = range(9, 12)


def _clocks(body: Cursor) -> tuple[int, int, int | None, int | None, int | None]:
    """Read what later versions put behind the number, each part only if the ones before it are there."""
    if body.left < 1 or body.uint(1) != _LOGICAL_CLOCK:
        return 0, 0, None, None, None
    last_committed, sequence_number = body.uint(8), body.uint(8)
    if body.left < _COMMIT_SIZE:
        return last_committed, sequence_number, None, None, None
    immediate = original = body.uint(_COMMIT_SIZE)
    if immediate & _HAS_ORIGINAL:
        immediate ^= _HAS_ORIGINAL
        original = body.uint(_COMMIT_SIZE)
    length = body.packed() if body.left else None
    return last_committed, sequence_number, immediate, original, length


def gtid(header: Header, body: Cursor) -> Gtid:
    """Read type 33."""
    body.take(1)
    uuid, gno = UUID(bytes=body.take(16)), body.uint(8)
    return Gtid(header, str(uuid), "", gno, *_clocks(body))


def anonymous_gtid(header: Header, body: Cursor) -> AnonymousGtid:
    """Read type 34, which is laid out as 33 with nothing where the name would be."""
    body.take(1 + 16 + 8)
    return AnonymousGtid(header, *_clocks(body))


def varlen(body: Cursor) -> int:
    """Read an unsigned integer of mysql::serialization: the first byte's trailing ones count the bytes behind it."""
    first = body.uint(1)
    more = 0
    while more < _VARLEN_MAX and first >> more & 1:
        more += 1
    rest = body.uint(more)
    return rest if more == _VARLEN_MAX else (rest << 8 | first) >> (more + 1)


def signed_varlen(body: Cursor) -> int:
    """Read a signed integer: the sign is the lowest bit, negative numbers are inverted."""
    number = varlen(body)
    return ~(number >> 1) if number & 1 else number >> 1


def tagged_gtid(header: Header, body: Cursor) -> Gtid:
    """Read type 42. Fields behind those read here, and of later versions, are left unless marked as needed."""
    start = body.at
    version, size, must_know = varlen(body), varlen(body), varlen(body)
    if version not in (0, 1):
        raise ProtocolError(start, f"a tagged GTID of version {version}")
    if start + size != body.end:
        raise ProtocolError(start, "a tagged GTID of another size")
    if must_know > _UNREAD_FIELDS.stop:
        raise ProtocolError(start, f"a tagged GTID with field {must_know - 1}, which must be known")
    uuid, tag = b"", ""
    numbers: dict[int, int] = {}
    while body.left:
        at = body.at
        field = varlen(body)
        if field == 1:
            uuid = bytes(_byte(body) for _ in range(16))
        elif field == 3:  # noqa: PLR2004 - the tag
            tag = body.text(varlen(body))
        elif field in (2, 4, 5):
            numbers[field] = signed_varlen(body)
        elif field in _TAG_FIELDS or field in _UNREAD_FIELDS:
            numbers[field] = varlen(body)
        else:
            break  # a field of a later version, which is marked as not needed
        if numbers.get(field, 0) < 0:
            raise ProtocolError(at, f"a negative number in field {field} of a tagged GTID")
    if not uuid or 2 not in numbers:  # noqa: PLR2004 - the number
        raise ProtocolError(body.at, "a tagged GTID without its name")
    immediate = numbers.get(6)
    return Gtid(
        header,
        str(UUID(bytes=uuid)),
        tag,
        numbers[2],
        numbers.get(4, 0),
        numbers.get(5, 0),
        immediate,
        numbers.get(7, immediate),
        numbers.get(8),
    )


def _byte(body: Cursor) -> int:
    value = varlen(body)
    if value > 0xFF:  # noqa: PLR2004 - a byte
        raise ProtocolError(body.at, "a byte of a UUID above 255")
    return value


def previous_gtids(header: Header, body: Cursor) -> PreviousGtids:
    """Read type 35."""
    count = body.uint(8)
    form = count >> 56
    if form not in (0, _TAGGED):
        raise ProtocolError(body.at, f"a GTID set in form {form}")
    if form == _TAGGED:
        count = count >> 8 & (1 << 48) - 1
    sets = []
    for _ in range(count):
        uuid = str(UUID(bytes=body.take(16)))
        tag = body.text(varlen(body)) if form == _TAGGED else ""
        spans = body.uint(8)
        if spans * 16 > body.left:
            raise ProtocolError(body.end, "the event ends early")
        sets.append(GtidIntervals(uuid, tag, tuple((body.uint(8), body.uint(8) - 1) for _ in range(spans))))
    body.finish()
    return PreviousGtids(header, tuple(sets))


def mariadb_gtid(header: Header, body: Cursor) -> MariadbGtid:
    """Read type 162. What newer servers add behind (engines, ALTER in two phases, thread) is not read."""
    sequence, domain, flags = body.uint(8), body.uint(4), body.uint(1)
    commit_id = body.uint(8) if flags & _GROUP_COMMIT_ID else None
    xid = None
    if flags & _XA:
        format_id, gtrid_size, bqual_size = body.uint(4), body.uint(1), body.uint(1)
        xid = (format_id, body.take(gtrid_size), body.take(bqual_size))
    return MariadbGtid(header, domain, header.server_id, sequence, flags, commit_id, xid)


def mariadb_gtid_list(header: Header, body: Cursor) -> MariadbGtidList:
    """Read type 163."""
    count = body.uint(4)
    flags, count = count >> 28, count & (1 << 28) - 1
    if count * 16 > body.left:
        raise ProtocolError(body.end, "the event ends early")
    return MariadbGtidList(header, tuple((body.uint(4), body.uint(4), body.uint(8)) for _ in range(count)), flags)
