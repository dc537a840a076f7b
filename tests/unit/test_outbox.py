"""The outbox: each insert of the log is a message, once, in order, with all of its transaction."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import orjson
import pytest

from cdc.capture import pipeline
from cdc.capture.control.signals import Command
from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.config import ConnectorConfig, load_connector
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.outbox import OutboxConfig
from cdc.config.source_config import SourceConfig
from cdc.model.change import Change, Column, Kind, Op, Row, Table
from cdc.model.errors import CdcError, ChangedError, ConfigError, OperatorError
from cdc.model.interfaces import Log
from cdc.model.table_schema import NoneCame
from cdc.rules.outbox import COLUMNS, refusals
from cdc.testing import (
    POINTS,
    At,
    Faults,
    Killed,
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    Record,
    delete,
    insert,
    nothing,
    truncate,
    update,
)
from connectors.captured_tables import LeftOut
from connectors.postgres.catalog.catalog import Captured
from connectors.triggers.postgres.source import PostgresTriggers
from tests.pushes import some_each_push
from tests.text_tables import text_column, text_table

_JSON = Column("payload", "jsonb", Kind("json"), text_column("payload").encode, toastable=True)
OUTBOX = text_table("outbox", ["id", "aggregatetype", "aggregateid", "type", _JSON])
ORDERS = text_table("orders", ["id", "note"])
CONFIG = OutboxConfig(table="s.outbox")
LETTERS: frozenset[Log] = frozenset(["dead-letter"])


def _row(number: int, *, of: bytes = b"order", who: bytes | None = b"7", payload: bytes | None = b'{"a": 1}') -> Row:
    return (b"%d" % number, of, who, b"Created", payload)


class Bench:
    def __init__(self) -> None:
        self.log, self.kafka = MemoryLog(), MemoryKafka()
        self.source = MemorySource

    def run(
        self,
        *tables: Table,
        at: At = nothing,
        logs: frozenset[Log] = frozenset(),
        outbox: OutboxConfig | None = CONFIG,
    ) -> None:
        Pipeline(
            Settings(connector="c", prefix="p", chunk_rows=1, outbox=outbox, logs=logs),
            open_source=lambda: self.source(self.log, tables or [OUTBOX, ORDERS], at=at),
            open_snapshotter=lambda: MemorySnapshotter(self.log, rows_each=1, at=at),
            sink=MemorySink(self.kafka, "c", "p", at=at),
        ).run(until_caught_up=True)

    def messages(self, of: str = "order") -> list[Record]:
        return self.kafka.committed(f"outbox.event.{of}")

    def ids(self, of: str = "order") -> list[int]:
        return [int(dict(record.headers)["id"]) for record in self.messages(of)]


def test_an_insert_is_a_message() -> None:
    """Topic, key, value, headers by Debezium's columns; nothing else of the table is published."""
    bench = Bench()
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(1)), insert(ORDERS, (b"1", b"a")), insert(OUTBOX, _row(2, of=b"bill")))
    bench.log.commit(insert(OUTBOX, _row(3, payload=None)))
    bench.run()
    first, third = bench.messages()
    assert (first.key, first.value) == (b"7", b'{"a": 1}')
    assert first.headers == (("id", b"1"), ("eventType", b"Created"))
    assert (third.value, bench.ids("bill")) == (None, [2])
    (order,) = bench.kafka.committed("p.s.orders")
    assert first.transaction == order.transaction == bench.messages("bill")[0].transaction
    assert not bench.kafka.committed("p.s.outbox")
    assert [orjson.loads(r.value or b"")["table"] for r in bench.kafka.committed("p.schema")] == ["orders"]


def test_bytes_are_published_as_they_are() -> None:
    """A payload of bytes is no base64."""
    payload = Column("payload", "bytea", Kind("bytes"), lambda _: b'"AP8="')
    table = text_table("outbox", ["id", "aggregatetype", "aggregateid", "type", payload])
    bench = Bench()
    bench.run(table)
    bench.log.commit(insert(table, _row(1)))
    bench.run(table)
    assert bench.messages()[0].value == b"\0\xff"


_TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


@pytest.mark.parametrize(
    ("context", "headers"),
    [
        (b"#Fri Nov 27 06:00:00 UTC 2026\ntraceparent=" + _TRACE + b"\n", {"traceparent": _TRACE}),
        (
            b"traceparent: " + _TRACE + b"\r\ntracestate=a\\=1,b\\=2\r\nx=y",
            {"traceparent": _TRACE, "tracestate": b"a=1,b=2"},
        ),
        (b"traceparent=" + _TRACE.upper(), {}),
        (b"tracestate=a", {}),
        (_TRACE, {}),
        (b"", {}),
        (None, {}),
    ],
)  # fmt: skip
def test_a_trace_goes_on(context: bytes | None, headers: dict[str, bytes]) -> None:
    """By Debezium's column; what is no trace context is none, and the message is published all the same."""
    table = text_table("outbox", ["id", "aggregatetype", "aggregateid", "type", _JSON, "tracingspancontext"])
    bench = Bench()
    bench.run(table)
    bench.log.commit(insert(table, (*_row(1), context)))
    bench.run(table)
    (message,) = bench.messages()
    assert dict(message.headers) == {"id": b"1", "eventType": b"Created", **headers}


def test_what_is_tidied_up_at_once_is_published_too(caplog: pytest.LogCaptureFixture) -> None:
    """In the same transaction, or by TRUNCATE; an update is warned of, once."""
    bench = Bench()
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(1)), delete(OUTBOX, (b"1",)))
    bench.log.commit(insert(OUTBOX, _row(2)), update(OUTBOX, _row(2)), update(OUTBOX, _row(2)), truncate(OUTBOX))
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert bench.ids() == [1, 2]
    assert caplog.text.count("an update is not published") == 1


def test_a_row_that_moves_to_another_partition_is_no_new_message(caplog: pytest.LogCaptureFixture) -> None:
    """PostgreSQL writes such an update as a delete and an insert; who writes those itself means another message.

    Where just the key of the old row is known, the two look alike: both are published, and that is said.
    """
    done = text_table("outbox", ["id", "done", "aggregatetype", "aggregateid", "type", _JSON])
    done = replace(done, key=("id", "done"))

    def row(number: bytes, state: bytes, payload: bytes = b'{"a": 1}') -> Row:
        return (number, state, *_row(1, payload=payload)[1:])

    def whole(number: bytes, state: bytes) -> Change:
        return delete(done, (number, state))._replace(before=row(number, state))

    bench = Bench()
    bench.run(done)
    bench.log.commit(insert(done, row(b"1", b"f")), insert(done, row(b"2", b"f")))
    moved = (whole(b"1", b"f"), insert(done, row(b"1", b"t")))
    bench.log.commit(*moved, whole(b"2", b"f"), insert(done, row(b"2", b"t")))
    with caplog.at_level(logging.WARNING):
        bench.run(done)
    assert bench.ids() == [1, 2]
    assert caplog.text.count("an update is not published") == 1
    bench.log.commit(whole(b"1", b"t"), insert(done, row(b"1", b"t")))
    bench.log.commit(whole(b"1", b"t"), insert(done, row(b"3", b"f")))
    bench.log.commit(whole(b"2", b"t"))
    bench.log.commit(insert(done, row(b"2", b"f")))
    bench.log.commit(whole(b"2", b"f"), insert(done, row(b"2", b"t", b'{"a": 2}')))
    bench.run(done)
    assert bench.ids() == [1, 2, 1, 3, 2, 2]
    assert bench.messages()[-1].value == b'{"a": 2}', "another message under the same id"
    assert "the log does not tell" not in caplog.text
    bench.log.commit(delete(done, (b"3", b"f")), insert(done, row(b"3", b"t", b'{"a": 3}')))
    bench.run(done)
    assert bench.messages()[-1].value == b'{"a": 3}'
    assert caplog.text.count("which, the log does not tell") == 1


