"""What every sink promises: the memory twin and the real Kafka pass the same tests."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import closing
from typing import Protocol

import pytest

from cdc.config.kafka_config import PRODUCERS, KafkaConfig, LogConfig
from cdc.config.published.route import RouteConfig
from cdc.encode.table_log import log_of
from cdc.model.change import Table
from cdc.model.errors import BugError, OperatorError, RetryableError, TooLargeError
from cdc.model.interfaces import Log, Sink
from cdc.model.state import Phase, State
from cdc.rules.routes import Routes, key_end
from cdc.testing import MemoryKafka, MemorySink
from sinks.kafka import KafkaSink
from tests.pushes import some_each_push
from tests.text_tables import text_table

A, B = text_table("a", ["id"]), text_table("b", ["id"])
LOGGED = text_table("logged", ["id"])
ONE, TWO = text_table("shard_1", ["id"]), text_table("shard_2", ["id"])
ROUTE = RouteConfig(tables="s.shard_?", to="shards", key="+source")
STATE = State(
    connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"at": 7}, commit=7,
    tables=("s.b", "s.a"), carried={"s.a": "1", "s.b": "2"}, reading={"s.b": {"rows": 1}, "s.a": {"rows": 0}},
)  # fmt: skip
LOGS: tuple[Log, ...] = ("message", "transaction", "dead-letter", "key")
LIMIT = 32 * 1024 * 1024  # a topic of events takes records up to this size


class Broker(Protocol):
    """A broker with topics of its own."""

    prefix: str

    def sink(self, connector: str = "c") -> Sink:
        """A copy of a connector's sink, not fenced yet."""

    def committed(self, topic: str) -> list[tuple[bytes, bytes | None]]:
        """What a read_committed reader sees."""

    def headers(self, topic: str) -> list[tuple[bytes | None, list[tuple[str, bytes]]]]:
        """The same reader's values, with their headers."""


class InMemory:
    """The twin."""

    prefix = "p"

    def __init__(self) -> None:
        self._kafka = MemoryKafka(largest_bytes=LIMIT)

    def sink(self, connector: str = "c") -> Sink:
        return MemorySink(self._kafka, connector, self.prefix, logged=[LOGGED.qualified], routes=Routes([ROUTE]))

    def committed(self, topic: str) -> list[tuple[bytes, bytes | None]]:
        return [(record.key, record.value) for record in self._kafka.committed(topic)]

    def headers(self, topic: str) -> list[tuple[bytes | None, list[tuple[str, bytes]]]]:
        return [(record.value, list(record.headers)) for record in self._kafka.committed(topic)]


class Real:
    """The server."""

    def __init__(self, servers: str, prefix: str, producer: str = "own") -> None:
        self.prefix = prefix
        log = LogConfig(tables=(LOGGED.qualified,), retention="1d")
        self._config = KafkaConfig(
            bootstrap_servers=servers, topic_prefix=prefix, producer=producer, partitions=2, log=log, route=(ROUTE,)
        )

    def sink(self, connector: str = "c") -> Sink:
        from sinks.kafka import open_sink

        return open_sink(self._config, connector, logs=LOGS)

    def committed(self, topic: str) -> list[tuple[bytes, bytes | None]]:
        from sinks.topics.records.read_back import read_to_end

        with closing(read_to_end(self._config.bootstrap_servers, {}, topic, "read_committed")) as messages:
            return [(message.key() or b"", message.value()) for message in messages]

    def headers(self, topic: str) -> list[tuple[bytes | None, list[tuple[str, bytes]]]]:
        from sinks.topics.records.read_back import read_to_end

        with closing(read_to_end(self._config.bootstrap_servers, {}, topic, "read_committed")) as messages:
            return [(message.value(), message.headers() or []) for message in messages]


_ALL = ("memory", *PRODUCERS)
BY_EACH = pytest.mark.parametrize("broker", _ALL, indirect=True)
"""What each push asks of every client; the rest it asks of the twin and of the client that is the default."""


