"""A registry that fails in every way: nothing is written that a reader could not read, and nothing is lost."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import certifi
import orjson
import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer
from confluent_kafka.serialization import MessageField, SerializationContext

from cdc.capture.pipeline import Pipeline, Report, Settings
from cdc.capture.starting.without import AGAIN_S
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.record_format import RegistryConfig
from cdc.encode.topic_contents.foreign import FOREIGN
from cdc.formats.meanings import meant_otherwise
from cdc.formats.reading import PLAIN, Reading
from cdc.formats.registry_watch import RegistryWatch
from cdc.formats.wires import RegisteredWires
from cdc.model.change import Kind, Position, Row, Table
from cdc.model.errors import CdcError, ConfigError, OperatorError, RetryableError, TopicError
from cdc.model.interfaces import Source
from cdc.rules.flat import Flat, Formats
from cdc.testing import MemoryKafka, MemoryLog, MemorySink, MemorySnapshotter, MemorySource, insert, truncate
from cdc.testing.log import View
from sinks.client import schema_registry
from sinks.client.schema_registry import SchemaRegistry, check
from tests.integration.certificates import Authority
from tests.scripted.registry import ScriptedRegistry, scripted_registry
from tests.text_tables import text_table

TABLE = text_table("t", ["id", "note"])
WIDER = text_table("t", ["id", "note", "more"])


@pytest.fixture(autouse=True)
def one_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each client loads what it trusts, as it is made: all that the system trusts would be most of what tests take."""
    one = tmp_path / "trusted.pem"
    first, end, _ = certifi.contents().partition("-----END CERTIFICATE-----")
    one.write_text(first + end)
    monkeypatch.setenv("SSL_CERT_FILE", str(one))


@pytest.fixture
def server() -> Iterator[ScriptedRegistry]:
    with scripted_registry() as registry:
        yield registry


class Filling(MemoryLog):
    """Fills the columns that rows get by ALTER TABLE, and takes away those that they lose."""

    def rows(self, table: Table, view: View | None = None) -> dict[tuple[bytes, ...], Row]:
        added = len(table.columns)
        return {key: (*row, *[b"new"] * (added - len(row)))[:added] for key, row in super().rows(table, view).items()}


class Bench:
    def __init__(self, server: ScriptedRegistry, **options: Any) -> None:
        self.log, self.kafka, self.server = Filling(), MemoryKafka(), server
        self.config = RegistryConfig(url=server.url, **options)
        self.changed: dict[str, Table] = {}
        """Tables that were altered since the pipeline began."""

    def run(self, *tables: Table, form: str = "avro") -> None:
        self.pipeline(*tables, form=form).run(until_caught_up=True)

    def pipeline(self, *tables: Table, form: str = "avro", wait_s: float | None = None, **more: Any) -> Pipeline:
        formats, client, reader = Formats(form), SchemaRegistry(self.config), SchemaRegistry(self.config)
        wires = RegisteredWires(formats, registry=client, subjects=self.config.subjects)

        def opened(without: Collection[str] = ()) -> Source:
            there = [self.changed.get(of.qualified, of) for of in tables or [TABLE]]
            return MemorySource(self.log, [of for of in there if of.qualified not in without])

        return Pipeline(
            Settings(connector="c", prefix="p", formats=formats, wires=wires, idle_position_s=0.0, wait_s=wait_s),
            open_source=opened,
            leaving_out=lambda names: partial(opened, names),
            open_snapshotter=lambda: MemorySnapshotter(self.log),
            sink=MemorySink(self.kafka, "c", "p", reading=Reading(reader.schema, forget=reader.forget)),
            **more,
        )

    def readable(self, form: str) -> dict[str, bool]:
        """Return whether each row in the topic, by its id, has the column `more`; each has its schema."""
        newest = {record.key or b"": record.value for record in self.kafka.committed("p.s.t")}
        reading, found = Reading(SchemaRegistry(self.config).schema), dict[str, bool]()
        for key, value in newest.items():
            if value is not None:
                assert set(orjson.loads(reading.json(key))) == {"id"}
                told = orjson.loads(reading.json(value))
                row = told if form.startswith("flat") else told["after"]
                assert set(row) - {"more"} == {"id", "note"}, row
                found[row["id"]] = "more" in row
        return found

    def values(self) -> list[Any]:
        """Read what is committed with Confluent's own deserializer, as a consumer does."""
        read = AvroDeserializer(SchemaRegistryClient({"url": self.server.url}))
        of = SerializationContext("p.s.t", MessageField.VALUE)
        return [read(record.value, of)["after"] for record in self.kafka.committed("p.s.t")]


def test_a_consumer_reads_it(server: ScriptedRegistry) -> None:
    """The ids are the registry's; a table that gets a column has a second version, and nothing asks for each event."""
    bench = Bench(server)
    for number in (1, 2, 3):
        bench.log.commit(insert(TABLE, (b"%d" % number, b"a")))
    bench.run()
    bench.log.commit(insert(WIDER, (b"4", b"a", b"b")))
    bench.run(WIDER)
    assert bench.values()[0] == {"id": "1", "note": "a"}
    assert bench.values()[-1] == {"id": "4", "note": "a", "more": "b"}
    assert {subject: len(ids) for subject, ids in server.subjects.items()} == {"p.s.t-key": 1, "p.s.t-value": 2}
    assert len([r for r in server.requests if r.startswith("POST")]) < 12


@pytest.mark.parametrize(
    ("subjects", "expected"),
    [
        ("topic", {"p.s.t-key", "p.s.t-value"}),
        ("record", {"p.s.t.Key", "p.s.t.Envelope"}),
        ("topic-record", {"p.s.t-p.s.t.Key", "p.s.t-p.s.t.Envelope"}),
    ],
)
def test_subjects(server: ScriptedRegistry, subjects: str, expected: set[str]) -> None:
    Bench(server, subjects=subjects).run()
    assert set(server.subjects) == expected


