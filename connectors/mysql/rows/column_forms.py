"""How a value of each type stands in a row image, and what makes the server's text of it. Pure.

`connectors.mysql.rows.row_images` has the layout; a form is what generated and compiled code are made of.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple, TypeVar

from cdc.model.errors import OperatorError, ProtocolError
from connectors.mysql.binlog import charsets, table_map
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.rows.compressed_values import inflating
from connectors.mysql.values import jsonb, old_times, server_text

T = TypeVar("T")

_SMALL_MAX: Final = 0xFF
"""The longest string whose size takes one byte."""
_FLAGS_MAX: Final = 1 << 16
"""How many entries a dictionary of SET texts may hold before it is emptied."""


class Fixed(NamedTuple):
    """Reads a value of a fixed size: how struct reads it, and the text as an expression of what was read."""

    code: str
    expression: str
    names: dict[str, object]
    known: tuple[str, int, int] | None = None
    """What `compiled` calls the same, if it knows how to read it, and up to two numbers that it must be told."""

    def text(self) -> Callable[[Any], bytes]:
        """Return the expression as a function."""
        made: Callable[[Any], bytes] = eval(f"lambda x: {self.expression.format(x='x', f='f')}", dict(self.names))  # noqa: S307
        return made


class Sized(NamedTuple):
    """Reads a value with its size in front: the bytes of the size, and what makes text of it; None: it is text."""

    width: int
    text: Callable[[bytes], bytes] | None


def _number(code: str) -> Fixed:
    return Fixed(code, 'b"%d" % {x}', {}, ("unsigned" if code.isupper() else "signed", 0, 0))


def _raw(size: int, text: Callable[[bytes], bytes], known: str = "", first: int = 0, second: int = 0) -> Fixed:
    return Fixed(f"{size}s", "{f}({x})", {"f": text}, (known, first, second) if known else None)


_TINY: Final = {
    False: [b"%d" % n for n in (*range(128), *range(-128, 0))],
    True: [b"%d" % n for n in range(256)],
}
_YEARS: Final = [b"%04d" % (1900 + n if n else 0) for n in range(256)]
_UNPADDED: Final = (table_map.STRING, table_map.VAR_STRING, table_map.VARCHAR)


def form_of(column: TableColumn) -> Fixed | Sized:
    """Return how a value of the column is read. Raises OperatorError."""
    kind = column.type
    if kind in _OLD and column.meta:
        sizes, print_ = _OLD[kind]
        return _raw(sizes[column.meta], print_(column.meta))
    if kind in _PLAIN:
        return _PLAIN[kind]
    if kind in table_map.NUMBERS - {table_map.NEWDECIMAL, table_map.FLOAT, table_map.DOUBLE}:
        return _integer(kind, _told(column, column.unsigned, "whether it is unsigned"))
    if kind == table_map.NEWDECIMAL:
        precision, scale = column.meta >> 8, column.meta & 0xFF
        size, text = server_text.decimal_size(precision, scale), server_text.decimal(precision, scale)
        return _raw(size, text, "decimal", precision, scale)
    if kind in _FRACTIONAL:
        size, made, known = _FRACTIONAL[kind]
        return _raw(size + server_text.fraction_size(column.meta), made(column.meta), known, column.meta)
    if kind == table_map.BIT:
        return _raw((column.meta + 7) // 8, _big_endian)
    if kind == table_map.ENUM:
        return _enum(column.meta, [b"", *_labels(column)])
    if kind == table_map.SET:
        return _raw(column.meta, _Flags(_labels(column)).__getitem__)
    if kind == table_map.JSON:
        return Sized(column.meta, jsonb.text)
    if kind in (table_map.GEOMETRY, table_map.VECTOR):
        return Sized(column.meta, None)
    if kind in _UNPADDED:
        return _string(column)
    if kind in table_map.TEXTS:
        size = 1 + (column.meta > _SMALL_MAX) if kind == table_map.VARCHAR_COMPRESSED else column.meta
        return Sized(size, _text(column))
    raise OperatorError(f"column {column.name or '?'}: values of binlog type {kind} cannot be read")


def _told(column: TableColumn, value: T | None, what: str) -> T:
    if value is None:
        raise OperatorError(
            f"column {column.name or '?'}: the binlog does not say {what}", hint="SET GLOBAL binlog_row_metadata = FULL"
        )
    return value


def _integer(kind: int, unsigned: bool) -> Fixed:  # noqa: FBT001
    if kind == table_map.TINY:
        return Fixed("B", "{f}[{x}]", {"f": _TINY[unsigned]}, ("unsigned" if unsigned else "signed", 0, 0))
    if kind == table_map.INT24:
        return _raw(3, _uint24, "unsigned") if unsigned else _raw(3, _int24, "signed")
    code = {table_map.SHORT: "h", table_map.LONG: "i", table_map.LONGLONG: "q"}[kind]
    return _number(code.upper() if unsigned else code)


def _uint24(raw: bytes) -> bytes:
    return b"%d" % int.from_bytes(raw, "little")


def _int24(raw: bytes) -> bytes:
    return b"%d" % int.from_bytes(raw, "little", signed=True)


def _big_endian(raw: bytes) -> bytes:
    return b"%d" % int.from_bytes(raw, "big")


def _labels(column: TableColumn) -> list[bytes]:
    if column.labels is None and column.charset is not None:
        _text(column)  # labels in a character set that is not known are left out
    return [label.encode() for label in _told(column, column.labels, "which labels it has")]


class _Numbered(dict[int, bytes]):
    """Maps an ENUM's numbers to its labels."""

    def __missing__(self, number: int) -> bytes:
        raise ProtocolError(0, "an ENUM with a label that its column has not")


