"""The binlog written the other way: the decoder's oracle, from the servers' documentation."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Iterable, Sequence
from decimal import Decimal
from typing import Any
from uuid import UUID

from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import (
    AnnotateRows,
    AnonymousGtid,
    BinlogCheckpoint,
    Event,
    FormatDescription,
    Gtid,
    Header,
    Heartbeat,
    Ignorable,
    MariadbGtid,
    MariadbGtidList,
    PartialUpdateRows,
    PreviousGtids,
    Query,
    Rotate,
    Rows,
    RowsQuery,
    StartEncryption,
    Stop,
    TableColumn,
    TableMap,
    TransactionPayload,
    Unknown,
    ViewChange,
    XaPrepare,
    Xid,
)

UTF8MB4 = 255
COLLATIONS = {"utf8mb4": 255, "binary": 63, "latin1": 8, "gbk": 28, "utf16": 54}


def framed(header: Header, body: bytes, *, checksum: bool) -> bytes:
    """A whole event: the header's size is what it comes to."""
    size = 19 + len(body) + 4 * checksum
    start = struct.pack(
        "<IBIIIH", header.timestamp_s, header.type, header.server_id, size, header.log_pos, header.flags
    )
    return start + body + (struct.pack("<I", zlib.crc32(start + body)) if checksum else b"")


def header(kind: int, *, flags: int = 0, log_pos: int = 1234) -> Header:
    """One whose size is not known yet."""
    return Header(1_700_000_000, kind, 42, 0, log_pos, flags)


def encode(event: Event, *, checksum: bool = True) -> bytes:
    """One event as the server frames it."""
    if isinstance(event, FormatDescription):
        checksum = False
    return framed(event.header, body(event), checksum=checksum)


