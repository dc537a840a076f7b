"""The sink that is a DuckDB file: a commit is one transaction of DuckDB's with rows and position, so all is there once.

Killed at any time, the file is what the last commit has left: DuckDB's own log sees to that. The order of events is
kept by folding them in it, so no row needs a position of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import duckdb
import orjson

from cdc.files.large_events import LargeEvents
from cdc.files.position_file import Contents
from cdc.files.topicless_sink import TopiclessSink, place_of, read_again
from cdc.model.change import Table
from cdc.model.errors import BugError, VerdictError
from cdc.model.interfaces import Headers, Log
from cdc.model.state import Phase, State
from sinks.duckdb.file import DuckdbFile
from sinks.duckdb.fold import DESCRIBED, EMPTIED, ROW, Fold, Item
from sinks.duckdb.tables import Tables, refuse

_POSITION: Final = b'"position":"'


class DuckdbSink(TopiclessSink):
    """Is a `cdc.model.interfaces.Sink`."""

    def __init__(self, path: Path, connector: str) -> None:
        self._path, self._connector = path, connector
        self._file: DuckdbFile | None = None
        self._tables: Tables | None = None
        super().__init__(Contents())

    def _begin(self) -> None:
        super()._begin()
        self._events: LargeEvents[Item] = LargeEvents()
        self._count = self._bytes = 0

    def check(self, tables: Sequence[Table]) -> bool:
        refuse(tables)
        if self._file is None and self._path.exists():
            self._open()
        return self._contents.state is not None

    def _open(self) -> None:
        """Open the file, and read the position in it."""
        self._file = DuckdbFile(self._path)
        try:
            self._contents, left = self._file.read()
            self._tables = Tables(self._file, self._contents.schemas, left)
        except duckdb.Error as exc:
            raise self._file.failed(exc) from exc
        self._begin()

    def fence(self) -> State | None:
        self.close()
        self.epochs += 1
        self._open()
        state = self._contents.state
        if state is not None and state.connector != self._connector:
            raise VerdictError(
                f"file {self._path} is written by connector {state.connector}",
                hint=f"another sink.path for {self._connector}",
            )
        return state

    def write(self, topic: str, key: bytes, value: bytes | None, headers: Headers = ()) -> None:  # noqa: ARG002 - the seam's
        if value is None:
            return  # the delete before it says it
        self._add((ROW, topic, key, value) if key else (EMPTIED, topic, key, value))

    def schema(self, key: bytes, value: bytes) -> None:
        super().schema(key, value)
        self._add((DESCRIBED, _topic_of(value), key, value))

    def _add(self, item: Item) -> None:
        size = len(item[2]) + len(item[3])
        self._events.add(item, size)
        self._count += 1
        self._bytes += size

    def log(self, name: Log, key: bytes, value: bytes | None) -> None:
        if name != "message":  # a message is no row of a table
            super().log(name, key, value)

    def pending(self) -> tuple[int, int]:
        return self._count, self._bytes

    def commit(self, state: State) -> None:
        if self._file is None or self._tables is None:
            raise BugError("the sink is not fenced: nothing may be written")
        before, after = self._contents, Contents(state, self._schemas, self._commands)
        try:
            self._write(self._file, self._tables, before, after)
        except duckdb.Error as exc:
            failed = self._file.failed(exc)
            self.close()
            raise failed from exc
        except BaseException:
            self.close()  # what is in the open transaction goes with it
            raise
        self._contents = after
        self._begin()

    def _write(self, file: DuckdbFile, tables: Tables, before: Contents, after: Contents) -> None:
        now = after.state
        if now is None:
            raise BugError("a commit without a state")
        coming = {name for state in (before.state, now) if state is not None for name in (*state.reading, *state.asked)}
        file.begin()
        Fold(file, tables, coming).take(self._in_order(before, now))
        if now.phase is Phase.STREAM and not now.snapshot:
            tables.settle({*now.reading, *now.asked})
        file.commit(after, tables.to_json())

    def _in_order(self, before: Contents, now: State) -> Iterator[Item]:
        """Give the events with what empties tables where rows come again from a place of the log on."""
        again = read_again(before, now)
        places = [(place_of(since, map(_position, self._events)), name) for since, name in again]
        places += [(0, name) for name in _begun(before.state, now)]
        for number, item in enumerate(self._events):
            for place, name in places:
                if place == number:
                    yield EMPTIED, name, b"", b""
            yield item
        for place, name in places:
            if place >= self._count:
                yield EMPTIED, name, b"", b""

    def close(self) -> None:
        super().close()
        file, self._file, self._tables = self._file, None, None
        if file is not None:
            file.close()


def _begun(before: State | None, now: State) -> list[str]:
    """Name the tables of which rows are read from the beginning, though an earlier reading may have left some."""
    if now.phase is Phase.CREATING or (before is not None and before.phase is Phase.CREATING):
        return [*now.tables, *now.unread]
    if before is None:
        return list(now.tables)
    return [name for name in now.tables if name not in before.tables]


def _topic_of(record: bytes) -> str:
    return str(orjson.loads(record)["topic"])


def _position(item: Item) -> str:
    """Return where an event stands; of what is none, before everything."""
    value = item[3]
    begin = value.rfind(_POSITION)
    return value[begin + len(_POSITION) : value.index(b'"', begin + len(_POSITION))].decode() if begin >= 0 else ""