@pytest.fixture(params=some_each_push(_ALL, "memory", "own"))
def broker(request: pytest.FixtureRequest) -> Broker:
    """Each test runs against the twin, and against the server through each client."""
    if request.param == "memory":
        return InMemory()
    return Real(request.getfixturevalue("kafka"), request.getfixturevalue("prefix"), request.param)


@pytest.fixture
def sink(broker: Broker) -> Iterator[Sink]:
    """A sink that is fenced, its topics made."""
    made = broker.sink()
    with closing(made):
        made.check([A, B])
        made.create([A, B])
        fence(made)
        yield made


def fence(sink: Sink) -> State | None:
    """As the loop does: what waiting cures is tried again."""
    for _ in range(20):
        try:
            return sink.fence()
        except RetryableError as exc:
            if not exc.at_start:
                raise
            time.sleep(0.2)
    raise AssertionError("fencing never came through")


pytestmark = pytest.mark.filterwarnings("ignore:.* is deprecated. Use files:DeprecationWarning")  # kafka-python, 3.11


SCHEMA = b'{"connector":"c","topic":"t","schema":"s","table":"a","version":1,"key":[],"columns":[]}'


def test_a_connector_that_never_committed_has_no_position(sink: Sink, broker: Broker) -> None:
    """None, and only then a fresh start."""
    with closing(broker.sink()) as again:
        assert fence(again) is None


def test_fencing_gives_the_last_committed_state(sink: Sink, broker: Broker) -> None:
    """The newest of several, of this connector; another's position is its own."""
    sink.commit(STATE)
    sink.commit(STATE.next(commit=9))
    with closing(broker.sink("other")) as other, closing(broker.sink()) as again:
        other.create([A, B])
        assert fence(other) is None
        assert fence(again) == STATE.next(commit=9)


def test_headers_come_with_their_records(sink: Sink, broker: Broker) -> None:
    """Of some records among others, a tombstone's too, in the topic and in the table's log."""
    sink.create([LOGGED])
    topic, headers = sink.topic(LOGGED), [("__a", b'{"id":1}'), ("ü", b"")]
    sink.write(topic, b"k", b"1")
    sink.write(topic, b"k", b"2", headers)
    sink.write(topic, b"k", None, headers[:1])
    sink.write(topic, b"k", b"3")
    sink.commit(STATE)
    expected: list[tuple[bytes | None, list[tuple[str, bytes]]]] = [
        (b"1", []), (b"2", headers), (None, headers[:1]), (b"3", []),
    ]  # fmt: skip
    assert broker.headers(topic) == expected
    assert broker.headers(log_of(topic)) == [each for each in expected if each[0] is not None]


@BY_EACH
def test_a_commit_shows_records_schema_and_position_together(sink: Sink, broker: Broker) -> None:
    """Before it nothing, after it everything, in order for each key; a tombstone is a record."""
    topic = sink.topic(A)
    sink.schema(b'{"v":1}', SCHEMA)
    for value in (b"1", b"2", None):
        sink.write(topic, b"k", value)
    sink.write(sink.topic(B), b"other", b"x")
    assert sink.pending()[0] == 6  # the schema has a copy beside the position
    assert sink.pending()[1] >= 8
    sink.commit(STATE)
    assert sink.pending() == (0, 0)
    assert broker.committed(topic) == [(b"k", b"1"), (b"k", b"2"), (b"k", None)]
    assert broker.committed(sink.topic(B)) == [(b"other", b"x")]
    assert list(sink.schemas()) == [SCHEMA]


@BY_EACH
def test_what_was_not_committed_is_never_seen(sink: Sink, broker: Broker) -> None:
    """The sink lets go, the next copy fences: nothing that was open is visible, the position is the old one."""
    sink.commit(STATE)
    sink.schema(b"s", b"never")
    sink.write(sink.topic(A), b"k", b"never")
    list(sink.records(A))  # the record is at the broker, not only in a queue
    sink.close()
    with closing(broker.sink()) as again:
        assert fence(again) == STATE
        assert broker.committed(again.topic(A)) == []
        assert list(again.schemas()) == []
        assert again.occupied([A, B]) == []


