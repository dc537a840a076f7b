r"""Turns values of SQLite into the text that the other sources give, and that into JSON. Pure.

A row's image is what SQLite's `quote` makes of its columns, with commas between them: a function that every version
has, because the application's own library runs the triggers. A text that has a NUL, where `quote` would end, is written
as `T` and the literal of its bytes.

| storage class | literal | the value's text |
|---|---|---|
| NULL | ``NULL`` | none |
| INTEGER | ``12`` | ``12`` |
| REAL | ``1.5``, ``Inf``, ``9.0e+999`` | the shortest digits that read back; ``Infinity`` |
| TEXT | ``'it''s'`` | its bytes, which are UTF-8 unless somebody wrote others; ``'69`` in a key of bytes |
| BLOB | ``X'00FF'`` | ``\x00ff`` in a column of bytes; in others a text that no encoder takes |

A column of SQLite may hold values of any class, unless its table is STRICT. What does not fit the declared type is
refused by the column's encoder, as any value is that has no JSON.
"""

from __future__ import annotations

import math
import re
from binascii import b2a_base64, unhexlify
from collections.abc import Callable, Sequence
from typing import Final

from cdc.encode.json_text import text
from cdc.model.change import Column, Kind, Row, Value
from cdc.model.errors import BugError

_LITERAL: Final = re.compile(rb"NULL|'((?:[^']|'')*)'|(T?)X'([0-9A-Fa-f]*)'|([^,']+)")
_INTEGER: Final = re.compile(rb"-?\d+").fullmatch
_NUMBER: Final = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?").fullmatch
_NO_TEXT: Final = b"\xff"
"""Begins what is no text of its column: no UTF-8 begins so, and every encoder refuses it."""
_HEX: Final = b"\\x"
_QUOTE: Final = b"'"
"""Begins a text of a key of bytes, in hex: it sorts before blobs, as in SQLite, and is another key than one of them."""
_COMMA: Final = ord(",")

INTEGER: Final = "integer"
"""The type of a column that can hold nothing but integers: the table's rowid, or a column of a STRICT table."""


def affinity(declared: str) -> str:
    """Return the affinity of a declared type, by the rules of https://www.sqlite.org/datatype3.html#determination."""
    name = declared.upper()
    if "INT" in name:
        return "integer"
    if any(part in name for part in ("CHAR", "CLOB", "TEXT")):
        return "text"
    if "BLOB" in name or not name:
        return "blob"
    if any(part in name for part in ("REAL", "FLOA", "DOUB")):
        return "real"
    return "numeric"


def column(name: str, declared: str, *, integers: bool, key: bool = False) -> Column:
    """Return the column, its kind and encoder. `integers`: it can hold nothing else. `key`: it is of the key."""
    kind, encode = _codec(declared)
    if key and encode is binary:
        encode = key_binary
    type_ = declared.lower() or "any"
    if integers:
        type_ = INTEGER
    elif affinity(declared) == "integer":
        type_ = f"{type_} affinity"  # it may hold a text
    return Column(name, type_, kind, encode)


def integer(value: bytes) -> bytes:
    """Encode digits."""
    if _INTEGER(value) is None:
        raise ValueError("not an integer")
    return value


def floating(value: bytes) -> bytes:
    """Encode the shortest digits; Infinity and -Infinity, which JSON has not, as strings."""
    if value in (b"Infinity", b"-Infinity"):
        return b'"%b"' % value
    if _NUMBER(value) is None:
        raise ValueError("not a number")
    return value


def decimal(value: bytes) -> bytes:
    """Encode a number's digits as a string."""
    if _NUMBER(value) is None:
        raise ValueError("not a number")
    return b'"%b"' % value


def boolean(value: bytes) -> bytes:
    """Encode 0 and 1."""
    if value in (b"0", b"1"):
        return b"true" if value == b"1" else b"false"
    raise ValueError("boolean is neither 0 nor 1")


def binary(value: bytes) -> bytes:
    """Encode bytes as base64."""
    if value[:2] != _HEX:
        raise ValueError("not bytes")
    return b'"%b"' % b2a_base64(unhexlify(value[2:]), newline=False)


def key_binary(value: bytes) -> bytes:
    """Encode a blob of a key, or a text, as its bytes."""
    return binary(_HEX + value[1:] if value[:1] == _QUOTE else value)


_BY_AFFINITY: Final[dict[str, tuple[Kind, Callable[[bytes], bytes]]]] = {
    "integer": (Kind("int64"), integer),
    "real": (Kind("float64"), floating),
    "text": (Kind("string"), text),
    "blob": (Kind("bytes"), binary),
    "numeric": (Kind("string"), text),
}
_NAMED: Final[dict[str, tuple[Kind, Callable[[bytes], bytes]]]] = {
    "BOOLEAN": (Kind("boolean"), boolean),
    "BOOL": (Kind("boolean"), boolean),
    "DECIMAL": (Kind("decimal"), decimal),
    "NUMERIC": (Kind("decimal"), decimal),
    "JSON": (Kind("json"), text),
    "JSONB": (Kind("bytes"), binary),
    "": (Kind("string"), text),
    "ANY": (Kind("string"), text),
}


def _codec(declared: str) -> tuple[Kind, Callable[[bytes], bytes]]:
    name = declared.upper().partition("(")[0].strip()
    return _NAMED.get(name) or _BY_AFFINITY[affinity(declared)]


def row(image: bytes, columns: Sequence[Column]) -> Row:
    """Read a row's image. Raises BugError if it is not of these columns."""
    values: list[Value] = []
    at = 0
    for number, of in enumerate(columns):
        found = _LITERAL.match(image, at + bool(number))
        if found is None or (number and image[at] != _COMMA):
            raise BugError(f"a row's image breaks off before column {of.name}")
        values.append(_value(found, of))
        at = found.end()
    if at != len(image):
        raise BugError("a row's image has more columns than its table")
    return tuple(values)


def _value(found: re.Match[bytes], of: Column) -> Value:
    quoted, is_text, hexadecimal, number = found.groups()
    packed = of.kind.name == "bytes"
    if quoted is not None or is_text:
        raw = quoted.replace(b"''", b"'") if quoted is not None else unhexlify(hexadecimal)
        if of.encode is key_binary:
            return _QUOTE + raw.hex().encode()
        return _HEX + raw.hex().encode() if packed else raw
    if hexadecimal is not None:
        return (_HEX if packed else _NO_TEXT) + hexadecimal.lower()
    if number is None:
        return None
    plain = number if _INTEGER(number) is not None else _shortest(number)
    return _NO_TEXT + plain if packed else plain


def _shortest(number: bytes) -> bytes:
    of = float(number)
    if math.isinf(of):
        return b"Infinity" if of > 0 else b"-Infinity"
    return repr(of).encode()


def parameter(value: bytes, of: Column) -> tuple[str, float | bytes]:
    """Return a key's value, and what stands for it: what SQLite compares with the column as the value itself.

    A text goes by its bytes, for it may be no UTF-8. The plus takes the affinity of CAST away: the column's goes.
    """
    if of.type == INTEGER:
        return "?", int(value)
    if value[:1] == _NO_TEXT:
        rest = value[1:]
        if of.kind.name != "bytes":
            return "?", unhexlify(rest)
        return "?", int(rest) if _INTEGER(rest) else float(rest)
    if of.kind.name != "bytes":
        return "+CAST(? AS TEXT)", value
    return ("+CAST(? AS TEXT)", unhexlify(value[1:])) if value[:1] == _QUOTE else ("?", unhexlify(value[2:]))
