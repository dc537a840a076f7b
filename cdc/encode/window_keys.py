"""What is read again while the log is followed: who asks for it, and the keys of rows.

Those that a command requests, and those that the log has had events of.

A row that was read under a view must not follow an event of its key that the view did not see, because the event is
newer. `LoggedKeys` has the last transaction of each key; `cdc.capture.snapshots.incremental_snapshot` has the argument.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from cdc.model.change import Table, Xid
from cdc.model.interfaces import Window
from cdc.model.state import Key


class Requests(Protocol):
    """What is read again, as `cdc.capture.control.rereads` has it."""

    def add(self, table: Table, key: Key | None, reason: str = "") -> None:
        """Request the row with a key, or without one all rows of the table: no event says what became of them.

        A reason is for the log.
        """

    def resnapshot(self, table: Table, reason: str) -> None:
        """Request an incremental snapshot of a table; the reason is for the log."""

    def emptied(self, table: Table) -> None:
        """Have a table read from here on, because the rows it had are gone."""


@dataclass(frozen=True, slots=True)
class RequestedRows:
    """Keys of one table whose rows a command requests: as many as one view reads."""

    command: bytes
    """Its key in the signal topic."""
    name: str
    """``schema.table``"""
    keys: Sequence[Key]
    first: bool = False
    """The view must see all that the log has told before: an event told the keys, and not what became of the rows."""
    window: Window | None = None
    """Their rows, once read, and sometimes rows of similar keys; None: they cannot be read."""


class LoggedKeys:
    """Notes the keys of one table that the log has had events of, each with its last transaction."""

    def __init__(self) -> None:
        self.table = self.topic = ""
        """The table, and its topic, which others may share."""
        self._xids: dict[bytes, Xid] = {}
        self._emptied: Xid | None = None

    def follow(self, table: str, topic: str) -> None:
        """Forget everything; note the keys of `table` from now on."""
        self.table, self.topic = table, topic
        self._xids.clear()
        self._emptied = None

    def note(self, key: bytes, xid: Xid) -> None:
        self._xids[key] = xid

    def empty(self, xid: Xid) -> None:
        """Note a truncate, which concerns every key."""
        self._emptied = xid

    def unseen(self, key: bytes, sees: Callable[[Xid], bool]) -> bool:
        """Whether the log has had an event of `key` that a view did not see."""
        if self._emptied is not None and not sees(self._emptied):
            return True
        xid = self._xids.get(key)
        return xid is not None and not sees(xid)

    def is_seen(self, sees: Callable[[Xid], bool]) -> bool:
        """Whether a view has seen all that the log has had of the table."""
        return all(map(sees, self._xids.values())) and (self._emptied is None or sees(self._emptied))

    def __contains__(self, key: bytes) -> bool:
        return self._emptied is not None or key in self._xids

    def forget_seen(self, sees: Callable[[Xid], bool]) -> None:
        """Forget what a view has seen: every later view sees it too."""
        self._xids = {key: xid for key, xid in self._xids.items() if not sees(xid)}
        if self._emptied is not None and sees(self._emptied):
            self._emptied = None
