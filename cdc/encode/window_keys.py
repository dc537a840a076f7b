"""Keys that an incremental snapshot reads while the log is followed: those asked for, those the log has told of.

A row that was read under a view must not follow an event of its key that the view did not see: the event has told more.
`LoggedKeys` remembers, for the window in hand, which transaction spoke of a key last.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cdc.model.change import Xid
from cdc.model.interfaces import Window
from cdc.model.state import Key


@dataclass(frozen=True, slots=True)
class RequestedRows:
    """Keys of one table whose rows a command asks for: as many as one view reads."""

    command: bytes
    """Its key in the signal topic."""
    name: str
    """``schema.table``"""
    keys: Sequence[Key]
    window: Window | None = None
    """Once read: their rows, and at times those of neighbours; None: they cannot be read."""


class LoggedKeys:
    """Keys of the table in hand that the log has told of, with the last transaction that did."""

    def __init__(self) -> None:
        self.topic = ""
        self._xids: dict[bytes, Xid] = {}
        self._emptied: Xid | None = None

    def follow(self, topic: str) -> None:
        """Forget everything; note what comes for `topic` from now on."""
        self.topic = topic
        self._xids.clear()
        self._emptied = None

    def note(self, key: bytes, xid: Xid) -> None:
        self._xids[key] = xid

    def empty(self, xid: Xid) -> None:
        """A truncate: it concerns every key."""
        self._emptied = xid

    def unseen(self, key: bytes, sees: Callable[[Xid], bool]) -> bool:
        """Whether the log has told of `key` something that a view did not see."""
        if self._emptied is not None and not sees(self._emptied):
            return True
        xid = self._xids.get(key)
        return xid is not None and not sees(xid)

    def __contains__(self, key: bytes) -> bool:
        return self._emptied is not None or key in self._xids

    def forget_seen(self, sees: Callable[[Xid], bool]) -> None:
        """Forget what a view has seen: every later one does."""
        self._xids = {key: xid for key, xid in self._xids.items() if not sees(xid)}
        if self._emptied is not None and sees(self._emptied):
            self._emptied = None
