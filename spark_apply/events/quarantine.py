"""Keeps the quarantine: it names the events that could not be applied, and why. The events stay in their topics.

The topic is ``<prefix>.quarantine-<job>``, compacted, with one partition, written by the job and by ``cdc quarantine
retry``. A record is keyed by store, topic, partition and offset of the event, so it is there once, however often the
event comes again. Its tombstone says that the event was applied, or a newer one of its key. Of a row's values it holds
only the key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final

import orjson
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.config.config import ApplyConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.written_key import is_same, is_value, read_written
from spark_apply.events.kafka.client import client_settings
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.topics import existing_topics, quarantine_topic
from spark_apply.model.target_table import settings_of

_WITHIN_S: Final = 30.0
_MOST_BYTES: Final = 900_000
"""So long a note may be: clients and brokers take records of 1,000,000 bytes, with the record's own key."""
OF_COPIES: Final = b"{"
"""Keys that begin with it are of copies that are set aside (`spark_apply.events.set_aside`), and not of events."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An event that a store could not apply."""

    store: str
    table: str
    topic: str
    partition: int
    offset: int
    key: str | None
    """The record's key, JSON as events have it; None if the record has no key."""
    position: str | None
    """None for a record that is no event."""
    reason: str
    at_ms: int

    @property
    def id(self) -> bytes:
        return orjson.dumps([self.store, self.topic, self.partition, self.offset])

    def as_json(self) -> dict[str, Any]:
        """Return the stable JSON of a record's value, and of ``cdc quarantine list --json``."""
        return asdict(self)

    def has_key(self, text: str) -> bool:
        """Whether `text` names its key: JSON of all columns, or the value of the only one."""
        known, given = _json(self.key or ""), read_written(text)
        if not isinstance(known, dict) or isinstance(given, dict):
            return isinstance(known, dict) and is_same(known, given)
        return len(known) == 1 and any(is_value(value, given) or value == text for value in known.values())

    @classmethod
    def from_json(cls, text: bytes) -> Entry:
        """Read a record; members that a later release has added are ignored."""
        found = orjson.loads(text)
        return cls(**{name: found[name] for name in cls.__slots__})


def read_notes(config: ApplyConfig) -> dict[bytes, bytes]:
    """Read what a job's topic has now, of events and of copies, by key, oldest first."""
    topic = quarantine_topic(config.source.topic_prefix, config.name)
    found: dict[bytes, bytes] = {}
    if topic not in existing_topics(config.source, [topic]):
        return found
    for message in committed_records(config.source, topic, 1):
        key, value = message.key(), message.value()
        if isinstance(key, bytes):
            found.pop(key, None)
            if isinstance(value, bytes):
                found[key] = value
    return found


def read_entries(config: ApplyConfig) -> dict[bytes, Entry]:
    """Read what is in quarantine now, by id, oldest first."""
    notes = read_notes(config).items()
    return {key: Entry.from_json(value) for key, value in notes if not key.startswith(OF_COPIES)}


def chosen_entries(
    config: ApplyConfig, *, store: str | None = None, table: str | None = None, key: str | None = None
) -> list[Entry]:
    """Read the entries of this store, table and key, oldest first; `key` as ``cdc explain`` takes it.

    Raises ConfigError for a store or a table that neither the file nor an entry names: nothing would be found of it.
    """
    entries = read_entries(config).values()
    if store is not None and store not in {*config.stores, *(entry.store for entry in entries)}:
        raise ConfigError(f"--store {store}: there is no such store", hint=f"it has {', '.join(config.stores)}")
    if (
        table is not None
        and settings_of(config.tables, table) is None
        and all(entry.table != table for entry in entries)
    ):
        msg = f"--table {table}: the job follows no such table"
        raise ConfigError(msg, hint=f"it follows {', '.join(config.tables)}")
    return [
        entry
        for entry in entries
        if store in (None, entry.store) and table in (None, entry.table) and (key is None or entry.has_key(key))
    ]


