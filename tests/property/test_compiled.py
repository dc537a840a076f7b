"""What is compiled against its oracle, what is not: the same bytes, the same refusal, or it leaves the matter alone."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import partial
from types import ModuleType
from typing import Any

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from pymysql.connections import MySQLResult
from pymysql.protocol import MysqlPacket

from cdc.encode import built, json_text
from cdc.encode.envelope import row_codegen
from cdc.encode.envelope.frame import PlainFrame
from cdc.encode.envelope.message_encoder import MessageEncoder
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.fast_path import fast_path
from cdc.model.change import UNCHANGED, Change, Column, Kind, Message, Op, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, CdcError, GapError, OperatorError, ProtocolError
from connectors.mysql.binlog import events
from connectors.mysql.binlog.events import TableColumn
from connectors.mysql.binlog.positions import BinlogPosition
from connectors.mysql.rows import column_forms, image_codegen
from connectors.mysql.values import mapping as mysql_values
from connectors.postgres.copy_text import parse_row, parse_row_plainly
from connectors.postgres.pgoutput import fast_path as postgres
from connectors.postgres.pgoutput import messages as pgoutput
from connectors.postgres.values import mapping as postgres_values
from sinks.producer.batches import PlainBatches
from tests.compiler import has_compiler
from tests.encoders import mysql as mysql_encoder
from tests.encoders import pgoutput as pgoutput_encoder
from tests.encoders.mysql_dump import Dump, mysql_source
from tests.property.test_fast_path import CAPTURED, TABLE
from tests.property.test_fast_path import MESSAGES as MESSAGES_
from tests.property.test_mysql_rows import CELLS
from tests.text_tables import encoder

if built.PURE:
    pytest.skip("it is left out by CDC_PURE", allow_module_level=True)


def module(name: str) -> ModuleType:
    found = built.built(name)
    assert found is not None or not has_compiler(), f"{name} was not built, though there is a C compiler"
    return found if found is not None else pytest.skip("no C compiler", allow_module_level=True)


core, mysql = module("cdc.encode.compiled"), module("connectors.mysql.binlog.compiled")


def outcome(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except ValueError:
        return ValueError


# ---- values ----

ENCODERS = sorted(json_text.FORMS, key=lambda encode: (json_text.FORMS[encode], repr(encode)))
DIGITS = st.text("0123456789", max_size=7).map(lambda digits: f".{digits}")
MOMENTS = st.builds(
    lambda at, fraction, behind: f"{at:%Y-%m-%d %H:%M:%S}{fraction}{behind}".encode(),
    st.datetimes(),
    st.one_of(st.just(""), DIGITS),
    st.sampled_from(["", "", "+00", "+00", "+02", "-03:30", " BC", "+00 BC"]),
)
TEXTS = st.one_of(
    MOMENTS,
    MOMENTS.flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[:cut])),
    MOMENTS.flatmap(lambda text: st.integers(0, len(text)).map(lambda cut: text[cut:])),
    st.binary(max_size=30),
    st.text(max_size=30).map(str.encode),
    st.text("0123456789-: .+TtfeNaBC", max_size=30).map(str.encode),
    st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n),
    st.sampled_from([b"", b"-0", b"NaN", b"Infinity", b"-Infinity", b"infinity", b"24:00:00", b"23:59:60", b"1", b"t"]),
    st.sampled_from(
        [b"2024-02-29", b"2023-02-29", b"1900-02-29 00:00:00", b"0000-00-00 00:00:00", b"1970-01-01 00:00:00"]
    ),
    st.sampled_from(
        [b"10000-01-01 00:00:00", b"2024-13-01 00:00:00", b"2024-01-01T00:00:00", b"2024-01-01 00:00:00.000"]
    ),
)


@pytest.mark.parametrize("encode", ENCODERS, ids=lambda encode: f"{encode.__module__}.{json_text.FORMS[encode]}")
@given(value=TEXTS)
@example(value=bytes(range(256)))
@example(value=bytes(range(128)))
@example(value="é\u2028\U0001f600\x7f".encode())
@example(value=b"\xed\xa0\x80")
def test_a_value_is_written_as_its_encoder_writes_it(encode: Callable[[bytes], bytes], value: bytes) -> None:
    def plainly() -> bytes:
        return b'{"a":' + encode(value) + b"}"

    columns = [(b'{"a":', encode)]
    try:
        expected: Any = plainly()
    except (ValueError, IndexError):
        expected = ValueError
    for write in (core.RowWriter(columns), core.KeyWriter(columns, (0,))):
        try:
            found: Any = write((value,))
        except (ValueError, IndexError):
            found = ValueError
        assert found == expected


def test_every_form_is_known() -> None:
    """A name that `compiled` does not know would be called for every value, and nobody would see."""
    assert set(postgres_values.FORMS.values()) | set(mysql_values.FORMS.values()) == set(core.forms())


def test_an_encoder_that_is_not_known_is_called() -> None:
    calls: list[bytes] = []

    def encode(value: bytes) -> bytes:
        calls.append(value)
        return b"[%b]" % value

    assert core.RowWriter([(b'{"a":', encode), (b',"b":', encode)])((b"1", None)) == b'{"a":[1],"b":null}'
    assert calls == [b"1"]


@given(st.integers(0, 200_000))
def test_a_value_of_any_size_is_written(size: int) -> None:
    value = b'"' * (size % 1000) + b"x" * size
    write = core.RowWriter([(b'{"a":', json_text.text)])
    assert write((value,)) == b'{"a":' + json_text.text(value) + b"}"


# ---- events ----

ENCODED = [
    encoder(Table("s", f"t{n}%d", (Column("a%", "text", Kind("string"), json_text.text),), ("a%",)), version=n)
    for n in range(3)
]
MESSAGES = MessageEncoder(connector="c%b", prefix="p", database="d%d")
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=10)
WHERES = st.sampled_from(
    [(b'"txId":null,"lsn":%d', 1), (b'"txId":7,"lsn":%d', 1), (b'"gtid":"100%%d","pos":%d,"row":%d', 2), (b"%d%%", 1)]
)
FRAMES = st.fixed_dictionaries(
    {
        "epoch": st.integers(0, 2**33), "commit": st.integers(-1, 2**64 - 1), "at_ms": st.integers(-5, 2**45),
        "made_at_ms": st.integers(0, 2**45), "transaction": st.one_of(st.none(), st.tuples(TEXT, st.just(5))),
        "view": st.integers(0, 2**33), "snapshot": st.sampled_from(["true", "incremental"]), "alone": st.booleans(),
    }
)  # fmt: skip
STEPS = st.lists(st.one_of(st.sampled_from([*ENCODED, MESSAGES]), st.none()), max_size=12)


@given(FRAMES, WHERES, STEPS, st.data())
def test_a_frame_makes_the_events_that_the_plain_one_makes(
    of: dict[str, Any],
    where: tuple[bytes, int],
    steps: Sequence[TableEncoder | MessageEncoder | None],
    data: st.DataObject,
) -> None:
    """Of several tables and messages, with events left out; numbers go on as if nothing were compiled."""
    plain, made = PlainFrame(**of, where=where[0]), core.Frame(**of, where=where[0])
    places = st.integers(0, 2**63 - 1) if where[1] == 1 else st.tuples(st.integers(0, 2**32), st.integers(0, 2**20))
    for step in steps:
        if step is None:
            plain.skip()
            made.skip()
        elif isinstance(step, MessageEncoder) and where[1] == 1:
            message = Message(data.draw(TEXT), b"\0content", data.draw(places))
            assert made.message(step, message) == plain.message(step, message)
        elif isinstance(step, TableEncoder):
            arguments = (step, b"u", b'{"a":1}', b"null", data.draw(places))
            assert made.event(*arguments) == plain.event(*arguments)
        assert made.next_position() == plain.next_position()
    assert made.counts() == plain.counts()
    assert made.events == plain.events


def test_frames_that_take_turns_count_for_themselves() -> None:
    """What an encoder keeps of the frame before is not the next one's."""

    def frame() -> Any:
        return core.Frame(epoch=1, commit=2, at_ms=3, made_at_ms=4, transaction=("5", 5), where=b'"lsn":%d')

    first, second = frame(), frame()
    for number in range(1, 4):
        one, two = (of.event(ENCODED[0], b"c", b"null", b"{}", 7) for of in (first, second))
        assert one == two
        assert b'"total_order":%d,"data_collection_order":%d}' % (number, number) in one


