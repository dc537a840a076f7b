"""Turns values of MySQL and MariaDB from the server's text into JSON text, type by type. Pure; bytes to bytes.

The text is what `rows.Reader` makes of the log and what a SELECT prints, if the session has the `session_settings` and
selects each column by its `select_expression`. NULL never comes here.

| type | kind | JSON |
|---|---|---|
| tinyint, smallint; smallint unsigned, mediumint, int; int unsigned, bigint | int16; int32; int64 | integer |
| bigint unsigned | uint64 | integer |
| decimal(p,s) | decimal | string of the server's digits |
| float, double | float32, float64 | shortest number that reads back |
| bit(1); bit(n) | boolean; int64, uint64 for 64 bits | true, false; integer |
| year, date, time | int16, date, time_micros | integer; see `temporal` |
| datetime(0..3), datetime(4..6), timestamp | timestamp_millis, timestamp_micros, timestamptz | see `temporal` |
| char, varchar, text, enum, set, uuid, inet4, inet6 | string | string |
| binary, varbinary, blob | bytes | base64 |
| json | json | string that holds the server's text |
| geometry and its kinds | geometry | ``{"wkb": base64, "srid": integer}`` |
| vector | vector | array of numbers |

Encoders trust the server for what the type itself rules out and raise ValueError, without the value, for the rest.
"""

from __future__ import annotations

import re
import struct
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Final, TypeAlias

from cdc.encode.json_text import FORMS, PACKED, as_is, quoted, text
from cdc.model.change import Column, Kind
from cdc.model.errors import OperatorError
from connectors.json_values import bit
from connectors.mysql.binlog import charsets, table_map
from connectors.mysql.binlog.events import TableColumn, TableMap
from connectors.mysql.values import temporal

Encode: TypeAlias = Callable[[bytes], bytes]

_MILLIS_DIGITS: Final = 3
_BIGGEST_BIT: Final = 64
_SRID_SIZE: Final = 4
_WKB_HEAD: Final = 5
_FLOAT32_NORMAL: Final = 2.0**-126
"""From here on six digits always survive a float32; below it fewer may do."""


def floating(value: bytes) -> bytes:
    """Encode a double; minus zero gets a fraction, because readers take ``-0`` for an integer, which has no sign."""
    return value if value != b"-0" else b"-0.0"


@lru_cache(maxsize=65_536)
def floating32(value: bytes) -> bytes:
    """Encode the fewest digits that read back to the float32 which this double is."""
    return _shortest32(float(value))


def _shortest32(number: float) -> bytes:
    if number == 0:
        return b"-0.0" if struct.pack("<f", number)[-1] else b"0"
    if number != number or number in (float("inf"), float("-inf")):  # noqa: PLR0124 - not a number
        return {"nan": b'"NaN"', "inf": b'"Infinity"', "-inf": b'"-Infinity"'}[repr(number)]
    for digits in range(6 if abs(number) >= _FLOAT32_NORMAL else 1, 9):
        shorter = f"{number:.{digits}g}"
        try:
            if struct.unpack("<f", struct.pack("<f", float(shorter)))[0] == number:
                return shorter.encode()
        except OverflowError:
            pass  # rounded above the greatest float
    return f"{number:.9g}".encode()


def year(value: bytes) -> bytes:
    """Encode a year; ``0000`` is 0."""
    return b"%d" % int(value)


def binary(value: bytes) -> bytes:
    """Encode as base64."""
    return b'"%b"' % b2a_base64(value, newline=False)


def geometry(value: bytes) -> bytes:
    """Encode SRID, little-endian, and WKB, as the servers store and send it."""
    if len(value) < _SRID_SIZE + _WKB_HEAD:
        raise ValueError("geometry is not SRID and WKB")
    srid = int.from_bytes(value[:_SRID_SIZE], "little")
    return b'{"wkb":"%b","srid":%d}' % (b2a_base64(value[_SRID_SIZE:], newline=False), srid)


def vector(value: bytes) -> bytes:
    """Encode float32s, little-endian."""
    if len(value) % 4:
        raise ValueError("vector is not float32s")
    numbers = struct.unpack(f"<{len(value) // 4}f", value)
    return b"[%b]" % b",".join(map(_shortest32, numbers))


PACKED[binary] = "raw"
FORMS.update({
    bit: "one_or_zero", floating: "double", temporal.date: "days", temporal.date_or_null: "days",
    temporal.datetime_millis: "millis", temporal.datetime_millis_or_null: "millis",
    temporal.datetime_micros: "micros", temporal.datetime_micros_or_null: "micros",
    temporal.timestamp: "instant", temporal.timestamp_or_null: "instant", temporal.time: "clock",
})  # fmt: skip


