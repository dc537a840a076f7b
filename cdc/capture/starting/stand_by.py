"""A copy of a connector stands by while another one is at work, and goes on when that one is gone.

Two copies that are started again whenever they fail would fence each other off for ever: the one that comes later waits
instead, holding nothing. Who is at work, the source tells (PostgreSQL: the slot is active, or the connector's lock is
held). A copy that died without a goodbye, or is cut off from the source, is seen there until the server notices, a
minute or so by default. A copy that is cut off from Kafka ends its session and lets go. After both, this one goes on:
if the other was alive after all, it is fenced. That costs nothing but its exit, because exactly-once rests on fencing
alone and not on what is seen here.

A copy that fails tries again within seconds. So it must be away for as long as it was seen, at most 5 s.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cdc.capture.across_sessions import Stopped
from cdc.capture.settings import Settings
from cdc.model.errors import OperatorError
from cdc.model.interfaces import Shared, Sink, Source
from cdc.model.meter import Meter, RunState

STAND_BY_FIRST_S: Final = 0.1
STAND_BY_LONGEST_S: Final = 2.0
STAND_BY_LOOK_S: Final = 10.0
STAND_BY_SAID_S: Final = 60.0
STAND_BY_SETTLED_S: Final = 1.0
"""A server takes a moment to see that a process was killed: nothing is said of that."""
GONE_S: Final = 5.0
TO_END_S: Final = 130.0
"""A copy that is to end when it has caught up stands by for so long: until then one whose machine died may be seen."""

log = logging.getLogger("cdc")


class StandBy:
    """Waits for the end of other copies."""

    def __init__(
        self,
        settings: Settings,
        sink: Sink,
        stop: threading.Event,
        refuse_second_copy: Callable[[], None],
        meter: Meter,
    ) -> None:
        """`refuse_second_copy` raises OperatorError if this copy was fenced off: it does not wait for its turn."""
        self._settings, self._sink, self._stop, self._refuse_second_copy = settings, sink, stop, refuse_second_copy
        self._meter = meter
        self._begun_s = time.monotonic()
        self.stood_by = False
        """Whether this copy has found another one at work, and has not run since."""
        self.has_seen = False
        """Whether it has found one since the file was read last: that one may go by a newer file."""

    def takes_over(self, *, ran: bool) -> bool:
        """Whether this copy fences another one at once. `ran`: it has run before."""
        settings = self._settings
        return settings.take_over and not ran and time.monotonic() - self._begun_s <= settings.take_over_within_s

    def wait(self, source: Source, *, ran: bool, to_end: bool = False) -> bool:
        """Return when no other copy is at work, or at once if this one is to take over; whether it has stood by.

        `ran`: this copy has run before. `to_end`: it ends when it has caught up. Raises Stopped, and OperatorError
        where another copy has not ended by `TO_END_S`.
        """
        if not isinstance(source, Shared) or self.takes_over(ran=ran):
            return False
        begun_s = seen_s = time.monotonic()
        told_s = looked_s = float("-inf")
        pause_s = STAND_BY_FIRST_S
        while True:
            who, now = source.follower(), time.monotonic()
            if who is None and now - seen_s >= min(GONE_S, seen_s - begun_s):
                break
            if who is not None and not (who.certain or self.stood_by or self._sink.check(())):
                return False  # a connector without a position has no slot: this is another tool's, a verdict says so
            if who is not None and to_end and not ran and now - begun_s >= TO_END_S:
                raise OperatorError(
                    f"connector {self._settings.connector}: a copy is at work already ({who.who})",
                    hint="nothing is to be done, it brings what is committed; to catch up in its place, stop it first",
                )
            if who is not None:
                if now - looked_s >= STAND_BY_LOOK_S:
                    self._refuse_second_copy()
                    looked_s = now
                self.stood_by = self.has_seen = True
                seen_s = now
                self._meter.becomes(RunState.STANDBY)
                if now - begun_s >= STAND_BY_SETTLED_S and now - told_s >= STAND_BY_SAID_S:
                    told_s = now
                    log.warning(
                        "connector %s stands by: another copy%s is at work (%s); it goes on when that one is gone; "
                        "cdc run --take-over fences it at once",
                        self._settings.connector, ", or its own former connection," if ran else "", who.who,
                    )  # fmt: skip
            self._meter.moves()
            if self._stop.wait(pause_s):
                raise Stopped
            pause_s = min(pause_s * 2, STAND_BY_LONGEST_S)
        if told_s > 0:
            log.info("connector %s: no other copy is at work any more: going on", self._settings.connector)
        return self.stood_by
