"""The binlog's rows: any row comes back as its text, any bytes are rows or a ProtocolError."""

from __future__ import annotations

import datetime as dt
import json
import struct
from collections.abc import Callable
from decimal import Decimal, localcontext

from hypothesis import assume, given
from hypothesis import strategies as st

from cdc.model.change import UNCHANGED, Op, Value
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.events import FormatDescription, Rows, TableColumn, TableMap
from connectors.mysql.binlog.parser import parse
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.values import jsonb, mapping, server_text
from tests.encoders import mysql as encoder
from tests.encoders.mysql import header

MYSQL = FormatDescription(header(15), 4, "9.7.4", 0, b"", checksum=True)


def _number(kind: int, size: int, *, unsigned: bool) -> st.SearchStrategy[tuple[TableColumn, bytes, bytes]]:
    low, high = (0, (1 << 8 * size) - 1) if unsigned else (-(1 << 8 * size - 1), (1 << 8 * size - 1) - 1)
    column = TableColumn("n", kind, 0, nullable=True, unsigned=unsigned)
    return st.integers(low, high).map(
        lambda n: (column, n.to_bytes(size, "little", signed=not unsigned), str(n).encode())
    )


@st.composite
def _decimal(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    precision = draw(st.integers(1, 65))
    scale = draw(st.integers(0, min(30, precision)))
    number = draw(st.integers(-(10**precision) + 1, 10**precision - 1))
    with localcontext(prec=80):
        value = Decimal(number).scaleb(-scale)
    column = TableColumn("d", table_map.NEWDECIMAL, precision << 8 | scale, nullable=True, unsigned=False)
    return column, encoder.decimal(value, precision, scale), f"{value:.{scale}f}".encode()


@st.composite
def _datetime(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    digits = draw(st.integers(0, 6))
    year, month, day = draw(st.integers(0, 9999)), draw(st.integers(0, 12)), draw(st.integers(0, 31))
    clock = draw(st.integers(0, 23)), draw(st.integers(0, 59)), draw(st.integers(0, 59))
    micros = draw(st.integers(0, 999_999)) // 10 ** (6 - digits) * 10 ** (6 - digits)
    text = f"{year:04}-{month:02}-{day:02} {clock[0]:02}:{clock[1]:02}:{clock[2]:02}"
    column = TableColumn("dt", table_map.DATETIME2, digits, nullable=True)
    raw = encoder.datetime2(year, month, day, clock, micros, digits)
    return column, raw, (text + _digits(micros, digits)).encode()


def _digits(micros: int, digits: int) -> str:
    return f".{micros:06}"[: digits + 1] if digits else ""


@st.composite
def _time(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    digits = draw(st.integers(0, 6))
    most = 838 * 3600 + 59 * 60 + 59
    unit = 10 ** (6 - digits)
    total = draw(st.integers(-most * 10**digits, most * 10**digits)) * unit
    seconds, micros = divmod(abs(total), 1_000_000)
    text = f"{'-' * (total < 0)}{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}{_digits(micros, digits)}"
    return TableColumn("t", table_map.TIME2, digits, nullable=True), encoder.time2(total, digits), text.encode()


@st.composite
def _timestamp(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    digits = draw(st.integers(0, 6))
    seconds, micros = draw(st.integers(1, 2**31 - 1)), draw(st.integers(0, 999_999)) // 10 ** (6 - digits)
    micros *= 10 ** (6 - digits)
    at = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(seconds=seconds)
    text = at.strftime("%Y-%m-%d %H:%M:%S") + _digits(micros, digits)
    raw = struct.pack(">I", seconds) + encoder.fraction(micros, digits)
    return TableColumn("ts", table_map.TIMESTAMP2, digits, nullable=True), raw, text.encode()


@st.composite
def _text(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    charset, codec = draw(st.sampled_from([("utf8mb4", "utf-8"), ("utf16", "utf-16-be"), ("gbk", "gbk")]))
    alphabet = st.characters(exclude_categories=["Cs"]) if charset != "gbk" else st.sampled_from("a\0 日本語")
    text = draw(st.text(alphabet, max_size=50))
    raw = text.encode(codec)
    kind, width, meta = draw(
        st.sampled_from(
            [
                (table_map.VARCHAR, 1, 255),
                (table_map.VARCHAR, 2, 256),
                (table_map.STRING, 1, 240),
                (table_map.STRING, 2, 1020),
                *((table_map.BLOB, size, size) for size in (1, 2, 3, 4)),
            ]
        )
    )
    assume(len(raw) <= 255)
    return (
        TableColumn("s", kind, meta, nullable=True, charset=charset),
        len(raw).to_bytes(width, "little") + raw,
        text.encode(),
    )


@st.composite
def _binary(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    size = draw(st.integers(1, 255))
    value = draw(st.binary(max_size=size)).ljust(size, b"\0")
    stripped = value.rstrip(b"\0")
    return (
        TableColumn("b", table_map.STRING, size, nullable=True, charset="binary"),
        bytes([len(stripped)]) + stripped,
        value,
    )


@st.composite
def _labels(draw: st.DrawFn) -> tuple[TableColumn, bytes, bytes]:
    labels = tuple(f"label {i}" for i in range(draw(st.integers(1, 64))))
    if draw(st.booleans()):
        number = draw(st.integers(0, len(labels)))
        column = TableColumn("e", table_map.ENUM, 1, nullable=True, charset="utf8mb4", labels=labels)
        return column, bytes([number]), (labels[number - 1] if number else "").encode()
    bits = draw(st.integers(0, (1 << len(labels)) - 1))
    size = next(size for size in (1, 2, 3, 4, 8) if size * 8 >= len(labels))
    column = TableColumn("s", table_map.SET, size, nullable=True, charset="utf8mb4", labels=labels)
    return (
        column,
        bits.to_bytes(size, "little"),
        ",".join(label for i, label in enumerate(labels) if bits >> i & 1).encode(),
    )


CELLS = st.one_of(
    *(
        _number(kind, size, unsigned=unsigned)
        for kind, size in (
            (table_map.TINY, 1),
            (table_map.SHORT, 2),
            (table_map.INT24, 3),
            (table_map.LONG, 4),
            (table_map.LONGLONG, 8),
        )
        for unsigned in (True, False)
    ),
    st.integers(1, 64).flatmap(
        lambda bits: st.integers(0, (1 << bits) - 1).map(
            lambda n: (
                TableColumn("b", table_map.BIT, bits, nullable=True),
                n.to_bytes((bits + 7) // 8, "big"),
                str(n).encode(),
            )
        )
    ),
    _decimal(),
    _datetime(),
    _time(),
    _timestamp(),
    _text(),
    _binary(),
    _labels(),
)
JSON = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**63), 2**64 - 1),
        st.text(st.characters(exclude_categories=["Cs"]), max_size=200),
        st.builds(encoder.Opaque, st.sampled_from([15, 16, 252, 255]), st.binary(max_size=150)),
    ),
    lambda inner: (
        st.lists(inner, max_size=6)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=6)
    ),
    max_leaves=20,
)


@given(st.lists(CELLS, min_size=1, max_size=20), st.data())
def test_a_row_is_its_text(cells: list[tuple[TableColumn, bytes, bytes]], data: st.DataObject) -> None:
    """Whatever is null, whatever is left out, however often; through the whole event, checksum included."""
    columns = tuple(
        cell[0]._replace(name=f"c{i}", nullable=data.draw(st.booleans()), visible=True) for i, cell in enumerate(cells)
    )
    told = TableMap(header(19), 7, 1, "shop", "orders", columns, None)
    table = parse(encoder.encode(told), MYSQL)
    assert isinstance(table, TableMap)
    assert table[1:] == told[1:]
    present = [data.draw(st.booleans()) for _ in cells]
    assume(any(present))
    images, expected = [], []
    for _ in range(data.draw(st.integers(1, 3))):
        nulls = [column.nullable and data.draw(st.booleans()) for column in columns]
        shown = [None if null else cell[1] for cell, null, there in zip(cells, nulls, present, strict=True) if there]
        images.append(encoder.image(shown, padding=data.draw(st.booleans())))
        row: list[Value] = [
            (None if null else cell[2]) if there else UNCHANGED
            for cell, null, there in zip(cells, nulls, present, strict=True)
        ]
        expected.append((None, tuple(row)))
    rows = Rows(header(30), Op.CREATE, 7, 1, len(cells), b"", encoder.bitmap(present), b"".join(images))
    event = parse(encoder.encode(rows), MYSQL)
    assert isinstance(event, Rows)
    assert Reader(table)(event) == expected


@given(st.lists(CELLS, min_size=1, max_size=8), st.data())
def test_damaged_rows_are_rows_or_a_protocol_error(
    cells: list[tuple[TableColumn, bytes, bytes]], data: st.DataObject
) -> None:
    """One byte changed, cut, or any bytes at all: ValueError only from text that is not valid."""
    columns = tuple(cell[0] for cell in cells)
    body = bytearray(encoder.image([cell[1] for cell in cells], padding=True))
    if data.draw(st.booleans()):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    else:
        body = bytearray(data.draw(st.binary(max_size=60)))
    rows = Rows(header(30), Op.CREATE, 7, 1, len(cells), b"", encoder.bitmap([True] * len(cells)), bytes(body))
    try:
        Reader(TableMap(header(19), 7, 1, "shop", "orders", columns, None))(rows)
    except ProtocolError:
        pass
    except ValueError as exc:
        assert "bytes that are not valid" in str(exc)  # noqa: PT017


@given(JSON)
def test_a_document_is_the_text_of_its_model(document: object) -> None:
    """Small and large forms, values in place and behind."""
    raw = encoder.jsonb(document)
    text = jsonb.text(raw).decode()
    assert text == encoder.json_text(document)
    json.loads(text)


@given(JSON, st.data())
def test_a_damaged_document_is_a_document_or_a_protocol_error(document: object, data: st.DataObject) -> None:
    raw = bytearray(encoder.jsonb(document))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        jsonb.text(bytes(raw))
    except ProtocolError:
        pass


@given(st.binary(min_size=1, max_size=60))
def test_any_bytes_are_a_document_or_a_protocol_error(raw: bytes) -> None:
    try:
        jsonb.text(raw)
    except ProtocolError:
        pass


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_reads_back(number: float) -> None:
    """And is JSON: nothing else is made of it."""
    text = server_text.double(number)
    assert struct.pack("<d", float(text)) == struct.pack("<d", number)
    assert struct.pack("<d", float(json.loads(mapping.floating(text)))) == struct.pack("<d", number)


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_a_float_reads_back_and_is_the_shortest(number: float) -> None:
    text = mapping.floating32(server_text.double(number))
    assert struct.pack("<f", json.loads(text)) == struct.pack("<f", number)
    digits = len(text.split(b"e")[0].replace(b".", b"").replace(b"-", b"").strip(b"0"))
    for fewer in range(1, min(digits, 9)):
        try:
            assert struct.pack("<f", float(f"{number:.{fewer}g}")) != struct.pack("<f", number)
        except OverflowError:
            pass


def _encoders(cell: tuple[TableColumn, bytes, bytes]) -> Callable[[bytes], bytes]:
    return mapping.column(cell[0]).encode


@given(CELLS)
def test_a_text_becomes_json(cell: tuple[TableColumn, bytes, bytes]) -> None:
    """Every text that a row can have."""
    json.loads(_encoders(cell)(cell[2]))


@given(CELLS, st.binary(min_size=12, max_size=60))
def test_random_events_are_events_or_a_protocol_error(cell: tuple[TableColumn, bytes, bytes], content: bytes) -> None:
    for kind in (2, 4, 16, 19, 30, 31, 33, 35, 38, 40, 41, 42, 162, 163, 165, 166):
        try:
            parse(encoder.framed(header(kind), content, checksum=True), MYSQL)
        except ProtocolError:
            pass