def test_what_is_refused_leaves_the_numbers_alone() -> None:
    made = core.Frame(epoch=1, commit=2, at_ms=3, made_at_ms=4, transaction=("5", 5), where=b'"lsn":%d')
    with pytest.raises(TypeError):
        made.event(ENCODED[0], b"c", b"null", b"{}", (1, 2))
    with pytest.raises(OverflowError):
        made.event(ENCODED[0], b"c", b"null", b"{}", 1 << 70)
    assert (made.events, made.counts()) == (0, [])


# ---- rows of pgoutput ----


@given(st.lists(st.one_of(MESSAGES_, st.just(None), st.binary(max_size=40)), max_size=20), st.integers(1, 30))
def test_changes_that_have_come_are_what_each_message_says(messages: Sequence[Any], most: int) -> None:
    """Up to one that says none, to where nothing more has come, or to the end of the stream."""
    sent = [
        b"w" + struct.pack(">qqq", n, 1, 2) + pgoutput_encoder.encode(message)
        if message is not None and not isinstance(message, bytes)
        else message
        for n, message in enumerate(messages)
    ]

    def read(of: Any) -> list[Any]:
        left = list(sent)

        def get_copy_data(_async: int) -> tuple[int, memoryview]:
            message = left.pop(0) if left else None
            if message is None:
                return (0 if left else -1), memoryview(b"")
            return len(message), memoryview(message)

        told = []
        while left:
            told.append(of.changes(get_copy_data, most))
        return told

    found = []
    for kind in (postgres.PlainFastPath, module("connectors.postgres.pgoutput.compiled").Straight):
        made = kind()
        made.learn(CAPTURED, len(TABLE.columns), TABLE)
        found.append(read(made))
    assert found[0] == found[1]
    for changes, _, _ in found[1]:
        assert all(type(change) is Change for change in changes)


