"""Bytes that no server writes: each is refused where it enters, before anything is read or made of it."""

from __future__ import annotations

import struct
import zlib

import pytest

from cdc.encode.built import built
from cdc.model.change import Op
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import table_map
from connectors.mysql.binlog.cursor import Cursor
from connectors.mysql.binlog.events import Rows, TableColumn, TableMap
from connectors.mysql.rows.row_images import Reader
from connectors.mysql.values import jsonb
from tests.mysql_encoder import header

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
