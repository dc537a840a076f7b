"""Protobuf by compiled code against Protobuf made of JSON, and what Google's own library makes of it."""

from __future__ import annotations

import base64
import struct
from contextlib import suppress
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cdc.encode import built, json_text
from cdc.encode.envelope.frame import PlainFrame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.formats.proto import proto_message, proto_text, protobuf
from cdc.formats.proto.compiled_protobuf import _column
from cdc.formats.proto.proto_message import FieldNumbers, Numbered
from cdc.formats.schema import Schema
from cdc.formats.tables import event_schema, row_schema
from cdc.formats.typed import typed
from cdc.formats.wires import RegisteredWires
from cdc.model.change import Change, Column, Kind, Op, Table
from cdc.model.errors import ProtocolError
from cdc.rules.flat import Formats
from connectors.postgres.values import mapping as postgres_values
from tests import proto_messages
from tests.property.test_avro import COLUMNS, EVENTS, LENIENT, LOGS, NUMBERS, OF_SOURCES, PLACES, TABLE, TEXT, packed
from tests.property.test_compiled import TEXTS, core
from tests.unit.test_formats import MemoryRegistry

if built.PURE:
    pytest.skip("it is left out by CDC_PURE", allow_module_level=True)

_REFUSED = (ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError, struct.error)


def _field(column: Column, *, bare: bool = False) -> proto_message.Field:
    table = Table("s", "t", (column,), (column.name,))
    row = row_schema(table, "p.s.t", precise=True)
    if bare:
        row = replace(row, fields=tuple((name, of.required()) for name, of in row.fields))
    wanted = proto_message.types(table, row)
    given = proto_message.numbered(wanted, [Numbered("gone", "gone", "string", 300)])
    return proto_message.row_message(row, wanted, given, name="Value").fields[0]


@pytest.mark.parametrize("bare", [False, True], ids=["row", "key"])
@pytest.mark.parametrize(
    "column", COLUMNS, ids=lambda of: f"{of.encode.__module__}.{json_text.FORMS[of.encode]}.{of.kind.name}"
)
@settings(max_examples=25)
@given(value=st.one_of(TEXTS, NUMBERS))
@example(value=b"-9223372036854775808")
@example(value=b"18446744073709551615")
@example(value=b"0")
@example(value=b"")
@example(value=b"-0.01")
@example(value=b"3.4028235e+38")
def test_a_value_is_packed_as_its_json_is(column: Column, bare: bool, value: bytes) -> None:
    of, encode, form = _field(column, bare=bare), typed(column), json_text.FORMS[column.encode]
    assume(form not in LENIENT or (value.isascii() and not set(value) & set(b'\\" \t\n\r')))
    pack = protobuf.packer(proto_message.Message(name="Value", fields=(of,)))
    try:
        expected: Any = pack({column.name: orjson.loads(encode(value))})
    except _REFUSED:
        expected = None
    columns = core.ProtobufColumns([_column(column, encode, of, bare=bare)], *([(0,)] if bare else []))
    try:
        found: Any = columns((value,))
    except _REFUSED:
        found = None
    if expected is not None or form not in LENIENT:
        assert found == expected
    if not bare:
        assert columns((None,)) == b""


@OF_SOURCES
@settings(max_examples=50)
@given(**EVENTS)
def test_an_event_is_packed_as_its_json_is(source: str, database: str, **event: Any) -> None:
    """And the reference library, and our own reader, find in it what its JSON says."""
    registry, made, told = packed("protobuf", source, database, **event)
    text = registry.schemas[int.from_bytes(made[1][1:5], "big")][1]
    found = proto_messages.read(text, made[1])
    ours, end = protobuf.reader(proto_text.parse(text)[1])(made[1], 6)
    assert end == len(made[1])
    assert ours["after"] == told["after"]
    assert ours["before"] == (
        None if told["before"] is None else {"id": None, "a-b": None, "d": None, **told["before"]}
    )
    assert {**found["after"], "d": str(found["after"]["d"])} == {**told["after"], "d": str(told["after"]["d"])}
    assert (found["op"], found["ts_ms"], found["transaction"]) == ("u", told["ts_ms"], told["transaction"])
    assert found["source"] == {name: value for name, value in told["source"].items() if name in found["source"]}
    assert set(found["source"]) == set(told["source"]) - (set() if source in LOGS else set(PLACES[source]))
    assert proto_messages.read(registry.schemas[1][1], made[0]) == {"id": told["after"]["id"]}