def column(told: TableColumn) -> Column:
    """Return the column, its kind and encoder. Raises OperatorError if the log did not tell what is needed."""
    if told.name is None:
        raise OperatorError("the binlog does not name its columns", hint="SET GLOBAL binlog_row_metadata = FULL")
    kind, encode = _codec(told)
    return Column(told.name, printed(told), kind, encode)


_INTEGERS: Final = {
    table_map.TINY: ("tinyint", "int16", "int16"),
    table_map.SHORT: ("smallint", "int16", "int32"),
    table_map.INT24: ("mediumint", "int32", "int32"),
    table_map.LONG: ("int", "int32", "int64"),
    table_map.LONGLONG: ("bigint", "int64", "uint64"),
}
"""Name, and the kind of its values with and without a sign."""
_STRINGS: Final = (table_map.STRING, table_map.VAR_STRING, table_map.VARCHAR, table_map.VARCHAR_COMPRESSED)
_SIZES: Final = ("", "tiny", "", "medium", "long")
_GEOMETRIES: Final = (
    "geometry",
    "point",
    "linestring",
    "polygon",
    "multipoint",
    "multilinestring",
    "multipolygon",
    "geometrycollection",
)
_NAMED: Final = ("uuid", "inet4", "inet6")
"""Types of MariaDB that the log has as BINARY: only the catalog tells them."""


def _codec(told: TableColumn) -> tuple[Kind, Encode]:
    kind = told.type
    if kind in _INTEGERS:
        _, signed, unsigned = _INTEGERS[kind]
        return Kind(unsigned if told.unsigned else signed), as_is
    if kind == table_map.NEWDECIMAL:
        return Kind("decimal", told.meta >> 8, told.meta & 0xFF), quoted
    if kind == table_map.BIT:
        if told.meta == 1:
            return Kind("boolean"), bit
        return Kind("uint64" if told.meta == _BIGGEST_BIT else "int64"), as_is
    if kind in (table_map.DATETIME2, table_map.DATETIME):
        if told.meta <= _MILLIS_DIGITS:
            encode = temporal.datetime_millis_or_null if told.nullable else temporal.datetime_millis
            return Kind("timestamp_millis"), encode
        encode = temporal.datetime_micros_or_null if told.nullable else temporal.datetime_micros
        return Kind("timestamp_micros"), encode
    if kind in (table_map.TIMESTAMP2, table_map.TIMESTAMP):
        return Kind("timestamptz"), temporal.timestamp_or_null if told.nullable else temporal.timestamp
    if kind in (table_map.DATE, table_map.NEWDATE):
        return Kind("date"), temporal.date_or_null if told.nullable else temporal.date
    if told.declared in _NAMED:
        return Kind("string"), quoted
    if kind in table_map.TEXTS:
        return (Kind("bytes"), binary) if told.charset == "binary" else (Kind("string"), text)
    if kind in _OTHERS:
        return _OTHERS[kind]
    raise OperatorError(f"column {told.name}: values of binlog type {kind} cannot be read")


_OTHERS: Final[dict[int, tuple[Kind, Encode]]] = {
    table_map.FLOAT: (Kind("float32"), floating32),
    table_map.DOUBLE: (Kind("float64"), floating),
    table_map.YEAR: (Kind("int16"), year),
    table_map.TIME2: (Kind("time_micros"), temporal.time),
    table_map.TIME: (Kind("time_micros"), temporal.time),
    table_map.ENUM: (Kind("string"), text),
    table_map.SET: (Kind("string"), text),
    table_map.JSON: (Kind("json"), text),
    table_map.GEOMETRY: (Kind("geometry"), geometry),
    table_map.VECTOR: (Kind("vector"), vector),
}
_FRACTIONAL: Final = {
    table_map.TIME2: "time",
    table_map.DATETIME2: "datetime",
    table_map.TIMESTAMP2: "timestamp",
    table_map.TIME: "time",
    table_map.DATETIME: "datetime",
    table_map.TIMESTAMP: "timestamp",
}