def test_rows_that_were_there_before_are_not_published() -> None:
    """Neither by the first snapshot nor when they are read again: what a message was, the log alone tells."""
    bench = Bench()
    bench.log.commit(insert(OUTBOX, _row(1)))
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(2)))
    bench.run(ORDERS, outbox=None)
    bench.run()
    assert bench.ids() == []
    bench.log.commit(insert(OUTBOX, _row(3)))
    bench.run()
    assert bench.ids() == [3]


def test_messages_that_no_log_has_are_told_of(caplog: pytest.LogCaptureFixture) -> None:
    """Of a table that was made again, and was in no publication at first: no reading of it brings them."""

    class Comparing(MemorySource):
        found: ClassVar[dict[str, str]] = {}

        def stale(self) -> dict[str, str]:
            return self.found

    bench, reason = Bench(), "it is another table of that name"
    bench.run()
    bench.source, Comparing.found = Comparing, {"s.outbox": reason, "s.orders": reason}
    with caplog.at_level(logging.WARNING):
        bench.run()
    said = {record.levelname: record.getMessage() for record in caplog.records}
    assert said["ERROR"].startswith(f"table s.outbox: {reason}: it is the outbox: messages")
    assert said["WARNING"] == f"table s.orders: {reason}: its rows are read again"
    assert "s.outbox: it is another table of that name: its rows" not in caplog.text
    bench.log.commit(insert(OUTBOX, _row(3)))
    bench.run()
    assert bench.ids() == [3]
    caplog.clear()
    Comparing.found = {"s.outbox": NoneCame("a partition was dropped")}
    bench.run()
    assert not caplog.records, "by dropping partitions it is tidied up"


def test_a_reading_deletes_nothing_of_a_table_that_is_an_outbox_now() -> None:
    """It had rows in its topic, and all tables are read again behind a gap: its topic stays as it is, as is told."""
    bench = Bench()
    bench.log.commit(insert(OUTBOX, _row(1)))
    bench.run(outbox=None)
    topic = bench.kafka.committed("p.s.outbox")
    bench.log.held_from = None
    signal = MemorySink(bench.kafka, "c", "p")
    signal.fence()
    state = bench.kafka.state("p", "c")
    assert state is not None
    signal.ask(b"1", Command(tables=(), after_gap=True).to_bytes("1"))
    signal.commit(state.next())
    bench.run()
    assert bench.kafka.committed("p.s.outbox") == topic


@pytest.mark.parametrize("altered", [{"marks": ("2", "2")}, {"key": ("id", "type")}], ids=["rewritten", "key"])
def test_an_outbox_that_is_altered_is_not_read(caplog: pytest.LogCaptureFixture, altered: dict[str, Any]) -> None:
    """It had rows in its topic, and no reading would describe it there: each start would read it once more."""
    bench = Bench()
    bench.log.commit(insert(OUTBOX, _row(1)))
    bench.run(replace(OUTBOX, marks=("1", "1")), outbox=None)
    bench.log.commit(insert(OUTBOX, _row(2)))
    bench.run(replace(OUTBOX, **{"marks": ("1", "1"), **altered}))
    assert bench.ids() == [2]
    assert "read again" not in caplog.text


