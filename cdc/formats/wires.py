"""Makes the format of each table's records, and learns its schemas' ids from the registry before the first of them.

| encoding | key and value |
|---|---|
| ``connect-json`` | ``{"schema":…,"payload":…}``, as JsonConverter with ``schemas.enable=true`` |
| ``avro`` | 0, the schema's id in four bytes, Avro |
| ``protobuf`` | 0, the schema's id in four bytes, 0 (it is the file's first message), Protobuf |
| ``json-schema`` | 0, the schema's id in four bytes, plain JSON |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, Final, NamedTuple, Protocol

import orjson

from cdc.config import registry
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.record_format import PRECISE
from cdc.encode.dead_letters import UnwritableError
from cdc.encode.envelope.row_codegen import Encode, compiled
from cdc.formats import avro, json_schema, schema
from cdc.formats.compiled_avro import avro_table
from cdc.formats.proto import proto_message, proto_text, protobuf
from cdc.formats.proto.compiled_protobuf import protobuf_table
from cdc.formats.proto.proto_message import FieldNumbers, Message, Numbered
from cdc.formats.reading import FIRST, HEAD, MAGIC
from cdc.formats.registry_watch import RegistryWatch
from cdc.formats.schema import Schema
from cdc.formats.schema_text import is_of
from cdc.formats.tables import event_schema, key_schema, places, row_schema
from cdc.formats.typed import typed
from cdc.model.change import Column, Table
from cdc.model.errors import BugError, OperatorError, TopicError
from cdc.model.wire import Wire
from cdc.rules.flat import Formats


class Registry(Protocol):
    """A schema registry."""

    def forget(self) -> None:
        """Forget all answers: a registry that was made again has other ids."""

    def same(self) -> bool:
        """Whether the registry still has the ids that it gave since `forget`. Raises as `register`."""

    def takes(self) -> bool:
        """Whether it would take by now a schema that it has refused; each is told of once. Raises as `register`."""

    def schema(self, number: int) -> tuple[str, str] | None:
        """Return the type and text of a schema; None: the registry does not know it. Raises as `register`."""

    def newest(self, subject: str) -> str | None:
        """Return the text of the newest schema under a subject; None: there is none."""

    def register(self, subject: str, text: str, *, type_: str, ours: Sequence[str]) -> int:
        """Return the id of a schema under a subject, where it is registered unless it is there.

        Schemas that have one of the names `ours` are the connector's own. Raises TopicError if the registry refuses
        it, or another schema is there, OperatorError if it takes none, and RetryableError if it cannot be asked.
        """


class RegisteredWires:
    """Makes formats of one connector's tables."""

    def __init__(self, formats: Formats, *, registry: Registry | None = None, subjects: str = "topic") -> None:
        self._formats, self._registry, self._subjects = formats, registry, subjects
        self._source = self._database = ""
        self._places: tuple[str, ...] = ()
        self._made: dict[tuple[Table, str, bytes], Wire | None] = {}
        self._topics: dict[str, str] = {}
        """Topics by what their records are called."""
        self._watch: RegistryWatch | None = None

    def begin(self, source: str, database: str, places: tuple[str, ...]) -> None:
        self._source, self._database, self._places = source, database, places
        self._made.clear()
        self._topics.clear()
        if self._registry is not None:
            self._registry.forget()
            self._watch = RegistryWatch(self._registry.same, self._registry.takes)

    def moved(self) -> bool:
        return self._watch is not None and self._watch.moved()

    def lost(self, record: Mapping[str, Any]) -> bool:
        topic, form = record["topic"], bytes.fromhex(record["value_form"])
        with _about(f"{record['schema']}.{record['table']}", topic):
            found = self._at_registry().schema(int.from_bytes(form[len(MAGIC) : HEAD], "big"))
        if found is None:
            return True
        names = [f"{base}.{end}" for base in (topic, schema.full_name(topic)) for end in ("Envelope", "Value")]
        return not is_of(*found, names, (column["name"] for column in record["columns"]))

    def of(self, table: Table, topic: str, numbers: Mapping[str, Any] | None = None) -> Wire | None:
        at = (table, topic, orjson.dumps(numbers))
        if at not in self._made:
            with _about(table.qualified, topic):
                self._made[at] = self._make(table, topic, numbers)
        return self._made[at]

    def _make(self, table: Table, topic: str, numbers: Mapping[str, Any] | None) -> Wire | None:
        encoding = self._formats.encoding(table.qualified)
        if encoding == "json":
            return None
        flat = self._formats.of(table.qualified)
        precise = encoding in PRECISE and self._formats.decimals == "precise"
        name = schema.full_name(topic) if encoding in PRECISE else topic
        if self._subjects == "record" and self._topics.setdefault(name, topic) != topic:
            raise TopicError(
                f"records of topic {topic} would be called {name}, as those of topic {self._topics[name]} are: they "
                "would share their subjects at the registry",
                hint="sink.registry.subjects: topic, or topic-record; or another topic for one of them: sink.route",
                topic=topic,
            )
        row = row_schema(table, name, precise=precise, metadata=flat.metadata if flat is not None else ())
        key = key_schema(table, name)
        where = places(self._places, packed=encoding in PRECISE)
        value = row if flat is not None else event_schema(row, name, self._source, self._database, where)
        if encoding == "connect-json":
            return _Wrapped(tuple(map(typed, table.columns)), _connect(key), _connect(value))
        if encoding == "json-schema":
            newest = self._at_registry().newest(self._subject(topic, "value", value.name or ""))
            of_row = json_schema.of_row(table, row.name or "", row, newest)
            of_value = of_row if flat is not None else json_schema.of_event(of_row, value)
            of_key = json_schema.of_key(table, key.name or "")
            heads = self._heads(topic, (key, of_key), (value, of_value), type_="JSON")
            encoders = tuple(column.encode for column in table.columns)
            return _Wrapped(encoders, (heads.key, b""), (heads.value, b""), heads.print)
        if encoding == "protobuf":
            return self._protobuf(table, topic, numbers, key=key, row=row, value=value, precise=precise)
        heads = self._heads(topic, (key, schema.avro(key)), (value, schema.avro(value)), type_="AVRO")
        return _Avro(table, heads, key=key, row=row, value=value, precise=precise, placed=bool(where))

    def _heads(self, topic: str, key: tuple[Schema, Any], value: tuple[Schema, Any], *, type_: str) -> _Heads:
        """Register both schemas; return what stands before keys and values."""
        heads, print_ = [], ""
        for part, (of, written) in (("key", key), ("value", value)):
            name = of.name or ""
            base = name.rpartition(".")[0]
            ours = [name] if part == "key" else [f"{base}.Envelope", f"{base}.Value"]
            text = written if isinstance(written, str) else orjson.dumps(written).decode()
            number = self._at_registry().register(self._subject(topic, part, name), text, type_=type_, ours=ours)
            heads.append(MAGIC + number.to_bytes(4, "big"))
            print_ = blake2b(text.encode(), digest_size=8).hexdigest()
        return _Heads(heads[0], heads[1], print_)

    def _at_registry(self) -> Registry:
        if self._registry is None:
            raise BugError("a format with a registry, and no registry")
        return self._registry

    def _subject(self, topic: str, part: str, name: str) -> str:
        return {"topic": f"{topic}-{part}", "record": name, "topic-record": f"{topic}-{name}"}[self._subjects]

    def _protobuf(
        self,
        table: Table,
        topic: str,
        numbers: Mapping[str, Any] | None,
        *,
        key: Schema,
        row: Schema,
        value: Schema,
        precise: bool,
    ) -> Wire:
        """Give each field its number for good: the schema topic's, or the registry's where it has others.

        The registry may know of versions that no schema topic has: Kafka was lost, or a transaction was aborted.
        Their columns keep their numbers, and no other column is given them.
        """
        known = FieldNumbers.of_json(numbers or {})
        known = FieldNumbers(
            proto_message.joined(known.key, self._registered(self._subject(topic, "key", key.name or ""))),
            proto_message.joined(known.row, self._registered(self._subject(topic, "value", value.name or ""))),
        )
        of_key, of_row = proto_message.types(table, key), proto_message.types(table, row)
        given = FieldNumbers(proto_message.numbered(of_key, known.key), proto_message.numbered(of_row, known.row))
        key_message = proto_message.row_message(key, of_key, given.key, name="Key")
        row_message = proto_message.row_message(row, of_row, given.row, name="Value")
        event = row_message if value is row else proto_message.event_message(value, row_message)
        package = (row.name or "").rpartition(".")[0]
        heads = self._heads(
            topic, (key, proto_text.text(key_message, package)), (value, proto_text.text(event, package)),
            type_="PROTOBUF",
        )  # fmt: skip
        return _Protobuf(
            table, _Heads(heads.key + FIRST, heads.value + FIRST, heads.print), key=key_message, row=row_message,
            value=event, precise=precise, numbers=given, places=self._places,
        )  # fmt: skip

    def _registered(self, subject: str) -> tuple[Numbered, ...]:
        """Return the numbers that the newest message under a subject gives."""
        text = self._at_registry().newest(subject)
        try:
            found = None if text is None else proto_text.parse(text)[1]
        except ValueError:  # another format, or somebody else's, which is refused as it is registered
            return ()
        if found is not None and found.name == "Envelope":
            found = proto_text.image_of(found)
        return () if found is None else proto_text.given(found)


