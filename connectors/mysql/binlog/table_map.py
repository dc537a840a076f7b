"""TABLE_MAP describes the columns of the rows that follow. Pure.

    u48 table id · u16 flags · u8 size, schema, 0 · u8 size, table, 0 · packed n · n × u8 type
    · packed size, n × metadata (size by type) · null bits · optional metadata: (u8 kind · packed size · content)*

| kind | | of |
|---|---|---|
| 1 | signedness, a bit each, highest first | numbers |
| 2 3 | default collation and exceptions, or a collation each | text, VECTOR; on MariaDB GEOMETRY |
| 4 | names | all |
| 5 6 | labels | SET, ENUM |
| 7 | geometry types | GEOMETRY |
| 8 9 | primary key, with prefix lengths | |
| 10 11 | as 2, 3 | ENUM and SET |
| 12 | visibility, a bit each | all |
| 13 | dimensions | VECTOR |

https://dev.mysql.com/doc/dev/mysql-server/latest/classmysql_1_1binlog_1_1event_1_1Table__map__event.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Final

from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import charsets
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import Header, TableColumn, TableMap

DECIMAL: Final = 0
TINY: Final = 1
SHORT: Final = 2
LONG: Final = 3
FLOAT: Final = 4
DOUBLE: Final = 5
NULL: Final = 6
TIMESTAMP: Final = 7
LONGLONG: Final = 8
INT24: Final = 9
DATE: Final = 10
TIME: Final = 11
DATETIME: Final = 12
YEAR: Final = 13
NEWDATE: Final = 14
VARCHAR: Final = 15
BIT: Final = 16
TIMESTAMP2: Final = 17
DATETIME2: Final = 18
TIME2: Final = 19
BLOB_COMPRESSED: Final = 140
VARCHAR_COMPRESSED: Final = 141
VECTOR: Final = 242
JSON: Final = 245
NEWDECIMAL: Final = 246
ENUM: Final = 247
SET: Final = 248
TINY_BLOB: Final = 249
MEDIUM_BLOB: Final = 250
LONG_BLOB: Final = 251
BLOB: Final = 252
VAR_STRING: Final = 253
STRING: Final = 254
GEOMETRY: Final = 255

_META_SIZE: Final = {
    FLOAT: 1,
    DOUBLE: 1,
    VARCHAR: 2,
    BIT: 2,
    TIMESTAMP2: 1,
    DATETIME2: 1,
    TIME2: 1,
    BLOB_COMPRESSED: 1,
    VARCHAR_COMPRESSED: 2,
    VECTOR: 1,
    JSON: 1,
    NEWDECIMAL: 2,
    ENUM: 2,
    SET: 2,
    TINY_BLOB: 1,
    MEDIUM_BLOB: 1,
    LONG_BLOB: 1,
    BLOB: 1,
    VAR_STRING: 2,
    STRING: 2,
    GEOMETRY: 1,
}
_TYPES: Final = frozenset(
    {*_META_SIZE, DECIMAL, TINY, SHORT, LONG, NULL, TIMESTAMP, LONGLONG, INT24, DATE, TIME, DATETIME, YEAR, NEWDATE}
)
NUMBERS: Final = frozenset({TINY, SHORT, INT24, LONG, LONGLONG, NEWDECIMAL, FLOAT, DOUBLE})
"""Types that have a sign."""
TEXTS: Final = frozenset({STRING, VAR_STRING, VARCHAR, BLOB, VARCHAR_COMPRESSED, BLOB_COMPRESSED})
"""Types that have a character set, as the log tells them."""
LABELLED: Final = frozenset({ENUM, SET})

_LENGTHS: Final = frozenset(range(1, 5))
"""Bytes of a length that stands before a long value."""
_FRACTIONS: Final = frozenset(range(7))
_META_ALLOWED: Final[dict[int, frozenset[int]]] = {
    FLOAT: frozenset({4}),
    DOUBLE: frozenset({8}),
    BIT: frozenset(range(1, 65)),
    TIMESTAMP2: _FRACTIONS,
    DATETIME2: _FRACTIONS,
    TIME2: _FRACTIONS,
    ENUM: frozenset({1, 2}),
    SET: frozenset({1, 2, 3, 4, 8}),
    **dict.fromkeys((BLOB, TINY_BLOB, MEDIUM_BLOB, LONG_BLOB, BLOB_COMPRESSED, JSON, GEOMETRY, VECTOR), _LENGTHS),
}
"""What the metadata of a type may be. NEWDECIMAL has a rule of its own; a string may be as long as its field says."""
_COLUMNS_MAX: Final = 4096
"""What both servers allow a table."""
_LABELS_MAX: Final = {SET: 64, ENUM: 65_535}
_PRECISION_MAX: Final = 65
_SCALE_MAX: Final = 38
"""MariaDB's; 30 on MySQL."""
_SIGNS, _CHARSETS, _CHARSET_EACH, _NAMES, _SET_LABELS, _ENUM_LABELS, _GEOMETRIES, _KEY, _KEY_PREFIXES = range(1, 10)
_LABEL_CHARSETS, _LABEL_CHARSET_EACH, _VISIBLE, _DIMENSIONS = range(10, 14)


