"""A connection to a broker that does what it should not, on loopback."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
from kafka.protocol.metadata import MetadataRequest
from kafka.protocol.producer import InitProducerIdRequest, ProduceRequest, ProduceResponse

from sinks.client import produce_request
from sinks.client.connection import Connection, LostError, answered
from tests.scripted.server import Asked, Broker, Connecting, connection_config, metadata

PAYLOAD: Final = b"a row of somebody's"
METADATA, PRODUCE = 3, 0


@pytest.fixture
def connect() -> Iterator[Connecting]:
    """Connect to a broker that follows a script."""
    made = Connecting()
    yield made
    made.close()


def _ask(connection: Connection) -> Any:
    return connection.ask(MetadataRequest(topics=None))


def _produce(connection: Connection) -> None:
    connection.produce(11, {"t": [(0, b"h" * 61, PAYLOAD)]}, transactional_id="id", timeout_ms=1)


def _is_lost(made: tuple[Connection, Broker], reason: str, ask: Callable[[Connection], Any] = _ask) -> None:
    """The request fails, naming who did not answer, and nothing of what was sent or answered."""
    connection, broker = made
    with pytest.raises(LostError, match=reason) as lost:
        ask(connection)
    assert f"127.0.0.1:{broker.port}: " in str(lost.value)
    assert PAYLOAD.decode() not in repr(lost.value)


# ---- what goes well ----


def test_a_request_is_sent_in_the_newest_version_both_know(connect: Connecting) -> None:
    """Or in one that is asked for, if the broker knows it."""
    connection, broker = connect({METADATA: lambda asked: asked.send(metadata(asked))})
    assert connection.features == {"transaction.version": 2}
    answer = _ask(connection)
    assert (answer.version, answer.cluster_id) == (12, "c" * 9)
    assert connection.version(ProduceRequest, 12) == 11
    assert connection.version(ProduceRequest, 5) == 5
    assert connection.version(InitProducerIdRequest) == 4
    asked = broker.asked[-1]
    assert (asked.key, asked.version, asked.body[8:13]) == (METADATA, 12, b"\0\3cdc")


def test_an_answer_may_come_in_pieces(connect: Connecting) -> None:
    """One byte at a time, and more of them on the same connection."""
    connection, broker = connect({METADATA: lambda asked: asked.send_each_byte(asked.framed(metadata(asked)))})
    for _ in range(3):
        assert _ask(connection).cluster_id == "c" * 9
    assert [asked.correlation_id for asked in broker.asked] == [1, 2, 3, 4]
    assert connection.usable


def test_records_are_answered_when_the_broker_likes(connect: Connecting) -> None:
    """Whether something has come can be asked without waiting."""
    goes = threading.Event()

    def answer(asked: Asked) -> None:
        goes.wait(60)
        asked.send(ProduceResponse(version=asked.version, responses=[]))

    connection, broker = connect({PRODUCE: answer})
    _produce(connection)
    assert not connection.readable()
    goes.set()
    assert connection.produced() == []
    assert PAYLOAD in broker.asked[-1].body


@pytest.mark.parametrize(
    "sizes",
    [[5], [65_536], [65_535, 5], [5, 300_000, 5], [300_000, 300_000], [1_000] * 500, [40_000, 40_000, 70_000, 1]],
)
def test_batches_of_any_size_arrive_as_they_are(connect: Connecting, sizes: list[int]) -> None:
    """In one request, in order, however many bytes are sent at once."""
    connection, broker = connect(
        {PRODUCE: lambda asked: asked.send(ProduceResponse(version=asked.version, responses=[]))}
    )
    sent = {"t": [(n, b"%061d" % n, bytes([n % 251]) * size) for n, size in enumerate(sizes)]}
    connection.produce(11, sent, transactional_id="id", timeout_ms=1)
    connection.produced()
    asked = broker.asked[-1]
    whole = produce_request.request(
        11, sent, correlation_id=asked.correlation_id, client_id="cdc", transactional_id="id", timeout_ms=1
    )
    assert asked.body == b"".join(whole)[4:]


@pytest.mark.parametrize("version", [3, 8, 9, 11, 12])
def test_how_long_nothing_is_to_be_sent_is_read(version: int) -> None:
    """From an answer that is usual, and from one that says more."""
    topic = ProduceResponse.TopicProduceResponse
    for error in (0, 6):
        part = topic.PartitionProduceResponse(index=1, error_code=error, error_message="x" if error else None)
        made = ProduceResponse(
            version=version, responses=[topic(name="t", partition_responses=[part])], throttle_time_ms=70_001
        )
        assert answered(version, made.encode()) == ([("t", [(1, error)])], 70_001)


def test_a_broker_that_throttles_is_sent_nothing_for_so_long(connect: Connecting) -> None:
    """KIP-219: it answers at once, and reads no further request until the time is over."""
    times: list[float] = []

    def produced(asked: Asked) -> None:
        times.append(time.monotonic())
        asked.send(ProduceResponse(version=asked.version, responses=[], throttle_time_ms=300))

    connection, _ = connect({PRODUCE: produced, METADATA: lambda asked: asked.send(metadata(asked))})
    for _ in range(2):
        _produce(connection)
        connection.produced()
    _ask(connection)
    assert times[1] - times[0] >= 0.3
    assert time.monotonic() - times[1] >= 0.3


def test_an_idle_connection_is_probed(connect: Connecting) -> None:
    """A firewall forgets it after minutes; the kernel's own time to the first probe is two hours."""
    connection, _ = connect({})
    assert connection._socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert connection._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


