"""A connector at work and a table being written: what tests of faults need in common."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, Self

import psycopg2

from cdc.config.kafka_config import KafkaConfig
from cdc.model.state import State
from sinks.topics.records.positions import read_standing
from tests.canary import WATCH
from tests.conftest import Database
from tests.integration.connector import Connector
from tests.integration.nudges import nudged

Row = dict[str, Any]

PATIENCE_S = 120.0


def eventually(condition: Callable[[], object], what: str | Callable[[], str], *, within_s: float = PATIENCE_S) -> None:
    """Return as soon as `condition` holds; fail with `what` if it never does.

    A `what` that shows how things stand is a callable: it is asked when the time is up, not before it begins.
    """
    deadline = time.monotonic() + within_s
    while not condition():
        if time.monotonic() >= deadline:
            said = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {within_s:.0f} s: {said}")
        time.sleep(0.02)


class Running:
    """`cdc run` under observation. As a context manager it is killed on exit if it still runs."""

    def __init__(self, connector: Connector, *flags: str) -> None:
        self._connector = connector
        self.process = connector.start(*flags)
        self.lines: list[str] = []
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)

    @property
    def stderr(self) -> str:
        return "".join(self.lines)

    def await_line(self, text: str, *, times: int = 1, within_s: float = PATIENCE_S) -> None:
        """Until stderr has so many lines with `text`."""

        def said() -> bool:
            assert self.process.poll() is None or sum(text in line for line in self.lines) >= times, self.stderr
            return sum(text in line for line in self.lines) >= times

        eventually(said, lambda: f"{times} × {text!r} in:\n{self.stderr}", within_s=within_s)

    def await_following(self) -> None:
        """Until it follows the log. It says so at its first commit, for which an idle log may make it wait 10 s."""
        with nudged(self._connector.owner_url):
            self.await_line("following the log")

    def ended(self, *, within_s: float = PATIENCE_S) -> int:
        """Its exit code, once it has ended by itself."""
        try:
            code = self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {within_s:.0f} s:\n{self.stderr}") from None
        self._thread.join()
        return code

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self._connector.killed = True
        self.ended()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()
        self._thread.join()
        WATCH.tee("run", self.stderr)
        for stream in (self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()


def standing(connector: Connector, *, settled: bool = False) -> State:
    """The committed position; `settled`: a commit that is being marked is waited for, which its writer does not do."""
    config = KafkaConfig(bootstrap_servers=connector.kafka, topic_prefix=connector.name)
    state = read_standing(config, connector.name, fenced=settled).state
    assert state is not None
    return state


@dataclass(frozen=True)
class KeyShape:
    """A table's key, made of a number: its columns, the SQL of its value, and its place in the order it is read in."""

    columns: str
    names: str
    value: str
    order: Callable[[Row], Any]

    def of(self, *numbers: int) -> str:
        return ", ".join(f"({self.value.format(n=n)})" for n in numbers)


INTEGER = KeyShape("id int", "id", "{n}", lambda key: key["id"])


class Writer(threading.Thread):
    """Transactions on `(key…, n int, v text)` until told to stop: updates, deletes, inserts, key changes."""

    def __init__(
        self, database: Database, table: str, *, keys: int, shape: KeyShape = INTEGER, pause_s: float = 0.002
    ) -> None:
        super().__init__(daemon=True)
        self._pause_s = pause_s
        self._connection = database.connect()
        self._table = table
        self._keys = keys
        self._shape = shape
        self._over = threading.Event()
        self._failed: BaseException | None = None
        self.transactions = 0

    def run(self) -> None:
        table, keys, of, names = self._table, self._keys, self._shape.of, self._shape.names
        try:
            with self._connection.cursor() as cursor:
                for n in itertools.count(1):
                    if self._over.wait(self._pause_s):  # a busy table, not a busy machine
                        return
                    at = n * 7919 % keys
                    again, back, some = (at + 100) % keys, (at + 300) % keys, of(*range(at, at + 4))
                    cursor.execute(
                        f"BEGIN; UPDATE {table} SET n = n + 1, v = 'w{n}' WHERE ({names}) IN ({some});"
                        f"DELETE FROM {table} WHERE ({names}) = {of(again)};"
                        f"INSERT INTO {table} SELECT {of(again)[1:-1]}, {n}, 'again' ON CONFLICT DO NOTHING;"
                        f"UPDATE {table} SET ({names}) = ROW{of(keys + n)} WHERE ({names}) = {of((at + 200) % keys)};"
                        f"UPDATE {table} SET ({names}) = ROW{of(back)} WHERE ({names}) = {of(keys + n // 2)}"
                        f" AND NOT EXISTS (SELECT FROM {table} WHERE ({names}) = {of(back)}); COMMIT"
                    )
                    self.transactions = n
        except psycopg2.Error as exc:
            self._failed = exc

    def stop(self) -> None:
        self._over.set()
        self.join()
        self._connection.close()
        assert self._failed is None
        assert self.transactions > 10


@contextlib.contextmanager
def writing(
    database: Database, table: str, *, keys: int, shape: KeyShape = INTEGER, pause_s: float = 0.002
) -> Iterator[Writer]:
    """A writer at work inside the block."""
    writer = Writer(database, table, keys=keys, shape=shape, pause_s=pause_s)
    writer.start()
    try:
        yield writer
    finally:
        writer.stop()


def filled(database: Database, table: str, *, keys: int, shape: KeyShape = INTEGER) -> None:
    """Make the table a Writer writes."""
    database.execute(
        f"CREATE TABLE {table} ({shape.columns}, n int, v text, PRIMARY KEY ({shape.names}))",
        f"INSERT INTO {table} SELECT {shape.value.format(n='x')}, 0, 'seed' FROM generate_series(0, {keys - 1}) x",
    )


def rows(database: Database, select: str) -> list[Row]:
    connection = database.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(select)
            assert cursor.description is not None
            names = [column.name for column in cursor.description]
            return [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    finally:
        connection.close()


def ordered(found: Iterable[Row]) -> list[Row]:
    return sorted(found, key=lambda row: json.dumps(row, sort_keys=True))


def same(connector: Connector, database: Database, table: str) -> None:
    """The folded topic is the table, whole."""
    assert ordered(connector.fold(table).values()) == ordered(rows(database, f"SELECT * FROM {table}"))


def unbroken(connector: Connector, table: str, *, read_again: bool = False) -> None:
    """See `in_turn`."""
    in_turn(connector.records(table), read_again=read_again)


class _Record(Protocol):
    @property
    def raw_key(self) -> bytes: ...
    @property
    def value(self) -> Row | None: ...


def in_turn(records: Iterable[_Record], *, read_again: bool = False) -> None:
    """For every key rows come and go in turn and positions rise; no event of the log is there twice.

    `read_again`: rows were read while the log was followed, so they come between its events, and some after them.
    """
    there: dict[bytes, bool] = {}
    last: dict[bytes, str] = {}
    seen: set[tuple[str, int]] = set()
    for record in records:
        if record.value is None:
            assert not there[record.raw_key]
            continue
        op, was = record.value["op"], there.get(record.raw_key, False)
        turns = {("r", False), ("c", False), ("u", True), ("d", True)}
        assert read_again or (op, was) in turns, (op, was, record.raw_key)
        there[record.raw_key] = op != "d"
        position = record.value["source"]["position"]
        assert last.get(record.raw_key, "") < position
        last[record.raw_key] = position
        if record.value["transaction"] is not None:
            event = (record.value["transaction"]["id"], record.value["transaction"]["total_order"])
            assert event not in seen
            seen.add(event)