def body(event: Event) -> bytes:
    """What stands between header and checksum."""
    match event:
        case FormatDescription(head, version, server, created, lengths, with_checksum):
            text = struct.pack("<H50sIB", version, server.encode(), created, 19) + lengths + bytes([with_checksum])
            start = framed(head, text + bytes(4), checksum=False)[:-4]
            return text + struct.pack("<I", zlib.crc32(start))
        case Rotate(_, position, file):
            return struct.pack("<Q", position) + file.encode()
        case Query(head, thread, error, schema, statement, charset, ddl_xid, sql_mode):
            variables = struct.pack("<BI", 0, 7) + struct.pack("<BQ", 1, sql_mode & 0xFFFFFFFFFFFFFFFF) + b"\x06\x03std"
            variables += struct.pack("<BHHH", 4, COLLATIONS[charset], UTF8MB4, UTF8MB4) + b"\x05\x03UTC"
            variables += b"\x0b\x01u\x01h\x0c\x01" + schema.encode() + b"\0"
            variables += b"" if ddl_xid is None else struct.pack("<BQ", 17, ddl_xid)
            variables += b"\xc8 what nobody knows"
            python = {"utf8mb4": "utf-8", "latin1": "cp1252", "gbk": "gbk", "utf16": "utf-16-be"}[charset]
            text = statement.encode(python)
            packed = compressed(text) if head.type == 165 else text
            name = schema.encode()
            sizes = struct.pack("<IIBHH", thread, 0, len(name), error, len(variables))
            return sizes + variables + name + b"\0" + packed
        case Xid(_, xid):
            return struct.pack("<Q", xid)
        case XaPrepare(_, one_phase, format_id, gtrid, bqual):
            return struct.pack("<BIII", one_phase, format_id, len(gtrid), len(bqual)) + gtrid + bqual
        case Gtid(head) if head.type == 42:
            return _tagged(event)
        case Gtid(_, uuid, _, gno):
            return b"\1" + UUID(uuid).bytes + struct.pack("<Q", gno) + _clocks(*event[4:])
        case AnonymousGtid():
            return b"\1" + bytes(24) + _clocks(*event[1:])
        case PreviousGtids(_, sets):
            is_tagged = any(tag for _, tag, _ in sets)
            count = len(sets) << 8 | 1 | 1 << 56 if is_tagged else len(sets)
            parts = [struct.pack("<Q", count)]
            for uuid, tag, spans in sets:
                parts += [UUID(uuid).bytes, varlen(len(tag)) + tag.encode() if is_tagged else b""]
                parts += [struct.pack("<Q", len(spans)), *(struct.pack("<QQ", a, b + 1) for a, b in spans)]
            return b"".join(parts)
        case TableMap():
            return _table_map(event)
        case Rows(head, _, table_id, flags, count, before, after, images):
            extra = struct.pack("<HBB", 4, 1, 0) if 30 <= head.type <= 32 or head.type >= 169 else b""
            data = compressed(images) if head.type >= 166 else images
            start = table_id.to_bytes(6, "little") + struct.pack("<H", flags) + extra
            return start + packed_int(count) + before + after + data
        case PartialUpdateRows(_, table_id, flags, count, before, after, images):
            start = table_id.to_bytes(6, "little") + struct.pack("<HHBB", flags, 4, 1, 0)
            return start + packed_int(count) + before + after + images
        case TransactionPayload(_, compression, size, payload):
            fields = ((2, compression), (3, size), (1, len(payload)))
            return b"".join(_field(n, packed_int(value)) for n, value in fields) + b"\0" + payload
        case Heartbeat(head, file, _) if head.type == 27:
            return file.encode()
        case Heartbeat(_, file, position):
            return _field(1, file.encode()) + _field(2, packed_int(position)) + b"\0"
        case MariadbGtid(_, domain, _, sequence, flags, commit_id, xid):
            start = struct.pack("<QIB", sequence, domain, flags)
            commit = b"" if commit_id is None else struct.pack("<Q", commit_id)
            if xid is None:
                return start + commit + (b"" if commit else bytes(6))
            format_id, gtrid, bqual = xid
            return start + commit + struct.pack("<IBB", format_id, len(gtrid), len(bqual)) + gtrid + bqual
        case MariadbGtidList(_, gtids, flags):
            return struct.pack("<I", len(gtids) | flags << 28) + b"".join(struct.pack("<IIQ", *gtid) for gtid in gtids)
        case AnnotateRows(_, statement):
            return statement.encode()
        case RowsQuery(_, statement):
            return bytes([len(statement) % 256]) + statement.encode()
        case BinlogCheckpoint(_, file):
            return struct.pack("<I", len(file)) + file.encode()
        case StartEncryption(_, scheme, key_version):
            return struct.pack("<BI", scheme, key_version) + bytes(12)
        case Stop():
            return b""
        case Ignorable() | Unknown() | ViewChange():
            return b"whatever it is"
    raise AssertionError(event)


def varlen(number: int) -> bytes:
    """mysql::serialization: as many trailing ones as bytes follow."""
    for more in range(8):
        if number < 1 << 7 * (more + 1):
            return (number << (more + 1) | (1 << more) - 1).to_bytes(more + 1, "little")
    return b"\xff" + number.to_bytes(8, "little")


def signed_varlen(number: int) -> bytes:
    """Its signed kind."""
    return varlen(number << 1 if number >= 0 else ~number << 1 | 1)


def _tagged(event: Gtid) -> bytes:
    fields = [
        (0, varlen(1)),
        (1, b"".join(varlen(byte) for byte in UUID(event.uuid).bytes)),
        (2, signed_varlen(event.gno)),
        (3, varlen(len(event.tag)) + event.tag.encode()),
        (4, signed_varlen(event.last_committed)),
        (5, signed_varlen(event.sequence_number)),
        (6, varlen(event.immediate_commit_us or 0)),
        *([(7, varlen(event.original_commit_us or 0))] if event[7] != event[8] else []),
        (8, varlen(event.transaction_length or 0)),
        (9, varlen(90_704)),
    ]
    content = varlen(0) + b"".join(varlen(number) + data for number, data in fields)
    for size in range(len(content), len(content) + 10):
        message = varlen(0) + varlen(size) + content
        if len(message) == size:
            return message
    raise AssertionError(event)


