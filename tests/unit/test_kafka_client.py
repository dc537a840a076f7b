"""What the Kafka client does wrongly, and what the sink makes of it. A twin: no broker can be asked for such errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config import KafkaConfig
from cdc.errors import OperatorError, RetryableError
from sinks import kafka
from sinks.kafka import KafkaSink
from sinks.positions import Standing
from tests.text_tables import text_table

A = text_table("a", ["id"])


class LosesItsError:
    """A producer whose fatal error was raised in a call, and cleared by a report before the call returned."""

    def __init__(self, error: KafkaError) -> None:
        self._error = error
        self._begun = 0

    def list_topics(self, _: str, *, timeout: float) -> None:
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def init_transactions(self, _: float) -> None:
        pass

    def begin_transaction(self) -> None:
        self._begun += 1
        if self._begun > 1:
            raise KafkaException(self._error)

    def produce_batch(self, topic: str, batch: list[Any], **_: object) -> int:
        del topic
        return len(batch)

    def flush(self, _: float) -> int:
        raise SystemError("<built-in method flush> returned NULL without setting an exception")

    def poll(self, _: float) -> int:
        return 0

    def purge(self, **_: object) -> None:
        pass

    def close(self) -> None:
        pass

    def __len__(self) -> int:
        return 0


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[KafkaSink]:
    """A fenced sink on a client that loses this error."""
    monkeypatch.setattr(kafka, "Producer", lambda *_, **__: LosesItsError(request.param))
    monkeypatch.setattr(kafka, "read_standing", lambda *_, **__: Standing(None, 0, None))
    sink = KafkaSink(KafkaConfig(bootstrap_servers="nowhere:1", topic_prefix="p"), "c")
    sink.fence()
    sink.write(sink.topic(A), b"k", b"v")
    yield sink
    sink.close()


@pytest.mark.parametrize("client", [KafkaError(KafkaError._FENCED)], indirect=True)
def test_a_fencing_the_client_lost_is_asked_for_again(client: KafkaSink) -> None:
    """`flush` returns NULL without an exception: the next step of the protocol says what it was."""
    with pytest.raises(OperatorError, match="another copy of connector c has started"):
        list(client.records(A))


@pytest.mark.parametrize("client", [KafkaError(KafkaError._STATE)], indirect=True)
def test_any_other_error_the_client_lost_ends_the_session(client: KafkaSink) -> None:
    """Which is tried again with a fresh producer, as after any error whose outcome is unknown."""
    with pytest.raises(RetryableError):
        list(client.records(A))
