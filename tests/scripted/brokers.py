"""Brokers that keep the rules of Kafka's transactions, and fail as they are told to: no server can be asked for that.

`Cluster.connect` takes the place of `sinks.client.connection.Connection`. Requests and answers go through
kafka-python's encoder and decoder, batches through its reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple

import pytest
from kafka.protocol.metadata import FindCoordinatorResponse, MetadataResponse
from kafka.protocol.producer import (
    AddPartitionsToTxnResponse,
    EndTxnResponse,
    InitProducerIdResponse,
    ProduceResponse,
)
from kafka.record.memory_records import MemoryRecords

from sinks.client.connection import ConnectionConfig, LostError, answered
from sinks.client.produce_request import ErrorCodes
from sinks.client.record_batch import CODECS
from sinks.producer import producer, retries
from sinks.producer.batches import Batch, PlainBatches

Partition = tuple[str, int]
UNKNOWN_TOPIC, NOT_LEADER, NOT_COORDINATOR, NO_COORDINATOR = 3, 6, 16, 15
OUT_OF_ORDER, DUPLICATE, OLD_EPOCH, INVALID_STATE, CONCURRENT, FENCED = 45, 46, 47, 48, 51, 90
SEND_FAILS, REQUEST_LOST, ANSWER_LOST, SILENCE, LATE = "send fails", "request lost", "answer lost", "silence", "late"
"""The first two: the broker has not heard it; then: it has carried it out; the same, and the connection is not cut; it
will carry it out when `Cluster.arrive` says so."""

FIRST, SECOND = 1, 2
ONLY_FIRST = pytest.mark.parametrize("cluster", [FIRST], indirect=True)
ONLY_SECOND = pytest.mark.parametrize("cluster", [SECOND], indirect=True)
LOSSES = pytest.mark.parametrize("loss", [SEND_FAILS, REQUEST_LOST, ANSWER_LOST, SILENCE])

LEFT_OUT: Final = -99
"""In the place of a code: the answer says nothing of the partition."""
KINDS: Final = {3: "metadata", 10: "find", 22: "begin", 24: "add", 26: "end"}
CONFIG: Final = ConnectionConfig(client_id="cdc", answer_s=1.0, options={})


class Done(NamedTuple):
    """A fault of records that were written nevertheless: there are too few copies of them yet, say."""

    code: int


class Heard(NamedTuple):
    """What a broker was asked, and when its answer to records was waited for ("read")."""

    broker: int
    what: str
    about: Any = None
    """The request as it was read; of "produce" the batches, by partition."""


class Written(NamedTuple):
    """A batch as a broker reads it."""

    sequence: int
    epoch: int
    values: list[bytes | None]


@dataclass
class Log:
    """Of a partition: what a broker knows of its one producer."""

    epoch: int = -1
    following: int = 0
    batches: list[Written] = field(default_factory=list)
    """All of the epoch."""
    open: list[bytes | None] = field(default_factory=list)
    committed: list[bytes | None] = field(default_factory=list)


def batch(topic: str, partition: int, *values: bytes) -> Batch:
    """Records without keys to speak of."""
    made = PlainBatches(list, list, lambda _: (1, None), most_records=999, most_bytes=9999, batch_bytes=9999)  # type: ignore[arg-type]
    for value in values:
        made.add(topic, b"k", value)
    return made.take()[0]._replace(partition=partition)


class Clock:
    """The producer's: pauses pass at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        self.paused = 0
        monkeypatch.setattr(producer, "time", self)
        monkeypatch.setattr(retries, "time", self)

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds
        self.paused += 1

    def time_ns(self) -> int:
        return int(self.now_s * 1e9)


