"""A request that was sent again, and whose first copy arrives when another transaction is open.

By version 1 of the transaction protocol, and by version 2 (KIP-890), in which each transaction has an epoch of its own;
and through librdkafka, which speaks version 1 and sends requests again by itself.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

from cdc.config.kafka_config import KafkaConfig
from cdc.dev.servers import kafka
from cdc.dev.servers.process import Server
from cdc.model.errors import OperatorError
from cdc.model.state import Phase, State
from sinks.kafka import KafkaSink
from sinks.producer import coordinator
from sinks.producer.librdkafka import LibrdkafkaProducer
from sinks.producer.producer import Producer
from sinks.topics.records.read_back import read_to_end
from tests.faults import proxy
from tests.faults.proxy import Proxy, Trap
from tests.pushes import some_each_push
from tests.text_tables import text_table

A, B = text_table("a", ["id"]), text_table("b", ["id"])
STATE = State(connector="c", identity={"database": "d"}, phase=Phase.STREAM, epoch=1, offset={"at": 7}, commit=7)
PATIENCE_S = 1.5
FIRST, SECOND, LIBRDKAFKA = 1, 2, 3


class Broker:
    """A broker of the test's own, and two ways to it: one direct, one that can hold requests."""

    def __init__(self, folder: Path) -> None:
        self.way = Proxy(kafka=True)
        self._server = Server("kafka", folder, partial(kafka.prepare, advertised_port=self.way.port))
        self._server.start()
        self.way.lead_to(kafka.proxied_port(folder))

    @property
    def url(self) -> str:
        return self._server.url

    def sink(self, prefix: str, version: int) -> KafkaSink:
        """One whose requests go through the proxy, and which waits for no answer for long."""
        options = {"socket.timeout.ms": str(int(PATIENCE_S * 1000)), "reconnect.backoff.max.ms": "200"}
        servers = f"127.0.0.1:{self.way.port}"
        producer = "librdkafka" if version == LIBRDKAFKA else "own"
        config = KafkaConfig(
            bootstrap_servers=servers, topic_prefix=prefix, producer=producer, partitions=1, options=options
        )
        return KafkaSink(config, "c")

    def committed(self, topic: str) -> list[bytes | None]:
        """What can be read now; nobody is waited for."""
        return [m.value() for m in read_to_end(self.url, {}, topic, "read_committed", open_too=False)]

    def close(self) -> None:
        self.way.close()
        self._server.stop(timeout_s=10)


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    made = Broker(tmp_path_factory.mktemp("kafka"))
    yield made
    made.close()


@pytest.fixture(params=some_each_push([FIRST, SECOND, LIBRDKAFKA], SECOND, LIBRDKAFKA))
def version(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Of the protocol: the broker has the second, unless it is taken for one that has not."""
    if request.param == FIRST:
        monkeypatch.setattr(coordinator, "_SECOND", 99)
    asked: int = request.param
    return asked


def _speaks(sink: KafkaSink) -> int:
    """The version by which a fenced sink's transactions go."""
    if isinstance(sink._producer, LibrdkafkaProducer):
        return LIBRDKAFKA
    assert isinstance(sink._producer, Producer)
    return SECOND if sink._producer._coordinator.version_2 else FIRST


def _half_seen(broker: Broker, sink: KafkaSink, *, within_s: float = 2.0) -> bool:
    """Commit with the first EndTxn held back, begin another transaction, let the EndTxn go.

    Give whether a read_committed reader sees what that transaction has written so far.
    """
    sink.create([A, B])
    sink.fence()
    sink.write(sink.topic(A), b"k", b"first")
    held = broker.way.arm(Trap(proxy.END_TXN, "request", hold=True))
    sink.commit(STATE)
    assert held.sprung.is_set()
    sink.write(sink.topic(A), b"k", b"second")
    list(sink.records(A))  # which sends it
    assert broker.committed(sink.topic(A)) == [b"first"]
    broker.way.disarm(held)
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if broker.committed(sink.topic(A)) != [b"first"]:
            return True
        time.sleep(0.05)
    return False


def _goes_on_whole(broker: Broker, sink: KafkaSink) -> None:
    """Nothing of the second transaction was seen; committed, all of it is."""
    sink.write(sink.topic(B), b"k", b"second")
    sink.commit(STATE.next())
    assert broker.committed(sink.topic(A)) == [b"first", b"second"]
    assert broker.committed(sink.topic(B)) == [b"second"]


def test_an_end_that_comes_late_ends_no_other_transaction(broker: Broker, prefix: str, version: int) -> None:
    """Whole or not at all, also in the transaction after the one whose EndTxn was sent twice."""
    with closing(broker.sink(prefix, version)) as sink:
        assert not _half_seen(broker, sink)
        assert _speaks(sink) == version
        _goes_on_whole(broker, sink)


@pytest.mark.parametrize("version", some_each_push([FIRST, LIBRDKAFKA], LIBRDKAFKA), indirect=True)
def test_without_a_new_epoch_it_would(
    broker: Broker, prefix: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: by version 1, a sink that goes on in its epoch after an interruption shows half a transaction."""
    monkeypatch.setattr(KafkaSink, "_renew", lambda *_: None)
    with closing(broker.sink(prefix, version)) as sink:
        assert _half_seen(broker, sink, within_s=60.0)
        assert _speaks(sink) == version


@pytest.mark.parametrize("version", [SECOND], indirect=True)
def test_in_version_2_it_does_not_even_then(
    broker: Broker, prefix: str, version: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The epoch that the EndTxn gave to the next transaction shuts out its first copy."""
    monkeypatch.setattr(KafkaSink, "_renew", lambda *_: None)
    with closing(broker.sink(prefix, version)) as sink:
        assert not _half_seen(broker, sink)
        assert _speaks(sink) == version
        _goes_on_whole(broker, sink)


def test_a_copy_that_took_over_meanwhile_is_noticed(broker: Broker, prefix: str, version: int) -> None:
    """A new epoch would shut out the other copy: what that one has committed says that it is there."""
    with closing(broker.sink(prefix, version)) as sink, closing(broker.sink(prefix, version)) as other:
        sink.create([A, B])
        sink.fence()
        assert _speaks(sink) == version
        sink.write(sink.topic(A), b"k", b"first")
        renew = sink._renew

        def after_the_other(state: State) -> None:
            other.fence()
            other.write(other.topic(A), b"k", b"other")
            other.commit(state.next())
            renew(state)

        sink._renew = after_the_other  # type: ignore[method-assign]
        trap = broker.way.arm(Trap(proxy.END_TXN, "response", lose=True))
        with pytest.raises(OperatorError, match="another copy of connector c has started"):
            sink.commit(STATE)
        assert trap.sprung.is_set()
