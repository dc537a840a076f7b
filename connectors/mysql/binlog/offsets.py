"""Counts offsets in a file of the binlog with 64 bits, of which an event's header has the lower 32. Pure.

A transaction is never split over files, so one large transaction makes a file longer than 4 GiB, and its events' end
positions begin again at 0 (MySQL bug 112189). Events come in the order of the file; some may be left out by the server,
none goes back. So the next end is the first offset behind the last one that has these 32 bits, if an event of this size
fits in between. No event is as long as 2 GiB: a step of that much is what a dump by GTIDs has left out, or the log goes
back.
"""

from __future__ import annotations

from typing import Final

from cdc.model.errors import GapError
from connectors.mysql.binlog.events import Header

_WRAP: Final = 1 << 32
_LONGEST_STEP: Final = 1 << 31


class FileOffsets:
    """Is where the log stands in a file: behind the last event that was read."""

    def __init__(self, *, whole: bool = True) -> None:
        """Read files of which events may be left out, if not `whole`."""
        self._whole = whole
        self._file = ""
        self.at = 0

    def begin(self, file: str, offset: int) -> None:
        """Go on in `file` at `offset`, as the server says in a ROTATE event."""
        self._file, self.at = file, offset

    def end_of(self, header: Header) -> int:
        """Return where the event with this header ends, and stand there. Raises GapError for one that goes back."""
        at, low = self.at, header.log_pos
        end = at - at % _WRAP + low
        if begins_again := end < at:
            end += _WRAP
        step = end - at
        if step < header.size or (header.size < step >= _LONGEST_STEP and (self._whole or begins_again)):
            raise self._back(f"{header.name} of {header.size} bytes", low)
        self.at = end
        return end

    def counted(self, header: Header) -> int:
        """Return where an event ends whose header does not say so, as MariaDB's inside transactions since 11.7.

        If the server has left out what comes before it, it is an offset before its end, and behind the last event's.
        """
        self.at += header.size
        return self.at

    def read(self, begin: int, end: int) -> None:
        """Go on behind events that were read at once. Raises GapError where they go back."""
        if begin < self.at:
            raise self._back("a transaction", end)
        self.at = end

    def told(self, low: int) -> int:
        """Return the offset with these lower 32 bits that a HEARTBEAT event tells of, which is not of an event."""
        end = self.at - self.at % _WRAP + low
        return end + _WRAP if end < self.at and end + _WRAP - self.at < _LONGEST_STEP else end

    def _back(self, what: str, end: int) -> GapError:
        return GapError(
            f"the log goes back: in {self._file}, {what} ends at {end}, and the log was read up to {self.at}",
            hint="the file was written over or damaged: the server's log tells; then "
            "cdc snapshot start CONNECTOR.yaml --after-gap",
        )
