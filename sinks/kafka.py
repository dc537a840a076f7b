"""The Kafka sink: whole source transactions in Kafka transactions, the position last, one writer by fencing.

A commit's outcome can stay unknown. Then the producer is closed and a new one fences it: `init_transactions` returns
once the broker has completed what was under way, and the position topic says which way it went. A producer is never
aborted and used again.

Nor is one used for another transaction after a request of it may have been sent twice, which the client does by itself
when a connection is lost or an answer is late. The first copy may still be under way; an EndTxn that arrives in the
next transaction ends that one, in its middle. It cannot if its epoch is older: docs/adr/0010.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from typing import Any, Final, cast

import orjson
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from cdc.change import Table
from cdc.config import KafkaConfig
from cdc.errors import BugError, CdcError, OperatorError, RetryableError, TooLargeError
from cdc.interfaces import UNSURE, Log
from cdc.state import State
from sinks.batches import Batches, Record
from sinks.commands import Commands
from sinks.logged import TableLogs
from sinks.names import log_topic, position_topic, schema_topic, signal_topic, table_topic
from sinks.positions import read_neighbours, read_standing
from sinks.reading import Isolation, read_to_end, read_what_is
from sinks.topics import LARGEST_RECORD, Topics, Wanted

TRANSACTION_TIMEOUT_MS: Final = 600_000
"""A source transaction is one Kafka transaction, however long it takes to write; brokers allow 900,000 by default."""

LARGEST_REQUEST: Final = 100_000_000
"""A record of more bytes is refused before it is sent: brokers end the connection at 104,857,600 (their default)."""

_BATCH: Final = 1_000
_BATCH_BYTES: Final = 1_000_000
_QUEUED_RECORDS: Final = 50_000
_QUEUED_BYTES: Final = 32 * 1024 * 1024
_COMMIT_S: Final = 120.0
_FENCE_S: Final = 60.0
_SLICE_S: Final = 1.0
_CAUSE_S: Final = 5.0
_REPORT_S: Final = 0.1
_COMPLAIN_S: Final = 30.0

log = logging.getLogger("cdc.kafka")

_FENCED: Final = {
    KafkaError._FENCED,  # noqa: SLF001 - the client's public name for it
    KafkaError.PRODUCER_FENCED,
    KafkaError.INVALID_PRODUCER_EPOCH,
}
_FORBIDDEN: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,  # noqa: SLF001
}


_INTERRUPTIONS: Final = {"FAIL", "REQTMOUT"}
"""What the client's log calls a connection lost with requests on it, and an answer that was waited for too long.

