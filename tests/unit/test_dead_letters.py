"""Events that cannot be written: they stop the loop, or go whole to a topic of their own, and the loop goes on."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Report, Settings
from cdc.config.source_config import SourceConfig
from cdc.encode.dead_letters import PIECE_BYTES, DeadLetters, refusal
from cdc.model.change import UNCHANGED, Change, Message, Op, Row, Table
from cdc.model.errors import OperatorError, TooLargeError
from cdc.rules.capture_rules import NO_RULES, CaptureRules
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, insert, update
from cdc.testing.faults import At, nothing
from cdc.testing.kafka import Outcome, Record
from tests.text_tables import text_column, text_table

A = text_table("a", ["id", "note"])
WIDE = text_table("w", ["id", "note", text_column("doc", toastable=True), text_column("more", toastable=True)])
LIMIT = 20_000
LONG = b"w" * 2_100
BAD = b"secret\xff"


class Bench:
    """A log, and a broker that takes records of 20 kB."""

    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka(largest_bytes=LIMIT)
        self.reports: list[Report] = []

    def run(
        self,
        *tables: Table,
        dead_letters: bool = True,
        chunk_rows: int = 1,
        at: At = nothing,
        rules: CaptureRules = NO_RULES,
    ) -> None:
        Pipeline(
            Settings(
                connector="c",
                prefix="p",
                chunk_rows=chunk_rows,
                logs=frozenset(["dead-letter"] if dead_letters else []),
                rules=rules,
            ),
            open_source=lambda: MemorySource(self.log, tables),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=2, at=at),
            sink=MemorySink(self.kafka, "c", "p"),
            observe=self.reports.append,
        ).run(until_caught_up=True)

    def read_again(self, table: Table, *keys: tuple[bytes, ...]) -> None:
        """As `cdc snapshot start` asks for it."""
        command = Command(tables=(table.qualified,), keys=keys).to_bytes("1")
        record = Record("p.signal-c", b"1", command, self.kafka.begin("cli"))
        self.kafka.topics["p.signal-c"].append(record)
        self.kafka.end("cli", Outcome.COMMITTED)

    def letters(self) -> list[dict[str, Any]]:
        return [orjson.loads(r.value or b"") for r in self.kafka.committed("p.dead-letter-c")]

    def count(self) -> int:
        state = self.kafka.state("p", "c")
        assert state is not None
        return state.dead_letters

    def fold(self, table: Table) -> dict[str, dict[str, Any]]:
        last = {r.key: r.value for r in self.kafka.committed(f"p.{table.qualified}")}
        rows = [orjson.loads(value)["after"] for value in last.values() if value is not None]
        return {row["id"]: row for row in rows}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def full(table: Table, op: Op, before: Row, after: Row | None) -> Change:
    """A change of a table whose old rows are logged whole."""
    return Change(op, table, before, after, 0)


def test_a_value_no_encoder_takes(bench: Bench) -> None:
    """The rest of its transaction is published, the letter has the whole row, and the count is kept."""
    bench.run(A)
    bench.log.commit(insert(A, (b"1", b"x")), insert(A, (b"2", BAD)), insert(A, (b"3", b"z")))
    bench.run(A)
    assert sorted(bench.fold(A)) == ["1", "3"]
    (letter,) = bench.letters()
    position = letter.pop("position")
    assert position == "00000001.0000000000000010.00000002"
    del letter["ts_ms"]
    assert letter == {
        "schema": "s", "table": "a", "schema_version": 1, "lsn": 12, "txId": 1, "op": "c", "columns": ["note"],
        "reason": "the value of note cannot be written as JSON", "key": {"id": "2"}, "before": None,
        "after": {"id": base64.b64encode(b"2").decode(), "note": base64.b64encode(BAD).decode()},
        "part": 1, "parts": 1,
    }  # fmt: skip
    bench.run(A)
    bench.log.commit(update(A, (b"2", b"mended")))
    bench.run(A)
    assert bench.fold(A)["2"] == {"id": "2", "note": "mended"}
    assert bench.count() == len(bench.letters()) == 1


def test_rows_of_a_snapshot(bench: Bench) -> None:
    """Also those: the others of the chunk are read."""
    bench.log.commit(*(insert(A, (b"%d" % n, BAD if n == 3 else b"x")) for n in range(1, 6)))
    with pytest.raises(OperatorError, match=r"table s\.a, event .*: the value of note .* \(key columns: id\)"):
        bench.run(A, dead_letters=False)
    bench.run(A)
    assert sorted(bench.fold(A)) == ["1", "2", "4", "5"]
    assert [(v["op"], v["key"]) for v in bench.letters()] == [("r", {"id": "3"})]


def test_a_key_no_encoder_takes(bench: Bench) -> None:
    """It has no JSON; of a key change, the old key is deleted all the same."""
    bench.run(A)
    bench.log.commit(insert(A, (BAD, b"x")), insert(A, (b"1", b"y")))
    bench.log.commit(update(A, (BAD + b"2", b"y"), key=(b"1",)))
    bench.run(A)
    assert bench.fold(A) == {}
    assert [v["key"] for v in bench.letters()] == [None, None]


def test_a_key_no_encoder_takes_of_a_table_with_a_condition(bench: Bench) -> None:
    """Of a key change the old key is deleted."""
    rules = CaptureRules.of_source(
        SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.a",), where={"s.a": "note IS NOT NULL"})
    )
    bench.run(A, rules=rules)
    bench.log.commit(insert(A, (b"1", b"x")), insert(A, (b"2", None)))
    bench.log.commit(update(A, (BAD, b"x"), key=(b"1",)))
    bench.run(A, rules=rules)
    assert (bench.fold(A), bench.count()) == ({}, 1)


@pytest.mark.parametrize("bad", [0, 2], ids=["its key", "a value"])
@pytest.mark.parametrize("was", ["not there", "seen", "hidden"])
@pytest.mark.parametrize("seen", [True, False])
def test_no_row_that_a_condition_hides_is_in_a_dead_letter_or_an_event(
    bench: Bench, bad: int, was: str, *, seen: bool
) -> None:
    """With the old row logged whole: neither what it was nor what it is now, where readers do not see it."""
    rules = CaptureRules.of_source(
        SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.a",), where={"s.a": "note IS NOT NULL"})
    )
    table = text_table("a", ["id", "note", "more"])
    bench.run(table, rules=rules)
    old: Row = (b"1", b"seen" if was == "seen" else None, b"was")
    new: list[Any] = [b"2", b"seen" if seen else None, b"is"]
    new[bad] = BAD
    if was != "not there":
        bench.log.commit(insert(table, old))
    change = insert(table, tuple(new))
    bench.log.commit(change if was == "not there" else change._replace(op=Op.UPDATE, before=old))
    bench.run(table, rules=rules)
    assert bench.fold(table) == {}
    events = [orjson.loads(record.value) for record in bench.kafka.committed("p.s.a") if record.value]
    assert [event["op"] for event in events] == (["c", "d"] if was == "seen" else [])
    assert len(bench.letters()) == bench.count() == seen
    for letter in bench.letters():
        assert [image is not None for image in (letter["before"], letter["after"])] == [was == "seen", True]


@pytest.mark.parametrize("after", [None, (b"7", None), (b"8", None), (b"7", b"seen"), (b"8", b"seen")])
def test_a_hidden_row_is_in_no_event_while_its_table_is_read_again(bench: Bench, after: Row | None) -> None:
    """Its delete is written then, for an earlier condition may have shown it: of the old row it has the key alone."""
    rules = CaptureRules.of_source(
        SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.a",), where={"s.a": "note IS NOT NULL"})
    )
    table = text_table("a", ["id", "note", "more"])
    bench.run(table, rules=rules)
    hidden: Row = (b"7", None, b"hidden")
    bench.log.commit(insert(table, (b"1", b"seen", b"shown")), insert(table, hidden))
    bench.run(table, rules=rules)
    bench.read_again(table)
    change = insert(table, hidden)._replace(op=Op.DELETE, before=hidden)
    then = None if after is None else (*after, b"hidden" if after[1] is None else b"shown")
    changes = [change._replace(op=Op.DELETE if then is None else Op.UPDATE, after=then)]

    def changed(step: str) -> None:
        if step == "snapshot.window" and changes:
            bench.log.commit(changes.pop())

    bench.run(table, rules=rules, at=changed)
    values = [record.value or b"" for record in bench.kafka.committed("p.s.a")]
    assert not changes
    assert any(b"shown" in value for value in values)
    assert not any(b"hidden" in value for value in values)
    assert len(bench.fold(table)) == (2 if after and after[1] else 1)


@pytest.mark.parametrize("seen", [True, False])
def test_of_a_key_no_encoder_takes_nothing_is_told_that_a_condition_hides(bench: Bench, *, seen: bool) -> None:
    """Whether it stays, goes, or comes, and whatever is logged of the old row."""
    rules = CaptureRules.of_source(
        SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.a",), where={"s.a": "note IS NOT NULL"})
    )
    bench.run(A, rules=rules)
    row, moved = ((key, b"seen" if seen else None) for key in (BAD, BAD + b"2"))
    change = insert(A, row)
    for what in (
        change,
        change._replace(op=Op.UPDATE),
        change._replace(op=Op.UPDATE, before=row),
        change._replace(op=Op.UPDATE, before=row, after=moved),
        change._replace(op=Op.DELETE, before=moved, after=None),
    ):
        bench.log.commit(what)
    bench.run(A, rules=rules)
    assert (bench.fold(A), bench.count()) == ({}, 5 if seen else 0)


def test_a_key_no_encoder_takes_that_is_asked_for(bench: Bench) -> None:
    """By a command, as of a row whose condition its event does not tell."""
    bench.log.commit(insert(A, (b"1", b"x")))
    bench.run(A)
    bench.log.commit(insert(A, (BAD, b"y")))
    bench.run(A)
    bench.read_again(A, (BAD,), (b"1",))
    bench.run(A)
    assert ([v["op"] for v in bench.letters()], bench.fold(A)) == (["c", "r"], {"1": {"id": "1", "note": "x"}})


def test_a_key_no_encoder_takes_behind_a_record_too_large(bench: Bench) -> None:
    """What the broker has refused is noted by key then, and the old key is deleted all the same."""
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.run(A)
    bench.log.commit(insert(A, (b"1", b"x")), insert(A, (b"2", b"y" * 3 * PIECE_BYTES)))
    bench.log.commit(update(A, (BAD, b"x"), key=(b"1",)))
    bench.run(A)
    assert (bench.fold(A), bench.count()) == ({}, 2)


def test_a_key_no_encoder_takes_while_the_table_is_read_again(bench: Bench) -> None:
    """The row was read already: nothing but its event says that it has no longer the key that it had."""
    bench.run(A)
    bench.log.commit(*(insert(A, (b"%d" % n, b"x")) for n in range(1, 6)))
    bench.run(A)
    bench.read_again(A)
    windows = 0

    def changes(step: str) -> None:
        nonlocal windows
        windows += step == "snapshot.window"
        if step == "snapshot.window" and windows == 3:
            bench.log.commit(update(A, (BAD, b"x"), key=(b"1",)))

    bench.run(A, at=changes)
    assert sorted(bench.fold(A)) == ["2", "3", "4", "5"]


def test_an_old_row_that_cannot_be_written_costs_no_event(bench: Bench) -> None:
    """With the old row logged whole: its correction and its delete are events, with the key."""
    bench.run(A)
    bench.log.commit(insert(A, (b"1", BAD)), insert(A, (b"2", BAD)))
    bench.log.commit(full(A, Op.UPDATE, (b"1", BAD), (b"1", b"mended")), full(A, Op.DELETE, (b"2", BAD), None))
    bench.run(A)
    events = [orjson.loads(r.value) for r in bench.kafka.committed("p.s.a") if r.value]
    assert [(e["op"], e["before"], e["after"]) for e in events] == [
        ("u", {"id": "1"}, {"id": "1", "note": "mended"}),
        ("d", {"id": "2"}, None),
    ]
    assert len(bench.letters()) == 2


@pytest.mark.parametrize("restart", [False, True])
def test_what_an_event_leaves_out_is_never_filled_from_before_a_dead_letter(bench: Bench, *, restart: bool) -> None:
    """A toastable value went to the dead letters; updates that leave it out go there too, until one sends it again.

    What was sent beside it is known, from this process or from the letters.
    """
    bench.run(WIDE)
    bench.log.commit(insert(WIDE, (b"1", b"a", LONG, b"old")))
    for change in (
        update(WIDE, (b"1", b"b", BAD * 400, b"new")),
        update(WIDE, (b"1", b"c", UNCHANGED, UNCHANGED)),
    ):
        bench.log.commit(change)
        if restart:
            bench.run(WIDE)
    bench.run(WIDE)
    assert bench.fold(WIDE)["1"] == {"id": "1", "note": "a", "doc": LONG.decode(), "more": "old"}
    assert [v["columns"] for v in bench.letters()] == [["doc"], ["doc"]]
    bench.log.commit(update(WIDE, (b"1", b"d", b"v" * 2_100, UNCHANGED)))
    bench.run(WIDE)
    assert bench.fold(WIDE)["1"] == {"id": "1", "note": "d", "doc": "v" * 2_100, "more": "new"}
    bench.log.commit(update(WIDE, (b"1", b"e", UNCHANGED, UNCHANGED)))
    bench.run(WIDE)
    assert bench.fold(WIDE)["1"] == {"id": "1", "note": "e", "doc": "v" * 2_100, "more": "new"}
    assert bench.count() == 2


def test_a_row_that_the_source_does_not_show_yet_is_asked_for_once_more(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its commit is in the log and not visible, and the topic does not have what the event leaves out."""
    bench.run(WIDE)
    bench.log.commit(insert(WIDE, (b"1", b"a", LONG, b"m")))
    bench.run(WIDE)
    bench.kafka.topics[f"p.{WIDE.qualified}"].clear()
    bench.log.commit(update(WIDE, (b"1", b"b", UNCHANGED, b"n")))
    for of in ("row", "row_written_last"):
        monkeypatch.setattr(MemorySnapshotter, of, lambda *_: None)
    bench.run(WIDE)
    assert bench.fold(WIDE)["1"] == {"id": "1", "note": "b", "doc": LONG.decode(), "more": "n"}


