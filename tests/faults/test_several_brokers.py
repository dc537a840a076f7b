"""The Kafka sink on a cluster of three nodes whose leaders move while it writes."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

import orjson
import pytest

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import RetryableError
from cdc.model.state import Phase, State
from sinks.kafka import KafkaSink
from sinks.producer import coordinator
from sinks.topics.records.read_back import read_to_end
from tests.conftest import Database
from tests.faults.brokers import COORDINATED, NODES, Cluster
from tests.integration.connector import Connector
from tests.integration.running import same
from tests.text_tables import text_table

TABLES: Final = [text_table(name, ["id"]) for name in ("a", "b", "c")]
STATE: Final = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1)
KEYS: Final = 31
SMALL, LARGE, LARGE_EVERY = 5, 2500, 15
"""Records of a transaction. A large one is sent in several requests, and is open for some time."""

_PAUSE_S: Final = 0.02
_GOES_ON: Final = 8
_WITHIN_S: Final = 150.0
"""Longer than the producer waits for a broker before it gives up: an error is to be seen as one."""
_MOST_ERRORS: Final = 20
_SHOWN: Final = 10

_T = TypeVar("_T")
Record = tuple[str, bytes, list[int]]


def records(number: int, attempt: int) -> Iterator[Record]:
    """Topic suffix, key and value of a transaction's records; no two attempts at it write the same."""
    for at in range(SMALL if number % LARGE_EVERY else LARGE):
        turn = number + at
        yield TABLES[turn % len(TABLES)].qualified, b"k%d" % (turn % KEYS), [number, at, attempt]


class Writer(threading.Thread):
    """Transactions numbered from 1, one after the other; after an error it does what the pipeline does."""

    def __init__(self, servers: str, prefix: str, **options: str) -> None:
        super().__init__(name=prefix, daemon=True)
        self._servers, self._prefix = servers, prefix
        config = KafkaConfig(
            bootstrap_servers=servers, topic_prefix=prefix, partitions=3, replication_factor=3, options=options
        )
        self.sink = KafkaSink(config, "c")
        self.over = threading.Event()
        self.ledger: dict[int, int] = {}
        """The attempt by which each transaction was committed, in the order of commits."""
        self.state = STATE
        """As of the last commit."""
        self._tried: State | None = None
        self._attempts = 0
        self.errors: list[RetryableError] = []
        self.failure: BaseException | None = None

    def run(self) -> None:
        try:
            with closing(self.sink):
                while not self._went_on():
                    time.sleep(_PAUSE_S)
        except BaseException as exc:  # noqa: BLE001 - told by `goes_on` and `end`
            self.failure = exc

    def _went_on(self) -> bool:
        """Whether it came to its end without an error."""
        try:
            self._take_up()
            while not self.over.is_set():
                self._transaction()
                time.sleep(_PAUSE_S)
        except RetryableError as exc:
            self.errors.append(exc)
            if len(self.errors) > _MOST_ERRORS:
                raise
            self.sink.close()
            return False
        return True

    def _take_up(self) -> None:
        """Fence, and go on from the position: that of the last commit that returned, or of one that raised."""
        found = self.sink.fence() or STATE
        if self._tried is not None and found == self._tried:
            self._committed(found)
        self._tried = None
        assert found == self.state, f"position {found.sequence} after commit {self.state.sequence}"

    def _transaction(self) -> None:
        number = self.state.commit + 1
        self._attempts += 1
        for table, key, value in records(number, self._attempts):
            self.sink.write(f"{self._prefix}.{table}", key, orjson.dumps(value))
        state = self._tried = self.state.next(commit=number)
        self.sink.commit(state)
        self._committed(state)

    def _committed(self, state: State) -> None:
        self.ledger[state.commit] = self._attempts
        self.state, self._tried = state, None

    def goes_on(self) -> None:
        """Return when some more transactions were committed."""
        wanted, deadline = len(self.ledger) + _GOES_ON, time.monotonic() + _WITHIN_S
        while len(self.ledger) < wanted:
            assert self.is_alive(), self.failure
            assert time.monotonic() < deadline, f"{len(self.ledger)} transactions, and no more"
            time.sleep(0.02)

    def end(self) -> None:
        """No transaction more; what the last one has come to is known."""
        self.over.set()
        self.join(_WITHIN_S)
        assert not self.is_alive()
        assert self.failure is None, self.failure

    def _readable(self, table: str) -> list[tuple[bytes, bytes]]:
        topic = f"{self._prefix}.{table}"
        messages = read_to_end(self._servers, {}, topic, "read_committed")
        return [(message.key() or b"", message.value() or b"") for message in messages]

    def violations(self) -> list[str]:
        """What readers see that the ledger does not say, and the other way round."""
        expected, found = defaultdict[str, list[list[int]]](list), defaultdict[str, list[list[int]]](list)
        for number, attempt in self.ledger.items():
            for table, key, value in records(number, attempt):
                expected[f"{table} {key.decode()}"].append(value)
        for table in [each.qualified for each in TABLES]:
            for key, text in patiently(partial(self._readable, table)):
                found[f"{table} {key.decode()}"].append(orjson.loads(text))
        seen = Counter(value[0] for values in found.values() for value in values)
        wanted = Counter(value[0] for values in expected.values() for value in values)
        told = [f"transaction {n}: {seen[n]} of {wanted[n]} records" for n in seen | wanted if seen[n] != wanted[n]]
        told += [
            f"{where}: {_difference(expected[where], found[where])}"
            for where in expected | found
            if expected[where] != found[where]
        ]
        position = patiently(self.sink.peek)
        if position != self.state:
            told.append(f"position {position and position.sequence} after commit {self.state.sequence}")
        return told[:_SHOWN]


