"""Looks, while the log is followed, for what the next start would refuse or read again: it may be a long way off.

A topic that somebody gives another policy forgets rows from then on, and no record, id or number of partitions tells of
it. It is asked for in a thread of its own, so that the loop waits for nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cdc.model.errors import CdcError, OperatorError
from cdc.model.ledger import Loss, TopicFacts, loss
from sinks.client.failures import DRIVER_ERRORS
from sinks.topics.topics import Topics, Wanted

_EVERY_S: Final = 60.0
"""Brokers take a policy up more slowly: by default they look for what to delete every five minutes."""
_SHARE: Final = 50
"""A look takes at most one part in so many of the time."""

log = logging.getLogger("cdc.kafka")


@dataclass(frozen=True, slots=True)
class Seen:
    """Is what a look has found."""

    refusals: Sequence[OperatorError] = ()
    """What a start would stop at."""
    emptied: bool = False
    """Records of a topic that keeps them were deleted."""


def look(connect: Callable[[], Topics], wanted: Sequence[Wanted], before: Mapping[str, TopicFacts]) -> Seen:
    """Compare topics with how they must be, and with how they were `before`. Raises as `Topics` does."""
    keeping = [topic.name for topic in wanted if topic.configs.get("cleanup.policy") == "compact"]
    with connect() as topics:
        refusals, now = topics.refusals(wanted), topics.facts(keeping)
    return Seen(refusals, any(loss(before.get(name), of, keeps=True) is Loss.FORGOTTEN for name, of in now.items()))


class SettingsWatch:
    """Looks now and then. What is refused counts only if two looks in turn have found it: it may be on its way back."""

    def __init__(self, look: Callable[[], Seen], *, every_s: float = _EVERY_S) -> None:
        """`look` is called in another thread, by one at a time."""
        self._look, self._every_s = look, every_s
        self._due_s = time.monotonic() + every_s
        self._thread: threading.Thread | None = None
        self._found = Seen()
        self._before: frozenset[str] = frozenset()

    def moved(self) -> bool:
        """Tell whether records were deleted. Raises OperatorError for what a start would refuse. Waits for nothing."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            before, self._before = self._before, frozenset(refusal.message for refusal in self._found.refusals)
            for refusal in self._found.refusals:
                if refusal.message in before:
                    raise refusal
            if self._found.emptied:
                return True
        if self._thread is None and time.monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._run, name="cdc-topics", daemon=True)
            self._thread.start()
        return False

    def _run(self) -> None:
        begun_s, self._found = time.monotonic(), Seen()
        try:
            self._found = self._look()
        except (CdcError, *DRIVER_ERRORS) as exc:  # the loop itself tells of brokers that are away
            log.debug("the topics' settings cannot be looked at: %s", exc)
        finally:
            ended_s = time.monotonic()
            self._due_s = ended_s + max(self._every_s, (ended_s - begun_s) * _SHARE)
