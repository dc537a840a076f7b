"""The loop's decisions, one at a time, on the in-memory twins: tables come and go, faults pass or do not."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import orjson
import pytest

import cdc.capture.commit_pace
import cdc.capture.control.commands
import cdc.capture.pipeline
import cdc.capture.session
import cdc.capture.snapshots.incremental_snapshot
import cdc.encode.truncates
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Parts, Pipeline, Report, Settings
from cdc.config.published.column_rules import ColumnRules
from cdc.config.published.encryption import EncryptRule
from cdc.config.published.outbox import OutboxConfig
from cdc.config.published.route import RouteConfig
from cdc.formats.reading import Reading
from cdc.formats.wires import RegisteredWires
from cdc.model.change import (
    UNCHANGED,
    Change,
    Idle,
    Message,
    Offset,
    Position,
    Row,
    Table,
    Transaction,
    TransactionBatch,
)
from cdc.model.errors import (
    CdcError,
    ChangedError,
    ConfigError,
    FencedError,
    GapError,
    LeftOutError,
    LoginError,
    NewTablesError,
    OperatorError,
    RetryableError,
    UnloggedError,
    UnreadableError,
)
from cdc.model.interfaces import Chunk, Handover, Source
from cdc.model.state import UNLOGGED, Phase, State
from cdc.model.table_schema import REWRITTEN
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.encryption import MasterKey
from cdc.rules.flat import Formats
from cdc.rules.keyring import Keyring
from cdc.rules.routes import Routes
from cdc.testing import (
    At,
    Faults,
    Killed,
    MemoryKafka,
    MemoryLog,
    MemoryMeter,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Outcome,
    Record,
    delete,
    insert,
    nothing,
    truncate,
    update,
)
from tests.integration.running import eventually
from tests.text_tables import text_column, text_table
from tests.unit.test_formats import MemoryRegistry

A, B, C = (text_table(name, ["id", "note"]) for name in "abc")


class Bench:
    """A log and a broker, and connectors between them."""

    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka()
        self.reports: list[Report] = []
        self.errors: list[CdcError] = []

    def pipeline(
        self,
        *tables: Table,
        at: At = nothing,
        source: Callable[..., Source] = MemorySource,
        chunk_rows: int = 1,
        idle_position_s: float = 10.0,
    ) -> Pipeline:
        return Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=chunk_rows, idle_position_s=idle_position_s),
            open_source=lambda: source(self.log, tables, at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, at=at),
            sink=MemorySink(self.kafka, "c", "p", at=at),
            observe=self.reports.append,
            failed=self.errors.append,
        )

    def run(self, *tables: Table, **more: Any) -> None:
        self.pipeline(*tables, **more).run(until_caught_up=True)

    def ask(self, command: Command) -> None:
        """As `cdc snapshot` does."""
        key = b"%d" % len(self.kafka.topics["p.signal-c"])
        record = Record("p.signal-c", key, command.to_bytes(key.decode()), self.kafka.begin("cli"))
        self.kafka.topics["p.signal-c"].append(record)
        self.kafka.end("cli", Outcome.COMMITTED)

    def state(self) -> State:
        state = self.kafka.state("p", "c")
        assert state is not None
        return state

    def fold(self, table: Table) -> dict[str, str]:
        """Key to note, as the last record of each key says."""
        last = {r.key: r.value for r in self.kafka.committed(f"p.{table.qualified}")}
        rows = [orjson.loads(value)["after"] for value in last.values() if value is not None]
        return {row["id"]: row["note"] for row in rows}

    def events(self, table: Table) -> list[str]:
        records = self.kafka.committed(f"p.{table.qualified}")
        return [orjson.loads(r.value)["op"] if r.value is not None else "-" for r in records]


class Unsettled(MemorySource):
    """A source that finds once that something is about to change, when all that was read is committed."""

    looks: ClassVar[list[int]] = []

    def settled(self) -> bool:
        self.looks.append(self._read_to)
        return len(self.looks) > 1


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    return Bench()


def _row(key: str, note: str = "n") -> Row:
    return (key.encode(), note.encode())


def test_a_run_reads_what_is_there_and_follows_what_comes(bench: Bench) -> None:
    """Snapshot rows, then events; a key change is a delete, a tombstone and a create."""
    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    bench.run(A)
    assert bench.events(A) == ["r", "r"]
    bench.log.commit(update(A, _row("1", "m")), delete(A, (b"2",)), update(A, _row("9", "z"), key=(b"1",)))
    bench.run(A)
    assert bench.events(A) == ["r", "r", "u", "d", "-", "d", "-", "c"]
    assert bench.fold(A) == {"9": "z"}


def test_a_truncate_deletes_the_keys_the_topic_holds(bench: Bench) -> None:
    """In the order of the keys, and none that is gone already."""
    bench.log.commit(*(insert(A, _row(k)) for k in "132"))
    bench.run(A)
    bench.log.commit(delete(A, (b"3",)), truncate(A), insert(A, _row("2", "again")))
    bench.run(A)
    assert bench.events(A) == ["r", "r", "r", "d", "-", "d", "-", "d", "-", "c"]
    assert bench.fold(A) == {"2": "again"}


def test_a_table_added_is_read_while_the_log_is_followed(bench: Bench) -> None:
    """Its rows come under a view of their own, behind everything that view saw."""
    bench.run(A)
    bench.log.commit(insert(B, _row("1", "before")))
    bench.run(A, B)
    bench.log.commit(update(B, _row("1", "after")))
    bench.run(A, B)
    assert bench.events(B) == ["r", "u"]
    assert bench.state().tables == ("s.a", "s.b")


def test_adding_a_table_reads_that_table_only(bench: Bench) -> None:
    """The others were read long ago, and are left alone."""
    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    bench.run(A)
    bench.log.commit(update(A, _row("1", "m")))
    bench.run(A)
    bench.log.commit(delete(A, (b"2",)), insert(B, _row("1")))
    with pytest.raises(Killed):
        bench.run(A, B, at=Faults(("snapshot.window", 1), error=Killed))
    bench.run(A, B)
    assert bench.events(A) == ["r", "r", "u", "d", "-"]
    assert bench.fold(A) == {"1": "m"}
    assert bench.fold(B) == {"1": "n"}


@pytest.mark.parametrize("live", [False, True], ids=["a start", "a command"])
def test_a_release_of_before_goes_on_with_a_reading_that_waits(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, live: bool
) -> None:
    """It numbers rows from where the position says: those with a number below `since` would be deleted again."""
    bench.log.commit(insert(B, _row("1")))
    tables = (A, B) if live else (A,)
    bench.run(*tables)
    if live:
        bench.ask(Command(tables=("s.b",)))
    with pytest.raises(Killed):
        bench.run(A, B, at=Faults(("snapshot.window", 1), error=Killed), idle_position_s=0.0)
    assert bench.state().reading
    monkeypatch.setattr(Position, "window", lambda last: last + 1)
    bench.run(A, B)
    assert bench.fold(B) == {"1": "n"}


def test_a_table_that_a_start_adds_has_begun_when_its_first_window_was(bench: Bench) -> None:
    """From then on its pace is counted: time is left until its rows are read, and not until its turn comes."""
    bench.run(A)
    bench.log.commit(insert(B, _row("1")))
    begun_ms = time.time() * 1000
    with pytest.raises(Killed):
        bench.run(A, B, at=Faults(("snapshot.window", 2), error=Killed))
    (read,) = bench.state().reading.values()
    assert read["rows"] == 1
    assert begun_ms - 1 <= read["started_at_ms"] <= time.time() * 1000


@pytest.mark.parametrize("resumed", [False, True])
def test_a_truncate_before_a_table_was_added_still_deletes(bench: Bench, *, resumed: bool) -> None:
    """An added table has views of its own numbers: rows of the first snapshot do not count as seen by them."""
    bench.log.commit(*(insert(A, _row(k)) for k in "123"))
    faults = Faults(("snapshot.chunk", 2), error=Killed) if resumed else nothing
    if resumed:
        with pytest.raises(Killed):
            bench.run(A, at=faults)
    bench.run(A)
    bench.log.commit(insert(A, _row("4")))
    bench.run(A)  # past the views of the first snapshot, which are forgotten then
    bench.log.commit(truncate(A))
    bench.log.commit(insert(B, _row("1")))
    bench.run(A, B)
    assert bench.fold(A) == {}
    assert bench.fold(B) == {"1": "n"}


def test_a_table_taken_out_may_leave_the_log(bench: Bench) -> None:
    """What is not asked for any more cannot be missed: dropping it, too, is no gap."""
    bench.run(A, B)
    bench.log.carried -= {B.qualified}
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)
    assert bench.fold(A) == {"1": "n"}
    assert bench.state().tables == ("s.a",)


@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_taken_out_and_in_again_never_misses_what_passed(bench: Bench, rows: int) -> None:
    """Its changes were not read meanwhile: all rows are read, and what has gone meanwhile is deleted."""
    for n in range(rows):
        bench.log.commit(insert(B, _row(f"{n}")), insert(B, _row(f"{n}, gone meanwhile")))
    bench.run(A, B)
    bench.run(A)
    bench.log.commit(*(delete(B, (b"%d, gone meanwhile" % n,)) for n in range(rows)))
    bench.log.commit(*(update(B, _row(f"{n}", "other")) for n in range(rows)))
    bench.log.commit(insert(B, _row("missed")), insert(A, _row("1")))
    bench.run(A)
    bench.run(A, B)
    assert bench.fold(B) == {"missed": "n", **{f"{n}": "other" for n in range(rows)}}


@pytest.mark.parametrize("forgets", ["ledger", "description", "both"])
def test_a_table_taken_in_again_is_refused_where_its_topic_may_be_anothers(bench: Bench, forgets: str) -> None:
    """What was recorded beside the position and what the schema topic says must both name this connector."""
    bench.log.commit(insert(B, _row("1")))
    bench.run(A, B)
    bench.run(A)
    owner = "holds records already"
    if forgets != "description":
        recorded, of = bench.kafka.topics["p.position-c"], b"c/topic/p.s.b"
        recorded[:] = [record for record in recorded if not record.key.startswith(of)]
    if forgets != "ledger":
        for record in list(bench.kafka.topics["p.schema"]):
            if b"s.b" in (record.value or b""):
                other = replace(record, value=(record.value or b"").replace(b'"connector":"c"', b'"connector":"x"'))
                bench.kafka.topics["p.schema"].append(other)
        owner = "owned by another connector: p.s.b is written by x"
    with pytest.raises(OperatorError, match=owner):
        bench.run(A, B)


def test_a_table_that_got_another_key_during_its_snapshot_is_read_from_its_beginning(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """How far it was read is said in keys that rows no longer have: going on from there would leave rows out."""
    bench.log.commit(*(insert(A, (key, note)) for key, note in ((b"1", b"c"), (b"2", b"b"), (b"3", b"a"))))
    with pytest.raises(Killed):
        bench.run(A, at=Faults(("snapshot.chunk", 3), error=Killed))
    assert bench.fold(A) == {"1": "c", "2": "b"}
    by_note = text_table("a", ["id", "note"], key=("note",))
    bench.run(by_note)
    last = {r.key: r.value for r in bench.kafka.committed("p.s.a")}
    assert {key for key in last if b"note" in key} == {b'{"note":"a"}', b'{"note":"b"}', b'{"note":"c"}'}
    assert "its key is now (note), it was (id): its rows are read again" in caplog.text


@pytest.mark.parametrize("told", [False, True])
def test_why_a_table_is_read_again_is_told_by_the_start_or_behind_it(
    bench: Bench, caplog: pytest.LogCaptureFixture, *, told: bool
) -> None:
    """`told`: the source has found it, too, as it compares."""

    class Comparing(MemorySource):
        found = ""

        def stale(self) -> dict[str, str]:
            return {A.qualified: self.found}

    bench.log.commit(insert(A, _row("1")))
    bench.run(replace(A, marks=("1", "1")))
    for reason, table in (
        (REWRITTEN, replace(A, marks=("2", "2"))),
        ("column title had another name", text_table("a", ["id", "title"])),
    ):
        Comparing.found = reason
        caplog.clear()
        bench.run(replace(table, marks=("2", "2")), source=Comparing if told else MemorySource)
        assert caplog.messages.count(f"table {A.qualified}: {reason}: its rows are read again") == 1


@pytest.mark.parametrize("at_chunk", [2, 3])
@pytest.mark.parametrize("error", [Killed, RetryableError])
def test_what_rows_of_a_snapshot_ask_for_outlives_the_session(
    bench: Bench, error: type[CdcError | Killed], at_chunk: int
) -> None:
    """Its rows describe the table with its other key: no later session would find that it ever had another one."""
    bench.log.commit(*(insert(A, (key, note)) for key, note in ((b"1", b"c"), (b"2", b"b"), (b"3", b"a"))))
    with pytest.raises(Killed):
        bench.run(A, at=Faults(("snapshot.chunk", 3), error=Killed))
    by_note = text_table("a", ["id", "note"], key=("note",))
    with pytest.raises(Killed) if error is Killed else nullcontext():
        bench.run(by_note, at=Faults(("snapshot.chunk", at_chunk), error=error))
    bench.run(by_note)
    last = {r.key: r.value for r in bench.kafka.committed("p.s.a")}
    assert {key for key, value in last.items() if value is not None} == {
        b'{"note":"a"}', b'{"note":"b"}', b'{"note":"c"}',
    }  # fmt: skip


def test_what_a_window_finds_changed_begins_another_session(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Which compares the table first: to read it again as it was found would be to ask the same again and again."""
    bench.run(A)
    bench.log.commit(insert(B, _row("1")))
    window, found = MemorySnapshotter.window, list[str]()

    def changed(self: MemorySnapshotter, table: Table, *rest: Any, **more: Any) -> Any:
        found.append(table.name)
        if len(found) == 1:
            raise ChangedError("it was altered")
        return window(self, table, *rest, **more)

    monkeypatch.setattr(MemorySnapshotter, "window", changed)
    bench.run(A, B)
    assert bench.fold(B) == {"1": "n"}
    assert "trying again" not in caplog.text


