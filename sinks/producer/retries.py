"""Decides which answers of brokers pass if one waits, for how long, and what is logged meanwhile."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeVar

from kafka import errors as codes

from sinks.client.brokers import AnswerError, Brokers
from sinks.client.connection import LostError
from sinks.producer.batches import Batch

PATIENCE_S: Final = 120.0
ABSENT_S: Final = 30.0
"""How long a broker may say that a topic is not there, which it does for a moment after it was made."""
STALE_S: Final = 5.0
"""For how long being fenced may be an outdated answer, which another broker would not give."""

_PAUSE_FIRST_S: Final = 0.002
_PAUSE_LONGEST_S: Final = 0.5
_COMPLAIN_S: Final = 30.0


def code_of(error: type[codes.KafkaError]) -> int:
    """Return Kafka's number of an error."""
    return int(error.errno)


MOVED: Final = {code_of(codes.CoordinatorNotAvailableError), code_of(codes.NotCoordinatorError)}
UNDER_WAY: Final = code_of(codes.ConcurrentTransactionsError)
ABSENT: Final = code_of(codes.UnknownTopicOrPartitionError)
PASSING: Final = {
    UNDER_WAY,
    ABSENT,
    *MOVED,
    code_of(codes.CoordinatorLoadInProgressError),
    code_of(codes.LeaderNotAvailableError),
    code_of(codes.NotLeaderForPartitionError),
    code_of(codes.RequestTimedOutError),
    code_of(codes.ReplicaNotAvailableError),
    code_of(codes.NetworkExceptionError),
    code_of(codes.NotEnoughReplicasError),
    code_of(codes.NotEnoughReplicasAfterAppendError),
    code_of(codes.KafkaStorageError),
    code_of(codes.FencedLeaderEpochError),
    code_of(codes.UnknownLeaderEpochError),
}
"""Errors that pass, if one waits or asks another broker."""
FENCED: Final = {code_of(codes.ProducerFencedError), code_of(codes.InvalidProducerEpochError)}
"""Errors that a producer is given once another one of its id has fenced it."""

log = logging.getLogger("cdc")

_T = TypeVar("_T")


class RefusedError(Exception):
    """A broker has answered with an error that does not pass; `batch` is what it was about, where it was one.

    The batch has its records only if there is just one.
    """

    def __init__(self, code: int, batch: Batch | None = None) -> None:
        super().__init__(codes.for_code(code).__name__)
        self.code = code
        self.batch = batch


def _now_s() -> float:
    return time.monotonic()


@dataclass(slots=True)
class Patience:
    """Says how long something that passes is waited for, and with which pauses."""

    within_s: float = PATIENCE_S
    began_s: float = field(default_factory=_now_s)
    pause_s: float = _PAUSE_FIRST_S

    def wait(self, reason: Exception) -> None:
        """Pause; after a while log it, and ask another broker: one cut off from the others knows of no changes."""
        if time.monotonic() - self.began_s > self.within_s:
            raise reason
        time.sleep(self.pause_s)
        self.pause_s = min(2 * self.pause_s, _PAUSE_LONGEST_S)

    @property
    def long(self) -> bool:
        """Tell whether it has been waited for a while."""
        return self.pause_s >= _PAUSE_LONGEST_S


class Waiting:
    """Waits on behalf of one producer."""

    def __init__(self, servers: str, brokers: Brokers) -> None:
        """Name `servers` in what is logged."""
        self._servers = servers
        self._brokers = brokers
        self._fenced_s: float | None = None
        """When a broker first said that another producer has taken over, if none has denied it since."""
        self._complained_s = float("-inf")

    def accepted(self) -> None:
        """Note that a broker takes this producer for the one that may write."""
        self._fenced_s = None

    def may_be_stale(self, code: int) -> bool:
        """Tell whether the broker that says we are fenced may be outdated, so that another broker would not say it.

        A broker that was frozen goes on for a moment as if it still coordinated or led, by what it knew then. A
        producer that is really fenced stays fenced.
        """
        if code not in FENCED:
            return False
        now = time.monotonic()
        self._fenced_s = now if self._fenced_s is None else self._fenced_s
        return now - self._fenced_s < STALE_S

    def patiently(self, look: Callable[[], _T], patience: Patience) -> _T:
        """Return what any broker says. Raises RefusedError, and LostError when waiting has not helped."""
        while True:
            try:
                return look()
            except AnswerError as exc:
                if exc.code not in PASSING:
                    raise RefusedError(exc.code) from exc
                self.wait(patience, RefusedError(exc.code))
            except LostError as exc:
                self.wait(patience, exc)

    def wait(self, patience: Patience, reason: Exception) -> None:
        """After a while say so, and ask another broker: one that is cut off from the others knows of no changes."""
        patience.wait(reason)
        if patience.long:
            self._brokers.ask_another()
            self._complain(reason)

    def _complain(self, reason: Exception) -> None:
        """Log, at most once in a while, what is waited for."""
        now = time.monotonic()
        if now - self._complained_s > _COMPLAIN_S:
            self._complained_s = now
            log.warning("Kafka at %s: no broker answers as it must (%s); waiting for one", self._servers, reason)
