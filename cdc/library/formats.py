"""Records of topics whose format is not plain JSON, as if it were: the rest of the library reads nothing else."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.encode.envelope.table_encoder import WITH_SCHEMA
from cdc.encode.topic_contents import foreign
from cdc.formats.reading import MAGIC, Reading
from cdc.formats.typed import plain_row
from cdc.library.described import Described
from cdc.rules.flat import Formats, as_event, is_flat
from cdc.rules.routes import without_table


@dataclass(slots=True)
class _Read:
    """A record that was read, with the methods of a client's record that are asked for."""

    of: Any
    read_key: bytes
    read_value: bytes | None
    place: str | None = None
    """Where `Described` has its table, if that is not its topic."""

    def topic(self) -> str:
        return self.place or str(self.of.topic())

    def key(self) -> bytes:
        return self.read_key

    def value(self) -> bytes | None:
        return self.read_value

    def headers(self) -> Any:  # noqa: ANN401 - the client's
        return self.of.headers()


def raw_key(message: Any) -> bytes:  # noqa: ANN401 - a client's record, or one of ours
    """Return the key of a record as Kafka has it: two formats may have two records that say the same key."""
    key: bytes = message.of.key() if isinstance(message, _Read) else message.key()
    return key


def _has_form(key: bytes, record: Mapping[str, Any]) -> bool:
    """Whether a record's key can be one of the version of a table that a record of the schema topic describes."""
    form = str(record.get("key_form", ""))
    if form:
        return key.startswith(form.encode() if form[0] == "{" else bytes.fromhex(form))
    coded = str(record.get("format", "")).partition(",")[0].split()[-1:]
    return coded not in ([], ["flat"]) or not key.startswith((MAGIC, WITH_SCHEMA))


class Readable:
    """Makes plain records of a connector's records."""

    def __init__(self, config: ConnectorConfig, described: Described) -> None:
        self._described = described
        self._plain = Formats.of_sink(config.sink).plain and not described.had_formats()
        self._reading: Reading = registry.part("sinks.client.schema_registry:open_reading")(config.sink)

    def all(self, batches: Generator[list[Any], None, None]) -> Generator[list[Any], None, None]:
        """Give the batches; those of a connector whose tables are all plain JSON, in their own topics, as they are."""
        for messages in batches:
            own = list(self._apart(messages)) if self._described.shares else messages
            yield own if self._plain else list(self._read(own))

    def changes(self, batches: Generator[list[Any], None, None]) -> Generator[list[Any], None, None]:
        """Give the batches without records under keys of a form that their table's keys do not have any more.

        Each row that is there comes under a key of the form of now, in a partition of its own: nothing tells which is
        the later of the two, and that the old one is deleted does not say that the row is.
        """
        for messages in self.all(batches):
            yield messages if self._plain else [of for of in messages if not self._is_of_before(of)]

    def _is_of_before(self, message: Any) -> bool:  # noqa: ANN401 - a client's record
        topic, key = message.topic(), raw_key(message)
        if _has_form(key, self._described.newest(topic)):
            return False
        version = self._version(message.value(), message)
        if version is None:
            return False
        self._described.record(topic, version)  # it may tell of a newer one
        return not _has_form(key, self._described.newest(topic))

    def _apart(self, messages: Iterable[Any]) -> Generator[Any, None, None]:
        """Give the records of topics that tables share as if each table had its own; not those of other tables."""
        for message in messages:
            key, table = without_table(message.key() or b"")
            place = self._described.place(message.topic(), table)
            if place is not None:
                yield message if place == message.topic() else _Read(message, key, message.value(), place)

    def _read(self, messages: Iterable[Any]) -> Generator[_Read, None, None]:
        for message in messages:
            key, value = message.key(), message.value()
            plain_key, json = self._reading.json(key), None if value is None else self._reading.json(value)
            if (plain_key is key and json is value) or plain_key[:1] == MAGIC:  # a key that nobody can read any more
                yield _Read(message, key, value, message.topic())
                continue
            version = self._version(json, message)
            if version is not None:
                record = self._described.record(message.topic(), version)
                if str(record.get("format", "")).partition(",")[0].split()[1:2] != ["json-schema"]:
                    columns = record["columns"]
                    plain_key = orjson.dumps(plain_row(columns, orjson.loads(plain_key)))
                    json = None if json is None else _plainly(columns, json, flat=is_flat(message.headers()))
            yield _Read(message, plain_key, json, message.topic())

    def _version(self, json: bytes | None, message: Any) -> int | None:  # noqa: ANN401 - a client's record
        """The version of the table that a record is of; None: a tombstone behind a delete, or nobody knows."""
        event = as_event(json, message.headers())
        found = foreign.event_of(event) if event is not None else None
        return None if found is None else int(found["source"]["schema_version"])


def _plainly(columns: Any, json: bytes, *, flat: bool) -> bytes:  # noqa: ANN401 - the schema topic's JSON
    """Turn the rows of an event, or a flat row, whose columns may be called as an event's members."""
    value = orjson.loads(json)
    if flat:
        return orjson.dumps(plain_row(columns, value))
    for name in ("before", "after"):
        if value[name] is not None:
            value[name] = plain_row(columns, value[name])
    return orjson.dumps(value)