def test_a_record_larger_than_the_broker_takes(bench: Bench) -> None:
    """It stops with table, key columns and size, or is a dead letter; what is large is never cut."""
    bench.run(A)
    bench.log.commit(insert(A, (b"1", b"x")), insert(A, (b"2", b"secret" * LIMIT)), insert(A, (b"3", b"z")))
    with pytest.raises(OperatorError) as caught:
        bench.run(A, dead_letters=False)
    assert "table s.a, event 00000001.0000000000000010.00000002: a record of 120" in caught.value.message
    assert caught.value.message.endswith("(key columns: id)")
    assert "secret" not in str(caught.value)
    assert bench.fold(A) == {}
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.log.commit(insert(A, (b"4", b"secret" * PIECE_BYTES)), update(A, (b"4", b"short")))
    bench.run(A)
    assert sorted(bench.fold(A)) == ["1", "2", "3", "4"]
    letters = bench.letters()
    assert [(v["part"], v["parts"]) for v in letters] == [(n, len(letters)) for n in range(1, len(letters) + 1)]
    assert len(letters) > 5
    pieces = [base64.b64decode(v["after"]["note"]) for v in letters if "note" in v["after"]]
    assert b"".join(pieces) == b"secret" * PIECE_BYTES
    assert bench.count() == 1


