"""The incremental snapshot reads tables while the log is followed: added ones, or those that must be read again.

A window is some rows in key order, read under a view of its own on another thread. The loop writes it at a point of
the log that it chooses. Like DBLog (https://arxiv.org/abs/2010.12597) it works between two watermarks, but the low
watermark is visibility instead of a place in the log: PostgreSQL makes a commit visible only after it has logged it.

* the *high watermark* is `Window.end`: all that the view V sees has its commit before it. The window is written only
  when the log has been followed to `end`, so every later event is of a transaction that V does not see;
* `LoggedKeys` has the last transaction of each key that the log has had an event of since the table is followed. The
  first view (`first`) waits until all older transactions are visible, so V sees what the log told before that.

The rule. A row of key k is written unless V does not see the last transaction noted for k. No event is ever left out.

Why no row is lost, and no older state follows a newer one:

1. Transactions that write one key are ordered by the row's lock, and the second goes on only when the first is visible.
   So a view that sees the last transaction of k sees all of them, and V's row is as new as every event of k written so
   far: it may follow them. The events that come later are newer than V: they may follow it.
2. If V does not see the last transaction of k, that event was newer than V's row: leaving the row out loses nothing.
3. A truncate is noted for every key at once.
4. When all windows are written, a live key whose last record is older than `since`, where the reading began, had
   neither a row in the view of its window nor an event since: the source does not have it at this point of the log, and
   it gets a delete. Where rows went without an event, and nobody knows at which place of the log, `since` is the log's
   end by then, which the first view has seen: events before it do not say that a row is still there. Keys with an
   event since the topic was read are taken out first, of each part when it is written. A
   row that is inserted later has its event behind the delete. The deletes are committed in parts of `DELETES_AT_ONCE`;
   after a restart the topic is read again, and tells by itself which of them have been written.
5. A window is committed with the key it ended at (`IncrementalProgress`), so a restart goes on behind that key, under a
   new view and with the first view's wait. A window that was read before the table's description changed is dropped.

Rows requested by their keys come before whole tables and follow the same rule; the keys that V does not have are
deleted at once. Nothing of a request is kept with the position: its command stays in the signal topic until all its
rows are written.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from cdc.capture.snapshots.incremental_progress import IncrementalProgress
from cdc.capture.snapshots.turns import Sizing, in_turn, sizes, without_size
from cdc.encode.topic_contents.live_keys import LiveKeys
from cdc.encode.topic_contents.stale_keys import stale_keys
from cdc.encode.window_keys import LoggedKeys, RequestedRows
from cdc.model.change import Table
from cdc.model.errors import ChangedError, OperatorError, RetryableError
from cdc.model.interfaces import Snapshotter, Window
from cdc.model.state import Key

WINDOW_ROWS: Final = 10_000
FIRST_ROWS: Final = 1_000
KEYS_AT_ONCE: Final = 500
WINDOW_BYTES: Final = 8 * 1024 * 1024
DELETES_AT_ONCE: Final = 10_000
RETRY_S: Final = 1.0
GIVE_UP_S: Final = 300.0

log = logging.getLogger("cdc")


class IncrementalSnapshot:
    """Reads tables one after the other. Everything but the jobs runs on the loop's thread."""

    def __init__(
        self,
        reader: Snapshotter,
        tables: Mapping[str, Table],
        state: Mapping[str, Mapping[str, Any]],
        *,
        gone: Mapping[str, Table] = MappingProxyType({}),
        topic: Callable[[Table], str],
        records: Callable[[Table], Iterator[tuple[bytes, bytes | None]]],
        version: Callable[[Table], int],
        rows: int,
        executor: Executor,
    ) -> None:
        """`tables` are the captured ones by `schema.table`, `state` is the position record's part.

        `gone` are others that `state` names: their rows are deleted in their topics.

        `records` gives the committed records of a table's topic, `version` the newest version of a table's description.
        """
        self._reader, self._captured, self._tables = reader, frozenset(tables), {**tables, **gone}
        self._topic, self._records, self._version_of = topic, records, version
        self._readings = {name: IncrementalProgress.from_json(value) for name, value in state.items()}
        self._readings |= {name: replace(self._readings[name], read=True) for name in gone}
        self._version_at_start = {name: version(self._tables[name]) for name in self._readings}
        """The newest version of each table's description when its reading began."""
        self._most = min(rows, WINDOW_ROWS)
        self._rows = min(rows, FIRST_ROWS)
        self._executor = executor
        self._requested: dict[bytes, list[RequestedRows]] = {}
        """The parts of each command that are not written yet."""
        self._in_hand: RequestedRows | None = None
        self._job: Future[Window | None] | Future[LiveKeys] | Future[Mapping[str, int]] | None = None
        self._deleted_to: bytes | None = None
        """The last of the keys that have gone which was handed out."""
        self._deleted = 0
        self._deleting = False
        """More of them are left than were handed out."""
        self._read_before: set[str] = set()
        """Tables that were read to their end while others waited."""
        self._version = 0
        self._fresh = False
        """No view has been taken since keys are noted: the first one must see all that the log told before."""
        self._failing_since_s: float | None = None
        self._retry_at_s = 0.0
        self._closed = threading.Event()
        self.logged = LoggedKeys()

    def __bool__(self) -> bool:
        return bool(self._readings or self._requested)

    def is_reading(self, name: str) -> bool:
        """Whether a table is read, or waits for others that are."""
        return name in self._readings

    def state(self) -> dict[str, dict[str, object]]:
        """Give the position record's part."""
        return {name: reading.to_json() for name, reading in self._readings.items()}

    @property
    def table(self) -> Table:
        """The table being read."""
        return self._tables[next(iter(self._readings))]

    def add(self, name: str, since: str, *, required: bool, restart: bool = False) -> bool:
        """Read a table from its beginning; False if it is being read already, as it is described now.

        `restart`: what has been read of it so far is gone.
        """
        was, version = self._readings.get(name), self._version_of(self._tables[name])
        as_described = was is not None and was.required >= required and self._version_at_start.get(name) == version
        if as_described and not restart:
            return False
        if name in (self._current(), self.logged.table):  # also rows of it in hand that a command requests
            self._drop_job()
        self._version_at_start[name] = version
        reading = IncrementalProgress(since, required=required)
        if was is not None:  # begun now: not `again`
            reading = _stricter(replace(reading, required=required or was.required), was)
        self._readings[name] = reading
        return True

    def emptied(self, table: Table, since: str) -> None:
        """Read a table from its beginning, of which the log has told that it was emptied: it may be gone by now.

        One that is not captured any more has nothing to read.
        """
        name = table.qualified
        self._tables.setdefault(name, table)
        self.add(name, since, required=True, restart=True)
        self._readings[name] = replace(self._readings[name], emptied=True, read=name not in self._captured)

    def add_again(self, name: str, since: str) -> None:
        """Read a table whose rows have changed without events: now, or once more when it has been read to its end.

        A reading that has begun goes on, so that it comes to an end however often this is asked. It may write rows and
        confirm keys as they were before; the next one, whose `since` lies behind all of them, does not.
        """
        was = self._readings.get(name)
        goes_on = was is not None and (was.after is not None or was.read or (self._current() == name and self._reads()))
        if was is not None and was.begun and goes_on:
            self._readings[name] = replace(was, required=True, again=True)
            return
        self._readings.pop(name, None)
        self.add(name, since, required=True)
        if was is not None:
            self._readings[name] = _stricter(self._readings[name], was)

    def _reads(self) -> bool:
        """Whether a window of a table is being read, or what has gone of it."""
        return self._job is not None and self._in_hand is None

    def is_first(self, window: Window) -> bool:
        """Whether a window is the first of its table's reading, and its view has seen all that the log has told of it.

        Else it leaves rows out whose events, of the table as it was, are all that their topic has of them.
        """
        return self._readings[window.table.qualified].after is None and self.logged.is_seen(window.sees)

    def described_by(self, name: str, since: str) -> None:
        """Note that a first window, which stands at `since`, has another description than the topic had.

        What was said until here asks for no other reading; and what the log told before that window was of the table as
        it was, and does not say that a row is there. Who has asked for the reading cannot stop it: rows of before are
        in the topic.
        """
        self._version_at_start[name] = self._version_of(self._tables[name])
        was = self._readings[name]
        self._readings[name] = _stricter(replace(was, since=since, required=True), was)

    def requested(self, beginning: bytes) -> tuple[str, ...]:
        """Name the tables of which commands whose keys begin so are being carried out."""
        found = {part.name for key, left in self._requested.items() if key.startswith(beginning) for part in left}
        return tuple(sorted(found))

    def pending(self, name: str) -> int:
        """Count the keys of a table whose rows are requested and not written yet."""
        return sum(len(part.keys) for left in self._requested.values() for part in left if part.name == name)

    def request(self, command: bytes, name: str, keys: Sequence[Key], *, first: bool = False) -> bool:
        """Read the rows with these keys; False if that is being done already, or no row can have such keys.

        `first`: under a view that sees all that the log has told by now.
        """
        fit = [key for key in keys if len(key) == len(self._tables[name].key)]
        if command in self._requested or not fit:
            return False
        self._requested[command] = [
            RequestedRows(command, name, fit[at : at + KEYS_AT_ONCE], first) for at in range(0, len(fit), KEYS_AT_ONCE)
        ]
        return True

    def is_requested(self, command: bytes) -> bool:
        """Whether a command is being carried out."""
        return command in self._requested

    def remove(self, name: str) -> bool:
        """Stop reading a table; False if it is not being read, or must be read to its end."""
        if name not in self._readings or self._readings[name].required:
            return False
        if self._current() == name:
            self._drop_job()
        del self._readings[name]
        return True

    def due(
        self, position: Callable[[], int], *, settled: bool, since: Callable[[], str] = str
    ) -> Window | RequestedRows | list[bytes] | None:
        """Give what is to be written at this point of the log: rows, or the keys that the source no longer has.

        Everything before `position` is written, and committed if `settled`. Call `wrote`, `wrote_requested` or
        `deleted` afterwards. `since` gives a position behind all that is written.
        """
        if self._job is None:
            if time.monotonic() >= self._retry_at_s:
                self._begin(settled=settled)
            return None
        name = self._in_hand.name if self._in_hand else next(iter(self._readings))
        if not self._job.done():
            return None
        try:
            result = self._job.result()
        except ChangedError:  # the next session compares it first
            raise
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
        if isinstance(result, Mapping):
            self._job = None
            self._order(result)
            return None
        self._fresh &= not isinstance(result, Window)
        if isinstance(result, LiveKeys):
            keys = result.after(self._deleted_to, DELETES_AT_ONCE)
            self._deleting = len(keys) == DELETES_AT_ONCE
            self._deleted_to = keys[-1] if keys else None
            return [key for key in keys if key not in self.logged]
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
        elif self._readings[name].emptied:
            self._job, self._readings[name] = None, replace(self._readings[name], read=True)
        else:
            log.warning("table %s is gone from the source; its topic stays as it is", name)
            self._finish(name, 0, since)
        return None

    def wrote(self, window: Window) -> None:
        """Note that the rows of a window are in the open transaction."""
        name = window.table.qualified
        if self._job is None or name != self._current():
            return  # writing them has shown that the table must be read from its beginning
        reading = self._readings[name]
        self._readings[name] = replace(
            reading,
            after=window.after or reading.after,
            key=window.table.key_order,
            rows=reading.rows + len(window.rows),
            estimate=reading.estimate if window.estimate is None else window.estimate,
            read=window.after is None,
        )
        self.logged.forget_seen(window.sees)
        self._job = None
        self._rows = next_window_rows(window, self._most) or self._rows

    def wrote_requested(self, requested: RequestedRows) -> bool:
        """Note that the rows of these keys, and deletes of keys without a row, are in the open transaction.

        True if that was all the command asked for.
        """
        if self._in_hand is None or self._in_hand.keys is not requested.keys:
            return False  # writing them has shown that the table must be read from its beginning
        if requested.window is not None:
            self.logged.forget_seen(requested.window.sees)
        left = self._requested[requested.command]
        del left[0]
        self._job = self._in_hand = None
        if left:
            return False
        del self._requested[requested.command]
        self._drop_job()
        return True

    def deleted(self, keys: int, since: Callable[[], str] = str) -> None:
        """Note that the deletes of the keys given are in the open transaction; `since` as for `due`."""
        if self._job is None:
            return  # writing them has shown that the table must be read from its beginning
        self._deleted += keys
        if not self._deleting:
            self._finish(next(iter(self._readings)), self._deleted, since)

    def close(self) -> None:
        """End what runs, without waiting for it. The reader must be closed too."""
        self._closed.set()
        self._drop_job()
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _current(self) -> str | None:
        return next(iter(self._readings), None)

    def _begin(self, *, settled: bool) -> None:
        requested = next((left[0] for left in self._requested.values()), None)
        if requested is not None:
            table = self._tables[requested.name]
            self._follow(table)
            self._in_hand, self._version = requested, self._version_of(table)
            first = self._fresh or requested.first
            self._job = self._executor.submit(self._reader.rows, table, requested.keys, first=first)
            return
        name = self._current()
        if name is None:
            return
        reading, table = self._readings[name], self._tables[name]
        if reading.read and not settled:
            return
        if not reading.begun and isinstance(self._reader, Sizing) and (unknown := without_size(self._readings)):
            self._job = self._executor.submit(sizes, self._reader, [self._tables[each] for each in unknown])
            return
        self._follow(table)
        if reading.read:
            self._job = self._executor.submit(
                stale_keys, self._records, table, self._topic(table), since=reading.since, closed=self._closed
            )
            return
        if not reading.started_at_ms:
            self._readings[name] = replace(reading, started_at_ms=time.time_ns() // 1_000_000)
        self._version = self._version_of(table)
        self._job = self._executor.submit(
            self._reader.window, table, reading.after, self._rows, key=reading.key, first=self._fresh
        )

    def _order(self, found: Mapping[str, int]) -> None:
        """Take up the sizes of tables that wait."""
        for name in without_size(self._readings):
            self._readings[name] = replace(self._readings[name], estimate=found.get(name))
        if self._readings.keys() <= self._read_before:
            self._read_before = set()
        self._readings = in_turn(self._readings, self._read_before)

    def _follow(self, table: Table) -> None:
        """Note the keys of a table's events from now on, unless that is being done."""
        if self.logged.table != table.qualified:
            self.logged.follow(table.qualified, self._topic(table))
            self._fresh = True

    def _failed(self, name: str, exc: RetryableError) -> None:
        now = time.monotonic()
        self._failing_since_s = self._failing_since_s or now
        if now - self._failing_since_s > GIVE_UP_S:
            raise exc
        log.warning("reading the rows of table %s: %s; trying again", name, exc.message)
        self._job = None
        self._retry_at_s = now + RETRY_S

    def _finish(self, name: str, deleted: int, since: Callable[[], str]) -> None:
        done = self._readings.pop(name)
        self._read_before = {*self._read_before, name} if self._readings else set()
        log.info("table %s was read while the log was followed: %d rows, %d keys deleted", name, done.rows, deleted)
        self._drop_job()
        if done.again:
            self.add(name, since(), required=True)
            self._readings[name] = replace(self._readings[name], gap=done.gap)

    def _drop_job(self) -> None:
        """Give up the current job; the executor's next job waits for it."""
        if self._job is not None:
            self._job.add_done_callback(_close_keys)
        self._job = self._in_hand = None
        self._deleted_to, self._deleted, self._deleting = None, 0, False
        self.logged.follow("", "")
        self._rows = min(self._most, FIRST_ROWS)


def _stricter(reading: IncrementalProgress, was: IncrementalProgress) -> IncrementalProgress:
    """Return a reading in the place of one that was asked for before: its `since` may lie further on in the log."""
    return replace(reading, since=max(reading.since, was.since), gap=was.gap, emptied=was.emptied)


def _close_keys(job: Future[Any]) -> None:
    if not job.cancelled() and job.exception() is None and isinstance(found := job.result(), LiveKeys):
        found.close()


def next_window_rows(window: Window, most: int) -> int | None:
    """Estimate how many rows, up to `most`, have `WINDOW_BYTES`, from a window that was read; None if it is empty."""
    size = sum(len(value) for row in window.rows for value in row if isinstance(value, bytes))
    return max(1, min(most, WINDOW_BYTES * len(window.rows) // size)) if size else None