def test_a_table_taken_out_of_an_unfinished_snapshot_leaves_no_progress(bench: Bench) -> None:
    """If it comes back it is read from its beginning."""
    with pytest.raises(Killed):
        bench.run(A, B, at=Faults(("snapshot.chunk", 2), error=Killed))
    bench.log.commit(insert(A, _row("1")))
    bench.run(B)
    bench.log.commit(insert(A, _row("2")))
    bench.run(A, B)
    assert bench.fold(A) == {"1": "n", "2": "n"}


def test_topics_with_records_and_no_position_are_refused(bench: Bench) -> None:
    """Rows deleted since they were written would stay in them for ever."""
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)
    other = MemorySink(bench.kafka, "other", "p")
    pipeline = Pipeline(
        Settings(connector="other", prefix="p"),
        open_source=lambda: MemorySource(MemoryLog(), [A]),
        open_snapshotter=lambda: MemorySnapshotter(MemoryLog()),
        sink=other,
    )
    del bench.kafka.topics["p.position-c"]  # of a position it would have said so
    with pytest.raises(OperatorError, match=r"topic owned by another connector: p\.s\.a is written by c"):
        pipeline.run(until_caught_up=True)
    bench.kafka.topics["p.schema"].clear()
    with pytest.raises(OperatorError, match=r"topic p\.s\.a holds records already"):
        pipeline.run(until_caught_up=True)


@pytest.mark.parametrize("refused", ["others' records", "no name for its topic"])
def test_a_new_table_that_is_refused_stops_no_other(bench: Bench, refused: str) -> None:
    """The one that an error names is left out alone, of two that have come; the name of the other one begins it."""
    longer = text_table("cc", ["id", "note"])
    there, opened_without = [A], list[Collection[str]]()

    class Growing(MemorySource):
        def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
            if there == [A]:
                there.extend([longer, C])
                raise NewTablesError("two have come", ["s.cc", "s.c"])
            return super().stream(offset)

        def extend(self, tables: Sequence[Table]) -> None:
            if longer in tables and refused == "no name for its topic":
                raise ConfigError("the topic of s.cc would have 250 characters")
            super().extend(tables)

    def opened(without: Collection[str] = ()) -> Source:
        opened_without.append(without)
        return Growing(bench.log, [table for table in there if table.qualified not in without])

    bench.log.commit(*(insert(table, _row("1")) for table in (A, longer, C)))
    bench.run(A)
    bench.log.commit(insert(A, _row("2")))
    if refused == "others' records":
        bench.kafka.create("p.s.cc")
        bench.kafka.topics["p.s.cc"].append(Record("p.s.cc", b"theirs", b"theirs", bench.kafka.begin("theirs")))
        bench.kafka.end("theirs", Outcome.COMMITTED)
    pipeline = Pipeline(
        Settings(connector="c", prefix="p"),
        open_source=opened,
        leaving_out=lambda names: partial(opened, names),
        open_snapshotter=lambda: MemorySnapshotter(bench.log),
        sink=MemorySink(bench.kafka, "c", "p"),
    )
    pipeline.run(until_caught_up=True)
    assert opened_without == [(), (), {"s.cc"}]
    assert bench.state().tables == ("s.a", "s.c")
    assert set(bench.fold(A)) == {"1", "2"}
    assert set(bench.fold(C)) == {"1"}