def printed(told: TableColumn) -> str:
    """Print the type, the same from log and catalog: no display widths, no ZEROFILL, no character set."""
    kind = told.type
    sign = " unsigned" if told.unsigned else ""
    if told.declared in _NAMED:
        return told.declared
    if kind in _INTEGERS:
        return _INTEGERS[kind][0] + sign
    if kind == table_map.NEWDECIMAL:
        return f"decimal({told.meta >> 8},{told.meta & 0xFF}){sign}"
    if kind in (table_map.FLOAT, table_map.DOUBLE):
        return ("float" if kind == table_map.FLOAT else "double") + sign
    if kind in _FRACTIONAL:
        return f"{_FRACTIONAL[kind]}({told.meta})" if told.meta else _FRACTIONAL[kind]
    if kind in table_map.LABELLED:
        labels = ",".join("'" + label.replace("'", "''") + "'" for label in told.labels or ())
        return f"{'enum' if kind == table_map.ENUM else 'set'}({labels})"
    is_binary = told.charset == "binary"
    if kind in _STRINGS:
        var = "" if kind == table_map.STRING else "var"
        size = (told.meta - (kind == table_map.VARCHAR_COMPRESSED)) // charsets.max_bytes(told.charset or "binary")
        return f"{var}{'binary' if is_binary else 'char'}({size})"
    if kind in table_map.TEXTS:
        return _SIZES[told.meta] + ("blob" if is_binary else "text")
    if kind == table_map.GEOMETRY:
        return _GEOMETRIES[told.geometry or 0]
    if kind == table_map.VECTOR:
        return f"vector({told.dimension})" if told.dimension else "vector"
    if kind == table_map.BIT:
        return f"bit({told.meta})"
    return {table_map.DATE: "date", table_map.NEWDATE: "date", table_map.YEAR: "year", table_map.JSON: "json"}.get(
        kind, f"type {kind}"
    )


_DECLARED: Final = re.compile(
    r"(?P<name>\w+)(?: precision)?(?:\((?P<arguments>.*)\))?(?P<rest>[^)]*)", re.DOTALL | re.IGNORECASE
).fullmatch
_LABEL: Final = re.compile(r"'((?:[^'\\]|''|\\.)*)'", re.DOTALL).findall
_ESCAPED: Final = re.compile(r"''|\\(.)", re.DOTALL).sub
_ESCAPES: Final = {"n": "\n", "r": "\r", "0": "\0"}
"""How both servers print what is in labels, besides quotes and backslashes."""
_BY_NAME: Final = {
    **{name: kind for kind, (name, _, _) in _INTEGERS.items()},
    "integer": table_map.LONG,
    "decimal": table_map.NEWDECIMAL,
    "float": table_map.FLOAT,
    "double": table_map.DOUBLE,
    "bit": table_map.BIT,
    "year": table_map.YEAR,
    "date": table_map.DATE,
    "time": table_map.TIME2,
    "datetime": table_map.DATETIME2,
    "timestamp": table_map.TIMESTAMP2,
    "char": table_map.STRING,
    "binary": table_map.STRING,
    "varchar": table_map.VARCHAR,
    "varbinary": table_map.VARCHAR,
    "enum": table_map.ENUM,
    "set": table_map.SET,
    "json": table_map.JSON,
    "vector": table_map.VECTOR,
    **dict.fromkeys(_NAMED, table_map.STRING),
    **dict.fromkeys((*_GEOMETRIES, "geomcollection"), table_map.GEOMETRY),
    **{f"{size}{base}": table_map.BLOB for size in _SIZES for base in ("text", "blob")},
}
_OLD_TIMES: Final = {
    table_map.TIME2: table_map.TIME,
    table_map.DATETIME2: table_map.DATETIME,
    table_map.TIMESTAMP2: table_map.TIMESTAMP,
}
_OLD: Final = "mariadb-5.3"
"""What MariaDB says in a comment behind a type that it stores as it did before 10.1."""
_FLOAT32_BYTES: Final = 4
_SMALL_MAX: Final = 0xFF
"""The longest string whose size takes one byte."""
_NAMED_SIZES: Final = {"uuid": 16, "inet6": 16, "inet4": 4}
_COUNTED: Final = frozenset({table_map.BIT, table_map.TIME2, table_map.DATETIME2, table_map.TIMESTAMP2})
_ENUM_SMALL_MAX: Final = 255


