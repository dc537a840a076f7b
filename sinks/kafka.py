"""The Kafka sink writes whole source transactions in Kafka transactions, the position last; one writer by fencing.

`sinks.producer.producer` says why that is exactly once. A commit's outcome can stay unknown. Then a new epoch is begun,
which the coordinator allows once it has ended the transaction, and the position topic says whether it was committed. A
new epoch is also begun after a commit during which a request may have been sent twice: docs/adr/0010.
"""

from __future__ import annotations

import logging
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from typing import Final, TypeVar, cast

from cdc.config.kafka_config import KafkaConfig
from cdc.machine.elapsed import Elapsed
from cdc.model.change import Table
from cdc.model.errors import BugError, RetryableError
from cdc.model.interfaces import Headers, Log
from cdc.model.ledger import TopicFacts
from cdc.model.state import State
from cdc.model.state_records import StateWriter, table_key
from sinks.client.connection import LostError
from sinks.client.schema_registry import open_reading
from sinks.producer.batches import Batch, Batches, fillers, partition_of
from sinks.producer.opening import codec, open_producer
from sinks.producer.retries import RefusedError
from sinks.producer.transactional import TransactionalProducer
from sinks.refusals import LARGEST_REQUEST, Refusals
from sinks.topics.ends import Ends, Reached, missing, of_these, settled
from sinks.topics.names import log_topic, position_topic, routed_topic, schema_topic, signal_topic
from sinks.topics.records.descriptions import descriptions
from sinks.topics.records.keys import read_keys
from sinks.topics.records.positions import Standing, ends_key, read_neighbours, read_standing, schema_key, topic_key
from sinks.topics.records.read_back import TableRecords, read_to_end
from sinks.topics.records.signals import Commands
from sinks.topics.records.table_logs import TableLogs
from sinks.topics.settings_watch import SettingsWatch, look
from sinks.topics.topic_watch import TopicWatch
from sinks.topics.topics import LARGEST_RECORD, Topics, Wanted
from sinks.topics.wanted import Refused, spread, wanted

_REQUEST_RECORDS: Final = 2_000
_REQUEST_BYTES: Final = 1_500_000
"""A request is sent as soon as so much waits, where none is in flight."""
_PARTITION_RECORDS: Final = 40
"""More is sent at once where there are many partitions: each batch has its cost."""
_WAITING_BYTES: Final = 28 * 1024 * 1024
"""How much waits at most while a request is in flight."""
_BATCH_BYTES: Final = 1_000_000
_AROUND_BYTES: Final = 1024
"""How much a batch has around its records, generously; what cannot be compressed grows by less than a 256th."""
_FENCE_S: Final = 60.0
log = logging.getLogger("cdc.kafka")

_T = TypeVar("_T")


