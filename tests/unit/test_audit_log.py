"""What is done beside a connector is done whether its audit can be written or not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from cdc.config.kafka_config import KafkaConfig
from cdc.model.audit import Act
from sinks.topics.records import audit_log, single_record
from sinks.topics.records.single_record import NoTopicError, NotTakenError

CONFIG = KafkaConfig(bootstrap_servers="h:1", topic_prefix="p")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (None, None),
        (NoTopicError("p.audit-c"), None),
        (NotTakenError("Broker: Topic authorization failed"), "Topic authorization failed"),
        (KafkaException(KafkaError(KafkaError._ALL_BROKERS_DOWN)), "writing to it"),
    ],
    ids=["noted", "never run", "no right", "away"],
)
def test_no_note_stops_what_it_is_about(
    error: Exception | None, told: str | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def write(*_: Any, **__: Any) -> None:
        if error is not None:
            raise error

    monkeypatch.setattr(audit_log, "write_record", write)
    assert audit_log.note(CONFIG, "p", "c", Act(action="erase", about={"table": "s.t"})) == (error is None)
    assert [record.levelname for record in caplog.records] == ["WARNING"] * (told is not None)
    if told is not None:
        assert "erase is not noted in the audit, topic p.audit-c" in caplog.text
        assert told in caplog.text


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (KafkaError.UNKNOWN_TOPIC_OR_PART, NoTopicError),
        (KafkaError._UNKNOWN_TOPIC, NoTopicError),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, NotTakenError),
        (KafkaError.LEADER_NOT_AVAILABLE, NotTakenError),
    ],
)
def test_a_topic_that_may_not_be_seen_is_not_taken_for_one_that_is_not_there(
    code: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user without rights was told that the connector has never run."""

    class Client:
        def __init__(self, *_: Any, **__: Any) -> None:
            self.topics = {"t": SimpleNamespace(error=KafkaError(code))}

        def list_topics(self, *_: Any, **__: Any) -> Client:
            return self

    monkeypatch.setattr(single_record, "Producer", Client)
    with pytest.raises(error):
        single_record.write_record(CONFIG, "t", b"k", b"v", within_s=1)
