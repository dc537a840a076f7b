"""Reads key ranges in parallel, with a thread for each session, and gives what they read to one thread."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final, Generic, NamedTuple, TypeVar

from cdc.model.change import Row, Table
from cdc.model.interfaces import Chunk
from cdc.model.state import Key
from snapshot.handover import Progress, key_of
from snapshot.key_ranges import KeyRange

_CHUNK_ROWS: Final = 2_000
_CHUNK_BYTES: Final = 1024 * 1024
_QUEUED_CHUNKS: Final = 3
_QUIET_S: Final = 2.0
"""Rows that a server sorts first, or of a table that is locked, may be long in coming: who waits has a log to hold."""
_CANCEL_EVERY_S: Final = 0.5
_CANCELS: Final = 20

C = TypeVar("C")


class RangeRows(NamedTuple):
    """Rows of a key range as they were read, behind those given before; the last of a range may hold none.

    None that is not the last: nothing has come for a while.
    """

    key_range: KeyRange[Any]
    lines: list[Any]
    last: bool
    session: int
    """Which session has read them; the first is 0."""


class RowBuffer:
    """Collects what a session reads, and sends it on in chunks."""

    def __init__(self, key_range: KeyRange[Any], put: Callable[[RangeRows], None], session: int) -> None:
        self._key_range, self._session = key_range, session
        self._put = put
        self._lines: list[Any] = []
        self._bytes = 0

    def write(self, line: bytes) -> None:
        """Take a row; psycopg2 calls it with each row of a COPY."""
        self._lines.append(line)
        self._bytes += len(line)
        if len(self._lines) >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._send()

    def add(self, rows: Iterable[object], size_bytes: int) -> None:
        """Take some rows and the number of their bytes: far less than a chunk, or one row."""
        self._lines += rows
        self._bytes += size_bytes
        if len(self._lines) >= _CHUNK_ROWS or self._bytes >= _CHUNK_BYTES:
            self._send()

    def _send(self) -> None:
        self._put(RangeRows(self._key_range, self._lines, last=False, session=self._session))
        self._lines, self._bytes = [], 0

    def end(self) -> None:
        self._put(RangeRows(self._key_range, self._lines, last=True, session=self._session))


class ParallelReaders(Generic[C]):
    """Lets each session take the next key range, until none is left; a bounded queue slows them down."""

    def __init__(
        self,
        connections: Sequence[C],
        key_ranges: Sequence[KeyRange[Any]],
        read: Callable[[C, KeyRange[Any], RowBuffer], None],
        cancel: Callable[[C], None],
    ) -> None:
        """`read` writes a range's rows, in order, on the thread of its session; `cancel` ends it from another thread.

        `cancel` raises nothing, even if the session is gone.
        """
        self._read = read
        self._cancel = cancel
        self._key_ranges = deque(key_ranges)
        self._unfinished = len(key_ranges)
        self._nothing = [RangeRows(key_range, [], last=False, session=0) for key_range in key_ranges[:1]]
        self._queue: queue.Queue[RangeRows | BaseException] = queue.Queue(_QUEUED_CHUNKS * len(connections))
        self._stopped = threading.Event()
        self._threads = [
            (
                connection,
                threading.Thread(target=self._run, args=(connection, n), name=f"cdc-snapshot-{n + 1}", daemon=True),
            )
            for n, connection in enumerate(connections)
        ]

    def __iter__(self) -> Iterator[RangeRows]:
        """Give all ranges, each whole and in order, interleaved; and nothing of one while nothing comes.

        Raises the first error of any session.
        """
        for _, thread in self._threads:
            thread.start()
        while self._unfinished:
            try:
                got = self._queue.get(timeout=_QUIET_S)
            except queue.Empty:
                yield from self._nothing
                continue
            if isinstance(got, BaseException):
                raise got
            self._unfinished -= got.last
            yield got

    def _run(self, connection: C, session: int) -> None:
        try:
            while not self._stopped.is_set():
                try:
                    key_range = self._key_ranges.popleft()
                except IndexError:
                    return
                rows = RowBuffer(key_range, self.put, session)
                self._read(connection, key_range, rows)
                rows.end()
        except _StoppedError:
            pass
        except BaseException as exc:  # noqa: BLE001 - handed to the reading thread
            try:
                self.put(exc)
            except _StoppedError:
                pass  # the consumer asked for the end

    def put(self, item: RangeRows | BaseException) -> None:
        """Put into the queue as soon as there is room."""
        while not self._stopped.is_set():
            try:
                self._queue.put(item, timeout=0.2)
            except queue.Full:
                continue
            return
        raise _StoppedError

    def stop(self) -> list[C]:
        """End the threads and cancel what they read. Returns the sessions that do not end."""
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


def chunks(
    readers: ParallelReaders[C],
    done: Progress,
    *,
    views: Sequence[int],
    parse: Callable[[Table, list[Any]], Sequence[Row]],
) -> Iterator[Chunk]:
    """Give what the readers read as chunks, each with the progress after it; `views`: the number of each session's.

    One without rows and progress comes every few seconds while nothing else does.

    `done` is the progress before. `parse` makes a table's rows of what its key ranges gave. A chunk has the greatest of
    the numbers, whichever session has read it: so the positions of rows rise in each partition.
    """
    reached: dict[int, Key | None] = {}
    for key_range, read, last, session in readers:
        table = key_range.table
        if not read and not last:
            yield Chunk(table, (), done.to_json(), max(views), time.time_ns() // 1_000_000)
            continue
        rows = parse(table, read)
        after = reached.get(id(key_range), key_range.after)
        upto = reached[id(key_range)] = key_range.upto if last else key_of(table, rows[-1])
        done = done.with_table(table, done.of(table).read(after=after, upto=upto, view=views[session], rows=len(rows)))
        yield Chunk(table, rows, done.to_json(), max(views), time.time_ns() // 1_000_000)


def release(readers: ParallelReaders[C] | None, sessions: Sequence[C], close: Callable[[C], None]) -> None:
    """Stop the readers, and close all their sessions except those that do not end."""
    busy = readers.stop() if readers is not None else ()
    for session in sessions:
        if session not in busy:
            close(session)


class _StoppedError(Exception):
    pass
