"""What is relied on of topics, on the twins: topics are deleted, emptied and made again, and the table ends whole."""

from __future__ import annotations

from collections.abc import Callable

import orjson
import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.ledger import UNKNOWN, Loss, TopicFacts, loss, spread_otherwise, to_record
from cdc.testing import (
    At,
    Faults,
    Killed,
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    delete,
    insert,
    nothing,
    update,
)
from tests.text_tables import text_table

A, B = text_table("a", ["id", "note"]), text_table("b", ["id", "note"])
POSITION = "p.position-c"


class Bench:
    """A log and a broker."""

    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka()

    def run(self, *, at: At = nothing) -> None:
        Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, logs=frozenset(["dead-letter"])),
            open_source=lambda: MemorySource(self.log, [A, B], at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, at=at),
            sink=MemorySink(self.kafka, "c", "p", at=at),
        ).run(until_caught_up=True)

    def fold(self, topic: str) -> dict[str, str]:
        last = {r.key: r.value for r in self.kafka.committed(topic)}
        rows = [orjson.loads(value)["after"] for value in last.values() if value is not None]
        return {row["id"]: row["note"] for row in rows}

    def delete(self, topic: str) -> None:
        del self.kafka.topics[topic]

    def make_again(self, topic: str) -> None:
        self.delete(topic)
        self.kafka.create(topic)


LOSSES: dict[str, Callable[[Bench, str], None]] = {
    "deleted": Bench.delete,
    "made again": Bench.make_again,
    "emptied": lambda bench, topic: bench.kafka.delete_records(topic),
}


@pytest.fixture
def bench() -> Bench:
    bench = Bench()
    bench.log.commit(*(insert(A, (key, b"n")) for key in (b"1", b"2", b"3")), insert(B, (b"1", b"n")))
    return bench


@pytest.mark.parametrize("how", LOSSES)
def test_a_table_whose_topic_was_lost_is_read_again_and_no_other(bench: Bench, how: str) -> None:
    """Once: the next start finds what it relies on."""
    bench.run()
    LOSSES[how](bench, "p.s.a")
    bench.log.commit(delete(A, (b"1",)), update(A, (b"2", b"new")))
    of_b = len(bench.kafka.topics["p.s.b"])
    bench.run()
    assert bench.fold("p.s.a") == {"2": "new", "3": "n"}
    assert len(bench.kafka.topics["p.s.b"]) == of_b
    of_a = len(bench.kafka.topics["p.s.a"])
    bench.run()
    assert len(bench.kafka.topics["p.s.a"]) == of_a


@pytest.mark.parametrize("how", LOSSES)
@pytest.mark.parametrize("point", ["snapshot.chunk", "sink.commit", "sink.commit.answer", "snapshot.window"])
def test_a_topic_lost_where_a_run_was_killed(bench: Bench, how: str, point: str) -> None:
    """Whatever was under way: also between the loss and the reading that makes up for it."""
    with pytest.raises(Killed):
        bench.run(at=Faults(("snapshot.chunk", 2), error=Killed))
    LOSSES[how](bench, "p.s.a")
    for n in range(1, 4):
        try:
            bench.run(at=Faults((point, n), error=Killed))
        except Killed:
            continue
    bench.run()
    assert bench.fold("p.s.a") == {"1": "n", "2": "n", "3": "n"}
    assert bench.fold("p.s.b") == {"1": "n"}


@pytest.mark.parametrize("how", ["deleted", "made again"])
def test_a_topic_lost_before_the_run_ends(bench: Bench, how: str) -> None:
    """The end of a run looks at all topics: it does not end well with one that is empty."""
    bench.run()
    bench.log.commit(insert(B, (b"2", b"n")))
    lost = []

    def at(point: str) -> None:
        if point == "sink.commit.answer" and not lost:
            lost.append(point)
            LOSSES[how](bench, "p.s.a")

    bench.run(at=at)
    assert lost
    assert bench.fold("p.s.a") == {"1": "n", "2": "n", "3": "n"}


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_versions_keep_their_numbers(bench: Bench, how: str) -> None:
    """A lost schema topic holds the same records afterwards, and the next description has the next number."""
    bench.run()
    described = {r.key: r.value for r in bench.kafka.committed("p.schema")}
    assert len(described) == 2
    LOSSES[how](bench, "p.schema")
    bench.run()
    assert {r.key: r.value for r in bench.kafka.committed("p.schema")} == described