def _difference(expected: list[list[int]], found: list[list[int]]) -> str:
    wanted, seen = Counter(map(tuple, expected)), Counter(map(tuple, found))
    return f"lost {list(wanted - seen)[:3]}, too many {list(seen - wanted)[:3]}" if wanted != seen else "out of order"


def patiently(read: Callable[[], _T]) -> _T:
    """What is read, as soon as leaders that have just moved let it be read."""
    deadline = time.monotonic() + _WITHIN_S
    while True:
        try:
            return read()
        except RetryableError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.1)


@contextmanager
def writing(cluster: Cluster, prefix: str, **options: str) -> Iterator[Writer]:
    """A writer at work. In the end all that it wrote is compared."""
    writer = Writer(cluster.url, prefix, **options)
    writer.sink.create(TABLES)
    cluster.put_right()
    writer.start()
    try:
        writer.goes_on()
        yield writer
        writer.goes_on()
        writer.end()
    finally:
        writer.over.set()
        print(f"{prefix}: {len(writer.ledger)} transactions, {len(writer.errors)} errors: {writer.errors}")
    assert writer.violations() == []


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with closing(Cluster(tmp_path_factory.mktemp("cluster"))) as made:
        made.put_right()
        yield made


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.full), 2], ids=["version-1", "version-2"])
def cluster(nodes: Cluster, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """The cluster, whole, for a sink whose transactions go by this version of the protocol."""
    if request.param == 1:
        monkeypatch.setattr(coordinator, "_SECOND", 99)
    nodes.put_right()
    return nodes


@pytest.mark.full  # the next three: a broker that is killed is worse than one that ends
def test_every_broker_is_restarted(cluster: Cluster, prefix: str) -> None:
    """A rolling restart is nothing that the pipeline hears of: the sink finds each new leader by itself."""
    with writing(cluster, prefix) as writer:
        for node, server in cluster.nodes.items():
            cluster.stop(node)
            writer.goes_on()
            server.start()
            cluster.put_right()
    assert writer.errors == []


def test_a_leader_is_killed(cluster: Cluster, prefix: str) -> None:
    """What it had not answered is written once, by the broker that leads then, also while it does not come back."""
    with writing(cluster, prefix) as writer:
        coordinator = cluster.leader(COORDINATED)
        led = {cluster.leader(writer.sink.topic(TABLES[0]), partition) for partition in range(3)}
        killed = min(led - {coordinator})
        cluster.nodes[killed].kill()
        writer.goes_on()
        cluster.put_right()


@pytest.mark.full  # test_a_leader_is_killed; an unknown outcome is in test_a_crash_at_every_step
def test_the_coordinator_is_killed(cluster: Cluster, prefix: str) -> None:
    """A commit that it had not answered is told by the position, or by the broker that coordinates then."""
    with writing(cluster, prefix) as writer:
        killed = cluster.leader(COORDINATED)
        cluster.nodes[killed].kill()
        writer.goes_on()
        assert cluster.leader(COORDINATED) != killed
        cluster.put_right()


@pytest.mark.full  # a leader is killed, above
def test_a_leader_is_frozen(cluster: Cluster, prefix: str) -> None:
    """It wakes up as a leader, and coordinator, of before: nothing that it is sent then, or was sent, is carried out.

    One sink waits for its answers all the time; the other goes on without it.
    """
    hurry = {"socket.timeout.ms": "1500"}
    with writing(cluster, prefix) as patient, writing(cluster, f"{prefix}-hasty", **hurry) as hasty:
        frozen = cluster.leader(COORDINATED)
        cluster.nodes[frozen].pause()
        try:
            hasty.goes_on()
            assert cluster.leader(COORDINATED) != frozen
        finally:
            cluster.nodes[frozen].resume()
        patient.goes_on()
        cluster.put_right()


@pytest.mark.full  # test_acknowledged_records_of_the_last_transaction_are_lost, on one broker
def test_an_unclean_leader_has_not_what_was_acknowledged(
    nodes: Cluster, postgres18: Database, prefix: str, tmp_path: Path
) -> None:
    """The replica that is chosen was away when the last rows were written: it is told, and the table is read again."""
    nodes.put_right()
    last, behind = NODES[0], NODES[1]
    topic = f"{prefix}.public.t"
    nodes.make(topic, [[last, behind]] * 3, {"cleanup.policy": "compact", "delete.retention.ms": str(7 * 86_400_000),
                                              "min.insync.replicas": "1"})  # fmt: skip
    for name in ("t", "u"):
        postgres18.execute(
            f"CREATE TABLE {name} (id int PRIMARY KEY, v text)",
            f"INSERT INTO {name} SELECT x, 'v' || x FROM generate_series(1, 50) x",
        )
    connector = Connector(tmp_path, prefix, postgres18.url, nodes.url, ["public.t", "public.u"], as_owner=True)
    connector.catch_up()
    nodes.nodes[behind].kill()
    postgres18.execute(
        "UPDATE t SET v = 'new' WHERE id < 9", "DELETE FROM t WHERE id = 20", "INSERT INTO u VALUES (51)"
    )
    connector.catch_up()
    same(connector, postgres18, "public.t")
    nodes.nodes[last].kill()
    nodes.nodes[behind].start()
    nodes.elect_unclean(topic, 3)
    assert [nodes.leader(topic, partition) for partition in range(3)] == [behind] * 3
    nodes.put_right()
    assert f"topic {topic} has lost its last records, which brokers had acknowledged" in connector.catch_up()
    for table in ("public.t", "public.u"):
        same(connector, postgres18, table)
    assert "has lost" not in connector.catch_up()
