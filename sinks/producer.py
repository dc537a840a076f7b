"""The transactional producer: whole batches, each partition's in order, each once; committed together or not at all.

It follows https://cwiki.apache.org/confluence/display/KAFKA/KIP-98 and, where the cluster has it on, version 2 of that
protocol (KIP-890): brokers add partitions to the transaction by themselves, every transaction has an epoch of its own.

A broker has one request of ours at a time, with one batch of each of its partitions in it. What was not answered, or
answered with an error that passes, is sent again, first of all, under the same sequence, by which brokers tell copies
apart. Requests to the coordinator have none: one that may have been sent twice is told of by `interrupted`.

Why ours: docs/adr/0015-a-producer-of-our-own.md.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from kafka import errors as codes
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest, ProduceRequest

from cdc.errors import OperatorError
from sinks import producerequest
from sinks.batches import Batch
from sinks.brokers import Address, AnswerError, Brokers
from sinks.recordbatch import Codec, Identity, header
from sinks.wire import Connection, LostError, Way

_PATIENCE_S: Final = 120.0
_ABSENT_S: Final = 30.0
"""How long a broker may say that a topic is not there, which it does for a moment after it was made."""

_STALE_S: Final = 5.0
"""How long another broker may know better that says we are fenced off."""

_PAUSE_FIRST_S: Final = 0.002
_PAUSE_LONGEST_S: Final = 0.5
_CLOSE_S: Final = 2.0
_COMPLAIN_S: Final = 30.0
_REQUEST_BYTES: Final = 8 * 1024 * 1024
_DELIVERY_MS: Final = 30_000
_SEQUENCES: Final = 2**31
_FEATURE: Final = "transaction.version"
_SECOND: Final = 2
_NOT_IN_TWO_PHASES: Final = 5
_MOST_ADDED: Final = 3
"""From version 4 on AddPartitionsToTxn is the brokers' own."""
_GIVES_EPOCH: Final = 5
"""From this version on EndTxn gives the next transaction's epoch."""


def _code(error: type[codes.KafkaError]) -> int:
    return int(error.errno)


_MOVED: Final = {_code(codes.CoordinatorNotAvailableError), _code(codes.NotCoordinatorError)}
_UNDER_WAY: Final = _code(codes.ConcurrentTransactionsError)
_ABSENT: Final = _code(codes.UnknownTopicOrPartitionError)
_PASSING: Final = {
    _UNDER_WAY,
    _ABSENT,
    *_MOVED,
    _code(codes.CoordinatorLoadInProgressError),
    _code(codes.LeaderNotAvailableError),
    _code(codes.NotLeaderForPartitionError),
    _code(codes.RequestTimedOutError),
    _code(codes.ReplicaNotAvailableError),
    _code(codes.NetworkExceptionError),
    _code(codes.NotEnoughReplicasError),
    _code(codes.NotEnoughReplicasAfterAppendError),
    _code(codes.KafkaStorageError),
    _code(codes.FencedLeaderEpochError),
    _code(codes.UnknownLeaderEpochError),
}
"""What passes, if one waits or asks another broker."""
FENCED: Final = {_code(codes.ProducerFencedError), _code(codes.InvalidProducerEpochError)}
"""What is said to a producer whose place another one has taken."""
_WRITTEN: Final = {0, _code(codes.DuplicateSequenceNumberError)}

log = logging.getLogger("cdc")

_T = TypeVar("_T")


class RefusedError(Exception):
    """A broker has answered with an error that does not pass; `batch` is what it was about, where it was one."""

    def __init__(self, code: int, batch: Batch | None = None) -> None:
        super().__init__(codes.for_code(code).__name__)
        self.code = code
        self.batch = batch


@dataclass(slots=True)
class _Pending:
    """A batch that was handed over."""

    batch: Batch
    records: bytes
    """As they are sent."""
    at_ms: int
    sequence: int | None = None
    """Given when it is sent first, and kept."""


