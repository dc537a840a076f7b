"""Reading a table again while the log is followed: added tables, re-snapshots, rows that DDL changed without events.

A window of rows in key order is read under a view of its own, on a thread of its own, while the loop goes on. It is
written once the log has been followed past everything the view sees, so each of its rows is newer than every event
written before, except for keys with an event whose transaction the view did not see, wherever that event stands in the
log: their rows are left out, the event has told more. No event of the log is left out. At the end, keys of the topic
whose last record is older than the beginning of the reading are gone from the source: they are deleted.

Rows that were asked for by their keys are read before whole tables, in the same way; the keys that a view does not
have are deleted at once, by the same rule. Nothing of it is kept with the position: the command waits until all its
rows are written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson

from cdc.encode.live_keys import LiveKeys
from cdc.encode.window_keys import LoggedKeys, RequestedRows
from cdc.model.change import Table
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.interfaces import Snapshotter, Window
from cdc.model.state import Key, key_from_json, key_to_json

WINDOW_ROWS: Final = 10_000
FIRST_ROWS: Final = 1_000
KEYS_AT_ONCE: Final = 500
WINDOW_BYTES: Final = 8 * 1024 * 1024
RETRY_S: Final = 1.0
GIVE_UP_S: Final = 300.0

log = logging.getLogger("cdc")


@dataclass(frozen=True, slots=True)
class IncrementalProgress:
    """How far one table has been read again; part of the position record."""

    since: str
    """A position: records of the table's topic before it are stale unless the reading confirms them."""
    after: Key | None = None
    """The last key read."""
    key: str = ""
    """Which key that is one of: `Table.key_as_text`."""
    rows: int = 0
    estimate: int | None = None
    read: bool = False
    """All rows are read; what the source no longer has is still to be deleted."""
    required: bool = True
    """The topic is not whole before: not to be stopped."""
    gap: bool = False
    """What the topic said before `since` may have been untrue by then: the log had a gap."""
    started_at_ms: int = 0

    def to_json(self) -> dict[str, object]:
        return {
            "since": self.since,
            "after": None if self.after is None else key_to_json(self.after),
            "key": self.key,
            "rows": self.rows,
            "estimate": self.estimate,
            "read": self.read,
            "required": self.required,
            "gap": self.gap,
            "started_at_ms": self.started_at_ms,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> IncrementalProgress:
        after = value["after"]
        return cls(**{**value, "after": None if after is None else key_from_json(after)})


class IncrementalSnapshot:
    """The tables being read again, one after the other. All but the jobs runs on the loop's thread."""

    def __init__(
        self,
        reader: Snapshotter,
        tables: Mapping[str, Table],
        state: Mapping[str, Mapping[str, Any]],
        *,
        topic: Callable[[Table], str],
        records: Callable[[Table], Iterator[tuple[bytes, bytes | None]]],
        version: Callable[[Table], int],
        rows: int,
        executor: Executor,
    ) -> None:
        """`tables` are the captured ones by `schema.table`, `state` is the position record's part.

        `records` gives the committed records of a table's topic, `version` the newest version of a table's description.
        """
        self._reader, self._tables = reader, tables
        self._topic, self._records, self._version_of = topic, records, version
        self._readings = {name: IncrementalProgress.from_json(value) for name, value in state.items()}
        self._asked_at = {name: version(tables[name]) for name in self._readings}
        """Which version of each table was the newest when its reading began."""
        self._most = min(rows, WINDOW_ROWS)
        self._rows = min(rows, FIRST_ROWS)
        self._executor = executor
        self._asked: dict[bytes, list[RequestedRows]] = {}
        """What is left of each command."""
        self._in_hand: RequestedRows | None = None
        self._job: Future[Window | None] | Future[list[bytes]] | None = None
        self._version = 0
        self._fresh = False
        """No view has been taken yet since keys are noted: the first must have seen whatever the log told before."""
        self._failing_since_s: float | None = None
        self._again_at_s = 0.0
        self._closed = threading.Event()
        self.logged = LoggedKeys()

    def __bool__(self) -> bool:
        return bool(self._readings or self._asked)

    def state(self) -> dict[str, dict[str, object]]:
        """The position record's part."""
        return {name: reading.to_json() for name, reading in self._readings.items()}

    @property
    def table(self) -> Table:
        """The table in hand."""
        return self._tables[next(iter(self._readings))]

    def add(self, name: str, since: str, *, required: bool) -> bool:
        """Read a table, from its beginning; False if it is being read as it is described now, which will do."""
        was, version = self._readings.get(name), self._version_of(self._tables[name])
        if was is not None and was.required >= required and self._asked_at.get(name) == version:
            return False
        if self._current() == name:
            self._let_go()
        self._asked_at[name] = version
        now_ms = time.time_ns() // 1_000_000
        reading = IncrementalProgress(since, required=required, started_at_ms=now_ms)
        if was is not None:
            reading = replace(reading, required=required or was.required, gap=was.gap)
        self._readings[name] = reading
        return True

    def is_first(self, window: Window) -> bool:
        """Whether a window is the first of its table's reading: none of the rows written so far are older."""
        return self._readings[window.table.qualified].after is None

    def as_now(self, name: str) -> None:
        """The table is read as it is described now: nothing that was said until here asks for another reading."""
        self._asked_at[name] = self._version_of(self._tables[name])

    def ask(self, command: bytes, name: str, keys: Sequence[Key]) -> bool:
        """Read the rows with these keys; False if that is being done already, or no row can have such keys."""
        fit = [key for key in keys if len(key) == len(self._tables[name].key)]
        if command in self._asked or not fit:
            return False
        self._asked[command] = [
            RequestedRows(command, name, fit[at : at + KEYS_AT_ONCE]) for at in range(0, len(fit), KEYS_AT_ONCE)
        ]
        return True

    def asked(self, command: bytes) -> bool:
        """Whether a command is being carried out."""
        return command in self._asked

    def remove(self, name: str) -> bool:
        """Leave a table as far as it has been read; False if it is not being read, or must be."""
        if name not in self._readings or self._readings[name].required:
            return False
        if self._current() == name:
            self._let_go()
        del self._readings[name]
        return True

    def due(self, position: Callable[[], int], *, settled: bool) -> Window | RequestedRows | list[bytes] | None:
        """What is to be written at this point of the log: rows, or the keys that the source no longer has.

        Everything before `position` is written, and committed if `settled`. Call `wrote`, `answered` or `deleted`
        afterwards.
        """
        if self._job is None:
            if time.monotonic() >= self._again_at_s:
                self._begin(settled=settled)
            return None
        name = self._in_hand.name if self._in_hand else next(iter(self._readings))
        if not self._job.done():
            return None
        try:
            result = self._job.result()
        except RetryableError as exc:
            self._failed(name, exc)
            return None
        except (OperatorError, ValueError) as exc:
            if self._in_hand is None:
                raise
            what = exc.message if isinstance(exc, OperatorError) else "they are no keys of it"
            log.warning("rows of table %s cannot be read again by their keys: %s", name, what)
            return self._in_hand
        self._failing_since_s = None
        self._fresh &= not isinstance(result, Window)
        if isinstance(result, list):
            return [key for key in result if key not in self.logged]
        if result is not None and self._version_of(self._tables[name]) != self._version:
            self._job = None  # its columns have changed since: these rows may be of their old shape
        elif result is not None and position() < result.end:
            return None
        elif self._in_hand:
            if result is None:
                log.warning("table %s is gone from the source, or has another key; its topic stays as it is", name)
            return replace(self._in_hand, window=result)
        elif result is not None:
            return result
        else:
            log.warning("table %s is gone from the source; its topic stays as it is", name)
            self._finish(name, 0)
        return None

    def wrote(self, window: Window) -> None:
        """The rows of a window are in the open transaction."""
        name = window.table.qualified
        if self._job is None or name != self._current():
            return  # writing them has shown that the table must be read from its beginning
        reading = self._readings[name]
        self._readings[name] = replace(
            reading,
            after=window.after or reading.after,
            key=window.table.key_as_text,
            rows=reading.rows + len(window.rows),
            estimate=window.estimate,
            read=window.after is None,
        )
        self.logged.forget_seen(window.sees)
        self._job = None
        size = sum(len(value) for row in window.rows for value in row if isinstance(value, bytes))
        if size:
            self._rows = max(1, min(self._most, WINDOW_BYTES * len(window.rows) // size))

    def answered(self, asked: RequestedRows) -> bool:
        """The rows of these keys, and deletes of those that have none, are in the open transaction.

        True if that was all the command asked for.
        """
        if self._in_hand is None or self._in_hand.keys is not asked.keys:
            return False  # writing them has shown that the table must be read from its beginning
        if asked.window is not None:
            self.logged.forget_seen(asked.window.sees)
        left = self._asked[asked.command]
        del left[0]
        self._job = self._in_hand = None
        if left:
            return False
        del self._asked[asked.command]
        self._let_go()
        return True

    def deleted(self, keys: int) -> None:
        """The keys given are in the open transaction, as deletes."""
        self._finish(next(iter(self._readings)), keys)

    def close(self) -> None:
        """End what runs; nothing waits for it. The reader must be closed too."""
        self._closed.set()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _current(self) -> str | None:
        return next(iter(self._readings), None)

    def _begin(self, *, settled: bool) -> None:
        asked = next((left[0] for left in self._asked.values()), None)
        if asked is not None:
            table = self._tables[asked.name]
            self._follow(table)
            self._in_hand, self._version = asked, self._version_of(table)
            self._job = self._executor.submit(self._reader.rows, table, asked.keys, first=self._fresh)
            return
        name = self._current()
        if name is None:
            return
        reading, table = self._readings[name], self._tables[name]
        if reading.read and not settled:
            return
        self._follow(table)
        if reading.read:
            self._job = self._executor.submit(self._stale, table, reading.since)
            return
        self._version = self._version_of(table)
        self._job = self._executor.submit(
            self._reader.window, table, reading.after, self._rows, key=reading.key, first=self._fresh
        )

    def _follow(self, table: Table) -> None:
        """Note what the log tells of a table from now on, unless that is being done."""
        topic = self._topic(table)
        if self.logged.topic != topic:
            self.logged.follow(topic)
            self._fresh = True

    def _stale(self, table: Table, since: str) -> list[bytes]:
        """Keys whose last record is of a row, and older than `since`, in order."""
        with LiveKeys() as stale:
            for key, value in self._records(table):
                if self._closed.is_set():
                    return []
                event = orjson.loads(value) if value is not None else None
                if event is None or event["op"] == "d" or event["source"]["position"] >= since:
                    stale.discard(key)
                else:
                    stale.put(key)
            return list(stale)

    def _failed(self, name: str, exc: RetryableError) -> None:
        now = time.monotonic()
        self._failing_since_s = self._failing_since_s or now
        if now - self._failing_since_s > GIVE_UP_S:
            raise exc
        log.warning("reading the rows of table %s: %s; trying again", name, exc.message)
        self._job = None
        self._again_at_s = now + RETRY_S

    def _finish(self, name: str, deleted: int) -> None:
        log.info("table %s was read while the log was followed: %d rows, %d keys deleted", name,
                 self._readings.pop(name).rows, deleted)  # fmt: skip
        self._let_go()

    def _let_go(self) -> None:
        """What the job in hand finds is of no use; the executor's next job waits for it."""
        self._job = self._in_hand = None
        self.logged.follow("")
        self._rows = min(self._most, FIRST_ROWS)