@pytest.mark.parametrize("room", [1 << power for power in range(16, 21)])
def test_a_small_row_at_the_end_of_the_room_is_kept(room: int) -> None:
    """The size that stands before a row is written behind it, where the buffer may be full."""
    registry = MemoryRegistry()
    wires = RegisteredWires(Formats("protobuf"), registry=registry)
    wires.begin("postgresql", "db", ("txId", "lsn"))
    columns = (Column("b", "boolean", Kind("boolean"), postgres_values.boolean), TABLE.columns[1])
    table = Table("s", "t", columns, ("b",))
    wire = wires.of(table, "p.s.t")
    encoder = TableEncoder(
        table, connector="postgresql", prefix="p", database="db", version=1, topic="p.s.t", wire=wire
    )
    where, row = b'"txId":null,"lsn":%d', (b"t", None)
    told: dict[str, Any] = {"epoch": 0, "commit": 1, "at_ms": 0, "made_at_ms": 0, "transaction": None, "where": where}
    way, plainly = core.Way(encoder, None, 0), PlainFrame(**told)
    assert wire is not None
    for length in range(room - 48, room + 2):
        before = (b"t", b"w" * length)
        made = way(Change(Op.UPDATE, table, before, row, 9), core.Frame(**told))
        json = plainly.event(encoder, b"u", encoder.image(before), encoder.row(row), 9)
        assert made == (encoder.key(row), wire.value(json)), length


EVERY = (
    *(Column(f"c{at}", "a type", kind, bytes) for at, kind in enumerate((
        Kind("boolean"), Kind("int16"), Kind("int32"), Kind("int64"), Kind("uint64"), Kind("float32"), Kind("float64"),
        Kind("decimal", 10, 2), Kind("decimal", 5, -2), Kind("decimal"), Kind("string"), Kind("bytes"), Kind("json"),
        Kind("date"), Kind("time_micros"), Kind("timestamp_micros"), Kind("timestamptz"), Kind("geometry"),
        Kind("vector"),
    ))),
)  # fmt: skip
_BINARY = st.binary(max_size=20).map(lambda of: base64.b64encode(of).decode())
_SPECIAL = st.sampled_from(["NaN", "Infinity", "-Infinity"])
_VALUES = {
    "boolean": st.booleans(), "int16": st.integers(-(2**15), 2**15 - 1), "int32": st.integers(-(2**31), 2**31 - 1),
    "date": st.integers(-(2**31), 2**31 - 1), "uint64": st.integers(0, 2**64 - 1), "string": TEXT, "json": TEXT,
    "timestamptz": TEXT, "bytes": _BINARY,
    "float32": st.one_of(_SPECIAL, st.floats(width=32, allow_nan=False, allow_infinity=False)),
    "float64": st.one_of(_SPECIAL, st.floats(allow_nan=False, allow_infinity=False)),
    "geometry": st.fixed_dictionaries({"wkb": _BINARY, "srid": st.one_of(st.none(), st.integers(0, 2**31 - 1))}),
    "vector": st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=4),
}  # fmt: skip


def _values(column: Column) -> st.SearchStrategy[Any]:
    kind = column.kind
    if kind.name == "decimal":
        most = 10 ** (kind.precision or 30)
        step = kind.scale if kind.scale is not None and kind.scale > 0 else 0
        numbers = st.integers(1 - most, most - 1)
        return numbers.map(lambda of: _decimal(of, step))
    return _VALUES.get(kind.name, st.integers(-(2**63), 2**63 - 1))


def _decimal(number: int, scale: int) -> str:
    digits = str(abs(number)).rjust(scale + 1, "0")
    return ("-" if number < 0 else "") + (f"{digits[:-scale]}.{digits[-scale:]}" if scale else digits)