@dataclass(slots=True)
class Quarantine:
    """A job's view of its quarantine. `put` and `resolve` are durable when they return."""

    config: ApplyConfig
    deferred: bool = False
    """Whether `resolve` waits for `release`, because the copy that has the event is not live yet."""
    _entries: dict[bytes, Entry] = field(init=False)
    _resolved: list[Entry] = field(init=False, default_factory=list)
    _producer: Producer | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.refresh()

    @property
    def limit(self) -> int:
        """Return the number of entries that it may hold of a copy."""
        return self.config.quarantine.limit

    def refresh(self) -> None:
        """Read what other processes have put and resolved."""
        self._entries = read_entries(self.config)

    def take_from(self, job: str) -> tuple[int, int]:
        """Take what is noted under the name that this job had; return of how many events, and of how many copies."""
        before = Quarantine(replace(self.config, name=job))
        notes = read_notes(before.config)
        self.write(notes)
        if before.config.is_replay == self.config.is_replay:  # one of an earlier release may have had a live job's name
            before.write(dict.fromkeys(notes))
        self.refresh()
        copies = sum(key.startswith(OF_COPIES) for key in notes)
        return len(notes) - copies, copies

    def of(self, store: str, topic: str) -> list[Entry]:
        """Return the entries of a store and a topic."""
        return [entry for entry in self._entries.values() if (entry.store, entry.topic) == (store, topic)]

    def know(self, entries: Iterable[Entry]) -> None:
        """Know entries by keys that their notes have no room for, until `refresh`."""
        self._entries |= {entry.id: entry for entry in entries if entry.id in self._entries}

    def by_store(self) -> Counter[str]:
        """Count the entries of each store."""
        return Counter(entry.store for entry in self._entries.values())

    def put(self, entries: Iterable[Entry], *, beyond: OperatorError) -> int:
        """Add entries of one copy; return how many are new. Raises `beyond` and adds none if they exceed the limit."""
        self.refresh()
        known = self._entries
        told = {e.id: e for e in map(_notable, entries) if e.id not in known or e.reason != known[e.id].reason}
        copies = {(e.store, e.topic) for e in told.values()}
        new, held = len(told.keys() - known.keys()), sum(len(self.of(*copy)) for copy in copies)
        if held + new > self.limit:
            hint = beyond.hint or ""
            if self.limit:
                hint += f"; with {held:,} in quarantine, more than quarantine.limit {self.limit:,} would be"
            raise OperatorError(beyond.message, hint=hint)
        self.write({key: orjson.dumps(entry.as_json()) for key, entry in told.items()})
        self._entries |= told
        return new

    def resolve(self, entries: Iterable[Entry]) -> None:
        """Remove entries whose event, or a newer one of its key, is in the store."""
        if self.deferred:
            self._resolved += entries
        else:
            self._remove(entries)

    def release(self, store: str) -> None:
        """Remove the deferred entries of a store."""
        self._remove(entry for entry in self._resolved if entry.store == store)

    def _remove(self, entries: Iterable[Entry]) -> None:
        gone = {entry.id for entry in entries}
        self.write(dict.fromkeys(gone))
        self._entries = {key: entry for key, entry in self._entries.items() if key not in gone}

    def write(self, records: Mapping[bytes, bytes | None]) -> None:
        """Write records durably. Raises OperatorError if the topic does not take them."""
        if not records:
            return
        config = self.config.source
        topic = quarantine_topic(config.topic_prefix, self.config.name)
        refused: list[object] = []
        try:
            if self._producer is None:
                _make(self.config, topic)
                options = {
                    "enable.idempotence": True,
                    "message.timeout.ms": int(_WITHIN_S * 1000),
                    "allow.auto.create.topics": "false",  # a broker's own would keep entries for a week
                }
                self._producer = Producer({**client_settings(config), **options})
            for key, value in records.items():
                self._producer.produce(
                    topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None
                )
                self._producer.poll(0)
            left = self._producer.flush(_WITHIN_S + 1)
        except (KafkaException, BufferError) as exc:
            raise _unwritten(topic) from exc
        if left or refused:
            raise _unwritten(topic)


def _notable(entry: Entry) -> Entry:
    """Return an entry that a record can hold: a key in it is written out, so it can be longer than in the event."""
    if len(orjson.dumps(entry.as_json())) <= _MOST_BYTES:
        return entry
    return replace(entry, key=None, reason=f"{entry.reason}; its key is too long to be noted here")


def _json(text: str) -> object:
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return None


def _make(config: ApplyConfig, topic: str) -> None:
    if topic in existing_topics(config.source, [topic]):
        return
    admin = AdminClient(client_settings(config.source))
    wanted = NewTopic(topic, 1, config={"cleanup.policy": "compact"})
    admin.create_topics([wanted], request_timeout=_WITHIN_S)[topic].result()


def _unwritten(topic: str) -> OperatorError:
    hint = "may this user create and write it? The stores hold whole batches; start again, it goes on where it was"
    return OperatorError(
        f"topic {topic} cannot be written: an event that was not applied must be noted there", hint=hint
    )
