"""`cdc.follow` in the place of a connector: the same cases, without Kafka."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson

import cdc
from cdc.files.topicless_sink import UNSENT
from cdc.library.follow import Follow
from tests.integration.nudges import nudged
from tests.integration.running import eventually

_LOG: Final = logging.getLogger("cdc")


@dataclass(frozen=True)
class Told:
    """An event as a topic would have it, or a tombstone."""

    raw_key: bytes
    raw_value: bytes | None

    @cached_property
    def key(self) -> dict[str, Any]:
        found: dict[str, Any] = orjson.loads(self.raw_key)
        return found

    @cached_property
    def value(self) -> dict[str, Any] | None:
        return None if self.raw_value is None else orjson.loads(self.raw_value)


class Following:
    """A program that follows a database and keeps what it is told, as a compacted topic would."""

    def __init__(self, folder: Path, name: str, url: str, tables: list[str], *, settles: bool = False) -> None:
        """`settles`: it is not stopped while tables are being read."""
        self._settles = settles
        self._file, self._url, self._tables = folder / f"{name}.pos", url, tables
        self._told: dict[str, list[Told]] = {}
        self._live: dict[str, dict[bytes, dict[str, Any]]] = {}
        self._emptied: set[str] = set()
        self._last: dict[tuple[str, bytes], str] = {}
        self.read_again: set[str] = set()
        """Tables of which all rows were read while the log was followed."""
        self.ops: list[str] = []

    def _open(self, *, until_caught_up: bool) -> Follow:
        return cdc.follow(
            self._url, tables=self._tables, position=self._file, create=True, until_caught_up=until_caught_up
        )

    def _take(self, transaction: cdc.Transaction) -> None:
        for change in transaction:  # every value is one of Python
            self.ops.append(change.op)
        for key, value in transaction._events():
            event = orjson.loads(value)
            source = event["source"]
            self._note(f"{source.get('schema', source['db'])}.{source['table']}", key, value, event)
        transaction.done()

    def _note(self, table: str, key: bytes, value: bytes, event: dict[str, Any]) -> None:
        told, live = self._told.setdefault(table, []), self._live.setdefault(table, {})
        if event["op"] == "t":
            self._emptied.add(table)  # a row that is deleted after this may not have come again
            read_again = event["transaction"] is None
            if read_again:
                self.read_again.add(table)
            for gone in live:
                at = f"{self._last[table, gone]}, read again" if read_again else event["source"]["position"]
                source = {**event["source"], "position": at}
                deleted = {**event, "op": "d", "before": orjson.loads(gone), "transaction": None, "source": source}
                told.extend((Told(gone, orjson.dumps(deleted)), Told(gone, None)))
            live.clear()
            return
        self._last[table, key] = event["source"]["position"]
        if event["op"] == "d":
            if live.pop(key, None) is not None or table not in self._emptied:
                told.extend((Told(key, value), Told(key, None)))
            return
        holes = [name for name, of in event["after"].items() if of == UNSENT]
        if holes:
            event["after"] |= {name: live.get(key, {}).get(name, UNSENT) for name in holes}
            value = orjson.dumps(event)
        live[key] = event["after"]
        told.append(Told(key, value))

    def descriptions(self) -> list[dict[str, Any]]:
        return []

    def catch_up(self) -> str:
        with _heard() as said, nudged(self._url), self._open(until_caught_up=True) as following:
            for transaction in following:
                self._take(transaction)
        return said()

    def ask_to_read(self, tables: Sequence[str]) -> None:
        """A program that follows a database has no way to ask for it."""

    @contextlib.contextmanager
    def following(self, *, settles: bool = True) -> Iterator[Callable[[], str]]:
        failed: list[BaseException] = []

        def follow(following: Follow) -> None:
            try:
                for transaction in following:
                    self._take(transaction)
            except cdc.CdcError as exc:
                failed.append(exc)
                _LOG.warning("it has ended: %s", exc.message)

        with _heard() as said, self._open(until_caught_up=False) as following:
            thread = threading.Thread(target=follow, args=(following,))
            thread.start()
            with nudged(self._url):
                yield said
                if self._settles and settles:
                    eventually(lambda: _has_read(following), "all that is read again is there")
            following.close()  # in the midst of what is taken: that comes again
            thread.join()
        assert [str(error) for error in failed if "is closed: what is done" not in str(error)] == []

    def records(self, table: str) -> Sequence[Told]:
        return list(self._told.get(table, ()))


def _has_read(following: Follow) -> bool:
    state = following._progress.on_disk[0].state
    return state is not None and not state.reading


@contextlib.contextmanager
def _heard() -> Iterator[Callable[[], str]]:
    lines: list[str] = []

    class Ear(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage() + "\n")

    ear, level = Ear(), _LOG.level
    _LOG.addHandler(ear)
    _LOG.setLevel(logging.INFO)
    try:
        yield lambda: "".join(lines)
    finally:
        _LOG.removeHandler(ear)
        _LOG.setLevel(level)
