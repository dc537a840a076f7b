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

from cdc.model.errors import CdcError, OperatorError, TopicError, raise_of_topics
from cdc.model.ledger import Loss, TopicFacts, loss
from sinks.client.failures import DRIVER_ERRORS
from sinks.topics.ends import Reached, compared, of_these
from sinks.topics.topics import Topics, Wanted

_EVERY_S: Final = 60.0
"""Brokers take a policy up more slowly: by default they look for what to delete every five minutes."""
_SHARE: Final = 50
"""A look takes at most one part in so many of the time."""
_AGAIN_S: Final = 2.0

log = logging.getLogger("cdc.kafka")


@dataclass(frozen=True, slots=True)
class Seen:
    """Is what a look has found."""

    refusals: Sequence[OperatorError] = ()
    """What a start would stop at."""
    lost: bool = False
    """Records of a topic that keeps them were deleted, or brokers have lost them."""
    is_right: bool = False
    """A topic is as it must be that was refused before the session began."""
    led: bool = True
    """All partitions had a leader, which told where they end."""


def look(
    connect: Callable[[], Topics],
    wanted: Sequence[Wanted],
    before: Mapping[str, TopicFacts],
    committed: Callable[[], Reached],
    refused: Sequence[Wanted] = (),
) -> Seen:
    """Compare topics with how they must be, with how they were `before` and how far they reach. Raises as `Topics`.

    `refused` are topics whose tables are left out until those are right.
    """
    reached = committed()
    keeping = [topic.name for topic in wanted if topic.configs.get("cleanup.policy") == "compact"]
    with connect() as topics:
        refusals, now = topics.refusals(wanted), topics.facts(keeping)
        still = {of.topic for of in topics.refusals(refused) if isinstance(of, TopicError)} if refused else set()
    losses = (
        loss(before.get(name), of, keeps=True) for name, of in compared(now, of_these(now, before, reached)).items()
    )
    led = all(facts.ends for facts in now.values())
    lost = any(what in (Loss.FORGOTTEN, Loss.CUT) for what in losses)
    return Seen(refusals, lost, bool({topic.of for topic in refused} - still), led)


class SettingsWatch:
    """Looks now and then. What is refused counts only if two looks in turn have found it: it may be on its way back."""

    def __init__(self, look: Callable[[], Seen], *, every_s: float = _EVERY_S) -> None:
        """`look` is called in another thread, by one at a time."""
        self._look, self._every_s = look, every_s
        self._due_s = time.monotonic() + every_s
        self._thread: threading.Thread | None = None
        self._is_urgent = False
        self._found = Seen()
        self._before: frozenset[str] = frozenset()

    def moved(self) -> bool:
        """Tell whether records were lost, or a topic is right that was refused. Waits for nothing.

        Raises OperatorError for what a start would refuse.
        """
        if self._thread is not None and not self._thread.is_alive():
            self._thread = None
            before, self._before = self._before, frozenset(refusal.message for refusal in self._found.refusals)
            raise_of_topics(refusal for refusal in self._found.refusals if refusal.message in before)
            if self._found.lost or self._found.is_right:
                return True
        if self._thread is None and time.monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._run, name="cdc-topics", daemon=True)
            self._thread.start()
        return False

    def soon(self) -> None:
        """Look as soon as a broker answers: one was away, and may have come back with less than it had."""
        if not self._is_urgent:
            self._is_urgent, self._due_s = True, time.monotonic()

    def _run(self) -> None:
        begun_s, self._found = time.monotonic(), Seen()
        urgent, self._is_urgent = self._is_urgent, False  # a broker may go away while this looks
        try:
            self._found = self._look()
            urgent &= not self._found.led
        except (CdcError, *DRIVER_ERRORS) as exc:  # the loop itself tells of brokers that are away
            log.debug("the topics' settings cannot be looked at: %s", exc)
        finally:
            self._is_urgent |= urgent
            ended_s = time.monotonic()
            after_s = max(self._every_s, (ended_s - begun_s) * _SHARE)
            self._due_s = ended_s + (min(_AGAIN_S, after_s) if self._is_urgent else after_s)