def framed(message: Any, lsn: int) -> bytes:
    return b"w" + struct.pack(">qqq", lsn, 1, 2) + pgoutput_encoder.encode(message)


def alive(end: int, *, reply: bool) -> bytes:
    return b"k" + struct.pack(">qqB", end, 0, reply)


SMALL = st.builds(
    lambda commit, xid, inside, ended: [
        pgoutput.Begin(commit, 946_684_800_000_000 + xid * 997, xid),
        *inside,
        pgoutput.Commit(commit if ended else commit + 1, commit + 8),
    ],
    st.integers(0, 40).map(lambda n: n * 16),
    st.integers(0, 2**32 - 1),
    st.lists(st.one_of(MESSAGES_, st.builds(alive, st.integers(0, 999), reply=st.booleans())), max_size=4),
    st.sampled_from([True] * 9 + [False]),
)
COMING = st.lists(
    st.one_of(
        SMALL,
        SMALL,
        st.builds(alive, st.integers(0, 999), reply=st.booleans()).map(lambda one: [one]),
        st.sampled_from([[None], [b"k"], [b"x" * 46], [b"w"], [pgoutput.Commit(16, 24)]]),
    ),
    max_size=12,
)


def received(kind: Any, coming: Sequence[Any], after: int, most: int) -> list[Any]:
    """All that is made of it, call by call."""
    made = kind()
    made.learn(CAPTURED, len(TABLE.columns), TABLE)
    left = list(coming)

    def get_copy_data(_async: int) -> tuple[int, memoryview]:
        message = left.pop(0) if left else None
        if message is None:
            return (0 if left else -1), memoryview(b"")
        return len(message), memoryview(message)

    told: list[Any] = []
    while left:
        told.append(tuple(made.transactions(get_copy_data, partial(told.append, "more"), after, most)))
    return told


@given(COMING, st.sampled_from([0, 160]), st.integers(1, 9), st.data())
def test_transactions_that_have_come_are_what_their_messages_say(
    coming: Sequence[Sequence[Any]], after: int, most: int, data: st.DataObject
) -> None:
    """Up to what takes more, to where nothing more has come, or to the end; also cut, and with bytes changed."""
    sent = [
        framed(message, n) if message is not None and not isinstance(message, bytes) else message
        for n, message in enumerate(message for messages in coming for message in messages)
    ]
    if sent and data.draw(st.booleans()):
        which = data.draw(st.integers(0, len(sent) - 1))
        changed = bytearray(sent[which] or b"")
        if len(changed) > 40:
            changed[data.draw(st.sampled_from([0, 25, 33, len(changed) - 1]))] = data.draw(st.integers(0, 255))
            sent[which] = bytes(changed[: data.draw(st.one_of(st.just(len(changed)), st.integers(1, len(changed))))])
    plain = received(postgres.PlainFastPath, sent, after, most)
    found = received(module("connectors.postgres.pgoutput.compiled").Straight, sent, after, most)
    # of an old row the plain one makes nothing, and leaves the transaction there
    assume(all(of == "more" or of[4] is None or of[4][25:26] not in (b"U", b"D") for of in plain))
    assert found == plain
    for whole, _, begun, changes, _, _ in (of for of in found if of != "more"):
        assert all(type(of) is Transaction for of in whole)
        assert begun is None or type(begun) is pgoutput.Begin
        assert all(type(change) is Change for of in whole for change in of.changes)
        assert all(type(change) is Change for change in changes)


