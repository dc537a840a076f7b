"""Bytes that no server writes: each is refused where it enters, before anything is read or made of it."""

from __future__ import annotations

import struct
import zlib

import pytest

from cdc.encode.built import built
from cdc.model.change import Op
from cdc.model.errors import OperatorError, ProtocolError
from connectors.mysql.binlog import parser, table_map, transaction_payload
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import FormatDescription, Rows, TableColumn, TableMap, TransactionPayload
from connectors.mysql.binlog.positions import GtidSet, file_number
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.values import jsonb
from tests.encoders.mysql import encode, framed, header, packed_int

LENGTHS, FRACTIONS = set(range(1, 5)), set(range(7))
ALLOWED = {
    table_map.FLOAT: {4},
    table_map.DOUBLE: {8},
    **dict.fromkeys((table_map.TIMESTAMP2, table_map.DATETIME2, table_map.TIME2), FRACTIONS),
    **dict.fromkeys((table_map.BLOB, table_map.TINY_BLOB, table_map.MEDIUM_BLOB, table_map.LONG_BLOB), LENGTHS),
    **dict.fromkeys((table_map.BLOB_COMPRESSED, table_map.JSON, table_map.GEOMETRY, table_map.VECTOR), LENGTHS),
}


def described(kind: int, metadata: bytes) -> TableMap:
    body = bytes(6) + bytes(2) + b"\1s\0\1t\0\1" + bytes([kind, len(metadata)]) + metadata + b"\1"
    return table_map.table_map(header(19), Cursor(body, 0, len(body)), mariadb=False)


@pytest.mark.parametrize("kind", sorted(ALLOWED))
def test_metadata_of_one_byte_is_what_servers_write(kind: int) -> None:
    found = set()
    for meta in range(256):
        try:
            found.add(described(kind, bytes([meta])).columns[0].meta)
        except ProtocolError:
            pass
    assert found == ALLOWED[kind]


def test_a_decimal_has_digits_that_it_can_have() -> None:
    found = set()
    for precision in range(256):
        for scale in range(256):
            try:
                table_map.check(table_map.NEWDECIMAL, precision << 8 | scale, 0)
                found.add((precision, scale))
            except ProtocolError:
                pass
    assert found == {(precision, scale) for precision in range(1, 66) for scale in range(min(precision, 38) + 1)}
    with pytest.raises(ProtocolError):
        described(table_map.NEWDECIMAL, b"\5\x0a")


LAST = [*range(10), 16, 127, 255]


def test_bits_labels_and_strings_have_sizes_that_they_can_have() -> None:
    found: dict[int, set[int]] = {}
    for first in range(256):
        for second in LAST:
            for kind in (table_map.BIT, table_map.STRING):
                try:
                    column = described(kind, bytes([first, second])).columns[0]
                    found.setdefault(column.type, set()).add(column.meta)
                except ProtocolError:
                    pass
    assert found[table_map.BIT] == set(range(1, 65))
    assert found[table_map.ENUM] == {1, 2}
    assert found[table_map.SET] == {1, 2, 3, 4, 8}
    assert found[table_map.STRING] == {high << 8 | low for high in range(4) for low in LAST}


