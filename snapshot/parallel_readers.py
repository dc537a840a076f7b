"""Several sessions reading side by side, a thread each; what they read is handed to one."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from snapshot.key_ranges import KeyRange

_CHUNK_ROWS: Final = 2_000
_CHUNK_BYTES: Final = 1024 * 1024
_QUEUED_CHUNKS: Final = 3
_CANCEL_EVERY_S: Final = 0.5
_CANCELS: Final = 20

C = TypeVar("C")


class RangeRows(NamedTuple):
    """Rows of a piece as they were read, behind those given before; the last of a piece may hold none."""

    piece: KeyRange[Any]
    lines: list[Any]
    last: bool


class RowBuffer:
    """Where a session puts what it reads: hands it over in chunks."""

    def __init__(self, piece: KeyRange[Any], put: Callable[[RangeRows], None]) -> None:
        self._piece = piece
        self._put = put
        self._lines: list[Any] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        """Called by psycopg2 with each row of a COPY."""
        self._lines.append(line)
        self._bytes += len(line)
        if len(self._lines) >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._hand_over()

    def add(self, rows: Iterable[object], size_bytes: int) -> None:
        """Some rows more, and their bytes: far less than a chunk, or one row."""
        self._lines += rows
        self._bytes += size_bytes
        if len(self._lines) >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._hand_over()

    def _hand_over(self) -> None:
        self._put(RangeRows(self._piece, self._lines, last=False))
        self._lines, self._bytes = [], 0

    def end(self) -> None:
        self._put(RangeRows(self._piece, self._lines, last=True))


class ParallelReaders(Generic[C]):
    """Each session takes the next piece that nobody reads, until none is left; a bounded queue holds them back."""

    def __init__(
        self,
        connections: Sequence[C],
        pieces: Sequence[KeyRange[Any]],
        read: Callable[[C, KeyRange[Any], RowBuffer], None],
        cancel: Callable[[C], None],
    ) -> None:
        """`read` writes a piece's rows, in order, on the thread of the session it is given; `cancel` ends it from here.

        `cancel` raises nothing, also where the session is gone.
        """
        self._read = read
        self._cancel = cancel
        self._pieces = deque(pieces)
        self._unfinished = len(pieces)
        self._queue: queue.Queue[RangeRows | BaseException] = queue.Queue(_QUEUED_CHUNKS * len(connections))
        self._stopped = threading.Event()
        self._threads = [
            (connection, threading.Thread(target=self._run, args=(connection,), name=f"cdc-snapshot-{n}", daemon=True))
            for n, connection in enumerate(connections, 1)
        ]

    def __iter__(self) -> Iterator[RangeRows]:
        """All pieces whole; rows of one piece in order, pieces interleaved. Raises the first error of any session."""
        for _, thread in self._threads:
            thread.start()
        while self._unfinished:
            got = self._queue.get()
            if isinstance(got, BaseException):
                raise got
            self._unfinished -= got.last
            yield got

    def _run(self, connection: C) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    piece = self._pieces.popleft()
                except IndexError:
                    return
                rows = RowBuffer(piece, self.put)
                self._read(connection, piece, rows)
                rows.end()
        except _StoppedError:
            pass
        except BaseException as exc:  # noqa: BLE001 - handed to the reading thread
            try:
                self.put(exc)
            except _StoppedError:
                pass  # it asked for the end, and knows

    def put(self, item: RangeRows | BaseException) -> None:
        """Hand over, as soon as there is room."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
        raise _StoppedError

    def stop(self) -> list[C]:
        """End the threads; what runs is cancelled, so that a long read does not go on. Gives what would not end."""
        self._stopped.set()
        busy = [(connection, thread) for connection, thread in self._threads if thread.is_alive()]
        for _ in range(_CANCELS):
            for connection, thread in busy:
                self._cancel(connection)
                thread.join(_CANCEL_EVERY_S)
            busy = [(connection, thread) for connection, thread in busy if thread.is_alive()]
            if not busy:
                break
        return [connection for connection, _ in busy]


class _StoppedError(Exception):
    pass
