"""Row images to the server's text: bytes as servers wrote them, and what must be refused."""

from __future__ import annotations

import struct

import pytest

from cdc.model.change import UNCHANGED, Op
from cdc.model.errors import OperatorError, ProtocolError
from connectors.mysql.binlog import charsets, table_map
from connectors.mysql.binlog.events import Rows, TableColumn, TableMap
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.values import jsonb, server_text
from tests.encoders.mysql import Opaque, header, image
from tests.encoders.mysql import jsonb as encoded_json


def _table(*columns: TableColumn) -> TableMap:
    return TableMap(header(19), 7, 1, "shop", "orders", columns, None)


def _insert(count: int, body: bytes, present: bytes | None = None) -> Rows:
    bits = (1 << count) - 1
    after = present or bits.to_bytes((count + 7) // 8, "little")
    return Rows(header(30), Op.CREATE, 7, 1, count, b"", after, body)


def _column(kind: int, meta: int = 0, **more: object) -> TableColumn:
    return TableColumn("v", kind, meta, nullable=True)._replace(**more)  # type: ignore[arg-type]


def _text(column: TableColumn, raw: bytes) -> bytes:
    ((_, row),) = Reader(_table(column))(_insert(1, image([raw], padding=True)))
    assert row is not None
    (value,) = row
    assert isinstance(value, bytes)
    return value


def test_rows_as_mysql_9_7_wrote_them() -> None:
    """Captured: two rows inserted, then updated; text, decimal, float, timestamp(3), enum."""
    table = _table(
        TableColumn("id", table_map.LONG, 0, nullable=False, unsigned=False),
        TableColumn("a", table_map.VARCHAR, 80, nullable=True, charset="utf8mb4"),
        TableColumn("d", table_map.NEWDECIMAL, 10 << 8 | 2, nullable=True, unsigned=False),
        TableColumn("f", table_map.FLOAT, 4, nullable=True, unsigned=False),
        TableColumn("ts", table_map.TIMESTAMP2, 3, nullable=True),
        TableColumn("e", table_map.ENUM, 1, nullable=True, charset="utf8mb4", labels=("x", "yé")),
    )
    body = (
        b"\x00\x01\x00\x00\x00\x03h\xc3\xa9\x7f\xff\xff\xf3\xdd33S@k\x02\x0e\x06$J\x02\x00\x01\x00\x00\x00\x01b\x7f\xff"
        b"\xff\xf3\xdd33S@k\x02\x0e\x06$J\x02>\x02\x00\x00\x00<\x02\x00\x00\x00\x01b"
    )
    first = (b"1", "hé".encode(), b"-12.34", b"3.299999952316284", b"2026-11-21 21:32:54.929", "yé".encode())
    changed = (b"1", b"b", *first[2:])
    empty = (b"2", None, None, None, None, None)
    rows = Reader(table)(Rows(header(31), Op.UPDATE, 7, 1, 6, b"\xff", b"\xff", body))
    assert rows == [(first, changed), (empty, (b"2", b"b", None, None, None, None))]


TEXTS = [
    (_column(table_map.TINY, unsigned=False), b"\x80", "-128"),
    (_column(table_map.TINY, unsigned=True), b"\x80", "128"),
    (_column(table_map.SHORT, unsigned=False), b"\x00\x80", "-32768"),
    (_column(table_map.INT24, unsigned=False), b"\xff\xff\xff", "-1"),
    (_column(table_map.INT24, unsigned=True), b"\xff\xff\xff", "16777215"),
    (_column(table_map.LONGLONG, unsigned=True), b"\xff" * 8, "18446744073709551615"),
    (_column(table_map.LONGLONG, unsigned=False), b"\xff" * 7 + b"\x7f", "9223372036854775807"),
    (_column(table_map.DOUBLE, 8), struct.pack("<d", -0.0), "-0"),
    (_column(table_map.BIT, 33), b"\x01\x00\x00\x00\x01", "4294967297"),
    (_column(table_map.YEAR), b"\x00", "0000"),
    (_column(table_map.YEAR), b"\xff", "2155"),
    (_column(table_map.DATE), (2024 << 9 | 2 << 5 | 29).to_bytes(3, "little"), "2024-02-29"),
    (_column(table_map.DATE), bytes(3), "0000-00-00"),
    (_column(table_map.TIMESTAMP2), bytes(4), "0000-00-00 00:00:00"),
    (_column(table_map.TIMESTAMP2, 6), bytes(7), "0000-00-00 00:00:00.000000"),
    (_column(table_map.TIMESTAMP2), b"\xff\xff\xff\xff", "2106-02-07 06:28:15"),
    (_column(table_map.TIME2, 1), b"\x7f\xff\xff\xce", "-00:00:00.5"),
    (_column(table_map.TIME2), b"\x80\x00\x00", "00:00:00"),
    # before MySQL 5.6
    (_column(table_map.TIMESTAMP), struct.pack("<I", 1_700_000_000), "2023-11-14 22:13:20"),
    (_column(table_map.DATETIME), struct.pack("<Q", 20240229123456), "2024-02-29 12:34:56"),
    (_column(table_map.DATETIME), bytes(8), "0000-00-00 00:00:00"),
    (_column(table_map.TIME), (-8385959).to_bytes(3, "little", signed=True), "-838:59:59"),
    (_column(table_map.TIME), (102).to_bytes(3, "little"), "00:01:02"),
    # MariaDB's, with the digits that the catalog tells
    (_column(table_map.TIMESTAMP, 3), b"\x65\x53\xf1\x00\x03\xe7", "2023-11-14 22:13:20.999"),
    (_column(table_map.DATETIME, 1), bytes.fromhex("00a965a7fc67"), "2024-02-29 12:34:56.7"),
    (_column(table_map.DATETIME, 6), bytes(8), "0000-00-00 00:00:00.000000"),
    (_column(table_map.TIME, 2), (302_040_000 - 1).to_bytes(4), "-00:00:00.01"),
    (_column(table_map.TIME, 6), (3_020_400_000_000 + 1).to_bytes(6), "00:00:00.000001"),
    (_column(table_map.VARCHAR, 255, charset="latin1"), b"\x02\x80\x81", "€\x81"),
    (_column(table_map.VARCHAR, 256, charset="latin1"), b"\x01\x00\xe9", "é"),
    (_column(table_map.STRING, 4, charset="binary"), b"\x01a", "a\0\0\0"),
    (_column(table_map.STRING, 4, charset="utf8mb4"), b"\x01a", "a"),
    (_column(table_map.VARCHAR, 4, charset="binary"), b"\x01a", "a"),
    (_column(table_map.BLOB, 3, charset="sjis"), b"\x02\x00\x00\x81\x5f", "\\"),
    (_column(table_map.ENUM, 2, charset="binary", labels=("a", "b")), b"\x00\x00", ""),
    (_column(table_map.SET, 8, charset="binary", labels=("a", "b", "c")), b"\x05" + bytes(7), "a,c"),
    (_column(table_map.GEOMETRY, 4), b"\x03\0\0\0abc", "abc"),
    (_column(table_map.VECTOR, 4), b"\x04\0\0\0abcd", "abcd"),
    (_column(table_map.JSON, 4), b"\0\0\0\0", "null"),
    (
        _column(table_map.STRING, 16, charset="binary", declared="uuid"),
        b"\x10" + bytes(range(16)),
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
    ),
    (_column(table_map.STRING, 16, charset="binary", declared="inet6"), b"\x00", "::"),
    (_column(table_map.STRING, 4, charset="binary", declared="inet4"), b"\x03\x01\x02\x03", "1.2.3.0"),
    (_column(table_map.BLOB_COMPRESSED, 2, charset="utf8mb4"), b"\x03\0\0ab", "ab"),
    (_column(table_map.VARCHAR_COMPRESSED, 201, charset="utf8mb4"), b"\x09\x89\xb4KLJ\x1cr\x10\x00", "ab" * 90),
]


@pytest.mark.parametrize(("column", "raw", "text"), TEXTS, ids=lambda value: repr(value)[:60])
def test_a_value_is_the_servers_text(column: TableColumn, raw: bytes, text: str) -> None:
    assert _text(column, raw) == text.encode()


DOUBLES = {
    1.0: "1",
    -1.5: "-1.5",
    1e14: "100000000000000",
    999999999999999.0: "999999999999999",
    1e15: "1e15",
    1.234567890123456e15: "1.234567890123456e15",
    1046017926401765.9: "1046017926401765.9",
    1e16: "1e16",
    1e22: "1e22",
    1.5e300: "1.5e300",
    0.0001: "0.0001",
    0.00001: "0.00001",
    1e-15: "0.000000000000001",
    1.5e-15: "0.0000000000000015",
    1e-16: "1e-16",
    -2.5e-300: "-2.5e-300",
    5e-324: "5e-324",
    123456789012345.6: "123456789012345.6",
}


@pytest.mark.parametrize(("number", "text"), DOUBLES.items())
def test_a_double_has_an_exponent_where_the_server_gives_it_one(number: float, text: str) -> None:
    assert server_text.double(number).decode() == text


def test_a_column_that_is_not_in_the_image_is_unchanged() -> None:
    """binlog_row_image=MINIMAL: null bits are of the columns that are there."""
    columns = [TableColumn(f"c{i}", table_map.TINY, 0, nullable=True, unsigned=True) for i in range(10)]
    read = Reader(_table(*columns))
    rows = Rows(header(31), Op.UPDATE, 7, 1, 10, b"\x01\x00", b"\x02\x02", b"\x00\x07" + b"\x02\x09")
    before = (b"7", *[UNCHANGED] * 9)
    after = (UNCHANGED, b"9", *[UNCHANGED] * 7, None)
    assert read(rows) == [(before, after)]


def test_many_columns_have_many_null_bits() -> None:
    columns = [TableColumn(f"c{i}", table_map.TINY, 0, nullable=bool(i % 2), unsigned=True) for i in range(70)]
    values = [None if i % 3 == 1 and i % 2 else bytes([i]) for i in range(70)]
    for padding in (True, False):
        body = image(values, padding=padding) * 3
        expected = tuple(None if value is None else b"%d" % value[0] for value in values)
        assert Reader(_table(*columns))(_insert(70, body)) == [(None, expected)] * 3


def test_a_row_cut_anywhere_is_a_protocol_error() -> None:
    columns = [column for column, _, _ in TEXTS]
    body = image([raw for _, raw, _ in TEXTS], padding=True)
    read = Reader(_table(*columns))
    expected = tuple(text.encode() for _, _, text in TEXTS)
    assert read(_insert(len(columns), body * 2)) == [(None, expected)] * 2
    for end in range(1, len(body)):
        with pytest.raises(ProtocolError):
            read(_insert(len(columns), body[:end]))
        with pytest.raises(ProtocolError):
            read(_insert(len(columns), body + body[:end]))


def test_rows_of_another_table_are_a_protocol_error() -> None:
    read = Reader(_table(_column(table_map.TINY, unsigned=True)))
    for rows in (_insert(2, b"\0\1\1"), _insert(1, b"\0\1", b"\1\0"), _insert(1, b"\0\1", b"\0")):
        with pytest.raises(ProtocolError):
            read(rows)


def test_a_label_that_is_not_there_is_a_protocol_error() -> None:
    with pytest.raises(ProtocolError, match="ENUM with a label"):
        _text(_column(table_map.ENUM, 1, labels=("a",)), b"\x02")
    with pytest.raises(ProtocolError, match="SET with a label"):
        _text(_column(table_map.SET, 1, labels=("a",)), b"\x02")


@pytest.mark.parametrize(
    "column",
    [
        _column(table_map.LONG),
        _column(table_map.ENUM, 1),
        _column(table_map.SET, 1),
        _column(table_map.VARCHAR, 10),
        _column(table_map.BLOB, 2),
    ],
    ids=repr,
)
def test_what_the_log_does_not_tell_is_asked_for(column: TableColumn) -> None:
    """Signs, labels and character sets come with metadata only: guessing would be a wrong value."""
    with pytest.raises(OperatorError, match="column v: the binlog does not say") as caught:
        Reader(_table(column))
    assert caught.value.hint is not None
    assert "binlog_row_metadata = FULL" in caught.value.hint


def test_a_character_set_that_is_not_known_is_named() -> None:
    with pytest.raises(OperatorError, match="column v: character set collation 9999 is not known"):
        Reader(_table(_column(table_map.VARCHAR, 10, charset="collation 9999")))


@pytest.mark.parametrize(
    ("charset", "raw"),
    [
        ("ascii", b"\xe9"),
        ("gbk", b"\x81"),
        ("cp932", b"a\xfd"),
        ("sjis", b"\x81\x5f\x85"),
        ("ujis", b"\xf5\xa1\xff"),
        ("utf16", b"\xd8\x00"),
        ("ucs2", b"\xd8\x3d\xde\x00"),
        ("utf32", b"\x00\x11\x00\x00"),
        ("greek", b"\xa4"),
        ("swe7", b"\x80"),
        ("dec8", b"\xff"),
    ],
)
def test_bytes_that_are_not_valid_are_a_value_error_without_them(charset: str, raw: bytes) -> None:
    column = _column(table_map.VARCHAR, 200, charset=charset)
    with pytest.raises(ValueError, match=f"^column v: bytes that are not valid {charset}$") as caught:
        _text(column, bytes([len(raw)]) + raw)
    assert caught.value.__cause__ is None
    assert caught.value.__context__ is None or caught.value.__suppress_context__


@pytest.mark.parametrize(
    ("charset", "raw", "text"),
    [
        ("latin1", b"\x80\x9d", "€\x9d"),
        ("swe7", b"[\\]^`{|}~@", "ÄÖÅÜéäöåüÉ"),
        ("sjis", b"a\x81\x5f\x83\x5c\xb1", "a\\ソｱ"),
        ("cp932", b"\x87\x40\xfa\x40", "①ⅰ"),
        ("ujis", b"\xa1\xc0\xf5\xa1\x8f\xf5\xa1\x8e\xb1\xa4\xa2", "\\\ue000\ue3acｱあ"),
        ("eucjpms", b"\xad\xa1\xa1\xc1\x8f\xf3\xf3\x8f\xf4\xfe\xfe\xfe\xa4\xa2", "①～ⅰ黑\ue3abあ"),
        ("big5", b"\xa1\x5a\xf9\xd6\xa4\xa4", "\ufffd碁中"),
        ("gb18030", b"\xa8\xbc\x94\x39\xda\x33", "ḿ💩"),
        ("euckr", b"\x8c\x63", "똠"),
        ("hebrew", b"\xaf\xf9", "‾ש"),
        ("ucs2", b"\x00a\xd5\x5c", "a한"),
        ("utf16", b"\xd8\x3d\xde\x00", "😀"),
        ("utf16le", b"\x3d\xd8\x00\xde", "😀"),
        ("utf32", b"\x00\x01\xf6\x00", "😀"),
        ("keybcs2", b"\x80", "Č"),
        ("tis620", b"\xa0\xa1", "\ufffdก"),
    ],
)
def test_text_is_converted_as_the_server_does(charset: str, raw: bytes, text: str) -> None:
    """Where Python's codec and the server's table differ, and next to it."""
    assert charsets.decoder(charset)(raw) == text
    convert = charsets.to_utf8(charset)
    assert convert is not None
    assert convert(raw) == text.encode()


def test_all_character_sets_of_both_servers_have_a_decoder() -> None:
    for number in (*range(1, 324), *range(1025, 1271), *range(2048, 3272)):
        charset = charsets.of_collation(number)
        if not charset.startswith("collation"):
            assert charsets.decoder(charset)(b"") == ""


JSON = [
    (b"", "null"),
    (b"\x04\x01", "true"),
    (encoded_json({"a": 1, "b": [1, 2]}), '{"a": 1, "b": [1, 2]}'),
    (encoded_json([1.0, 1e20, 1e15, 0.1, -0.0, 1e-16]), "[1.0, 1e20, 1e15, 0.1, -0.0, 1e-16]"),
    (encoded_json('\b\t\n\f\r"\\/\x01\x7fé'), '"\\b\\t\\n\\f\\r\\"\\\\/\\u0001\x7fé"'),
    (encoded_json([Opaque(246, b"\x05\x02\x80\x0c\x22")]), "[12.34]"),
    (encoded_json([Opaque(10, struct.pack("<q", ((2024 * 13 + 2) << 5 | 29) << 41))]), '["2024-02-29"]'),
    (encoded_json([Opaque(11, struct.pack("<q", -((1 << 12 | 2 << 6 | 3) << 24 | 500_000)))]), '["-01:02:03.500000"]'),
    (
        encoded_json([Opaque(12, struct.pack("<q", (((2024 * 13 + 2) << 5 | 29) << 17 | 12 << 12) << 24 | 7))]),
        '["2024-02-29 12:00:00.000007"]',
    ),
    (encoded_json([Opaque(15, b"\x00\xff")]), '["base64:type15:AP8="]'),
    (encoded_json([Opaque(252, bytes(58))]), '["base64:type252:' + "A" * 76 + '\\nAA=="]'),
]


@pytest.mark.parametrize(("document", "text"), JSON, ids=lambda value: repr(value)[:40])
def test_a_document_is_the_servers_text(document: bytes, text: str) -> None:
    assert jsonb.text(document).decode() == text


@pytest.mark.parametrize("document", [document for document, _ in JSON if document], ids=lambda value: repr(value)[:40])
def test_a_cut_document_is_a_protocol_error(document: bytes) -> None:
    for end in range(1, len(document)):
        with pytest.raises(ProtocolError):
            jsonb.text(document[:end])


@pytest.mark.parametrize(
    "document",
    [
        b"\x0d",
        b"\x04\x03",
        b"\x0c\xff\xff\xff\xff\xff\x01",
        b"\x0c\x05abc",
        b"\x02\x01\x00\x09\x00\x02\x00\x00\xff",  # an array that holds itself
        b"\x0f\xf6\x00",
        b"\x0f\x0b\x02ab",
    ],
)
def test_a_document_that_is_none_is_a_protocol_error(document: bytes) -> None:
    with pytest.raises(ProtocolError):
        jsonb.text(document)