@given(data=st.data())
def test_any_row_reads_as_its_json_says(data: st.DataObject) -> None:
    """By the reference library, and by our own reader."""
    row = {column.name: data.draw(st.one_of(st.none(), _values(column))) for column in EVERY}
    registry = MemoryRegistry()
    wires = RegisteredWires(Formats("flat protobuf"), registry=registry)
    wires.begin("postgresql", "db", ("txId", "lsn"))
    wire = wires.of(Table("s", "t", EVERY, ("c2",)), "p.s.t")
    assert wire is not None
    value = wire.value(orjson.dumps(row))
    (text,) = {text for (subject, text) in registry.subjects if subject.endswith("-value")}
    found = proto_messages.read(text, value)
    ours, _ = protobuf.reader(proto_text.parse(text)[1])(value, 6)
    for column in EVERY:
        name, expected = column.name, row[column.name]
        assert ours[name] == expected or float(ours[name]) == pytest.approx(float(expected), rel=1e-6), name
        assert _as_json(column, found[name]) == _as_json(column, expected), name


@given(data=st.data())
def test_any_key_reads_as_its_json_says(data: st.DataObject) -> None:
    """Also 0 and what is empty, which are left out; numbers of a precision are their digits."""
    kinds = ("boolean", "int16", "int32", "int64", "uint64", "decimal", "string", "bytes", "date", "timestamp_micros")
    columns = [column for column in EVERY if column.kind.name in kinds]
    chosen = data.draw(st.lists(st.sampled_from(columns), min_size=1, unique_by=lambda of: of.name))
    key = {column.name: data.draw(_values(column)) for column in chosen}
    registry = MemoryRegistry()
    wires = RegisteredWires(Formats("protobuf"), registry=registry)
    wires.begin("mysql", "", PLACES["mysql"])
    wire = wires.of(Table("s", "t", EVERY, tuple(key)), "p.s.t")
    assert wire is not None
    made = wire.key(orjson.dumps(key))
    found = proto_messages.read(registry.newest("p.s.t-key") or "", made)
    assert orjson.loads(wire.key_image(made)) == key
    assert wire.key_image(b"{}") == b"null"
    for column in chosen:
        value = found[column.name]
        assert (base64.b64encode(value).decode() if isinstance(value, bytes) else value) == key[column.name]


def _as_json(column: Column, value: Any) -> Any:
    kind = column.kind.name
    if value is None:
        return None
    if kind in ("float32", "float64"):
        return repr(float(value))
    if kind == "geometry":
        return _as_json(Column("", "", Kind("bytes"), bytes), value["wkb"]), value["srid"]
    if kind == "bytes":
        return value if isinstance(value, bytes) else base64.b64decode(value)
    return str(value) if kind == "decimal" and column.kind.precision is not None else value


NAMES = st.one_of(
    st.sampled_from(["id", "Id", "i_d", "_id", "message", "reserved", "optional", "Geometry", "user_id", "userId"]),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=6),
)  # fmt: skip
TYPES = st.sampled_from(
    [
        "int32:number",
        "int64:number",
        "int32:date",
        "int64:timestamp_micros",
        "string",
        "bool",
        proto_message.GEOMETRY,
        proto_message.DOUBLES,
    ]
)
_OF_TYPE = {
    "int32:number": Schema(type="int32"), "int64:number": Schema(type="int64"), "int32:date": Schema(type="int32"),
    "int64:timestamp_micros": Schema(type="int64"), "string": Schema(type="string"),
    "bool": Schema(type="boolean"), proto_message.GEOMETRY: Schema(type="struct"),
    proto_message.DOUBLES: Schema(type="array", items=Schema(type="float64")),
}  # fmt: skip