@dataclass(slots=True)
class _Patience:
    """How long something that passes is waited for, and with which pauses."""

    within_s: float
    began_s: float = field(default_factory=time.monotonic)
    pause_s: float = _PAUSE_FIRST_S

    def wait(self, reason: Exception) -> None:
        """Pause, longer each time. Raises `reason` when it has been too long."""
        if time.monotonic() - self.began_s > self.within_s:
            raise reason
        time.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, _PAUSE_LONGEST_S)


_Flight: TypeAlias = dict[str, dict[int, _Pending]]
"""A request: by topic and partition."""


class Producer:
    """Of one transactional id. All methods raise RefusedError, LostError when waiting has not helped, OperatorError."""

    def __init__(
        self, bootstrap_servers: str, way: Way, *, transactional_id: str, timeout_ms: int, codec: Codec
    ) -> None:
        self._servers = bootstrap_servers
        self._brokers = Brokers(bootstrap_servers, way)
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self._codec = codec
        self._identity = Identity(-1, -1)
        self._second = False
        """Whether transactions go by version 2."""
        self._sequences: dict[tuple[str, int], int] = {}
        self._waiting: dict[str, dict[int, list[_Pending]]] = {}
        """By topic and partition, oldest first; the first may be on its way."""
        self._flying: dict[Address, tuple[Connection, _Flight]] = {}
        self._added: set[tuple[str, int]] = set()
        self._began = False
        """Whether a coordinator may hold a transaction open."""
        self._failing: _Patience | None = None
        """Since something was not taken that was sent."""
        self._fenced_s: float | None = None
        """When it was first said, with no word to the contrary since, that another producer has taken over."""
        self.fences_itself = False
        """Whether a copy of what began this epoch may be under way, which would end it as another producer does."""
        self.interrupted = False
        """Whether a request may have been sent twice: whatever is under way of it must meet another epoch."""
        self._complained_s = float("-inf")

    def begin_epoch(self, within_s: float) -> None:
        """Shut out whoever has used this id before; what was open of it is ended on return."""
        self._sequences.clear()
        self._waiting.clear()
        for broker in self._flying:
            self._brokers.lost(broker)
        self._flying.clear()
        self._began = self.interrupted = False
        self._added.clear()
        self._failing = self._fenced_s = None
        self.fences_itself = False
        self._brokers.no_coordinator()  # a new connection says by which version transactions go now
        coordinator = self._coordinated(_Patience(within_s))
        self._second = coordinator.features.get(_FEATURE, 0) >= _SECOND
        answer = self._ask(
            lambda connection: InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                version=connection.version(InitProducerIdRequest, _NOT_IN_TWO_PHASES),
            ),
            within_s,
        )
        self.fences_itself, self.interrupted = self.interrupted, False
        self._identity = Identity(answer.producer_id, answer.producer_epoch)

    def partitions(self, topic: str, beside: Iterable[str] = ()) -> int:
        """How many the topic has; those `beside` are looked up with it, as they will be asked for next."""
        self._patiently(lambda: self._brokers.look_up((topic, *beside)), _Patience(_ABSENT_S))
        return self._brokers.partitions(topic)

    def ready(self) -> bool:
        """Whether all that was handed over has been written; waits for no answer."""
        for broker in [broker for broker, (connection, _) in self._flying.items() if connection.readable()]:
            self._land(broker)
        if self._waiting and not self._flying:
            self._take_off()
        return not self._waiting

    def send(self, batches: Sequence[Batch]) -> None:
        """Hand over batches. Waits for what was handed over before."""
        at_ms = time.time_ns() // 1_000_000
        compress = self._codec.compress
        pending = [_Pending(batch, compress(batch.records), at_ms) for batch in batches]
        self.flush()
        waiting = self._waiting
        for each in pending:
            topic, partition, _, _ = each.batch
            waiting.setdefault(topic, {}).setdefault(partition, []).append(each)
        self._take_off()

    def flush(self) -> None:
        """Return when all that was handed over has been written."""
        while self._waiting or self._flying:
            self._go_on()

    def commit(self) -> None:
        """Make visible what was handed over since the last commit, all of it at once."""
        self.flush()
        self._end()

    def close(self) -> None:
        """Let go. What is open is given up at once where the coordinator can be told, else by whoever comes next."""
        coordinator = self._brokers.coordinating()
        # in version 1 a batch that may be under way could still be written behind the abort, into no transaction
        whole = self._second or not (self._flying or self.interrupted)
        if self._began and whole and coordinator is not None:
            coordinator.answer_s = _CLOSE_S
            with suppress(LostError, RefusedError, OperatorError):
                coordinator.ask(self._ending(coordinator, committed=False))
        self._began = False
        self._brokers.close()

    # ---- the coordinator ----

    def _end(self) -> None:
        answer = self._ask(lambda connection: self._ending(connection, committed=True))
        self._began = False
        self._added.clear()
        if self._second:
            self._identity = Identity(answer.producer_id, answer.producer_epoch)
            self._sequences.clear()

    def _ending(self, connection: Connection, *, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self._id,
            producer_id=self._identity.producer_id,
            producer_epoch=self._identity.epoch,
            committed=committed,
            version=self._version(connection, EndTxnRequest, _GIVES_EPOCH),
        )

    def _version(self, connection: Connection, request: type[Any], second: int) -> int:
        """Of a request that says by which version of the protocol a transaction goes: from `second` on the second."""
        if not self._second:
            return connection.version(request, second - 1)
        version = connection.version(request, second)
        if version < second:  # a broker of before, back in the cluster
            raise RefusedError(_code(codes.UnsupportedVersionError))
        return version

    def _add(self, flights: Iterable[_Flight]) -> None:
        """Tell the coordinator which partitions the transaction is about to write to."""
        places = {(topic, partition) for flight in flights for topic, of in flight.items() for partition in of}
        partitions = places - self._added
        if not partitions:
            return
        self._began = True
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        self._ask(
            lambda connection: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self._identity.producer_id,
                v3_and_below_producer_epoch=self._identity.epoch,
                v3_and_below_topics=[kind(name=name, partitions=numbers) for name, numbers in by_topic.items()],
                version=connection.version(AddPartitionsToTxnRequest, _MOST_ADDED),
            ),
        )
        self._added.update(partitions)

    def _ask(self, make: Callable[[Connection], Any], within_s: float = _PATIENCE_S) -> Any:  # noqa: ANN401
        """Ask the coordinator, and again until it answers."""
        patience = _Patience(within_s)
        while True:
            coordinator = self._coordinated(patience)
            try:
                answer = coordinator.ask(make(coordinator))
            except LostError as exc:
                self._brokers.no_coordinator()
                self.interrupted = True
                self._wait(patience, exc)
                continue
            code = _worst(answer)
            if code == 0:
                self._fenced_s = None
                return answer
            if code in _MOVED or self._may_be_stale(code):
                self._brokers.no_coordinator(moved=True)
            elif code not in _PASSING:
                raise RefusedError(code)
            self._wait(patience, RefusedError(code))

    def _may_be_stale(self, code: int) -> bool:
        """Whether another broker may know better that says we are fenced off.

        One that was frozen goes on for a moment as if it still coordinated or led, by what it knew then. Who is fenced
        off in truth stays so.
        """
        if code not in FENCED:
            return False
        now = time.monotonic()
        self._fenced_s = now if self._fenced_s is None else self._fenced_s
        return now - self._fenced_s < _STALE_S

    def _coordinated(self, patience: _Patience) -> Connection:
        return self._patiently(lambda: self._brokers.coordinator(self._id), patience)

    def _patiently(self, look: Callable[[], _T], patience: _Patience) -> _T:
        """What any broker says."""
        while True:
            try:
                return look()
            except AnswerError as exc:
                if exc.code not in _PASSING:
                    raise RefusedError(exc.code) from exc
                self._wait(patience, RefusedError(exc.code))
            except LostError as exc:
                self._wait(patience, exc)

    def _wait(self, patience: _Patience, reason: Exception) -> None:
        """After a while say so, and ask another broker: one that is cut off from the others knows of no changes."""
        patience.wait(reason)
        if patience.pause_s >= _PAUSE_LONGEST_S:
            self._brokers.doubt()
            self._complain(reason)

    # ---- the brokers that lead ----

    def _go_on(self) -> None:
        """Wait for what is on its way, and send what waits."""
        for broker in list(self._flying):
            self._land(broker)
        self._take_off()

    def _take_off(self) -> None:
        """Send every broker the oldest batch of each of its partitions; none has anything to answer."""
        try:
            self._brokers.look_up(self._waiting)
        except AnswerError as exc:
            if exc.code not in _PASSING:
                raise RefusedError(exc.code) from exc
            self._later(RefusedError(exc.code))
            return
        except LostError as exc:
            self._later(exc)
            return
        flights = self._flights()
        if not self._second:
            self._add(flights.values())
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
        for topic, partitions in self._waiting.items():
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
            self._later(RefusedError(_code(codes.LeaderNotAvailableError)))
        return found

    def _produce(self, broker: Address, flight: _Flight) -> None:
        connection = self._brokers.to(broker)
        version = self._version(connection, ProduceRequest, producerequest.IMPLICIT)
        codec, identity = self._codec.number, self._identity
        sent: dict[str, list[tuple[int, bytes, bytes]]] = {}
        for topic, partitions in flight.items():
            made = sent[topic] = []
            for partition, each in partitions.items():
                records, count = each.records, each.batch.count
                sequence = each.sequence
                if sequence is None:
                    sequence = each.sequence = self._sequences.get((topic, partition), 0)
                    self._sequences[topic, partition] = (sequence + count) % _SEQUENCES
                begin = header(records, count, codec=codec, at_ms=each.at_ms, identity=identity, sequence=sequence)
                made.append((partition, begin, records))
        self._began = True
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
            flown, waiting = flight.get(topic, {}), self._waiting.get(topic, {})
            for partition, code in said:
                each = flown.pop(partition, None)
                if each is None:
                    continue
                if code in _WRITTEN:
                    queue = waiting[partition]  # whose oldest it is
                    del queue[0]
                    if not queue:
                        del waiting[partition]
                elif code in _PASSING or self._may_be_stale(code):
                    passing = code
                    if code != _UNDER_WAY:
                        self._brokers.forget([topic])
                else:
                    raise RefusedError(code, each.batch)
            if not waiting:
                self._waiting.pop(topic, None)
        if any(flight.values()):
            raise RefusedError(_code(codes.UnknownError))
        if passing:
            self._later(RefusedError(passing))
        else:
            self._failing = self._fenced_s = None

    def _lost(self, broker: Address, reason: LostError) -> None:
        """What was on its way may have been written: it is sent again, by the same numbers."""
        self._brokers.lost(broker)
        found = self._flying.pop(broker, None)
        if found is not None:
            self.interrupted = True
            self._brokers.forget(found[1])
        self._later(reason)

    def _later(self, reason: Exception) -> None:
        """Pause before it is tried again. Raises `reason` when trying has not helped for long."""
        if self._failing is None:
            absent = isinstance(reason, RefusedError) and reason.code == _ABSENT
            self._failing = _Patience(_ABSENT_S if absent else _PATIENCE_S)
        self._wait(self._failing, reason)

    def _complain(self, reason: Exception) -> None:
        """Say, now and then, what is waited for."""
        now = time.monotonic()
        if now - self._complained_s > _COMPLAIN_S:
            self._complained_s = now
            log.warning("Kafka at %s: no broker answers as it must (%s); waiting for one", self._servers, reason)


def _worst(answer: Any) -> int:  # noqa: ANN401 - a message
    """The error of an answer; of one about partitions that of the first which is about the partition itself."""
    if not hasattr(answer, "results_by_topic_v3_and_below"):
        return int(answer.error_code)
    said = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    skipped = _code(codes.OperationNotAttemptedError)
    return next((code for code in said if code not in {0, skipped}), max(said, default=0))