@pytest.mark.parametrize(
    "form",
    [
        (("decimal", 1, 2), "1s"), (("decimal", 5, 10), "3s"), (("decimal", 0, 255), "9s"), (("decimal", 66, 0), "30s"),
        (("decimal", 20, 33), "9s"), (("decimal", 5, 2), "2s"), (("datetime", 7, 0), "9s"), (("datetime", -1, 0), "5s"),
        (("datetime", 6, 0), "5s"), (("timestamp", 255, 0), "132s"), (("date", 0, 0), "2s"), (("signed", 0, 0), "9s"),
        (("unsigned", 0, 0), "0s"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [None, -1, 0, 5, 8, 1 << 20])
def test_what_is_compiled_checks_sizes_itself(form: tuple[tuple[str, int, int], str], size: int | None) -> None:
    """It reads and writes by them: nothing that was not checked gets that far."""
    compiled = built("connectors.mysql.binlog.compiled")
    if compiled is None:
        pytest.skip("nothing is compiled")
    made = (*form, bytes) if size is None else (size, None)
    with pytest.raises(ValueError, match="of"):
        compiled.Image([made], [False], [True])


def test_rows_without_a_byte_end() -> None:
    compiled = built("connectors.mysql.binlog.compiled")
    if compiled is None:
        pytest.skip("nothing is compiled")
    nothing = compiled.Image([], [], [])
    for before, after in ((None, None), (nothing, None), (None, nothing), (nothing, nothing)):
        with pytest.raises(IndexError):
            compiled.images(before, after, b"\0")
        with pytest.raises(IndexError):
            compiled.changes(Op.CREATE, None, before, after, b"\0", 4)
    with pytest.raises(IndexError):
        nothing(b"", -1)


def nested(levels: int, width: int) -> bytes:
    """Arrays in arrays, the items of each all at the same place: `width` to the power of `levels` values."""
    size = 4 + 3 * width
    body = b"".join(struct.pack("<HH", width, 0) + (b"\2" + struct.pack("<H", size)) * width for _ in range(levels))
    return b"\2" + body + struct.pack("<HH", 0, 4)


@pytest.mark.parametrize(("levels", "width"), [(8, 8), (90, 5), (3, 1000), (1, 20_000)])
def test_a_document_whose_parts_lie_over_each_other_is_refused_at_once(levels: int, width: int) -> None:
    """205 bytes would make 6 MB of text, 2 kB would never end."""
    with pytest.raises(ProtocolError):
        jsonb.text(nested(levels, width))


def test_a_long_text_is_not_shown_again_and_again() -> None:
    items = 100
    at = 4 + 3 * items
    body = struct.pack("<HH", items, at + 1002) + (b"\x0c" + struct.pack("<H", at)) * items
    with pytest.raises(ProtocolError, match="over each other"):
        jsonb.text(b"\2" + body + b"\xe8\x07" + b"x" * 1000)


def compressed(value: bytes, size: int) -> bytes:
    """A value of a COMPRESSED column, and the row it is alone in."""
    raw = b"\x84" + size.to_bytes(4, "big") + zlib.compress(value)
    return b"\0" + len(raw).to_bytes(4, "little") + raw


def read(*values: bytes) -> list[object]:
    column = TableColumn("v", table_map.BLOB_COMPRESSED, 4, nullable=False, charset="binary")
    reader = Reader(TableMap(header(19), 7, 1, "s", "t", (column,), None))
    rows = Rows(header(23), Op.CREATE, 7, 1, 1, b"", b"\1", b"".join(values))
    return [new[0] for _, new in reader(rows) if new is not None]


def test_compressed_values_of_one_event_are_bounded_together() -> None:
    """Each would pass by itself; and the bound is the event's, so that the next one has its own."""
    many = 8 << 20
    one = compressed(bytes(many), many)
    for _ in range(2):
        assert list(map(len, read(one, one))) == [many] * 2  # type: ignore[arg-type]
        with pytest.raises(ProtocolError, match="may come to"):
            read(*[one] * 12)


def test_a_compressed_value_is_as_long_as_it_says() -> None:
    for size in (99, 101, 0, 1 << 31, (1 << 32) - 1):
        with pytest.raises(ProtocolError):
            read(compressed(bytes(100), size))


def column_of(kind: int, meta: int) -> TableColumn:
    return TableColumn("v", kind, meta, nullable=False, charset="binary")


@pytest.mark.parametrize(
    ("column", "most"),
    [
        (column_of(table_map.BLOB_COMPRESSED, 1), 255),
        (column_of(table_map.BLOB_COMPRESSED, 2), 65_535),
        (column_of(table_map.VARCHAR_COMPRESSED, 1000), 65_535),
    ],
)
def test_a_compressed_value_is_no_longer_than_its_column_may_be(column: TableColumn, most: int) -> None:
    reader = Reader(TableMap(header(19), 7, 1, "s", "t", (column,), None))
    width = column.meta if column.type == table_map.BLOB_COMPRESSED else 2

    def row(size: int) -> Rows:
        raw = b"\x84" + size.to_bytes(4, "big") + zlib.compress(bytes(size))
        return Rows(header(23), Op.CREATE, 7, 1, 1, b"", b"\1", b"\0" + len(raw).to_bytes(width, "little") + raw)

    ((_, new),) = reader(row(most))
    assert new is not None
    assert len(str(new[0])) > most
    with pytest.raises(ProtocolError, match="at most"):
        reader(row(most + 1))


@pytest.mark.parametrize("method", range(16))
@pytest.mark.parametrize("width", range(8))
def test_no_first_byte_of_a_compressed_value_does_harm(method: int, width: int) -> None:
    """Method and bytes of its size: those that servers do not write are refused, whatever follows."""
    for rest in (b"", b"\xff" * 3, b"\xff" * 8 + zlib.compress(b"x"), b"\1" + zlib.compress(b"x"), zlib.compress(b"")):
        raw = bytes([method << 4 | width]) + rest
        try:
            read(b"\0" + len(raw).to_bytes(4, "little") + raw)
        except ProtocolError:
            continue
        assert method == 0 or len(rest) < 20


def body_of(columns: int, more: bytes = b"") -> Cursor:
    raw = bytes(8) + b"\1s\0\1t\0" + packed_int(columns) + bytes([table_map.LONG]) * columns + b"\0"
    raw += bytes((columns + 7) // 8) + more
    return Cursor(raw, 0, len(raw))


def test_a_table_has_as_many_columns_and_labels_as_a_table_can_have() -> None:
    """A few bytes of a map become an object each."""
    assert len(table_map.table_map(header(19), body_of(4096), mariadb=False).columns) == 4096
    with pytest.raises(ProtocolError, match="a table of 4097 columns"):
        table_map.table_map(header(19), body_of(4097), mariadb=False)
    for true, most in ((table_map.SET, 64), (table_map.ENUM, 65_535)):
        for count in (most, most + 1, 1 << 60):
            labels = packed_int(count) + b"\1x" * min(count, most + 1)
            kind = 5 if true == table_map.SET else 6
            raw = bytes(8) + b"\1s\0\1t\0\1" + bytes([table_map.STRING, 2, true, 1 if true == table_map.SET else 2, 0])
            raw += bytes([kind]) + packed_int(len(labels)) + labels
            try:
                (column,) = table_map.table_map(header(19), Cursor(raw, 0, len(raw)), mariadb=False).columns
                assert count == most
                assert len(column.labels or ()) == most
            except ProtocolError:
                assert count > most


DESCRIBED = FormatDescription(header(15), 4, "10.11.18-MariaDB", 0, bytes(40), checksum=False)


@pytest.mark.parametrize("size", [0, 99, 101, 200_000, 1 << 30, (1 << 32) - 1])
def test_a_compressed_event_is_as_long_as_it_says(size: int) -> None:
    """And it says no more than its bytes can stand for: nothing is made room for before that."""
    rows = bytes(6) + b"\1\0\1\1" + b"\x84" + size.to_bytes(4, "big") + zlib.compress(bytes(100))
    with pytest.raises(ProtocolError, match="a compressed event of"):
        parser.parse(framed(header(166), rows, checksum=False), DESCRIBED)


def test_a_compressed_transaction_is_no_longer_than_it_says() -> None:
    inner = encode(DESCRIBED)
    payload = TransactionPayload(header(40), 255, len(inner), inner * 2)
    with pytest.raises(ProtocolError, match="of more than its"):
        list(transaction_payload.events(payload, DESCRIBED))


def test_long_table_maps_are_not_kept() -> None:
    parser.MAPS.clear()
    for size in (100, 100_000):
        name = packed_int(size) + b"a" * size
        body = body_of(1, b"\x04" + packed_int(len(name)) + name)
        parser.parse(framed(header(19), body.data, checksum=False), DESCRIBED)
        assert len(parser.MAPS) == 1


def test_a_long_set_of_gtids_is_read_in_time_that_grows_with_it() -> None:
    """Parsed with a copy of all that came before for each range, this would take hours."""
    uuid = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
    text = uuid + "".join(f":{n}" for n in range(1, 600_000, 3))
    assert str(GtidSet.parse(text)) == text


@pytest.mark.parametrize("name", ["b.2147483648", "b.99999999999", "b." + "9" * 5000])
def test_no_name_of_a_file_makes_a_position_of_more_bits(name: str) -> None:
    with pytest.raises(OperatorError, match="not the name of a binlog file"):
        file_number(name)
    assert file_number("b.2147483647") == 2147483647
