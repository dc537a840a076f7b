"""Avro by compiled code against Avro made of JSON, and what any reader of Avro makes of it."""

from __future__ import annotations

import io
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import fastavro
import jsonschema
import orjson
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from cdc.encode import built, json_text
from cdc.encode.envelope.frame import PlainFrame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.formats import avro, schema
from cdc.formats.compiled_avro import _column
from cdc.formats.schema import Schema
from cdc.formats.tables import event_schema, row_schema
from cdc.formats.typed import schema_of, typed
from cdc.formats.wires import RegisteredWires
from cdc.model.change import UNCHANGED, Change, Column, Kind, Op, Table
from cdc.model.errors import ProtocolError
from cdc.rules.flat import Formats
from connectors.etcd.source import EtcdSource
from connectors.mysql.source import MysqlSource
from connectors.mysql.values import mapping as mysql_values
from connectors.postgres.source import PostgresSource
from connectors.postgres.values import mapping as postgres_values
from connectors.triggers.mysql.source import MysqlTriggers
from connectors.triggers.postgres.source import PostgresTriggers
from connectors.triggers.sqlite.source import SqliteSource
from tests.property.test_compiled import TEXTS, core
from tests.unit.test_formats import MemoryRegistry

if built.PURE:
    pytest.skip("it is left out by CDC_PURE", allow_module_level=True)

KINDS = {
    "as_is": [Kind("int16"), Kind("int32"), Kind("int64"), Kind("uint64")],
    "quoted": [Kind("string"), Kind("decimal", 10, 2), Kind("decimal", 30, 0), Kind("decimal")],
    "text": [Kind("string"), Kind("json")],
    "t_or_f": [Kind("boolean")],
    "one_or_zero": [Kind("boolean")],
    "floating": [Kind("float32"), Kind("float64")],
    "double": [Kind("float64")],
    "micros": [Kind("timestamp_micros")],
    "millis": [Kind("timestamp_millis")],
    "with_zone": [Kind("timestamptz")],
    "instant": [Kind("timestamptz")],
    "days": [Kind("date")],
    "clock": [Kind("time_micros")],
}
"""The kinds of each form of JSON that compiled code knows."""
LENIENT = ("as_is", "quoted", "floating", "double")
"""Forms whose text is the server's JSON already: only a server's text is written."""
OURS = [encode for encode in json_text.FORMS if encode.__qualname__.count("<") == 0]
COLUMNS = [Column("a", "a type", kind, encode) for encode in OURS for kind in KINDS[json_text.FORMS[encode]]]
NUMBERS = st.one_of(
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda n: f"{n:f}".encode()),
    st.integers(-(2**70), 2**70).map(lambda n: b"%d" % n),
    st.floats(allow_nan=False).map(lambda n: repr(n).encode()),
)


@pytest.mark.parametrize(
    "column", COLUMNS, ids=lambda of: f"{of.encode.__module__}.{json_text.FORMS[of.encode]}.{of.kind.name}"
)
@given(value=st.one_of(TEXTS, NUMBERS))
@example(value=b"-9223372036854775808")
@example(value=b"-0.01")
@example(value=b"99999999.99")
@example(value=b"-1.28")
@example(value=b"3.4028235e+38")
def test_a_value_is_packed_as_its_json_is(column: Column, value: bytes) -> None:
    of = schema_of(column, precise=True)
    encode = typed(column)
    form = json_text.FORMS[column.encode]
    assume(form not in LENIENT or (value.isascii() and not set(value) & set(b'\\" \t\n\r')))
    pack = avro.packer(of)
    try:
        expected: Any = b"\2" + pack(orjson.loads(encode(value)))
    except (ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError):
        expected = None
    columns = core.AvroColumns([_column(column, encode, of)])
    try:
        found: Any = columns((value,))
    except (ValueError, IndexError, KeyError, AttributeError, TypeError, OverflowError):
        found = None
    if expected is not None or form not in LENIENT:
        assert found == expected
    assert columns((None,)) == b"\0"