def test_a_record_too_large_for_its_old_row(bench: Bench) -> None:
    """The event goes without the old row's values before it becomes a dead letter; so a delete is never lost."""
    bench.run(A)
    big = b"b" * (LIMIT // 2)
    bench.log.commit(insert(A, (b"1", big)), insert(A, (b"2", big)))
    bench.log.commit(full(A, Op.UPDATE, (b"1", big), (b"1", big)))
    bench.log.commit(full(A, Op.DELETE, (b"2", big * 3), None))
    bench.run(A)
    events = [orjson.loads(r.value) for r in bench.kafka.committed("p.s.a") if r.value]
    assert [(e["op"], e["before"]) for e in events][2:] == [("u", {"id": "1"}), ("d", {"id": "2"})]
    assert bench.letters() == []


def test_a_snapshots_row_and_a_message_too_large(bench: Bench) -> None:
    """Whatever is an event can be a dead letter."""
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.log.commit(insert(A, (b"1", b"x" * 3 * PIECE_BYTES)), insert(A, (b"2", b"y")))
    bench.run(A)
    bench.log.commit(Message("p", b"m" * 3 * PIECE_BYTES, 0), insert(A, (b"3", b"z")))
    bench.log.say("q", b"n" * 3 * PIECE_BYTES)
    bench.run(A)
    assert sorted(bench.fold(A)) == ["2", "3"]
    assert [(v["op"], v["key"]) for v in bench.letters() if v["part"] == 1] == [
        ("r", {"id": "1"}),
        ("m", {"prefix": "p"}),
        ("m", {"prefix": "q"}),
    ]
    assert bench.count() == 3


def test_what_the_topic_has_of_a_dead_letter_goes_when_the_table_is_read_again(bench: Bench) -> None:
    """Until then it stays. After it, nothing says how old it is, and it may follow rules that are no more."""
    bench.run(A)
    bench.log.commit(insert(A, (b"1", b"x")), insert(A, (b"2", b"y")))
    bench.log.commit(update(A, (b"1", BAD)))
    bench.run(A)
    assert sorted(bench.fold(A)) == ["1", "2"]
    bench.read_again(A)
    bench.run(A)
    assert (sorted(bench.fold(A)), bench.count()) == (["2"], 2)
    bench.log.commit(update(A, (b"1", b"z")))
    bench.run(A)
    assert bench.fold(A)["1"] == {"id": "1", "note": "z"}


@pytest.mark.parametrize("small", [None, "the row", "the limit"])
def test_rows_too_large_that_are_read_again_while_the_log_goes_on(bench: Bench, small: str | None) -> None:
    """Each reading has another place in the log: the table is read to its end, and no row is refused for what it was.

    `small`: what has another size once the broker has refused the second row.
    """
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.run(A)
    large = b"x" * 3 * PIECE_BYTES
    bench.log.commit(*(insert(A, (b"%d" % n, large if n in (2, 3) else b"x")) for n in range(1, 6)))
    bench.run(A)
    assert (sorted(bench.fold(A)), bench.count()) == (["1", "4", "5"], 2)
    bench.read_again(A)
    windows = 0

    def goes_on(step: str) -> None:
        nonlocal windows
        if step != "snapshot.window":
            return
        windows += 1
        assert windows < 20, "it is read again and again"
        bench.log.commit((insert if windows == 1 else update)(A, (b"9", b"%d" % windows)))
        if windows == 3 and small == "the row":
            bench.log.commit(update(A, (b"2", b"y")))

    bench.run(A, chunk_rows=5, at=goes_on)
    now = {"1", "4", "5", "9"} | ({"2"} if small == "the row" else set())
    assert (set(bench.fold(A)), bench.count()) == (now, 3 if small == "the row" else 4)
    if small == "the limit":
        bench.kafka.largest_bytes = 4 * PIECE_BYTES
        bench.read_again(A)
        bench.run(A, chunk_rows=5, at=goes_on)
        assert (set(bench.fold(A)), bench.count()) == (now | {"2", "3"}, 4)


def test_a_row_too_large_that_is_written_all_the_time_is_read_again(bench: Bench) -> None:
    """Its events are dead letters themselves: they are no reason to try its row once more."""
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.run(A)
    large = b"x" * 3 * PIECE_BYTES
    bench.log.commit(*(insert(A, (b"%d" % n, large if n == 2 else b"x")) for n in range(1, 5)))
    bench.run(A)
    bench.read_again(A)
    windows = 0

    def goes_on(step: str) -> None:
        nonlocal windows
        if step == "snapshot.window":
            windows += 1
            assert windows < 40, "it is read again and again"
            if windows < 6:
                bench.log.commit(update(A, (b"2", large + b"%d" % windows)))

    bench.run(A, chunk_rows=5, at=goes_on)
    assert set(bench.fold(A)) == {"1", "3", "4"}


def test_what_was_refused_slows_nothing_down_once_it_is_a_dead_letter(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing behind a commit is looked up among what the broker has refused: the fast path takes it."""
    noted: list[bool] = []
    committed = DeadLetters.committed

    def note(letters: DeadLetters) -> None:
        before = letters.refuses
        committed(letters)
        noted.append(before and letters.refuses)

    monkeypatch.setattr(DeadLetters, "committed", note)
    bench.run(A)
    bench.kafka.largest_bytes = 2 * PIECE_BYTES
    bench.log.commit(insert(A, (b"1", b"x" * 3 * PIECE_BYTES)))
    bench.run(A)
    assert (bench.count(), any(noted)) == (1, False)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ('"db":"shop","schema":"public","table":"t",', "table public.t"),
        ('"db":"shop","table":"t",', "table shop.t"),  # MySQL
        ('"db":"shop","schema":"","table":"",', "a message"),
        ("", "topic p.s.t"),  # of a flat topic
    ],
)
def test_what_is_too_large_is_named(source: str, what: str) -> None:
    """As far as its record tells; its position is known in any case."""
    value = f'{{"source":{{{source}"position":"1.2.3"}}}}'.encode()
    error = TooLargeError("it is too large", hint="h", topic="p.s.t", key=b'{"id":1}', value=value)
    found = refusal(error)
    assert found is not None
    assert found[0] == ("p.s.t", b'{"id":1}', "1.2.3")
    assert found[1].message == f"{what}, event 1.2.3: it is too large (key columns: id)"
