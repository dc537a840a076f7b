"""Where in the log a session is, as positions that commands, readings and events are told."""

from __future__ import annotations

from cdc.encode.envelope.frame import Frame
from cdc.model.change import WINDOWS, Position
from cdc.model.interfaces import Source
from cdc.model.state import State


class Place:
    """Moves with the loop: its commits, the transaction that is being written, the rows written between two."""

    def __init__(self, source: Source, state: State) -> None:
        self._source = source
        self.state = state
        """As last committed."""
        self.frame: Frame | None = None
        """Of the transaction that is being written."""
        self.view = state.windows
        """The greatest number of a view so far: the last part of its rows' position."""

    def committed(self) -> str:
        """Give a position before which all is committed."""
        return Position(self.state.epoch, self.state.commit, 0).text

    def log_end(self) -> str:
        """Give a position behind all that is in the log by now: what has changed the rows may be anywhere before it."""
        return self._before_next(max(self._source.current(), self._source.position()[1], self.state.commit))

    def since(self) -> str:
        """Give a position before all that is written from now on, behind all that was."""
        if self.frame is not None:
            return self.frame.next_position()
        return self._before_next(max(self._source.position()[1], self.state.commit))

    def _before_next(self, commit: int) -> str:
        """Give the position of the next window, if it is written there.

        What begins there is committed with a number that an earlier release, too, numbers its windows from: what it
        reads would be older than the reading else, and be deleted as stale.
        """
        self.view = max(self.view, WINDOWS)
        return Position(self.state.epoch, commit - 1, Position.window(self.view)).text
