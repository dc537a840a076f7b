"""A flag that a signal handler may raise, whatever the thread was at that the signal interrupts."""

from __future__ import annotations

import queue
import threading
import time
from typing import Final

_SLICE_S: Final = 0.5
"""A waiter whose token another one has taken looks again after so long."""


class Flag(threading.Event):
    """An event in all that it does, but for its lock: `threading.Event` has one that its own thread waits for.

    A handler runs on the main thread, between two steps of what that does. Where these are within `wait`, `clear` or
    `set` of an event, the handler's `set` waits for a lock that its own thread holds, for ever. The queue used here may
    be put into at any moment; what is looked at is one attribute.
    """

    def __init__(self) -> None:
        super().__init__()
        self._raised = False
        self.signal: int | None = None
        """The number of the first signal that raised it."""
        self._tokens: queue.SimpleQueue[None] = queue.SimpleQueue()

    def is_set(self) -> bool:
        return self._raised

    def set(self) -> None:
        """Raise it, and wake who waits."""
        self._raised = True
        self._tokens.put(None)

    def clear(self) -> None:
        """Lower it; a handler that raises it meanwhile may win."""
        while not self._tokens.empty():
            try:
                self._tokens.get_nowait()
            except queue.Empty:
                break
        self._raised = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is raised, for so many seconds; return whether it is."""
        until_s = float("inf") if timeout is None else time.monotonic() + timeout
        while not self.is_set():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                break
            try:
                self._tokens.get(timeout=min(left_s, _SLICE_S))
            except queue.Empty:
                continue
            if self.is_set():
                self._tokens.put(None)  # for who else waits
        return self.is_set()
