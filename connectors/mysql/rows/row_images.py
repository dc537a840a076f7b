"""Decodes row images: each value becomes the server's own text, as a SELECT over utf8mb4 would print it. Pure.

`Reader` makes a function for one table, from generated code: the columns' steps one after the other, without a loop,
neighbours of a fixed size read at once. Where there is `connectors.mysql.binlog.compiled`, it does the same in C.
Layout of an image:

    null bits, one for each column that the image has, rounded up to bytes · values of the columns not null

| type | bytes |
|---|---|
| TINYINT … BIGINT | 1, 2, 3, 4, 8, little-endian |
| FLOAT, DOUBLE | 4, 8, little-endian |
| DECIMAL | big-endian groups of nine digits, see `server_text.decimal` |
| BIT | big-endian |
| DATE, YEAR | 3 (day 5 bits, month 4, year), 1 (since 1900; 0 is 0000) |
| TIME, DATETIME, TIMESTAMP | 3, 5, 4, big-endian, and up to 3 of fraction, see `texts` |
| CHAR, BINARY, VARCHAR, VARBINARY | size in 1 byte, 2 if the longest is over 255 · bytes without padding |
| TEXT, BLOB, JSON, GEOMETRY, VECTOR | size in 1 to 4 bytes · bytes |
| ENUM, SET | number of the label from 1, 0 for ''; a bit for each label |

https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Rows__event.html

What a text is where SELECT alone does not say it (`values.select_expression` gives the same):
FLOAT and DOUBLE are the number as a DOUBLE, BIT is a decimal number, no number is padded by ZEROFILL, BINARY(n) has its
zero bytes, TIMESTAMP is in UTC, GEOMETRY is SRID and WKB, VECTOR its float32s.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from struct import Struct
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from cdc.encode.built import built
from cdc.model.change import UNCHANGED, Change, Row, Table
from cdc.model.errors import OperatorError, ProtocolError
from connectors.mysql.binlog import charsets, table_map
from connectors.mysql.binlog.events import Rows, TableColumn, TableMap
from connectors.mysql.values import jsonb, server_text

T = TypeVar("T")

Images: TypeAlias = tuple[Row | None, Row | None]
"""Are the row before and after; None where the event has no such image."""

Read: TypeAlias = Callable[[bytes, int], tuple[Row, int]]
"""Returns a row and where the next begins."""

_SMALL_MAX: Final = 0xFF
"""The longest string whose size takes one byte."""
_FLAGS_MAX: Final = 1 << 16
"""How many entries a dictionary of SET texts may hold before it is emptied."""
_READS_MAX: Final = 256
"""Generated functions that are kept."""
_INFLATED_MAX: Final = 1 << 26
_INFLATED_RATIO: Final = 64
"""What MariaDB's COMPRESSED values of one event may come to: so many bytes, and so many for each byte of its rows."""


