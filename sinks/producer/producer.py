"""The producer writes batches in Kafka transactions: each batch once and in order, all of a transaction or nothing.

Why every source transaction reaches the topics exactly once:

1. Events and the position behind them are in one Kafka transaction; `sinks.kafka` writes the position last. Kafka
   commits a transaction in all its partitions or in none, and shows readers of read_committed only what is committed
   (KIP-98). So there are never events without their position, nor a position without its events.
2. One producer writes at a time. `begin_epoch` (InitProducerId) raises the epoch of the transactional id. It returns
   once what an older epoch had open has ended: what was being committed is committed, all else is aborted. From then on
   brokers refuse every request of an older epoch. Only then is the position read, to the end of its topic: nothing that
   was sent before can still change it. This is fencing by the id alone. KIP-447 fences by consumer group, for input
   from Kafka topics; our input is a database log, and the position is a record of ours.
3. Within an epoch each batch has a sequence, by which a broker recognizes a batch that is sent again, also after its
   partition has moved to another leader. Each broker has one request of ours in flight, with one batch of each of its
   partitions. What was not answered, or answered with an error that passes, is sent again before anything newer.
   So no batch is written twice, and none overtakes another.
4. The source is acknowledged only with a position that a committed transaction holds (`cdc.capture.pipeline`). What is
   behind the position can always be read again.

What a crash, or an answer that never comes, leads to:

| when | Kafka has | the next session finds |
|---|---|---|
| before EndTxn is sent | an open transaction, which nobody sees | the old position: the source sends again |
| EndTxn was sent | a transaction, committed or not | after `begin_epoch` the position says which |
| after the answer to EndTxn | the transaction, committed | the new position: what is sent again is dropped |

An EndTxn that arrives after `begin_epoch` has an older epoch and is refused, so the second row has no third outcome.

Requests to the coordinator have no sequence: a copy that arrives late may act on the next transaction. In version 1 of
the protocol transactions share an epoch, so a late EndTxn would end the next one in its middle. `interrupted` therefore
says that a request may have been sent twice, and the sink begins a new epoch before it writes anything else
(docs/adr/0010). In version 2 (KIP-890, where the cluster has it on) each transaction has an epoch of its own, which
the answer to EndTxn gives; brokers add partitions to the transaction by themselves, and write no batch outside one. In
version 1 partitions are added before their first batch is sent, but a batch that arrives after an abort may be written
outside any transaction: there `close` aborts only where nothing is in flight, else the next `begin_epoch` does.

Why it is ours: docs/adr/0015. https://cwiki.apache.org/confluence/display/KAFKA/KIP-98
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka import errors as codes
from kafka.protocol.producer import ProduceRequest

from sinks.client import produce_request
from sinks.client.brokers import Address, AnswerError, Brokers
from sinks.client.connection import Connection, ConnectionConfig, LostError
from sinks.client.record_batch import Codec, header
from sinks.producer.batches import Batch
from sinks.producer.coordinator import Coordinator
from sinks.producer.retries import ABSENT, ABSENT_S, PASSING, UNDER_WAY, Patience, RefusedError, Waiting, code_of

_REQUEST_BYTES: Final = 8 * 1024 * 1024
_DELIVERY_MS: Final = 30_000
_SEQUENCES: Final = 2**31
_WRITTEN: Final = {0, code_of(codes.DuplicateSequenceNumberError)}


@dataclass(slots=True)
class _Pending:
    """Holds a batch that was handed over."""

    count: int
    records: bytes
    """They are as sent: compressed."""
    alone: bytes
    """The record, not compressed, if it is the only one: then it may be what is refused. Else empty."""
    at_ms: int
    sequence: int | None = None
    """It is given when the batch is first sent, and kept when it is sent again."""


_Request: TypeAlias = dict[str, dict[int, _Pending]]
"""Is what one broker is sent at once, by topic and partition."""


class Producer:
    """Produces as one transactional id. Raises RefusedError, LostError when waiting has not helped, OperatorError."""

    def __init__(
        self, bootstrap_servers: str, config: ConnectionConfig, *, transactional_id: str, timeout_ms: int, codec: Codec
    ) -> None:
        self._brokers = Brokers(bootstrap_servers, config)
        self._waiting = Waiting(bootstrap_servers, self._brokers)
        self._coordinator = Coordinator(
            self._brokers, self._waiting, transactional_id=transactional_id, timeout_ms=timeout_ms
        )
        self._id = transactional_id
        self._codec = codec
        self._sequences: dict[tuple[str, int], int] = {}
        self._unwritten: dict[str, dict[int, list[_Pending]]] = {}
        """Holds batches by topic and partition, oldest first; the first may be in flight."""
        self._in_flight: dict[Address, tuple[Connection, _Request]] = {}
        self._patience: Patience | None = None
        """Runs since something that was sent was not taken."""

    @property
    def interrupted(self) -> bool:
        """Tell whether a request may have been sent twice: a copy in flight must meet another epoch."""
        return self._coordinator.interrupted

    @property
    def fences_itself(self) -> bool:
        """Tell whether a copy of what began this epoch may be in flight, which would fence it as others do."""
        return self._coordinator.fences_itself

    def begin_epoch(self, within_s: float) -> None:
        """Fence all who have used this id before; on return, what was open of it has ended."""
        self._sequences.clear()
        self._unwritten.clear()
        for broker in self._in_flight:
            self._brokers.drop(broker)
        self._in_flight.clear()
        self._patience = None
        self._coordinator.begin_epoch(within_s)

    def partitions(self, topic: str, beside: Iterable[str] = ()) -> int:
        """Return how many partitions a topic has; `beside` are looked up with it, as they will be asked for next."""
        self._waiting.patiently(lambda: self._brokers.look_up((topic, *beside)), Patience(ABSENT_S))
        return self._brokers.partitions(topic)

    def there(self, topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return id and partitions of those of the topics that exist. Raises LostError."""
        return self._brokers.there(topics)

    def ready(self) -> bool:
        """Tell whether all that was handed over has been written; waits for no answer."""
        for broker in [broker for broker, (connection, _) in self._in_flight.items() if connection.readable()]:
            self._receive(broker)
        if self._unwritten and not self._in_flight:
            self._send_requests()
        return not self._unwritten

    def send(self, batches: list[Batch]) -> None:
        """Hand over batches; the list is emptied. Waits for what was handed over before."""
        at_ms = time.time_ns() // 1_000_000
        compress = self._codec.compress
        pending: dict[str, dict[int, list[_Pending]]] = {}
        batches.reverse()
        while batches:  # each is released as soon as it is compressed
            topic, partition, count, records = batches.pop()
            made = _Pending(count, compress(records), records if count == 1 else b"", at_ms)
            pending.setdefault(topic, {}).setdefault(partition, []).append(made)
        self.flush()
        self._unwritten = pending
        self._send_requests()

    def flush(self) -> None:
        """Return when all that was handed over has been written."""
        while self._unwritten or self._in_flight:
            self._receive_and_send()

    def commit(self) -> None:
        """Make all that was handed over since the last commit visible at once."""
        self.flush()
        self._coordinator.commit()
        if self._coordinator.version_2:  # the next transaction has an epoch of its own
            self._sequences.clear()

    def close(self) -> None:
        """Abort what is open if the coordinator can be told at once, else the next producer does; close connections."""
        # in version 1 a batch in flight could still be written behind the abort, outside any transaction
        if self._coordinator.version_2 or not (self._in_flight or self.interrupted):
            self._coordinator.abort()
        self._brokers.close()

    def _receive_and_send(self) -> None:
        """Wait for the answers to what is in flight, then send what waits."""
        for broker in list(self._in_flight):
            self._receive(broker)
        self._send_requests()

    def _send_requests(self) -> None:
        """Send every broker the oldest batch of each of its partitions; no broker has a request in flight."""
        try:
            self._brokers.look_up(self._unwritten)
        except AnswerError as exc:
            if exc.code not in PASSING:
                raise RefusedError(exc.code) from exc
            self._pause(RefusedError(exc.code))
            return
        except LostError as exc:
            self._pause(exc)
            return
        requests = self._requests()
        if not self._coordinator.version_2:
            partitions = {
                (topic, number) for request in requests.values() for topic, of in request.items() for number in of
            }
            self._coordinator.add_partitions(partitions)
        for broker, request in requests.items():
            try:
                self._produce(broker, request)
            except LostError as exc:
                self._brokers.forget(request)
                self._lost(broker, exc)

    def _requests(self) -> dict[Address, _Request]:
        """Return the request to send to each broker."""
        found: dict[Address, _Request] = {}
        sizes: dict[Address, int] = {}
        leaderless = set()
        for topic, partitions in self._unwritten.items():
            leaders = self._brokers.leaders(topic)
            for partition, queue in partitions.items():
                broker = leaders.get(partition)
                if broker is None:
                    leaderless.add(topic)
                    continue
                size = sizes.get(broker, 0) + len(queue[0].records)
                if broker not in found:
                    found[broker] = defaultdict(dict)
                elif size > _REQUEST_BYTES:
                    continue
                sizes[broker] = size
                found[broker][topic][partition] = queue[0]
        if leaderless:
            self._brokers.forget(leaderless)
            self._pause(RefusedError(code_of(codes.LeaderNotAvailableError)))
        return found

    def _produce(self, broker: Address, request: _Request) -> None:
        connection = self._brokers.connection(broker)
        version = self._coordinator.request_version(connection, ProduceRequest, produce_request.IMPLICIT)
        codec, identity = self._codec.number, self._coordinator.identity
        sent: dict[str, list[tuple[int, bytes, bytes]]] = {}
        for topic, partitions in request.items():
            made = sent[topic] = []
            for partition, each in partitions.items():
                records, count = each.records, each.count
                sequence = each.sequence
                if sequence is None:
                    sequence = each.sequence = self._sequences.get((topic, partition), 0)
                    self._sequences[topic, partition] = (sequence + count) % _SEQUENCES
                begin = header(records, count, codec=codec, at_ms=each.at_ms, identity=identity, sequence=sequence)
                made.append((partition, begin, records))
        self._coordinator.in_transaction = True
        self._in_flight[broker] = connection, request
        connection.produce(version, sent, transactional_id=self._id, timeout_ms=_DELIVERY_MS)

    def _receive(self, broker: Address) -> None:
        """Wait for a broker's answer to the request in flight to it."""
        connection, request = self._in_flight[broker]
        try:
            answer = connection.produced()
        except LostError as exc:
            self._lost(broker, exc)
            return
        del self._in_flight[broker]
        passing = 0
        for topic, said in answer:
            asked, waiting = request.get(topic, {}), self._unwritten.get(topic, {})
            for partition, code in said:
                each = asked.pop(partition, None)
                if each is None:
                    continue
                if code in _WRITTEN:
                    queue = waiting[partition]  # whose oldest it is
                    del queue[0]
                    if not queue:
                        del waiting[partition]
                elif code in PASSING or self._waiting.may_be_stale(code):
                    passing = code
                    if code != UNDER_WAY:
                        self._brokers.forget([topic])
                else:
                    raise RefusedError(code, Batch(topic, partition, each.count, each.alone))
            if not waiting:
                self._unwritten.pop(topic, None)
        if any(request.values()):
            raise RefusedError(code_of(codes.UnknownError))
        if passing:
            self._pause(RefusedError(passing))
        else:
            self._patience = None
            self._waiting.accepted()

    def _lost(self, broker: Address, reason: LostError) -> None:
        """Close a connection; what was in flight may have been written, and is sent again under the same sequences."""
        self._brokers.drop(broker)
        found = self._in_flight.pop(broker, None)
        if found is not None:
            self._coordinator.interrupted = True
            self._brokers.forget(found[1])
        self._pause(reason)

    def _pause(self, reason: Exception) -> None:
        """Pause before the next try. Raises `reason` when trying has not helped for long."""
        if self._patience is None:
            absent = isinstance(reason, RefusedError) and reason.code == ABSENT
            self._patience = Patience(ABSENT_S) if absent else Patience()
        self._waiting.wait(self._patience, reason)
