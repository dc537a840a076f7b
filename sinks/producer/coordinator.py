"""Talks to the broker that coordinates a transactional id: who may write, where, and when all of it becomes visible.

https://cwiki.apache.org/confluence/display/KAFKA/KIP-98, and version 2 of that protocol (KIP-890) where the cluster has
it on. Requests to the coordinator have no sequence by which copies could be told apart: `interrupted` says that one may
have been sent twice.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from kafka import errors as codes
from kafka.protocol.producer import AddPartitionsToTxnRequest, EndTxnRequest, InitProducerIdRequest

from cdc.model.errors import OperatorError
from sinks.client.brokers import Brokers
from sinks.client.connection import Connection, LostError
from sinks.client.record_batch import Identity
from sinks.producer.retries import MOVED, PASSING, Patience, RefusedError, Waiting, code_of

_CLOSE_S: Final = 2.0
_FEATURE: Final = "transaction.version"
_SECOND: Final = 2
_NOT_IN_TWO_PHASES: Final = 5
_MOST_ADDED: Final = 3
"""From version 4 on AddPartitionsToTxn is for brokers only."""
_GIVES_EPOCH: Final = 5
"""From this version on EndTxn gives the next transaction's epoch."""


class Coordinator:
    """Runs transactions of one id. Raises RefusedError, LostError when waiting has not helped, OperatorError."""

    def __init__(self, brokers: Brokers, waiting: Waiting, *, transactional_id: str, timeout_ms: int) -> None:
        self._brokers, self._waiting = brokers, waiting
        self._id = transactional_id
        self._timeout_ms = timeout_ms
        self.identity = Identity(-1, -1)
        self.version_2 = False
        """Whether transactions follow version 2 of the protocol."""
        self._added: set[tuple[str, int]] = set()
        self.in_transaction = False
        """Whether it may hold a transaction open."""
        self.interrupted = False
        """Whether a request may have been sent twice: a copy in flight must meet another epoch."""
        self.fences_itself = False
        """Whether a copy of what began this epoch may be in flight, which would fence it as another producer does."""

    def begin_epoch(self, within_s: float) -> None:
        """Fence all who have used this id before; on return, what was open of it has ended."""
        self.in_transaction = self.interrupted = self.fences_itself = False
        self._added.clear()
        self._waiting.accepted()
        self._brokers.drop_coordinator()  # a new connection says which version of transactions holds now
        self.version_2 = self._connection(Patience(within_s)).features.get(_FEATURE, 0) >= _SECOND
        answer = self._ask(
            lambda connection: InitProducerIdRequest(
                transactional_id=self._id,
                transaction_timeout_ms=self._timeout_ms,
                version=connection.version(InitProducerIdRequest, _NOT_IN_TWO_PHASES),
            ),
            within_s,
        )
        self.fences_itself, self.interrupted = self.interrupted, False
        self.identity = Identity(answer.producer_id, answer.producer_epoch)

    def add_partitions(self, written: set[tuple[str, int]]) -> None:
        """Tell that the transaction is about to write to these partitions. In version 2 brokers add them."""
        partitions = written - self._added
        if not partitions:
            return
        self.in_transaction = True
        by_topic: dict[str, list[int]] = {}
        for topic, partition in partitions:
            by_topic.setdefault(topic, []).append(partition)
        kind = AddPartitionsToTxnRequest.AddPartitionsToTxnTopic
        self._ask(
            lambda connection: AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self._id,
                v3_and_below_producer_id=self.identity.producer_id,
                v3_and_below_producer_epoch=self.identity.epoch,
                v3_and_below_topics=[kind(name=name, partitions=numbers) for name, numbers in by_topic.items()],
                version=connection.version(AddPartitionsToTxnRequest, _MOST_ADDED),
            ),
        )
        self._added.update(partitions)

    def commit(self) -> None:
        """Commit: all that was written in the transaction becomes visible at once."""
        answer = self._ask(lambda connection: self._ending(connection, committed=True))
        self.in_transaction = False
        self._added.clear()
        if self.version_2:
            self.identity = Identity(answer.producer_id, answer.producer_epoch)

    def abort(self) -> None:
        """Abort what is open, if the coordinator can be told at once; else the next producer of this id does."""
        connection = self._brokers.open_coordinator()
        if self.in_transaction and connection is not None:
            connection.answer_s = _CLOSE_S
            with suppress(LostError, RefusedError, OperatorError):
                connection.ask(self._ending(connection, committed=False))
        self.in_transaction = False

    def request_version(self, connection: Connection, request: type[Any], second: int) -> int:
        """Return a version of a request that tells the protocol's: from `second` on it means version 2."""
        if not self.version_2:
            return connection.version(request, second - 1)
        version = connection.version(request, second)
        if version < second:  # an older broker is back in the cluster
            raise RefusedError(code_of(codes.UnsupportedVersionError))
        return version

    def _ending(self, connection: Connection, *, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self._id,
            producer_id=self.identity.producer_id,
            producer_epoch=self.identity.epoch,
            committed=committed,
            version=self.request_version(connection, EndTxnRequest, _GIVES_EPOCH),
        )

    def _ask(self, make: Callable[[Connection], Any], within_s: float | None = None) -> Any:  # noqa: ANN401
        """Ask, and again until there is an answer."""
        patience = Patience() if within_s is None else Patience(within_s)
        while True:
            connection = self._connection(patience)
            try:
                answer = connection.ask(make(connection))
            except LostError as exc:
                self._brokers.drop_coordinator()
                self.interrupted = True
                self._waiting.wait(patience, exc)
                continue
            code = _worst(answer)
            if code == 0:
                self._waiting.accepted()
                return answer
            if code in MOVED or self._waiting.may_be_stale(code):
                self._brokers.drop_coordinator(moved=True)
            elif code not in PASSING:
                raise RefusedError(code)
            self._waiting.wait(patience, RefusedError(code))

    def _connection(self, patience: Patience) -> Connection:
        return self._waiting.patiently(lambda: self._brokers.coordinator(self._id), patience)


def _worst(answer: Any) -> int:  # noqa: ANN401 - a message
    """Return an answer's error; of one about partitions the first that is about the partition itself."""
    if not hasattr(answer, "results_by_topic_v3_and_below"):
        return int(answer.error_code)
    said = [
        each.partition_error_code
        for topic in answer.results_by_topic_v3_and_below
        for each in topic.results_by_partition
    ]
    skipped = code_of(codes.OperationNotAttemptedError)
    return next((code for code in said if code not in {0, skipped}), max(said, default=0))