def wires_of(sink: KafkaConfig, *, learns: bool = True) -> RegisteredWires | None:
    """Make the formats of a sink's tables; None: all are plain JSON. Without `learns` a registry learns nothing."""
    formats = Formats.of_sink(sink)
    if formats.plain:
        return None
    found = registry.part("sinks.client.schema_registry:open_registry")(sink, learns=learns)
    return RegisteredWires(formats, registry=found, subjects=sink.registry.subjects if sink.registry else "topic")


@contextmanager
def _about(table: str, topic: str) -> Iterator[None]:
    """Say which table an error is about; what is wrong with its schemas concerns no other one."""
    try:
        yield
    except TopicError as exc:
        raise type(exc)(f"table {table}: {exc.message}", hint=exc.hint or "", topic=topic) from None
    except OperatorError as exc:
        raise OperatorError(f"table {table}: {exc.message}", hint=exc.hint) from None


class _Heads(NamedTuple):
    """What stands before keys and values, and the fingerprint of the schema of values."""

    key: bytes
    value: bytes
    print: str


def _connect(of: Schema) -> tuple[bytes, bytes]:
    return b'{"schema":%b,"payload":' % orjson.dumps(schema.connect(of)), b"}"


class _Wrapped:
    """JSON with something around it."""

    def __init__(
        self, encoders: Sequence[Encode], key: tuple[bytes, bytes], value: tuple[bytes, bytes], print_: str = ""
    ) -> None:
        self.encoders, self._key, self._value = encoders, key, value
        self.around_key: tuple[bytes, bytes] | None = key
        self.key_form = key[0].hex() if len(key[0]) == HEAD else key[0].decode()
        self.value_form = value[0].hex() if len(value[0]) == HEAD else ""
        self.value_print = print_
        self.numbers: Mapping[str, Any] | None = None
        self.compiled: Any = None if compiled is None else compiled.Around(*value)

    def key(self, json: bytes) -> bytes:
        return json.join(self._key)

    def key_image(self, key: bytes) -> bytes:
        begin, end = self._key
        return key[len(begin) : len(key) - len(end)] if key.startswith(begin) else _NULL

    def value(self, json: bytes) -> bytes:
        return json.join(self._value)


