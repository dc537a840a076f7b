"""The transactional producer: whole batches, each partition's in order, each once; committed together or not at all.

It follows https://cwiki.apache.org/confluence/display/KAFKA/KIP-98 and, where the cluster has it on, version 2 of that
protocol (KIP-890): brokers add partitions to the transaction by themselves, every transaction has an epoch of its own.

A broker has one request of ours at a time, with one batch of each of its partitions in it. What was not answered, or
answered with an error that passes, is sent again, first of all, under the same sequence, by which brokers tell copies
apart. Requests to the coordinator have none: one that may have been sent twice is told of by `interrupted`.

Why ours: docs/adr/0015-a-producer-of-our-own.md.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, TypeAlias

from kafka import errors as codes
from kafka.protocol.producer import ProduceRequest

from sinks.client import produce_request
from sinks.client.brokers import Address, AnswerError, Brokers
from sinks.client.connection import Connection, LostError, Way
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
    """A batch that was handed over."""

    count: int
    records: bytes
    """As they are sent."""
    alone: bytes
    """The record as it was, where it is the only one: then it may be what is refused. Else nothing."""
    at_ms: int
    sequence: int | None = None
    """Given when it is sent first, and kept."""


_Flight: TypeAlias = dict[str, dict[int, _Pending]]
"""A request: by topic and partition."""


class Producer:
    """Of one transactional id. All methods raise RefusedError, LostError when waiting has not helped, OperatorError."""

    def __init__(
        self, bootstrap_servers: str, way: Way, *, transactional_id: str, timeout_ms: int, codec: Codec
    ) -> None:
        self._brokers = Brokers(bootstrap_servers, way)
        self._waiting = Waiting(bootstrap_servers, self._brokers)
        self._coordinator = Coordinator(
            self._brokers, self._waiting, transactional_id=transactional_id, timeout_ms=timeout_ms
        )
        self._id = transactional_id
        self._codec = codec
        self._sequences: dict[tuple[str, int], int] = {}
        self._unwritten: dict[str, dict[int, list[_Pending]]] = {}
        """By topic and partition, oldest first; the first may be on its way."""
        self._flying: dict[Address, tuple[Connection, _Flight]] = {}
        self._failing: Patience | None = None
        """Since something was not taken that was sent."""

    @property
    def interrupted(self) -> bool:
        """Whether a request may have been sent twice: whatever is under way of it must meet another epoch."""
        return self._coordinator.interrupted

    @property
    def fences_itself(self) -> bool:
        """Whether a copy of what began this epoch may be under way, which would end it as another producer does."""
        return self._coordinator.fences_itself

    def begin_epoch(self, within_s: float) -> None:
        """Shut out whoever has used this id before; what was open of it is ended on return."""
        self._sequences.clear()
        self._unwritten.clear()
        for broker in self._flying:
            self._brokers.lost(broker)
        self._flying.clear()
        self._failing = None
        self._coordinator.begin_epoch(within_s)

    def partitions(self, topic: str, beside: Iterable[str] = ()) -> int:
        """How many the topic has; those `beside` are looked up with it, as they will be asked for next."""
        self._waiting.patiently(lambda: self._brokers.look_up((topic, *beside)), Patience(ABSENT_S))
        return self._brokers.partitions(topic)

    def ready(self) -> bool:
        """Whether all that was handed over has been written; waits for no answer."""
        for broker in [broker for broker, (connection, _) in self._flying.items() if connection.readable()]:
            self._land(broker)
        if self._unwritten and not self._flying:
            self._take_off()
        return not self._unwritten

    def send(self, batches: list[Batch]) -> None:
        """Hand over batches; the list is emptied. Waits for what was handed over before."""
        at_ms = time.time_ns() // 1_000_000
        compress = self._codec.compress
        pending: dict[str, dict[int, list[_Pending]]] = {}
        batches.reverse()
        while batches:  # each is let go when it is compressed
            topic, partition, count, records = batches.pop()
            made = _Pending(count, compress(records), records if count == 1 else b"", at_ms)
            pending.setdefault(topic, {}).setdefault(partition, []).append(made)
        self.flush()
        self._unwritten = pending
        self._take_off()

    def flush(self) -> None:
        """Return when all that was handed over has been written."""
        while self._unwritten or self._flying:
            self._go_on()

    def commit(self) -> None:
        """Make visible what was handed over since the last commit, all of it at once."""
        self.flush()
        self._coordinator.end()
        if self._coordinator.second:  # the next transaction has an epoch of its own
            self._sequences.clear()

    def close(self) -> None:
        """Let go. What is open is given up at once where the coordinator can be told, else by whoever comes next."""
        # in version 1 a batch that may be under way could still be written behind the abort, into no transaction
        if self._coordinator.second or not (self._flying or self.interrupted):
            self._coordinator.give_up()
        self._brokers.close()

    def _go_on(self) -> None:
        """Wait for what is on its way, and send what waits."""
        for broker in list(self._flying):
            self._land(broker)
        self._take_off()

    def _take_off(self) -> None:
        """Send every broker the oldest batch of each of its partitions; none has anything to answer."""
        try:
            self._brokers.look_up(self._unwritten)
        except AnswerError as exc:
            if exc.code not in PASSING:
                raise RefusedError(exc.code) from exc
            self._later(RefusedError(exc.code))
            return
        except LostError as exc:
            self._later(exc)
            return
        flights = self._flights()
        if not self._coordinator.second:
            places = {(topic, number) for flight in flights.values() for topic, of in flight.items() for number in of}
            self._coordinator.add(places)
        for broker, flight in flights.items():
            try:
                self._produce(broker, flight)
            except LostError as exc:
                self._brokers.forget(flight)
                self._lost(broker, exc)

    def _flights(self) -> dict[Address, _Flight]:
        """What goes to which broker."""
        found: dict[Address, _Flight] = {}
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
            self._later(RefusedError(code_of(codes.LeaderNotAvailableError)))
        return found

    def _produce(self, broker: Address, flight: _Flight) -> None:
        connection = self._brokers.to(broker)
        version = self._coordinator.version(connection, ProduceRequest, produce_request.IMPLICIT)
        codec, identity = self._codec.number, self._coordinator.identity
        sent: dict[str, list[tuple[int, bytes, bytes]]] = {}
        for topic, partitions in flight.items():
            made = sent[topic] = []
            for partition, each in partitions.items():
                records, count = each.records, each.count
                sequence = each.sequence
                if sequence is None:
                    sequence = each.sequence = self._sequences.get((topic, partition), 0)
                    self._sequences[topic, partition] = (sequence + count) % _SEQUENCES
                begin = header(records, count, codec=codec, at_ms=each.at_ms, identity=identity, sequence=sequence)
                made.append((partition, begin, records))
        self._coordinator.began = True
        self._flying[broker] = connection, flight
        connection.produce(version, sent, transactional_id=self._id, timeout_ms=_DELIVERY_MS)

    def _land(self, broker: Address) -> None:
        """Wait for a broker's answer to what is on its way to it."""
        connection, flight = self._flying[broker]
        try:
            answer = connection.produced()
        except LostError as exc:
            self._lost(broker, exc)
            return
        del self._flying[broker]
        passing = 0
        for topic, said in answer:
            flown, waiting = flight.get(topic, {}), self._unwritten.get(topic, {})
            for partition, code in said:
                each = flown.pop(partition, None)
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
        if any(flight.values()):
            raise RefusedError(code_of(codes.UnknownError))
        if passing:
            self._later(RefusedError(passing))
        else:
            self._failing = None
            self._waiting.heard_well()

    def _lost(self, broker: Address, reason: LostError) -> None:
        """What was on its way may have been written: it is sent again, by the same numbers."""
        self._brokers.lost(broker)
        found = self._flying.pop(broker, None)
        if found is not None:
            self._coordinator.interrupted = True
            self._brokers.forget(found[1])
        self._later(reason)

    def _later(self, reason: Exception) -> None:
        """Pause before it is tried again. Raises `reason` when trying has not helped for long."""
        if self._failing is None:
            absent = isinstance(reason, RefusedError) and reason.code == ABSENT
            self._failing = Patience(ABSENT_S) if absent else Patience()
        self._waiting.wait(self._failing, reason)