@BY_EACH
def test_reading_back_sees_the_open_transaction_and_none_that_was_aborted(sink: Sink, broker: Broker) -> None:
    """`records` is what a truncate and a value left out are worked out from, in order for each key."""
    sink.write(sink.topic(A), b"k", b"aborted")
    assert list(sink.records(A)) == [(b"k", b"aborted")]
    sink.close()
    with closing(broker.sink()) as again:
        fence(again)
        again.write(again.topic(A), b"k", b"committed")
        again.commit(STATE)
        again.write(again.topic(A), b"k", b"open")
        again.write(again.topic(A), b"k", None)
        assert list(again.records(A)) == [(b"k", b"committed"), (b"k", b"open"), (b"k", None)]
        assert list(again.records(B)) == []


@BY_EACH
def test_a_fenced_copy_cannot_commit(sink: Sink, broker: Broker) -> None:
    """It says that another copy runs; nothing it wrote is visible; the other goes on."""
    sink.write(sink.topic(A), b"k", b"zombie")
    list(sink.records(A))
    with closing(broker.sink()) as newer:
        fence(newer)
        with pytest.raises(OperatorError, match="another copy of connector c has"):
            _write_and_commit(sink, b"zombie")
        newer.write(newer.topic(A), b"k", b"newer")
        newer.commit(STATE.next())
        assert broker.committed(newer.topic(A)) == [(b"k", b"newer")]


def test_a_fenced_copy_lets_go(sink: Sink, broker: Broker) -> None:
    """A copy with records under way that another one has fenced off closes without a word, more than once."""
    sink.fence()
    sink.write(sink.topic(A), b"k", b"v")
    list(sink.records(A))  # which sends it
    with closing(broker.sink()) as other:
        other.fence()
        sink.close()
        sink.close()
        assert broker.committed(sink.topic(A)) == []


def _write_much(sink: Sink) -> None:
    for _ in range(1_000_000):
        sink.write(sink.topic(A), b"k", b"v" * 200)


def test_a_fenced_copy_cannot_write_for_long(kafka: str, prefix: str) -> None:
    """Before the commit already, the client's refusal is told as what it is: another copy has started."""
    broker = Real(kafka, prefix)
    with closing(broker.sink()) as sink, closing(broker.sink()) as other:
        sink.create([A])
        sink.fence()
        sink.write(sink.topic(A), b"k", b"v")
        other.fence()
        with pytest.raises(OperatorError, match="another copy of connector c"):
            _write_much(sink)


def test_a_fenced_copy_cannot_read_back(kafka: str, prefix: str) -> None:
    """Nor where what was written is first sent in order to be read: the fatal error and the reports come at once."""
    broker = Real(kafka, prefix)
    with closing(broker.sink()) as sink, closing(broker.sink()) as other:
        sink.create([A])
        sink.fence()
        for number in range(5):
            sink.write(sink.topic(A), b"%d" % number, b"v")
        other.fence()
        with pytest.raises(OperatorError, match="another copy of connector c"):
            list(sink.records(A))


def test_a_topic_is_occupied_once_it_holds_committed_records(sink: Sink, broker: Broker) -> None:
    """Of the tables asked about, by topic; an empty one is not."""
    assert sink.occupied([A, B]) == []
    sink.write(sink.topic(A), b"k", b"1")
    sink.commit(STATE)
    assert sink.occupied([A, B]) == [sink.topic(A)]


def test_each_table_of_a_topic_reads_its_own_records(broker: Broker) -> None:
    """Those of the others are not among them; what names no table is: nobody may write it, and all must see it."""
    with closing(broker.sink()) as sink:
        sink.check([ONE, TWO])
        sink.create([ONE, TWO])
        fence(sink)
        topic = sink.topic(ONE)
        assert sink.topic(TWO) == topic == f"{broker.prefix}.shards"
        assert sink.occupied([ONE, TWO]) == []
        keys = [b'{"id":"1"' + key_end(table.qualified) for table in (ONE, TWO)]
        for key in (*keys, b"foreign"):
            sink.write(topic, key, key)
        sink.commit(STATE)
        for table, key in zip((ONE, TWO), keys, strict=True):
            assert sorted(sink.records(table)) == sorted([(key, key), (b"foreign", b"foreign")])
            _, number = sink.partition(table, key)
            found = [of for _, of, _ in sink.records_from(table, number, 0)]
            assert [of for of in found if of in keys] == [key]
            assert sink.extent(table) >= 3
        assert sink.occupied([ONE, TWO]) == [topic]
        assert topic in sink.found()


