"""Each fast path against the full path, its oracle: it gives the same outcome, or declines."""

from __future__ import annotations

import struct
import zlib
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from cdc.encode import json_text
from cdc.encode.envelope import row_codegen
from cdc.encode.envelope.frame import Frame
from cdc.encode.envelope.row_codegen import size_bound
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.fast_path import fast_path
from cdc.model.change import UNCHANGED, Change, Column, Kind, Op, Row, Table
from cdc.model.errors import ProtocolError
from connectors.mysql.binlog import events, parser
from connectors.mysql.binlog import fast_path as mysql
from connectors.postgres.pgoutput import fast_path as postgres
from connectors.postgres.pgoutput import messages
from connectors.postgres.pgoutput.changes import Assembler
from connectors.postgres.pgoutput.messages import Insert, Relation, RelationColumn, Update
from tests.encoders import mysql as mysql_encoder
from tests.encoders import pgoutput as pgoutput_encoder
from tests.text_tables import encoder

CAPTURED, ANOTHER = 7, 8
NAMES = ("id", "note", "of")
TABLE = Table("s", "t%", tuple(Column(name, "text", Kind("string"), json_text.text) for name in NAMES), ("id",))
ENCODER = encoder(TABLE)
LIMIT = 40


def frame() -> Frame:
    where = b'"gtid":"100%%","pos":%d,"row":%d'
    return Frame(epoch=1, commit=2, at_ms=3, made_at_ms=4, transaction=("%d:5", 5), where=where)


def plainly(of: TableEncoder, change: Change) -> tuple[bytes, bytes]:
    """As `Writer` does it: joined from parts that are written column by column."""
    image = b"null" if change.before is None else of.image(change.before)
    after = b"null" if change.after is None else of.row_plainly(change.after)
    offset, number = change.lsn  # type: ignore[misc]
    value = (
        b'{"before":%b,"after":%b,"source":{"version":"' % (image, after)
        + of.source_head.partition(b'"version":"')[2].replace(b"%%", b"%")
        + b'3,"snapshot":"false"'
        + of.source_where.replace(b"%%", b"%")
        + b'"gtid":"100%%","pos":%d,"row":%d' % (offset, number)
        + b',"position":"00000001.0000000000000002.00000001'
        + of.source_tail
        + b'{"id":"%%d:5","total_order":1,"data_collection_order":1},"op":"%b","ts_ms":4}' % change.op.value.encode()
    )
    return of.key_plainly(change.after or change.before or ()), value


GOOD = st.one_of(st.sampled_from([b"", b"1", b"2", b"%d", 'é\u2028"\\'.encode(), b"x" * 30]))
ANY = st.one_of(GOOD, st.none(), st.sampled_from([b"\xff", UNCHANGED]))
ROWS = st.tuples(ANY, ANY, ANY)
CHANGES = st.builds(
    Change, st.sampled_from(Op), st.just(TABLE), st.one_of(st.none(), ROWS), st.one_of(st.none(), ROWS),
    st.tuples(st.integers(0, 2**32), st.integers(0, 100)),
)  # fmt: skip


@given(CHANGES, st.booleans())
@example(change=Change(Op.UPDATE, TABLE, (b"1", b"n", None), (b"2", b"n", None), (1, 2)), wide=False)
@example(change=Change(Op.CREATE, TABLE, None, (b"1", b"x" * 30, None), (1, 2)), wide=True)
def test_a_record_is_that_of_the_full_path(change: Change, wide: bool) -> None:
    """What is left alone has changed nothing: the next event has the number it would have had."""
    numbered = frame()
    fast = fast_path(ENCODER, size_bound(10, {1: 1, 2: 1}) if wide else None, LIMIT)
    record = fast(change, numbered)
    if record is None:
        assert numbered.events == 0
    else:
        assert record == plainly(ENCODER, change)
        before, after = change.before, change.after
        assert (change.op, before is None, after is None) != (Op.DELETE, True, False)
        if after is not None:
            assert before is None or before[0] == after[0], "a change of the key is two records"
            assert UNCHANGED not in after
            assert not wide or sum(len(value or b"") for value in after[1:]) + 10 < LIMIT


@given(st.sampled_from([Op.CREATE, Op.UPDATE]), st.tuples(GOOD, st.none(), GOOD), st.one_of(st.none(), GOOD))
def test_what_nearly_all_changes_are_is_taken(op: Op, row: Row, note: bytes | None) -> None:
    """It would prove little if the plain one did it all."""
    before = None if op is Op.CREATE else (row[0], note, None)
    assert fast_path(ENCODER, None, LIMIT)(Change(op, TABLE, before, row, (1, 2)), frame()) is not None


