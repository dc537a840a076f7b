"""Turns MySQL's binary JSON into the text the server prints for it. Pure; bytes to bytes.

    document  u8 type · value
    0 1 object, 2 3 array   n · size · object: n × (key offset · u16 size) · n × (u8 type · offset) · keys · values
                            numbers and offsets are u16 in types 0 and 2, u32 in 1 and 3; offsets count from n
    4  literal              u8: 0 null, 1 true, 2 false            } in place of an offset where they fit in it
    5 6  int16, uint16      7 8  int32, uint32                     }
    9 10 int64, uint64      11 double
    12 string               size in 7-bit groups, lowest first · UTF-8
    15 opaque               u8 column type · size as of strings · bytes

https://dev.mysql.com/doc/dev/mysql-server/latest/json__binary_8h.html

Offsets could lead many values to the same bytes, so that a short document would stand for a text without end. The
server lays no two parts over each other, so all parts together are no longer than the document: what has been read is
counted, and a document of which more is read than it has is refused. Work and text are then bounded by its size.
"""

from __future__ import annotations

import re
from binascii import b2a_base64
from struct import Struct, error
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.mysql.values import server_text

_OBJECTS: Final = (0, 1)
_ARRAYS: Final = (2, 3)
_LITERAL, _INT16, _UINT16, _INT32, _UINT32, _INT64, _UINT64, _DOUBLE, _STRING = range(4, 13)
_OPAQUE: Final = 15
_LITERALS: Final = (b"null", b"true", b"false")
_NUMBERS: Final = {
    _INT16: Struct("<h"),
    _UINT16: Struct("<H"),
    _INT32: Struct("<i"),
    _UINT32: Struct("<I"),
    _INT64: Struct("<q"),
    _UINT64: Struct("<Q"),
}
_INT: Final = _NUMBERS[_INT64]
_FLOAT64: Final = Struct("<d")
_SMALL: Final = (Struct("<HH"), Struct("<HH"), Struct("<BH"), 2)
_LARGE: Final = (Struct("<II"), Struct("<IH"), Struct("<BI"), 4)
"""Count and size, key entry, value entry, bytes of an offset."""
_INLINED: Final = (frozenset({_LITERAL, _INT16, _UINT16}), frozenset({_LITERAL, _INT16, _UINT16, _INT32, _UINT32}))
_DEPTH_MAX: Final = 100
"""What the server allows."""
_SIZE_BYTES_MAX: Final = 5
_BASE64_LINE: Final = 57
"""Bytes of a line of the server's base64, whose line breaks it keeps."""

_NEWDECIMAL, _DATE, _TIME, _DATETIME, _TIMESTAMP = 246, 10, 11, 12, 7
_ESCAPES: Final = {
    **{bytes([code]): b"\\u%04x" % code for code in range(0x20)},
    b"\b": b"\\b",
    b"\t": b"\\t",
    b"\n": b"\\n",
    b"\f": b"\\f",
    b"\r": b"\\r",
    b'"': b'\\"',
    b"\\": b"\\\\",
}
_ESCAPED: Final = re.compile(rb'[\x00-\x1f"\\]').sub


def text(document: bytes) -> bytes:
    """Return the document as SELECT prints it. Raises ProtocolError."""
    if not document:
        return b"null"  # what ALTER TABLE and INSERT IGNORE leave in a column that is not nullable
    out: list[bytes] = []
    try:
        _value(_Document(document), document[0], 1, out, 0)
    except (IndexError, ValueError, error) as exc:
        raise ProtocolError(len(document), "a JSON document that ends early") from exc
    return b"".join(out)


class _Document:
    """Holds the bytes, and how many of them may still be read as parts: each of them is of one part."""

    __slots__ = ("data", "left")

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.left = len(data)

    def count(self, size: int, at: int) -> None:
        """Count a part of `size` bytes at `at`."""
        self.left -= size
        if self.left < 0:
            raise ProtocolError(at, "a JSON document whose parts lie over each other")

    def slice(self, at: int, size: int) -> bytes:
        self.count(size, at)
        if at + size > len(self.data):
            raise ProtocolError(len(self.data), "a JSON document that ends early")
        return self.data[at : at + size]