def test_what_is_held_of_transactions_is_bounded() -> None:
    """Of several together, and of one, the last of which is not held to its end."""
    wide = pgoutput.Insert(CAPTURED, (b"1", b"x" * 400_000, None))
    of_one, of_many = (
        [framed(message, n) for n, message in enumerate(messages)]
        for messages in (
            [pgoutput.Begin(16, 946_684_800_000_000, 1), wide, pgoutput.Commit(16, 24)] * 9,
            [pgoutput.Begin(16, 946_684_800_000_000, 1), *[wide] * 9, pgoutput.Commit(16, 24)],
        )
    )
    for kind in (postgres.PlainFastPath, module("connectors.postgres.pgoutput.compiled").Straight):
        told = received(kind, of_one, 0, 1000)
        assert [(len(of[0]), len(of[3])) for of in told] == [(2, 1), (0, 0)] * 3  # then comes what ends the open one
        (whole, _, begun, changes, message, said), *_ = received(kind, of_many, 0, 1000)
        assert (whole, len(changes), message, said) == ([], 3, None, 1)
        assert begun == (16, 946_684_800_000_000, 1)


# ---- transactions, written ----

TABLES = [Table("s", f"t{n}", (Column("a", "text", Kind("string"), json_text.text),), ("a",)) for n in range(3)]
FAST_PATHS: dict[int, Any] = {
    id(table): (f"p.{table.name}", fast_path(encoder(table), None, 99)) for table in TABLES[:2]
}
ONES = st.one_of(
    st.sampled_from([(b"1",), (b"2",), (b"3",)]), st.sampled_from([(b"1",), (b"\xff",), (None,), (UNCHANGED,)])
)
TOLD = st.builds(
    Change, st.sampled_from([Op.CREATE, Op.UPDATE, Op.DELETE]), st.sampled_from([*TABLES[:2]] * 5 + TABLES),
    st.one_of(st.none(), ONES), st.one_of(st.none(), ONES), st.integers(0, 99),
)  # fmt: skip
GOOD = st.builds(
    lambda op, table, row: Change(op, table, None, row, 7), st.just(Op.CREATE), st.sampled_from(TABLES[:2]), ONES
)
TRANSACTIONS = st.lists(
    st.builds(
        lambda n, at_ms, changes, held: Transaction(
            f"{n}:{n}", n, n, at_ms, changes if held else iter(changes), b'"txId":%d,"lsn":%%d' % n
        ),
        st.integers(0, 2**40),
        st.integers(-5, 2**41),
        st.lists(st.one_of(GOOD, GOOD, TOLD, st.just(Message("p", b"", 3))), max_size=4),
        st.sampled_from([True] * 9 + [False]),
    ),
    max_size=8,
)


@given(TRANSACTIONS, st.integers(0, 3), st.sampled_from(["", "", "p.t1"]))
def test_transactions_written_at_once_are_those_written_one_by_one(
    transactions: list[Transaction], begin: int, touched: str
) -> None:
    """Each whole or not at all, up to the first of which any change takes more."""
    begin = min(begin, len(transactions))

    def look_up(table: Table) -> tuple[str, Any]:
        return "", lambda *_: None

    def plainly() -> Any:
        events, written = 0, 0
        for of in transactions[begin:]:
            frame = PlainFrame(
                epoch=3,
                commit=of.commit,
                at_ms=of.committed_at_ms,
                made_at_ms=4,
                transaction=(of.id, 1),
                where=of.where,
            )
            made: list[Any] = []
            if not isinstance(of.changes, list):
                return written, events
            for change in of.changes:
                topic, _ = FAST_PATHS.get(id(change.table), ("", None)) if isinstance(change, Change) else ("", None)
                if topic in ("", touched) or (record := _plainly(change, frame)) is None:
                    return written, events
                made.append((topic, *record))
                made += [(topic, record[0], None)] if change.op is Op.DELETE else []
            expected.extend(made)
            written, events = written + 1, events + frame.events
        return written, events

    expected: list[Any] = []
    found: list[Any] = []
    at_once = core.AtOnce(dict(FAST_PATHS), look_up, lambda *record: found.append(record))
    assert at_once(transactions, begin, 3, 4, touched) == plainly()
    assert found == expected


@given(st.lists(ONES, max_size=8), st.integers(0, 3))
def test_rows_that_were_read_are_written_as_each_is_plainly(rows_: list[Any], begin: int) -> None:
    """Up to the first that cannot be written."""

    def frame(kind: Any) -> Any:
        return kind(epoch=1, commit=2, at_ms=3, made_at_ms=4, transaction=None, where=b'"lsn":%d', view=5)

    begin, of = min(begin, len(rows_)), encoder(TABLES[0])
    expected: list[Any] = []
    at = begin
    for at in range(begin, len(rows_) + 1):
        read = [Change(Op.READ, TABLES[0], None, row, 7) for row in rows_[at : at + 1]]
        record = _plainly(read[0], frame(PlainFrame)) if read else None
        if record is None:
            break
        expected.append((of.topic, *record))
    found: list[Any] = []
    assert core.Reading(of, lambda *record: found.append(record))(rows_, begin, frame(core.Frame), 7) == at
    assert found == expected


