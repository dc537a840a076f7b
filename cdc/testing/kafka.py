"""Twins of a broker and its sink, with transactions, fencing and unknown outcomes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final, cast, get_args

from cdc.encode.table_log import log_of
from cdc.formats.reading import PLAIN, Reading, records_of
from cdc.model.change import Table
from cdc.model.errors import BugError, OperatorError, TooLargeError, TopicError, raise_of_topics
from cdc.model.interfaces import Headers, Log
from cdc.model.ledger import TopicFacts, loss
from cdc.model.state import State
from cdc.model.state_records import StateReader, StateWriter, table_key
from cdc.rules.routes import NO_ROUTES, Routes, owner
from cdc.testing.faults import At, nothing

_OWN: Final = ("dead-letter", "audit", "key")
"""Logs that each connector has for itself."""


class Outcome(Enum):
    """The outcome of a Kafka transaction."""

    OPEN = "open"
    COMMITTED = "committed"
    ABORTED = "aborted"


@dataclass(frozen=True, slots=True)
class Record:
    """A record in a topic, whatever the outcome of its transaction."""

    topic: str
    key: bytes
    value: bytes | None = field(repr=False)
    transaction: int
    headers: tuple[tuple[str, bytes], ...] = ()


class MemoryKafka:
    """A broker: topics of one partition, transactions, and one epoch for each producer."""

    def __init__(self, *, largest_bytes: int = 32 * 1024 * 1024) -> None:
        self.topics: dict[str, list[Record]] = {}
        self.outcomes: list[Outcome] = []
        self.largest_bytes = largest_bytes
        self.epochs: dict[str, int] = {}
        self.open: dict[str, int] = {}
        self.delayed: set[int] = set()
        self.identities: dict[str, str] = {}
        self.forgotten: dict[str, int] = {}
        self.refused: set[str] = set()
        """Topics that somebody has given settings with which no connector writes to them."""
        self._made = 0

    def create(self, topic: str) -> bool:
        """Make a topic; False if it exists."""
        if topic in self.topics:
            return False
        self._made += 1
        self.topics[topic], self.identities[topic] = [], str(self._made)
        self.forgotten.pop(topic, None)
        return True

    def delete_records(self, topic: str) -> None:
        """Delete all records of a topic, as kafka-delete-records.sh does."""
        self.forgotten[topic] = self.forgotten.get(topic, 0) + len(self.topics[topic])
        self.topics[topic].clear()

    def delete(self, topic: str) -> None:
        """Delete a topic: one of its name that is made later is another."""
        self.topics.pop(topic, None)

    def facts(self, topic: str) -> TopicFacts:
        """Return a topic as it is."""
        forgotten = self.forgotten.get(topic, 0)
        return TopicFacts(identity=self.identities.get(topic, ""), partitions=1, forgotten=forgotten)

    def begin(self, producer: str) -> int:
        """Begin a new transaction of `producer`."""
        self.outcomes.append(Outcome.OPEN)
        self.open[producer] = len(self.outcomes) - 1
        return self.open[producer]

    def end(self, producer: str, outcome: Outcome) -> None:
        """Decide the open transaction of `producer`, if there is one."""
        transaction = self.open.pop(producer, None)
        if transaction is not None:
            self.outcomes[transaction] = outcome

    def fence(self, producer: str) -> int:
        """Fence off older copies; their open transaction is decided on return."""
        under_way = self.open.get(producer) in self.delayed
        self.end(producer, Outcome.COMMITTED if under_way else Outcome.ABORTED)
        self.epochs[producer] = self.epochs.get(producer, 0) + 1
        return self.epochs[producer]

    def committed(self, topic: str) -> list[Record]:
        """Return what a read_committed reader sees."""
        return [r for r in self.topics.get(topic, []) if self.outcomes[r.transaction] is Outcome.COMMITTED]

    def states(self, prefix: str, connector: str) -> StateReader:
        """Read a connector's position topic."""
        states = StateReader(connector)
        for record in self.committed(f"{prefix}.position-{connector}"):
            states.hear(record.key, record.value)
        return states

    def state(self, prefix: str, connector: str) -> State | None:
        """Return a connector's committed state, if it has one."""
        return self.states(prefix, connector).state(where=f"topic {prefix}.position-{connector}")


