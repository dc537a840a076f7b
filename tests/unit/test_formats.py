"""Formats beside plain JSON: what a record is, what reads it, and that compiled code writes the same."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Final, cast

import fastavro
import orjson
import pytest

from cdc.capture.pipeline import Pipeline, Settings
from cdc.config.apply_config import ApplySource, ApplyTable
from cdc.config.published.column_rules import ColumnRules, HashRule
from cdc.config.views import ViewConfig, ViewsConfig
from cdc.encode.envelope import row_codegen
from cdc.encode.json_text import quoted
from cdc.encode.topic_contents.foreign import event_of
from cdc.formats import avro, schema
from cdc.formats.proto import proto_text
from cdc.formats.reading import Reading
from cdc.formats.schema_text import is_of
from cdc.formats.typed import INT32, INT64, plainly, typed
from cdc.formats.wires import RegisteredWires
from cdc.model.change import Column, Kind, Table
from cdc.model.errors import OperatorError
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.flat import Formats
from cdc.rules.routes import NO_ROUTES
from cdc.testing import (
    MemoryKafka,
    MemoryLog,
    MemorySink,
    MemorySnapshotter,
    MemorySource,
    delete,
    insert,
    truncate,
    update,
)
from cdc.testing.kafka import Outcome, Record
from sinks.erasure.erase import _Erasure
from sinks.erasure.keys import WantedKey
from spark_apply.model.target_table import derived, parse_version
from spark_apply.views.planning import planned
from spark_apply.views.planning.planned import plan_views
from tests import proto_messages
from tests.text_tables import text_table

TABLE = text_table("t", ["id", "note"])


class MemoryRegistry:
    """A registry that takes everything; ids count from 1."""

    def __init__(self) -> None:
        self.schemas: dict[int, tuple[str, str]] = {}
        self.subjects: dict[tuple[str, str], int] = {}
        self.asked = 0

    def forget(self) -> None: ...

    def same(self) -> bool:
        return True

    def takes(self) -> bool:
        return False

    def schema(self, number: int) -> tuple[str, str] | None:
        return self.schemas.get(number)

    def newest(self, subject: str) -> str | None:
        return next((text for of, text in reversed(self.subjects) if of == subject), None)

    def register(self, subject: str, text: str, *, type_: str, ours: Sequence[str]) -> int:
        self.asked += 1
        number = self.subjects.setdefault((subject, text), len(self.subjects) + 1)
        self.schemas[number] = type_, text
        return number

    def read(self, data: bytes) -> Any:
        """Read a record as any consumer of Confluent's wire format does."""
        assert data[0] == 0
        type_, text = self.schemas[int.from_bytes(data[1:5], "big")]
        if type_ == "JSON":
            return orjson.loads(data[5:])
        if type_ == "PROTOBUF":
            return proto_messages.read(text, data)
        return fastavro.schemaless_reader(io.BytesIO(data[5:]), orjson.loads(text), None)


class Bench:
    def __init__(self, **kafka: int) -> None:
        self.log, self.kafka, self.registry = MemoryLog(), MemoryKafka(**kafka), MemoryRegistry()

    def run(self, formats: Formats, *tables: Table, **more: Any) -> None:
        Pipeline(
            Settings(
                connector="c",
                prefix="p",
                formats=formats,
                logs=frozenset(["dead-letter"]),
                wires=RegisteredWires(formats, registry=self.registry),
                **more,
            ),
            open_source=lambda: MemorySource(self.log, tables or [TABLE]),
            open_snapshotter=lambda: MemorySnapshotter(self.log),
            sink=MemorySink(self.kafka, "c", "p", reading=Reading(self.registry.schemas.get)),
        ).run(until_caught_up=True)

    def records(self, topic: str = "p.s.t") -> list[tuple[bytes, bytes | None]]:
        return [(r.key, r.value) for r in self.kafka.committed(topic)]