def _plainly(change: Change, frame: PlainFrame) -> tuple[bytes, bytes] | None:
    """The plain encoder encodes what the fast path takes."""
    of = encoder(change.table)
    row = change.before if change.op is Op.DELETE else change.after
    if row is None or (change.op is Op.DELETE and change.after is not None):
        return None
    try:
        key = of.key_plainly(row)
        if change.op is not Op.DELETE and change.before is not None and of.key_plainly(change.before) != key:
            return None
        before = b"null" if change.before is None else of.image(change.before)
        after = b"null" if change.after is None else of.row_plainly(change.after)
    except (ValueError, OperatorError, BugError):
        return None
    return key, frame.event(of, change.op.value.encode(), before, after, change.lsn)


# ---- batches ----

LOGS = {"a": "log of a", "b": None, "log of a": None, "c": "log of c", "log of c": None}
TOPICS_ = st.sampled_from(["a", "b", "c", "log of a"])
DONE = st.one_of(
    st.tuples(TOPICS_, st.binary(max_size=9), st.one_of(st.none(), st.binary(max_size=90))),
    st.sampled_from(["take", "clear"]),
)
MOST = st.tuples(st.integers(1, 20), st.integers(1, 300), st.integers(1, 200))


@given(
    st.lists(DONE, max_size=60), st.dictionaries(st.sampled_from(sorted(LOGS)), st.integers(1, 4)),
    MOST, st.lists(st.booleans(), max_size=9),
)  # fmt: skip
@example([("c", b"1", None), ("a", b"1", b"x"), "clear", ("c", b"1", b"y"), ("a", b"1", b"z" * 70)], {}, (1, 1, 1), [])
def test_batches_are_those_of_the_plain_ones(done: Any, partitions: Any, most: Any, takes: list[bool]) -> None:
    """What is in them, what is counted, and who is called when; `send` takes, or it does not."""
    told: list[Any] = []
    for kind in (PlainBatches, core.Batches):
        batches, said = _recorded(kind, partitions, takes, most)
        for each in done:
            if isinstance(each, tuple):
                batches.add(*each)
            else:
                said.append((each, getattr(batches, each)()))
            said.append(
                (batches.records, batches.bytes, batches.waiting_records, batches.waiting_bytes, batches.partitions())
            )
        told.append((said, batches.take(), batches.take(), batches.partitions()))
    assert told[0] == told[1]


def _recorded(kind: Any, partitions: Any, takes: list[bool], most: tuple[int, int, int]) -> tuple[Any, list[Any]]:
    """Batches, and what they are heard to ask for."""
    said: list[Any] = []

    def send() -> None:
        sent = sum(each[0] == "send" for each in said)
        said.append(("send", batches.take() if takes and takes[sent % len(takes)] else None))

    def ask(topic: str) -> tuple[int, str | None]:
        said.append(("partitions", topic))
        return partitions.get(topic, 2), LOGS[topic]

    most_records, most_bytes, batch_bytes = most
    batches = kind(
        lambda: said.append(("begin",)), send, ask,
        most_records=most_records, most_bytes=most_bytes, batch_bytes=batch_bytes,
    )  # fmt: skip
    return batches, said


@pytest.mark.parametrize("size", [0, 1, 63, 64, 8191, 8192, 1_048_575, 1_048_576])
def test_batches_of_any_size_are_those_of_the_plain_ones(size: int) -> None:
    """Where lengths take one byte more, and where what is kept between two batches is given back."""
    told: list[Any] = []
    for kind in (PlainBatches, core.Batches):
        batches, said = _recorded(kind, {}, [False], (2, 10, 300_000))
        for n in range(3):
            batches.add("b", b"k" * n, b"v" * size)
            batches.add("b", b"k" * size, None)
        told.append((said, batches.take(), batches.records, batches.bytes))
    assert told[0] == told[1]


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(1, 100))
@example([b"1" * 10, b"2" * 10, b"3" * 90, b"4"], 30)
def test_batches_are_cut_before_they_are_too_large(values: list[bytes], batch_bytes: int) -> None:
    """One of several records is never larger, and no record is missing."""
    for kind in (PlainBatches, core.Batches):
        batches, _ = _recorded(kind, {"b": 1}, [], (99, 9999, batch_bytes))
        for value in values:
            batches.add("b", b"k", value)
        taken = batches.take()
        assert sum(batch.count for batch in taken) == len(values)
        assert all(batch.count == 1 or len(batch.records) <= batch_bytes for batch in taken)