def test_a_record_too_large_stops_with_names_and_a_command(sink: Sink, broker: Broker) -> None:
    """The topic and the size, never the value; and nothing of its transaction is visible."""
    topic = sink.topic(A)
    sink.write(topic, b"small", b"1")
    with pytest.raises(OperatorError) as caught:
        _write_and_commit(sink, b"secret" + os.urandom(LIMIT))  # which no compression makes smaller
    assert f"is too large for topic {topic}" in caught.value.message
    assert caught.value.hint
    assert "secret" not in str(caught.value)
    sink.close()
    with closing(broker.sink()) as again:
        assert fence(again) is None
        assert broker.committed(topic) == []


def test_a_record_too_large_is_handed_back(sink: Sink) -> None:
    """Which one it was, though others went before and after it."""
    topic, large = sink.topic(B), os.urandom(LIMIT)

    def write_and_commit() -> None:
        for n in range(100):
            sink.write(topic, b"%d" % n, large if n == 50 else b"small")
        sink.commit(STATE)

    with pytest.raises(TooLargeError) as caught:
        write_and_commit()
    assert (caught.value.topic, caught.value.key, caught.value.value) == (topic, b"50", large)


def test_logs_are_committed_with_the_rest(sink: Sink, broker: Broker) -> None:
    """Each in its topic, none replacing another; dead letters are read back once they are committed, as one's own."""
    assert list(sink.dead_letters()) == []
    for name in LOGS:
        sink.log(name, b"k", b"1")
        sink.log(name, b"k", b"2")
    sink.write(sink.topic(A), b"k", b"v")
    assert list(sink.dead_letters()) == []
    sink.commit(STATE)
    for name in LOGS:
        assert broker.committed(sink.log_topic(name)) == [(b"k", b"1"), (b"k", b"2")]
    assert list(sink.dead_letters()) == [(b"k", b"1"), (b"k", b"2")]
    sink.log("key", b"k", None)
    assert list(sink.keys()) == [(b"k", b"1"), (b"k", b"2")]
    sink.commit(STATE)
    assert list(sink.keys()) == [(b"k", b"1"), (b"k", b"2"), (b"k", None)]
    sink.log("dead-letter", b"k", b"3")
    sink.close()
    with closing(broker.sink()) as again:
        again.check([A, B])
        fence(again)
        assert list(again.dead_letters()) == [(b"k", b"1"), (b"k", b"2")]


def test_a_table_s_log_has_every_event(sink: Sink, broker: Broker) -> None:
    """In its order, but for tombstones; committed and given up with the rest; of the other table nothing."""
    topic = sink.topic(LOGGED)
    sink.create([LOGGED])
    for value in (b"1", b"2", None, b"3"):
        sink.write(topic, b"k", value)
    sink.write(sink.topic(B), b"k", b"x")
    sink.commit(STATE)
    assert broker.committed(log_of(topic)) == [(b"k", b"1"), (b"k", b"2"), (b"k", b"3")]
    sink.write(topic, b"k", b"never")
    list(sink.records(LOGGED))
    sink.close()
    with closing(broker.sink()) as again:
        assert fence(again) == STATE
        assert len(broker.committed(log_of(topic))) == 3
        assert again.occupied([LOGGED, B]) == [topic, again.topic(B), log_of(topic)]


