"""Avro's binary encoding of the typed JSON of a schema, and back. Pure. https://avro.apache.org/docs/1.12.0/specification/

| type | bytes |
|---|---|
| int, long | zig-zag, seven bits a byte, the lowest first |
| float, double | little-endian |
| string, bytes | size, then the bytes; a decimal: two's complement, the highest byte first |
| record | its fields |
| array | how many, the items, 0 |
| union | which one, then the value |

`packer` is what compiled code is compared with. `reader` reads what was written by any schema of ours.
"""

from __future__ import annotations

import struct
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias

from cdc.formats.schema import DECIMAL, ORIGINAL, Schema
from cdc.formats.typed import INT32, INT64
from cdc.formats.varint import read_varint, varint
from cdc.model.errors import ProtocolError

Pack: TypeAlias = Callable[[Any], bytes]
Read: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""From these bytes, at this offset: the value, and where it ends."""

_FLOAT: Final = struct.Struct("<f")
_DOUBLE: Final = struct.Struct("<d")
_NULL_BRANCH: Final = b"\0"
_VALUE_BRANCH: Final = b"\2"


def long(number: int) -> bytes:
    """Encode a whole number."""
    return varint((number << 1) ^ (number >> 63))


def packer(schema: Schema) -> Pack:
    """Make the function that encodes JSON values of a schema; it raises ValueError for those that are none."""
    inner = _packer(schema)
    if not schema.optional:
        return inner
    return lambda value: _NULL_BRANCH if value is None else _VALUE_BRANCH + inner(value)


def _packer(schema: Schema) -> Pack:
    if schema.name == DECIMAL:
        return _decimal(int(schema.parameters["scale"]))
    if schema.type == "struct":
        fields = [(name, packer(of)) for name, of in schema.fields]
        return lambda value: b"".join(pack(value.get(name)) for name, pack in fields)
    if schema.items is not None:
        item = packer(schema.items)
        return lambda value: (long(len(value)) + b"".join(map(item, value)) if value else b"") + b"\0"
    return _SIMPLE[schema.type]


def _whole(least: int, most: int) -> Pack:
    def pack(value: int) -> bytes:
        if type(value) is not int or not least <= value <= most:
            raise ValueError("not a number of its type")
        return long(value)

    return pack


def _sized(value: bytes) -> bytes:
    return long(len(value)) + value


def _decimal(scale: int) -> Pack:
    def pack(value: str | int) -> bytes:
        return _sized(unscaled(str(value), scale))

    return pack


def unscaled(text: str, scale: int) -> bytes:
    """Return the digits of a decimal as a number of bytes. Raises ValueError for what is no number of the scale."""
    whole, _, fraction = text.partition(".")
    if not (whole.removeprefix("-") + fraction).isdecimal() or len(fraction) > scale:
        raise ValueError("not a decimal of its scale")
    number = int(whole + fraction.ljust(scale, "0"))
    return number.to_bytes((number if number >= 0 else ~number).bit_length() // 8 + 1, "big", signed=True)


_SIMPLE: Final[Mapping[str, Pack]] = {
    "int16": _whole(*INT32),
    "int32": _whole(*INT32),
    "int64": _whole(*INT64),
    "float32": lambda value: _FLOAT.pack(float(value)),
    "float64": lambda value: _DOUBLE.pack(float(value)),
    "boolean": lambda value: b"\1" if value else b"\0",
    "string": lambda value: _sized(value.encode()),
    "bytes": lambda value: _sized(b64decode(value)),
}


def reader(schema: Any) -> Read:  # noqa: ANN401 - JSON
    """Make the function that reads values by a schema of Avro. It raises ProtocolError for bytes that are none."""
    read = _reader(schema, {})

    def checked(data: bytes, at: int) -> tuple[Any, int]:
        try:
            return read(data, at)
        except (IndexError, struct.error, UnicodeDecodeError, RecursionError):
            pass  # which may hold values
        raise ProtocolError(at, "these bytes are not of their schema")

    return checked


def _reader(schema: Any, known: dict[str, Read]) -> Read:  # noqa: ANN401 - JSON
    if isinstance(schema, list):
        forms = [_reader(form, known) for form in schema]

        def of_union(data: bytes, at: int) -> tuple[Any, int]:
            which, at = _long(data, at)
            if which < 0:
                raise IndexError
            return forms[which](data, at)

        return of_union
    if isinstance(schema, str):
        return known.get(schema) or _READ[schema]
    type_ = schema["type"]
    if type_ == "record":
        return _record(schema, known)
    if type_ == "array":
        return _array(_reader(schema["items"], known))
    if schema.get("logicalType") == "decimal":
        return _read_decimal(schema["scale"], whole=schema["scale"] == 0)
    return _READ[type_] if isinstance(type_, str) else _reader(type_, known)


def _record(schema: Mapping[str, Any], known: dict[str, Read]) -> Read:
    fields: list[tuple[str, Read]] = []

    def read(data: bytes, at: int) -> tuple[Any, int]:
        found = {}
        for name, of in fields:
            found[name], at = of(data, at)
        return found, at

    namespace = schema.get("namespace")
    known[f"{namespace}.{schema['name']}" if namespace else schema["name"]] = read
    fields += [(field.get(ORIGINAL, field["name"]), _reader(field["type"], known)) for field in schema["fields"]]
    return read


def _array(item: Read) -> Read:
    def read(data: bytes, at: int) -> tuple[Any, int]:
        found: list[Any] = []
        count, at = _long(data, at)
        while count:
            if count < 0:
                count, (_, at) = -count, _long(data, at)
            if count > len(data) - at:  # an item of ours has a byte
                raise IndexError
            for _ in range(count):
                value, at = item(data, at)
                found.append(value)
            count, at = _long(data, at)
        return found, at

    return read


def _long(data: bytes, at: int) -> tuple[int, int]:
    number, at = read_varint(data, at)
    return (number >> 1) ^ -(number & 1), at


def _bytes(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = _long(data, at)
    if not 0 <= size <= len(data) - at:
        raise IndexError
    return data[at : at + size], at + size


def _text(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return found.decode(), at


def _base64(data: bytes, at: int) -> tuple[str, int]:
    found, at = _bytes(data, at)
    return b64encode(found).decode(), at


def _read_decimal(scale: int, *, whole: bool) -> Read:
    def read(data: bytes, at: int) -> tuple[str | int, int]:
        found, at = _bytes(data, at)
        number = int.from_bytes(found, "big", signed=True)
        digits = str(abs(number)).rjust(scale + 1, "0")
        sign = "-" if number < 0 else ""
        return sign + (digits if whole else f"{digits[:-scale]}.{digits[-scale:]}"), at

    return read


def _read_number(form: struct.Struct) -> Read:
    def read(data: bytes, at: int) -> tuple[float | str, int]:
        (number,) = form.unpack_from(data, at)
        if form is _FLOAT and number - number == 0:
            number = shortest(number)
        special = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}.get(repr(number))
        return special or number, at + form.size

    return read


def shortest(number: float) -> float:
    """Return the number of the fewest digits that is the same float of 32 bits."""
    for digits in range(6, 9):
        shorter = float(f"{number:.{digits}g}")
        try:
            if _FLOAT.unpack(_FLOAT.pack(shorter))[0] == number:
                return shorter
        except OverflowError:
            pass  # rounded above the greatest one
    return float(f"{number:.9g}")


_READ: Final[Mapping[str, Read]] = {
    "null": lambda _, at: (None, at),
    "boolean": lambda data, at: (data[at] != 0, at + 1),
    "int": _long,
    "long": _long,
    "float": _read_number(_FLOAT),
    "double": _read_number(_DOUBLE),
    "string": _text,
    "bytes": _base64,
}