class Cluster:
    """Two brokers, `one:1` and `two:2`. The first leads and coordinates everything, until it is told otherwise."""

    def __init__(self, *, second: bool, old: bool = False) -> None:
        self.second = second
        """Whether transactions go by version 2."""
        self._old = old
        """Whether those that lead do not ask the coordinator, as before 3.6: they take records of no transaction."""
        self.partitions = {"t": 3, "u": 1}
        self.leaders: dict[Partition, int] = {}
        self.coordinator = 1
        self.heard: list[Heard] = []
        self.logs: dict[Partition, Log] = {}
        self.epoch = 0
        self.open: set[Partition] = set()
        self.silent = False
        """No answer to records comes before it is waited for."""
        self.stale: dict[int, Mapping[Partition, int]] = {}
        """Brokers that are cut off from the others: whom they take for leaders."""
        self.newest: dict[Any, int] = {}
        """Of requests that brokers know only in older versions."""
        self.connections: list[Connection] = []
        """All that were ever made."""
        self.late: list[Callable[[], Any]] = []
        self._last_end: tuple[int, bool] | None = None
        self._faults: list[tuple[str, int | None, Any]] = []

    def fail(self, what: str, *faults: Any, broker: int | None = None) -> None:
        """Decide on the next requests of a kind: a code (of records by partition, or `Done`), a loss, or a call."""
        self._faults += [(what, broker, fault) for fault in faults]

    def heal(self) -> None:
        """Nothing fails any more."""
        self._faults.clear()

    def arrive(self) -> None:
        """Carry out what was late; nobody reads the answers."""
        late, self.late = self.late, []
        for request in late:
            request()

    def told(self, *kinds: str) -> list[Any]:
        """What requests of these kinds were about."""
        return [heard.about for heard in self.heard if heard.what in kinds]

    def order(self, *kinds: str) -> list[tuple[int, str]]:
        """Which broker was asked for what, one after the other."""
        return [heard[:2] for heard in self.heard if heard.what in kinds]

    def committed(self, partition: Partition) -> list[bytes | None]:
        return self.logs.get(partition, Log()).committed

    def connect(self, host: str, port: int, config: ConnectionConfig) -> Connection:
        assert (host, port) in {("one", 1), ("two", 2)}
        if self.fault("connect", port) is not None:
            raise LostError(f"{host}:{port}: Connection refused")
        made = Connection(self, port, config)
        self.connections.append(made)
        return made

    def fault(self, what: str, broker: int) -> Any:
        """What was told of such a request; calls are made, and tell nothing."""
        for n, (kind, of, fault) in enumerate(self._faults):
            if kind == what and of in {None, broker}:
                del self._faults[n]
                return fault() if callable(fault) else fault
        return None

    @property
    def all_failed(self) -> bool:
        """Whether everything went wrong that was told to."""
        return not self._faults

    # ---- what brokers do ----

    def metadata(self, request: Any, broker: int, code: int) -> Any:
        leaders = self.stale.get(broker, self.leaders)
        kind = MetadataResponse.MetadataResponseTopic
        names = [topic.name for topic in request.topics]
        return MetadataResponse(
            version=request.version,
            brokers=[
                MetadataResponse.MetadataResponseBroker(node_id=n, host=host, port=n)
                for n, host in enumerate(("one", "two"), start=1)
            ],
            topics=[
                kind(
                    name=name,
                    error_code=code if name in self.partitions else UNKNOWN_TOPIC,
                    partitions=[
                        kind.MetadataResponsePartition(
                            partition_index=n, leader_id=leaders.get((name, n), 1), replica_nodes=[], isr_nodes=[]
                        )
                        for n in range(self.partitions.get(name, 0))
                    ],
                )
                for name in names
            ],
        )  # fmt: skip

    def find(self, request: Any, _: int, code: int) -> Any:
        found = FindCoordinatorResponse.Coordinator(
            key=request.coordinator_keys[0],
            node_id=self.coordinator,
            host=("one", "two")[self.coordinator - 1],
            port=self.coordinator,
            error_code=code,
        )
        return FindCoordinatorResponse(version=request.version, coordinators=[found])

    def begin(self, request: Any, broker: int, code: int) -> Any:
        code = code or self._coordinated(broker)
        if not code:
            self.epoch += 1
            self._end(committed=False)
        return InitProducerIdResponse(
            version=request.version, error_code=code, producer_id=7, producer_epoch=self.epoch
        )

    def add(self, request: Any, broker: int, fault: Any) -> Any:
        assert not self.second
        code = self._coordinated(broker) or self._fenced(request.v3_and_below_producer_epoch)
        topics = request.v3_and_below_topics
        partitions = {(topic.name, partition) for topic in topics for partition in topic.partitions}
        codes = fault if isinstance(fault, dict) else dict.fromkeys(partitions, fault or code)
        if not any(codes.values()):
            self.open |= partitions
        kind = AddPartitionsToTxnResponse.AddPartitionsToTxnTopicResult
        result = kind.AddPartitionsToTxnPartitionResult
        return AddPartitionsToTxnResponse(
            version=request.version,
            results_by_topic_v3_and_below=[
                kind(
                    name=topic.name,
                    results_by_partition=[
                        result(partition_index=n, partition_error_code=codes[topic.name, n]) for n in topic.partitions
                    ],
                )
                for topic in topics
            ],
        )

    def end(self, request: Any, broker: int, code: int) -> Any:
        epoch, committed = request.producer_epoch, request.committed
        again = self._last_end == (epoch, committed) and not self.open
        code = code or self._coordinated(broker) or (0 if again else self._fenced(epoch))
        if not code and not again:
            self.epoch += self.second
            self._end(committed=committed)
            self._last_end = epoch, committed
        given = {"producer_id": 7, "producer_epoch": self.epoch} if request.version > 4 else {}
        return EndTxnResponse(version=request.version, error_code=code, **given)

    def produce(self, broker: int, sent: Mapping[Partition, Written], codes: Any) -> dict[Partition, int]:
        """The error of each partition."""
        if isinstance(codes, Done):
            return {partition: found or codes.code for partition, found in self.produce(broker, sent, None).items()}
        stated = {} if codes is None else codes if isinstance(codes, dict) else dict.fromkeys(sent, codes)
        found = {
            partition: stated.get(partition) or self._append(broker, partition, made)
            for partition, made in sent.items()
        }
        return {partition: code for partition, code in found.items() if code != LEFT_OUT}

    def _append(self, broker: int, partition: Partition, made: Written) -> int:
        log = self.logs.setdefault(partition, Log())
        if self.leaders.get(partition, 1) != broker:
            return NOT_LEADER
        if made.epoch < log.epoch or (made.epoch < self.epoch and not self._old):
            return OLD_EPOCH
        if self.second:
            self.open.add(partition)
        if partition not in self.open and not self._old:
            return INVALID_STATE
        if made.epoch > log.epoch:
            log.epoch, log.following, log.batches = made.epoch, 0, []
        if made in log.batches:
            return 0
        if made.sequence != log.following:
            return OUT_OF_ORDER
        log.following = (made.sequence + len(made.values)) % 2**31
        log.batches.append(made)
        log.open += made.values
        return 0

    def _coordinated(self, broker: int) -> int:
        return 0 if broker == self.coordinator else NOT_COORDINATOR

    def _fenced(self, epoch: int) -> int:
        return 0 if epoch == self.epoch else FENCED

    def _end(self, *, committed: bool) -> None:
        for partition in self.open:
            log = self.logs.setdefault(partition, Log())
            log.committed += log.open if committed else []
            log.open = []
            if self.epoch > log.epoch:
                log.epoch, log.following, log.batches = self.epoch, 0, []
        self.open = set()


