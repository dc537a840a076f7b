"""A producer and its scripted brokers; a test module asks for them by ``pytest_plugins``."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sinks.client import brokers
from sinks.client.record_batch import CODECS
from sinks.producer.producer import Producer
from tests.scripted.brokers import CONFIG, FIRST, SECOND, Clock, Cluster


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The producer's."""
    return Clock(monkeypatch)


@pytest.fixture(params=[FIRST, SECOND])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Cluster:
    """Two brokers, in both versions of the transaction protocol."""
    made = Cluster(second=request.param == SECOND)
    monkeypatch.setattr(brokers, "Connection", made.connect)
    return made


@pytest.fixture
def fresh(cluster: Cluster) -> Iterator[Producer]:
    """One that has asked for nothing."""
    made = Producer("one:1", CONFIG, transactional_id="id", timeout_ms=60_000, codec=CODECS["none"])
    yield made
    made.close()
    assert all(connection.closed for connection in cluster.connections)


@pytest.fixture
def opened(fresh: Producer) -> Producer:
    """One that has begun its epoch."""
    fresh.begin_epoch(10)
    return fresh