def test_a_transaction_that_cannot_begin_holds_nothing() -> None:
    """It is asked to begin again, as is a topic of which nothing could be had, or of whose log."""

    def fail(*_: str) -> Any:
        raise LookupError

    def fail_of_log(topic: str) -> tuple[int, str | None]:
        return (1, "log") if topic == "a" else fail()

    fails: list[tuple[Any, Any]] = [(fail, fail), (str, fail), (str, fail_of_log)]
    for kind in (PlainBatches, core.Batches):
        for begin, ask in fails:
            batches = kind(begin, fail, ask, most_records=2, most_bytes=10, batch_bytes=10)
            for _ in range(2):
                with pytest.raises(LookupError) as raised:
                    batches.add("a", b"1", b"2")
                assert raised.type is LookupError
            assert (batches.records, batches.bytes, batches.waiting_records, batches.waiting_bytes) == (0, 0, 0, 0)
            assert (batches.take(), batches.partitions()) == ([], 0)


def test_a_send_that_fails_is_called_again() -> None:
    """What it was to take waits on."""
    said: list[str] = []

    def fail() -> None:
        said.append("send")
        raise LookupError

    for kind in (PlainBatches, core.Batches):
        said.clear()
        batches = kind(said.clear, fail, lambda _: (1, None), most_records=2, most_bytes=100, batch_bytes=10)
        batches.add("a", b"1", None)
        for _ in range(2):
            with pytest.raises(LookupError):
                batches.add("a", b"1", None)
        assert (said, batches.waiting_records, sum(batch.count for batch in batches.take())) == (["send"] * 2, 3, 3)


# ---- COPY ----

FIELDS = st.lists(
    st.sampled_from([b"a", b"\\N", b"\\\\", b"\\t", b"\\n", b"\\x", b"\\", b"\t", b"", b"\n", "é".encode()]), max_size=8
)


@given(FIELDS.map(b"".join), st.booleans(), st.integers(1, 4))
def test_a_line_of_copy_is_what_it_is_plainly(text: bytes, ended: bool, columns: int) -> None:
    line = text + b"\n" * ended
    found: list[Any] = []
    for parse in (parse_row, parse_row_plainly):
        try:
            found.append(parse(line, columns))
        except ProtocolError as exc:
            found.append(str(exc))
    assert found[0] == found[1]


# ---- a result of MySQL ----

ANSWERS = st.lists(
    st.tuples(*[st.one_of(st.none(), st.binary(max_size=3), st.just(b"x" * 251), st.just(b"y" * 70_000))] * 2),
    max_size=6,
)


def packed(row: Sequence[bytes | None]) -> bytes:
    def size(n: int) -> bytes:
        return (
            bytes([n])
            if n < 251
            else b"\xfc" + struct.pack("<H", n)
            if n < 65536
            else b"\xfd" + struct.pack("<I", n)[:3]
        )

    return b"".join(b"\xfb" if value is None else size(len(value)) + value for value in row)


@given(ANSWERS, st.integers(0, 255), st.data())
def test_rows_of_a_result_are_what_the_library_reads(answers: Any, number: int, data: st.DataObject) -> None:
    """Cut anywhere, with bytes changed: then fewer, never others. A packet that is not the next one ends it."""
    result = MySQLResult.__new__(MySQLResult)
    result.converters, result.connection, result.unbuffered_active = [(None, None)] * 2, None, False
    parts = []
    for n, row in enumerate(answers):
        body = packed(row)
        parts.append(struct.pack("<I", len(body))[:3] + bytes([(number + n) % 256]) + body)
    sent = b"".join(parts) + b"\x05\0\0" + bytes([(number + len(answers)) % 256]) + b"\xfe\0\0\0\0"
    cut = data.draw(st.integers(0, len(sent)))
    taken, after, rows_ = mysql.text_rows(sent[:cut], 2, number)
    whole = [n for n in range(len(parts)) if sum(map(len, parts[: n + 1])) <= cut]
    assert rows_ == answers[: len(whole)]
    assert taken == sum(map(len, parts[: len(whole)]))
    assert after == (number + len(whole)) % 256
    assert mysql.text_rows(sent, 2, (number + 1) % 256) == (0, (number + 1) % 256, [])
    changed = bytearray(sent)
    if parts:
        changed[data.draw(st.integers(4, len(parts[0]) - 1))] = data.draw(st.integers(0, 255))
        for row in mysql.text_rows(bytes(changed), 2, number)[2][:1]:
            packet = MysqlPacket(bytes(changed[4 : len(parts[0])]), "utf8")
            assert row == result._read_row_from_packet(packet)


def test_a_result_of_other_columns_is_left_to_the_library() -> None:
    body = packed((b"a", b"b"))
    sent = struct.pack("<I", len(body))[:3] + b"\1" + body
    assert mysql.text_rows(sent, 2, 1)[2] == [(b"a", b"b")]
    assert mysql.text_rows(sent, 1, 1) == mysql.text_rows(sent, 3, 1) == (0, 1, [])


# ---- row images of the binlog ----