# ---- what does not ----


def test_nobody_listens() -> None:
    """It is said who was asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(LostError, match=rf"127\.0\.0\.1:{port}: Connection refused"):
        Connection("127.0.0.1", port, connection_config())


def test_an_answer_to_another_request_is_none(connect: Connecting) -> None:
    """A connection on which both are out of step tells nothing."""

    def answer(asked: Asked) -> None:
        asked.send_bytes(asked.framed(metadata(asked), correlation_id=77))

    _is_lost(connect({METADATA: answer}), "an answer to another request")


@pytest.mark.parametrize("size", [-1, 0, 2**31 - 1, 100_000_001, int.from_bytes(b"HTTP")])
def test_an_absurd_size_is_no_answer(connect: Connecting, size: int) -> None:
    """Nothing is made ready for so much."""

    def answer(asked: Asked) -> None:
        asked.send_bytes(struct.pack(">i", size) + PAYLOAD)

    _is_lost(connect({METADATA: answer}), "no answer of Kafka's")


@pytest.mark.parametrize("length", [0, 3, 4, 9])
def test_a_cut_connection_is_lost(connect: Connecting, length: int) -> None:
    """Wherever the answer ends."""

    def answer(asked: Asked) -> None:
        asked.send_bytes(asked.framed(metadata(asked))[:length])
        asked.hang_up()

    _is_lost(connect({METADATA: answer}), "the broker has ended the connection")


@pytest.mark.parametrize("length", [0, 3, 9])
def test_silence_is_not_waited_for_longer_than_is_said(connect: Connecting, length: int) -> None:
    """Wherever the answer stops."""

    def answer(asked: Asked) -> None:
        asked.send_bytes(asked.framed(metadata(asked))[:length])

    _is_lost(connect({METADATA: answer}, answer_s=0.1), r"no answer within 0\.1 s|timed out")


def test_a_broker_that_takes_nothing_is_lost(connect: Connecting) -> None:
    """A request that does not get through is waited for no longer than an answer."""
    goes = threading.Event()

    def stop(_: Asked) -> None:
        goes.wait(60)

    def ask(connection: Connection) -> None:
        for size in (1, 2_000_000):
            connection.produce(11, {"t": [(0, b"h" * 61, PAYLOAD * size)]}, transactional_id="id", timeout_ms=1)

    _is_lost(connect({PRODUCE: stop}, answer_s=0.1), "timed out", ask)
    goes.set()


@pytest.mark.parametrize("size", [1, 3, 4, 5, 8, 9, 12, 19])
def test_an_answer_that_ends_too_early_is_none(connect: Connecting, size: int) -> None:
    """Though its frame is as long as it says."""

    def answer(asked: Asked) -> None:
        asked.send_bytes(struct.pack(">i", size) + asked.framed(metadata(asked))[4 : size + 4])

    _is_lost(connect({METADATA: answer}), "answer")


@pytest.mark.parametrize("body", [b"\0\2\xff" + PAYLOAD, b"\0\2\x7f" + PAYLOAD, b"\0\2\3\xff\xfe" + PAYLOAD])
def test_an_answer_about_records_that_cannot_be_read_is_none(connect: Connecting, body: bytes) -> None:
    """Of what came nothing is told."""

    def answer(asked: Asked) -> None:
        whole = struct.pack(">i", asked.correlation_id) + body
        asked.send_bytes(struct.pack(">i", len(whole)) + whole)

    def ask(connection: Connection) -> None:
        _produce(connection)
        connection.produced()

    _is_lost(connect({PRODUCE: answer}), "an answer that cannot be read", ask)


# ---- whether it is there ----


def test_a_connection_that_the_broker_has_closed_is_not_usable(connect: Connecting) -> None:
    """Which shows before a request is sent on it."""
    connection, broker = connect({METADATA: lambda asked: asked.send(metadata(asked))})
    assert connection.usable
    _ask(connection)
    assert connection.usable
    broker.cut()
    assert _ends(connection)


def test_a_connection_on_which_something_comes_unasked_is_not_usable(connect: Connecting) -> None:
    """The second of two answers, say."""

    def answer(asked: Asked) -> None:
        asked.send(metadata(asked))
        asked.send(metadata(asked))

    connection, _ = connect({METADATA: answer})
    _ask(connection)
    assert _ends(connection)


def _ends(connection: Connection) -> bool:
    """Whether it is of no use once the other side's doings have come through."""
    pause = threading.Event()
    for _ in range(500):
        if not connection.usable:
            return True
        pause.wait(0.01)
    return False


def test_a_connection_may_be_closed_twice(connect: Connecting) -> None:
    """Also one that the broker has closed."""
    connection, broker = connect({})
    broker.cut()
    assert _ends(connection)
    connection.close()
    connection.close()
