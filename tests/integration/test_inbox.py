"""`cdc.inbox` on a real broker and real databases: each record takes effect once, whatever comes between."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import psycopg
import psycopg2
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

import cdc
from tests.conftest import Database, MySQLDatabase
from tests.integration.running import eventually

pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python, 3.11

HEARTBEATS: Final = {"heartbeat.interval.ms": "100", "session.timeout.ms": "10000"}
"""So that a member hears of a rebalance soon."""


class Topic:
    """A topic of two partitions, and what was written to it."""

    def __init__(self, kafka: str, name: str) -> None:
        self.kafka, self.name, self.written = kafka, name, 0
        self.admin = AdminClient({"bootstrap.servers": kafka})
        self.make()

    def make(self) -> None:
        self.admin.create_topics([NewTopic(self.name, 2, 1)])[self.name].result(30)

    def make_again(self) -> None:
        self.admin.delete_topics([self.name])[self.name].result(30)
        eventually(lambda: self.name not in self.admin.list_topics(timeout=60).topics, "it is gone")
        self.make()

    def write(self, many: int) -> None:
        producer = Producer({"bootstrap.servers": self.kafka, "acks": "all"})
        for number in range(self.written, self.written + many):
            producer.produce(
                self.name, b"%d" % number, b"k%d" % number, partition=number % 2,
                headers=[("id", b"%d" % number)], on_delivery=_require,
            )  # fmt: skip
        assert producer.flush(30) == 0
        self.written += many

    def forget(self, partition: int, before: int) -> None:
        """Delete a partition's records, as retention does."""
        at = TopicPartition(self.name, partition, before)
        self.admin.delete_records([at])[at].result(30)


def _require(error: object, _message: object) -> None:
    assert error is None


class Store:
    """A consumer's database: each effect is a row of `effects`, which has no key, so a second one is seen."""

    def __init__(self, connect: Callable[[], Any], mark: str = "%s", fails: str = "COMMIT") -> None:
        """`fails` ends a transaction: an error that it does not outlive, or DDL."""
        self.connect, self._mark, self.fails = connect, mark, fails
        connection = connect()
        connection.cursor().execute("CREATE TABLE effects (n int NOT NULL)")
        connection.commit()
        connection.close()

    def take(self, connection: Any, messages: Sequence[cdc.Received]) -> None:
        for message in messages:
            connection.cursor().execute(f"INSERT INTO effects VALUES ({self._mark})", (int(message.value or b""),))

    def effects(self) -> list[int]:
        """In the order of the inserts, as far as a heap keeps it: within a partition it does here."""
        connection = self.connect()
        cursor = connection.cursor()
        cursor.execute("SELECT n FROM effects")
        found = [int(row[0]) for row in cursor.fetchall()]
        connection.close()
        return found


@pytest.fixture
def topic(kafka: str, prefix: str) -> Topic:
    return Topic(kafka, f"{prefix}.in")


def _sqlite(folder: Path) -> Store:
    return Store(lambda: sqlite3.connect(folder / "store.db", timeout=30, check_same_thread=False), "?", "ROLLBACK")


def _postgres(database: Database) -> Store:
    return Store(lambda: psycopg2.connect(database.url))


@contextmanager
def opened(store: Store, topic: Topic, name: str = "mailer", connection: Any = None) -> Iterator[tuple[Any, cdc.Inbox]]:
    """An inbox with a connection of its own, which ends as that of a process does that is killed."""
    own = connection if connection is not None else store.connect()
    kafka = {"bootstrap.servers": topic.kafka, **HEARTBEATS}
    try:
        with cdc.inbox(f"{topic.name}.{name}", own, kafka=kafka, topics=topic.name) as inbox:
            yield own, inbox
    finally:
        own.close()


def take_all(store: Store, connection: Any, inbox: cdc.Inbox, until: int, most: int = 7) -> None:
    """Handle records until so many effects are there, and no more."""
    ends_s = time.monotonic() + 60
    while (left := until - len(store.effects())) > 0:
        assert time.monotonic() < ends_s
        with inbox.batch(min(most, left), wait_s=0.2) as messages:
            store.take(connection, messages)


def require_once(store: Store, topic: Topic) -> None:
    """Each effect is there once, those of a partition in its order."""
    found = store.effects()
    assert sorted(found) == list(range(topic.written))
    for partition in (0, 1):
        of = [number for number in found if number % 2 == partition]
        assert of == sorted(of)


def _handle_badly(
    store: Store, connection: Any, inbox: cdc.Inbox, end: Callable[[], object]
) -> tuple[cdc.Received, ...]:
    """A block with effects that ends badly: by an exception, or with another transaction than it began with."""
    given: list[cdc.Received] = []

    def handle() -> None:
        with inbox.batch(1, wait_s=10) as messages:
            given.extend(messages)
            store.take(connection, messages)
            end()

    with pytest.raises((ZeroDivisionError, cdc.ConfigError), match=r"by zero|the block has (ended its|caught an)"):
        handle()
    assert len(given) == 1
    return tuple(given)