A connection's first loss is always told, repetitions within half a minute may not be: one is enough for a new producer.
"""

_THROWN_AWAY: Final = {KafkaError._PURGE_QUEUE, KafkaError._PURGE_INFLIGHT}  # noqa: SLF001
"""What the client says of records behind one that was refused, and it may say so first."""

_TOO_LARGE: Final = {KafkaError.MSG_SIZE_TOO_LARGE, KafkaError.RECORD_LIST_TOO_LARGE}


class KafkaSink:
    """One connector's producer and topics."""

    def __init__(self, config: KafkaConfig, connector: str, logs: Collection[Log] = ()) -> None:
        self._config = config
        self._logs = sorted(logs)
        self._table_logs = TableLogs(config)
        self._has_letters = False
        self._smallest_limit = LARGEST_RECORD
        self._signal_topic = signal_topic(config.prefix, connector)
        self._commands: Commands | None = None
        self.connector = connector
        self._servers = config.bootstrap_servers
        self.position_topic = position_topic(config.prefix, connector)
        self.schema_topic = schema_topic(config.prefix)
        self._producer: Producer | None = None
        self._batches = Batches(self._begin, self._send, most_records=_BATCH, most_bytes=_BATCH_BYTES)
        self.write = self._batches.add  # type: ignore[method-assign]  # without a call more for every record
        self._queued: deque[tuple[int, int]] = deque()
        self._queued_records = self._queued_bytes = 0
        """What was handed to the client and may not be sent yet, batch by batch, and all of it."""
        self._began_at_s: float | None = None
        self._complained_s = float("-inf")
        self._told = _Told()
        self._refused: KafkaError | None = None
        self._too_large: tuple[str, bytes, bytes] | None = None

    def topic(self, table: Table) -> str:
        return table_topic(self._config.prefix, table.schema, table.name)

    def check(self, tables: Sequence[Table]) -> bool:
        with Topics(self._servers, self._config.options) as topics:
            missing = topics.check(self.wanted(tables))
            self._smallest_limit = topics.smallest_limit
            self._has_letters = topics.exists(self.log_topic("dead-letter"))
        return self.position_topic not in {topic.name for topic in missing}

    def create(self, tables: Sequence[Table]) -> None:
        with Topics(self._servers, self._config.options) as topics:
            missing = topics.check(self.wanted(tables))
            topics.create(missing, replication_factor=self._config.replication_factor)
        self._has_letters |= "dead-letter" in self._logs

    def neighbours(self) -> list[tuple[str, State]]:
        return read_neighbours(self._config, self.connector)

    def occupied(self, tables: Sequence[Table]) -> list[str]:
        topics = [self.topic(table) for table in tables]
        return [topic for topic in (*topics, *self._table_logs.all(topics)) if self._has_records(topic)]

    def _has_records(self, topic: str) -> bool:
        with closing(read_to_end(self._servers, self._config.options, topic, "read_committed")) as messages:
            return next(messages, None) is not None

    def log_topic(self, name: Log) -> str:
        return log_topic(self._config.prefix, self.connector, name)

    def wanted(self, tables: Sequence[Table]) -> list[Wanted]:
        """The topics this connector needs, as they must be."""
        topics = [self.topic(table) for table in tables]
        return [
            Wanted.ledger(self.position_topic),
            Wanted.ledger(self.schema_topic),
            Wanted.ledger(self._signal_topic),
            *(Wanted.events(topic, self._config.partitions) for topic in topics),
            *self._table_logs.wanted(topics),
            *(
                Wanted.log(
                    self.log_topic(log),
                    self._config.partitions if log == "message" else None,
                    {"retention.ms": "-1"} if log == "dead-letter" else {},
                )
                for log in self._logs
            ),
        ]

    def fence(self) -> State | None:
        self.close()
        self._begin_epoch()
        return read_standing(self._config, self.connector, fenced=True).state

    def _begin_epoch(self) -> None:
        """Make a producer; the broker has ended what older ones had open, and takes nothing of them any more."""
        self._told = _Told()
        self._producer = Producer(
            {
                "linger.ms": 5,
                "compression.type": "lz4",
                "message.max.bytes": LARGEST_REQUEST,  # below it the topic's limit decides, and is reported
                **self._config.options,
                "bootstrap.servers": self._servers,
                "transactional.id": f"{self._config.prefix}.{self.connector}",
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "enable.idempotence": True,
                "acks": "all",
                "partitioner": "murmur2_random",
                # a topic's limit is for a batch, but what is refused must be one record
                "batch.size": max(1, min(_BATCH_BYTES, self._smallest_limit)),
                "queue.buffering.max.messages": 4 * _QUEUED_RECORDS,
                "queue.buffering.max.kbytes": 2_097_151,  # bounded by _room
                "delivery.report.only.error": True,
                "error_cb": self._heard,
                "log_level": 6,
                "log.connection.close": True,
            },
            logger=self._told,
        )
        # The client looks for its coordinator at once and, unless a broker has answered by then, half a second later.
        with suppress(KafkaException):
            self._producer.list_topics(self.position_topic, timeout=_SLICE_S)
        try:
            self._patiently(self._producer.init_transactions, _FENCE_S)
        except KafkaException as exc:
            raise self._failed(exc, "fencing other copies of this connector") from exc

    def peek(self) -> State | None:
        return read_standing(self._config, self.connector).state

    def write(self, topic: str, key: bytes, value: bytes | None) -> None:
        self._batches.add(topic, key, value)

    def schema(self, key: bytes, value: bytes) -> None:
        self.write(self.schema_topic, key, value)
        self._send()

    def log(self, name: Log, key: bytes, value: bytes) -> None:
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
        self.write(self.position_topic, self.connector.encode(), state.to_bytes())
        self._send()
        try:
            self._patiently(self._open_producer().commit_transaction, _COMMIT_S)
        except KafkaException as exc:
            raise self._failed(exc, "committing") from exc
        self._began_at_s = None
        self._batches.clear()
        self._reported(self._open_producer().poll, 0)  # brings what the client has told
        if self._told.of_interruption:
            self._renew(state)

    def _renew(self, committed: State) -> None:
        """Go on in a new epoch, where what an interruption has left under way is taken from no more."""
        log.debug("a connection was interrupted: going on in a new epoch")
        self._close_producer()
        self._begin_epoch()
        standing = read_standing(self._config, self.connector, fenced=True).state
        if standing is None or standing.sequence != committed.sequence:
            raise self._superseded()

    def commands(self) -> list[tuple[bytes, bytes]]:
        if self._commands is None:
            self._commands = Commands(self._servers, self._config.options, self._signal_topic)
        return self._commands.waiting()

    def answered(self, key: bytes) -> None:
        self.write(self._signal_topic, key, None)
        if self._commands is not None:
            self._commands.answered(key)

    def records(self, table: Table, *, committed: bool = False) -> Iterator[tuple[bytes, bytes | None]]:
        if not committed:
            self._send()
            self._flush()
        topic = self.topic(table)
        isolation: Isolation = "read_committed" if committed else "read_uncommitted"
        for message in read_to_end(self._servers, self._config.options, topic, isolation):
            yield cast("bytes", message.key()), message.value()

    def schemas(self) -> Iterator[bytes]:
        for message, committed in read_what_is(self._servers, self._config.options, self.schema_topic):
            value = message.value()
            if value is None:
                continue
            if committed:
                yield value
                continue
            record = orjson.loads(value)
            if record["connector"] == self.connector:
                yield orjson.dumps({**record, "columns": [{**c, "kind": UNSURE} for c in record["columns"]]})

    def close(self) -> None:
        heard, self._commands = self._commands, None
        if heard is not None:
            heard.close()
        self._close_producer()

    def _close_producer(self) -> None:
        producer, self._producer = self._producer, None
        self._began_at_s = None
        self._batches.clear()
        self._queued.clear()
        self._queued_records = self._queued_bytes = 0
        if producer is not None:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
            # It tries to abort what is open, even a commit under way; where it may not (fenced off), it says so.
            with warnings.catch_warnings(), suppress(KafkaException), _plainly(producer):
                warnings.simplefilter("ignore", RuntimeWarning)
                producer.close()
        self._refused = self._too_large = None  # also what it said of the records thrown away just now

    def _patiently(self, step: Callable[[float], object], within_s: float) -> None:
        """Do a step of the transaction protocol that may be called again after a timeout, where it then goes on.

        In slices, since a signal is only heard between calls of the client.
        """
        producer, deadline = self._open_producer(), time.monotonic() + within_s
        while True:
            try:
                with _plainly(producer):
                    step(_SLICE_S)
            except KafkaException as exc:
                # retriable: the time was up; its code may be what the broker said last (the killed copy's transaction
                # is being aborted, say)
                if not exc.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return

    def _flush(self) -> None:
        producer, deadline = self._open_producer(), time.monotonic() + _COMMIT_S
        while self._reported(producer.flush, _SLICE_S):
            self._raise_refused()
            if time.monotonic() > deadline:
                raise RetryableError(f"Kafka at {self._servers}: records were not taken within {_COMMIT_S:.0f} s")
        self._raise_refused()

    def _refuse(self, error: KafkaError | None, message: Message) -> None:
        """Called for records that were not taken: one is the cause, those thrown away for it may come before it."""
        if error is None:
            return
        if self._refused is None or (self._refused.code() in _THROWN_AWAY and error.code() not in _THROWN_AWAY):
            self._refused = error
            if error.code() in _TOO_LARGE:
                self._too_large = (message.topic() or "", message.key() or b"", message.value() or b"")

    def _heard(self, error: KafkaError) -> None:
        """The client's own complaints: one is told, now and then, the rest is its business."""
        now = time.monotonic()
        if error.code() == KafkaError._ALL_BROKERS_DOWN and now - self._complained_s > _COMPLAIN_S:  # noqa: SLF001
            self._complained_s = now
            logging.getLogger("cdc").warning("Kafka at %s: no broker answers; waiting for one", self._servers)

    def _begin(self) -> None:
        try:
            self._open_producer().begin_transaction()
        except KafkaException as exc:
            raise self._failed(exc, "beginning a transaction") from exc
        self._began_at_s = time.monotonic()

    def _send(self) -> None:
        """Hand what waits to the client, topic by topic. A refused record would break its key's order: none may be."""
        for topic, batch, size in self._batches.take():
            self._hand_over(topic, batch, size)
            log_topic = self._table_logs.of(topic)
            if log_topic is not None:
                kept: list[Record] = [{**record} for record in batch if record["value"] is not None]
                kept_bytes = sum(len(record["key"]) + len(record["value"] or b"") for record in kept)
                self._hand_over(log_topic, kept, kept_bytes)
                self._batches.count(len(kept), kept_bytes)

    def _hand_over(self, topic: str, batch: list[Record], size: int) -> None:
        producer = self._open_producer()
        self._room(producer, len(batch))
        try:
            taken = producer.produce_batch(topic, cast("list[dict[str, Any]]", batch), on_delivery=self._refuse)
        except (KafkaException, BufferError) as exc:
            raise self._failed(exc, f"writing to topic {topic}") from exc
        if taken != len(batch):
            self._reported(producer.poll, 0)  # reports: the client itself says only that its state is erroneous
            bad: dict[str, Any] = next((dict(m) for m in batch if "_error" in m), {})
            error = self._refused or bad.get("_error")
            if error is not None and error.code() in _TOO_LARGE and self._too_large is None:
                self._too_large = (topic, bad["key"], bad["value"])
            raise self._failed(KafkaException(error), f"writing to topic {topic}")
        self._queued.append((len(batch), size))
        self._queued_records += len(batch)
        self._queued_bytes += size

    def _room(self, producer: Producer, records: int) -> None:
        """Wait until the client's queue has room: back-pressure by records and bytes."""
        deadline = time.monotonic() + _COMMIT_S
        while True:
            queued = len(producer)
            while self._queued and self._queued_records - self._queued[0][0] >= queued:
                gone, size = self._queued.popleft()
                self._queued_records -= gone
                self._queued_bytes -= size
            if queued == 0 or (queued + records <= _QUEUED_RECORDS and self._queued_bytes <= _QUEUED_BYTES):
                return
            self._raise_refused()
            if time.monotonic() > deadline:
                raise RetryableError(f"Kafka at {self._servers}: records were not taken within {_COMMIT_S:.0f} s")
            self._reported(producer.poll, 0.01)

    def _reported(self, serve: Callable[[float], int], timeout_s: float) -> int:
        """Let the client report. It raises a fatal error (fenced off) from whichever call comes next."""
        try:
            with _plainly(self._open_producer()):
                return serve(timeout_s)
        except KafkaException as exc:
            raise self._failed(exc, "writing records") from exc

    def _raise_refused(self) -> None:
        """A transaction in which a record was refused sends nothing more: what is queued would stay so."""
        if self._refused is not None:
            raise self._failed(KafkaException(self._refused), "writing")

    def _open_producer(self) -> Producer:
        if self._producer is None:
            raise BugError("the sink is not fenced: nothing may be written")
        return self._producer

    def _failed(self, exc: BaseException, doing: str) -> CdcError:
        error = exc.args[0] if exc.args else None
        if self._producer is not None:
            # a fatal error comes out of each call; the first one counts
            with suppress(KafkaException), _plainly(self._producer):
                self._hear(self._producer, error.code() if isinstance(error, KafkaError) else None)
        if self._too_large is not None:
            topic, key, value = self._too_large
            size = len(key) + len(value)
            return TooLargeError(
                f"a record of {size} bytes is too large for topic {topic} (its key has {len(key)} bytes)",
                hint=f"kafka-configs.sh --bootstrap-server {self._servers} --alter --entity-type topics "
                f"--entity-name {topic} --add-config max.message.bytes={2 * size}"
                if size < LARGEST_REQUEST
                else f"no broker takes more than its socket.request.max.bytes; sink.options: message.max.bytes "
                f"({LARGEST_REQUEST} bytes) is what is sent at most",
                topic=self._table_logs.written_for(topic),
                key=key,
                value=value,
            )
        if isinstance(error, KafkaError) and error.code() in _THROWN_AWAY:
            error = self._refused or error
        if not isinstance(error, KafkaError):
            return RetryableError(f"Kafka at {self._servers}: {doing}: {exc}")
        code, text = error.code(), error.str()
        if code in _FENCED and not self._timed_out():
            return self._superseded()
        if code in _FORBIDDEN:
            return OperatorError(
                f"Kafka at {self._servers}: {doing}: not allowed: {text}",
                hint="the user needs WRITE on the prefix’ topics and on its transactional.id",
            )
        return RetryableError(f"Kafka at {self._servers}: {doing}: {text}")

    def _hear(self, producer: Producer, said: int | None) -> None:
        """Take the reports that nobody has heard yet, until the cause of what was `said` is among them."""
        producer.poll(0)
        deadline = time.monotonic() + _CAUSE_S
        while self._too_large is None and len(producer) and time.monotonic() < deadline:
            known = said if self._refused is None else self._refused.code()
            if known not in _THROWN_AWAY and said not in _TOO_LARGE:
                return
            producer.poll(_REPORT_S)

    def _superseded(self) -> OperatorError:
        return OperatorError(
            f"another copy of connector {self.connector} has started and fenced this one off",
            hint="nothing is lost, the other copy goes on; run one copy of a connector",
        )

    def _timed_out(self) -> bool:
        """Whether the broker may have ended the transaction by itself, which looks like another copy's fencing."""
        return self._began_at_s is not None and time.monotonic() - self._began_at_s >= TRANSACTION_TIMEOUT_MS / 1000


class _Told:
    """The client's log, passed on. Only there does it tell that the coordinator's connection or an answer was lost."""

    def __init__(self) -> None:
        self.of_interruption = False

    def log(self, level: int, message: str, facility: str, *more: object) -> None:
        """Called by the client with logging's arguments, from within any call of it."""
        self.of_interruption |= facility in _INTERRUPTIONS
        log.log(level, message, facility, *more)


@contextmanager
def _plainly(producer: Producer) -> Iterator[None]:
    """A fatal error comes out of the client as what it is, also where a report of ours was called after it."""
    try:
        yield
    except SystemError as exc:
        if isinstance(exc.__cause__, KafkaException):  # "returned a result with an exception set"
            raise exc.__cause__ from None
        # "returned NULL without setting an exception": the client lost it. Asked for a step, it says it again.
        producer.begin_transaction()
        raise


def open_sink(config: KafkaConfig, connector: str, *, logs: Collection[Log] = ()) -> KafkaSink:
    """The registry's entry. Connects to nothing yet."""
    return KafkaSink(config, connector, logs)
