"""What the sink needs of a producer, whichever client it is made of: `sink.producer` chooses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from sinks.producer.batches import Batch


class TransactionalProducer(Protocol):
    """Writes batches in Kafka transactions as one transactional id, in the order they were handed over.

    Its methods raise RefusedError where a broker's answer does not pass, LostError where none comes in time, and
    OperatorError.
    """

    @property
    def interrupted(self) -> bool:
        """Tell whether a request may have been sent twice: a copy in flight must meet another epoch."""

    @property
    def fences_itself(self) -> bool:
        """Tell whether a copy of what began this epoch may be in flight, which would fence it as others do."""

    def begin_epoch(self, within_s: float) -> None:
        """Fence all who have used this id before; on return, what was open of it has ended."""

    def partitions(self, topic: str, beside: Iterable[str] = ()) -> int:
        """Return how many partitions a topic has; `beside` may be looked up with it."""

    def there(self, topics: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Return id and partitions of those of the topics that exist. Raises LostError only."""

    def ready(self) -> bool:
        """Tell whether all that was handed over has been written; waits for no answer."""

    def send(self, batches: list[Batch]) -> None:
        """Hand over batches; the list is emptied. Waits for what was handed over before."""

    def flush(self) -> None:
        """Return when all that was handed over has been written."""

    def commit(self) -> None:
        """Make all that was handed over since the last commit visible at once."""

    def close(self) -> None:
        """Abort what is open if that can be done at once, else the next producer does; close connections."""