def test_copies_of_descriptions_that_an_older_release_published(bench: Bench) -> None:
    """They are made at the next start, so that the one after it can do without the topic."""
    bench.run()
    bench.kafka.topics[POSITION][:] = [
        r for r in bench.kafka.topics[POSITION] if not r.key.startswith((b"c/topic/", b"c/schema/"))
    ]
    bench.run()
    kept = {r.key for r in bench.kafka.committed(POSITION)}
    assert {b"c", b"c/topic/p.s.a", b'c/schema/{"schema":"s","table":"a","version":1}'} <= kept


def test_a_lost_dead_letter_topic_has_all_tables_read_again(bench: Bench) -> None:
    """Which rows the topics have an older state of is not known any more."""
    bench.log.commit(insert(A, (b"4", b"\xff")))
    bench.run()
    before = {topic: len(bench.kafka.topics[topic]) for topic in ("p.s.a", "p.s.b")}
    bench.delete("p.dead-letter-c")
    bench.run()
    assert all(len(bench.kafka.topics[topic]) > was for topic, was in before.items())
    assert len(bench.kafka.committed("p.dead-letter-c")) == 1


@pytest.mark.parametrize("topic", ["p.signal-c", "p.message", "p.transaction", "p.dead-letter-c"])
def test_topics_of_the_twin_that_are_lost(bench: Bench, topic: str, caplog: pytest.LogCaptureFixture) -> None:
    """No table is read again for them, and it is said once."""
    bench.run()
    bench.delete(topic)
    for _ in range(2):
        bench.run()
    assert [r.getMessage() for r in caplog.records if topic in r.getMessage()] == [
        f"topic {topic} was deleted: what it held is gone"
    ]
    assert len(bench.kafka.topics["p.s.a"]) == 3


def test_the_ledger_costs_nothing_where_nothing_changes(bench: Bench) -> None:
    """Its records are written once, and those of the tables again when the snapshot is behind all events."""
    bench.run()
    bench.log.commit(insert(A, (b"8", b"n")))
    bench.run()
    bench.log.commit(insert(A, (b"9", b"n")))
    already = len(bench.kafka.committed(POSITION))
    bench.run()
    assert {r.key for r in bench.kafka.committed(POSITION)[already:]} == {b"c"}


def test_what_a_difference_means() -> None:
    """Compaction moves no first offset, a log forgets by age, and what is not known is not compared."""
    was = TopicFacts(identity="x", partitions=6)
    assert loss(was, was, keeps=True) is None
    assert loss(was, TopicFacts(identity="y", partitions=6), keeps=False) is Loss.MADE_AGAIN
    assert loss(was, TopicFacts(identity="", partitions=6), keeps=True) is None
    assert loss(None, TopicFacts(partitions=6, made=True), keeps=True) is Loss.GONE
    assert loss(None, TopicFacts(partitions=6, made=True), keeps=False) is None
    emptied = TopicFacts(identity="x", partitions=6, forgotten=7)
    assert loss(was, emptied, keeps=True) is Loss.FORGOTTEN
    assert loss(was, emptied, keeps=False) is None
    unknown = TopicFacts(identity="x", partitions=6, forgotten=UNKNOWN)
    assert loss(was, unknown, keeps=True) is loss(unknown, emptied, keeps=True) is None
    assert to_record({"t": emptied}, {"t": unknown}) == {}
    assert to_record({"t": was}, {"t": emptied}) == {"t": emptied}
    assert spread_otherwise(was, TopicFacts(identity="x", partitions=12))
    assert not spread_otherwise(was, TopicFacts(identity="y", partitions=12))
    assert TopicFacts.from_bytes(emptied.to_bytes()) == emptied