class KafkaSink:
    """Owns one connector's producer and topics."""

    def __init__(self, config: KafkaConfig, connector: str, logs: Collection[Log] = ()) -> None:
        self._config = config
        self._reading = open_reading(config, by_table=True)
        self._tables = TableRecords(config, self._reading)
        self.epochs = 0
        self._logs = sorted({*logs, "audit"})
        self._table_logs = TableLogs(config)
        self._refusals = Refusals(config, connector, self._reading, self._table_logs)
        self._has_letters = False
        self._largest_wanted = largest_record(config)
        self._smallest_limit = self._largest_wanted
        self._standing = Standing(None, 0, None)
        """What the position topic said at the last fence."""
        self._states = StateWriter(self._standing.states)
        self._recorded: dict[str, TopicFacts] = {}
        self._found: Mapping[str, TopicFacts] = {}
        self._unmade = False
        """Whether there is no schema topic yet."""
        self._routed: set[str] = set()
        """Topics of messages that were found, or made, in this session: a deleted one may have ended the last."""
        self._ends = Ends({}, {})
        self._interrupted = self._unrecorded = False
        """Whether partitions reach further than is recorded."""
        self._watch, self._refused = TopicWatch(), Refused()
        self._settings: SettingsWatch | None = None
        self._made: Sequence[str] = ()
        """Topics that the producer has not looked for yet."""
        self._signal_topic = signal_topic(config.prefix, connector)
        self._commands: Commands | None = None
        self.connector, self._servers = connector, config.bootstrap_servers
        self.position_topic = position_topic(config.prefix, connector)
        self.schema_topic = schema_topic(config.prefix)
        codec(config)  # refuses one that is not known
        self._largest = int(config.options.get("message.max.bytes", LARGEST_REQUEST))
        self._producer: TransactionalProducer | None = None
        self._open_for: Elapsed | None = None
        """How long the transaction has been open."""
        self._begin_batches()

    def _begin_batches(self) -> None:
        """Start batches that fit every topic's limit: it is for a batch, but what is refused must be one record."""
        self._batches = Batches(
            self._begin,
            self._send_if_due,
            self._partitions,
            most_records=_REQUEST_RECORDS,
            most_bytes=_REQUEST_BYTES,
            batch_bytes=self._batch_bytes(),
        )
        self.write = self._batches.add  # type: ignore[method-assign]  # without a call more for every record

    def _batch_bytes(self) -> int:
        return max(1, min(_BATCH_BYTES, self._smallest_limit - self._smallest_limit // 256 - _AROUND_BYTES))

    def topic(self, table: Table) -> str:
        return self._tables.topic(table)

    def check(self, tables: Sequence[Table]) -> bool:
        with self._topics() as topics, self._refused.noting():
            missing = {topic.name for topic in topics.check(self._refused.ask(self.wanted(tables)))}
            self._smallest_limit = min(topics.smallest_limit, self._largest_wanted)
            self._has_letters = topics.exists(self.log_topic("dead-letter"))
        self._unmade = self.schema_topic in missing
        return self.position_topic not in missing

    def create(self, tables: Sequence[Table]) -> None:
        with self._topics() as topics:
            wanted = self.wanted(tables)
            missing = topics.check(wanted)
            topics.create(missing, replication_factor=self._config.replication_factor)
            self._unmade = False
            found = topics.facts([topic.name for topic in wanted])
        made = {topic.name for topic in missing}
        self._found = {name: replace(facts, made=name in made) for name, facts in found.items()}
        seen = self._found, self._reached, self._refused.topics
        self._settings = SettingsWatch(partial(look, self._topics, wanted, *seen))
        self._made, self._refusals.of_tables = [topic.name for topic in wanted], {topic.of for topic in wanted} - {""}
        self._has_letters |= "dead-letter" in self._logs

    def _topics(self) -> Topics:
        return Topics(self._servers, self._config.options, spread=self.spread)

    def spread(self, topic: str, identity: str) -> int | None:
        """Return over how many partitions a topic's records were spread; 0: none were written; None: it is unknown."""
        return spread(self._config, self.connector, topic, identity, self._table_logs)

    def neighbours(self) -> list[tuple[str, State]]:
        return read_neighbours(self._config, self.connector)

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        names = [*(topics := self._tables.all(tables)), *self._table_logs.all(topics)]
        with self._topics() as there:  # all at once: to begin to read each takes longer
            ends = {name: facts.ends for name, facts in there.facts(names).items()}
        return [name for name in names if (any(of := ends.get(name, ())) or not of) and self._has_records(name)]

    def _has_records(self, topic: str) -> bool:
        with closing(read_to_end(self._servers, self._config.options, topic, "read_committed")) as messages:
            return next(messages, None) is not None

    def log_topic(self, name: Log) -> str:
        return log_topic(self._config.prefix, self.connector, name)

    def wanted(self, tables: Sequence[Table]) -> list[Wanted]:
        """Return the topics this connector needs, as they must be."""
        topics = self._tables.all(tables)
        return wanted(self._config, self.connector, topics, self._table_logs, self._logs)

    def fence(self) -> State | None:
        self.close()
        self._reading.forget()
        self._begin_batches()
        self._begin_epoch()
        self._standing = read_standing(self._config, self.connector, fenced=True)
        self._states = StateWriter(self._standing.states)
        self._recorded = dict(self._standing.topics)
        self._compare_ends()
        return self._standing.state

    def _reached(self) -> Reached:
        return self._ends.committed()

    def _compare_ends(self) -> None:
        """Find the topics that end before what was written into them, and fill them up."""
        reached = of_these(self._found, self._recorded, self._standing.reached)
        self._found = settled(self._found, reached, self._with_ends)
        cut = {name: missing(facts, reached[name]) for name, facts in self._found.items() if facts.cut}
        self._ends, self._unrecorded = Ends(self._found, reached), bool(cut)
        if cut:
            self._fill(cut)

    def _with_ends(self, found: Mapping[str, TopicFacts], names: Sequence[str]) -> dict[str, TopicFacts]:
        """Return what was found of all topics, and where those end now."""
        with self._topics() as topics:
            now = topics.facts(names)
        return {**found, **{name: replace(found[name], ends=of.ends) for name, of in now.items()}}

    def _fill(self, counts: Mapping[str, Mapping[int, int]]) -> None:
        """Fill up topics that were cut, for readers who have read further, by a transaction that is aborted.

        Full, they would look whole to another start. So it is recorded first that they reach further than they will,
        until the commit that has their rows written again records where they end.
        """
        producer = self._open_producer()
        self.write(self.position_topic, ends_key(self.connector), self._ends.claim(counts))
        self._send()
        self._doing("recording what is missing from topics", producer.commit)
        self._batches.clear()
        for batch in fillers(counts):
            self._doing("filling up topics", partial(producer.send, [batch]))
        self._doing("filling up topics", producer.flush)
        self._close_producer()
        self._renew(self._standing.state)
        self._found = self._with_ends(self._found, [*counts])
        self._ends = Ends(self._found, {})

    def recorded(self) -> Mapping[str, TopicFacts]:
        return self._recorded

    def found(self) -> Mapping[str, TopicFacts]:
        return self._found

    def rely(self, topic: str, facts: TopicFacts) -> None:
        self._recorded[topic] = facts
        self.write(self.position_topic, topic_key(self.connector, topic), facts.to_bytes())

    def kept_schemas(self) -> Mapping[bytes, bytes]:
        return self._standing.schemas

    def keep_schema(self, key: bytes, value: bytes) -> None:
        self._standing.schemas[key] = value
        self.write(self.position_topic, schema_key(self.connector, key), zlib.compress(value))

    def moved(self, *, whole: bool = False) -> bool:
        if self._producer is None:
            return False
        was, self._interrupted = self._interrupted, self._producer.interrupted
        if self._interrupted and not was:
            self._look_soon()
        has_moved = self._settings is not None and not whole and self._refused.moved(self._settings.moved)
        return has_moved or self._watch.moved(self._found, self._there, whole=whole)

    def _there(self, names: Sequence[str]) -> Mapping[str, tuple[str, int]]:
        try:
            return self._open_producer().there(names)
        except LostError:
            self._look_soon()
            raise

    def _look_soon(self) -> None:
        """Look what a broker still has, once it is back."""
        if self._settings is not None:
            self._settings.soon()

    def _begin_epoch(self) -> None:
        """Fence older epochs: the broker has ended what they had open, and takes nothing from them any more."""
        if self._producer is None:
            self._producer = open_producer(
                self._config,
                f"{self._config.prefix}.{self.connector}",
                batch_bytes=self._batch_bytes(),
                largest_bytes=self._largest,
            )
        producer = self._producer
        self._doing("fencing other copies of this connector", lambda: producer.begin_epoch(_FENCE_S))
        self.epochs += 1

    def peek(self) -> State | None:
        try:
            return read_standing(self._config, self.connector).state
        except RetryableError:
            with self._topics() as topics:
                if topics.exists(self.position_topic):
                    raise
            return None

    def routed_topic(self, prefix: str, name: str) -> str:
        topic = routed_topic(prefix, name)
        if topic not in self._routed:
            with Topics(self._servers, self._config.options) as topics:
                of_any_size = Wanted.log(topic, None, {}).adjusted(self._config.topic_config)
                wanted = [replace(each, partitions=self._config.partitions) for each in topics.check([of_any_size])]
                topics.create(wanted, replication_factor=self._config.replication_factor)
            self._routed.add(topic)
        return topic

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:
        self._batches.add(topic, key, value, headers)

    def schema(self, key: bytes, value: bytes) -> None:
        self.write(self.schema_topic, key, value)
        self.keep_schema(key, value)

    def keys(self) -> Iterator[tuple[bytes, bytes | None]]:
        return read_keys(self._config, self.connector) if "key" in self._logs else iter(())

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:
        if name not in self._logs:
            raise BugError(f"the sink was opened without its log of {name}")
        self.write(self.log_topic(name), key, value)

    def dead_letters(self) -> Iterator[tuple[bytes, bytes]]:
        if not self._has_letters:
            return
        topic = self.log_topic("dead-letter")
        # what stands behind the committed ones is our own open transaction
        for message in read_to_end(self._servers, self._config.options, topic, "read_committed", open_too=False):
            yield cast("bytes", message.key()), cast("bytes", message.value())

    def pending(self) -> tuple[int, int]:
        return self._batches.records, self._batches.bytes

    def commit(self, state: State) -> None:
        producer = self._open_producer()
        taken = self._take()
        tables, position = self._states.records(state)
        for name, value in tables:
            self.write(self.position_topic, table_key(self.connector, name), value)
        if self._unrecorded:
            self.write(self.position_topic, ends_key(self.connector), self._ends.to_bytes())
        self.write(self.position_topic, self.connector.encode(), position)
        self._send(taken)
        self._doing("writing records", producer.flush)
        self._doing("committing", producer.commit)
        self._open_for = None
        self._batches.clear()
        self._ends.marked()
        self._unrecorded = False
        if producer.interrupted:
            log.debug("a connection was interrupted: going on in a new epoch")
            self._renew(state)

    def _renew(self, committed: State | None) -> None:
        """Go on in a new epoch, in which nothing is accepted that is left in flight."""
        self._begin_epoch()
        standing = read_standing(self._config, self.connector, fenced=True).state
        if standing is None or committed is None or standing.sequence != committed.sequence:
            raise self._refusals.superseded()

    def commands(self) -> list[tuple[bytes, bytes]]:
        if self._commands is None:
            self._commands = Commands(self._servers, self._config.options, self._signal_topic)
        return self._commands.waiting()

    def ask(self, key: bytes, value: bytes) -> None:
        self.write(self._signal_topic, key, value)

    def answered(self, key: bytes) -> None:
        self.write(self._signal_topic, key, None)
        if self._commands is not None:
            self._commands.answered(key)

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        if not committed:
            self._send()
            self._doing("writing records", self._open_producer().flush)
        return self._tables.records(table, open_too=not committed)

    def extent(self, table: Table) -> int:
        return self._tables.extent(table)

    def partition(self, table: Table, key: bytes) -> tuple[str, int]:
        facts = self._found.get(topic := self.topic(table))  # the log may still tell of a table that is gone
        partitions = facts.partitions if facts is not None else self._partitions(topic)[0]
        return facts.identity if facts is not None else "", partition_of(key, partitions)

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        return self._tables.records_from(table, partition, offset)

    def schemas(self) -> Iterator[bytes]:
        if self._unmade:
            return iter(())
        return descriptions(self._servers, self._config.options, self.schema_topic, self.connector)

    def close(self) -> None:
        heard, self._commands, self._routed = self._commands, None, set()
        if heard is not None:
            heard.close()
        self._close_producer()

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        self._open_for = None
        self._batches.clear()
        if producer is not None:
            producer.close()

    def _begin(self) -> None:
        self._open_producer()
        self._open_for = Elapsed()

    def _partitions(self, topic: str) -> tuple[int, str | None]:
        producer = self._open_producer()
        beside, self._made = self._made, ()
        partitions = self._doing(f"looking for topic {topic}", lambda: producer.partitions(topic, beside))
        return partitions, self._table_logs.of(topic)

    def _send_if_due(self) -> None:
        """Send what waits, unless waiting gives a larger request: while another request is in flight, for example."""
        batches = self._batches
        if batches.waiting_bytes < _WAITING_BYTES:
            if batches.waiting_records < _PARTITION_RECORDS * batches.partitions():
                return
            if not self._doing("writing records", self._open_producer().ready):
                return
        self._send()

    def _take(self) -> list[Batch]:
        """Take what waits, and count it."""
        taken = self._batches.take()
        for batch in taken:
            if len(batch.records) > self._largest and batch.count == 1:
                raise self._refusals.too_large(batch)
        self._unrecorded |= self._ends.add((batch.topic, batch.partition, batch.count) for batch in taken)
        return taken

    def _send(self, taken: Sequence[Batch] = ()) -> None:
        """Give what was taken, and what waits, to the producer."""
        taken = [*taken, *self._take()]
        producer = self._open_producer()
        self._doing("writing records", lambda: producer.send(taken))

    def _open_producer(self) -> TransactionalProducer:
        if self._producer is None:
            raise BugError("the sink is not fenced: nothing may be written")
        return self._producer

    def _doing(self, what: str, step: Callable[[], _T]) -> _T:
        """Do a step of the producer's; its errors become ours."""
        try:
            return step()
        except LostError as exc:
            raise RetryableError(f"Kafka at {self._servers}: {what}: {exc}") from exc
        except RefusedError as exc:
            open_s = self._open_for.longest_s() if self._open_for is not None else 0.0
            fences_itself = self._producer is not None and self._producer.fences_itself
            raise self._refusals.of(exc, what, open_s=open_s, fences_itself=fences_itself) from exc


def largest_record(config: KafkaConfig) -> int:
    """Return the limit that topics are made with."""
    return int(config.topic_config.get("max.message.bytes") or LARGEST_RECORD)


def open_sink(config: KafkaConfig, connector: str, *, logs: Collection[Log] = ()) -> KafkaSink:
    """Make the sink, for the registry. Connects to nothing yet."""
    return KafkaSink(config, connector, logs)
