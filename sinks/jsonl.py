"""The sink that is a file of JSON lines: the events of all tables in the source's order, each exactly once.

A commit appends its lines, forces them to the disk, and then writes the position, which says how long the file is
(`cdc.files.position_file`). A start cuts off what lies behind that: lines of a commit that did not come to its end. So
lines that have their position stay for ever, and those behind them are of the next transaction. Until then a reader
may see lines that are cut off and come again, the same or others.

Before a commit the file is looked at: one that was moved away would take lines which nobody finds, and one that
somebody else has written to, or made empty, has another end than the position says.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from typing import IO, Final

from cdc.files.large_events import LargeEvents
from cdc.files.position_file import Contents, PositionFile
from cdc.files.topicless_sink import TopiclessSink, emptied, file_at, place_of, read_again
from cdc.model.errors import BugError, OperatorError, VerdictError
from cdc.model.interfaces import Headers, Log
from cdc.model.state import State

_KEY: Final = b'{"key":%b,'
_POSITION: Final = b'"position":"'
_BEFORE: Final = "it was there before"
_ANOTHER: Final = "another sink.path and another name begin with a new snapshot; this file stays as it is"


class JsonlSink(TopiclessSink):
    """Is a `cdc.model.interfaces.Sink`."""

    def __init__(self, path: Path, connector: str) -> None:
        self._path, self._connector = path, connector
        self._file: IO[bytes] | None = None
        self._position: PositionFile | None = None
        super().__init__(_read(path))

    def _begin(self) -> None:
        super()._begin()
        self._lines: LargeEvents[tuple[bytes]] = LargeEvents()
        self._count = self._bytes = 0

    def fence(self) -> State | None:
        self.close()
        self._position = PositionFile(_position_of(self._path))
        self._contents = self._position.read()
        self._begin()
        state = self._contents.state
        self._must_be_ours()
        try:
            self._file = self._open()
        except OSError as exc:
            raise self._unwritable(exc) from exc
        return state

    def _must_be_ours(self) -> None:
        state = self._contents.state
        if state is not None and state.connector != self._connector:
            raise VerdictError(
                f"file {self._path} is written by connector {state.connector}",
                hint=f"another sink.path for {self._connector}",
            )

    def require_place(self) -> None:
        """Raise what a start would: it is another connector's, or not as this one has left it. Changes nothing."""
        self._must_be_ours()
        try:
            length = self._path.stat().st_size
        except FileNotFoundError:
            length = 0
        except OSError as exc:
            raise self._unwritable(exc) from exc
        self._must_begin_as_left(length)

    def _open(self) -> IO[bytes]:
        """Open the file at the end of what is committed. Raises OperatorError if a part of that is gone."""
        file = open(self._path, "ab")  # noqa: PTH123, SIM115 - it is closed by `close`
        length = file.tell()
        try:
            self._must_begin_as_left(length)
        except VerdictError:
            file.close()
            raise
        if length > self._contents.length:
            file.truncate(self._contents.length)
        return file

    def _must_begin_as_left(self, length: int) -> None:
        if length < self._contents.length or (length and self._contents.state is None):
            raise self._changed("lines were taken out of it" if self._contents.state is not None else _BEFORE)

    def _must_be_as_left(self, file: IO[bytes]) -> None:
        """Raise OperatorError if the file is not there any more, or ends elsewhere than the position says."""
        there = os.fstat(file.fileno())
        try:
            found = self._path.stat()
        except FileNotFoundError:
            raise self._changed("it is not there any more") from None
        if not os.path.samestat(there, found):
            raise self._changed("it was moved away, and another is in its place")
        if there.st_size != self._contents.length:
            more = there.st_size > self._contents.length
            raise self._changed("somebody else has written to it" if more else "lines were taken out of it")

    def _changed(self, what: str) -> VerdictError:
        return VerdictError(
            f"file {self._path} is not as this connector has left it: {what}",
            hint=_ANOTHER
            if what == _BEFORE
            else f"put it back as it was (a start cuts off what is behind its "
            f"{self._contents.length} bytes); or {_ANOTHER}",
        )

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:  # noqa: ARG002 - the seam's
        if value is None:
            return  # the delete before it says it
        line = _KEY % (key or b"null") + value[1:] + b"\n"
        self._lines.add((line,), len(line))
        self._count += 1
        self._bytes += len(line)

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:
        self.write(name, key, value)

    def pending(self) -> tuple[int, int]:
        return self._count, self._bytes

    def commit(self, state: State) -> None:
        if self._file is None or self._position is None:
            raise BugError("the sink is not fenced: nothing may be written")
        before, length = self._contents, 0
        again = read_again(before, state)
        if self._count or again:
            try:
                self._must_be_as_left(self._file)
                for line in self._in_order(again):
                    length += self._file.write(line)
                self._file.flush()
                os.fsync(self._file.fileno())
            except OSError as exc:
                raise self._unwritable(exc) from exc
        after = Contents(state, self._schemas, self._commands, length=before.length + length)
        self._position.write(after)
        self._contents = after
        self._begin()

    def _in_order(self, again: Sequence[tuple[str, str]]) -> Iterator[bytes]:
        """Give the lines, and a ``t`` of each table whose rows come again at its place of the log."""
        texts = [(since, _KEY % b"null" + emptied(name, since, self._schemas)[1:] + b"\n") for since, name in again]
        places = [(place_of(since, (_position(line) for (line,) in self._lines)), text) for since, text in texts]
        for number, (line,) in enumerate(self._lines):
            yield from (text for place, text in places if place == number)
            yield line
        yield from (text for place, text in places if place >= self._count)

    def close(self) -> None:
        super().close()
        file, self._file = self._file, None
        position, self._position = self._position, None
        if file is not None:
            with suppress(
                OSError
            ):  # lines that a full disk did not take are not committed: the next start cuts them off
                file.close()
        if position is not None:
            position.close()

    def _unwritable(self, exc: OSError) -> OperatorError:
        quoted_folder = quote(str(self._path.absolute().parent))
        return OperatorError(
            f"file {self._path} cannot be written: {exc.strerror or type(exc).__name__}",
            hint=f"this user must be able to write there: ls -ld {quoted_folder}; df -h {quoted_folder}",
        )


def _position_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.pos")


def _position(line: bytes) -> str:
    """Return where an event stands; of what is none, before everything."""
    begin = line.rfind(_POSITION)
    return line[begin + len(_POSITION) : line.index(b'"', begin + len(_POSITION))].decode() if begin >= 0 else ""


def _read(path: Path) -> Contents:
    """Look at the position without locking it, for those who only ask whether there is one."""
    position = _position_of(path)
    try:
        return Contents.from_bytes(position.read_bytes(), where=f"position file {position}")
    except OSError:
        return Contents()


def open_sink(path: str, connector: str) -> JsonlSink:
    """Make the sink, for the registry. Opens nothing yet. Raises ConfigError if what is there is no file."""
    return JsonlSink(file_at(path), connector)
