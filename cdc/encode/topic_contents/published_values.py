"""What a topic says of the values that may be left out of the log: read on a thread, once, and kept across sessions.

A topic may have many gigabytes, and reading it takes minutes. The loop must not wait for that without answering its
source, and a session that ends meanwhile must not begin the reading again. So a partition is read on a thread of its
own into a temporary file (`PublishedValues`), which outlives sessions. Each session reads on from where the file ends
before it asks (`await_reading`), and so sees all that was committed before.

Why the file holds what was committed, and nothing else:

- Records are read up to the partition's end, committed or not, for another writer's transaction that hangs there must
  not hide ours. But only those before `committed` count, which is the position that this session knows to be committed.
  Behind it lie those of the open transaction, and of aborted ones. Where the first of them lies, the next reading goes
  on: by then it may be committed.
- A record before `committed` may still be an aborted copy of one that was committed later. It lies before that one, for
  a session begins only when what was open before it has ended, and of each key the last record counts.
- A topic that was deleted and made again has another id, and another file. What it forgets by age or on request is read
  again by the connector, behind a floor (`cdc.encode.topic_contents.toast`).
"""

from __future__ import annotations

import logging
import marshal
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol, cast

import orjson

from cdc.encode.topic_contents import foreign
from cdc.machine.temporary_files import TemporaryDatabase
from cdc.model.change import Table
from cdc.model.errors import RetryableError
from cdc.model.tended import await_tended

PAGE: Final = 16 * 1024
"""The file's page size: a value of 20 kB takes two pages instead of five of SQLite's default."""
_AT_ONCE: Final = 500

log = logging.getLogger("cdc")


class Topics(Protocol):
    """Is the part of a sink that reads its topics from the middle."""

    def partition(self, table: Table, key: bytes) -> tuple[str, int]:
        """Return the id of the table's topic, which one made again does not have, and the partition of a key."""

    def records_from(self, table: Table, partition: int, offset: int) -> Iterator[tuple[int, bytes, bytes | None]]:
        """Read offset, key and value from an offset up to the end as it is now; may be called on any thread."""


class Part(NamedTuple):
    """Names what is read: a partition, whole or without small rows."""

    table: str
    """``schema.table``: of a topic that tables share, the records of this one."""
    topic: str
    identity: str
    """The topic's id."""
    number: int
    everything: bool


class Published(NamedTuple):
    """The last record of a key that has values."""

    position: str
    version: int
    values: Mapping[str, bytes]
    """JSON of the values kept, by the columns' names at that version."""


class Kept(NamedTuple):
    """Says what is to be kept of records."""

    version: int
    names: frozenset[str]
    """The columns that are kept of records of this version; of any other all are, for names may have changed since."""
    least: Callable[[Mapping[str, bytes], int], bool]
    """Whether a row of so many columns, with these values kept, is kept at all."""
    deletes: bool = False
    """Whether a deleted key is kept too, without values: else the last row that it had is."""


@dataclass(slots=True)
class _File:
    """Is what is kept of one partition."""

    db: TemporaryDatabase
    next: int = 0
    """The offset from which it has not been read."""
    job: Future[None] | None = field(default=None)


class PublishedValues:
    """Owns the files, and the thread that reads into them, for as long as the process follows the log."""

    def __init__(self, executor: Callable[[], Executor]) -> None:
        self._make = executor
        self._executor: Executor | None = None
        self._files: dict[Part, _File] = {}
        self._closed = threading.Event()

    def read_on(self, topics: Topics, table: Table, of: Part, kept: Kept, committed: str) -> Future[None]:
        """Begin to read what was published since, unless that is being done already, which then comes first."""
        if (begun := self.reading(of)) is not None:
            return begun
        file = self._files.get(of)
        if file is None:
            file = self._files[of] = _File(TemporaryDatabase("what the log leaves out of updates", _SCRIPT))
        if self._executor is None:
            self._executor = self._make()
        file.job = self._executor.submit(self._read, topics, table, of, kept, committed)
        return file.job

    def reading(self, of: Part) -> Future[None] | None:
        """Return the reading that goes on."""
        file = self._files.get(of)
        return None if file is None or file.job is None or file.job.done() else file.job

    def find(self, of: Part, key: bytes) -> Published | None:
        """Return what is kept of a key. To be called when nothing is being read."""
        found = self._files[of].db.rows("SELECT position, version, columns FROM wide WHERE key = ?", (key,))
        for position, version, columns in found:
            return Published(position, version, cast("dict[str, bytes]", marshal.loads(columns)))  # noqa: S302 - our own file
        return None

    def _read(self, topics: Topics, table: Table, of: Part, kept: Kept, committed: str) -> None:
        file = self._files[of]
        unsure, end, waiting = None, file.next, list[tuple[Any, ...]]()
        for offset, key, value in topics.records_from(table, of.number, file.next):
            if self._closed.is_set():
                raise RetryableError("reading was ended")
            end = offset + 1
            event = None if value is None else foreign.event_of(value)
            if event is None:
                if value is not None:
                    foreign.tell(of.topic, table.qualified)
                continue
            position, after = event["source"]["position"], event["after"]
            if position >= committed:
                unsure = offset if unsure is None else unsure
            elif after is None and kept.deletes:
                waiting.append((key, position, 0, marshal.dumps({})))
            elif after is not None:
                version = event["source"]["schema_version"]
                names = kept.names & after.keys() if version == kept.version else after
                values = {name: orjson.dumps(after[name]) for name in names}
                if kept.least(values, len(after)):
                    waiting.append((key, position, version, marshal.dumps(values)))
            if len(waiting) >= _AT_ONCE:
                file.db.run_for_each(_PUT, waiting)
                waiting.clear()
        file.db.run_for_each(_PUT, waiting)
        file.next = end if unsure is None else unsure

    def close(self) -> None:
        """End what is read, and forget all."""
        self._closed.set()
        if self._executor is not None:
            self._executor.shutdown(wait=True, cancel_futures=True)
        for file in self._files.values():
            file.db.close()
        self._files.clear()
        self._executor = None
        self._closed = threading.Event()


_SCRIPT: Final = (
    f"PRAGMA page_size = {PAGE};"
    # not WITHOUT ROWID: values would be in the tree that keys are looked for in
    "CREATE TABLE wide (key BLOB PRIMARY KEY, position TEXT, version INT, columns BLOB); BEGIN"
)
_PUT: Final = "REPLACE INTO wide VALUES (?, ?, ?, ?)"


def await_reading(job: Future[None], tend: Callable[[], None], what: str) -> None:
    """Wait for a reading and tend the source meanwhile. Raises what `tend` or the reading raises."""
    await_tended(job, tend, f"{what}: reading what its topic has of values that the log leaves out")