@pytest.mark.parametrize(
    ("by_pattern", "left"), [((C,), [(), {"s.c"}]), ((A, C), [(), {"s.c"}]), ((A,), None), ((), None)]
)
def test_a_start_does_without_what_a_pattern_brings(
    by_pattern: Sequence[Table], left: list[Collection[str]] | None, bench: Bench
) -> None:
    """One that the file names, that was captured before, or that is all there is, is an error as it is."""
    opened_without = list[Collection[str]]()
    bench.kafka.create("p.s.c")
    bench.kafka.topics["p.s.c"].append(Record("p.s.c", b"theirs", b"theirs", bench.kafka.begin("theirs")))
    bench.kafka.end("theirs", Outcome.COMMITTED)

    def opened(without: Collection[str] = (), *, there: Sequence[Table] = (A, C)) -> Source:
        opened_without.append(without)
        return MemorySource(bench.log, [table for table in there if table.qualified not in without])

    def pipeline(*there: Table) -> Pipeline:
        return Pipeline(
            Settings(connector="c", prefix="p", by_pattern=lambda name: name in {of.qualified for of in by_pattern}),
            open_source=partial(opened, there=there),
            leaving_out=lambda names: partial(opened, names, there=there),
            open_snapshotter=lambda: MemorySnapshotter(bench.log),
            sink=MemorySink(bench.kafka, "c", "p"),
        )

    with pytest.raises(OperatorError, match=r"topic p\.s\.c holds records already"):
        pipeline(C).run(until_caught_up=True)
    opened_without.clear()
    if left is None:
        with pytest.raises(OperatorError, match=r"topic p\.s\.c holds records already"):
            pipeline(A, C).run(until_caught_up=True)
        return
    pipeline(A, C).run(until_caught_up=True)
    assert opened_without == left
    assert bench.state().tables == ("s.a",)
    bench.kafka.refused.add("p.s.a")
    with pytest.raises(OperatorError, match=r"topic p\.s\.c holds records already"):  # it is all there is without s.a
        pipeline(A, C).run(until_caught_up=True)


@pytest.mark.parametrize(
    "items",
    [
        {"formats": Formats(formats={"s.c*": "flat"}, logs=["s.*c"])},
        {"routes": Routes([RouteConfig(tables="s.c*", to="r", key="+source")], logged=lambda name: name == "s.c")},
    ],
    ids=["formats and logs", "routes"],
)
def test_the_items_of_a_table_that_a_first_start_leaves_out_wait_for_it(bench: Bench, items: Any) -> None:
    """They ended it in the end: “matches no table that is captured”, of what it had just left out."""
    of = Settings(connector="c", prefix="p", by_pattern=lambda name: name == "s.c", **items)
    sink = MemorySink(bench.kafka, "c", "p", routes=of.routes)
    _leaving_out(bench, A, C, settings=of, sink=sink).run(until_caught_up=True)
    assert bench.state().tables == ("s.a",)


def _leaving_out(bench: Bench, *tables: Table, **more: Any) -> Pipeline:
    """One that opens its source without some of the tables, where it is told to, as `cdc run` does."""

    def opened(without: Collection[str] = ()) -> Source:
        return MemorySource(bench.log, [table for table in tables if table.qualified not in without])

    return Pipeline(
        more.pop("settings", Settings(connector="c", prefix="p", idle_position_s=0.0)),
        open_source=opened,
        leaving_out=lambda names: partial(opened, names),
        open_snapshotter=lambda: MemorySnapshotter(bench.log),
        sink=more.pop("sink", None) or MemorySink(bench.kafka, "c", "p"),
        **more,
    )