@given(st.lists(CELLS, min_size=1, max_size=5), st.data())
def test_an_image_is_what_generated_code_reads(cells: Any, data: st.DataObject) -> None:
    """Of any bytes: cut, changed, or made up."""
    columns = tuple(column for column, _, _ in cells)
    present = tuple(data.draw(st.booleans()) for _ in columns)
    assume(any(present))
    shown = [raw for (_, raw, _), there in zip(cells, present, strict=True) if there]
    body = bytearray(mysql_encoder.image(shown, padding=False))
    for _ in range(data.draw(st.integers(0, 3))):
        if body:
            body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    image = bytes(body[: data.draw(st.one_of(st.just(len(body)), st.integers(0, len(body))))])
    if data.draw(st.booleans()):
        image = data.draw(st.binary(max_size=60))

    def read(reader: image_codegen.Read) -> Any:
        try:
            return reader(image, 0)
        except (IndexError, struct.error, OverflowError, ValueError, ProtocolError):
            return None

    assert read(image_codegen.in_c(columns, present)) == read(image_codegen.generated(columns, present))


def test_columns_that_c_reads_by_itself_are_known_to_it() -> None:
    """A name that it does not know would be called for every value, and nobody would see."""
    forms = [
        form
        for column in _every_column()
        if isinstance(form := column_forms.form_of(column), column_forms.Fixed) and form.known
    ]
    assert {form.known[0] for form in forms if form.known} == set(mysql.kinds())


def _every_column() -> list[TableColumn]:
    made = [
        TableColumn("n", kind, 0, nullable=True, unsigned=unsigned)
        for kind in (1, 2, 3, 8, 9)
        for unsigned in (False, True)
    ]
    made.append(TableColumn("d", 246, 10 << 8 | 2, nullable=True, unsigned=False))
    return made + [TableColumn("t", kind, 3, nullable=True) for kind in (10, 17, 18, 19)]


# ---- transactions of the binlog ----

DESCRIBED = events.FormatDescription(mysql_encoder.header(15), 4, "9.7.4", 0, b"\0\x0d\0\x08" * 10, checksum=True)

UUID_ = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
HEAD = mysql_encoder.header
NUMBERS = (TableColumn("n", 3, 0, nullable=False, unsigned=False, visible=True),)
MAP = events.TableMap(HEAD(19), 91, 1, "dev", "orders", NUMBERS, ((0, 0),))
OTHERS = MAP._replace(table_id=92, table="others")
"""Of a table that is not captured."""
TWICE = MAP._replace(table_id=93)
BEGIN = events.Query(HEAD(2), 9, 0, "dev", "BEGIN", "utf8mb4", None)
FIVE = b"\0" + struct.pack("<i", 5)


def mapped(event: events.Event, before: Sequence[events.Event]) -> bool:
    """Rows are of a table that was described: a server writes no others."""
    maps = [of.table_id for of in before if isinstance(of, events.TableMap)]
    return not isinstance(event, events.Rows) or event.table_id in maps


INSIDE = st.lists(
    st.sampled_from(
        [
            MAP, MAP, OTHERS, TWICE,
            events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\1", FIVE),
            events.Rows(HEAD(31), Op.UPDATE, 91, 1, 1, b"\1", b"\xff", FIVE * 2),
            events.Rows(HEAD(25), Op.DELETE, 92, 0, 1, b"\1", b"", FIVE),
            events.Rows(HEAD(25), Op.DELETE, 91, 0, 1, b"\1", b"", FIVE * 3),
            events.Rows(HEAD(30), Op.CREATE, 93, 1, 1, b"", b"\1", FIVE),
            events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\0", b""),
            events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\1", FIVE[:3]),
            events.RowsQuery(HEAD(29), "INSERT …"),
            events.Query(HEAD(2), 9, 0, "dev", "SAVEPOINT a", "utf8mb4", None),
        ]
    ),
    max_size=6,
).map(lambda inside: [of for n, of in enumerate(inside) if mapped(of, inside[:n])])  # fmt: skip
AT_US = st.sampled_from([0, 5, 1_795_000_000_000_000])
WHOLE = st.tuples(
    INSIDE, st.sampled_from([7, 8, 8, 9, 12]), AT_US, st.booleans(), st.sampled_from([True] * 5 + [False])
)
"""Transactions: what is in them, number, time, without a GTID, with an end."""


def laid_out(transactions: Sequence[Any], described: events.FormatDescription) -> list[bytes]:
    """Events one behind the other, as the file has them."""
    told: list[events.Event] = [described]
    for inside, gno, at_us, anonymous, ended in transactions:
        told.append(
            events.AnonymousGtid(HEAD(34), 1, 2, at_us, at_us, 400)
            if anonymous
            else events.Gtid(HEAD(33), UUID_, "", gno, 1, 2, at_us, at_us, 400)
        )
        told += [BEGIN, *inside, *([events.Xid(HEAD(16), 3)] if ended else [])]
    sent, at = [], 4
    for event in told:
        checksum = described.checksum or event is described
        at += len(mysql_encoder.encode(event, checksum=checksum))
        sent.append(mysql_encoder.encode(event._replace(header=event.header._replace(log_pos=at)), checksum=checksum))
    return sent