@pytest.mark.parametrize("form", ["avro", "flat json-schema"])
def test_a_refused_schema_stops_no_other_table(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    """The table is left out; once the registry takes its schema it is read again by the connector that runs."""
    monkeypatch.setattr("cdc.formats.wires.RegistryWatch", partial(RegistryWatch, every_s=0.0))
    bench, other, seen = Bench(server), text_table("u", ["id"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other, form=form)
    server.refuses = "not compatible"
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")), insert(other, (b"2",)))

    def step(report: Report) -> None:
        if seen[-1:] != [report.state.tables]:
            seen.append(report.state.tables)
        if report.state.tables == ("s.u",) and len(bench.kafka.committed("p.s.u")) == 2:
            assert bench.readable(form) == {"1": False}
            server.refuses = None
        elif len(seen) > 1 and len(bench.readable(form)) == 2:
            pipeline.stop()

    pipeline = bench.pipeline(WIDER, other, form=form, observe=step)
    pipeline.run()
    assert seen[-2:] == [("s.u",), ("s.t", "s.u")]
    assert bench.readable(form) == {"1": True, "2": True}
    server.refuses = "not compatible"
    bench.log.commit(insert(text_table("t", ["id", "note", "more", "most"]), (b"3", b"a", b"b", b"c")))
    with pytest.raises(OperatorError, match="not compatible"):  # there is no other
        bench.run(text_table("t", ["id", "note", "more", "most"]), form=form)


def _denies(server: ScriptedRegistry, part: str, status: int, code: int, to: str) -> None:
    """Have a registry answer such requests about some subjects with a status."""
    asked = server.answer

    def of(command: str, path: str, body: Any, login: str | None) -> tuple[int, Any]:
        said = (status, {"error_code": code, "message": "its reason"})
        return said if part in path and command in to else asked(command, path, body, login)

    server.answer = of  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("form", "part", "denied"),
    [
        ("avro", "p.s.t-value", (403, 40301, "GET POST")),
        pytest.param("avro", "p.s.t-key", (401, 40101, "GET POST"), marks=pytest.mark.full),
        ("flat protobuf", "p.s.t-value", (422, 42201, "POST")),
        ("protobuf", "p.s.t-key", (403, 40301, "GET POST")),
        pytest.param("json-schema", "p.s.t-value", (422, 42205, "POST"), marks=pytest.mark.full),
        pytest.param("flat json-schema", "p.s.t-key", (413, 413, "POST"), marks=pytest.mark.full),
        pytest.param("flat avro", "p.s.t-value", (400, 40001, "POST"), marks=pytest.mark.full),
        ("protobuf", "p.s.t-value/versions", (403, 40301, "POST")),
    ],
)
def test_what_a_registry_says_of_one_subject_stops_no_other_table(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, form: str, part: str, denied: tuple[int, int, str]
) -> None:
    """Rights, a mode, what it cannot read: that table is left out, and read again when the registry takes it."""
    monkeypatch.setattr("cdc.formats.wires.RegistryWatch", partial(RegistryWatch, every_s=0.0))
    bench, other, seen = Bench(server), text_table("u", ["id"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other, form=form)
    if "key" in part:  # a table's keys keep their schema: their subject was deleted
        server.subjects.pop("p.s.t-key")
    good = server.answer
    _denies(server, part, *denied)
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")), insert(other, (b"2",)))

    def step(report: Report) -> None:
        if seen[-1:] != [report.state.tables]:
            seen.append(report.state.tables)
        if report.state.tables == ("s.u",) and len(bench.kafka.committed("p.s.u")) >= 2:
            server.answer = good  # type: ignore[method-assign]
        elif len(seen) > 1 and len(bench.readable(form)) == 2:
            pipeline.stop()

    pipeline = bench.pipeline(WIDER, other, form=form, observe=step)
    pipeline.run()
    assert seen[-2:] == [("s.u",), ("s.t", "s.u")]
    assert bench.readable(form) == {"1": True, "2": True}


@pytest.mark.parametrize(
    ("part", "to"),
    [
        ("p.s.t-value", "GET POST"),
        pytest.param("p.s.t-value/versions", "POST", marks=pytest.mark.full),
        pytest.param("p.s.t-key", "POST", marks=pytest.mark.full),
    ],
)
@pytest.mark.parametrize("at", ["in the log", "at a start"])
def test_a_registry_that_fails_for_one_subject_stops_no_other_table(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, part: str, to: str, at: str
) -> None:
    """It is waited for, then that table is left out, and read again when it answers."""
    clock = [0.0]
    monkeypatch.setattr("cdc.capture.starting.without.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("cdc.capture.pipeline.RETRY_LONGEST_S", 0.01)
    monkeypatch.setattr("cdc.capture.pipeline.RETRY_FIRST_S", 0.01)
    monkeypatch.setattr("cdc.capture.pipeline.GIVE_UP_S", 10.0)
    monkeypatch.setattr(schema_registry, "_ALONE_S", 0.2)
    bench, other, seen = Bench(server), text_table("u", ["id"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other)
    good = server.answer
    if "key" in part:
        server.subjects.pop("p.s.t-key")
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")), insert(other, (b"2",)))
    _denies(server, part, 500, 50001, to)

    def step(report: Report) -> None:
        if seen[-1:] != [report.state.tables]:
            seen.append(report.state.tables)
        if report.state.tables == ("s.u",) and len(bench.kafka.committed("p.s.u")) >= 2:
            server.answer = good  # type: ignore[method-assign]
            clock[0] += AGAIN_S
        elif len(seen) > 1 and len(bench.readable("avro")) == 2:
            pipeline.stop()

    pipeline = bench.pipeline(WIDER if at == "in the log" else TABLE, other, observe=step)
    if at == "at a start":
        bench.changed["s.t"] = WIDER
    pipeline.run()
    assert seen[-2:] == [("s.u",), ("s.t", "s.u")]
    assert bench.readable("avro") == {"1": True, "2": True}


@pytest.mark.parametrize(
    "then",
    [
        [insert(WIDER, (b"3", b"a", b"b"))],
        [truncate(TABLE), insert(TABLE, (b"1", b"a")), insert(TABLE, (b"3", b"a"))],
    ],
    ids=["another version", "a topic read back"],
)
def test_a_registry_that_fails_for_one_schema_stops_no_other_table(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, then: list[Any]
) -> None:
    """What was written is read back by its schema's id: that table waits, and comes back when the id is answered."""
    clock = [0.0]
    monkeypatch.setattr("cdc.capture.starting.without.time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr("cdc.capture.pipeline.RETRY_LONGEST_S", 0.01)
    monkeypatch.setattr("cdc.capture.pipeline.RETRY_FIRST_S", 0.01)
    monkeypatch.setattr("cdc.capture.pipeline.GIVE_UP_S", 10.0)
    monkeypatch.setattr(schema_registry, "_ALONE_S", 0.2)
    bench, other, seen = Bench(server), text_table("u", ["id"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other)
    good, number = server.answer, server.subjects["p.s.t-value"][0]
    for change in then:
        bench.log.commit(change)
    bench.log.commit(insert(other, (b"2",)))
    _denies(server, f"/schemas/ids/{number}", 500, 50001, "GET")

    def step(report: Report) -> None:
        if seen[-1:] != [report.state.tables]:
            seen.append(report.state.tables)
        if report.state.tables == ("s.u",) and len(bench.kafka.committed("p.s.u")) >= 2:
            server.answer = good  # type: ignore[method-assign]
            clock[0] += AGAIN_S
        elif len(seen) > 1 and len(bench.readable("avro")) == 2:
            pipeline.stop()

    pipeline = bench.pipeline(then[-1].table, other, observe=step)
    pipeline.run()
    assert seen[-2:] == [("s.u",), ("s.t", "s.u")]
    assert bench.readable("avro").keys() == {"1", "3"}


@pytest.mark.parametrize("ran", [False, True])
def test_where_nothing_goes_on_without_it_a_registry_is_waited_for(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, *, ran: bool
) -> None:
    """A first start with `--wait`, and a connector of one table: neither ends before its time is over."""
    for name, value in (("RETRY_LONGEST_S", 0.01), ("RETRY_FIRST_S", 0.01), ("GIVE_UP_S", 60.0)):
        monkeypatch.setattr(f"cdc.capture.pipeline.{name}", value)
    monkeypatch.setattr(schema_registry, "_ALONE_S", 0.1)
    bench, good, failed = Bench(server), server.answer, list[str]()
    server.keep("others", {"schema": '"string"'})
    if ran:
        bench.log.commit(insert(TABLE, (b"1", b"a")))
        bench.run()

    def fails(exc: CdcError) -> None:
        failed.append(exc.message)
        if "answers other questions" in exc.message:
            server.answer = good  # type: ignore[method-assign]

    def step(_report: Report) -> None:
        if not ran or failed:
            pipeline.stop()
            return
        _denies(server, "p.s.t-value", 500, 50001, "GET POST")
        bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))

    if not ran:
        _denies(server, "p.s.t-value", 500, 50001, "GET POST")
    pipeline = bench.pipeline(observe=step, failed=fails, wait_s=60.0)
    pipeline.run()
    assert "answers other questions" in failed[-1]


def test_a_registry_that_fails_for_all_is_waited_for(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that is new; and what hinders one subject hides neither another one nor other ids."""
    monkeypatch.setattr(schema_registry, "_ALONE_S", 0.0)
    registry, of = SchemaRegistry(RegistryConfig(url=server.url)), '{"type":"record","name":"%s","fields":[]}'
    answer = server.answer

    def asked(subject: str) -> int:
        return registry.register(subject, of % subject, type_="AVRO", ours=[subject])

    _denies(server, "/subjects/", 500, 50001, "GET POST")
    with pytest.raises(RetryableError, match="HTTP 500"):
        asked("a")
    server.answer = answer  # type: ignore[method-assign]
    given = [asked(subject) for subject in "abc"]
    server.status = 500
    for what in (partial(asked, "d"), registry.same):
        with pytest.raises(RetryableError, match="HTTP 500"):
            what()
    server.status = None
    _denies(server, "/c", 500, 50001, "GET POST")
    with pytest.raises(TopicError, match=r"HTTP 500.*answers other questions"):
        registry.newest("c")
    assert all(registry.same() for _ in given)
    assert not registry.takes()
    server.refuses = "not compatible"
    server.keep("e", {"schema": of % "old"})
    with pytest.raises(TopicError, match="not compatible"):
        registry.register("e", of % "e", type_="AVRO", ours=["e", "old"])
    server.refuses = None
    assert registry.takes()
    server.schemas[given[0]] = {"schema": of % "of another"}
    assert not all(registry.same() for _ in given)


def test_two_tables_whose_schemas_are_refused_leave_the_third_alone(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They fail in the log, one behind the other: what comes of the one must not bring back the other."""
    monkeypatch.setattr("cdc.formats.wires.RegistryWatch", partial(RegistryWatch, every_s=3600.0))
    bench, second, third = Bench(server), text_table("u", ["id", "note"]), text_table("w", ["id"])
    wider, seen = text_table("u", ["id", "note", "more"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(second, (b"1", b"a")), insert(third, (b"1",)))
    bench.run(TABLE, second, third)
    server.refuses = "not compatible"
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    bench.log.commit(insert(wider, (b"2", b"a", b"b")))

    def step(report: Report) -> None:
        seen.append(report.state.tables)
        bench.log.commit(insert(third, (b"%d" % (len(seen) + 1),)))
        if len(seen) == 20:
            pipeline.stop()

    pipeline = bench.pipeline(WIDER, wider, third, observe=step)
    pipeline.run()
    assert seen[-10:] == [("s.w",)] * 10


CLASH = text_table("t", ["id", "a-b", "a_b", "a_u002db"])


@pytest.mark.parametrize(
    ("form", "shapes"),
    [
        ("avro", (TABLE, CLASH, text_table("t", ["id", "a-b", "a_b", "c"]))),
        ("flat avro", (CLASH, CLASH, text_table("t", ["id", "a-b", "a_b"]))),
        pytest.param("json-schema", (WIDER, WIDER, TABLE), marks=pytest.mark.full),
        ("flat protobuf", (TABLE, WIDER, TABLE)),
    ],
    ids=["avro", "flat avro, at a start", "json-schema, at a start", "flat protobuf"],
)
def test_a_table_that_is_changed_until_its_schema_is_right_comes_back(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch, form: str, shapes: tuple[Table, Table, Table]
) -> None:
    """Nobody tells of it: columns that Avro cannot tell apart, or that a registry does not take, are altered again."""
    (first, table, right), clock = shapes, [0.0]
    monkeypatch.setattr("cdc.capture.starting.without.time", SimpleNamespace(monotonic=lambda: clock[0]))
    bench, other, seen = Bench(server), text_table("u", ["id"]), list[tuple[str, ...]]()
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other, form=form)
    server.refuses = "not compatible" if table is WIDER else None
    bench.log.commit(insert(table, tuple(b"2" for _ in table.columns)), insert(other, (b"2",)))

    def step(report: Report) -> None:
        if seen[-1:] != [report.state.tables]:
            seen.append(report.state.tables)
        if report.state.tables == ("s.u",) and len(bench.kafka.committed("p.s.u")) == 2:
            bench.changed["s.t"] = right
            clock[0] += AGAIN_S
        elif len(seen) > 1 and not report.state.reading:
            pipeline.stop()

    pipeline = bench.pipeline(first, other, form=form, observe=step)
    pipeline.run()
    assert seen[-2:] == [("s.u",), ("s.t", "s.u")]
    reading = Reading(SchemaRegistry(bench.config).schema)
    newest = {record.key: record.value for record in bench.kafka.committed("p.s.t")}
    told = [orjson.loads(reading.json(value)) for value in newest.values() if value is not None]
    rows = {of["id"]: of for of in (of.get("after", of) for of in told)}
    assert {key: list(row) for key, row in rows.items()} == {key: [c.name for c in right.columns] for key in "12"}


@pytest.mark.parametrize("answer", [(401, {"error_code": 40101}), (422, {"error_code": 42205})], ids=["login", "mode"])
def test_a_registry_that_is_closed_to_all_leaves_out_none(server: ScriptedRegistry, answer: Any) -> None:
    """Not the tables that were asked for either, though one is not: it has changed, and the log is to be read first."""
    bench, tables = Bench(server), [text_table(name, ["id"]) for name in "uvw"]
    bench.log.commit(*(insert(table, (b"1",)) for table in tables))
    bench.run(*tables)
    answers, server.answer = server.answer, lambda *_: answer  # type: ignore[method-assign]
    more = text_table("w", ["id", "note"])
    bench.log.commit(insert(tables[0], (b"2",)), insert(more, (b"2", b"a")))
    seen = list[tuple[str, ...]]()
    pipeline = bench.pipeline(*tables[:2], more, observe=lambda report: seen.append(report.state.tables))
    with pytest.raises(OperatorError, match=r"login|read-only"):
        pipeline.run()
    assert not seen
    server.answer = answers  # type: ignore[method-assign]
    bench.run(*tables[:2], more)
    assert len(bench.kafka.committed("p.s.u")) == 2


def test_a_table_that_is_left_out_keeps_no_run_from_its_end(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for again by a run that goes on."""
    bench, other = Bench(server), text_table("u", ["id"])
    bench.log.commit(insert(TABLE, (b"1", b"a")), insert(other, (b"1",)))
    bench.run(TABLE, other)
    server.refuses = "not compatible"
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")), insert(other, (b"2",)))
    monkeypatch.setattr("cdc.capture.starting.without.AGAIN_S", 0.0)
    bench.run(TABLE, other)
    assert len(bench.kafka.committed("p.s.u")) == 2


def test_a_flat_record_whose_schema_is_lost_is_told_as_that() -> None:
    """Also to a connector whose file has another format by now, and no registry: nobody else has written it."""
    record, header = b"\0\0\0\0\x05\x02a", Flat().header(b"c", Position(1, 2, 3).text, 1)
    for reading in (Reading(lambda _: None), PLAIN):
        assert reading.event(record, [header]) == record
    of_others = Reading(lambda _: ("AVRO", '"int"'))
    assert of_others.event(record, [header]) is FOREIGN


def test_what_was_refused_is_told_to_be_taken_once(server: ScriptedRegistry) -> None:
    """Also by a registry that cannot be asked beforehand: it must not have a session begin again each minute."""
    registry, of = SchemaRegistry(RegistryConfig(url=server.url)), '{"type":"record","name":"%s","fields":[]}'
    server.keep("s", {"schema": of % "old"})
    server.refuses = "not compatible"

    def refused() -> None:
        with pytest.raises(TopicError, match="not compatible"):
            registry.register("s", of % "new", type_="AVRO", ours=["old", "new"])

    refused()
    assert not registry.takes()
    server.forbids = {"compatibility"}
    assert registry.takes()
    refused()
    assert not registry.takes()
    server.forbids = set()
    assert not registry.takes()  # it is refused beforehand, too: from now on it is told again
    server.refuses = None
    assert registry.takes()


def test_a_subject_that_cannot_be_asked_about_hides_nothing(server: ScriptedRegistry) -> None:
    """Neither another subject, whose schema would be taken by now, nor ids that are others than were given."""
    registry, of = SchemaRegistry(RegistryConfig(url=server.url)), '{"type":"record","name":"%s","fields":[]}'
    given = registry.register("c", of % "c", type_="AVRO", ours=["c"])
    server.refuses = "not compatible"
    for subject in ("a", "b"):
        server.keep(subject, {"schema": of % "old"})
        with pytest.raises(TopicError, match="not compatible"):
            registry.register(subject, of % "new", type_="AVRO", ours=["old", "new"])
    server.refuses, answer = None, server.answer

    def denied(command: str, path: str, body: Any, login: str) -> Any:
        return (403, {"error_code": 40301, "message": "no"}) if "/a/" in path else answer(command, path, body, login)

    server.answer = denied  # type: ignore[method-assign]
    assert registry.takes()
    watch = RegistryWatch(registry.same, registry.takes, every_s=0, again_s=0)
    server.schemas[given] = {"schema": of % "of another"}
    server.mode = "READONLY"
    assert any(watch.moved() or time.sleep(0.02) for _ in range(500))


def test_a_refused_schema_stops_before_the_event(server: ScriptedRegistry) -> None:
    """In the log: what came before is committed, and is whole; the verdict has the reason and the way out."""
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run()
    server.refuses = "READER_FIELD_MISSING_DEFAULT_VALUE at /fields/0"
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    with pytest.raises(
        OperatorError, match=r"table s\.t: .*subject p\.s\.t-value does not take .*READER_FIELD"
    ) as stopped:
        bench.run()
    assert f"{server.url}/config/p.s.t-value" in (stopped.value.hint or "")
    assert bench.values() == [{"id": "1", "note": "a"}]
    server.refuses = None
    bench.run(WIDER)
    assert [value["id"] for value in bench.values()] == ["1", "2"]


@pytest.mark.parametrize("form", ["avro", "flat protobuf", "json-schema"])
def test_what_a_registry_would_refuse_is_known_before(server: ScriptedRegistry, form: str) -> None:
    """As `cdc check` asks it; it learns nothing by that. One that forbids the questions refuses nothing."""

    def asked(table: Table) -> None:
        client = SchemaRegistry(RegistryConfig(url=server.url), learns=False)
        wires = RegisteredWires(Formats(form), registry=client)
        source = MemorySource(MemoryLog(), [table])
        wires.begin(source.name, source.database, source.places)
        wires.of(table, "p.s.t")

    asked(TABLE)
    server.mode = "READONLY"
    with pytest.raises(OperatorError, match=r"table s\.t: .*it is read-only"):
        asked(TABLE)
    server.mode = "IMPORT"
    with pytest.raises(OperatorError, match=r"table s\.t: .*does not take this schema now: its mode is IMPORT"):
        asked(TABLE)
    server.mode = "READWRITE"
    assert server.subjects == {}
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(form=form)
    before = {subject: list(ids) for subject, ids in server.subjects.items()}
    asked(WIDER)
    server.refuses = "why"
    asked(TABLE)  # which is there
    with pytest.raises(OperatorError, match=r"table s\.t: .*subject p\.s\.t-value does not take the table's schema"):
        asked(WIDER)
    assert server.subjects == before
    server.forbids = {"mode", "compatibility"}
    asked(WIDER)
    server.stop()
    with pytest.raises(RetryableError, match="no answer"):
        asked(WIDER)


@pytest.mark.parametrize("shape", ["avro", "flat avro"])
def test_a_field_does_not_come_to_be_another_column(server: ScriptedRegistry, shape: str) -> None:
    """Avro has no “a-b”, which is a_b there: a column a_b would take its place, with any compatibility."""
    odd, both = text_table("t", ["id", "a-b"]), text_table("t", ["id", "a-b", "a_b"])
    bench = Bench(server)
    bench.log.commit(insert(odd, (b"1", b"a")))
    bench.run(odd, form=shape)
    before = len(bench.kafka.committed("p.s.t"))
    bench.log.commit(insert(both, (b"2", b"a", b"b")))
    with pytest.raises(OperatorError, match=r"table s\.t: .*its field a_b is column “a-b”, and another column wants"):
        bench.run(both, form=shape)
    assert len(bench.kafka.committed("p.s.t")) == before
    log = Bench(server)  # in one session, too
    server.subjects.pop("p.s.t-value")
    log.log.commit(insert(text_table("t", ["id"]), (b"1",)))
    log.run(text_table("t", ["id"]), form=shape)
    log.log.commit(insert(odd, (b"2", b"a")))
    log.log.commit(insert(both, (b"3", b"a", b"b")))
    with pytest.raises(OperatorError, match=r"its field a_b is column “a-b”"):
        log.run(text_table("t", ["id"]), form=shape)
    other = Bench(server, subjects="topic-record")
    other.log.commit(insert(both, (b"2", b"a", b"b")))
    other.run(both, form="json-schema")


OTHERWISE = (
    (
        Kind("decimal", 10, 2),
        Kind("decimal", 12, 4),
        "is a decimal of scale 2, and would be a decimal of scale 4",
        None,
    ),
    (Kind("decimal", 10, 2), Kind("string"), "is a decimal of scale 2, and would be a text", None),
    (
        Kind("timestamp_millis"),
        Kind("timestamp_micros"),
        r"is io.debezium.time.Timestamp, and would be io.*Micro",
        "is timestamp_millis, and would be timestamp_micros",
    ),
    (Kind("int32"), Kind("date"), "is a number, and would be io.debezium.time.Date", "is a number, and would be date"),
    (
        Kind("time_micros"),
        Kind("float64"),
        "is io.*MicroTime, and would be a number",
        "is time_micros, and would be a n",
    ),
    (Kind("decimal", 10, 2), Kind("decimal", 12, 2), None, None),
    (Kind("int32"), Kind("int64"), None, None),
    (Kind("string"), Kind("bytes"), None, "is a text, and would be bytes"),
    (Kind("bytes"), Kind("json"), None, "is bytes, and would be a text"),
    (Kind("string"), Kind("timestamptz"), None, None),
    (Kind("boolean"), Kind("int32"), None, None),
)


@pytest.mark.parametrize(("was", "means", "avro", "json"), OTHERWISE)
def test_bytes_do_not_come_to_stand_for_another_value(
    server: ScriptedRegistry, was: Kind, means: Kind, avro: str | None, json: str | None
) -> None:
    """Registries find the schemas compatible; a reader in Java with a class of the first takes 1.5001 for 150.01.

    Of Protobuf there is nothing to refuse: what is meant otherwise has another number.
    """
    before, now = (
        replace(table, columns=(table.columns[0], replace(table.columns[1], kind=kind, type=f"{kind}")))
        for table, kind in ((TABLE, was), (TABLE, means))
    )
    registry = SchemaRegistry(RegistryConfig(url=server.url))
    shapes = (
        ("topic", "avro", avro), ("topic-record", "flat avro", avro), ("topic-record", "json-schema", json),
        ("topic", "flat json-schema", json), ("topic", "protobuf", None),
    )  # fmt: skip
    for subjects, shape, said in shapes:
        server.subjects, server.schemas, server.levels = {}, {}, {"": "BACKWARD"}
        wires = RegisteredWires(Formats(shape), registry=registry, subjects=subjects)
        wires.begin("postgresql", "d", ("txId", "lsn"))
        wires.of(before, "p.s.t")
        kept = len(server.schemas)
        if said is None:
            wires.of(now, "p.s.t")
            continue
        with pytest.raises(OperatorError, match=f"subject .*: its field note {said}.*no event is written") as stopped:
            wires.of(now, "p.s.t")
        assert len(server.schemas) == kept, "nothing is registered"
        (subject,) = [of for of in server.subjects if not of.endswith(("key", "Key"))]
        assert f"NONE at {server.url}/config/{subject})" in (stopped.value.hint or "")
        server.levels = {"": "NONE"} if subjects == "topic" else {"": "BACKWARD", subject: "NONE"}
        wires.of(now, "p.s.t")
        assert len(server.schemas) == kept + 1


def test_a_schema_of_an_earlier_build_that_says_less_is_gone_on_with() -> None:
    """The column's type is the same, so its values are; of another one the old values are not."""
    old = b'{"title":"Value","properties":{"at":{"type":["integer","null"],"title":"%s"}}}'
    now = b'{"title":"Value","properties":{"at":{"type":["integer","null"],"title":"timestamp","cdc.kind":"%s"}}}'
    for title, refused in ((b"timestamp", False), (b"bigint", True)):
        found = meant_otherwise("JSON", (old % title).decode(), (now % b"timestamp_micros").decode())
        assert bool(found) is refused
    assert meant_otherwise("JSON", (now % b"timestamp_millis").decode(), (now % b"timestamp_micros").decode())


@pytest.mark.parametrize("form", ["avro", "flat protobuf", "json-schema"])
def test_a_subject_has_a_tables_versions_in_their_order(server: ScriptedRegistry, form: str) -> None:
    """Its newest is the table's as it is now, also where the log tells of an older one once the connector has started.

    Registries compare with the newest: in another order one refuses what the table has gone through without harm.
    """
    widest = text_table("t", ["id", "note", "more", "most"])
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(form=form)
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    bench.log.commit(insert(widest, (b"3", b"a", b"b", b"c")))
    bench.run(widest, form=form)
    found = [server.schemas[number]["schema"] for number in server.subjects["p.s.t-value"]]
    assert [("more" in text, "most" in text) for text in found] == [(False, False), (True, False), (True, True)]
    before = len(server.requests)
    bench.run(widest, form=form)
    assert not [of for of in server.requests[before:] if of.startswith("POST") and of.endswith("/versions")]


def test_two_tables_whose_records_would_have_one_name(server: ScriptedRegistry) -> None:
    """By `record` they would share a subject: each would be a version of the other."""
    tables = text_table("a-b", ["id"]), text_table("a_b", ["id", "note"])
    with pytest.raises(OperatorError, match=r"would be called p\.s\.a_b, as those of topic p\.s\.a-b"):
        Bench(server, subjects="record").run(*tables)
    Bench(server, subjects="topic").run(*tables)
    assert len(server.subjects["p.s.a_b-value"]) == 1


def test_a_certificate_that_is_not_trusted(tmp_path: Path) -> None:
    """To try again would not help, and its hint would be the wrong one."""
    both = Authority(tmp_path / "authority").certificate("registry.test")
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(both)

        def serve() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):
                context.wrap_socket(connection, server_side=True)

        threading.Thread(target=serve, daemon=True).start()
        url = f"https://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(OperatorError, match="its certificate is not trusted"):
            SchemaRegistry(RegistryConfig(url=url)).subjects()


def test_another_schema_under_our_subject(server: ScriptedRegistry) -> None:
    """A registry without compatibility would take ours over it."""
    server.keep("p.s.t-value", {"schema": '{"type":"record","name":"Order","namespace":"acme","fields":[]}'})
    bench = Bench(server)
    with pytest.raises(OperatorError, match=r"subject p\.s\.t-value has another schema: “acme\.Order”"):
        bench.run()
    assert bench.kafka.topics == {}
    Bench(server, subjects="topic-record").run()


def test_an_id_that_another_schema_has_meanwhile_makes_no_row_foreign(server: ScriptedRegistry) -> None:
    """The registry is restored behind a look at the id: rows that are read again stay, and are taken for no others'."""
    bench, asked, looks = Bench(server), server.answer, list[str]()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run()
    bench.log.commit(truncate(TABLE), insert(TABLE, (b"2", b"a")))
    bench.log.commit(insert(WIDER, (b"3", b"a", b"b")))

    def answer(command: str, path: str, body: Any, login: str | None) -> tuple[int, Any]:
        told = asked(command, path, body, login)
        looks.extend([path] if path.startswith("/schemas/ids/2") else [])
        if len(looks) == 2:  # after the start's: the topic is read for the truncate, and its schema is known from here
            server.answer = asked  # type: ignore[method-assign]
            del server.schemas[2], server.subjects["p.s.t-value"]
        return told

    server.answer = answer  # type: ignore[method-assign]
    bench.run(WIDER)
    assert server.answer == asked
    assert sorted(server.schemas) == [1, 2], "the same ids again"
    assert bench.readable("avro") == {"2": True, "3": True}


@pytest.mark.parametrize("more", [True, False], ids=["and a change comes", "and none comes"])
def test_a_registry_made_anew_has_the_rows_read_again(server: ScriptedRegistry, more: bool) -> None:
    """Its ids are others, and so are the bytes of keys: what is under the old ones goes."""
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run()
    server.schemas, server.subjects = {}, {}
    server.keep("other", {"schema": '"string"'})
    if more:
        bench.log.commit(insert(TABLE, (b"2", b"b")))
    bench.run()
    live = {r.key: r.value for r in bench.kafka.committed("p.s.t")}
    assert [value is None for value in live.values()].count(False) == 1 + more
    assert len(live) == 2 + more


def test_a_registry_made_anew_whose_keys_have_the_same_id(server: ScriptedRegistry) -> None:
    """Only the id of values is another: the rows are read again, for nobody can read the old ones any more."""
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run()
    keys = next(number for number, of in server.schemas.items() if "Key" in of["schema"])
    (values,) = set(server.schemas) - {keys}
    server.schemas = {keys: server.schemas[keys], values + 5: server.schemas[values]}
    server.subjects["p.s.t-value"] = [values + 5]
    bench.run()
    live = {r.key: r.value for r in bench.kafka.committed("p.s.t")}
    assert {int.from_bytes((value or b"")[1:5], "big") for value in live.values()} == {values + 5}
    assert len(live) == 1
    before = len(bench.kafka.committed("p.s.t"))
    bench.run()
    assert len(bench.kafka.committed("p.s.t")) == before, "once"


@pytest.mark.parametrize("has", ["the new schema", "another's schema", "nothing"])
@pytest.mark.parametrize(
    "form",
    [
        "avro",
        "protobuf",
        "flat json-schema",
        *(pytest.param(of, marks=pytest.mark.full) for of in ("flat avro", "json-schema")),
    ],
)
def test_a_registry_that_is_made_again_while_a_table_changes(server: ScriptedRegistry, form: str, has: str) -> None:
    """What the topic has by the old ids nobody could read, or as what it is not: the registry may give them again."""
    bench = Bench(server)
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(form=form)
    (old,) = server.subjects.pop("p.s.t-value")
    del server.schemas[old]
    if has != "the new schema":
        server.keep("other", {"schema": '"string"'})
    if has == "nothing":
        server.schemas[99] = server.schemas.pop(old)
        server.subjects["other"] = [99]
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    bench.run(WIDER, form=form)
    assert bench.readable(form) == {"1": True, "2": True}
    before = len(bench.kafka.committed("p.s.t"))
    bench.run(WIDER, form=form)
    assert len(bench.kafka.committed("p.s.t")) == before, "once"


def test_a_registry_that_is_made_again_in_a_session(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's next version must not go beside ids that the registry may give to others."""
    bench = Bench(server)
    bench.run()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    monkeypatch.setattr(schema_registry, "_FRESH_S", 0.0)
    asked, lost = SchemaRegistry.register, list[str]()

    def register(self: SchemaRegistry, subject: str, text: str, **more: Any) -> int:
        if "more" in text and not lost:
            server.schemas, server.subjects = {}, {}
            lost.append(subject)
        return asked(self, subject, text, **more)

    monkeypatch.setattr(SchemaRegistry, "register", register)
    bench.run()
    assert lost
    assert bench.readable("avro") == {"1": False, "2": True}


def test_a_registry_that_is_made_again_while_nothing_changes(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is looked for now and then; one that is away is left alone, and so is one that loses its answer once."""
    registry = SchemaRegistry(RegistryConfig(url=server.url))
    assert registry.same(), "it has given nothing"
    for name in ("a", "b"):
        registry.register(name, f'{{"type":"record","name":"{name}","fields":[]}}', type_="AVRO", ours=[name])
    assert registry.same()
    server.status = 503
    with pytest.raises(RetryableError):
        registry.same()
    server.status, (number,) = None, server.subjects.pop("a")
    assert [registry.same() for _ in range(2)] == [True, True], "a subject that was deleted leaves its ids"
    schema = server.schemas.pop(number)
    assert [registry.same() for _ in range(2)] == [False, False], "its schema is gone"
    server.schemas |= {number: {"schema": '"string"'}}
    assert [registry.same() for _ in range(2)] == [False, False], "another schema"
    server.schemas |= {number: schema, number + 9: schema}
    assert [registry.same() for _ in range(2)] == [True, True]
    server.subjects["a"] = [number + 9]
    assert [registry.same() for _ in range(2)] == [False, False], "another id"
    registry.forget()
    assert registry.same()
    answers = [True, OperatorError("away"), False, True, False, False]

    def same() -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    watch, found = RegistryWatch(same, every_s=0.0, again_s=0.0), list[bool]()
    while answers:
        found.append(watch.moved())
    while watch._thread is not None:
        found.append(watch.moved())
        if found[-1]:
            break
    assert found.count(True) == 1, "two looks in turn"


def test_an_open_connector_compares_with_a_registry_that_was_made_again(
    server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, looks = Bench(server), iter([True])
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    monkeypatch.setattr(RegisteredWires, "moved", lambda _: next(looks, False))
    begun = list[str]()
    begin = RegisteredWires.begin
    monkeypatch.setattr(RegisteredWires, "begin", lambda self, *of: (begun.append(of[0]), begin(self, *of))[1])
    bench.run()
    assert len(begun) == 2


@pytest.mark.parametrize(
    ("how", "expected", "what"),
    [
        ({"login": "cdc:right"}, OperatorError, "refuses the login"),
        ({"status": 422}, OperatorError, "cannot read the schema"),
        (
            {"status": 422, "says": {"error_code": 42205, "message": "Subject x is in read-only mode"}},
            OperatorError,
            "it is read-only: no schema can be registered\n",
        ),
        (  # a schema of that number was deleted under the subject, and is another subject's now
            {"status": 422, "says": {"error_code": 42205, "message": "Overwrite schema with id 2 is not permitted"}},
            OperatorError,
            "does not take this schema now: Overwrite schema with id 2 is not permitted\n",
        ),
        ({"status": 403}, OperatorError, "refuses the login, or what it asks for"),
        ({"status": 429}, RetryableError, "HTTP 429"),
        ({"status": 500, "says": {"error_code": 50001, "message": "store"}}, RetryableError, "HTTP 500: store"),
        ({"status": 404, "says": b"<html>Not found</html>"}, RetryableError, "not that of a schema registry: HTTP 404"),
        ({"status": 404, "says": {"error": "Not found"}}, RetryableError, "not that of a schema registry: HTTP 404"),
        ({"status": 302, "says": b""}, RetryableError, "not that of a schema registry: HTTP 302"),
        ({"status": 503}, RetryableError, "as the test says"),
        ({"status": 503, "says": ""}, RetryableError, r"p\.s\.t-key: HTTP 503$"),
        ({"status": 502, "says": b"<html>Bad gateway</html>"}, RetryableError, r"p\.s\.t-key: HTTP 502$"),
        (
            {"status": 200, "says": b"<html>Log in</html>"},
            RetryableError,
            "its answer is not that of a schema registry",
        ),
        ({"status": 200, "says": [1, 2]}, RetryableError, "its answer is not that of a schema registry"),
        ({"status": 200, "says": {"id": "x"}}, RetryableError, "its id of a schema is no number"),
        ({"status": 200, "says": {"id": -5}}, RetryableError, "its id of a schema is no number"),
        ({"slow_s": 1.0}, RetryableError, "no answer: ReadTimeout"),
        (None, RetryableError, "no answer: ConnectError"),
    ],
)
def test_at_the_first_start_nothing_is_made(
    server: ScriptedRegistry, how: dict[str, Any] | None, expected: type[Exception], what: str
) -> None:
    if how is None:
        server.stop()
    for name, value in (how or {}).items():
        setattr(server, name, value)
    bench = Bench(server, timeout_s=0.2, options={"basic.auth.user.info": "cdc:wrong"})
    with pytest.raises(expected, match=what) as stopped:
        bench.run()
    assert "wrong" not in f"{stopped.value} {bench.config!r}"
    assert bench.kafka.topics == {}


def test_down_later_is_tried_again(server: ScriptedRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written meanwhile, and nothing is lost."""
    bench = Bench(server)
    bench.run()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.log.commit(insert(WIDER, (b"2", b"a", b"b")))
    asked, failed = SchemaRegistry.register, list[str]()

    def register(self: SchemaRegistry, subject: str, text: str, **more: Any) -> int:
        server.status = 503 if "more" in text and not failed else None
        failed.extend(["503"] if server.status else [])
        return asked(self, subject, text, **more)

    monkeypatch.setattr(SchemaRegistry, "register", register)
    bench.run()
    assert failed
    assert [value["id"] for value in bench.values()] == ["1", "2"]


def test_check_says_what_is_found(server: ScriptedRegistry) -> None:
    """`cdc check` registers nothing."""
    sink = KafkaConfig(bootstrap_servers="x:1", format="avro", registry=RegistryConfig(url=server.url))
    (found,) = check(sink)
    assert "answers, with 0 subjects" in found.what
    server.login = "cdc:right"
    with pytest.raises(OperatorError, match="refuses the login"):
        check(sink)
    assert check(KafkaConfig(bootstrap_servers="x:1")) == []
    server.login = None
    for server.status, server.says in ((404, b"<html>"), (200, {"id": 1}), (200, [1]), (301, b"")):
        with pytest.raises(RetryableError, match="its answer is not that of a schema registry"):
            check(sink)


def test_options_that_the_client_does_not_take(server: ScriptedRegistry) -> None:
    for options in ({"basic.auth.user.info": "nocolon"}, {"no.such.option": "x"}, {"ssl.ca.location": "/no/such/file"}):
        with pytest.raises(ConfigError, match="the client does not take them"):
            SchemaRegistry(RegistryConfig(url=server.url, options=options))


def test_the_newest_schema_is_asked_for_each_time(server: ScriptedRegistry) -> None:
    """The client's own cache would give the numbers of Protobuf's fields that were before."""
    registry = SchemaRegistry(RegistryConfig(url=server.url))
    assert registry.newest("s-value") is None
    for number in (1, 2):
        text = f'syntax = "proto3";\npackage p.s.t;\n\nmessage Value {{\n  optional string a = {number};\n}}\n'
        registry.register("s-value", text, type_="PROTOBUF", ours=["p.s.t.Value"])
        assert registry.newest("s-value") == text


def test_another_message_under_our_subject(server: ScriptedRegistry) -> None:
    """Of Protobuf too: the first message of its file says whose it is."""
    for text, name in (
        ("message Order { string a = 1; }", "Order"),
        ("enum E { A = 0; }", "no schema of a connector"),
    ):
        server.subjects.clear()
        server.keep("p.s.t-value", {"schema": text, "schemaType": "PROTOBUF"})
        with pytest.raises(OperatorError, match=rf"subject p\.s\.t-value has another schema: “{name}” \(PROTOBUF\)"):
            Bench(server).run(form="flat protobuf")