def test_a_table_that_is_no_outbox_any_more_is_read(caplog: pytest.LogCaptureFixture) -> None:
    """Then it is a table as others: its rows are events, those of before too; and back again."""
    bench = Bench()
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(1)))
    bench.run()
    assert "outbox" not in caplog.text
    for _ in range(2):
        bench.run(outbox=None)
    bench.log.commit(insert(OUTBOX, _row(2)))
    bench.run(outbox=None)
    events = [orjson.loads(r.value or b"") for r in bench.kafka.committed("p.s.outbox")]
    assert [(e["op"], e["after"]["id"]) for e in events] == [("r", "1"), ("c", "2")]
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(3)))
    bench.run()
    assert bench.ids() == [1, 3]


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("nth", some_each_push([1, 2, 4], 1))
def test_each_message_once_whatever_is_killed(point: str, nth: int) -> None:
    """At every step, also while the snapshot reads and hides events of other tables: all from where the log is held."""
    bench = Bench()
    bench.log.commit(insert(ORDERS, (b"1", b"a")), insert(ORDERS, (b"2", b"a")))
    faults = Faults((point, nth), error=Killed)
    coming = iter(range(10, 18))

    def come() -> None:
        for number in islice(coming, 1):
            row, key = _row(number), b"%d" % number
            bench.log.commit(insert(OUTBOX, row), update(ORDERS, (b"1", key)), delete(OUTBOX, (key,)))

    def at(name: str) -> None:
        if name in {"source.held", "snapshot.chunk", "source.idle", "sink.commit"}:
            come()
        faults(name)

    for _ in range(3):
        with contextlib.suppress(Killed):
            bench.run(at=at)
    for _ in range(8):
        come()
    bench.run()
    held = [logged for logged in bench.log.transactions if logged.commit >= (bench.log.held_from or 0)]
    changes = [change for logged in held for change in logged.changes if isinstance(change, Change)]
    inserted = [change.after for change in changes if change.table is OUTBOX and change.op is Op.CREATE]
    assert bench.ids() == [int(bytes(row[0] or b"")) for row in inserted if row is not None]  # type: ignore[arg-type]
    assert len(inserted) > 1


def test_a_message_without_its_parts_is_a_dead_letter() -> None:
    """Or stops the connector; others go on."""
    bench = Bench()
    bench.run(logs=LETTERS)
    bench.log.commit(insert(OUTBOX, _row(1, who=None)), insert(OUTBOX, _row(2, of=b"")), insert(OUTBOX, _row(3)))
    bench.run(logs=LETTERS)
    assert bench.ids() == [3]
    letters = [orjson.loads(r.value or b"") for r in bench.kafka.committed("p.dead-letter-c")]
    assert [letter["columns"] for letter in letters] == [["aggregateid"], ["aggregatetype"]]
    bench.log.commit(insert(OUTBOX, _row(4, who=None)))
    with pytest.raises(OperatorError, match="a message of the outbox without aggregateid"):
        bench.run()


@pytest.mark.parametrize("gone", ["payload", "type"])
def test_a_column_that_goes_while_it_is_followed(gone: str) -> None:
    """By DROP or RENAME: what the message says is not NULL, it is not known; the row is kept whole."""
    bench = Bench()
    bench.run(logs=LETTERS)
    renamed = text_table("outbox", ["id", *(f"{gone}_2" if name == gone else name for name in COLUMNS[1:])])
    bench.log.commit(insert(renamed, (b"1", b"order", b"7", b"said", b"said")))
    bench.run(logs=LETTERS)
    assert bench.messages() == []
    (letter,) = [orjson.loads(r.value or b"") for r in bench.kafka.committed("p.dead-letter-c")]
    assert letter["reason"] == f"a message of an outbox that has no column {gone}"
    assert letter["after"][f"{gone}_2"] == "c2FpZA=="
    bench.log.commit(insert(renamed, (b"2", b"order", b"7", b"said", b"said")))
    with pytest.raises(OperatorError, match=f"that has no column {gone}"):
        bench.run()


def test_what_the_log_does_not_tell_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """DDL, or rows without events: what is in the table may have been published, or not."""
    bench = Bench()
    bench.run()
    bench.log.commit(insert(OUTBOX, _row(1)))
    logged = bench.log.transactions[-1]
    hole = Change(Op.READ, OUTBOX, None, None, 1)
    bench.log.transactions[-1] = replace(logged, changes=(hole, *logged.changes))
    with caplog.at_level(logging.WARNING):
        bench.run()
    assert "a statement in the place of rows" in caplog.text
    assert bench.ids() == [1]


def test_a_table_that_is_no_outbox_is_refused() -> None:
    """Before anything is made."""
    bench = Bench()
    with pytest.raises(OperatorError, match="has no column aggregatetype, payload"):
        bench.run(text_table("outbox", ["id", "aggregateid", "type"]))
    assert not bench.kafka.topics