@pytest.mark.parametrize("mapping", [postgres_values, mysql_values], ids=["postgres", "mysql"])
@given(value=st.binary(max_size=200))
def test_binary_values_are_their_bytes(mapping: Any, value: bytes) -> None:
    """Of what is no hex, the encoder says so."""
    of = Schema(type="bytes")
    column = Column("a", "bytea", Kind("bytes"), mapping.binary)
    columns = core.AvroColumns([_column(column, mapping.binary, of)])
    text = b"\\x" + value.hex().encode() if mapping is postgres_values else value
    assert columns((text,)) == b"\2" + avro.long(len(value)) + value
    if mapping is postgres_values:
        for other in (text[:-1], text.replace(b"\\x", b"\\y"), text + b"g0", text.upper()):
            try:
                found = columns((other,))
            except ValueError:
                continue
            assert found == b"\2" + avro.packer(of)(orjson.loads(mapping.binary(other)))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=70)
WHERES = {
    "postgresql": [(b'"txId":null,"lsn":%d', 1), (b'"txId":4294967295,"lsn":%d', 1)],
    "mysql": [
        (b'"server_id":%d,"gtid":%%b,"file":"binlog.000001","pos":%%%%d,"row":%%%%d' % 7, 2),
    ],
    "postgresql by triggers": [(b'"txId":7,"change":%d', 1), (b'"txId":null,"change":%d', 1)],
    "mysql by triggers": [(b'"round":7,"change":"%d"', 1), (b'"round":%d,"change":null', 1)],
    "sqlite": [(b'"change":%d', 1)],
    "etcd": [(b'"revision":%d', 1)],
}
PLACES = {
    "postgresql": PostgresSource.places, "mysql": MysqlSource.places, "postgresql by triggers": PostgresTriggers.places,
    "mysql by triggers": MysqlTriggers.places, "sqlite": SqliteSource.places, "etcd": EtcdSource.places,
}  # fmt: skip
LOGS = ("postgresql", "mysql")
"""Whose places Avro and Protobuf have."""
GTIDS = [b"null", b'"0-1-5"', b'"a%%b"', rb'"a\"b\u00e4"']
TABLE = Table(
    "s", "t",
    (
        Column("id", "int", Kind("int32"), json_text.as_is), Column("a-b", "text", Kind("string"), json_text.text),
        Column("d", "numeric(10,2)", Kind("decimal", 10, 2), json_text.quoted),
    ),
    ("id",),
)  # fmt: skip
IDS = st.integers(-(2**31), 2**31 - 1).map(lambda n: b"%d" % n)
ROWS = st.tuples(
    IDS, st.one_of(st.none(), TEXT.map(str.encode)),
    st.one_of(st.none(), st.decimals(-99_999_999, 99_999_999, places=2).map(lambda n: f"{n:.2f}".encode())),
)  # fmt: skip


EVENTS = {
    "data": st.data(), "row": ROWS, "before": st.one_of(st.none(), ROWS, st.just("key")),
    "frame": st.fixed_dictionaries({
        "epoch": st.integers(0, 2**33), "commit": st.integers(0, 2**64 - 1), "at_ms": st.integers(-5, 2**45),
        "made_at_ms": st.integers(0, 2**45), "transaction": st.one_of(st.none(), st.tuples(TEXT, st.just(5))),
        "view": st.integers(0, 2**33),
    }), "version": st.integers(1, 2**31 - 1), "lsn": st.integers(0, 2**63 - 1),
}  # fmt: skip
"""What an event of an update may be."""
OF_SOURCES = pytest.mark.parametrize(("source", "database"), [(of, name) for of in WHERES for name in ("db", "")])