def _value(document: _Document, kind: int, at: int, out: list[bytes], depth: int) -> None:
    data = document.data
    if kind <= _ARRAYS[1]:
        _container(document, kind, at, out, depth + 1)
    elif kind == _STRING:
        size, at = _size(data, at)
        out.append(quoted(document.slice(at, size)))
    elif kind == _LITERAL:
        out.append(_LITERALS[data[at]])
    elif kind == _DOUBLE:
        out.append(_double(_FLOAT64.unpack_from(data, at)[0]))
    elif kind in _NUMBERS:
        out.append(b"%d" % _NUMBERS[kind].unpack_from(data, at)[0])
    elif kind == _OPAQUE:
        size, start = _size(data, at + 1)
        out.append(_opaque(data[at], document.slice(start, size)))
    else:
        raise ProtocolError(at, f"a JSON value of unknown type {kind}")


def _container(document: _Document, kind: int, start: int, out: list[bytes], depth: int) -> None:
    data = document.data
    if depth > _DEPTH_MAX:
        raise ProtocolError(start, "a JSON document of more than 100 levels")
    is_large = kind & 1
    head, key_entry, value_entry, _ = _LARGE if is_large else _SMALL
    inlined = _INLINED[is_large]
    count, size = head.unpack_from(data, start)
    if start + size > len(data):
        raise ProtocolError(start, "a JSON document that ends early")
    is_object = kind in _OBJECTS
    keys_at = start + head.size
    values_at = keys_at + count * key_entry.size if is_object else keys_at
    document.count(values_at + count * value_entry.size - start, start)
    out.append(b"{" if is_object else b"[")
    for i in range(count):
        if i:
            out.append(b", ")
        if is_object:
            key_offset, key_size = key_entry.unpack_from(data, keys_at + i * key_entry.size)
            out.append(quoted(document.slice(start + key_offset, key_size)))
            out.append(b": ")
        entry = values_at + i * value_entry.size
        of_kind, offset = value_entry.unpack_from(data, entry)
        _value(document, of_kind, entry + 1 if of_kind in inlined else start + offset, out, depth)
    out.append(b"}" if is_object else b"]")


def _size(data: bytes, at: int) -> tuple[int, int]:
    size = 0
    for i in range(_SIZE_BYTES_MAX):
        byte = data[at + i]
        size |= (byte & 0x7F) << 7 * i
        if byte < 0x80:  # noqa: PLR2004 - the group's continuation bit
            return size, at + i + 1
    raise ProtocolError(at, "a JSON size of more than five bytes")


def quoted(value: bytes) -> bytes:
    """Quote a string as the server does: the short escapes, other control characters by number, all else as it is."""
    return b'"%b"' % _ESCAPED(lambda match: _ESCAPES[match[0]], value)


def _double(value: float) -> bytes:
    """Print as a column does, but with a fraction where nothing else says that it is no integer."""
    digits = server_text.double(value)
    return digits if b"." in digits or b"e" in digits else digits + b".0"


def _opaque(kind: int, value: bytes) -> bytes:
    """Print a column's value of a type that JSON has not."""
    if kind == _NEWDECIMAL:
        precision, scale = value[0], value[1]
        if scale > precision or len(value) != 2 + server_text.decimal_size(precision, scale):
            raise ValueError("a decimal of another size")
        return server_text.decimal(precision, scale)(value[2:])
    if kind in (_DATE, _TIME, _DATETIME, _TIMESTAMP):
        (packed,) = _INT.unpack(value)
        if kind == _TIME:
            return b'"%b"' % server_text.packed_time(packed)
        second, micros = server_text.packed_datetime(packed)
        return b'"%b"' % second[:10] if kind == _DATE else b'"%b.%06d"' % (second, micros)
    lines = [b2a_base64(value[at : at + _BASE64_LINE], newline=False) for at in range(0, len(value), _BASE64_LINE)]
    return b'"base64:type%d:%b"' % (kind, b"\\n".join(lines))