LSNS = st.integers(0, 2**64 - 1)
RELATION = Relation(CAPTURED, "s", "t", "d", tuple(RelationColumn(name, 25, -1, name == "id") for name in NAMES))
VALUES = st.one_of(st.none(), st.just(UNCHANGED), st.binary(max_size=300))
WIDTHS = st.sampled_from([3, 3, 3, 2, 4])
SENT = WIDTHS.flatmap(lambda width: st.lists(VALUES, min_size=width, max_size=width)).map(tuple)
RELATIONS = st.sampled_from([CAPTURED, CAPTURED, ANOTHER])
MESSAGES = st.one_of(
    st.builds(Insert, RELATIONS, SENT),
    st.builds(Update, RELATIONS, st.none(), st.just(False), SENT),
    st.builds(Update, RELATIONS, SENT, st.booleans(), SENT),
    st.builds(messages.Delete, RELATIONS, SENT, st.booleans()),
    st.builds(messages.Commit, st.just(5), st.just(6)),
)


def assembler() -> Assembler:
    made = Assembler()
    made.learn(RELATION, TABLE)
    made.learn(RELATION._replace(id=ANOTHER), None)
    return made


@given(MESSAGES, st.integers(0, 2**63 - 1), st.data())
def test_a_row_message_says_what_it_says_plainly(message: Any, lsn: int, data: st.DataObject) -> None:
    """Also cut, and with bytes changed; what is not a row of a captured table, or is damaged, is left alone."""
    made = assembler()
    payload = bytearray(pgoutput_encoder.encode(message))
    for _ in range(data.draw(st.integers(0, 2))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    sent = bytes(payload[: data.draw(st.one_of(st.just(len(payload)), st.integers(0, len(payload))))])
    change = made.fast_path.change(b"w" + struct.pack(">Qqq", lsn, 1, 2) + sent)
    if change is not None:
        read = messages.decode(sent)
        assert isinstance(read, Insert | Update | messages.Delete)
        assert change == made.change(read, lsn)
        assert type(change) is Change


@given(
    st.one_of(
        st.builds(Insert, st.just(CAPTURED), SENT),
        st.builds(Update, st.just(CAPTURED), st.none(), st.just(False), SENT),
    )
)
def test_nearly_all_row_messages_are_taken(message: Insert | Update) -> None:
    assume(len(message.new) == len(NAMES))
    assert assembler().fast_path.change(b"w" + bytes(24) + pgoutput_encoder.encode(message)) is not None


@given(
    st.one_of(
        st.builds(messages.Begin, LSNS, st.integers(946_684_800_000_000, 2**60), st.integers(0, 2**32 - 1)),
        st.builds(messages.Commit, LSNS, LSNS),
    ),
    st.data(),
)  # fmt: skip
def test_a_beginning_and_an_end_are_what_they_are_plainly(message: Any, data: st.DataObject) -> None:
    """Also cut, or of another kind."""
    payload = bytearray(pgoutput_encoder.encode(message))
    whole = data.draw(st.booleans())
    if not whole:
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    sent = bytes(payload if whole else payload[: data.draw(st.integers(0, len(payload)))])
    framed = b"w" + bytes(24) + sent
    found = postgres.begin(framed) or postgres.commit(framed)
    assert found is not None or not whole
    if found is not None:
        plain = messages.decode(sent)
        assert (type(found), found) == (type(plain), plain)


OLD = st.builds(
    Update, st.just(CAPTURED), st.tuples(*[st.binary(max_size=9)] * 3), st.booleans(), st.tuples(*[GOOD] * 3)
)
GONE = st.builds(messages.Delete, st.just(CAPTURED), st.tuples(*[GOOD] * 3), st.booleans())


@pytest.mark.skipif(row_codegen.compiled is None, reason="the plain ones leave old rows alone")
@given(st.one_of(OLD, GONE))
def test_what_says_something_of_the_old_row_is_taken(message: Update | messages.Delete) -> None:
    made = assembler()
    change = made.fast_path.change(b"w" + bytes(24) + pgoutput_encoder.encode(message))
    assert change is not None
    assert change == made.change(message, 0)
    if change.op is Op.DELETE:
        placed = change._replace(lsn=(1, 2))
        assert fast_path(ENCODER, None, LIMIT)(placed, frame()) == plainly(ENCODER, placed)


def test_a_row_message_that_ends_early_or_late_is_left_alone() -> None:
    made = assembler()
    sent = b"w" + bytes(24) + pgoutput_encoder.encode(Insert(CAPTURED, (b"1", None, b"a value")))
    assert made.fast_path.change(sent) is not None
    for length in range(len(sent)):
        assert made.fast_path.change(sent[:length]) is None
    assert made.fast_path.change(sent + b"n") is None


def test_a_relation_that_is_captured_no_more_is_left_alone() -> None:
    """And one that got another column is read with it."""
    made = assembler()
    sent = b"w" + bytes(24) + pgoutput_encoder.encode(Insert(CAPTURED, (b"1", None, None)))
    assert made.fast_path.change(sent) is not None
    wider = RELATION._replace(columns=(*RELATION.columns, RelationColumn("more", 25, -1, in_identity=False)))
    made.learn(wider, TABLE)
    assert made.fast_path.change(sent) is None
    made.learn(RELATION, None)
    assert made.fast_path.change(sent) is None


UUIDS = st.uuids().map(str)
NUMBERS = st.integers(0, 2**63 - 1)
TIMES = st.integers(0, 2**55 - 1)
LENGTHS = st.one_of(st.none(), st.sampled_from([0, 250, 251, 65_535, 65_536, 2**24]))
BITS = st.sampled_from([b"\xff\x01", b"\x7f\x00"])


def headers(*kinds: int) -> st.SearchStrategy[events.Header]:
    return st.sampled_from(kinds).map(mysql_encoder.header)


TAKEN = st.one_of(
    st.builds(
        lambda header, uuid, gno, at_us, length: events.Gtid(header, uuid, "", gno, 1, 2, at_us, at_us, length),
        headers(33), UUIDS, NUMBERS, TIMES, st.sampled_from([0, 250, 251, 65_535, 65_536]),
    ),
    st.builds(events.Xid, headers(16), NUMBERS),
    st.builds(events.Rows, headers(23, 30), st.just(Op.CREATE), TIMES.map(lambda n: n % 2**48), st.just(1), st.just(9),
              st.just(b""), BITS, st.binary(max_size=20)),
    st.builds(events.Rows, headers(24, 31), st.just(Op.UPDATE), st.just(1), st.just(1), st.just(9),
              BITS, BITS, st.binary(max_size=20)),
    st.builds(events.Rows, headers(25, 32), st.just(Op.DELETE), st.just(1), st.just(1), st.just(9),
              BITS, st.just(b""), st.binary(max_size=20)),
)  # fmt: skip
LEFT = st.one_of(
    st.builds(
        lambda uuid, at_us, length: events.Gtid(
            mysql_encoder.header(33), uuid, "", 5, 1, 2, at_us, at_us and 9, length
        ),
        UUIDS, st.one_of(st.none(), TIMES), LENGTHS,
    ),
    st.builds(events.Query, headers(2), st.integers(0, 2**32 - 1), st.just(0), st.sampled_from(["d", "e"]),
              st.sampled_from(["BEGIN", "COMMIT", "begin"]), st.sampled_from(["utf8mb4", "latin1"]), st.none()),
)  # fmt: skip


def both(data: bytes) -> tuple[Any, Any]:
    """What the fast path and the full path make of an event's bytes; ProtocolError where they are refused."""
    header = events.Header(*struct.unpack_from("<IBIIIH", data))
    end = len(data) - 4
    reader = mysql.READERS.get(header.type)
    short = reader(header, data, end) if reader else None
    try:
        return short, parser.plain(header, data, end)
    except ProtocolError:
        return short, ProtocolError


@given(st.one_of(TAKEN, LEFT), st.data())
def test_an_event_is_what_it_is_plainly(event: Any, data: st.DataObject) -> None:
    """Also cut, and with bytes changed in its body."""
    whole = bytearray(mysql_encoder.encode(event))
    for _ in range(data.draw(st.integers(0, 2))):
        if len(whole) > 23:
            whole[data.draw(st.integers(19, len(whole) - 5))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.one_of(st.just(len(whole)), st.integers(23, len(whole))))])
    for _ in range(2):  # a BEGIN is known the second time
        short, plain = both(cut)
        if short is not None:
            assert (type(short), short) == (type(plain), plain)