def test_an_outbox_that_is_not_captured_is_refused() -> None:
    """A pattern brings others: nobody would miss one that is misspelt, was renamed, or cannot be captured."""
    no_key = OperatorError("table s.outbox has no primary key")

    class Choosing(MemorySource):
        def left_out(self) -> dict[str, CdcError]:
            return {"s.outbox": no_key}

    bench = Bench()
    with pytest.raises(OperatorError, match=r"source.outbox: s.outbox is no captured table") as unknown:
        bench.run(ORDERS)
    assert "captured are s.orders" in (unknown.value.hint or "")
    bench.source = Choosing
    with pytest.raises(OperatorError, match=r"table s.outbox has no primary key"):
        bench.run(ORDERS)
    assert not bench.kafka.topics
    assert list(refusals(CONFIG, [ORDERS], {"s.outbox": None})) == [], "told already"


def test_an_outbox_that_is_made_again_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """By DROP and CREATE in a migration: a session that begins in between looks again, where a pattern brings it."""
    monkeypatch.setattr(pipeline, "RETRY_FIRST_S", 0.0)
    bench, sessions = Bench(), 0
    bench.run()
    bench.log.commit(insert(ORDERS, (b"1", b"a")))

    def at(point: str) -> None:
        if point == "source.change" and sessions == 1:
            raise ChangedError("table s.outbox was dropped")
        if point == "source.idle":
            running.stop()

    def open_source() -> MemorySource:
        nonlocal sessions
        sessions += 1
        return MemorySource(bench.log, [ORDERS] if sessions == 2 else [OUTBOX, ORDERS], at=at)

    running = Pipeline(
        Settings(connector="c", prefix="p", chunk_rows=1, outbox=CONFIG, by_pattern=lambda _: True),
        open_source=open_source,
        open_snapshotter=lambda: MemorySnapshotter(bench.log, rows_each=1, at=at),
        sink=MemorySink(bench.kafka, "c", "p", at=at),
    )
    running.run()
    assert sessions == 3


def test_an_outbox_that_came_while_nothing_ran_is_there_from_the_start() -> None:
    """By triggers others wait until the connector runs: but without its outbox none begins."""
    of = SourceConfig(type="triggers", url="postgresql://h/d", tables=("s.*",), outbox=CONFIG)
    sink = KafkaConfig(bootstrap_servers="h:1", topic_prefix="p")
    source = PostgresTriggers(ConnectorConfig(name="c", source=of, sink=sink))
    later = [
        table.name
        for table in (OUTBOX, ORDERS)
        if source._comes_later(cast("Captured", SimpleNamespace(table=table)), {"s.before"}, LeftOut(of.tables))
    ]
    assert later == ["orders"]


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"outbox": OutboxConfig(table="s.other")}, "outbox.table: “s.other” is not captured"),
        ({"outbox": OutboxConfig(table="s.*")}, "is not captured"),
        ({"outbox": CONFIG, "where": {"s.*": "id = 1"}}, "s.outbox is the outbox, and has rules"),
    ],
)
def test_files_that_are_refused(more: dict[str, object], why: str) -> None:
    """Before anything is connected."""
    with pytest.raises(ConfigError, match=why):
        SourceConfig(type="postgres", url="postgresql://h/d", tables=("s.outbox",), **more)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="cannot begin the name of a topic"):
        OutboxConfig(table="s.outbox", topic_prefix="a b")


def test_topics_that_look_like_tables_are_refused(tmp_path: Path) -> None:
    """Of this prefix: an apply job would take them for tables."""
    file = tmp_path / "c.yaml"
    file.write_text(
        "{name: c, source: {type: postgres, url: 'postgresql://h/d', tables: [s.outbox], outbox: {table: s.outbox}},"
        " sink: {bootstrap_servers: 'h:1', topic_prefix: outbox}}"
    )
    with pytest.raises(ConfigError, match="would look like tables"):
        load_connector(file)