_NULL: Final = b"null"


class _Avro:
    """Avro, made of the typed JSON; compiled code makes it of the values themselves."""

    def __init__(
        self,
        table: Table,
        heads: _Heads,
        *,
        key: Schema,
        row: Schema,
        value: Schema,
        precise: bool,
        placed: bool,
    ) -> None:
        self._key_head, self._value_head, self.value_print = heads
        self.key_form, self.value_form = self._key_head.hex(), self._value_head.hex()
        self.around_key: tuple[bytes, bytes] | None = None
        self.numbers: Mapping[str, Any] | None = None
        self.encoders: Sequence[Encode] = [_packed(c, "Avro") if precise else typed(c) for c in table.columns]
        self._pack_key, self._pack_value = avro.packer(key), avro.packer(value)
        self._read_key = avro.reader(schema.avro(key))
        self.compiled: Any = avro_table(table, heads[:2], encoders=self.encoders, key=key, row=row, placed=placed)

    def key(self, json: bytes) -> bytes:
        return self._key_head + self._pack_key(orjson.loads(json))

    def key_image(self, key: bytes) -> bytes:
        return orjson.dumps(self._read_key(key, HEAD)[0]) if key.startswith(self._key_head) else _NULL

    def value(self, json: bytes) -> bytes:
        return self._value_head + self._pack_value(orjson.loads(json))


class _Protobuf:
    """Protobuf, made of the typed JSON; compiled code makes it of the values themselves."""

    def __init__(
        self,
        table: Table,
        heads: _Heads,
        *,
        key: Message,
        row: Message,
        value: Message,
        precise: bool,
        numbers: FieldNumbers,
        places: tuple[str, ...],
    ) -> None:
        self._key_head, self._value_head, self.value_print = heads
        self.key_form, self.value_form = self._key_head.hex(), self._value_head.hex()
        self.around_key: tuple[bytes, bytes] | None = None
        self.numbers: Mapping[str, Any] | None = numbers.to_json()
        self.encoders: Sequence[Encode] = [_packed(c, "Protobuf") if precise else typed(c) for c in table.columns]
        self._pack_key, self._pack_value = protobuf.packer(key), protobuf.packer(value)
        self._read_key = protobuf.reader(key)
        self.compiled: Any = protobuf_table(table, heads[:2], encoders=self.encoders, key=key, row=row, places=places)

    def key(self, json: bytes) -> bytes:
        return self._key_head + self._pack_key(orjson.loads(json))

    def key_image(self, key: bytes) -> bytes:
        at = len(self._key_head)
        return orjson.dumps(self._read_key(key, at)[0]) if key.startswith(self._key_head) else _NULL

    def value(self, json: bytes) -> bytes:
        return self._value_head + self._pack_value(orjson.loads(json))


def _packed(column: Column, format_: str) -> Encode:
    """Return an encoder that refuses what a decimal of a format cannot be."""
    encode: Callable[[bytes], bytes] = typed(column)
    if column.kind.name != "decimal" or column.kind.precision is None:
        return encode
    scale = max(column.kind.scale or 0, 0)

    def write(value: bytes) -> bytes:
        json = encode(value)
        try:
            avro.unscaled(json[1:-1].decode(), scale)
        except ValueError:
            pass  # which holds the value
        else:
            return json
        raise UnwritableError(
            f"the value of {column.name} is no decimal of {format_}, as NaN is none: "
            "sink.registry.decimals: string has all",
            (column.name,),
        )

    return write