@given(TAKEN)
def test_nearly_all_events_are_taken(event: Any) -> None:
    assert both(mysql_encoder.encode(event))[0] is not None


@given(TAKEN)
def test_an_event_cut_anywhere_is_what_it_is_plainly(event: Any) -> None:
    whole = mysql_encoder.encode(event)
    for length in range(23, len(whole)):
        short, plain = both(whole[:length])
        assert short is None or short == plain


@pytest.mark.parametrize(("statement", "taken"), [("BEGIN", True), ("COMMIT", False)])
def test_a_begin_is_known_by_all_but_thread_and_seconds(statement: str, taken: bool) -> None:
    """Another thread's is told as its own; one in another database is another."""
    first = events.Query(mysql_encoder.header(2), 1, 0, f"of {statement}", statement, "utf8mb4", None)
    assert both(mysql_encoder.encode(first))[0] is None
    again = first._replace(thread_id=2)
    short, plain = both(mysql_encoder.encode(again))
    assert short == (plain if taken else None)
    assert plain.thread_id == 2
    assert both(mysql_encoder.encode(first._replace(schema=f"not {statement}")))[0] is None


@given(st.binary(max_size=40), st.binary(min_size=4, max_size=4))
def test_a_checksum_matches_only_its_bytes(data: bytes, end: bytes) -> None:
    """By one computation over all: only what ends in its own CRC32 has that remainder."""
    right = struct.pack("<I", zlib.crc32(data))
    assert parser._crc_matches(data + right)
    assert parser._crc_matches(data + end) is (end == right)
