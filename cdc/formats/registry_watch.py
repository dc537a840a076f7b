"""Looks, while the log is followed, whether a schema registry still has the ids that records are written with.

One that was made again, or restored from a backup, gives them to other schemas: readers would take records for what
they are not, and nothing would tell of it. It is also asked whether it takes by now what it has refused: the table is
left out until then. It is asked in a thread of its own, so that the loop waits for nothing, and counts for nothing
while it is away.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from cdc.model.errors import CdcError

_EVERY_S: Final = 60.0
_AGAIN_S: Final = 1.0
"""After so long it is asked a second time: one that is just beginning may not have all."""

log = logging.getLogger("cdc.registry")


class RegistryWatch:
    """Looks now and then."""

    def __init__(
        self,
        same: Callable[[], bool],
        takes: Callable[[], bool] = lambda: False,
        *,
        every_s: float = _EVERY_S,
        again_s: float = _AGAIN_S,
    ) -> None:
        """`same` tells whether the ids are as they were, `takes` whether a schema that was refused would be taken.

        They are called in another thread, by one at a time.
        """
        self._same, self._takes, self._every_s, self._again_s = same, takes, every_s, again_s
        self._due_s = time.monotonic() + every_s
        self._thread: threading.Thread | None = None
        self._moved = False

    def moved(self) -> bool:
        """Whether two looks in turn have found other ids, or a refused schema would be taken. Waits for nothing."""
        if self._thread is not None and not self._thread.is_alive():
            self._thread, self._due_s = None, time.monotonic() + self._every_s
            if self._moved:
                self._moved = False
                return True
        if self._thread is None and time.monotonic() >= self._due_s:
            self._thread = threading.Thread(target=self._run, name="cdc-registry-watch", daemon=True)
            self._thread.start()
        return False

    def _run(self) -> None:
        for look in (self._is_another, self._takes):  # what hinders the one look is nothing to the other
            try:
                self._moved |= look()
            except CdcError as exc:  # while no table changes it may be away
                log.debug("the schema registry cannot be looked at: %s", exc)

    def _is_another(self) -> bool:
        if self._same():
            return False
        time.sleep(self._again_s)
        return not self._same()
