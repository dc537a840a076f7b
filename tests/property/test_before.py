"""`sink.before: topic`: the `before` of an event is the row that a reader of the topic has, whatever came before it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import orjson
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import cdc.encode.truncates
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.published.column_rules import ColumnRules
from cdc.formats.reading import Reading
from cdc.formats.wires import RegisteredWires
from cdc.model.change import Change, Table
from cdc.model.state import Key
from cdc.rules.capture_rules import NO_RULES, CaptureRules
from cdc.rules.flat import Formats
from cdc.testing import (
    Killed,
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Outcome,
    Record,
    delete,
    insert,
    truncate,
    update,
)
from tests.text_tables import text_column, text_table
from tests.unit.test_formats import MemoryRegistry

TABLE = text_table("t", ["id", "note", "more"])
NUMBER = (replace(text_column("more"), type="integer"),)
Row: TypeAlias = dict[str, Any]


class Bench:
    def __init__(self, form: str, **kafka: int) -> None:
        self.log, self.kafka, self.registry, self.form = (
            MemoryLog(),
            MemoryKafka(**kafka),
            MemoryRegistry(),
            Formats(form),
        )
        self.reading = Reading(self.registry.schemas.get)
        self.rows: dict[Key, int] = {}
        self.made = 0

    def run(self, table: Table = TABLE, *, dies_at: int | None = None, rules: CaptureRules = NO_RULES) -> None:
        calls = [0]

        def at(point: str) -> None:
            calls[0] += point.startswith(("sink.commit", "sink.write", "sink.fenced"))
            if dies_at is not None and calls[0] > dies_at:
                raise Killed

        pipeline = Pipeline(
            Settings(
                connector="c", prefix="p", chunk_rows=2, formats=self.form, before_of_topic=True,
                logs=frozenset(["dead-letter"]), rules=rules,
                wires=RegisteredWires(self.form, registry=self.registry),
            ),
            open_source=lambda: MemorySource(self.log, [table], at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=2, at=at),
            sink=MemorySink(self.kafka, "c", "p", reading=self.reading, at=at),
        )  # fmt: skip
        try:
            pipeline.run(until_caught_up=True)
        except Killed:
            pass

    def ask_to_read_again(self) -> None:
        key = b"%d" % len(self.kafka.topics["p.signal-c"])
        told = Command(tables=(TABLE.qualified,)).to_bytes(key.decode())
        self.kafka.topics["p.signal-c"].append(Record("p.signal-c", key, told, self.kafka.begin("cli")))
        self.kafka.end("cli", Outcome.COMMITTED)

    def events(self) -> list[Row]:
        return [orjson.loads(of.value) for of in self.kafka.committed("p.s.t") if of.value is not None]

    def newest(self) -> list[tuple[bytes, bytes]]:
        last = {record.key: record.value for record in self.kafka.committed("p.s.t")}
        return [(key, value) for key, value in last.items() if value is not None]

    def check(self) -> int:
        """Fold the topic record by record; return how many events had a row to be taken back."""
        held: dict[bytes, Any] = {}
        found = 0
        for record in self.kafka.committed("p.s.t"):
            if record.value is None:
                held.pop(record.key, None)
                continue
            event = orjson.loads(self.reading.json(record.value))
            expected = held.get(record.key)
            if event["op"] in "ud":
                assert event["before"] == expected or (expected is None and event["op"] == "d"), event
                found += expected is not None
            else:
                assert event["before"] is None
            held[record.key] = event["after"]
        return found

    def change(self, what: str, key: Key, to: Key) -> Change | None:
        """Make a change that the rows allow."""
        self.made += 1
        row = (key[0], b"%d" % self.made, b"m" * (self.made % 3))
        if what == "truncate":
            self.rows.clear()
            return truncate(TABLE)
        if key not in self.rows:
            self.rows[key] = 1
            return insert(TABLE, row)
        if what == "delete":
            del self.rows[key]
            return delete(TABLE, key)
        if what == "move" and to not in self.rows:
            del self.rows[key]
            self.rows[to] = 1
            return update(TABLE, (to[0], *row[1:]), key=key)
        return update(TABLE, row)


KEYS = st.sampled_from([(b"1",), (b"2",), (b"3",)])
STEPS = st.one_of(
    st.tuples(st.sampled_from(["update", "update", "update", "delete", "move", "truncate"]), KEYS, KEYS),
    st.sampled_from(["commit", "commit", "run", "run", "again"]),
    st.tuples(st.just("die"), st.integers(0, 40)),
)
TWICE = [("update", (b"1",), (b"1",))] * 2


@pytest.mark.parametrize("form", ["envelope", "avro", "protobuf"])
@settings(max_examples=40)
@given(steps=st.lists(STEPS, max_size=30))
@example(steps=[*TWICE, "run", *TWICE, "commit", "run", "again", *TWICE, "run", ("truncate", (b"1",), (b"1",)), "run"])
@example(steps=["run", *TWICE, ("die", 1), *TWICE, "run", ("move", (b"1",), (b"2",)), ("delete", (b"2",), (b"2",))])
def test_before_is_what_a_reader_has(form: str, steps: list[Any]) -> None:
    """Through snapshot, restart, crash, key change, re-read and truncate; the first event of a key has none."""
    bench = Bench(form)
    changes: list[Change] = []
    for step in [*steps, "commit", "run"]:
        if isinstance(step, tuple) and step[0] != "die":
            change = bench.change(*step)
            changes += [change] if change is not None else []
            continue
        if changes:
            bench.log.commit(*changes)
            changes = []
        if step == "again" and "p.signal-c" in bench.kafka.topics:
            bench.ask_to_read_again()
        elif isinstance(step, tuple):
            bench.run(dies_at=step[1])
        elif step == "run":
            bench.run()
    bench.check()


def test_a_truncate_of_many_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its deletes come in parts, behind a reading."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 1)
    bench = Bench("envelope")
    bench.log.commit(*(insert(TABLE, (b"%d" % n, b"a", b"b")) for n in range(5)))
    bench.run()
    bench.log.commit(truncate(TABLE))
    bench.run()
    assert bench.check() == 5


def test_a_row_of_an_earlier_version() -> None:
    """Columns that are new are left out of it: nobody has published what they were."""
    bench = Bench("envelope")
    bench.log.commit(insert(TABLE, (b"1", b"a", b"b")))
    bench.run()
    wider = text_table("t", ["id", "new", "note", "more"])
    bench.log.commit(update(wider, (b"1", b"n", b"c", b"d")), update(wider, (b"1", b"o", b"e", b"f")))
    bench.run(wider)
    events = [orjson.loads(of.value or b"") for of in bench.kafka.committed("p.s.t")]
    assert [event["before"] for event in events] == [
        None, {"id": "1", "note": "a", "more": "b"}, {"id": "1", "new": "n", "note": "c", "more": "d"},
    ]  # fmt: skip


RULED = CaptureRules({"s.t": ColumnRules(mask=("more",))}, {})


@pytest.mark.parametrize("goes", [truncate, partial(delete, key=(b"1",))], ids=["truncate", "delete"])
@pytest.mark.parametrize(
    ("later", "rules", "kept"),
    [
        (replace(TABLE, marks=("3", "4")), NO_RULES, {"note": "a", "more": "b"}),  # as TRUNCATE has it in PostgreSQL
        (replace(TABLE, columns=TABLE.columns[:2] + NUMBER), NO_RULES, {"note": "a"}),
        (TABLE, RULED, {}),
    ],
    ids=["rewritten", "another type", "another rule"],
)
def test_a_row_of_before_its_table_was_another(later: Table, rules: CaptureRules, kept: Row, goes: Any) -> None:
    """It was `{}`, or a row of nulls: a reader that takes back what `before` says keeps the row for ever."""
    bench = Bench("envelope")
    bench.log.commit(insert(replace(TABLE, marks=("1", "2")), (b"1", b"a", b"b")))
    bench.run(replace(TABLE, marks=("1", "2")))
    bench.log.commit(goes(later))
    bench.run(later, rules=rules)
    (gone,) = [of for of in bench.events() if of["op"] == "d"]
    assert gone["before"] == {"id": "1", **kept}


def test_a_row_among_the_dead_letters_is_no_reader_s() -> None:
    """What the topic holds is an earlier row, or none where it was deleted before."""
    bench = Bench("envelope")
    bench.log.commit(*(insert(TABLE, (key, b"a", b"b")) for key in (b"1", b"2")))
    bench.run()
    bench.log.commit(delete(TABLE, (b"1",)))
    bench.log.commit(insert(TABLE, (b"1", b"\xff", b"")), update(TABLE, (b"2", b"\xff", b"")))
    bench.run()
    bench.log.commit(update(TABLE, (b"1", b"c", b"d")), update(TABLE, (b"2", b"c", b"d")))
    bench.run()
    assert bench.check() == 2
    told = {key: orjson.loads(of)["before"] for key, of in bench.newest()}
    assert told == {b'{"id":"1"}': None, b'{"id":"2"}': {"id": "2", "note": "a", "more": "b"}}


def test_a_record_too_large_with_it_has_the_key_alone() -> None:
    """The row fits, and twice the row does not."""
    bench = Bench("envelope", largest_bytes=1_000_000)
    large = b"x" * 600_000
    bench.log.commit(insert(TABLE, (b"1", b"a", large)))
    bench.run()
    bench.log.commit(update(TABLE, (b"1", b"b", large)), update(TABLE, (b"1", b"c", b"small")))
    bench.run()
    _, one, two = [orjson.loads(of.value or b"")["before"] for of in bench.kafka.committed("p.s.t")]
    assert one == {"id": "1"}
    assert two == {"id": "1", "note": "b", "more": large.decode()}
    assert "p.dead-letter-c" not in bench.kafka.topics or not bench.kafka.topics["p.dead-letter-c"]
