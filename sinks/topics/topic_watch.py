"""Looks, while the log is followed, whether the topics are still those that the session has found."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from cdc.model.ledger import TopicFacts
from sinks.client.connection import LostError

There: TypeAlias = Callable[[Sequence[str]], Mapping[str, tuple[str, int]]]
"""Gives the identity and the number of partitions of those topics that are there."""

_LOOKED_AT: Final = 500
_LOOK_S: Final = 1.0
"""While the log is followed so many topics are looked at in so many seconds: the loop does not wait for thousands."""

log = logging.getLogger("cdc.kafka")


class TopicWatch:
    """Looks at some of them at a time."""

    def __init__(self) -> None:
        self._looked_s = 0.0
        self._look_from = 0

    def moved(self, found: Mapping[str, TopicFacts], there: There, *, whole: bool) -> bool:
        """Whether one of the topics `found` is another one now; all of them are looked at if `whole`."""
        now_s = time.monotonic()
        if not (whole or now_s - self._looked_s >= _LOOK_S):
            return False
        self._looked_s, names = now_s, sorted(found)
        begin = 0 if whole or self._look_from >= len(names) else self._look_from
        for at in range(begin, len(names) if whole else min(begin + 1, len(names)), _LOOKED_AT):
            self._look_from = at + _LOOKED_AT
            if _are_others(names[at : at + _LOOKED_AT], found, there):
                return True
        return False


def _are_others(names: Sequence[str], found: Mapping[str, TopicFacts], there: There) -> bool:
    """Tell whether one of the topics is gone or is another one than this session has found."""
    try:
        now = there(names)
    except LostError as exc:
        log.debug("the topics cannot be looked at: %s", exc)
        return False
    for name in names:
        facts, (identity, partitions) = found[name], now.get(name, ("", 0))
        if partitions == 0 and name in now:  # it is there; its leaders are just being chosen
            continue
        same = identity == facts.identity or not (identity and facts.identity)
        if name not in now or not same or partitions != facts.partitions:
            return True
    return False
