"""pgoutput: any message comes back, any bytes are either a message or a ProtocolError."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from cdc.model.change import UNCHANGED
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
    decode,
)
from tests.encoders.pgoutput import encode

OIDS = st.integers(0, 2**32 - 1)
LSNS = st.integers(0, 2**64 - 1)
TIMES = st.integers(-(2**62), 2**62).map(lambda us: us + POSTGRES_EPOCH_US)
NAMES = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=20)
ROWS = st.lists(st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=30)), max_size=8).map(tuple)
COLUMNS = st.builds(RelationColumn, NAMES, OIDS, st.integers(-1, 2**31 - 1), st.booleans())
MESSAGES: st.SearchStrategy[Message] = st.one_of(
    st.builds(Begin, LSNS, TIMES, OIDS),
    st.builds(Commit, LSNS, LSNS),
    st.builds(
        Relation, OIDS, NAMES.filter(bool), NAMES, st.sampled_from("dnfi"), st.lists(COLUMNS, max_size=5).map(tuple)
    ),
    st.builds(Insert, OIDS, ROWS),
    st.builds(Update, OIDS, ROWS, st.booleans(), ROWS),
    st.builds(Update, OIDS, st.none(), st.just(False), ROWS),
    st.builds(Delete, OIDS, ROWS, st.booleans()),
    st.builds(Truncate, st.lists(OIDS, max_size=5).map(tuple)),
    st.builds(LogicalMessage, st.booleans(), LSNS, NAMES, st.binary(max_size=30)),
    st.sampled_from([Skipped("O"), Skipped("Y")]),
)


@given(MESSAGES)
def test_decode_undoes_encode(message: Message) -> None:
    """decode∘encode is the identity."""
    assert decode(encode(message)) == message


@given(MESSAGES, st.data())
def test_a_cut_message_is_a_protocol_error(message: Message, data: st.DataObject) -> None:
    """A message cut anywhere never decodes, and never raises another error."""
    whole = encode(message)
    assert not _decodes(whole[: data.draw(st.integers(0, len(whole) - 1))])


@given(MESSAGES, st.binary(min_size=1, max_size=12))
def test_trailing_bytes_are_a_protocol_error(message: Message, more: bytes) -> None:
    """A message with bytes behind it never decodes."""
    assert not _decodes(encode(message) + more)


@given(st.sampled_from(b"BCRIUDTMOYSX"), st.binary(max_size=60))
@example(ord("T"), b"\0\0\0\0")
def test_random_bytes_are_a_message_or_a_protocol_error(tag: int, rest: bytes) -> None:
    """Whatever bytes come, nothing else comes out."""
    _decodes(bytes([tag]) + rest)


@given(MESSAGES, st.data())
def test_a_damaged_message_is_a_message_or_a_protocol_error(message: Message, data: st.DataObject) -> None:
    """One byte changed: never another error."""
    damaged = bytearray(encode(message))
    damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    _decodes(bytes(damaged))


def _decodes(data: bytes) -> bool:
    try:
        decode(data)
    except ProtocolError:
        return False
    return True