class MemorySink:
    """A `Sink` into a `MemoryKafka`; each pipeline on the same broker has its own."""

    def __init__(
        self,
        kafka: MemoryKafka,
        connector: str,
        prefix: str,
        *,
        at: At = nothing,
        logged: Collection[str] = (),
        reading: Reading = PLAIN,
        routes: Routes = NO_ROUTES,
    ) -> None:
        """`logged` are the tables that have a log, as ``schema.table``; `reading` reads records back.

        `routes` names the topics of tables that do not have their own.
        """
        self._routes = routes
        self._reading = reading
        self._kafka = kafka
        topics = (f"{prefix}.{table}" for table in logged)
        self._table_logs = {topic: log_of(topic) for topic in topics}
        self._connector = connector
        self._prefix = prefix
        self._at = at
        self._epoch: int | None = None
        self._transaction: int | None = None
        self._records = self._bytes = 0
        self.epochs = 0
        self._found: Mapping[str, TopicFacts] = {}
        self._refused: set[str] = set()
        self._states = StateWriter(StateReader(connector))
        self.position_topic = f"{prefix}.position-{connector}"
        self.schema_topic = f"{prefix}.schema"
        self.signal_topic = f"{prefix}.signal-{connector}"

    def topic(self, table: Table) -> str:
        route = self._routes.of(table.qualified)
        return f"{self._prefix}.{table.qualified if route is None else route.to}"

    def log_topic(self, name: Log) -> str:
        return f"{self._prefix}.{name}-{self._connector}" if name in _OWN else f"{self._prefix}.{name}"

    def check(self, tables: Sequence[Table]) -> bool:
        self._at("sink.check")
        self._refuse((*map(self.topic, tables), self.schema_topic))
        return self.position_topic in self._kafka.topics

    def create(self, tables: Sequence[Table]) -> None:
        self._at("sink.create")
        logs = [self.log_topic(name) for name in get_args(Log)]
        ours = (self.position_topic, self.schema_topic, self.signal_topic, *logs, *self._table_logs.values())
        topics = (*ours, *map(self.topic, tables))
        made = {topic for topic in topics if self._kafka.create(topic)}
        self._found = {topic: replace(self._kafka.facts(topic), made=topic in made) for topic in topics}

    def _refuse(self, topics: Iterable[str]) -> None:
        asked = {*topics}
        there = asked & self._kafka.refused & self._kafka.topics.keys()
        self._refused = (self._refused - asked) | there
        raise_of_topics(
            TopicError(f"topic {of} has other settings", hint="set them back", topic=of)
            if of.count(".") > 1
            else OperatorError(f"topic {of} has other settings", hint="set them back")
            for of in sorted(there)
        )

    def neighbours(self) -> list[tuple[str, State]]:
        found = []
        for topic in list(self._kafka.topics):
            prefix, dot, name = topic.partition(".position-")
            if dot and (prefix == self._prefix) != (name == self._connector):
                state = self._kafka.state(prefix, name)
                if state is not None:
                    found.append((prefix, state))
        return found

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        topics = list(dict.fromkeys(map(self.topic, tables)))
        logs = [self._table_logs[topic] for topic in topics if topic in self._table_logs]
        return [topic for topic in (*topics, *logs) if self._kafka.committed(topic)]

    def fence(self) -> State | None:
        self.close()
        self._reading.forget()
        self._at("sink.fence")
        self._epoch = self._kafka.fence(self._producer)
        self.epochs += 1
        self._at("sink.fenced")
        self._states = StateWriter(self._kafka.states(self._prefix, self._connector))
        return self.peek()

    def peek(self) -> State | None:
        return self._kafka.state(self._prefix, self._connector)

    def recorded(self) -> Mapping[str, TopicFacts]:
        return {name.decode(): TopicFacts.from_bytes(value) for name, value in self._beside("topic").items()}

    def found(self) -> Mapping[str, TopicFacts]:
        return self._found

    def rely(self, topic: str, facts: TopicFacts) -> None:
        self._append(self.position_topic, f"{self._connector}/topic/{topic}".encode(), facts.to_bytes())

    def moved(self, *, whole: bool = False) -> bool:  # noqa: ARG002 - it is cheap here
        self._refuse(self._found)
        if right := self._refused - self._kafka.refused:
            self._refused -= right
            return True
        recorded = self.recorded()
        there = {topic: self._kafka.facts(topic) for topic in self._found if topic in self._kafka.topics}
        return any(topic not in there or loss(recorded.get(topic), there[topic], keeps=True) for topic in self._found)

    def kept_schemas(self) -> Mapping[bytes, bytes]:
        return self._beside("schema")

    def keep_schema(self, key: bytes, value: bytes) -> None:
        self._append(self.position_topic, f"{self._connector}/schema/".encode() + key, value)

    def _beside(self, kind: str) -> dict[bytes, bytes]:
        """Return the newest records of a kind beside the position, those of the open transaction too."""
        begin, records = f"{self._connector}/{kind}/".encode(), self._kafka.topics.get(self.position_topic, [])
        lives = [r for r in records if self._kafka.outcomes[r.transaction] is not Outcome.ABORTED]
        return {r.key.removeprefix(begin): r.value or b"" for r in lives if r.key.startswith(begin)}

    @property
    def _producer(self) -> str:
        return f"{self._prefix}.{self._connector}"

    def routed_topic(self, prefix: str, name: str) -> str:
        topic = f"{prefix}.{name}"
        self._kafka.create(topic)
        return topic

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        self._at("sink.write")
        self._append(topic, key, value, headers)
        log_topic = self._table_logs.get(topic)
        if log_topic is not None and value is not None:
            self._append(log_topic, key, value, headers)

    def schema(self, key: bytes, value: bytes) -> None:
        self._at("sink.schema")
        self._append(self.schema_topic, key, value)
        self.keep_schema(key, value)

    def keys(self) -> Iterator[tuple[bytes, bytes | None]]:
        return iter([(r.key, r.value) for r in self._kafka.committed(self.log_topic("key"))])

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:
        self._at("sink.write")
        self._append(self.log_topic(name), key, value)

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        committed = self._kafka.committed(self.log_topic("dead-letter"))
        return iter([(r.key, r.value) for r in committed if r.value is not None])

    def _append(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        if self._epoch is None:
            raise BugError("the sink is not fenced: nothing may be written")
        size = len(key) + len(value or b"")
        if size > self._kafka.largest_bytes:
            raise TooLargeError(
                f"a record of {size} bytes is too large for topic {topic}",
                hint="raise the limit",
                topic=topic,
                key=key,
                value=self._reading.event(value, headers) or b"",
            )
        self._records += 1
        self._bytes += size
        if self._fenced():
            return  # a broker takes nothing from it; `commit` says so
        if self._transaction is None:
            self._transaction = self._kafka.begin(self._producer)
        self._kafka.topics[topic].append(Record(topic, key, value, self._transaction, tuple(headers)))

    def _fenced(self) -> bool:
        return self._kafka.epochs.get(self._producer) != self._epoch

    def commit(self, state: State) -> None:
        tables, position = self._states.records(state)
        for name, value in tables:
            self._append(self.position_topic, table_key(self._connector, name), value)
        self._append(self.position_topic, self._connector.encode(), position)
        if self._fenced():
            raise OperatorError(f"another copy of connector {self._connector} has fenced this one off")
        transaction = cast("int", self._transaction)
        self._epoch, epoch = None, self._epoch  # nothing goes on after an error
        self._at("sink.commit")
        try:
            self._at("sink.commit.delayed")
        except BaseException:
            self._kafka.delayed.add(transaction)
            raise
        self._kafka.end(self._producer, Outcome.COMMITTED)
        self._at("sink.commit.answer")
        self._epoch, self._transaction = epoch, None
        self._records = self._bytes = 0

    def pending(self) -> tuple[int, int]:
        return self._records, self._bytes

    def schemas(self) -> Iterator[bytes]:
        return iter([r.value for r in self._kafka.committed(self.schema_topic) if r.value is not None])

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        self._at("sink.records")
        topic = self.topic(table)
        seen = {Outcome.COMMITTED} if committed else {Outcome.COMMITTED, Outcome.OPEN}
        found = [r for r in self._kafka.topics[topic] if self._kafka.outcomes[r.transaction] in seen]
        with records_of(topic):
            return iter([(r.key, self._reading.event(r.value, r.headers)) for r in found if self._owns(table, r.key)])

    def _owns(self, table: Table, key: bytes) -> bool:
        return not self._routes.names_source(table.qualified) or owner(table.qualified)(key)

    def extent(self, table: Table) -> int:
        return len(self._kafka.topics[self.topic(table)])

    def partition(self, table: Table, key: bytes) -> tuple[str, int]:  # noqa: ARG002 - there is one
        return self._kafka.identities.get(self.topic(table), ""), 0

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:  # noqa: ARG002 - there is one
        self._at("sink.records")
        found = self._kafka.topics[self.topic(table)]
        with records_of(self.topic(table)):
            return iter(
                [
                    (at, r.key, self._reading.event(r.value, r.headers))
                    for at, r in enumerate(found)
                    if at >= offset and self._owns(table, r.key)
                ]
            )

    def commands(self) -> list[tuple[bytes, bytes]]:
        waiting: dict[bytes, bytes] = {}
        for record in self._kafka.topics[self.signal_topic]:
            if record.value is None and self._kafka.outcomes[record.transaction] is not Outcome.ABORTED:
                waiting.pop(record.key, None)
            elif record.value is not None and self._kafka.outcomes[record.transaction] is Outcome.COMMITTED:
                waiting[record.key] = record.value
        return list(waiting.items())

    def ask(self, key: bytes, value: bytes) -> None:
        self._append(self.signal_topic, key, value)

    def answered(self, key: bytes) -> None:
        self._append(self.signal_topic, key, None)

    def close(self) -> None:
        """Close as a process does that dies: what is open stays open until the next `fence`."""
        self._epoch = self._transaction = None
        self._records = self._bytes = 0
