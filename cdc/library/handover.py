"""Hands transactions over from the thread that follows the log to the one that asks for them, and back what is done.

Nothing waits for `Transaction.done`: the next transaction is given without it. What is done alone is in the position
file, and so it is that alone which the source is told of.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from cdc.capture.across_sessions import Stopped
from cdc.files.large_events import LargeEvents
from cdc.files.position_file import Contents, PositionFile
from cdc.library.changes import Raw

_TENDED_S: Final = 1.0


@dataclass(slots=True)
class Group:
    """What is handed over as one transaction."""

    of: bytes | None
    """The transaction's id as JSON; None: rows that were read."""
    events: LargeEvents[Raw] = field(default_factory=LargeEvents)
    position: str = ""


@dataclass(slots=True)
class Batch:
    """The transactions of one commit of the loop's."""

    number: int
    groups: Sequence[Group]
    before: Contents
    after: Contents
    is_done: bool = False


class Progress:
    """Knows what is done. What it has returned from is on the disk."""

    def __init__(self, file: PositionFile) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._newest: Batch | None = None
        self._done = (0, 0)
        self.on_disk: Final = [file.read()]
        """The one item is what the file says."""

    def handed_over(self, batch: Batch) -> None:
        with self._lock:
            self._newest = batch

    def moved(self, contents: Contents) -> None:
        """Take up a position behind which nothing was handed over: it holds once all before it is done."""
        with self._lock:
            newest = self._newest
            if newest is None or newest.is_done:
                self._write(contents)
            else:
                newest.after = contents

    def done(self, batch: Batch, index: int) -> None:
        with self._lock:
            if (batch.number, index) < self._done:
                return
            self._done = (batch.number, index + 1)
            if index + 1 == len(batch.groups):
                batch.is_done = True
                self._write(batch.after)
                return
            logged = [group.position for group in batch.groups[: index + 1] if group.of is not None]
            self._write(replace(batch.before, through=logged[-1] if logged else batch.before.through))

    def _write(self, contents: Contents) -> None:
        self._file.write(contents)
        self.on_disk[0] = contents


class Channel:
    """Holds one batch between two threads."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Batch] = deque()
        self._closed = self._ended = False
        self._error: BaseException | None = None

    def put(self, batch: Batch, tend: Callable[[], None]) -> None:
        """Hand a batch over, and tend the source while the one before is not taken. Raises Stopped once closed."""
        while True:
            with self._changed:
                if not self._closed and self._waiting:
                    self._changed.wait(_TENDED_S)
                if self._closed:
                    raise Stopped
                if not self._waiting:
                    self._waiting.append(batch)
                    self._changed.notify_all()
                    return
            tend()

    def get(self) -> Batch | None:
        """Return the next batch; None: there will be no more. Raises what has ended the other thread."""
        with self._changed:
            while not (self._waiting or self._ended):
                self._changed.wait()
            if self._waiting:
                self._changed.notify_all()
                return self._waiting.popleft()
            if self._error is not None:
                raise self._error
            return None

    def end(self, error: BaseException | None) -> None:
        """Note that there will be no more."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def close(self) -> None:
        """Take nothing more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