class Connection:
    """As `sinks.client.connection.Connection` is used."""

    def __init__(self, cluster: Cluster, broker: int, config: ConnectionConfig) -> None:
        self.broker = broker
        self.answer_s = config.answer_s
        self.features = {"transaction.version": 2 if cluster.second else 1}
        self.closed = self.cut = self._spoiled = False
        self._cluster = cluster
        self._coming: Callable[[], Any] | None = None

    @property
    def usable(self) -> bool:
        return not (self.closed or self.cut)

    def version(self, request: Any, most: int | None = None) -> int:
        newest = self._cluster.newest.get(request, request.max_version)
        return int(newest if most is None else min(most, newest))

    def ask(self, request: Any) -> Any:
        assert self.usable
        assert self._coming is None and not self._spoiled, "a request before the answer to another"  # noqa: PT018
        if request.API_VERSION is None:
            request.API_VERSION = self.version(type(request))
        version = request.API_VERSION
        heard = type(request).decode(request.encode(), version=version)
        what = KINDS[request.API_KEY]
        fault = self._cluster.fault(what, self.broker)
        if fault in (SEND_FAILS, REQUEST_LOST):
            raise self._lost()
        if fault == LATE:
            self._cluster.late.append(partial(getattr(self._cluster, what), heard, self.broker, 0))
            raise self._lost()
        self._cluster.heard.append(Heard(self.broker, what, heard))
        answer = getattr(self._cluster, what)(heard, self.broker, 0 if fault in (ANSWER_LOST, SILENCE) else fault or 0)
        if fault in (ANSWER_LOST, SILENCE):
            raise self._lost(fault)
        return type(answer).decode(answer.encode(), version=version)

    def produce(self, version: int, sent: Any, *, transactional_id: str, timeout_ms: int) -> None:
        assert self.usable
        assert self._coming is None and not self._spoiled, "a request before the answer to another"  # noqa: PT018
        assert version == (12 if self._cluster.second else 11)
        assert transactional_id == "id"
        fault = self._cluster.fault("produce", self.broker)
        if fault == SEND_FAILS:
            raise self._lost()
        read = {
            (topic, partition): _read(header + records)
            for topic, batches in sent.items()
            for partition, header, records in batches
        }
        assert len(read) == sum(map(len, sent.values())), "two batches of a partition in a request"
        self._coming = partial(self._lose, None)
        if fault == LATE:
            self._cluster.late.append(partial(self._cluster.produce, self.broker, read, None))
        elif fault != REQUEST_LOST:
            self._cluster.heard.append(Heard(self.broker, "produce", read))
            codes = self._cluster.produce(self.broker, read, None if isinstance(fault, str) else fault)
            lost = fault in (ANSWER_LOST, SILENCE)
            self._coming = partial(self._lose, fault) if lost else partial(_answer, version, codes)

    def readable(self) -> bool:
        return self.cut or (self._coming is not None and not self._cluster.silent)

    def produced(self) -> ErrorCodes:
        coming, self._coming = self._coming, None
        assert coming is not None
        self._cluster.heard.append(Heard(self.broker, "read"))
        codes: ErrorCodes = coming()
        return codes

    def close(self) -> None:
        self.closed = True

    def _lose(self, fault: str | None) -> Any:
        raise self._lost(fault)

    def _lost(self, fault: str | None = None) -> LostError:
        self.cut = fault != SILENCE
        self._spoiled = True
        return LostError(f"broker {self.broker}: the broker has ended the connection")


def _read(written: bytes) -> Written:
    (found,) = MemoryRecords(written)
    assert found.validate_crc()
    assert (found.producer_id, found.compression_type) == (7, CODECS["none"].number)
    return Written(found.base_sequence, found.producer_epoch, [record.value for record in found])


def _answer(version: int, codes: Mapping[Partition, int]) -> ErrorCodes:
    kind = ProduceResponse.TopicProduceResponse
    result = kind.PartitionProduceResponse
    topics: dict[str, list[Any]] = {}
    for (topic, partition), code in codes.items():
        topics.setdefault(topic, []).append(result(index=partition, error_code=code, base_offset=0))
    made = ProduceResponse(
        version=version,
        responses=[kind(name=name, partition_responses=partitions) for name, partitions in topics.items()],
    )
    return answered(version, made.encode())[0]
