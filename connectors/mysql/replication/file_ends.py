"""Finds out, while the log is followed, that the server has begun it from the beginning (`RESET MASTER`).

A dump does not notice: it waits at the end of a file that is deleted, and goes on in the next file when there is one,
though transactions of the new log came before that. Two things tell. A file that the server leaves ends with a rotation
in the log itself; only a server that has crashed leaves one without, and the next file then says that the server has
started. And the log never ends before what was read of it, nor is there something behind it that does not come.

Either of them may have another reason, so what counts is whether the file of that name is still the one that was read:
when it was begun. If it is not, the connection ends, and the next one is judged as each is: `replication.continuity`.
"""

from __future__ import annotations

from collections.abc import Callable

from cdc.model.errors import GapError, RetryableError
from connectors.mysql.binlog import events
from connectors.mysql.binlog.positions import FIRST, BinlogPosition


class FileEnds:
    """Watches one dump."""

    def __init__(self, made_at: Callable[[BinlogPosition], int]) -> None:
        """`made_at`: see `replication.continuity.MadeAt`."""
        self._made_at = made_at
        self._file, self._begun = "", 0
        self._ended = False
        self._behind = BinlogPosition("", 0)
        """Where the reading stood when it was looked at last, if the log went on behind it."""

    def turned(self, event: events.Event, file: str) -> None:
        """Take an event that says where the log stands, before `file`, in which it stood so far, is left for another.

        Raises RetryableError if the log that is read is not the server's any more.
        """
        if isinstance(event, events.Rotate) and not event.header.artificial:
            self._ended = True
        elif isinstance(event, events.FormatDescription):
            if self._file not in ("", file) and not self._ended and not event.created_at_s:
                self._compare()
            self._file, self._begun, self._ended = file, event.header.timestamp_s, False

    def look(self, read_to: BinlogPosition, end: BinlogPosition) -> None:
        """Compare, every now and then, up to where the log was read and, by a later look, where it ends.

        Raises RetryableError like `turned`.
        """
        if end.order < read_to.order or self._behind == read_to:
            self._compare()
        self._behind = read_to if read_to.order < end.order else BinlogPosition("", 0)

    def _compare(self) -> None:
        """Raise RetryableError unless the file that was read is still the server's file of that name."""
        if not self._file:
            return
        try:
            same = self._made_at(BinlogPosition(self._file, FIRST)) == self._begun
        except GapError:
            same = False  # there is none
        if not same:
            raise RetryableError(
                f"the server has begun its log from the beginning: {self._file} is not the file that was read",
                hint="it is compared with what Kafka has at the next try",
            )