@given(st.lists(st.dictionaries(NAMES, TYPES, min_size=1, max_size=5), min_size=1, max_size=6))
@example(
    [
        {"a": "int32:number", "b": "string"},
        {"a": "int32:number"},
        {"a": "int32:number", "c": "string"},
        {"a": "int64:number", "b": "string"},
    ]
)
@example([{"a": "int32:number"}, {"a": "string"}, {"b": "int32:number"}, {"a": "int32:number"}])
@example(
    [
        dict.fromkeys(["id", "i_d", "_id"], "int32:number"),
        dict.fromkeys(["Id", "message", "x", "8", ""], "int32:number"),
    ]
)
def test_a_number_is_of_one_column_for_good(versions: list[dict[str, str]]) -> None:
    """Through any changes of a table: none is given twice, and the reference library takes every version's file."""
    meaning: dict[int, tuple[str, bool | str]] = {}
    known: tuple[Numbered, ...] = ()
    for wanted in versions:
        row = Schema(type="struct", fields=tuple((name, _OF_TYPE[of].or_null()) for name, of in wanted.items()))
        known = proto_message.numbered(wanted, known)
        known = FieldNumbers.of_json(orjson.loads(orjson.dumps(FieldNumbers((), known).to_json()))).row
        message = proto_message.row_message(row, wanted, known, name="Value")
        text = proto_text.text(message, "p.s.t")
        for field, column in zip(message.fields, (*wanted, *[None] * len(message.fields)), strict=False):
            counted = field.params.get("cdc.kind", True) if field.type in ("int32", "int64") else field.type
            of = "a message" if field.message else counted
            assert meaning.setdefault(field.number, (field.name, of)) == (field.name, of)
            assert field.deprecated == (column is None)
            assert column is None or field.name == column
        assert not {of.number for of in message.fields} & set(message.reserved)
        assert proto_text.parse(text) == ("p.s.t", message)
        assert {of.number for of in proto_text.given(message)} == {of.number for of in known}
        proto_messages.message_class(text)


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    """No error but the one that says so."""
    row = row_schema(TABLE, "p.s.t", precise=True)
    wanted = proto_message.types(TABLE, row)
    of_row = proto_message.row_message(row, wanted, proto_message.numbered(wanted, ()), name="Value")
    event = proto_message.event_message(event_schema(row, "p.s.t", "postgresql", "db", ()), of_row)
    with suppress(ProtocolError):
        protobuf.reader(event)(data, 0)


@given(st.text(max_size=80))
@example('syntax = "proto3"; package p; message A { message B { optional A a = 1; } optional B b = 1; }')
@example("message A { enum E { X = 0; } }")
@example("message A { oneof x { string a = 1; } }")
@example("message A { string a = 1")
def test_other_files_are_refused_or_read(text: str) -> None:
    with suppress(ValueError):
        proto_text.parse(text)


def test_a_file_that_a_registry_has_written_anew() -> None:
    """Spaces, comments, order of options, other quotes."""
    text = """// Proto schema formatted by Wire, do not edit.
    syntax = "proto3"; package p.s;
    import 'confluent/meta.proto';
    message Value {
      /* gone */ reserved 7, 9;
      optional .p.s.Value.Geometry g = 2 [deprecated=true];
      optional int32 nam_e = 3 [
        (confluent.field_meta) = {
          params: [ { key: "connect.type", value: "int16" }, { value: 'x', key: "y" },
            {key:"cdc.name",value:"nam-\\"\\303\\244"} ]
        }
      ];
      message Geometry { bytes wkb = 1; }
    }
    """
    package, message = proto_text.parse(text)
    assert (package, message.name, message.reserved) == ("p.s", "Value", (7, 9))
    geometry, named = message.fields
    assert geometry.deprecated
    assert geometry.message is not None
    assert (named.name, named.params["connect.type"], named.number) == ('nam-"ä', "int16", 3)


TIMES = ("date", "time_micros", "timestamp_millis", "timestamp_micros")


@given(st.lists(st.sampled_from(TIMES), min_size=1, max_size=6), st.booleans())
@example(["timestamp_millis", "timestamp_micros", "timestamp_millis"], False)
def test_a_number_of_a_field_counts_one_thing(kinds: list[str], noted: bool) -> None:
    """Milliseconds that become microseconds have another number: readers of Protobuf know a class, and no schema.

    Not `noted`: the first numbers are of a release that did not write down what they count.
    """
    registry, given_, found = MemoryRegistry(), None, list[tuple[str, int]]()
    wires = RegisteredWires(Formats("flat protobuf"), registry=registry)
    wires.begin("mysql", "", PLACES["mysql"])
    for kind in kinds:
        columns = (TABLE.columns[1], Column("at", "a type", Kind(kind), bytes))
        wire = wires.of(Table("s", "t", columns, (columns[0].name,)), "p.s.t", given_)
        assert wire is not None
        given_ = dict(wire.numbers or {})
        if not noted and not found:
            given_ = {part: [[c, w, t.partition(":")[0], n] for c, w, t, n in of] for part, of in given_.items()}
        _, text = registry.schemas[int(wire.value_form[2:10], 16)]
        (number,) = (of.number for of in proto_text.parse(text)[1].fields if of.name == "at")
        found.append((kind, number))
    later = found[1:] if not noted else found  # the second may have the number that nobody knew to be of the first
    for one, number in later:
        for other, other_number in later:
            assert (number == other_number) == (one == other), (kinds, found)
