"""Which keys a topic says are gone, without the delete that says it: what compaction leaves. No server."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config.apply_config import ApplySource
from cdc.model.errors import CdcError, OperatorError
from spark_apply.events.kafka.client import UnansweredError, unreachable
from spark_apply.job import start as starting
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.job.start import Start
from spark_apply.job.topics.compacted_deletes import buried_keys
from spark_apply.job.topics.identity import OtherTopicError
from spark_apply.job.topics.retention import MissedDeletesError
from spark_apply.model.target_table import TargetTable
from tests.unit.test_watermarks import TABLE


@dataclass
class Record:
    """What is asked of a record of Kafka's client."""

    at: int
    of: str | None
    text: str | None
    number: int = 0

    def key(self) -> bytes | None:
        return None if self.of is None else self.of.encode()

    def value(self) -> bytes | None:
        return None if self.text is None else self.text.encode()

    def offset(self) -> int:
        return self.at

    def partition(self) -> int:
        return self.number


ROW, DELETE, GONE = '{"op":"u"}', '{"op":"d"}', None


@pytest.mark.parametrize(
    ("records", "buried"),
    [
        ([("a", DELETE), ("a", GONE)], []),
        ([("b", ROW), ("a", GONE)], ["a"]),
        ([("b", ROW), ("a", GONE), ("a", ROW)], []),
        ([("b", ROW), ("a", GONE), ("a", DELETE), ("a", GONE)], []),
        ([("a", DELETE), ("a", GONE), ("a", ROW), ("a", GONE)], ["a"]),
        ([("a", GONE), ("b", GONE)], ["a", "b"]),  # what was read last is no delete of it
        ([("z", GONE), ("b", GONE)], ["b"]),  # the first one's delete is the last that was read
        ([("b", ROW), ("z", GONE)], ["z"]),
        ([("b", "no event"), ("a", "[1]"), ("a", GONE), (None, ROW)], ["a"]),
        ([("b", ROW), ("c", GONE), ("a", GONE), ("c", GONE)], ["c", "a"]),
    ],
)
def test_a_tombstone_without_its_delete_is_found(
    records: list[tuple[str | None, str | None]], buried: list[str]
) -> None:
    read: Any = [Record(10 + number, key, text) for number, (key, text) in enumerate(records)]
    assert buried_keys(read, {0: 10}, lambda number, key: (number, key) == (0, "z")) == buried


@dataclass
class File:
    """Stands for apply.yaml, of which nothing but where its topics are is passed on."""

    source: Any = None


FILE = File()


@dataclass
class Rereading:
    """A store that is made again from the topics, and counts how often that was asked for."""

    asked: int = 0
    way_out: str = "move the state"
    left_out: list[str] = field(default_factory=list)

    def leave_out(self, table: str, why: str) -> None:
        assert "it was made again" in why
        self.left_out.append(table)

    def read_again(self) -> None:
        self.asked += 1


@dataclass
class Judged:
    """Stands for what looks at a topic: raises what is known of a table."""

    found: dict[str, CdcError]
    looked_at: list[str] = field(default_factory=list)
    compared: list[str] = field(default_factory=list)

    def same(self, _topics: Any, tables: list[tuple[TargetTable, Any]]) -> None:
        for table, _ in tables:
            self.compared.append(table.name)
            if isinstance(self.found.get(table.name), OtherTopicError):
                raise self.found[table.name]

    def offsets(self, _source: Any, copies: list[tuple[TargetTable, Any]], _held: Any = None) -> None:
        for table, _ in copies:
            self.looked_at.append(table.name)
            if isinstance(self.found.get(table.name), MissedDeletesError):
                raise self.found[table.name]

    def records(self, _spark: Any, _source: Any, table: TargetTable, *_: Any, **_more: Any) -> None:
        if table.name in self.found:
            raise self.found[table.name]


MISSED, AWAY = MissedDeletesError("rows may stay"), OperatorError("topic b cannot be read")
ANOTHER = OtherTopicError("it was made again")