class Reader:
    """Decodes Rows events of `table`, row by row. Make one for each TableMap whose columns differ.

    Raises OperatorError if the log does not tell what is needed: signs, character sets, labels. Its methods raise
    ProtocolError on bytes that are no rows of this table, ValueError on text that is not valid in its character set.
    """

    def __init__(self, table: TableMap) -> None:
        self._columns = table.columns
        self._reads: dict[bytes, Read] = {}
        for column in self._columns:
            _form(column)  # refuse now, not at the first row

    def __call__(self, rows: Rows) -> list[Images]:
        """Return all images of one event."""
        before, after = self._of(rows)
        _ROOM.begin(rows.body)
        try:
            return _images(before, after, rows.body)
        except (IndexError, struct.error, OverflowError) as exc:
            raise ProtocolError(len(rows.body), "a row image that ends early") from exc

    def own(self, images: Iterable[Images]) -> Iterable[Images]:
        """Return images as they are: see `own_columns`."""
        return images

    def whole(self) -> Read:
        """Return what reads one image of all columns."""
        bits = (1 << len(self._columns)) - 1
        return self._image(bits.to_bytes((len(self._columns) + 7) // 8, "little"))

    def changes(self, rows: Rows, table: Table, offset: int) -> Iterable[Change]:
        """Return the images as changes of `table`; `offset` is where the event begins."""
        if compiled is None:
            made = enumerate(self(rows))
            return (tuple.__new__(Change, (rows.op, table, old, new, (offset, n))) for n, (old, new) in made)
        before, after = self._of(rows)
        _ROOM.begin(rows.body)
        try:
            found: list[Change] = compiled.changes(rows.op, table, before, after, rows.body, offset)
        except (IndexError, struct.error, OverflowError) as exc:
            raise ProtocolError(len(rows.body), "a row image that ends early") from exc
        return found

    def _of(self, rows: Rows) -> tuple[Read | None, Read | None]:
        if rows.column_count != len(self._columns):
            raise ProtocolError(0, f"rows of {rows.column_count} columns of a table of {len(self._columns)}")
        return self._image(rows.before) if rows.before else None, self._image(rows.after) if rows.after else None

    def _image(self, present: bytes) -> Read:
        read = self._reads.get(present)
        if read is None:
            if len(present) != (len(self._columns) + 7) // 8:
                raise ProtocolError(0, "rows with another number of columns than their table map")
            if not any(present):
                raise ProtocolError(0, "rows without a column")
            flags = tuple(bool(present[i >> 3] >> (i & 7) & 1) for i in range(len(self._columns)))
            read = self._reads[present] = _read(self._columns, flags)
        return read


def generated_images(before: Read | None, after: Read | None, body: bytes) -> list[Images]:
    """Read images by functions that `generated` has made."""
    end, at = len(body), 0
    images: list[Images] = []
    append = images.append
    if before is None and after is not None:
        while at < end:
            new, at = after(body, at)
            append((None, new))
    elif after is None and before is not None:
        while at < end:
            old, at = before(body, at)
            append((old, None))
    elif before is not None and after is not None:
        while at < end:
            old, at = before(body, at)
            new, at = after(body, at)
            append((old, new))
    if at != end:
        raise IndexError
    return images


class _Fixed(NamedTuple):
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


class _Sized(NamedTuple):
    """Reads a value with its size in front: the bytes of the size, and what makes text of it; None: it is text."""

    width: int
    text: Callable[[bytes], bytes] | None


def _number(code: str) -> _Fixed:
    return _Fixed(code, 'b"%d" % {x}', {}, ("unsigned" if code.isupper() else "signed", 0, 0))


def _raw(size: int, text: Callable[[bytes], bytes], known: str = "", first: int = 0, second: int = 0) -> _Fixed:
    return _Fixed(f"{size}s", "{f}({x})", {"f": text}, (known, first, second) if known else None)


_TINY: Final = {
    False: [b"%d" % n for n in (*range(128), *range(-128, 0))],
    True: [b"%d" % n for n in range(256)],
}
_YEARS: Final = [b"%04d" % (1900 + n if n else 0) for n in range(256)]
_UNPADDED: Final = (table_map.STRING, table_map.VAR_STRING, table_map.VARCHAR)


def _form(column: TableColumn) -> _Fixed | _Sized:
    """Return how a value of the column is read. Raises OperatorError."""
    kind = column.type
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
        return _Sized(column.meta, jsonb.text)
    if kind in (table_map.GEOMETRY, table_map.VECTOR):
        return _Sized(column.meta, None)
    if kind in _UNPADDED:
        return _string(column)
    if kind in table_map.TEXTS:
        size = 1 + (column.meta > _SMALL_MAX) if kind == table_map.VARCHAR_COMPRESSED else column.meta
        return _Sized(size, _text(column))
    raise OperatorError(f"column {column.name or '?'}: values of binlog type {kind} cannot be read")


def _told(column: TableColumn, value: T | None, what: str) -> T:
    if value is None:
        raise OperatorError(
            f"column {column.name or '?'}: the binlog does not say {what}", hint="SET GLOBAL binlog_row_metadata = FULL"
        )
    return value


def _integer(kind: int, unsigned: bool) -> _Fixed:  # noqa: FBT001
    if kind == table_map.TINY:
        return _Fixed("B", "{f}[{x}]", {"f": _TINY[unsigned]}, ("unsigned" if unsigned else "signed", 0, 0))
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


def _enum(size: int, labels: list[bytes]) -> _Fixed:
    return _Fixed("B" if size == 1 else "H", "{f}[{x}]", {"f": _Numbered(enumerate(labels))})


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


def _string(column: TableColumn) -> _Sized:
    text = _MARIADB_TYPES.get(column.declared)
    if text is None:
        text = _text(column)
        if column.type == table_map.STRING and column.charset == "binary":
            text = _padding(column.meta)
    return _Sized(1 + (column.meta > _SMALL_MAX), text)


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
        return _inflating(convert, most=(1 << 8 * width) - 1)
    return convert


def _named(convert: Callable[[bytes], bytes], name: str) -> Callable[[bytes], bytes]:
    def text(raw: bytes) -> bytes:
        try:
            return convert(raw)
        except ValueError as exc:
            raise ValueError(f"column {name}: {exc}") from None

    return text


class _Room:
    """Limits what the compressed values of one event may come to.

    A few bytes of zlib can stand for a thousand times as many, and an event holds many values: without a limit for all
    of them together, 400 kB would take 800 MB. Events are read one at a time, by one thread.
    """

    def __init__(self) -> None:
        self._left = _INFLATED_MAX

    def begin(self, body: bytes) -> None:
        self._left = _INFLATED_MAX + _INFLATED_RATIO * len(body)

    def take(self, size: int) -> None:
        if size > self._left:
            raise ProtocolError(0, f"a compressed value of {size} bytes, above what its event may come to")
        self._left -= size


_ROOM: Final = _Room()


def _inflating(convert: Callable[[bytes], bytes] | None, *, most: int) -> Callable[[bytes], bytes]:
    """Inflate MariaDB's COMPRESSED columns: u8 (method << 4 | is raw << 3 | bytes of size) · size · stream.

    `most`: the bytes of the column's longest value.
    """

    def text(raw: bytes) -> bytes:
        if raw:
            method, width = raw[0] >> 4, raw[0] & 7
            if method == 0:
                raw = raw[1:]
            elif method == 8:  # noqa: PLR2004 - zlib
                size = int.from_bytes(raw[1 : 1 + width], "big")
                if size > most:
                    raise ProtocolError(0, f"a compressed value of {size} bytes in a column of {most} at most")
                _ROOM.take(size)
                inflate = zlib.decompressobj(-zlib.MAX_WBITS if raw[0] & 8 else zlib.MAX_WBITS)
                try:
                    raw = inflate.decompress(raw[1 + width :], size + 1)
                except zlib.error as exc:
                    raise ProtocolError(0, "a compressed value that zlib cannot read") from exc
                if len(raw) != size:
                    raise ProtocolError(0, "a compressed value of another size")
            else:
                raise ProtocolError(0, f"a compressed value of method {method}")
        return raw if convert is None else convert(raw)

    return text


_PLAIN: Final[dict[int, _Fixed]] = {
    table_map.FLOAT: _Fixed("f", "{f}({x})", {"f": server_text.double}),
    table_map.DOUBLE: _Fixed("d", "{f}({x})", {"f": server_text.double}),
    table_map.DATE: _raw(3, server_text.date, "date"),
    table_map.NEWDATE: _raw(3, server_text.date, "date"),
    table_map.YEAR: _Fixed("B", "{f}[{x}]", {"f": _YEARS}),
    table_map.TIMESTAMP: _raw(4, server_text.old_timestamp),
    table_map.DATETIME: _raw(8, server_text.old_datetime),
    table_map.TIME: _raw(3, server_text.old_time),
}
_FRACTIONAL: Final = {
    table_map.TIME2: (3, server_text.time2, ""),
    table_map.DATETIME2: (5, server_text.datetime2, "datetime"),
    table_map.TIMESTAMP2: (4, server_text.timestamp2, "timestamp"),
}
_MARIADB_TYPES: Final[dict[str, Callable[[bytes], bytes]]] = {
    "uuid": server_text.uuid,
    "inet6": server_text.inet6,
    "inet4": server_text.inet4,
}
"""Types that the log has as BINARY, by what the catalog says of them."""


@lru_cache(maxsize=_READS_MAX)
def in_c(columns: Sequence[TableColumn], present: Sequence[bool]) -> Read:
    """Return what reads one image with these columns in it, if there is `compiled`."""
    assert compiled is not None  # noqa: S101 - by its callers
    told = [(form.known, form.code, form.text()) if isinstance(form, _Fixed) else form for form in map(_form, columns)]
    read: Read = compiled.Image(told, [column.nullable for column in columns], present)
    return read


@lru_cache(maxsize=_READS_MAX)
def generated(columns: Sequence[TableColumn], present: Sequence[bool]) -> Read:
    """Return the function that reads one image with these columns in it: the oracle of `in_c`."""
    source, names = _source(columns, present)
    exec(compile(source, "<row image>", "exec"), names)  # noqa: S102 - made of constants and numbers above
    read: Read = names["read"]
    return read


def _source(columns: Sequence[TableColumn], present: Sequence[bool]) -> tuple[str, dict[str, Any]]:
    """Write `def read(d, p)`: a branch for rows without NULL, one that asks for each nullable column."""
    names: dict[str, Any] = {"UNCHANGED": UNCHANGED}
    shown = [i for i, there in enumerate(present) if there]
    bits = {i: at for at, i in enumerate(shown)}
    nullable = {i for i in shown if columns[i].nullable}
    size = (len(shown) + 7) // 8
    mask = sum(1 << bits[i] for i in nullable)
    lines = [f"n = {_little_endian(size)}", f"p += {size}"]
    plain = _steps(columns, shown, frozenset(), bits, names)
    if nullable:
        lines += [
            f"if n & {mask}:",
            *_indented(_steps(columns, shown, nullable, bits, names)),
            "else:",
            *_indented(plain),
        ]
    else:
        lines += plain
    lines += ["if p > len(d): raise IndexError"]
    row = "".join(f"{f'v{i}' if there else 'UNCHANGED'}, " for i, there in enumerate(present))
    lines += [f"return ({row}), p"]
    return "\n".join(["def read(d, p):", *_indented(lines)]), names


def _little_endian(size: int) -> str:
    """Write a number of `size` bytes at `p`: up to three, bytes are faster put together by hand."""
    if size > 3:  # noqa: PLR2004
        return f"int.from_bytes(d[p:p+{size}], 'little')"
    return " | ".join(f"d[p+{i}] << {8 * i}" if i else "d[p]" for i in range(size))


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _steps(
    columns: Sequence[TableColumn],
    shown: Sequence[int],
    nullable: frozenset[int] | set[int],
    bits: dict[int, int],
    names: dict[str, Any],
) -> list[str]:
    lines: list[str] = []
    run: list[tuple[int, _Fixed]] = []

    def flush() -> None:
        if run:
            lines.extend(_fixed(run, names))
            run.clear()

    for i in shown:
        form = _form(columns[i])
        if i not in nullable and isinstance(form, _Fixed):
            run.append((i, form))
            continue
        flush()
        step = _fixed([(i, form)], names) if isinstance(form, _Fixed) else _sized(i, form, names)
        if i in nullable:
            lines += [f"if n & {1 << bits[i]}: v{i} = None", "else:", *_indented(step)]
        else:
            lines += step
    flush()
    return lines or ["pass"]


def _fixed(run: list[tuple[int, _Fixed]], names: dict[str, Any]) -> list[str]:
    layout = Struct("<" + "".join(form.code for _, form in run))
    unpack = f"u{len(names)}"
    names[unpack] = layout.unpack_from
    lines = [f"{', '.join(f'x{i}' for i, _ in run)}, = {unpack}(d, p)", f"p += {layout.size}"]
    for i, form in run:
        names.update({f"{name}{i}": value for name, value in form.names.items()})
        bound = {name: f"{name}{i}" for name in form.names}
        lines.append(f"v{i} = {form.expression.format(x=f'x{i}', **bound)}")
    return lines


def _sized(i: int, form: _Sized, names: dict[str, Any]) -> list[str]:
    width = form.width
    lines = [f"e = p + {width} + ({_little_endian(width)})"]
    value = f"d[p+{width}:e]"
    if form.text is not None:
        lines.append("if e > len(d): raise IndexError")
        names[f"f{i}"] = form.text
        value = f"f{i}({value})"
    return [*lines, f"v{i} = {value}", "p = e"]


compiled: Final = built("connectors.mysql.binlog.compiled")
_read: Final = generated if compiled is None else in_c
_images: Final[Callable[[Read | None, Read | None, bytes], list[Images]]] = (
    generated_images if compiled is None else compiled.images
)