def all_changes(bench: Bench, formats: Formats) -> None:
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(formats)
    bench.log.commit(insert(TABLE, (b"3", None)), update(TABLE, (b"1", "ä“\n".encode())))
    bench.log.commit(update(TABLE, (b"2", b"c"), key=(b"1",)), delete(TABLE, (b"2",)))
    bench.log.commit(truncate(TABLE))
    bench.run(formats)


def folded(bench: Bench, topic: str = "p.s.t") -> list[tuple[str, str, Any]]:
    reading = Reading(bench.registry.schemas.get)
    found = []
    for record in bench.kafka.committed(topic):
        if record.value is None:
            found.append(("tombstone", orjson.loads(reading.json(record.key))["id"], None))
            continue
        event = orjson.loads(reading.event(record.value, record.headers) or b"")
        found.append((event["op"], orjson.loads(reading.json(record.key))["id"], event["after"]))
    return found


@pytest.mark.parametrize("shape", ["envelope", "flat"])
@pytest.mark.parametrize("encoding", ["connect-json", "avro", "protobuf", "json-schema"])
@pytest.mark.parametrize("plainly", [False, True])
def test_every_change_reads_as_in_json(
    shape: str, encoding: str, plainly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By snapshot and stream, by compiled code and without; a TRUNCATE finds the keys by what it reads back."""
    if plainly:
        from cdc.formats import wires

        monkeypatch.setattr(wires, "compiled", None)
        monkeypatch.setattr(wires, "avro_table", lambda *_, **__: None)
        monkeypatch.setattr(wires, "protobuf_table", lambda *_, **__: None)
    of_json, bench = Bench(), Bench()
    all_changes(of_json, Formats(shape))
    all_changes(bench, Formats(f"{shape} {encoding}"))
    assert folded(bench) == folded(of_json)


@pytest.mark.skipif(row_codegen.compiled is None, reason="nothing is compiled")
@pytest.mark.parametrize("encoding", ["avro", "protobuf"])
@pytest.mark.parametrize(
    ("shape", "metadata"), [("envelope", ()), ("flat", ()), ("flat", ("op", "position", "ts_ms", "deleted"))]
)
def test_compiled_code_writes_the_plain_one(
    shape: str, metadata: tuple[str, ...], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.time_ns", lambda: 1_700_000_000_123_000_000)
    made = Bench()
    all_changes(made, Formats(f"{shape} {encoding}", metadata=metadata))
    from cdc.formats import wires

    monkeypatch.setattr(wires, f"{encoding}_table", lambda *_, **__: None)
    plain = Bench()
    all_changes(plain, Formats(f"{shape} {encoding}", metadata=metadata))
    assert made.records() == plain.records()
    for key, value in made.records():
        made.registry.read(key)
        if value is not None:
            made.registry.read(value)


def test_the_registry_is_asked_once_a_version() -> None:
    bench = Bench()
    bench.run(Formats("avro"))
    for number in range(50):
        bench.log.commit(insert(TABLE, (b"%d" % number, b"a")))
    bench.run(Formats("avro"))
    assert bench.registry.asked == 4  # key and value, at each of two starts
    assert len(bench.records()) == 50


def test_an_envelope_of_avro_is_debeziums() -> None:
    """Names, order and optional fields, as Confluent's converter has them."""
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats("avro"))
    ((_, value),) = bench.records()
    event = bench.registry.read(value or b"")
    assert list(event) == ["before", "after", "source", "transaction", "op", "ts_ms"]
    assert event["after"] == {"id": "1", "note": "a"}
    texts = {subject: orjson.loads(text) for subject, text in bench.registry.subjects}
    assert set(texts) == {"p.s.t-key", "p.s.t-value"}
    assert (texts["p.s.t-value"]["name"], texts["p.s.t-value"]["namespace"]) == ("Envelope", "p.s.t")
    fastavro.parse_schema(texts["p.s.t-value"])


