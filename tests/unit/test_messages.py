"""Messages in the log: each once and in its place, whatever fails; and the record of transactions."""

from __future__ import annotations

import base64
from typing import Any

import orjson
import pytest

import cdc.capture.commit_pace
import cdc.capture.control.commands
import cdc.capture.pipeline
import cdc.capture.session
from cdc.capture.pipeline import Pipeline, Settings
from cdc.model.change import Message
from cdc.model.interfaces import Log
from cdc.testing import At, Faults, MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, insert, nothing
from tests.text_tables import text_table

A = text_table("a", ["id"])
LOGS: frozenset[Log] = frozenset(["message", "transaction"])
POINTS = ("source.frame", "source.change", "source.acknowledge", "sink.write", "sink.commit", "sink.commit.delayed",
          "sink.commit.answer")  # fmt: skip


def run(log: MemoryLog, kafka: MemoryKafka, *, at: At = nothing, logs: frozenset[Log] = LOGS) -> None:
    Pipeline(
        Settings(connector="c", prefix="p", logs=logs),
        open_source=lambda: MemorySource(log, [A], at=at),
        open_snapshotter=lambda: MemorySnapshotter(log, at=at),
        sink=MemorySink(kafka, "c", "p", at=at),
    ).run(until_caught_up=True)


def values(kafka: MemoryKafka, topic: str) -> list[dict[str, Any]]:
    return [orjson.loads(r.value or b"") for r in kafka.committed(topic)]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("passing", [1, 2, 3, 5, 8])
def test_each_message_is_published_once_and_in_order(point: str, passing: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a transaction and in none, with a fault at each point of the cycle."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    monkeypatch.setattr(cdc.capture.commit_pace, "CUT_RECORDS", 2)
    monkeypatch.setattr(cdc.capture.commit_pace, "APART_MOST_S", 0.0)
    log, kafka = MemoryLog(), MemoryKafka()
    run(log, kafka)
    for n in range(8):
        log.commit(insert(A, (b"%d" % n,)), Message("in", b"%d" % n, 0))
        log.say("alone", b"%d" % n)
    run(log, kafka, at=Faults((point, passing)))
    run(log, kafka)
    found = values(kafka, "p.message")
    assert [(v["message"]["prefix"], base64.b64decode(v["message"]["content"])) for v in found] == [
        (prefix, b"%d" % n) for n in range(8) for prefix in ("in", "alone")
    ]
    positions = [v["source"]["position"] for v in found]
    assert positions == sorted(set(positions))
    everything = positions + [v["source"]["position"] for v in values(kafka, "p.s.a")]
    assert len(set(everything)) == len(everything) == 24
    told = values(kafka, "p.transaction")
    assert [v["status"] for v in told] == ["BEGIN", "END"] * 8
    assert {v["event_count"] for v in told} == {None, 2}


def test_transactions_without_events_are_not_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty one, and one whose events a snapshot has already; nothing at all unless it is asked for."""
    monkeypatch.setattr(cdc.capture.pipeline, "RETRY_FIRST_S", 0.0)
    log, kafka = MemoryLog(), MemoryKafka()
    log.commit(insert(A, (b"0",)))
    with pytest.raises(BaseException, match="snapshot"):
        run(log, kafka, at=Faults(("snapshot.view", 1), error=KeyboardInterrupt))
    log.commit(insert(A, (b"1",)))  # the next view sees it: hidden from the log
    log.commit()
    run(log, kafka)
    assert values(kafka, "p.transaction") == []
    assert len(values(kafka, "p.s.a")) == 2
    log.commit(insert(A, (b"2",)))
    run(log, kafka, logs=frozenset(["message"]))
    assert values(kafka, "p.transaction") == []