def _enum(size: int, labels: list[bytes]) -> Fixed:
    return Fixed("B" if size == 1 else "H", "{f}[{x}]", {"f": _Numbered(enumerate(labels))})


class _Flags(dict[bytes, bytes]):
    """Maps a SET's bits to its labels, in the order of their definition."""

    def __init__(self, labels: list[bytes]) -> None:
        self._labels = labels

    def __missing__(self, raw: bytes) -> bytes:
        bits = int.from_bytes(raw, "little")
        if bits >> len(self._labels):
            raise ProtocolError(0, "a SET with a label that its column has not")
        if len(self) >= _FLAGS_MAX:
            self.clear()
        self[raw] = text = b",".join(label for i, label in enumerate(self._labels) if bits >> i & 1)
        return text


def _string(column: TableColumn) -> Sized:
    text = _MARIADB_TYPES.get(column.declared)
    if text is None:
        text = _text(column)
        if column.type == table_map.STRING and column.charset == "binary":
            text = _padding(column.meta)
    return Sized(1 + (column.meta > _SMALL_MAX), text)


def _padding(size: int) -> Callable[[bytes], bytes]:
    return lambda raw: raw.ljust(size, b"\0")


def _text(column: TableColumn) -> Callable[[bytes], bytes] | None:
    charset = _told(column, column.charset, "its character set")
    try:
        convert = charsets.to_utf8(charset)
    except LookupError as exc:
        raise OperatorError(
            f"column {column.name or '?'}: {exc.args[0]}", hint="leave the table out, or convert it"
        ) from exc
    if convert is not None:
        convert = _named(convert, column.name or "?")
    if column.type in (table_map.BLOB_COMPRESSED, table_map.VARCHAR_COMPRESSED):
        width = column.meta if column.type == table_map.BLOB_COMPRESSED else 2
        return inflating(convert, most=(1 << 8 * width) - 1)
    return convert


def _named(convert: Callable[[bytes], bytes], name: str) -> Callable[[bytes], bytes]:
    def text(raw: bytes) -> bytes:
        try:
            return convert(raw)
        except ValueError as exc:
            raise ValueError(f"column {name}: {exc}") from None

    return text


_PLAIN: Final[dict[int, Fixed]] = {
    table_map.FLOAT: Fixed("f", "{f}({x})", {"f": server_text.double}),
    table_map.DOUBLE: Fixed("d", "{f}({x})", {"f": server_text.double}),
    table_map.DATE: _raw(3, server_text.date, "date"),
    table_map.NEWDATE: _raw(3, server_text.date, "date"),
    table_map.YEAR: Fixed("B", "{f}[{x}]", {"f": _YEARS}),
    table_map.TIMESTAMP: _raw(4, server_text.old_timestamp),
    table_map.DATETIME: _raw(8, server_text.old_datetime),
    table_map.TIME: _raw(3, server_text.old_time),
}
_FRACTIONAL: Final = {
    table_map.TIME2: (3, server_text.time2, ""),
    table_map.DATETIME2: (5, server_text.datetime2, "datetime"),
    table_map.TIMESTAMP2: (4, server_text.timestamp2, "timestamp"),
}
_OLD: Final = {
    table_map.TIME: (old_times.TIME_BYTES, old_times.time),
    table_map.DATETIME: (old_times.DATETIME_BYTES, old_times.datetime),
    table_map.TIMESTAMP: (old_times.TIMESTAMP_BYTES, old_times.timestamp),
}
"""With as many digits of a fraction as the catalog says (MariaDB)."""
_MARIADB_TYPES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "uuid": server_text.uuid,
    "inet6": server_text.inet6,
    "inet4": server_text.inet4,
}
"""Types that the log has as BINARY, by what the catalog says of them."""