def packed(  # noqa: PLR0917 - what may vary
    form: str,
    source: str,
    database: str,
    data: st.DataObject,
    row: Any,
    before: Any,
    frame: dict[str, Any],
    version: int,
    lsn: int,
) -> tuple[MemoryRegistry, tuple[bytes, bytes], Any]:
    """An update as the compiled code packs it, which is its JSON packed: the registry, key and value, and the JSON."""
    where, places = data.draw(st.sampled_from(WHERES[source]))
    if places == 2:
        where = where.replace(b"%%d", b"%d").replace(b"%b", data.draw(st.sampled_from(GTIDS)))
    at: Any = lsn if places == 1 else (lsn % 2**32, lsn % 1000)
    registry = MemoryRegistry()
    wires = RegisteredWires(Formats(form), registry=registry)
    of, connector = PLACES[source], source.partition(" ")[0]
    wires.begin(connector, database, of)
    encoder = TableEncoder(
        TABLE, connector=connector, prefix="p", database=database, version=version, topic="p.s.t",
        wire=wires.of(TABLE, "p.s.t"),
    )  # fmt: skip
    if before == "key":
        before = (row[0], UNCHANGED, UNCHANGED)
    elif before is not None:
        before = (row[0], *before[1:])
    made = core.Way(encoder, None, 0)(Change(Op.UPDATE, TABLE, before, row, at), core.Frame(where=where, **frame))
    assert made is not None
    image = b"null" if before is None else encoder.image(before)
    json = PlainFrame(where=where, **frame).event(encoder, b"u", image, encoder.row(row), at)
    assert encoder.wire is not None
    assert made == (encoder.key(row), encoder.wire.value(json))
    return registry, made, orjson.loads(json)


@OF_SOURCES
@given(**EVENTS)
def test_an_event_is_packed_as_its_json_is(source: str, database: str, **event: Any) -> None:
    """And any reader of Avro finds in it what its JSON says."""
    registry, made, told = packed("avro", source, database, **event)
    found = registry.read(made[1])
    assert found["op"] == "u"
    names = {"id": "id", "a-b": "a_b", "d": "d"}
    got = {name: found["after"][of] for name, of in names.items()}
    assert {name: value if value is None or name == "id" else str(value) for name, value in got.items()} == told[
        "after"
    ]
    assert found["transaction"] == told["transaction"]
    assert found["source"] == {name: value for name, value in told["source"].items() if name in found["source"]}
    assert set(found["source"]) == set(told["source"]) - (set() if source in LOGS else set(PLACES[source]))


@OF_SOURCES
@settings(max_examples=10)
@given(**EVENTS)
def test_an_event_is_what_its_json_schema_says(source: str, database: str, **event: Any) -> None:
    """And so is its key: no member is there that the schema does not know, whatever the source tells of places."""
    registry, made, _ = packed("json-schema", source, database, **event)
    for data in made:
        _, text = registry.schemas[int.from_bytes(data[1:5], "big")]
        jsonschema.validate(orjson.loads(data[5:]), orjson.loads(text))


@given(ROWS)
def test_what_is_packed_is_read_back(row: Any) -> None:
    """By our own reader, and by fastavro's of the same schema."""
    registry = MemoryRegistry()
    wires = RegisteredWires(Formats("flat avro"), registry=registry)
    wires.begin("postgresql", "db", ("txId", "lsn"))
    wire = wires.of(replace(TABLE), "p.s.t")
    assert wire is not None
    number = wire.value(orjson.dumps({"id": int(row[0]), "a-b": None, "d": None}))
    (text,) = {text for (subject, text) in registry.subjects if subject.endswith("-value")}
    value, end = avro.reader(orjson.loads(text))(number, 5)
    assert (value, end) == ({"id": int(row[0]), "a-b": None, "d": None}, len(number))
    assert fastavro.schemaless_reader(io.BytesIO(number[5:]), orjson.loads(text), None)["id"] == int(row[0])


@given(st.binary(max_size=60))
def test_other_bytes_are_refused_or_read(data: bytes) -> None:
    """No error but the one that says so."""
    row = row_schema(TABLE, "p.s.t", precise=True)
    read: Callable[[bytes, int], Any] = avro.reader(schema.avro(event_schema(row, "p.s.t", "postgresql", "db", ())))
    with suppress(ProtocolError):
        read(data, 0)


@pytest.mark.parametrize(
    ("schema", "data"),
    [
        ({"type": "array", "items": "null"}, avro.long(2**40)),
        ({"type": "array", "items": "null"}, avro.long(-(2**40)) + avro.long(0)),
        (["null", "string"], avro.long(-1) + b"\0"),
        (["null", "string"], avro.long(2)),
    ],
)
def test_what_somebody_else_has_written_is_refused_at_once(schema: object, data: bytes) -> None:
    """Items without a byte could else be read for ever; a branch is not counted from the end."""
    with pytest.raises(ProtocolError):
        avro.reader(schema)(data, 0)
