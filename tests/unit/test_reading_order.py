"""In which order tables are read while the log is followed: small ones first, and none waits for ever."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from typing import Any

import pytest

from cdc.capture.control.rereads import Rereads
from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.capture.snapshots.incremental_snapshot import IncrementalSnapshot
from cdc.encode.window_keys import RequestedRows
from cdc.model.interfaces import Window
from cdc.model.state import Phase, State
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, insert
from tests.text_tables import text_table

SIZES = {"a": 9, "b": 1, "c": 4, "d": 0}
TABLES = {f"s.{name}": text_table(name, ["id", "note"]) for name in SIZES}

STATE = State(connector="c", identity={}, phase=Phase.STREAM, epoch=1)


class AtOnce(Executor):
    """Runs what is submitted on the thread that submits it."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(fn(*args, **kwargs))
        return done


class Unsized:
    """A reader of somebody else's, which tells no sizes."""

    def __init__(self, reader: MemorySnapshotter) -> None:
        self.window, self.rows, self.close = reader.window, reader.rows, reader.close


class Reading:
    """An incremental snapshot of tables that have the rows above, driven as the loop does it."""

    def __init__(self, state: dict[str, Any] | None = None, *, tells: bool = True) -> None:
        log = MemoryLog()
        for name, rows in SIZES.items():
            if rows:
                log.commit(*(insert(TABLES[f"s.{name}"], (b"%d" % n, b"n")) for n in range(rows)))
        reader = MemorySnapshotter(log)
        self.end = log.end
        self.of = IncrementalSnapshot(
            reader if tells else Unsized(reader),  # type: ignore[arg-type]
            TABLES, state or {}, topic=lambda table: table.name, records=lambda _: iter(()), version=lambda _: 1,
            rows=2, executor=AtOnce(),
        )  # fmt: skip
        self.written: list[str] = []
        self.finished: list[str] = []

    def ask(self, *names: str) -> None:
        for name in names:
            self.of.add_again(f"s.{name}", "0")

    def step(self) -> bool:
        """Write what is due; False: nothing is left."""
        if not self.of:
            return False
        name = self.of.table.name
        due = self.of.due(lambda: self.end, settled=True)
        if isinstance(due, Window):
            self.written.append(due.table.name)
            self.of.wrote(due)
        elif isinstance(due, list):
            self.written.append(f"{name}.")
            self.of.deleted(len(due))
        return True

    def run(self) -> str:
        while self.step():
            pass
        return " ".join(dict.fromkeys(self.written))


def test_small_tables_are_read_before_large_ones() -> None:
    """A table of one row does not stand behind one of many, in whatever order they were asked for."""
    reading = Reading()
    reading.ask(*SIZES)
    assert reading.run() == "d d. b b. c c. a a."


def test_a_source_that_tells_no_sizes_is_read_as_asked() -> None:
    """The size is an optional part of the seam."""
    reading = Reading(tells=False)
    reading.ask(*SIZES)
    assert reading.run() == "a a. b b. c c. d d."


@pytest.mark.parametrize("windows", [0, 1, 2])
def test_a_table_that_has_begun_is_read_to_its_end(windows: int) -> None:
    """Also behind a restart, and whatever is asked for meanwhile."""
    reading = Reading()
    reading.ask("a")
    while len(reading.written) < windows or reading.of._job is None:
        reading.step()
    reading.ask("b", "d")
    again = Reading(reading.of.state())
    again.ask("c")
    assert again.run() == "a a. d d. b b. c c."


def test_a_table_is_passed_by_each_other_one_once() -> None:
    """However often all of them are asked for again."""
    reading = Reading()
    reading.ask("a", "b", "c")
    for _ in range(500):
        assert reading.step()
        if reading.written[-1:] != reading.finished[-1:] and reading.written[-1].endswith("."):
            reading.finished.append(reading.written[-1])
            reading.ask(reading.written[-1][0])
    assert "".join(reading.finished).startswith("b.c.a.b.c.a.b.c.a.")


def test_a_small_table_that_is_asked_for_again_still_goes_before_one_asked_for_later() -> None:
    """What was read while others waited counts as long as they wait."""
    reading = Reading()
    reading.ask("b")
    reading.run()
    reading.ask("a", "b", "c")
    reading.written.clear()
    assert reading.run() == "b b. c c. a a."


