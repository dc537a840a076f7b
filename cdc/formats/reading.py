"""Reads records of tables' topics back, whatever their format: each record tells its own.

| begins with | is |
|---|---|
| a byte 0 | the id of a schema at the registry, in four bytes, then Avro, JSON of a JSON Schema, or Protobuf |
| ``{"schema":{"type":"struct"`` | JSON with Connect's schema; what it says is its ``payload`` |
| anything else | JSON |

A record of which nobody knows the schema any more is given as it is: it may have been a row. One whose schema is there
and is no connector's, or whose bytes are not of it, is `FOREIGN`, which no JSON is. Before it is called that the
registry is asked again, once for each schema: one that was made again may have given the id to another schema since,
and a row that was taken for foreign would be taken out of its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import orjson

from cdc.encode.topic_contents.foreign import FOREIGN
from cdc.formats import avro
from cdc.formats.proto import proto_text, protobuf
from cdc.model.errors import ProtocolError, TopicError
from cdc.rules.flat import as_event

MAGIC: Final = b"\0"
HEAD: Final = 5
"""The bytes before what is encoded."""
FIRST: Final = b"\0"
"""Between the head and a message of Protobuf: it is the first of its file."""
CONNECT: Final = b'{"schema":{"type":"struct"'
_PAYLOAD: Final = b',"payload":'

SchemaOf: TypeAlias = Callable[[int], tuple[str, str] | None]
"""Gives the type and the text of a schema by its id; None: there is none."""


class Reading:
    """Reads keys and values as plain JSON, but with the types of their format: see `cdc.formats.typed`."""

    def __init__(self, schema_of: SchemaOf | None = None, *, forget: Callable[[], None] = lambda: None) -> None:
        """`schema_of` is asked once for each schema, until it is to `forget`; None: there is no registry."""
        self._schema_of, self._forget = schema_of, forget
        self._readers: dict[int, avro.Read | None] = {}
        self._asked_again: set[int] = set()

    def forget(self) -> None:
        """Forget all schemas: a registry that was made again has others under their ids."""
        self._readers.clear()
        self._asked_again.clear()
        self._forget()

    def event(self, value: bytes | None, headers: Iterable[Any] | None) -> bytes | None:
        """Return a record's value as the event that it stands for; see `cdc.rules.flat.as_event`.

        One that nobody can read stays what it is, so that it is told what it is.
        """
        json = None if value is None else self.json(value)
        return json if json is FOREIGN or (json is not None and json[:1] == MAGIC) else as_event(json, headers)

    def json(self, data: bytes) -> bytes:
        """Return the JSON of a key or value."""
        if data[:1] == MAGIC and self._schema_of is not None:
            return self._by_its_schema(data, self._schema_of) if len(data) > HEAD else FOREIGN
        if data.startswith(CONNECT):
            at = data.find(_PAYLOAD)
            return data[at + len(_PAYLOAD) : -1] if at > 0 else data
        return data

    def _by_its_schema(self, data: bytes, schema_of: SchemaOf) -> bytes:
        number = int.from_bytes(data[1:HEAD], "big")
        found = self._registered(number, data, schema_of)
        if found is FOREIGN and number not in self._asked_again:
            self._asked_again.add(number)
            self._readers.clear()
            self._forget()
            found = self._registered(number, data, schema_of)
        return found

    def _registered(self, number: int, data: bytes, schema_of: SchemaOf) -> bytes:
        if number not in self._readers:
            found = schema_of(number)
            if found is None:
                return data
            self._readers[number] = _reader(*found)
        read = self._readers[number]
        if read is None:
            return data[HEAD:] if data[HEAD : HEAD + 1] != MAGIC else FOREIGN
        try:
            value, end = read(data, HEAD)
            return orjson.dumps(value) if end == len(data) else FOREIGN
        except (ProtocolError, orjson.JSONEncodeError):
            return FOREIGN


@contextmanager
def records_of(topic: str) -> Iterator[None]:
    """Say which topic has the records that cannot be read, for want of one schema: it concerns no other table."""
    try:
        yield
    except TopicError as exc:
        raise type(exc)(f"topic {topic}: {exc.message}", hint=exc.hint or "", topic=topic) from exc


def _reader(type_: str, text: str) -> avro.Read | None:
    """Return what reads records of a schema; None: they are JSON."""
    if type_ not in ("AVRO", "PROTOBUF"):
        return None
    try:
        if type_ == "AVRO":
            return avro.reader(orjson.loads(text))
        read = protobuf.reader(proto_text.parse(text)[1])
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):  # somebody else's, of other types
        return _unreadable

    def of_first_message(data: bytes, at: int) -> tuple[Any, int]:
        if data[at : at + len(FIRST)] != FIRST:
            raise ProtocolError(at, "a message that is not the first of its file")
        return read(data, at + len(FIRST))

    return of_first_message


def _unreadable(_data: bytes, at: int) -> tuple[Any, int]:
    raise ProtocolError(at, "a schema that no connector has written")


PLAIN: Final = Reading()
"""Where there is no registry."""
