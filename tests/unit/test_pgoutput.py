"""Each pgoutput message: whole, cut at every byte, and with bytes too many."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdc.model.change import UNCHANGED, Row
from cdc.model.errors import ProtocolError
from connectors.postgres.pgoutput.messages import (
    POSTGRES_EPOCH_US,
    Begin,
    Commit,
    Delete,
    Insert,
    LogicalMessage,
    Message,
    Relation,
    RelationColumn,
    Skipped,
    Truncate,
    Update,
    _row,
    decode,
    plain_row,
)
from tests.encoders.pgoutput import encode

ROW = (b"1", None, UNCHANGED, b"", b"caf\xc3\xa9\0\t")
MESSAGES: list[Message] = [
    Begin(0x16B3748, POSTGRES_EPOCH_US + 817_000_000_123_456, 790),
    Begin(2**63 - 1, POSTGRES_EPOCH_US - 1, 2**32 - 1),
    Commit(0x16B3748, 0x16B3778),
    Relation(16_384, "public", "orders", "d", (RelationColumn("id", 20, -1, True), RelationColumn("té", 25, 7, False))),
    Relation(2**32 - 1, "pg_catalog", "no columns", "n", ()),
    Insert(16_384, ROW),
    Insert(16_384, ()),
    Update(16_384, None, False, ROW),
    Update(16_384, (b"1", None, None, None, None), True, ROW),
    Update(16_384, ROW, False, ROW),
    Delete(16_384, (b"1", None, None, None, None), True),
    Delete(16_384, ROW, False),
    Truncate((16_384,)),
    Truncate((1, 2, 3)),
    Truncate(()),
    LogicalMessage(True, 5, "prefix", b"\0content"),
    LogicalMessage(False, 2**62, "", b""),
    Skipped("O"),
    Skipped("Y"),
    Skipped("A"),
]


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_decodes_to_what_was_encoded(message: Message) -> None:
    """decode∘encode is the identity."""
    assert decode(encode(message)) == message


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
def test_a_message_cut_anywhere_is_a_protocol_error(message: Message) -> None:
    """However few bytes come, the decoder says so, and no other error comes out; the offset lies in the message."""
    whole = encode(message)
    for end in range(len(whole)):
        with pytest.raises(ProtocolError) as caught:
            decode(whole[:end])
        assert 0 <= caught.value.offset <= len(whole)


@pytest.mark.parametrize("message", MESSAGES, ids=repr)
@pytest.mark.parametrize("more", [b"\0", b"n", b"N\0\0", b"I\0\0\0\1N\0\0"])
def test_bytes_after_a_message_are_a_protocol_error(message: Message, more: bytes) -> None:
    """A message fills its frame exactly."""
    with pytest.raises(ProtocolError):
        decode(encode(message) + more)


@pytest.mark.parametrize(
    ("data", "what", "offset"),
    [
        (b"", "an empty message", 0),
        (b"Z", "unknown type 0x5a", 0),
        (b"S\0\0\0\1\1", "unknown type 0x53", 0),  # a streamed transaction: protocol version 2
        (b"I\0\0\0\1O\0\0", "row tag 0x4f", 5),
        (b"U\0\0\0\1X\0\0", "row tag 0x58", 5),
        (b"U\0\0\0\1K\0\0K\0\0", "row tag 0x4b", 8),
        (b"D\0\0\0\1N\0\0", "row tag 0x4e", 5),
        (b"I\0\0\0\1N\0\1b\0\0\0\1x", "column of unknown kind 0x62", 8),  # binary was not asked for
        (b"I\0\0\0\1N\0\1t\xff\xff\xff\xffx", "ends early", 14),
        (b"T\xff\xff\xff\xff\0", "a truncate of another length", 6),
        (b"R\0\0\0\1public\0\xff\0d\0\0", "a name that is not UTF-8", 12),
        (b"R\0\0\0\1public", "a name without its end", 5),
    ],
)
def test_foreign_bytes_are_named_with_their_place(data: bytes, what: str, offset: int) -> None:
    """The error says what was found, and where in the message."""
    with pytest.raises(ProtocolError, match=what) as caught:
        decode(data)
    assert caught.value.offset == offset


def test_an_error_holds_no_row_value() -> None:
    """A protocol error may be logged: it has no value in it."""
    with pytest.raises(ProtocolError) as caught:
        decode(encode(Insert(1, (b"a secret",))) + b"secret")
    assert "secret" not in str(caught.value)


def test_a_column_count_is_not_believed() -> None:
    """A row that promises more columns than it has ends early, at once."""
    with pytest.raises(ProtocolError, match="ends early"):
        decode(b"I" + struct.pack(">I", 1) + b"N" + struct.pack(">H", 65_535))


@given(st.data())
def test_a_row_is_read_as_the_plain_reader_reads_it(data: st.DataObject) -> None:
    """The same values and end, or both refuse; cut and damaged ones too."""
    kinds = st.sampled_from(
        [b"n", b"u", b"t\0\0\0\0", b"t\0\0\0\3abc", b"t\0\0\1\0" + b"x" * 256, b"q", b"t\xff\0\0\0"]
    )
    columns = data.draw(st.lists(kinds, max_size=20))
    message = struct.pack(">H", len(columns) + data.draw(st.sampled_from([0, 0, 1]))) + b"".join(columns)
    message = message[: len(message) - data.draw(st.integers(0, 6))]

    def outcome(read: Callable[[bytes, int], tuple[Row, int]]) -> object:
        try:
            row, end = read(message, 0)
        except (IndexError, struct.error, ProtocolError):
            return "refused"
        return (row, end) if end <= len(message) else "refused"

    assert outcome(_row) == outcome(plain_row)


@pytest.mark.parametrize("count", [*range(12), 1600, 1664, 1665])
def test_rows_of_as_many_columns_as_there_are(count: int) -> None:
    row = tuple(b"%d" % n if n % 3 else None for n in range(count))
    assert decode(encode(Insert(1, row))) == Insert(1, row)