def test_a_key_has_the_same_partition_in_the_log(kafka: str, prefix: str) -> None:
    """So that what reads both can be placed together; and retention is what was asked for."""
    from sinks.topics.records.read_back import read_to_end
    from sinks.topics.topics import Topics

    with closing(Real(kafka, prefix).sink()) as sink:
        sink.create([LOGGED])
        fence(sink)
        for n in range(50):
            sink.write(sink.topic(LOGGED), b"%d" % n, b"v")
        sink.commit(STATE)
        places = [
            {m.key(): (m.partition(), m.offset()) for m in read_to_end(kafka, {}, topic, "read_committed")}
            for topic in (sink.topic(LOGGED), log_of(sink.topic(LOGGED)))
        ]
        assert places[0] == places[1]
        assert len({partition for partition, _ in places[0].values()}) == 2
        with Topics(kafka, {}) as topics:
            settings = topics.existing([log_of(sink.topic(LOGGED))])[log_of(sink.topic(LOGGED))].settings
        assert (settings["cleanup.policy"], settings["retention.ms"], settings["retention.bytes"]) == (
            "delete",
            "86400000",
            "-1",
        )
    longer = KafkaConfig(
        bootstrap_servers=kafka,
        topic_prefix=prefix,
        partitions=2,
        log=LogConfig(tables=("*.*",), retention="forever"),
    )
    with pytest.raises(OperatorError, match="would forget earlier than asked for") as caught:
        KafkaSink(longer, "c").check([LOGGED])
    assert "--add-config retention.ms=-1" in (caught.value.hint or "")


def test_nothing_is_written_before_fencing_or_after_closing(sink: Sink, broker: Broker) -> None:
    """A producer that may be somebody's zombie does not exist; closing twice is safe; a sink can be fenced again."""
    with closing(broker.sink()) as fresh, pytest.raises(BugError, match="not fenced"):
        _write_and_commit(fresh)
    sink.close()
    sink.close()
    with pytest.raises(BugError, match="not fenced"):
        _write_and_commit(sink)
    sink.close()
    fence(sink)
    _write_and_commit(sink)
    assert broker.committed(sink.topic(A)) == [(b"k", b"1")]


def _write_and_commit(sink: Sink, value: bytes = b"1") -> None:
    sink.write(sink.topic(A), b"k", value)
    sink.commit(STATE)


def test_making_topics_again_changes_nothing(sink: Sink, broker: Broker) -> None:
    """A connector makes what is missing at every start."""
    sink.write(sink.topic(A), b"k", b"1")
    sink.commit(STATE)
    sink.check([A, B])
    sink.create([A, B])
    assert broker.committed(sink.topic(A)) == [(b"k", b"1")]


def test_many_records_keep_their_order(sink: Sink, broker: Broker) -> None:
    """More than one batch of the client, for each key."""
    for n in range(5_000):
        sink.write(sink.topic(A), b"%d" % (n % 7), b"%d" % n)
    sink.commit(STATE)
    found = broker.committed(sink.topic(A))
    assert len(found) == 5_000
    for key in range(7):
        numbers = [int(value or b"") for k, value in found if k == b"%d" % key]
        assert numbers == sorted(numbers)


def test_tables_whose_topics_differ_by_dot_and_underscore_are_refused_by_name(kafka: str, prefix: str) -> None:
    """app.user_log and app_user.log are two tables, but Kafka's metrics would mix them: the second is refused."""
    first, second = Table("app", "user_log", A.columns, A.key), Table("app_user", "log", A.columns, A.key)
    with closing(Real(kafka, prefix).sink()) as sink:
        with pytest.raises(OperatorError, match=r"app\.user_log"):
            sink.check([first, second])
        sink.create([first])
        with pytest.raises(OperatorError, match="topic_prefix"):
            sink.check([second])


def test_a_command_of_the_connectors_own_waits_if_it_was_committed(sink: Sink, broker: Broker) -> None:
    """It asks for rows that the log had not: committed with the position behind them, or neither is."""
    sink.commit(STATE)
    sink.ask(b"lost", b"{}")
    list(sink.records(A))  # the record is at the broker
    sink.close()
    with closing(broker.sink()) as again:
        fence(again)
        assert again.commands() == []
        again.ask(b"kept", b"{}")
        again.commit(STATE.next())
    with closing(broker.sink()) as third:
        fence(third)
        assert third.commands() == [(b"kept", b"{}")]
        third.answered(b"kept")
        third.commit(STATE.next().next())
        assert third.commands() == []
