"""Protobuf's binary encoding of the typed JSON of a message, and back. Pure. https://protobuf.dev/programming-guides/encoding

| type | wire type | bytes |
|---|---|---|
| bool, int32, int64, uint64 | 0 | two's complement of 64 bits, seven bits a byte, the lowest first |
| double | 1 | little-endian |
| string, bytes, a message, a list of doubles | 2 | size, then the bytes |
| float | 5 | little-endian |

Fields are written in their message's order. A field that is null is left out; one that cannot be null is left out when
it is 0 or empty, as Protobuf's own libraries do. `packer` is what compiled code is compared with.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from cdc.formats.avro import shortest, unscaled
from cdc.formats.proto.proto_message import DECIMAL_MESSAGE, Field, Message
from cdc.formats.typed import INT32, INT64
from cdc.formats.varint import read_varint, varint
from cdc.model.errors import ProtocolError

Pack: TypeAlias = Callable[[Any], bytes]
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""From these bytes, at this offset: the value of the rest of them, and where it ends."""

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_UINT64: Final = (0, 2**64 - 1)
_VARINT, _FIXED64, _SIZED, _FIXED32 = 0, 1, 2, 5
_WIRE: Final = {
    "bool": _VARINT,
    "int32": _VARINT,
    "int64": _VARINT,
    "uint64": _VARINT,
    "double": _FIXED64,
    "float": _FIXED32,
}
_DEFAULTS: Final[Mapping[str, Any]] = {"string": "", "bytes": "", "bool": False}
_MANTISSA: Final = b"\x0a"
"""Before the digits of a Decimal."""
_SCALE: Final = 3 << 3
"""Before its scale."""


def tag(of: Field) -> bytes:
    """Return what stands before a field's value."""
    return varint(of.number << 3 | _wire(of))


def _wire(of: Field) -> int:
    return _SIZED if of.label == "repeated" else _WIRE.get(of.type, _SIZED)


def sized(value: bytes) -> bytes:
    """Put a value's size before it."""
    return varint(len(value)) + value


def packer(message: Message) -> Pack:
    """Make the function that encodes JSON objects of a message; it raises ValueError for those that are none."""
    fields = [
        (of.name, tag(of), value_packer(of), not of.label and of.message is None)
        for of in message.fields
        if not of.deprecated
    ]

    def pack(value: Mapping[str, Any]) -> bytes:
        parts: list[bytes] = []
        for name, before, pack_value, bare in fields:
            found = value.get(name)
            if found is not None and not (bare and found in ("", 0, False)):
                parts += (before, pack_value(found))
        return b"".join(parts)

    return pack


def value_packer(of: Field) -> Pack:
    """Make the function that encodes a field's value, without what stands before it."""
    if of.message is not None:
        inner = packer(of.message)
        return lambda value: sized(inner(value))
    if of.label == "repeated":
        return lambda value: sized(b"".join(_DOUBLE.pack(float(number)) for number in value))
    if of.type == DECIMAL_MESSAGE:
        scale, end = int(of.params["scale"]), decimal_end(of)
        return lambda value: sized(_MANTISSA + sized(unscaled(str(value), scale)) + end)
    return _PACK[of.type]


def decimal_end(of: Field) -> bytes:
    """Return what stands behind the digits of a Decimal: its precision and scale."""
    scale = int(of.params["scale"])
    return b"\x10" + varint(int(of.params["precision"])) + (b"\x18" + varint(scale & _UINT64[1]) if scale else b"")


def _whole(least: int, most: int) -> Pack:
    def pack(value: int) -> bytes:
        if type(value) is not int or not least <= value <= most:
            raise ValueError("not a number of its type")
        return varint(value & _UINT64[1])  # of two's complement

    return pack


_PACK: Final[Mapping[str, Pack]] = {
    "int32": _whole(*INT32),
    "int64": _whole(*INT64),
    "uint64": _whole(*_UINT64),
    "float": lambda value: _FLOAT.pack(float(value)),
    "double": lambda value: _DOUBLE.pack(float(value)),
    "bool": lambda value: b"\1" if value else b"\0",
    "string": lambda value: sized(value.encode()),
    "bytes": lambda value: sized(b64decode(value)),
}