def test_the_topic_of_one_table_leaves_out_that_table(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Though the file names it: the others go on, and what it missed is read when its topic is right."""
    bench.log.commit(*(insert(of, _row(key)) for of in (A, B) for key in "12"))
    bench.run(A, B)
    bench.kafka.refused.add("p.s.b")
    told = list[Mapping[str, CdcError]]()
    bench.log.commit(insert(A, _row("3")), insert(B, _row("3")), delete(B, (b"1",)))
    meter = MemoryMeter()
    for _ in range(2):
        _leaving_out(bench, A, B, left_out=told.append, meter=meter).run(until_caught_up=True)
    assert meter.left_out == 1
    assert bench.state().tables == ("s.a",)
    assert set(bench.fold(A)) == {"1", "2", "3"}
    assert set(bench.fold(B)) == {"1", "2"}
    assert [{name: why.message for name, why in of.items()} for of in told] == 2 * [
        {"s.b": "topic p.s.b has other settings"}
    ]
    said = [record.message for record in caplog.records if record.levelname == "ERROR"]
    assert said == 2 * ["table s.b is left out until its topic is right: topic p.s.b has other settings; set them back"]
    bench.kafka.refused.clear()
    _leaving_out(bench, A, B, left_out=told.append, meter=meter).run(until_caught_up=True)
    assert meter.left_out == 0
    assert bench.state().tables == ("s.a", "s.b")
    assert set(bench.fold(B)) == {"2", "3"}


@pytest.mark.parametrize("item", ["s.b", "s.b*", "s.?"])
def test_the_rules_of_a_table_wait_for_its_topic(bench: Bench, item: str) -> None:
    """They ended the connector: “is no captured table”, or a column that no other table has."""
    rules = CaptureRules({item: ColumnRules(mask=("only_here",))}, {"s.b": "id IS NOT NULL"})
    of = Settings(connector="c", prefix="p", idle_position_s=0.0, rules=rules)
    theirs = text_table("b", ["id", "note", "only_here"])
    bench.log.commit(
        *(insert(table, (*_row(key), b"x")[:width]) for table, width in ((A, 2), (theirs, 3)) for key in "12")
    )
    _leaving_out(bench, A, theirs, settings=of).run(until_caught_up=True)
    bench.kafka.refused.add("p.s.b")
    bench.log.commit(insert(A, _row("3")), delete(theirs, (b"1",)))
    _leaving_out(bench, A, theirs, settings=of).run(until_caught_up=True)
    assert set(bench.fold(A)) == {"1", "2", "3"}
    bench.kafka.refused.clear()
    _leaving_out(bench, A, theirs, settings=of).run(until_caught_up=True)
    assert bench.state().tables == ("s.a", "s.b")
    assert set(bench.fold(theirs)) == {"2"}


def test_a_topic_that_is_refused_for_a_while(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """One process goes on without its table, and takes it up again by itself; that is said once each time."""
    told = list[Collection[str]]()

    def step(report: Report) -> None:
        here, without = report.state.tables == ("s.a", "s.b"), report.state.tables == ("s.a",)
        if here and not told and report.phase is Phase.STREAM:
            bench.kafka.refused.add("p.s.b")
        elif without and len(bench.log.transactions) == 1:
            bench.log.commit(insert(A, _row("2")), insert(B, _row("2")))
        elif without and {*bench.fold(A)} == {"1", "2"}:
            bench.kafka.refused.clear()
        elif here and told and {*bench.fold(B)} == {"1", "2"}:
            pipeline.stop()

    bench.log.commit(insert(A, _row("1")), insert(B, _row("1")))
    pipeline = _leaving_out(bench, A, B, observe=step, left_out=lambda why: told.append({*why}))
    pipeline.run()
    assert told == [{"s.b"}, set()]
    assert len([record for record in caplog.records if record.levelname == "ERROR"]) == 1
    assert bench.state().tables == ("s.a", "s.b")


def test_topics_that_are_refused_one_after_the_other(bench: Bench) -> None:
    """Each table comes back once its own topic is right, whichever was refused first."""
    seen = list[tuple[str, ...]]()

    def step(report: Report) -> None:
        tables = report.state.tables
        if seen[-1:] != [tables]:
            seen.append(tables)
        if tables == ("s.a", "s.c"):
            bench.kafka.refused.add("p.s.c") if len(seen) == 1 else pipeline.stop()
        elif tables == ("s.a",):
            bench.kafka.refused.discard("p.s.c")

    bench.run(A, B, C)
    bench.kafka.refused.add("p.s.b")
    pipeline = _leaving_out(bench, A, B, C, observe=step)
    pipeline.run()
    assert seen == [("s.a", "s.c"), ("s.a",), ("s.a", "s.c")]
    bench.kafka.refused.clear()
    pipeline = _leaving_out(bench, A, B, C)
    pipeline.run(until_caught_up=True)
    assert bench.state().tables == ("s.a", "s.b", "s.c")


@pytest.mark.parametrize("refused", [["p.s.a", "p.s.b"], ["p.schema"], ["p.schema", "p.s.b"]])
def test_what_concerns_all_tables_leaves_out_none(refused: Sequence[str], bench: Bench) -> None:
    bench.run(A, B)
    bench.kafka.refused.update(refused)
    with pytest.raises(OperatorError, match=f"{refused[0]} has other settings"):
        _leaving_out(bench, A, B).run(until_caught_up=True)
    assert bench.state().tables == ("s.a", "s.b")


def test_one_topic_is_right_again_and_another_is_not(bench: Bench) -> None:
    """All that was captured last is refused by now, and a table is left."""
    bench.run(A, B)
    bench.kafka.refused.add("p.s.b")
    _leaving_out(bench, A, B).run(until_caught_up=True)
    bench.kafka.refused.clear()
    bench.kafka.refused.add("p.s.a")
    bench.log.commit(insert(B, _row("9")))
    _leaving_out(bench, A, B).run(until_caught_up=True)
    assert set(bench.fold(B)) == {"9"}
    assert bench.state().tables == ("s.b",)


def test_a_first_start_is_without_none_of_what_the_file_names(bench: Bench) -> None:
    """Nor is any without the outbox: no reading brings its messages."""
    bench.kafka.create("p.s.b")
    bench.kafka.refused.add("p.s.b")
    with pytest.raises(OperatorError, match=r"p\.s\.b has other settings"):
        _leaving_out(bench, A, B).run(until_caught_up=True)
    bench.kafka.refused.clear()
    bench.run(A, B)
    bench.kafka.refused.add("p.s.b")
    settings = Settings(connector="c", prefix="p", outbox=OutboxConfig(table="s.b"))
    with pytest.raises(OperatorError, match=r"p\.s\.b has other settings"):
        _leaving_out(bench, A, B, settings=settings).run(until_caught_up=True)


def test_a_file_that_is_read_again_is_not_refused_for_what_was_wrong_before(bench: Bench) -> None:
    """Though the table that was left out is asked for once more."""
    bench.run(A, B)
    bench.kafka.refused.add("p.s.b")
    bench.log.commit(insert(A, _row("1")), insert(C, _row("1")))

    def again() -> Parts:
        settings = Settings(connector="c", prefix="p")
        return Parts(settings, partial(opened, [A, B, C]), lambda: MemorySnapshotter(bench.log), leaving([A, B, C]))

    def opened(tables: Sequence[Table], without: Collection[str] = ()) -> Source:
        return MemorySource(bench.log, [table for table in tables if table.qualified not in without])

    def leaving(tables: Sequence[Table]) -> Callable[[Collection[str]], Callable[[], Source]]:
        return lambda names: partial(opened, tables, names)

    def observe(report: Report) -> None:
        if report.state.tables == ("s.a",):
            pipeline.reload()
        elif report.state.tables == ("s.a", "s.c"):
            pipeline.stop()

    pipeline = Pipeline(
        Settings(connector="c", prefix="p", idle_position_s=0.0),
        open_source=partial(opened, [A, B]),
        leaving_out=leaving([A, B]),
        open_snapshotter=lambda: MemorySnapshotter(bench.log),
        sink=MemorySink(bench.kafka, "c", "p"),
        observe=observe,
        reread=again,
    )
    pipeline.run()
    assert bench.state().tables == ("s.a", "s.c")


def test_a_file_that_is_read_again_has_keys_and_formats_of_its_own(bench: Bench) -> None:
    """The first file's were begun in their place: nothing could be encrypted, and schemas were of no source."""
    registry, form = MemoryRegistry(), Formats("avro")
    reading = Reading(registry.schemas.get)
    encrypted = {"s.a": ColumnRules(encrypt=EncryptRule(columns=("note",)))}

    def parts() -> Parts:
        settings = Settings(
            connector="c", prefix="p", idle_position_s=0.0, formats=form, logs=frozenset(["key"]),
            rules=CaptureRules(encrypted, {}, keys=Keyring(MasterKey("m" * 32))),
            wires=RegisteredWires(form, registry=registry),
        )  # fmt: skip
        return Parts(settings, lambda: MemorySource(bench.log, [A]), lambda: MemorySnapshotter(bench.log))

    def observe(report: Report) -> None:
        if report.phase is Phase.STREAM and len(bench.log.transactions) == 1:
            bench.log.commit(update(A, _row("1", "m")), insert(A, _row("2")))
            pipeline.reload()
        elif report.phase is Phase.STREAM and len(bench.kafka.committed("p.s.a")) > 2:
            pipeline.stop()

    bench.log.commit(insert(A, _row("1")))
    first = parts()
    pipeline = Pipeline(
        first.settings, open_source=first.open_source, open_snapshotter=first.open_snapshotter,
        sink=MemorySink(bench.kafka, "c", "p", reading=reading), observe=observe, reread=parts,
    )  # fmt: skip
    pipeline.run()
    events = [orjson.loads(reading.json(record.value or b"")) for record in bench.kafka.committed("p.s.a")]
    assert [event["op"] for event in events] == ["r", "u", "c"]
    assert all(event["after"]["note"].startswith("enc1:") for event in events)
    assert [subject for subject, _ in registry.subjects] == ["p.s.a-key", "p.s.a-value"]


@pytest.mark.parametrize("new", ["nothing", "login", "another refusal", "login, and the slot is still in use"])
def test_a_refused_login_has_the_file_read_again_once(bench: Bench, new: str) -> None:
    """The secret may have been rotated. A file that says nothing new, or is refused itself, is not read for ever.

    What passes by itself is waited for with the new login: the one before would only be refused again.
    """
    refused, read, faults = LoginError("the server refuses the password"), list[str](), list[CdcError]()
    if "slot" in new:
        faults.append(RetryableError("slot c is active"))

    class Rotated(MemorySource):
        def connect(self) -> Mapping[str, str]:
            if bench.log.transactions[1:]:
                raise refused
            return super().connect()

        def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
            bench.log.commit(insert(A, _row("2")))
            raise refused

    class Refused(MemorySource):
        def connect(self) -> Mapping[str, str]:
            raise ConfigError("source.slot: no")

    class Renewed(MemorySource):
        def connect(self) -> Mapping[str, str]:
            if faults:
                raise faults.pop()
            return super().connect()

    def reread() -> Parts | None:
        read.append(new)
        kind = Renewed if "login" in new else Refused
        made = Parts(settings, lambda: kind(bench.log, [A]), lambda: MemorySnapshotter(bench.log))
        return made if new != "nothing" else None

    bench.log.commit(insert(A, _row("1")))
    settings = Settings(connector="c", prefix="p", idle_position_s=0.0)
    pipeline = Pipeline(
        settings,
        open_source=lambda: Rotated(bench.log, [A]),
        open_snapshotter=lambda: MemorySnapshotter(bench.log),
        sink=MemorySink(bench.kafka, "c", "p"),
        observe=lambda _: pipeline.stop() if "2" in bench.fold(A) else None,
        reread=reread,
    )
    ends = pytest.raises(LoginError, match="password") if new == "nothing" else pytest.raises(ConfigError, match="slot")
    with nullcontext() if "login" in new else ends:
        pipeline.run()
    assert read == [new]
    assert set(bench.fold(A)) == ({"1", "2"} if "login" in new else {"1"})


def test_a_file_that_is_refused_brings_back_no_table_that_was_left_out(bench: Bench) -> None:
    """It was asked for again with the file that was gone back to, too, where nothing left it out any more."""
    there = [A]

    class Growing(MemorySource):
        def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
            if there == [A]:
                there.append(C)
                raise NewTablesError("one has come", ["s.c"])
            return super().stream(offset)

        def extend(self, tables: Sequence[Table]) -> None:
            if C in tables:
                raise ConfigError("the topic of s.c would have 250 characters")
            super().extend(tables)

    def parts(*more: Table) -> Parts:
        def opened(without: Collection[str] = ()) -> Source:
            return Growing(bench.log, [table for table in (*there, *more) if table.qualified not in without])

        settings = Settings(connector="c", prefix="p", idle_position_s=0.0)
        return Parts(settings, opened, lambda: MemorySnapshotter(bench.log), lambda names: partial(opened, names))

    reports, reloads = list[Report](), list[int]()

    def observe(report: Report) -> None:
        reports.append(report)
        if there == [A, C] and len(reports) > 3 and len(reloads) < 2:
            reloads.append(len(reports))
            pipeline.reload()
        elif len(reloads) == 2 and len(reports) > reloads[-1] + 3:
            pipeline.stop()

    bench.log.commit(insert(A, _row("1")))
    first = parts()
    pipeline = Pipeline(
        first.settings, open_source=first.open_source, open_snapshotter=first.open_snapshotter,
        leaving_out=first.leaving_out, sink=MemorySink(bench.kafka, "c", "p"), observe=observe, reread=lambda: parts(B),
    )  # fmt: skip
    pipeline.run()
    assert bench.state().tables == ("s.a",)


@pytest.mark.parametrize("was_published", [True, False])
def test_a_table_of_which_nothing_was_published_is_left_out(bench: Bench, *, was_published: bool) -> None:
    """Though the position has it: it was taken up, and the log has told what is wrong with it before its first row."""

    class Refusing(MemorySource):
        def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
            if C in self.tables():
                raise OperatorError("table s.c has another name than its rules")
            return super().stream(offset)

    def opened(without: Collection[str] = ()) -> Source:
        return Refusing(bench.log, [table for table in (A, C) if table.qualified not in without])

    bench.log.commit(insert(A, _row("1")), insert(C, _row("1")))
    bench.run(*((A, C) if was_published else (A,)))
    bench.log.commit(insert(A, _row("2")))
    pipeline = Pipeline(
        Settings(connector="c", prefix="p", by_pattern=lambda name: name == "s.c"),
        open_source=opened,
        leaving_out=lambda names: partial(opened, names),
        open_snapshotter=lambda: MemorySnapshotter(bench.log),
        sink=MemorySink(bench.kafka, "c", "p"),
    )
    with pytest.raises(OperatorError, match=r"table s\.c has another name") if was_published else nullcontext():
        pipeline.run(until_caught_up=True)
    assert set(bench.fold(A)) == ({"1"} if was_published else {"1", "2"})


def test_a_hold_nobody_knows_of_is_refused(bench: Bench) -> None:
    """The topics were deleted, the slot was not: what lies between is unknown."""
    bench.run(A)
    bench.kafka.topics.clear()
    with pytest.raises(OperatorError, match="held already"):
        bench.run(A)


def test_a_position_of_another_source_is_refused(bench: Bench) -> None:
    """Every part of the identity counts, and the message says which differs."""

    class Elsewhere(MemorySource):
        def connect(self) -> Mapping[str, str]:
            return {"database": "another"}

    bench.run(A)
    with pytest.raises(OperatorError, match=r"a position of database memory, source\.url leads to another"):
        bench.run(A, source=Elsewhere)


def test_a_fault_while_a_snapshot_is_read_is_tried_again(bench: Bench) -> None:
    """Hours of reading are not given up for one lost connection."""
    bench.log.commit(*(insert(A, _row(k)) for k in "12345"))
    faults = Faults(("snapshot.chunk", 3), ("sink.commit.answer", 2), ("snapshot.view", 1))
    bench.run(A, at=faults)
    assert len(faults.fired) == 3
    assert sorted(bench.fold(A)) == ["1", "2", "3", "4", "5"]
    assert [e.message for e in bench.errors] == [f"injected at {point}" for point in faults.fired]


def test_a_fault_before_anything_worked_is_shown_at_once(bench: Bench) -> None:
    """A wrong address is not tried for five minutes; what usually passes is, if it says so."""
    faults = Faults(("source.connect", 1))
    with pytest.raises(RetryableError):
        bench.run(A, at=faults)
    assert [e.message for e in bench.errors] == ["injected at source.connect"]
    bench.run(A, at=Faults(("source.connect", 1), error=lambda _: RetryableError("in use", at_start=True)))


def _following_what_is_altered(bench: Bench, found: Callable[[int], None]) -> Pipeline:
    """A connector whose table is altered in its first session; what the others find is told by their number."""
    sessions = 0

    def at(point: str) -> None:
        nonlocal sessions
        if point == "source.connect":
            sessions += 1
            if sessions > 1:
                found(sessions)
        if point == "source.change" and sessions == 1:
            raise ChangedError("table s.a was altered")
        if point == "source.idle":
            pipeline.stop()

    bench.run(A)
    bench.log.commit(insert(A, _row("1")))
    pipeline = bench.pipeline(A, at=at)
    return pipeline


def test_what_changes_at_each_look_is_no_loop_without_a_pause(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of ours, or a job that alters a table all the time: it is told as what fails, and ends the run."""
    clock, sessions = Clock(monkeypatch), 0

    def found(session: int) -> None:
        nonlocal sessions
        sessions = session
        clock.now_s += 20
        raise ChangedError("table s.a was altered")

    with pytest.raises(ChangedError, match="was altered"):
        _following_what_is_altered(bench, found).run()
    assert 20 < sessions < 40
    assert {error.message for error in bench.errors} == {"table s.a was altered"}


def test_a_first_start_waits_for_what_is_altered_all_the_while(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a migration does: it is over some looks later."""
    clock, looks = Clock(monkeypatch), 0

    def at(point: str) -> None:
        nonlocal looks
        if point == "source.connect" and looks < 20:
            looks += 1
            clock.now_s += 1
            raise ChangedError("table s.a has just been dropped")

    bench.log.commit(insert(A, _row("1")))
    bench.run(A, at=at)
    assert looks == 20
    assert bench.fold(A) == {"1": "n"}


def test_a_copy_that_is_fenced_off_says_so_whatever_it_finds_of_a_table(bench: Bench) -> None:
    """Its supervisor would start it again, and the other copy's errors count."""

    def found(session: int) -> None:
        if session == 2:
            for number in "789":
                bench.log.commit(insert(A, _row(number)))
                bench.run(A)
        raise LeftOutError("table s.a has no primary key")

    with pytest.raises(FencedError):
        _following_what_is_altered(bench, found).run()


def test_tables_that_cannot_be_captured_for_long_end_the_run_as_what_they_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock(monkeypatch)

    def found(_session: int) -> None:
        clock.now_s += 200
        raise LeftOutError("table s.a has no primary key", hint="make one")

    with pytest.raises(LeftOutError, match="no primary key") as told:
        _following_what_is_altered(bench, found).run()
    assert told.value.hint == "make one"
    assert {type(error) for error in bench.errors[1:]} == {LeftOutError}


@pytest.mark.parametrize("to_end", [False, True])
def test_tables_that_cannot_be_captured_for_a_moment_are_waited_for(bench: Bench, *, to_end: bool) -> None:
    """Where none is left of those that were followed: a dump makes keys last. Not at a start, nor to catch up once."""
    sessions = 0

    def at(point: str) -> None:
        nonlocal sessions
        if point == "source.connect":
            sessions += 1
            if sessions == 2:
                raise LeftOutError("table s.a has no primary key")
        if point == "source.change" and sessions == 1:
            raise ChangedError("table s.a was altered")
        if point == "source.idle":
            pipeline.stop()

    with pytest.raises(LeftOutError):
        bench.run(A, at=Faults(("source.connect", 1), error=lambda _: LeftOutError("table s.a has no key")))
    bench.run(A)
    bench.log.commit(insert(A, _row("1")))
    pipeline = bench.pipeline(A, at=at)
    with pytest.raises(LeftOutError) if to_end else nullcontext():
        pipeline.run(until_caught_up=to_end)
    assert sessions == (2 if to_end else 3)
    assert bench.errors[-1].message == "table s.a has no primary key"


class Clock:
    """Time that moves when told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now_s)


def test_a_second_fault_long_after_the_first_is_a_new_one(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An idle connector that worked for an hour since its last fault is not given up at the next; each end is told."""
    caplog.set_level("INFO", "cdc")
    clock = Clock(monkeypatch)
    bench.run(A)
    passed = {"idle": 0}

    def at(point: str) -> None:
        if point == "source.idle":
            passed["idle"] += 1
            clock.now_s += 60
            if passed["idle"] in (2, 50):
                raise RetryableError(f"fault at {passed['idle']}")
            if passed["idle"] == 60:
                pipeline.stop()

    pipeline = bench.pipeline(A, at=at)
    pipeline.run()
    assert [e.message for e in bench.errors] == ["fault at 2", "fault at 50"]
    told = [line for line in caplog.messages if "trying again" in line or "goes on again" in line]
    again = "connector c: it goes on again after 60 s"
    assert told == ["fault at 2; trying again in 0.0 s", again, "fault at 50; trying again in 0.0 s", again]


def test_a_fault_that_stays_is_given_up_in_the_end(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five minutes without anything working, then the error comes out."""
    clock = Clock(monkeypatch)
    bench.run(A)

    def at(point: str) -> None:
        if point == "sink.commit":
            clock.now_s += 50
            raise RetryableError("no broker takes it")

    bench.log.commit(insert(A, _row("1")))
    with pytest.raises(RetryableError, match="no broker takes it"):
        bench.run(A, at=at)
    assert 6 <= len(bench.errors) <= 8


class Busy(MemorySource):
    """A server that always has something else to send: never idle."""

    def stream(self, offset: Offset) -> Iterator[Any]:
        for frame in super().stream(offset):
            if isinstance(frame, Transaction | TransactionBatch):
                yield frame
            else:
                return


def test_a_log_busy_with_other_tables_is_let_go_all_the_same(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Transactions without our changes: the position moves now and then, or the server's disk fills."""
    bench.run(A)
    clock = Clock(monkeypatch)

    def at(point: str) -> None:
        if point == "source.frame":
            clock.now_s += 0.1

    for n in range(25):
        bench.log.commit(insert(B, _row(f"{n}")))
    start = bench.log.acknowledged
    bench.pipeline(A, at=at, source=Busy).run()
    assert bench.log.acknowledged - start >= 16 * 20
    assert sum(record.key == b"c" for record in bench.kafka.committed("p.position-c")) <= 10


@pytest.mark.parametrize(("commit_s", "apart_s"), [(0.0, 0.2), (0.04, 0.2), (0.1, 0.4), (9.0, 1.0)])
def test_commits_that_take_long_come_later(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, commit_s: float, apart_s: float
) -> None:
    """Under load they take a fifth of the time at most, as one of a thousand partitions would; up to a second apart."""
    assert max(abs(found - apart_s) for found in _apart(bench, monkeypatch, commit_s)) <= 0.025


@pytest.mark.parametrize(("commit_s", "apart_s"), [(0.0, 0.01), (0.04, 0.16), (0.1, 0.4), (9.0, 1.0)])
def test_commits_that_take_long_come_later_also_where_much_is_written(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, commit_s: float, apart_s: float
) -> None:
    """What would be committed at once by its number of records waits as long."""
    monkeypatch.setattr(cdc.capture.commit_pace, "CUT_RECORDS", 1)
    assert max(abs(found - apart_s) for found in _apart(bench, monkeypatch, commit_s)) <= 0.025


def _apart(bench: Bench, monkeypatch: pytest.MonkeyPatch, commit_s: float) -> list[float]:
    """Seconds between the end of each commit and the next, under load; each takes `commit_s`."""
    bench.run(A)
    clock = Clock(monkeypatch)
    began: list[float] = []
    ended: list[float] = []

    def at(point: str) -> None:
        if point == "source.frame":
            clock.now_s += 0.01
        if point == "sink.commit":
            began.append(clock.now_s)
            clock.now_s += commit_s
            ended.append(clock.now_s)

    for n in range(400):
        bench.log.commit(*(insert(A, _row(f"{n}-{m}")) for m in range(4)))  # too many for a batch
    bench.pipeline(A, at=at, source=Busy).run()
    apart = [begin - end for end, begin in zip(ended, began[1:], strict=False)]
    assert len(apart) >= 2
    return apart


def test_an_idle_connector_moves_its_position_before_it_acknowledges(bench: Bench) -> None:
    """A position-only transaction first: the log is never ahead of the topic."""
    bench.run(A)
    bench.log.commit(insert(B, _row("1")))
    bench.run(A, idle_position_s=0.0)
    assert bench.log.acknowledged == bench.state().commit == bench.log.end


def test_stopping_commits_what_is_whole(bench: Bench) -> None:
    """The transaction in hand is finished, committed and acknowledged; a snapshot stops between chunks."""
    bench.log.commit(*(insert(A, _row(k)) for k in "123"))

    def at(point: str) -> None:
        if point == "snapshot.chunk":
            pipeline.stop()

    pipeline = bench.pipeline(A, at=at)
    pipeline.run()
    assert bench.fold(A) == {"1": "n"}
    assert bench.state().phase is Phase.SNAPSHOT
    bench.log.commit(insert(A, _row("4")), insert(A, _row("5")))

    def at_change(point: str) -> None:
        if point == "source.change":
            pipeline.stop()

    pipeline = bench.pipeline(A, at=at_change)
    pipeline.run()
    assert sorted(bench.fold(A)) == ["1", "2", "3", "4", "5"]
    assert bench.log.acknowledged == bench.state().commit


def test_a_second_copy_shuts_out_the_first(bench: Bench) -> None:
    """Fencing comes first: the older copy cannot commit, and says what happened."""
    bench.run(A)
    older = MemorySink(bench.kafka, "c", "p")
    older.fence()
    older.write("p.s.a", b"k", b"{}")
    bench.run(A)
    with pytest.raises(OperatorError, match="has fenced this one off"):
        older.commit(bench.state().next())
    assert bench.events(A) == []


def test_a_report_says_what_a_commit_made_true(bench: Bench) -> None:
    """Rows of the snapshot by table, then events."""
    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    bench.run(A)
    assert bench.reports[0].tables == (("s.a", 1, False),)
    assert (bench.reports[-1].phase, bench.reports[-1].tables) == (Phase.STREAM, (("s.a", 2, True),))
    assert bench.reports[-1].events == 2


def test_a_value_that_cannot_be_written_is_named_not_shown(bench: Bench) -> None:
    """Table, event and column; the value never, and the loop does not go on without it."""
    bench.run(A)
    bench.log.commit(insert(A, (b"1", b"secret\xff")))
    with pytest.raises(OperatorError) as caught:
        bench.run(A)
    assert "table s.a, event 00000001." in caught.value.message
    assert "the value of note" in caught.value.message
    assert "secret" not in str(caught.value)


def test_aborted_records_are_no_rows_of_a_truncate(bench: Bench) -> None:
    """A read back sees aborted transactions: those ahead of the event in hand never happened."""
    bench.run(A)
    bench.log.commit(insert(A, _row("1")), truncate(A), insert(A, _row("2")))
    bench.log.commit(insert(A, _row("3")))
    bench.run(A, at=Faults(("sink.commit", 1)))
    assert bench.events(A) == ["c", "d", "-", "c", "c"]
    assert bench.fold(A) == {"2": "n", "3": "n"}


def test_what_was_read_in_an_aborted_transaction_is_no_row_of_a_truncate(bench: Bench) -> None:
    """Rows that are read again are not read the same way twice: one that has gone meanwhile was never there."""
    bench.run(A)
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)
    sink = MemorySink(bench.kafka, "c", "p")
    sink.fence()
    event = orjson.loads(bench.kafka.committed("p.s.a")[-1].value or b"")
    event["after"]["id"] = "9"
    sink.write("p.s.a", b'{"id":"9"}', orjson.dumps(event))
    sink.close()  # as a process does that dies
    bench.log.commit(truncate(A), insert(A, _row("2")))
    bench.run(A)
    assert bench.events(A) == ["c", "d", "-", "c"]


def test_wide_values_survive_a_restart(bench: Bench) -> None:
    """What a session filled in, the next one finds in the topic."""
    docs = text_table("docs", ["id", "note", text_column("doc", toastable=True)])
    long = b"w" * 2_100
    bench.log.commit(insert(docs, (b"1", b"a", long)))
    bench.run(docs)
    from cdc.model.change import UNCHANGED

    for note in (b"b", b"c"):
        bench.log.commit(update(docs, (b"1", note, UNCHANGED)))
        bench.run(docs)
    values = [orjson.loads(r.value or b"")["after"] for r in bench.kafka.committed("p.s.docs")]
    assert [v["note"] for v in values] == ["a", "b", "c"]
    assert {v["doc"] for v in values} == {long.decode()}


DOCS = text_table("docs", ["id", "note", text_column("doc", toastable=True)])
_OLD, _NEW = b"o" * 2_100, b"n" * 2_100
_LEFT_OUT = update(DOCS, (b"1", b"b", UNCHANGED))


@pytest.mark.parametrize(
    ("changes", "docs"),
    [
        ([_LEFT_OUT], [_OLD]),
        ([_LEFT_OUT, update(DOCS, (b"1", b"c", UNCHANGED))], [_OLD, _OLD]),
        ([_LEFT_OUT, update(DOCS, (b"1", b"c", _NEW))], [_OLD, _NEW]),
        ([_LEFT_OUT, delete(DOCS, (b"1",)), insert(DOCS, (b"1", b"c", _NEW))], [_OLD, None, _NEW]),
        ([_LEFT_OUT, truncate(DOCS), insert(DOCS, (b"1", b"c", _NEW))], [_OLD, None, _NEW]),
        (
            [_LEFT_OUT, update(DOCS, (b"3", b"b", UNCHANGED), key=(b"1",)), insert(DOCS, (b"1", b"c", _NEW))],
            [_OLD, None, _NEW],
        ),
        ([update(DOCS, (b"3", b"b", UNCHANGED), key=(b"1",)), insert(DOCS, (b"1", b"c", _NEW))], [None, _NEW]),
    ],
)
def test_left_out_values_are_those_of_their_event_though_the_source_is_asked(
    bench: Bench, changes: list[Change], docs: list[bytes | None], caplog: pytest.LogCaptureFixture
) -> None:
    """The source has the row as the transaction has left it: an event in between gets what the topic has."""
    bench.log.commit(insert(DOCS, (b"1", b"a", _OLD)))
    bench.run(DOCS)
    already = len(bench.kafka.topics["p.s.docs"])
    bench.log.commit(*changes)
    bench.run(DOCS)
    committed = [r for r in bench.kafka.committed("p.s.docs")[already:] if r.key == b'{"id":"1"}' and r.value]
    after = [orjson.loads(r.value or b"")["after"] for r in committed]
    assert [row and row["doc"].encode() for row in after] == docs
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


class OneTableEach(MemorySnapshotter):
    """A third party's snapshotter with progress in its own terms."""

    def chunks(self, tables: Sequence[Table], progress: Mapping[str, object], view: str | None) -> Iterator[Chunk]:
        for chunk in super().chunks(tables, progress, view):
            yield Chunk(chunk.table, chunk.rows, {"at": chunk.table.name, "tables": None}, 0, chunk.read_at_ms)

    def handover(self, tables: Sequence[Table], progress: Mapping[str, object]) -> Handover | None:
        return None


def test_progress_is_the_snapshotters_own(bench: Bench) -> None:
    """Only `tables` is looked at, and only if it is there."""
    bench.log.commit(insert(A, _row("1")))
    pipeline = Pipeline(
        Settings(connector="c", prefix="p", chunk_rows=1),
        open_source=lambda: MemorySource(bench.log, [A]),
        open_snapshotter=lambda: OneTableEach(bench.log),
        sink=MemorySink(bench.kafka, "c", "p"),
        observe=bench.reports.append,
    )
    pipeline.run(until_caught_up=True)
    assert bench.fold(A) == {"1": "n"}


@pytest.mark.parametrize("error", [GapError, UnreadableError])
def test_a_gap_found_where_the_log_is_followed(bench: Bench, error: type[CdcError]) -> None:
    """What nobody could tell at the start is closed as what could: once the user asks for it, and not before.

    A server that fails to read its own log is asked again, but not by who has asked for that.
    """
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)
    bench.log.commit(insert(A, _row("2")))

    def broken(point: str) -> None:
        if point == "source.frame" and bench.state().epoch == 1:
            raise error("what stands here cannot be followed", hint="--after-gap")

    for _ in range(2 if error is GapError else 0):
        with pytest.raises(GapError):
            bench.run(A, at=broken)
    bench.ask(Command(tables=(), after_gap=True))
    bench.run(A, at=broken)
    assert bench.state().epoch == 2
    assert set(bench.fold(A)) == {"1", "2"}


class Unlogged(MemorySource):
    """Is of a server that may write no log."""

    off = False

    def verify(self, state: State) -> tuple[Offset, int] | None:
        if self.off:
            raise UnloggedError("binlog off")
        self.was_off = bool(state.offset.get(UNLOGGED))
        return super().verify(state)

    def stale(self) -> Mapping[str, str]:
        return {A.qualified: "binlog off"} if self.was_off else {}


def test_a_log_that_goes_off_while_tables_are_read(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is noted, too, in the first snapshot: what was written meanwhile is in no log when that is done."""

    def broken(point: str) -> None:
        if point == "snapshot.chunk" and not Unlogged.off:
            monkeypatch.setattr(Unlogged, "off", True)
            raise UnloggedError("binlog off")

    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    for _ in range(2):
        with pytest.raises(UnloggedError):
            bench.run(A, source=Unlogged, at=broken)
        assert bench.state().offset.get(UNLOGGED)
    monkeypatch.setattr(Unlogged, "off", False)
    bench.run(A, source=Unlogged)
    assert not bench.state().offset.get(UNLOGGED)
    assert set(bench.fold(A)) == {"1", "2"}
    assert bench.events(A).count("r") >= 2 + 2


def test_a_log_that_was_another_for_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has the position's log again has not, in it, what it wrote meanwhile; noted once."""
    bench.log.commit(insert(A, _row("1")))
    bench.run(A, source=Unlogged)

    def other(*_: object) -> None:
        gap = GapError("binlog reset")
        gap.elsewhere = True
        raise gap

    with monkeypatch.context() as patched:
        patched.setattr(Unlogged, "verify", other)
        for _ in range(2):
            with pytest.raises(GapError):
                bench.run(A, source=Unlogged)
            assert bench.state().offset.get(UNLOGGED)
    before = len(bench.events(A))
    bench.run(A, source=Unlogged)
    assert bench.events(A)[before:] == ["r"]
    assert not bench.state().offset.get(UNLOGGED)


@pytest.mark.parametrize("while_followed", [True, False])
def test_a_log_that_was_off_for_a_time(bench: Bench, monkeypatch: pytest.MonkeyPatch, *, while_followed: bool) -> None:
    """It is noted before the run ends with it, and the next one reads the tables again, once."""
    broken = Faults(("source.frame", 1), error=UnloggedError)
    bench.log.commit(insert(A, _row("1")), insert(A, _row("2")))
    bench.run(A, source=Unlogged)
    if not while_followed:
        monkeypatch.setattr(Unlogged, "off", True)
        for _ in range(2):
            with pytest.raises(UnloggedError):
                bench.run(A, source=Unlogged)
        monkeypatch.setattr(Unlogged, "off", False)
    bench.log.commit(insert(A, _row("3")))
    before = bench.events(A)
    bench.run(A, source=Unlogged, at=broken if while_followed else lambda _: None)
    assert sorted(bench.events(A)[len(before) :]) == ["c", "r", "r", "r"]
    bench.run(A, source=Unlogged)
    assert len(bench.events(A)) == len(before) + 4


def test_rows_asked_for_by_their_keys(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each key's row comes again, those that are gone are deleted, others are left alone; a crash repeats it."""
    monkeypatch.setattr(cdc.capture.snapshots.incremental_snapshot, "KEYS_AT_ONCE", 2)
    bench.log.commit(*(insert(A, _row(name)) for name in "123456"))
    bench.run(A)
    before = len(bench.events(A))
    keys = tuple((name,) for name in (b"2", b"gone", b"4", b"never", b"6"))
    command = Command(tables=(A.qualified,), keys=(*keys, (b"not", b"a key")))
    bench.ask(command)
    with pytest.raises(Killed):
        bench.run(A, at=Faults(("snapshot.window", 2), error=Killed))
    bench.run(A)
    again = [(r.key, r.value and orjson.loads(r.value)["op"]) for r in bench.kafka.committed("p.s.a")[before:]]
    assert set(again) == {
        *((b'{"id":"%b"}' % name, "r") for name in (b"2", b"4", b"6")),
        *((b'{"id":"%b"}' % name, op) for name in (b"gone", b"never") for op in ("d", None)),
    }
    assert bench.fold(A) == dict.fromkeys("123456", "n")
    told = len(bench.events(A))
    bench.run(A)
    assert len(bench.events(A)) == told, "a command is carried out once"


def test_a_command_whose_keys_cannot_be_read_stops_nobody(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)

    errors = iter([OperatorError("this text is no number"), ValueError("nor is this")])

    def refused(*_: object, **__: object) -> None:
        raise next(errors)

    monkeypatch.setattr(MemorySnapshotter, "rows", refused)
    bench.ask(Command(tables=(A.qualified,), keys=((b"y",),)))
    bench.ask(Command(tables=(A.qualified,), keys=((b"x",),)))
    bench.ask(Command(tables=(A.qualified,), keys=((b"too", b"many"),)))
    bench.log.commit(insert(A, _row("2")))
    bench.run(A)
    assert set(bench.fold(A)) == {"1", "2"}
    assert next(errors, None) is None


def test_what_is_left_out_after_a_gap_is_not_filled_from_before_it(bench: Bench) -> None:
    """A toastable value changed where the log was lost: an event without it gets the value of now."""
    docs = text_table("docs", ["id", "note", text_column("doc", toastable=True)])
    old, new = b"o" * 2_100, b"n" * 2_100
    bench.log.commit(insert(docs, (b"1", b"a", old)))
    bench.run(docs)
    bench.log.held_from = None
    bench.log.commit(update(docs, (b"1", b"b", new)))
    bench.ask(Command(tables=(), after_gap=True))
    late = iter([update(docs, (b"1", b"c", UNCHANGED))])

    def meanwhile(point: str) -> None:
        if point == "snapshot.window":
            for change in late:
                bench.log.commit(change)

    bench.run(docs, at=meanwhile)
    values = [orjson.loads(r.value) for r in bench.kafka.committed("p.s.docs") if r.value is not None]
    assert [v["after"]["doc"] for v in values if v["op"] == "u"] == [new.decode()]
    assert values[-1]["after"] == {"id": "1", "note": "c", "doc": new.decode()}
    assert bench.state().epoch == 2


def test_a_table_that_went_in_a_gap_is_told(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """What deleted its rows is in the log that is lost: they stay in its topic."""
    bench.log.commit(insert(A, _row("1")), insert(B, _row("2")))
    bench.run(A, B)
    bench.log.held_from = None
    bench.ask(Command(tables=(), after_gap=True))
    bench.run(A)
    assert f"table {B.qualified}: it is captured no more, and its topic keeps the rows it had" in caplog.text
    assert set(bench.fold(B)) == {"2"}


def test_a_copy_that_was_cut_off_does_not_come_back_over_another(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """While it was away another copy has gone on: it ends, and has fenced nobody off."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    bench.log.commit(insert(A, _row("1")))
    bench.run(A)
    once = iter([None])

    def meanwhile(point: str) -> None:
        if point == "source.idle":
            for _ in once:
                for n in range(3):
                    bench.log.commit(insert(A, _row(f"m{n}")))
                    bench.run(A)
                raise RetryableError("the connection was cut")

    with pytest.raises(OperatorError, match="another copy of connector c"):
        bench.pipeline(A, at=meanwhile).run()
    epoch = bench.kafka.epochs["p.c"]
    bench.run(A)
    assert bench.kafka.epochs["p.c"] == epoch + 1
    assert set(bench.fold(A)) == {"1", "m0", "m1", "m2"}


def test_the_deletes_of_a_large_truncate_are_committed_in_parts_and_resumed(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every commit: what is there when it goes on is not deleted again, and what came since stays."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 10)
    monkeypatch.setattr(cdc.capture.snapshots.incremental_snapshot, "DELETES_AT_ONCE", 4)
    bench.log.commit(*(insert(A, _row(f"{n:02}")) for n in range(30)))
    bench.run(A)
    bench.log.commit(truncate(A), insert(A, _row("07")), insert(A, _row("31")))

    def killed(point: str) -> None:
        if point == "sink.commit.answer":
            raise Killed

    kills = 0
    while kills < 50:
        try:
            bench.run(A, at=killed)
            break
        except Killed:
            kills += 1
            if kills == 3:
                bench.log.commit(update(A, (b"07", b"m")))
    assert 29 / 4 < kills < 50
    assert bench.fold(A) == {"07": "m", "31": "n"}
    deletes = [r for r in bench.kafka.committed("p.s.a") if r.value is not None and b'"op":"d"' in r.value]
    parts = Counter(r.transaction for r in deletes)
    assert sum(parts.values()) == 29, "each key that is gone once"
    assert max(parts.values()) <= 4
    assert bench.state().reading == {}


class Dropping(MemorySource):
    """A source whose log tells that a table was dropped, as MySQL's does: it has no rows any more."""

    gone: ClassVar[set[str]] = set()

    def tables(self) -> Sequence[Table]:
        return [table for table in super().tables() if table.qualified not in self.gone]


@pytest.mark.parametrize("away", [False, True])
def test_the_rows_of_a_large_table_that_is_dropped_are_deleted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, *, away: bool
) -> None:
    """In parts, though nobody can read it: while it is followed and while it is not, killed at every commit.

    It may be there, and have no key: then asking for its rows is an error.
    """
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 10)
    monkeypatch.setattr(cdc.capture.snapshots.incremental_snapshot, "DELETES_AT_ONCE", 4)
    monkeypatch.setattr(Dropping, "gone", set())
    window = MemorySnapshotter.window

    def unless_gone(self: MemorySnapshotter, table: Table, *of: Any, **more: Any) -> Any:
        if away and table.qualified in Dropping.gone:
            raise OperatorError(f"table {table.qualified} has no primary key")
        return None if table.qualified in Dropping.gone else window(self, table, *of, **more)

    monkeypatch.setattr(MemorySnapshotter, "window", unless_gone)
    bench.log.commit(*(insert(B, _row(f"{n:02}")) for n in range(30)))
    bench.run(A, B, source=Dropping)

    def drop() -> None:
        bench.log.commit(truncate(B), insert(A, _row("1")))
        Dropping.gone.add(B.qualified)

    def killed(point: str) -> None:
        if point == "sink.commit.answer":
            raise Killed

    def dropped(point: str) -> None:
        if point == "source.idle" and not Dropping.gone:
            drop()
        elif point == "source.idle" and bench.fold(A) and not bench.state().reading:
            followed.stop()

    followed = bench.pipeline(A, B, source=Dropping, at=dropped)
    kills = 0
    if away:
        drop()
    else:
        followed.run()
    while away and kills < 50:
        try:
            bench.run(A, B, source=Dropping, at=killed)
            break
        except Killed:
            kills += 1
    assert not away or 30 / 4 < kills < 50
    assert bench.fold(B) == {}
    assert bench.fold(A) == {"1": "n"}
    assert bench.events(B).count("d") == 30
    assert bench.state().reading == {}
    assert len(bench.kafka.committed("p.schema")) == 2


def test_a_table_that_is_gone_is_not_read_for_what_has_changed_of_it(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log tells of its end, and by now it is described otherwise: by other rules, or with one more column."""
    monkeypatch.setattr(Dropping, "gone", set())
    wider = text_table("b", ["id", "note", replace(text_column("more"), filled=True)])
    bench.log.commit(*(insert(B, _row(key)) for key in "12"))
    bench.run(A, B, source=Dropping)
    bench.log.commit(truncate(wider), insert(A, _row("1")))
    Dropping.gone.add(B.qualified)
    bench.run(A, B, source=Dropping)
    assert bench.fold(B) == {}
    assert bench.fold(A) == {"1": "n"}
    assert bench.state().reading == {}


def test_a_table_truncated_while_it_is_read_is_read_anew(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that a window has written before are gone, though they are younger than the reading's beginning."""
    monkeypatch.setattr(cdc.encode.truncates, "TRUNCATED_AT_ONCE", 0)
    bench.log.commit(*(insert(A, _row(f"{n:02}")) for n in range(6)))
    bench.run(A)
    bench.ask(Command(tables=("s.a",)))
    late = iter([truncate(A)])

    def meanwhile(point: str) -> None:
        if point == "snapshot.window" and bench.state().reading.get("s.a", {}).get("rows"):
            for change in late:
                bench.log.commit(change, insert(A, _row("99")))

    bench.run(A, at=meanwhile)
    assert next(late, None) is None
    assert bench.fold(A) == {"99": "n"}


@pytest.mark.parametrize("gone", [(), (b"2",)])
def test_what_has_gone_is_deleted_under_the_newest_description(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, gone: tuple[bytes, ...]
) -> None:
    """The table has got a column since the session began: to describe it as it was then would take the column back."""
    wider = text_table("a", ["id", "note", text_column("more")])
    bench.log.commit(*(insert(A, _row(key)) for key in "12"))
    bench.run(A)
    bench.log.commit(*(delete(A, (key,)) for key in gone))
    bench.log.held_from = None
    bench.ask(Command(tables=(), after_gap=True))

    def meanwhile(*of: Any, **more: Any) -> Any:
        bench.log.commit(insert(wider, (b"3", b"n", b"m")))
        eventually(lambda: b'{"id":"3"}' in [r.key for r in bench.kafka.topics["p.s.a"]], "the log is followed")
        return stale_keys(*of, **more)

    def described_by_itself(*of: Any, **more: Any) -> Any:
        found = window(*of, **more)
        return found and replace(found, table=replace(found.table))

    window = MemorySnapshotter.window
    monkeypatch.setattr(MemorySnapshotter, "window", described_by_itself)
    stale_keys = cdc.capture.snapshots.incremental_snapshot.stale_keys
    monkeypatch.setattr(cdc.capture.snapshots.incremental_snapshot, "stale_keys", meanwhile)
    bench.run(A)
    assert bench.fold(A) == dict.fromkeys({"1", "2", "3"} - {key.decode() for key in gone}, "n")
    described = [orjson.loads(r.value or b"") for r in bench.kafka.committed("p.schema")]
    assert [len(record["columns"]) for record in described] == [2, 3]


def test_it_has_caught_up_once_its_source_has_settled(bench: Bench) -> None:
    """What the log does not tell is compared once more behind all that it has told, until it is as it was."""
    bench.run(A)
    bench.log.commit(insert(A, _row("1")))
    Unsettled.looks.clear()
    bench.run(A, source=Unsettled)
    assert Unsettled.looks == [bench.log.end] * 2
    assert bench.fold(A) == {"1": "n"}