def test_connect_json_has_debeziums_schema() -> None:
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats("flat connect-json"))
    ((key, value),) = bench.records()
    fields = [{"type": "string", "optional": False, "field": "id"}]
    assert orjson.loads(key) == {
        "schema": {"type": "struct", "fields": fields, "optional": False, "name": "p.s.t.Key"}, "payload": {"id": "1"},
    }  # fmt: skip
    assert orjson.loads(value or b"")["payload"] == {"id": "1", "note": "a"}


def test_numbers_are_called_as_in_kafka_connect() -> None:
    """JsonConverter fails on any other word."""
    words = {
        of: schema.connect(schema.Schema(type=of))["type"] for of in ("int16", "int64", "float32", "float64", "boolean")
    }
    assert words == {"int16": "int16", "int64": "int64", "float32": "float", "float64": "double", "boolean": "boolean"}


def test_another_format_has_the_rows_read_again_and_old_keys_deleted() -> None:
    bench = Bench()
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    for text in ("envelope", "avro", "flat connect-json", "json-schema", "protobuf", "flat protobuf", "envelope"):
        bench.run(Formats(text))
    live = dict(bench.records())
    assert [key for key, value in live.items() if value is not None] == [b'{"id":"1"}']
    assert len(live) == 5


def test_names_that_avro_does_not_have() -> None:
    names = schema.field_names(["a-b", "a_b", "a b", "1st", "naïve", ""])
    assert names == {"a-b": "a_u002db", "a_b": "a_b", "a b": "a_u0020b", "1st": "_1st", "naïve": "na_ve", "": "_"}
    assert schema.field_names(["1a", "_1a", "٣"]) == {"1a": "_u0031a", "_1a": "_1a", "٣": "_"}
    with pytest.raises(
        OperatorError, match="columns a-b: Avro has no such names, and another column is called a_u002d"
    ):
        schema.field_names(["a-b", "a_b", "a_u002db", "c-d"])
    assert schema.full_name("shop-1.public.2nd table") == "shop_1.public._2nd_table"


@pytest.mark.parametrize("topic", ["p.confluent.t", "p.s.confluent", "confluent.s.t", "p.Value.Source", "p.message.t"])
def test_names_that_are_taken_in_a_proto_file(topic: str) -> None:
    """By Confluent's own package, or by a message: a compiler looks from the inside out, and takes the first."""
    kinds = {"id": Kind("int32"), "d": Kind("decimal", 5, 2), "g": Kind("geometry"), "a-b": Kind("string")}
    kinds |= dict.fromkeys(("Geometry", "GeometryMessage", "Value", "confluent", "message"), Kind("string"))
    table = Table("s", "t", tuple(Column(name, "", kind, quoted) for name, kind in kinds.items()), ("id",))
    registry = MemoryRegistry()
    assert RegisteredWires(Formats("protobuf"), registry=registry).of(table, topic) is not None
    for _, text in registry.schemas.values():
        proto_messages.message_class(text)
        package, message = proto_text.parse(text)
        assert proto_text.text(message, package) == text


@pytest.mark.parametrize("number", [0, 1, -1, 63, 64, -64, -65, 2**31 - 1, -(2**63), 2**63 - 1])
def test_numbers(number: int) -> None:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, "long", number)
    assert avro.long(number) == out.getvalue()


@pytest.mark.parametrize(
    ("kind", "type_", "text"),
    [
        ("date", "date", "infinity"),
        ("date", "date", "-infinity"),
        ("date", "date", "0000-00-00"),
        ("date", "date", "2024-02-30"),
        ("date", "date", "9999-00-31"),
        ("timestamp_micros", "timestamp without time zone", "-infinity"),
        ("timestamp_micros", "datetime(6)", "0000-00-00 00:00:00.000000"),
        ("timestamp_millis", "datetime", "0000-00-00 00:00:00"),
        ("timestamp_millis", "datetime(2)", "9999-12-00 23:59:59.25"),
        ("timestamp_micros", "datetime(6)", "2024-02-31 12:34:56.000001"),
    ],
)
def test_times_that_are_no_numbers(kind: str, type_: str, text: str) -> None:
    """Each is a number that no other value has, and comes back."""
    column = Column("at", type_, Kind(kind), encode=lambda value: b'"%b"' % value)
    number = int(typed(column)(text.encode()))
    least, most = INT32 if kind == "date" else INT64
    assert least <= number <= most
    assert plainly(kind, type_, number) == text
    with pytest.raises(ValueError, match="of at is outside"):
        typed(Column("at", type_, Kind(kind), encode=bytes))(b"%d" % number)