def from_catalog(
    name: str, column_type: str, charset: str | None, *, nullable: bool, visible: bool = True
) -> TableColumn:
    """Describe a column in the log's terms, from what information_schema.columns says.

    `column_type` is COLUMN_TYPE, `charset` CHARACTER_SET_NAME. Raises OperatorError for a type that is not known.
    """
    match = _DECLARED(column_type.strip())
    kind = _BY_NAME.get(match["name"].lower()) if match else None
    if match is None or kind is None:
        raise OperatorError(f"column {name}: the type {column_type} is not known", hint="leave the table out")
    word, arguments = match["name"].lower(), match["arguments"] or ""
    rest = match["rest"].lower()
    labels = None
    meta = 0
    dimension = None
    if kind in table_map.LABELLED:
        labels = tuple(_ESCAPED(_unescaped, label) for label in _LABEL(arguments))
        meta = _set_size(len(labels)) if kind == table_map.SET else 1 + (len(labels) > _ENUM_SMALL_MAX)
    elif kind == table_map.NEWDECIMAL:
        precision, _, scale = arguments.partition(",")
        meta = int(precision or 10) << 8 | int(scale or 0)
    elif kind in _COUNTED:
        meta = int(arguments or (1 if kind == table_map.BIT else 0))
        kind = _OLD_TIMES.get(kind, kind) if _OLD in rest else kind
    elif word in _NAMED_SIZES:
        charset, meta = "binary", _NAMED_SIZES[word]
    elif kind in _STRINGS:
        charset = charset or "binary"
        meta = int(arguments or 1) * charsets.max_bytes(charset)
        if "compressed" in rest:
            kind, meta = table_map.VARCHAR_COMPRESSED, meta + 1
    elif kind == table_map.BLOB:
        charset = charset or "binary"
        meta = _SIZES.index(word[:-4], 1) if word[:-4] else 2
        kind = table_map.BLOB_COMPRESSED if "compressed" in rest else kind
    elif kind == table_map.VECTOR:
        meta, dimension = 4, int(arguments or 0)
    elif kind in (table_map.GEOMETRY, table_map.JSON):
        meta = 4
    elif kind in (table_map.FLOAT, table_map.DOUBLE):
        meta = 4 if kind == table_map.FLOAT else 8
    return TableColumn(
        name,
        kind,
        meta,
        nullable,
        ("unsigned" in rest or "zerofill" in rest) if kind in table_map.NUMBERS else None,
        charset if kind in table_map.TEXTS | table_map.LABELLED else None,
        labels,
        _GEOMETRIES.index(word.replace("geomcollection", "geometrycollection")) if kind == table_map.GEOMETRY else None,
        dimension,
        visible,
        word if word in _NAMED else column_type,
    )


def _unescaped(found: re.Match[str]) -> str:
    return "'" if found[1] is None else _ESCAPES.get(found[1], found[1])


def _set_size(labels: int) -> int:
    """Return the bytes of a SET: 1, 2, 3, 4 or 8."""
    size = (labels + 7) // 8
    return 8 if size > 4 else size  # noqa: PLR2004


def charset_of(type_: str) -> str | None:
    """Return a character set that `from_catalog` reads a printed type with: any, as the type does not say which."""
    word = type_.partition("(")[0]
    return "utf8mb4" if word in ("char", "varchar", "enum", "set") or word.endswith("text") else None


_ONLY_CATALOG: Final = frozenset({table_map.VECTOR, *_OLD_TIMES.values()})


def declared(told: TableMap, catalog: Sequence[TableColumn]) -> TableMap:
    """Give columns what only the catalog says of their types: those that the log has as BINARY, times of old tables."""
    named = {c.name: c for c in catalog if c.declared in _NAMED or c.type in _ONLY_CATALOG}
    if not named or not any(column.name in named for column in told.columns):
        return told
    return told._replace(columns=tuple(_declared_as(column, named.get(column.name)) for column in told.columns))


def _declared_as(column: TableColumn, known: TableColumn | None) -> TableColumn:
    if known is None:
        return column
    if column.type == known.type and column.type in _OLD_TIMES.values():
        return column._replace(meta=known.meta)
    if known.type == table_map.VECTOR and (column.type, column.charset) == (table_map.VARCHAR, "binary"):
        if column.meta != (known.dimension or 0) * _FLOAT32_BYTES:
            return column
        sized = 1 + (column.meta > _SMALL_MAX)
        return known._replace(meta=sized, nullable=column.nullable, visible=column.visible)
    if known.declared in _NAMED and (column.type, column.meta) == (known.type, known.meta):
        return column._replace(declared=known.declared)
    return column


def strange_times(told: TableMap, catalog: Sequence[TableColumn]) -> bool:
    """Tell whether a table of MariaDB's has times in the log whose digits the catalog does not tell, or no longer."""
    of = _OLD_TIMES.values()
    old = {column.name for column in catalog if column.type in of}
    return any(column.type in of and column.name not in old for column in told.columns)


def select_expression(told: TableColumn) -> str | None:
    """Return what a SELECT must name for the text to be as the log's; None where the column itself does.

    FLOAT prints six digits only, so it is selected as a DOUBLE; so are columns with a declared number of digits. Bits
    are selected as a number, ZEROFILL columns without their zeros, and MariaDB's YEAR(2) with its century; a zero year
    is 1900 there, which no other is.
    """
    name = quoted_name(told.name or "")
    declared = told.declared.lower()
    if told.type == table_map.FLOAT or (
        told.type == table_map.DOUBLE and declared not in ("double", "double unsigned")
    ):
        return f"({name} * 1e0)"
    if told.type == table_map.BIT or (told.type in table_map.NUMBERS and "zerofill" in declared):  # or it is a label
        return f"({name} + 0)"
    if declared == "year(2)":
        return f"IF(YEAR({name}) = 1900, '0000', YEAR({name}))"
    return None


def quoted_name(name: str) -> str:
    """Quote an identifier, no matter what is in it."""
    return "`" + name.replace("`", "``") + "`"