def _clocks(committed: int, sequence: int, immediate: int | None, original: int | None, length: int | None) -> bytes:
    data = struct.pack("<BQQ", 2, committed, sequence)
    if immediate is None:
        return data
    if original is None or original == immediate:
        data += immediate.to_bytes(7, "little")
    else:
        data += (immediate | 1 << 55).to_bytes(7, "little") + original.to_bytes(7, "little")
    return data if length is None else data + packed_int(length) + struct.pack("<I", 80_036)


def packed_int(number: int) -> bytes:
    """A length-encoded integer."""
    if number < 0xFB:
        return bytes([number])
    for first, size in ((0xFC, 2), (0xFD, 3), (0xFE, 8)):
        if number < 1 << 8 * size:
            return bytes([first]) + number.to_bytes(size, "little")
    raise AssertionError(number)


def _field(number: int, content: bytes) -> bytes:
    return packed_int(number) + packed_int(len(content)) + content


def compressed(data: bytes) -> bytes:
    """MariaDB's way."""
    size = max(1, (len(data).bit_length() + 7) // 8)
    return bytes([0x80 | size]) + len(data).to_bytes(size, "big") + zlib.compress(data)


def _table_map(event: TableMap) -> bytes:
    columns = event.columns
    types, metas = zip(*(_type(column) for column in columns), strict=True) if columns else ((), ())
    nulls = bitmap([column.nullable for column in columns])
    names = b"".join(packed_int(len(n)) + n + b"\0" for n in (event.schema.encode(), event.table.encode()))
    data = event.table_id.to_bytes(6, "little") + struct.pack("<H", event.flags) + names
    data += packed_int(len(columns)) + bytes(types) + packed_int(len(b"".join(metas))) + b"".join(metas) + nulls
    return data + b"".join(_metadata(event))


def _type(column: TableColumn) -> tuple[int, bytes]:
    kind, meta = column.type, column.meta
    if kind in (table_map.ENUM, table_map.SET):
        return table_map.STRING, bytes((kind, meta))
    if kind == table_map.STRING:
        return kind, bytes((0xFE ^ (meta >> 8 & 3) << 4, meta & 0xFF))
    if kind == table_map.NEWDECIMAL:
        return kind, struct.pack(">H", meta)
    if kind == table_map.BIT:
        return kind, bytes((meta % 8, meta // 8))
    sizes = {table_map.VARCHAR: 2, table_map.FLOAT: 1, table_map.DOUBLE: 1, table_map.BLOB: 1, table_map.JSON: 1}
    sizes |= dict.fromkeys(
        (table_map.TIME2, table_map.DATETIME2, table_map.TIMESTAMP2, table_map.GEOMETRY, table_map.VECTOR), 1
    )
    return kind, meta.to_bytes(sizes.get(kind, 0), "little")


def _metadata(event: TableMap) -> Iterable[bytes]:
    columns = event.columns
    numbers = [c for c in columns if c.type in table_map.NUMBERS]
    texts = [c for c in columns if c.type in table_map.TEXTS]
    if all(c.charset is not None for c in texts):  # MySQL 9 has a collation for each VECTOR among them
        counted = (c for c in columns if c.type in table_map.TEXTS | {table_map.VECTOR})
        texts = [c._replace(charset="binary") if c.type == table_map.VECTOR else c for c in counted]
    labelled = [c for c in columns if c.labels is not None]
    if numbers and numbers[0].unsigned is not None:
        yield _field(1, high_bits([bool(c.unsigned) for c in numbers]))
    yield from _collations(2, 3, texts)
    if columns and columns[0].name is not None:
        yield _field(4, b"".join(sized(str(c.name).encode()) for c in columns))
    for number, kind in ((5, table_map.SET), (6, table_map.ENUM)):
        these = [c for c in labelled if c.type == kind]
        if these:
            yield _field(
                number,
                b"".join(
                    packed_int(len(c.labels or ())) + b"".join(sized(label.encode()) for label in c.labels or ())
                    for c in these
                ),
            )
    for number, kind, attribute in ((7, table_map.GEOMETRY, "geometry"), (13, table_map.VECTOR, "dimension")):
        those = [getattr(c, attribute) for c in columns if c.type == kind]
        if those:
            yield _field(number, b"".join(packed_int(value) for value in those))
    if event.primary_key:
        if any(prefix for _, prefix in event.primary_key):
            yield _field(9, b"".join(packed_int(n) + packed_int(prefix) for n, prefix in event.primary_key))
        else:
            yield _field(8, b"".join(packed_int(n) for n, _ in event.primary_key))
    yield from _collations(10, 11, labelled)
    if columns and columns[0].visible is not None:
        yield _field(12, high_bits([bool(c.visible) for c in columns]))


def _collations(default: int, each: int, columns: Sequence[TableColumn]) -> Iterable[bytes]:
    """Each for itself if there are two, else the first as default with exceptions: both ways are met in tests."""
    numbers = [COLLATIONS[c.charset] for c in columns if c.charset is not None]
    if len(numbers) == 2:
        yield _field(each, b"".join(packed_int(number) for number in numbers))
    elif numbers:
        others = [(i, number) for i, number in enumerate(numbers) if number != numbers[0]]
        yield _field(default, packed_int(numbers[0]) + b"".join(packed_int(i) + packed_int(n) for i, n in others))


def sized(data: bytes) -> bytes:
    return packed_int(len(data)) + data


def bitmap(bits: Sequence[bool], *, padding: bool = False) -> bytes:
    """Lowest bit first."""
    padded = [*bits, *[padding] * (-len(bits) % 8)]
    return bytes(sum(bit << i for i, bit in enumerate(padded[at : at + 8])) for at in range(0, len(padded), 8))


def high_bits(bits: Sequence[bool]) -> bytes:
    """Highest bit first."""
    return bytes(sum(bit << 7 - i for i, bit in enumerate(bits[at : at + 8])) for at in range(0, len(bits), 8))


def image(values: Sequence[bytes | None], *, padding: bool) -> bytes:
    """A row: null bits, and the values that are not."""
    nulls = bitmap([value is None for value in values], padding=padding)
    return nulls + b"".join(value for value in values if value is not None)


def decimal(value: Decimal, precision: int, scale: int) -> bytes:
    """decimal2bin: digits in groups of nine, whole ones at the point, the rest in as few bytes as hold them."""
    digits = f"{value.copy_abs():.{scale}f}"
    whole, _, fraction = digits.partition(".")
    whole = whole.rjust(precision - scale, "0")[-(precision - scale) :] if precision > scale else ""
    head = len(whole) % 9
    groups = [whole[:head], *(whole[at : at + 9] for at in range(head, len(whole), 9))]
    groups += [fraction[at : at + 9] for at in range(0, len(fraction), 9)]
    sizes = (0, 1, 1, 2, 2, 3, 3, 4, 4, 4)
    data = bytearray(b"".join(int(g).to_bytes(sizes[len(g)], "big") for g in groups if g))
    if value.is_signed():
        data = bytearray(byte ^ 0xFF for byte in data)
    data[0] ^= 0x80
    return bytes(data)


def fraction(micros: int, digits: int) -> bytes:
    """What is behind a second, in digits rounded up to even."""
    even = (digits + 1) // 2 * 2
    return (micros // 10 ** (6 - even)).to_bytes(even // 2, "big")


def datetime2(  # noqa: PLR0917
    year: int, month: int, day: int, clock: tuple[int, int, int], micros: int, digits: int
) -> bytes:
    hour, minute, second = clock
    packed = 1 << 39 | (year * 13 + month) << 22 | day << 17 | hour << 12 | minute << 6 | second
    return packed.to_bytes(5, "big") + fraction(micros, digits)


def time2(total_micros: int, digits: int) -> bytes:
    """The sign belongs to the whole number, fraction included."""
    seconds, micros = divmod(abs(total_micros), 1_000_000)
    size = (digits + 1) // 2
    packed = (seconds // 3600) << 12 | (seconds // 60 % 60) << 6 | seconds % 60
    number = packed << 8 * size | int.from_bytes(fraction(micros, digits), "big")
    number = -number if total_micros < 0 else number
    return (number + (0x80_0000 << 8 * size)).to_bytes(3 + size, "big")


class Opaque:
    """A JSON value of a column's type."""

    def __init__(self, kind: int, data: bytes) -> None:
        self.kind = kind
        self.data = data


def jsonb(document: Any) -> bytes:
    """A document in MySQL's binary form, large where small does not hold it."""
    kind, data = _json_value(document)
    return bytes([kind]) + data


def _json_size(size: int) -> bytes:
    out = bytearray()
    while True:
        size, low = size >> 7, size & 0x7F
        out.append(low | (0x80 if size else 0))
        if not size:
            return bytes(out)


def _json_value(value: Any) -> tuple[int, bytes]:
    if value is None or value is True or value is False:
        return 4, bytes([{None: 0, True: 1, False: 2}[value]])
    if isinstance(value, int):
        for kind, code, low, high in (
            (5, "<h", -(1 << 15), 1 << 15),
            (6, "<H", 0, 1 << 16),
            (7, "<i", -(1 << 31), 1 << 31),
            (8, "<I", 0, 1 << 32),
            (9, "<q", -(1 << 63), 1 << 63),
            (10, "<Q", 0, 1 << 64),
        ):
            if low <= value < high:
                return kind, struct.pack(code, value)
    if isinstance(value, float):
        return 11, struct.pack("<d", value)
    if isinstance(value, str):
        text = value.encode()
        return 12, _json_size(len(text)) + text
    if isinstance(value, Opaque):
        return 15, bytes([value.kind]) + _json_size(len(value.data)) + value.data
    for is_large in (False, True):
        data = _json_container(value, is_large=is_large)
        if is_large or len(data) < 1 << 16:
            return (0 if isinstance(value, dict) else 2) + is_large, data
    raise AssertionError


def _json_container(value: Any, *, is_large: bool) -> bytes:
    width, code = (4, "<I") if is_large else (2, "<H")
    items = list(value.items()) if isinstance(value, dict) else [(None, item) for item in value]
    keys = [key.encode() for key, _ in items if key is not None]
    head = 2 * width + len(keys) * (width + 2) + len(items) * (1 + width)
    offset = head
    entries, bodies = bytearray(), bytearray()
    for key in keys:
        entries += offset.to_bytes(max(width, 4), "little")[:width] + struct.pack("<H", len(key))
        bodies += key
        offset += len(key)
    for _, item in items:
        kind, data = _json_value(item)
        if kind in (4, 5, 6) or (is_large and kind in (7, 8)):
            inlined = data + (b"\xff" if kind == 5 and data[-1] & 0x80 else b"\0") * width
            entries += bytes([kind]) + inlined[:width]
        else:
            entries += bytes([kind]) + offset.to_bytes(max(width, 4), "little")[:width]
            bodies += data
            offset += len(data)
    if not is_large and offset >= 1 << 16:
        return bytes(offset)
    return struct.pack(code, len(items)) + struct.pack(code, offset) + bytes(entries) + bytes(bodies)


def json_text(value: Any) -> str:
    """What the server prints, from the model: not from the bytes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json_text(key)}: {json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(json_text(item) for item in value) + "]"
    if isinstance(value, str):
        short = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}
        return '"' + "".join(short.get(ord(c)) or (f"\\u{ord(c):04x}" if ord(c) < 32 else c) for c in value) + '"'
    if isinstance(value, Opaque):
        lines = base64.b64encode(value.data).decode()
        return f'"base64:type{value.kind}:' + "\\n".join(lines[at : at + 76] for at in range(0, len(lines), 76)) + '"'
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)