@pytest.mark.parametrize("form", ["avro", "flat avro", "connect-json", "flat json-schema", "protobuf", "flat protobuf"])
def test_dead_letters(form: str) -> None:
    """A row that is too large, and one that the format cannot hold: its letter is plain JSON, the others go on."""
    amount = Column("amount", "numeric(10,2)", Kind("decimal", 10, 2), quoted)
    table = Table("s", "t", (TABLE.columns[0], amount, TABLE.columns[1]), ("id",))
    bench = Bench(largest_bytes=1_000_000)
    bench.run(Formats(form), table)
    bench.log.commit(
        insert(table, (b"1", b"1.50", b"a")), insert(table, (b"2", b"NaN", b"b")),
        insert(table, (b"3", b"0.00", b"x" * 1_000_000)), insert(table, (b"4", b"-0.01", b"c")),
    )  # fmt: skip
    bench.run(Formats(form), table)
    letters = [orjson.loads(value or b"") for _, value in bench.records("p.dead-letter-c")]
    precise = form.removeprefix("flat ") in ("avro", "protobuf")
    refused = [{"id": "2"}, {"id": "3"}] if precise else [{"id": "3"}]
    assert [letter["key"] for letter in letters if letter["part"] == 1] == refused
    if precise:
        assert f"of amount is no decimal of {form.rsplit(maxsplit=1)[-1].capitalize()}" in letters[0]["reason"]
        assert letters[0]["columns"] == ["amount"]
    assert {of[1] for of in folded(bench)} == {"1", "2", "3", "4"} - {key["id"] for key in refused}


@pytest.mark.parametrize("shape", ["envelope", "flat"])
def test_numbers_of_protobuf_outlive_columns_and_topics(shape: str) -> None:
    """Through other formats between, and where Kafka is empty and the registry is not."""
    bench = Bench()

    def run(form: str, *names: str) -> dict[str, int]:
        table = text_table("t", list(names))
        bench.run(Formats(f"{shape} {form}"), table)
        bench.log.commit(insert(table, tuple(b"1" for _ in names)), truncate(table))
        bench.run(Formats(f"{shape} {form}"), table)
        text = bench.registry.newest("p.s.t-value") or ""
        return {name: int(number) for name, number in re.findall(r"string (id|a|b|c) = (\d+)", text)}

    assert run("protobuf", "id", "a", "b") == {"id": 1, "a": 2, "b": 3}
    assert run("protobuf", "id", "c") == {"id": 1, "c": 4, "a": 2, "b": 3}
    run("json", "id")
    assert run("protobuf", "b", "id") == {"b": 3, "id": 1, "a": 2, "c": 4}
    bench.kafka, bench.log = MemoryKafka(), MemoryLog()
    assert run("protobuf", "c", "id", "a") == {"c": 4, "id": 1, "a": 2, "b": 3}


