"""The ends of a topic, where the broker that is to lead it does not yet: it says so for a moment, and at no bidding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.model.errors import OperatorError, RetryableError
from sinks.topics.records import read_back
from spark_apply.events.kafka import client
from spark_apply.events.kafka.offsets import offset_bounds


class Probe:
    """A consumer whose broker answers with `errors` first."""

    def __init__(self, errors: list[int]) -> None:
        self._errors = errors
        self.closed = False

    def list_topics(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(topics={topic: SimpleNamespace(error=None, partitions=[0])})

    def get_watermark_offsets(self, *_: Any, **__: Any) -> tuple[int, int]:
        if self._errors:
            raise KafkaException(KafkaError(self._errors.pop(0)))
        return (0, 0)

    def close(self) -> None:
        self.closed = True


def _read(monkeypatch: pytest.MonkeyPatch, errors: list[int]) -> list[Any]:
    made: list[Probe] = []

    def consumer(*_: Any, **__: Any) -> Any:
        made.append(Probe(errors))
        return made[-1]

    monkeypatch.setattr(read_back, "Consumer", consumer)
    try:
        return list(read_back.read_to_end("127.0.0.1:9", {}, "t", "read_committed"))
    finally:
        assert [probe.closed for probe in made] == [True] * len(made)


def test_a_topic_that_is_about_to_be_led_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.LEADER_NOT_AVAILABLE]
    assert _read(monkeypatch, errors) == []
    assert errors == []


def test_it_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_back, "_LED_WITHIN_S", 0.2)
    with pytest.raises(RetryableError, match="reading topic t failed") as raised:
        _read(monkeypatch, [KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000)
    assert raised.value.at_start


def test_no_other_error_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.NOT_LEADER_FOR_PARTITION]
    with pytest.raises(OperatorError, match="authorization failed"):
        _read(monkeypatch, errors)
    assert len(errors) == 1


def test_an_apply_job_waits_for_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: Any = Probe([KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION])
    assert offset_bounds(asked, "t", 0) == (0, 0)
    monkeypatch.setattr(client, "_LED_WITHIN_S", 0.2)
    for errors in ([KafkaError.NOT_LEADER_FOR_PARTITION] * 1_000, [KafkaError.TOPIC_AUTHORIZATION_FAILED]):
        left = len(errors)
        asked = Probe(errors)
        with pytest.raises(KafkaException):
            offset_bounds(asked, "t", 0)
        assert 0 < left - len(errors) < 1_000