def table_map(header: Header, body: Cursor, *, mariadb: bool) -> TableMap:
    """Read type 19. Raises ProtocolError, also for a kind of metadata or a type of column that is not known."""
    table_id, flags = body.uint(6), body.uint(2)
    schema, table = _name(body), _name(body)
    count = body.packed()
    if count > _COLUMNS_MAX:
        raise ProtocolError(body.at, f"a table of {count} columns")
    types = body.take(count)
    metas = body.part(body.packed())
    columns = [_resolved(kind, metas) for kind in types]
    metas.finish()
    nulls = body.take((count + 7) // 8)
    told = _metadata(body, columns, mariadb=mariadb)
    described = tuple(
        TableColumn(
            told.names[i] if told.names else None,
            kind,
            meta,
            bool(nulls[i >> 3] >> (i & 7) & 1),
            told.unsigned.get(i),
            told.charsets.get(i),
            told.labels.get(i),
            told.geometries.get(i),
            told.dimensions.get(i),
            told.visible[i] if told.visible else None,
        )
        for i, (kind, meta) in enumerate(columns)
    )
    return TableMap(header, table_id, flags, schema, table, described, told.key)


def _name(body: Cursor) -> str:
    name = body.text(body.packed())
    if body.uint(1):
        raise ProtocolError(body.at - 1, "a name without its end")
    return name


def check(kind: int, meta: int, at: int) -> None:
    """Refuse metadata that no server writes: what reads the rows, compiled code too, takes sizes and digits from it.

    Raises ProtocolError at the offset `at`.
    """
    if kind == NEWDECIMAL:
        precision, scale = meta >> 8, meta & 0xFF
        if not 1 <= precision <= _PRECISION_MAX or scale > min(precision, _SCALE_MAX):
            raise ProtocolError(at, f"a DECIMAL of {precision} digits, {scale} of them behind the point")
    elif kind in _META_ALLOWED and meta not in _META_ALLOWED[kind]:
        raise ProtocolError(at, f"a column of type {kind} with the metadata {meta}")


def _resolved(kind: int, metas: Cursor) -> tuple[int, int]:
    kind, meta = _true_type(kind, metas)
    check(kind, meta, metas.at)
    return kind, meta


def _true_type(kind: int, metas: Cursor) -> tuple[int, int]:
    """Return the true type and its metadata: ENUM, SET and CHAR are all STRING in the list of types.

    A CHAR whose bytes do not fit in a byte has bits 8 and 9 of its length, inverted, in the type's byte.
    """
    if kind not in _TYPES:
        raise ProtocolError(metas.at, f"a column of unknown type {kind}")
    size = _META_SIZE.get(kind, 0)
    if kind == NEWDECIMAL:
        precision, scale = metas.uint(1), metas.uint(1)
        return kind, precision << 8 | scale
    if kind == BIT:
        bits, whole = metas.uint(1), metas.uint(1)
        return kind, whole * 8 + bits
    if kind != STRING:
        return kind, metas.uint(size)
    first, length = metas.uint(1), metas.uint(1)
    true = first | 0x30
    if true not in (STRING, ENUM, SET, VAR_STRING):
        raise ProtocolError(metas.at, f"a string column of unknown type {true}")
    return true, length | (first & 0x30 ^ 0x30) << 4


class _Described:
    """Holds what the optional metadata says, by column."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.unsigned: dict[int, bool] = {}
        self.charsets: dict[int, str] = {}
        self.labels: dict[int, tuple[str, ...]] = {}
        self.geometries: dict[int, int] = {}
        self.dimensions: dict[int, int] = {}
        self.visible: list[bool] = []
        self.key: tuple[tuple[int, int], ...] | None = None


def _metadata(body: Cursor, columns: list[tuple[int, int]], *, mariadb: bool) -> _Described:
    fields: dict[int, Cursor] = {}
    while body.left:
        kind = body.uint(1)
        if not _SIGNS <= kind <= _DIMENSIONS:
            raise ProtocolError(body.at - 1, f"table metadata of unknown kind {kind}")
        fields[kind] = body.part(body.packed())
    of = _Numbered(columns)
    texts = of.those(TEXTS | {GEOMETRY if mariadb else VECTOR})  # values that are bytes to them, with a collation
    labelled = of.those(LABELLED)
    told = _Described()
    if field := fields.get(_SIGNS):
        numbers = of.those(NUMBERS | {YEAR})  # a YEAR has a bit too, which says nothing
        signs = zip(numbers, _bits(field, len(numbers)), strict=True)
        told.unsigned = {i: unsigned for i, unsigned in signs if columns[i][0] != YEAR}
    for default, each, where in (
        (_CHARSETS, _CHARSET_EACH, texts),
        (_LABEL_CHARSETS, _LABEL_CHARSET_EACH, labelled),
    ):
        for i, collation in _collations(fields.get(default), fields.get(each), where):
            if columns[i][0] != VECTOR:
                told.charsets[i] = charsets.of_collation(collation)
    if field := fields.get(_NAMES):
        told.names = [field.text(field.packed()) for _ in columns]
        field.finish()
    for kind, true in ((_SET_LABELS, SET), (_ENUM_LABELS, ENUM)):
        if field := fields.get(kind):
            for i in of.those({true}):
                labels = tuple(_labels(field, _LABELS_MAX[true]))
                decode = _decoder(told.charsets.get(i))
                if decode is not None:
                    told.labels[i] = tuple(map(decode, labels))
            field.finish()
    for kind, true, into in (
        (_GEOMETRIES, GEOMETRY, told.geometries),
        (_DIMENSIONS, VECTOR, told.dimensions),
    ):
        if field := fields.get(kind):
            into.update((i, field.packed()) for i in of.those({true}))
            field.finish()
    if field := fields.get(_VISIBLE):
        told.visible = _bits(field, len(columns))
    told.key = _key(fields.get(_KEY), fields.get(_KEY_PREFIXES), len(columns))
    return told


class _Numbered:
    """Gives column numbers by type: each kind of metadata counts the columns it is of."""

    def __init__(self, columns: list[tuple[int, int]]) -> None:
        self._columns = columns

    def those(self, types: frozenset[int] | set[int]) -> list[int]:
        return [i for i, (kind, _) in enumerate(self._columns) if kind in types]


def _bits(field: Cursor, count: int) -> list[bool]:
    bits = field.take((count + 7) // 8)
    field.finish()
    return [bool(bits[i >> 3] << (i & 7) & 0x80) for i in range(count)]


def _collations(default: Cursor | None, each: Cursor | None, where: list[int]) -> Iterator[tuple[int, int]]:
    if each:
        yield from [(i, each.packed()) for i in where]
        each.finish()
    elif default:
        collations = dict(zip(where, repeat(default.packed())))
        while default.left:
            number, collation = default.packed(), default.packed()
            if number >= len(where):
                raise ProtocolError(default.at, f"a collation for text column {number} of {len(where)}")
            collations[where[number]] = collation
        yield from collations.items()


def _labels(field: Cursor, most: int) -> Iterator[tuple[int, bytes]]:
    """Where each label begins, and its bytes."""
    count = field.packed()
    if count > most:
        raise ProtocolError(field.at, f"a column of {count} labels")
    for _ in range(count):
        yield field.at, field.take(field.packed())


def _decoder(charset: str | None) -> Callable[[tuple[int, bytes]], str] | None:
    """Labels are in their column's character set; None for one that is not known.

    The column is then one without labels: the table may be one that nobody captures. Who reads its rows refuses it.
    """
    charset = charset or "utf8mb4"
    try:
        plainly = charsets.decoder(charset)
    except LookupError:
        return None

    def decode(label: tuple[int, bytes]) -> str:
        at, raw = label
        try:
            return plainly(raw)
        except ValueError as exc:
            raise ProtocolError(at, f"a label that is not valid {charset}") from exc

    return decode


def _key(simple: Cursor | None, prefixes: Cursor | None, count: int) -> tuple[tuple[int, int], ...] | None:
    key = []
    if simple:
        while simple.left:
            key.append((simple.packed(), 0))
    elif prefixes:
        while prefixes.left:
            key.append((prefixes.packed(), prefixes.packed()))
    if any(i >= count for i, _ in key):
        raise ProtocolError((simple or prefixes or Cursor(b"", 0, 0)).at, "a key column that the table has not")
    return tuple(key) or None