@pytest.mark.parametrize("shape", ["envelope", "flat"])
def test_a_column_that_is_gone_leaves_its_member_in_json_schema(shape: str) -> None:
    """A registry of BACKWARD refuses a closed schema without it; a start has the same schema again."""
    bench = Bench()

    def run(*names: str) -> dict[str, bool]:
        """Return the members, with whether they are marked."""
        table = text_table("t", list(names))
        bench.run(Formats(f"{shape} json-schema"), table)
        bench.log.commit(insert(table, tuple(b"1" for _ in names)), truncate(table))
        bench.run(Formats(f"{shape} json-schema"), table)
        text = bench.registry.newest("p.s.t-value") or ""
        assert is_of("JSON", text, [f"p.s.t.{of}" for of in ("Envelope", "Value")], names)
        written = orjson.loads(text)["properties"]
        row = written if shape == "flat" else written["after"]["oneOf"][1]["properties"]
        return {name: about.get("deprecated", False) for name, about in row.items()}

    assert run("id", "a", "b") == {"id": False, "a": False, "b": False}
    assert run("id", "c") == {"id": False, "c": False, "a": True, "b": True}
    assert run("id", "c", "b") == {"id": False, "c": False, "b": False, "a": True}
    written = len(bench.registry.schemas)
    bench.run(Formats(f"{shape} json-schema"), text_table("t", ["id", "c", "b"]))
    assert len(bench.registry.schemas) == written


def test_numbers_of_columns_that_came_and_went_while_the_connector_was_stopped() -> None:
    """The registry learns the versions as the log tells them; none takes the numbers of another."""
    bench = Bench()
    first, between, now = (text_table("t", ["id", *names]) for names in ("a", "ax", "ay"))
    bench.run(Formats("protobuf"), first)
    bench.log.commit(insert(between, (b"1", b"2", b"3")), update(now, (b"1", b"2", b"4")))
    bench.run(Formats("protobuf"), now)
    texts = [text for subject, text in bench.registry.subjects if subject.endswith("-value")]
    found = [dict(re.findall(r"string (id|a|x|y) = (\d+)", text)) for text in texts]
    assert found[-1] == {"id": "1", "a": "2", "x": "3", "y": "4"}
    assert all(of.items() <= found[-1].items() for of in found)
    events = [bench.registry.read(value or b"")["after"] for _, value in bench.records()]
    assert events[:2] == [{"id": "1", "a": "2", "x": "3"}, {"id": "1", "a": "2", "y": "4"}]


@pytest.mark.parametrize("form", ["avro", "connect-json", "envelope json-schema", "flat avro", "protobuf"])
def test_an_apply_job_and_views_refuse_it_by_name(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """They would take no record of it for an event, and the store would look complete."""
    bench = Bench()
    bench.run(Formats(form))
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats(form))
    versions = [parse_version(record.value or b"") for record in bench.kafka.committed("p.schema")]
    told = r"table s\.t: its topic is (flat|avro|connect-json|json-schema|protobuf), and an apply job reads JSON"
    with pytest.raises(OperatorError, match=told):
        derived(versions, ApplyTable(stores=("w",)))
    monkeypatch.setattr(planned, "schema_versions", lambda _: {"s.t": versions})
    source = ApplySource(bootstrap_servers="x:1", topic_prefix="p")
    view = ViewConfig(sql="SELECT id, note FROM s.t", key=("id",))
    session = SimpleNamespace(sparkContext=SimpleNamespace(master="local[1]"))
    with pytest.raises(OperatorError, match="and a view reads JSON"):
        plan_views(ViewsConfig(name="v", source=source, state="state", views={"v": view}), cast("Any", session))


@pytest.mark.parametrize("form", ["avro", "connect-json", "json-schema", "flat avro", "protobuf"])
def test_erase_finds_a_key_whatever_its_format(form: str) -> None:
    """One that nobody can read any more is not taken for another key: nothing would be proved."""
    bench = Bench()
    bench.run(Formats(form))
    bench.log.commit(insert(TABLE, (b"5", b"a")))
    bench.run(Formats(form))
    ((key, _),) = bench.records()
    reading = Reading(bench.registry.schemas.get)
    for wanted in ("5", '{"id": "5"}'):
        assert WantedKey(wanted).is_key(reading.json(key))
    assert not WantedKey("55").is_key(reading.json(key))
    erasure = object.__new__(_Erasure)
    erasure._key, erasure.topic = WantedKey("5"), "p.s.t"
    erasure._table, erasure._routes = "s.t", NO_ROUTES
    erasure._reading = Reading(lambda _: None)
    if form == "connect-json":
        assert erasure._names(key)
    else:
        with pytest.raises(OperatorError, match="a key whose schema is not at the registry"):
            erasure._names(key)