def followed(dump: Dump, *, by_gtid: bool, done: int) -> tuple[list[Transaction], Any, Any, int]:
    """Transactions with changes, the position, what ended it, and how many were read at once."""
    made = mysql_source(NUMBERS, f"{UUID_}:1-6", by_gtid=by_gtid, done=done)
    found: list[Transaction] = []
    at_once = 0
    try:
        for frame in made._frames(dump, BinlogPosition("b%.000007", 4)):  # type: ignore[arg-type]
            several = frame.transactions if isinstance(frame, TransactionBatch) else []
            at_once += len(several)
            for transaction in [frame] if isinstance(frame, Transaction) else several:
                changes = list(transaction.changes)
                if changes:
                    found.append(transaction._replace(changes=changes))
    except (EOFError, CdcError) as exc:
        told = (
            str(exc).partition(":")[0] if isinstance(exc, GapError) else str(exc)
        )  # what is read at once has no names
        return found, made.position(), (type(exc), told), at_once
    return found, made.position(), None, at_once


@given(st.lists(WHOLE, max_size=5), st.booleans(), st.booleans(), st.sampled_from([0, 0, 400]), st.data())
def test_transactions_that_are_read_at_once_are_what_their_events_are(
    transactions: Sequence[Any], checksum: bool, by_gtid: bool, done: int, data: st.DataObject
) -> None:
    """Cut, changed, without their ends: the same transactions, the same position, the same refusal."""
    sent = laid_out(transactions, DESCRIBED._replace(checksum=checksum))
    if data.draw(st.booleans()):
        which = data.draw(st.integers(0, len(sent) - 1))
        changed = bytearray(sent[which])
        at = data.draw(st.integers(0, len(changed) - 1))
        assume(checksum or not 19 <= at < 25)  # a table's number may be one that an earlier transaction had
        changed[at] = data.draw(st.integers(0, 255))
        sent[which] = bytes(changed)
    buffer = b"".join(struct.pack("<I", len(raw) + 1)[:3] + b"\1\0" + raw for raw in sent)
    come = buffer[: data.draw(st.one_of(st.just(len(buffer)), st.integers(0, len(buffer))))]
    done = done and 7 << 32 | done
    *plainly, none = followed(Dump(come, at_once=False), by_gtid=by_gtid, done=done)
    *found, _ = followed(Dump(come, at_once=True), by_gtid=by_gtid, done=done)
    assert found == plainly
    assert none == 0


SIMPLE = [MAP, events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\1", FIVE * 2)]


@pytest.mark.parametrize("anonymous", [False, True])
def test_what_nearly_all_transactions_are_is_read_at_once(anonymous: bool) -> None:
    """But for the first, from which maps and BEGIN are known: it would prove little if the full path did it all."""
    transactions = [(SIMPLE, gno, 1_795_000_000_000_000, anonymous, True) for gno in range(7, 1507)]
    sent = laid_out(transactions, DESCRIBED)
    buffer = b"".join(struct.pack("<I", len(raw) + 1)[:3] + b"\1\0" + raw for raw in sent)
    found, position, ended, at_once = followed(Dump(buffer, at_once=True), by_gtid=True, done=0)
    assert (len(found), ended) == (1500, (EOFError, ""))
    assert at_once >= 1499
    assert position[0]["gtids"] == (f"{UUID_}:1-6" if anonymous else f"{UUID_}:1-1506")


def test_what_is_long_is_read_event_by_event() -> None:
    rows = events.Rows(HEAD(30), Op.CREATE, 91, 1, 1, b"", b"\1", FIVE * 20_000)
    sent = laid_out([(SIMPLE, 7, 0, False, True), ([MAP, rows], 8, 0, False, True)], DESCRIBED)
    buffer = b"".join(struct.pack("<I", len(raw) + 1)[:3] + b"\1\0" + raw for raw in sent)
    found, _, ended, at_once = followed(Dump(buffer, at_once=True), by_gtid=True, done=0)
    assert [len(of.changes) for of in found] == [2, 20_000]  # type: ignore[arg-type]
    assert ended == (EOFError, "")
    assert at_once <= 1


def test_writers_are_the_compiled_ones() -> None:
    """The factories that everything uses."""
    assert isinstance(row_codegen.row_writer([(b'{"a":', json_text.text)]), core.RowWriter)
    with pytest.raises((OperatorError, ValueError)):
        ENCODED[0].row((b"\xff",))