def reader(message: Message) -> Read:
    """Make the function that reads a message, up to the end of the bytes. It raises ProtocolError for other bytes."""
    read = _reader(message)

    def checked(data: bytes, at: int) -> tuple[Any, int]:
        try:
            return read(data, at, len(data)), len(data)
        except (IndexError, struct.error, UnicodeDecodeError):
            pass  # which may hold values
        raise ProtocolError(at, "these bytes are not of their schema")

    return checked


_Inner: TypeAlias = Callable[[bytes, int, int], Any]
"""From these bytes, from an offset up to another."""


def _reader(message: Message) -> _Inner:
    present = [of for of in message.fields if not of.deprecated]
    known = {of.number: (of.name, _wire(of), _value_reader(of)) for of in present}
    empty = {of.name: _default(of) for of in present}

    def read(data: bytes, at: int, end: int) -> dict[str, Any]:
        found = dict(empty)
        while at < end:
            number, at = _number(data, at)
            begin, at = _skipped(data, at, number & 7)
            if at > end:
                raise IndexError
            name, wire, read_value = known.get(number >> 3, _UNKNOWN)
            if wire == number & 7:
                found[name] = read_value(data, begin, at)
        return found

    return read


_UNKNOWN: Final[tuple[str, int, _Inner]] = ("", -1, lambda *_: None)


def _default(of: Field) -> Any:  # noqa: ANN401 - JSON
    if of.label or of.message is not None or of.type == DECIMAL_MESSAGE:
        return None
    return _DEFAULTS.get(of.type, 0)


def _value_reader(of: Field) -> _Inner:
    if of.message is not None:
        return _reader(of.message)
    if of.label == "repeated":
        return _doubles
    return _decimal if of.type == DECIMAL_MESSAGE else _READ[of.type]


def _number(data: bytes, at: int) -> tuple[int, int]:
    number, at = read_varint(data, at)
    return number & _UINT64[1], at


def _skipped(data: bytes, at: int, wire: int) -> tuple[int, int]:
    """Return where a value begins and ends."""
    if wire == _VARINT:
        return at, _number(data, at)[1]
    if wire == _SIZED:
        size, at = _number(data, at)
        return at, at + size
    if wire not in (_FIXED32, _FIXED64):
        raise IndexError
    return at, at + (4 if wire == _FIXED32 else 8)


def _signed(data: bytes, at: int, _end: int) -> int:
    number, _ = _number(data, at)
    return number - 2**64 if number > INT64[1] else number


def _real(form: struct.Struct) -> Callable[[bytes, int, int], float | str]:
    def read(data: bytes, at: int, _end: int) -> float | str:
        (number,) = form.unpack_from(data, at)
        special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(number))
        return special or (shortest(number) if form is _FLOAT else number)

    return read


def _doubles(data: bytes, at: int, end: int) -> list[float | str]:
    read = _real(_DOUBLE)
    return [read(data, begin, end) for begin in range(at, end, 8)]


def _decimal(data: bytes, at: int, end: int) -> str:
    number = scale = 0
    while at < end:
        what, at = _number(data, at)
        begin, at = _skipped(data, at, what & 7)
        if what == _MANTISSA[0]:
            number = int.from_bytes(data[begin:at], "big", signed=True)
        elif what == _SCALE:
            scale = _signed(data, begin, at)
    if not 0 <= scale <= _MOST_DIGITS:
        raise IndexError
    digits, sign = str(abs(number)).rjust(scale + 1, "0"), "-" if number < 0 else ""
    return sign + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


_MOST_DIGITS: Final = 20_000
"""PostgreSQL's numeric has 16,383 behind the point."""

_READ: Final[Mapping[str, _Inner]] = {
    "bool": lambda data, at, _: _number(data, at)[0] != 0,
    "int32": _signed,
    "int64": _signed,
    "uint64": lambda data, at, _: _number(data, at)[0],
    "float": _real(_FLOAT),
    "double": _real(_DOUBLE),
    "string": lambda data, at, end: data[at:end].decode(),
    "bytes": lambda data, at, end: b64encode(data[at:end]).decode(),
}
