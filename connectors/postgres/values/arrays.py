r"""Turns array literals as PostgreSQL's array_out prints them into JSON arrays. Pure; bytes to bytes.

    array = [bounds "="] "{" [item {delimiter item}] "}"    bounds are printed where one is not 1
    item  = array | NULL | bare | '"' quoted '"'            quoted: empty, NULL as text, or has {}"\ space delimiter

An array with bounds becomes a JSON string of the server's text.
https://www.postgresql.org/docs/current/arrays.html#ARRAYS-IO
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, TypeAlias

from orjson import dumps

Encode: TypeAlias = Callable[[bytes], bytes]

_OPEN: Final = b"{"
_BRACKETS: Final = bytes.maketrans(b"{}", b"[]")


def of_integers(value: bytes) -> bytes:
    """Arrays of integers, of any depth: braces become brackets and that is all."""
    if value[:1] != _OPEN:
        return b'"%b"' % value
    return value.translate(_BRACKETS).replace(b"NULL", b"null")


def of_floats(element: Encode) -> Encode:
    """Encode arrays of floating point numbers: as integers, but for -0 and for NULL, NaN, Infinity (an N or a y)."""
    other = of(element, b",")

    def encode(value: bytes) -> bytes:
        special = b"N" in value or b"y" in value or b"-0" in value
        return other(value) if special else of_integers(value)

    return encode


def of_texts(element: Encode, delimiter: bytes) -> Encode:
    """Encode arrays of text: all at once where no element is quoted or NULL."""
    other, mark = of(element, delimiter), delimiter.decode()

    def encode(value: bytes) -> bytes:
        special = b'"' in value or b"NULL" in value or value.rfind(b"{") != 0 or value.find(b"}") != len(value) - 1
        if not special and value != b"{}":
            try:
                return dumps(value[1:-1].decode().split(mark))
            except UnicodeDecodeError:
                pass  # raised by `element`, because this error holds the value
        return other(value)

    return encode


def of(element: Encode, delimiter: bytes) -> Encode:
    """Encode arrays of what `element` encodes."""
    mark = re.escape(delimiter)
    items = re.compile(  # one item, the braces around it, the delimiter after it
        rb'(\{*+)(?:"([^"\\]*+(?:\\.[^"\\]*+)*+)"|([^"\\{}\s%b]++))(\}*+)(%b?)' % (mark, mark), re.DOTALL
    )

    def encode(value: bytes) -> bytes:
        if value[:1] != b"{":
            return _bounded(value)
        if value == b"{}":
            return b"[]"
        if b'"' in value or value.find(b"{", 1) > 0 or value[-1:] != b"}":
            return _nested(value, items, element)
        flat = value[1:-1].split(delimiter)
        return b"[%b]" % b",".join([b"null" if item == b"NULL" else element(item) for item in flat])

    return encode


def _bounded(value: bytes) -> bytes:
    try:
        if value[:1] == b"[":
            return dumps(value.decode())
    except UnicodeDecodeError:
        pass  # raised below, because the error holds the value
    raise ValueError("array is not as array_out prints it, or not valid UTF-8")


def _nested(value: bytes, items: re.Pattern[bytes], element: Encode) -> bytes:
    made: list[bytes] = []
    depth = size = 0
    after = b""
    for opens, quoted, bare, closes, after in items.findall(value):
        if bare:
            item = b"null" if bare == b"NULL" else element(bare)
            size += len(bare) + len(after)
        else:
            item = element(unescape(quoted) if b"\\" in quoted else quoted)
            size += len(quoted) + 2 + len(after)
        if opens or closes:
            size += len(opens) + len(closes)
            depth += len(opens)
            if not depth:
                break
            item = b"[" * len(opens) + item + b"]" * len(closes)
            depth -= len(closes)
        made.append(item)
        if not (depth > 0 and after):
            break
    if depth or after or size != len(value):
        raise ValueError("array is not as array_out prints it")
    return b",".join(made)


def unescape(text: bytes) -> bytes:
    """Remove backslashes before characters: what is between two escaped backslashes has no others to keep."""
    return b"\\".join([piece.replace(b"\\", b"") for piece in text.split(b"\\\\")])