@pytest.mark.parametrize("how", ["again", "added", "emptied"])
def test_a_reading_that_is_asked_for_once_more_confirms_no_more_than_before(how: str) -> None:
    """Records of before the place where the first was asked for may be of rows that have gone without an event."""
    reading = Reading({"s.a": IncrementalProgress("5", gap=True).to_json()})
    if how == "again":
        reading.of.add_again("s.a", "3")
    elif how == "added":
        reading.of.add("s.a", "3", required=True, restart=True)
    else:
        reading.of.emptied(TABLES["s.a"], "3")
    found = reading.of.state()["s.a"]
    assert (found["since"], found["gap"], found.get("emptied", False)) == ("5", True, how == "emptied")


def test_a_reading_that_begins_once_more_with_its_deletes_goes_on() -> None:
    """They are the first that is written of a table that was altered, and that shows that its rows are others."""
    progress = IncrementalProgress("5", rows=2, read=True, started_at_ms=1)
    of = Reading({"s.a": progress.to_json()}).of
    due = None
    while due is None:
        due = of.due(lambda: 99, settled=True)
    assert of.add("s.a", "6", required=True, restart=True)
    of.deleted(len(due))  # type: ignore[arg-type]
    assert (of.state()["s.a"]["read"], of.state()["s.a"]["since"]) == (False, "6")


@pytest.mark.parametrize(("place", "since"), [("7", "7"), ("3", "5")])
def test_a_first_window_that_describes_its_table_is_where_the_reading_begins(place: str, since: str) -> None:
    """What the log told before it was of the table as it was, and says of no row that it is there."""
    of = Reading({"s.a": IncrementalProgress("5").to_json()}).of
    rereads = Rereads(of, MemorySink(MemoryKafka(), "c", "p"), TABLES, STATE, since=lambda: "8", log_end=lambda: "9")
    rereads.first = ("s.a", place)
    rereads.resnapshot(TABLES["s.a"], "altered")
    assert of.state()["s.a"]["since"] == since
    rereads.first = None
    rereads.resnapshot(TABLES["s.a"], "altered")
    assert of.state()["s.a"]["since"] == since, "it is read as it is described now"


def test_a_reading_whose_first_window_describes_its_table_is_not_stopped() -> None:
    """A user has asked for it, and rows of before that are in the topic are not as the source has them now."""
    of = Reading({"s.a": IncrementalProgress("5", required=False).to_json()}).of
    of.described_by("s.a", "7")
    assert not of.remove("s.a")


@pytest.mark.parametrize("how", ["seen", "unseen", "truncated"])
def test_a_window_that_leaves_rows_out_does_not_begin_a_reading_that_is_as_described(how: str) -> None:
    """An event of the table as it was is all that the topic has of such a row: it is read once more, as it is now."""
    of = Reading({"s.a": IncrementalProgress("5").to_json()}).of
    window = None
    while not isinstance(window, Window):
        window = of.due(lambda: 99, settled=True)
    if how == "truncated":
        of.logged.empty(99)
    else:
        of.logged.note(b"1", 99 if how == "unseen" else 1)
    assert of.is_first(window) is (how == "seen")


@pytest.mark.parametrize("how", ["again", "added", "emptied"])
def test_rows_of_a_command_are_read_once_more_when_their_table_is_to_be_read(how: str) -> None:
    """Those in hand are of a view of before, and written behind the place where the reading begins they would stay."""
    of = Reading({"s.c": IncrementalProgress("1", started_at_ms=1).to_json()}).of
    assert of.request(b"command", "s.a", [(b"1",)])
    assert of.due(lambda: 0, settled=True) is None
    assert of.due(lambda: 0, settled=True) is None
    job = of._job
    assert job is not None
    if how == "again":
        of.add_again("s.a", "3")
    elif how == "added":
        of.add("s.a", "3", required=True)
    else:
        of.emptied(TABLES["s.a"], "3")
    assert of.due(lambda: 99, settled=True) is None
    assert of._job is not job
    assert isinstance(of.due(lambda: 99, settled=True), RequestedRows)