@pytest.mark.parametrize(
    ("found", "asked", "failed", "looked_at"),
    [
        ({}, 0, [], ["a", "b", "c"]),
        ({"b": AWAY}, 0, ["b"], ["a", "b", "c"]),
        ({"a": MISSED, "c": MISSED}, 1, [], ["a"]),
        ({"b": AWAY, "c": MISSED}, 1, ["b"], ["a", "b", "c"]),
    ],
)
def test_one_topic_that_cannot_be_looked_through_is_of_its_table(
    found: dict[str, CdcError],
    asked: int,
    failed: list[str],
    looked_at: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of what is read again all is, once; a failure is one copy's. Histories and other stores are not looked at."""
    judged, views, copy = Judged(found), Rereading(), object()
    monkeypatch.setattr(starting, "require_deletes", judged.offsets)
    monkeypatch.setattr(starting, "require_deletes_read", judged.records)
    monkeypatch.setattr(starting, "require_same_topics", judged.same)
    told: list[str] = []
    stores = cast("Any", {"views": views, "copy": copy})
    nothing = cast("Any", None)
    start = Start(cast("Any", FILE), nothing, stores, told.append, nothing, nothing)
    start.topics = cast("Any", SimpleNamespace(begun={}))
    tables = [replace(TABLE, name=name) for name in ("a", "b", "c")]
    copies = [(table, "views") for table in tables]
    others = [(replace(TABLE, name="d"), "copy"), (replace(TABLE, name="e", history=True), "views")]
    errors = start._read_again([*others, *copies], {})
    assert {name for (name, _) in errors} == {f"{TABLE.schema}.{name}" for name in failed}
    assert (views.asked, len(told), judged.looked_at) == (asked, asked, looked_at)


@pytest.mark.parametrize("history", [False, True])
def test_a_state_of_another_topic_is_never_made_again_by_itself(
    monkeypatch: pytest.MonkeyPatch, *, history: bool
) -> None:
    """Whatever is the matter with its other tables: a position of before the new topic says that it is whole.

    Without that, it goes on without what reads the table.
    """
    judged, views, nothing = Judged({"a": MISSED, "b": ANOTHER}), Rereading(), cast("Any", None)
    monkeypatch.setattr(starting, "require_deletes", judged.offsets)
    monkeypatch.setattr(starting, "require_same_topics", judged.same)
    told: list[str] = []
    asides = AsideCopies({}, nothing, told.append, once=True)
    start = Start(cast("Any", FILE), nothing, cast("Any", {"views": views}), told.append, asides, nothing)
    start.topics = cast("Any", SimpleNamespace(begun={}))
    first, second = replace(TABLE, name="a"), replace(TABLE, name="b", history=history)
    assert start._without_remade([(first, "views"), (second, "views")]) == [(first, "views")]
    assert views.left_out == [second.qualified]
    (aside,) = asides.copies.values()
    assert (aside.for_good, aside.error.hint) == (True, "move the state")
    assert told == [f"what reads {second.qualified} waits for its operator: move the state"]
    with pytest.raises(OtherTopicError):
        start._read_again([(first, "views")], {})
    assert (views.asked, judged.looked_at) == (0, ["a"])
    judged.found.clear()
    start._missed_deletes([(first, "views")])
    assert judged.compared == ["a", "b"], "each is asked once"


@pytest.mark.parametrize("code", [KafkaError._TRANSPORT, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_question_that_kafka_does_not_answer_sets_no_copy_aside(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Whether no broker is there or the user may not ask: it is the job's, and ends its start."""

    def asked(*_: object) -> None:
        raise unreachable(ApplySource(bootstrap_servers="k:1", topic_prefix="p"), KafkaException(KafkaError(code)))

    monkeypatch.setattr(starting, "require_deletes", asked)
    monkeypatch.setattr(starting, "require_same_topics", lambda *_: None)
    nothing = cast("Any", None)
    start = Start(cast("Any", FILE), nothing, cast("Any", {"views": Rereading()}), nothing, nothing, nothing)
    start.topics = cast("Any", SimpleNamespace(begun={}))
    with pytest.raises(UnansweredError):
        start._read_again([(TABLE, "views")], {})
    with pytest.raises(UnansweredError):
        start._missed_deletes([(TABLE, "views")])


def test_what_copies_have_not_read_is_looked_through_once_for_all_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that go on with the others; what is unread of a topic may be large."""
    looked_at: list[tuple[str, Any]] = []

    def look(_spark: Any, _source: Any, _table: TargetTable, name: str, _store: Any, *, found: Any = None) -> None:
        looked_at.append((name, found))

    monkeypatch.setattr(starting, "require_deletes_read", look)
    nothing, stores = cast("Any", None), cast("Any", {"lake": object(), "copy": object(), "aside": object()})
    going_on = SimpleNamespace(stores={"lake", "copy"})
    applier = cast("Any", SimpleNamespace(routes={TABLE.topic: going_on}, contained=lambda *_: nullcontext()))
    start = Start(cast("Any", FILE), nothing, stores, nothing, nothing, applier)
    start.unsearched = [(TABLE, name) for name in stores]
    start.search_rest()
    assert [name for name, _ in looked_at] == ["lake", "copy"]
    assert looked_at[0][1] is not None
    assert looked_at[0][1] is looked_at[1][1]