def _faults(store: Store, topic: Topic) -> None:
    """A block that fails, and a process that is killed in it; a block that commits is told."""
    topic.write(20)
    with opened(store, topic) as (connection, inbox):
        take_all(store, connection, inbox, 10, most=5)
        failed = _handle_badly(store, connection, inbox, lambda: 1 // 0)
        with inbox.batch(wait_s=10) as again:
            assert again[0] == failed[0]
            store.take(connection, again)
        take_all(store, connection, inbox, 20)
        topic.write(10)

        def again_behind(end: Callable[[], object]) -> None:
            """End the transaction, and go on in another one, which would be committed without the mark."""
            with contextlib.suppress(Exception):
                end()
            with contextlib.suppress(Exception):  # PostgreSQL refuses all behind an error
                connection.cursor().execute("DELETE FROM effects WHERE n < 0")

        for ends in (connection.rollback, partial(connection.cursor().execute, store.fails)):
            _handle_badly(store, connection, inbox, partial(again_behind, ends))
        assert len(store.effects()) == 20
        _handle_badly(store, connection, inbox, connection.commit)
        batch = inbox.batch(wait_s=10)
        store.take(connection, batch.__enter__())
        assert len(store.effects()) == 21
    # its connection is closed in the middle of the block
    with opened(store, topic) as (connection, inbox):
        take_all(store, connection, inbox, 30)
    with opened(store, topic) as (connection, inbox):
        topic.write(5)
        take_all(store, connection, inbox, 35)
    require_once(store, topic)


@pytest.mark.parametrize(
    "driver",
    [pytest.param(psycopg2, id="psycopg2"), pytest.param(psycopg, id="psycopg", marks=pytest.mark.full)],
)
def test_postgres(driver: Any, postgres18: Database, topic: Topic) -> None:
    """By both drivers."""
    _faults(Store(lambda: driver.connect(postgres18.url), fails="SELECT 1 / 0"), topic)


def test_sqlite(tmp_path: Path, topic: Topic) -> None:
    _faults(_sqlite(tmp_path), topic)


@pytest.mark.full  # test_postgres; the statements differ
def test_mysql(mysql_database: MySQLDatabase, topic: Topic) -> None:
    _faults(Store(partial(mysql_database.connect, autocommit=False), fails="ROLLBACK"), topic)


class Losing(psycopg2.extensions.connection):
    """A connection of which a commit goes through, and is answered by an error, when that is asked for."""

    armed = False

    def commit(self) -> None:
        super().commit()
        if self.armed:
            self.armed = False
            raise psycopg2.OperationalError("the answer is lost")


def test_a_commit_whose_answer_is_lost(postgres18: Database, topic: Topic) -> None:
    """The next batch sees that it went through, and has none of its records."""
    store = _postgres(postgres18)
    topic.write(6)
    connection = psycopg2.connect(postgres18.url, connection_factory=Losing)
    with opened(store, topic, connection=connection) as (_, inbox):
        take_all(store, connection, inbox, 4, most=4)
        connection.armed = True
        with pytest.raises(psycopg2.OperationalError), inbox.batch(wait_s=10) as messages:
            store.take(connection, messages)
        assert messages
        with inbox.batch() as others:
            assert not {*others} & {*messages}
            store.take(connection, others)
        topic.write(2)
        take_all(store, connection, inbox, 8)
    require_once(store, topic)


def test_a_rebalance(postgres18: Database, topic: Topic) -> None:
    """A member comes, and one goes, while records are handled: each once, and in its partition's order."""
    store = _postgres(postgres18)
    shares: dict[str, set[int]] = {"one": set(), "two": set()}

    def both(members: dict[str, tuple[Any, cdc.Inbox]], until: Callable[[], bool]) -> None:
        ends_s = time.monotonic() + 60
        while not until():
            assert time.monotonic() < ends_s
            for name, (connection, inbox) in members.items():
                with inbox.batch(3, wait_s=0.1) as messages:
                    store.take(connection, messages)
                    shares[name] |= {message.partition for message in messages}
            if len(store.effects()) == topic.written and not until():
                topic.write(10)

    with ExitStack() as stack:
        one = stack.enter_context(opened(store, topic))
        both({"one": one}, lambda: shares["one"] == {0, 1})
        with opened(store, topic) as two:
            both({"one": one, "two": two}, lambda: bool(shares["two"]))
            shares["one"].clear()
        both({"one": one}, lambda: shares["one"] == {0, 1})
        both({"one": one}, lambda: len(store.effects()) == topic.written)
    require_once(store, topic)


def test_a_zombie(postgres18: Database, topic: Topic) -> None:
    """One that has lost its partitions and does not know it: before the other, beside it, and behind it."""
    store = _postgres(postgres18)
    topic.write(12)
    with ExitStack() as stack:
        own, zombie = stack.enter_context(opened(store, topic))
        take_all(store, own, zombie, 4, most=4)
        held = zombie.batch(4, wait_s=10)
        records = held.__enter__()
        store.take(own, records)
        zombie.close()  # to the group it is gone, with records in hand
        connection, other = stack.enter_context(opened(store, topic))
        beside = threading.Thread(target=take_all, args=(store, connection, other, 12))
        beside.start()
        waiting = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        eventually(lambda: len(postgres18.rows(waiting)) == 1, "the other waits for what the zombie holds")
        assert len(store.effects()) == 4
        with pytest.raises(RuntimeError):  # its consumer is closed
            held.__exit__(None, None, None)
        beside.join(60)
        assert not beside.is_alive()
        require_once(store, topic)


@pytest.mark.parametrize("running", [False, True])
def test_a_topic_that_is_made_again(running: bool, postgres18: Database, topic: Topic) -> None:
    """It is told, also if it has more records than before; nothing of it is given; another name reads it."""
    store = _postgres(postgres18)
    topic.write(10)
    with opened(store, topic) as (connection, inbox):
        take_all(store, connection, inbox, 10)
        if running:
            topic.make_again()
            topic.write(20)
            with pytest.raises(cdc.GapError, match=r"made again|is next is gone|has lost"):
                take_all(store, connection, inbox, 11)
    if not running:
        topic.make_again()
        topic.write(20)
    with opened(store, topic) as (connection, inbox):
        for _ in range(2):
            with pytest.raises(cdc.GapError, match="was deleted and made again: its offsets begin again"):
                take_all(store, connection, inbox, 11)
    assert len(store.effects()) == 10
    with opened(store, topic, "other") as (connection, inbox):
        take_all(store, connection, inbox, 30)
    require_once(store, topic)


def test_records_that_are_gone(tmp_path: Path, topic: Topic) -> None:
    """Before the first start they are none of its business; later they are missed, and told."""
    store = _sqlite(tmp_path)
    topic.write(10)
    topic.forget(0, 5)
    with opened(store, topic) as (connection, inbox):
        take_all(store, connection, inbox, 5)
    assert sorted(store.effects()) == [1, 3, 5, 7, 9]
    topic.write(10)
    topic.forget(1, 8)
    with opened(store, topic) as (connection, inbox):
        with pytest.raises(cdc.GapError, match="partition 1 has offsets from 8 to 10, and 5 is next: records are gone"):
            take_all(store, connection, inbox, 6)
        assert len(store.effects()) == 5


def test_the_end_of_a_transaction_is_no_record(tmp_path: Path, topic: Topic) -> None:
    """Retention takes it with the records that were handled: nothing is missed, and a quiet topic stops no inbox."""
    store = _sqlite(tmp_path)
    producer = Producer({"bootstrap.servers": topic.kafka, "transactional.id": topic.name})
    producer.init_transactions()

    def write(*numbers: int) -> None:
        producer.begin_transaction()
        for number in numbers:
            producer.produce(topic.name, b"%d" % number, partition=number % 2)
        producer.flush()

    write(0, 1, 2)
    producer.commit_transaction()
    write(90, 91)
    producer.abort_transaction()
    with opened(store, topic) as (connection, inbox):
        take_all(store, connection, inbox, 3)
        with inbox.batch(wait_s=1) as messages:
            assert messages == ()
            connection.rollback()  # of a block without records nothing is asked
    for partition, end in ((0, 5), (1, 4)):
        topic.forget(partition, end)
    with opened(store, topic) as (connection, inbox):
        with inbox.batch(wait_s=1) as messages:
            assert messages == ()
        write(3, 4)
        producer.commit_transaction()
        take_all(store, connection, inbox, 5)
    assert sorted(store.effects()) == [0, 1, 2, 3, 4]


def test_topics_that_are_made_later(tmp_path: Path, topic: Topic) -> None:
    """One that is not there yet is waited for, and its first record is given."""
    store = _sqlite(tmp_path)
    topic.admin.delete_topics([topic.name])[topic.name].result(30)
    eventually(lambda: topic.name not in topic.admin.list_topics(timeout=60).topics, "it is gone")
    with opened(store, topic) as (connection, inbox):
        with inbox.batch() as messages:
            assert messages == ()
        topic.make()
        topic.write(4)
        take_all(store, connection, inbox, 4)
    require_once(store, topic)
