"""Whatever fails on the way: each record is written once, in its partition's order, and with its transaction or not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sinks.client import brokers
from sinks.client.record_batch import CODECS
from sinks.producer.producer import Producer
from tests.scripted.brokers import (
    ANSWER_LOST,
    CONCURRENT,
    CONFIG,
    LATE,
    NOT_COORDINATOR,
    NOT_LEADER,
    REQUEST_LOST,
    SEND_FAILS,
    SILENCE,
    Clock,
    Cluster,
    Done,
    Partition,
    batch,
)

PARTITIONS: list[Partition] = [("t", 0), ("t", 1), ("t", 2), ("u", 0)]
LOSSES = (SEND_FAILS, REQUEST_LOST, ANSWER_LOST, SILENCE, LATE)
WRITES = st.tuples(st.just("send"), st.lists(st.tuples(st.sampled_from(PARTITIONS), st.integers(1, 3)), max_size=6))
FAULTS = st.one_of(
    st.tuples(st.just("produce"), st.sampled_from([*LOSSES, NOT_LEADER, 7, CONCURRENT, Done(7), Done(20)])),
    st.tuples(st.sampled_from(["add", "end"]), st.sampled_from([*LOSSES, NOT_COORDINATOR, CONCURRENT])),
    st.tuples(st.just("find"), st.sampled_from([REQUEST_LOST, SILENCE, 15])),
    st.tuples(st.just("metadata"), st.sampled_from([REQUEST_LOST, SILENCE, 3, 5])),
    st.tuples(st.just("connect"), st.just("refused")),
)
ONE = [(PARTITIONS[0], 1)]
STEPS = st.one_of(
    WRITES,
    st.tuples(st.sampled_from(["flush", "ready", "close", "cut", "silent"]), st.none()),
    st.tuples(st.sampled_from(["commit", "arrive"]), st.none()),
    st.tuples(st.just("fail"), FAULTS),
    st.tuples(st.just("lead"), st.tuples(st.sampled_from(PARTITIONS), st.integers(1, 2))),
    st.tuples(st.just("coordinate"), st.integers(1, 2)),
)


class _Run:
    """A producer, and what should be found of what it was given."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._written = 0
        self._open: list[tuple[Partition, bytes]] = []
        self.expected: dict[Partition, list[bytes]] = {partition: [] for partition in PARTITIONS}
        self._begin()

    def _begin(self) -> None:
        self._open = []
        self._producer = Producer("one:1,two:2", CONFIG, transactional_id="id", timeout_ms=1, codec=CODECS["none"])
        self._producer.begin_epoch(600)

    def send(self, batches: list[tuple[Partition, int]]) -> None:
        made = []
        for partition, count in batches:
            values = [b"%d" % (self._written + n) for n in range(count)]
            self._written += count
            made.append(batch(*partition, *values))
            self._open += [(partition, value) for value in values]
        self._producer.send(made)

    def commit(self, _: None = None) -> None:
        if not self._open:
            return
        self._producer.commit()
        for partition, value in self._open:
            self.expected[partition].append(value)
        self._open = []
        assert self._cluster.open == set()
        if self._producer.interrupted:
            self._producer.begin_epoch(600)

    def flush(self, _: None) -> None:
        self._producer.flush()
        assert self._producer.ready()

    def ready(self, _: None) -> None:
        self._producer.ready()

    def close(self, _: None) -> None:
        """What was not committed never is."""
        self._producer.close()
        self._begin()

    def cut(self, _: None) -> None:
        for connection in self._cluster.connections:
            connection.cut = True

    def arrive(self, _: None) -> None:
        self._cluster.arrive()

    def silent(self, _: None) -> None:
        self._cluster.silent = not self._cluster.silent

    def fail(self, fault: tuple[str, Any]) -> None:
        self._cluster.fail(*fault)

    def lead(self, to: tuple[Partition, int]) -> None:
        self._cluster.leaders[to[0]] = to[1]

    def coordinate(self, broker: int) -> None:
        self._cluster.coordinator = broker


@pytest.mark.parametrize("kind", [{"second": True}, {"second": False}, {"second": False, "old": True}], ids=str)
@given(st.lists(STEPS, max_size=40))
@example(
    [("fail", ("produce", LATE)), ("send", ONE), ("ready", None), ("close", None), ("arrive", None), ("send", ONE)]
)
@example([("send", ONE), ("fail", ("end", LATE)), ("commit", None), ("send", ONE), ("flush", None), ("arrive", None)])
def test_each_record_is_written_once_and_in_order(kind: dict[str, bool], steps: list[tuple[str, Any]]) -> None:
    """In both versions of the protocol, as long as what fails comes back, however late requests come through."""
    with pytest.MonkeyPatch.context() as patch:
        Clock(patch)
        cluster = Cluster(**kind)
        patch.setattr(brokers, "Connection", cluster.connect)
        run = _Run(cluster)
        for step, what in steps:
            getattr(run, step)(what)
        run.commit()
        cluster.arrive()
        assert {partition: cluster.committed(partition) for partition in PARTITIONS} == run.expected