@pytest.mark.parametrize(
    "rule",
    [
        ColumnRules(mask=("uid", "mood", "doc")),
        ColumnRules(hash=HashRule(columns=("uid", "mood", "doc"), salt="pepper")),
        ColumnRules(truncate={"uid": 3, "mood": 3, "doc": 3}),
    ],
    ids=["mask", "hash", "truncate"],
)
@pytest.mark.parametrize("encoding", ["connect-json", "avro", "protobuf", "json-schema"])
def test_what_a_rule_has_changed_is_not_called_what_it_was(rule: ColumnRules, encoding: str) -> None:
    """A hash is no uuid to a sink that would cast it to one, and labels are said of no value that is hidden."""
    types = {"id": "text", "uid": "uuid", "mood": "enum('ok','sad')", "doc": "xml"}
    columns = tuple(Column(name, type_, Kind("string"), quoted) for name, type_ in types.items())
    table = Table("s", "t", columns, ("id",))
    published = CaptureRules({"s.t": rule}, {}).of("s.t")
    assert published is not None
    registry = MemoryRegistry()
    wire = RegisteredWires(Formats(encoding), registry=registry).of(published.published(table).table, "p.s.t")
    assert wire is not None
    said = [text for _, text in registry.schemas.values()] or [wire.value(b"{}").decode()]
    assert not [of for of in said if re.search("Uuid|Xml|uuid|xml|sad", of)]


FOREIGN_SCHEMAS: Final = {
    "an enum": ("AVRO", '{"type":"enum","name":"E","symbols":["A"]}'),
    "a map": ("AVRO", '{"type":"map","values":"int"}'),
    "a decimal of no scale": ("AVRO", '{"type":"bytes","logicalType":"decimal","precision":4}'),
    "a reference": ("AVRO", '{"type":"record","name":"F","fields":[{"name":"e","type":"other.Named"}]}'),
    "a name": ("AVRO", '"string"'),
    "a oneof": ("PROTOBUF", 'syntax = "proto3"; message Q { oneof z { string a = 2; } }'),
    "JSON": ("JSON", '{"type":"object"}'),
    "no schema": ("AVRO", "nothing"),
}  # fmt: skip


@pytest.mark.parametrize("schema", FOREIGN_SCHEMAS.values(), ids=FOREIGN_SCHEMAS.keys())
def test_schemas_of_others_are_at_the_same_registry(schema: tuple[str, str]) -> None:
    """What another producer wrote with one is no row and no key: it stops neither the connector nor `cdc erase`."""
    bench = Bench()
    bench.run(Formats("avro"))
    bench.log.commit(insert(TABLE, (b"1", b"a")))
    bench.run(Formats("avro"))
    bench.registry.schemas[77] = schema
    reading = Reading(bench.registry.schemas.get)
    erasure = object.__new__(_Erasure)
    erasure._key, erasure.topic, erasure._reading = WantedKey("1"), "p.s.t", reading
    erasure._table, erasure._routes = "s.t", NO_ROUTES
    for data in (b"\0\0\0\0\x4d\0\2A\0abcd", b"\0\0\0\0\x4d"):
        bench.kafka.topics["p.s.t"].append(Record("p.s.t", data, data, bench.kafka.begin("other")))
        bench.kafka.end("other", Outcome.COMMITTED)
        assert event_of(reading.json(data)) is None
        assert not erasure._names(data)
    bench.log.commit(truncate(TABLE))
    bench.run(Formats("avro"))
    told = [value for key, value in bench.records() if reading.json(key) == b'{"id":"1"}']
    assert orjson.loads(reading.json(told[-2] or b""))["op"] == "d"
    assert told[-1] is None
