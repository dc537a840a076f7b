"""A job asks for its own topics alone, and for all of them at once: a cluster has thousands of others."""

from __future__ import annotations

import logging
import socket
from concurrent.futures import Future
from contextlib import closing
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ConfigResource

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka import topics
from spark_apply.events.kafka.client import NoAnswerError, unreachable
from spark_apply.events.kafka.topics import partition_counts, topic_settings
from spark_apply.job.catch_up import new_tables
from spark_apply.job.topics.identity import patiently


class Admin:
    """Answers for the topics that it is asked for; `list_topics`, which asks for all, is not there."""

    def __init__(self, errors: dict[str, int]) -> None:
        self.asked: list[list[str]] = []
        self._errors = errors

    def describe_topics(self, names: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        asked: list[str] = names.topic_names
        self.asked.append(asked)
        return {name: self._answer(name) for name in asked}

    def _answer(self, name: str) -> Future[Any]:
        found: Future[Any] = Future()
        if name in self._errors:
            found.set_exception(KafkaException(KafkaError(self._errors[name])))
        else:
            found.set_result(type("Described", (), {"partitions": [0, 1, 2]}))
        return found


def test_topics_that_are_not_there_or_not_ours_to_see_have_no_partitions() -> None:
    admin: Any = Admin(
        {
            "gone": KafkaError.UNKNOWN_TOPIC_OR_PART,
            "secret": KafkaError.TOPIC_AUTHORIZATION_FAILED,
            "no name": KafkaError.TOPIC_EXCEPTION,
        }
    )
    assert partition_counts(admin, ["b", "gone", "a", "secret", "a", "no name"]) == {"a": 3, "b": 3}
    assert partition_counts(admin, []) == {}
    assert admin.asked == [["a", "b", "gone", "no name", "secret"]]


def test_a_broker_that_does_not_answer_is_told_by_kafkas_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of our own on the answer would come first, with an error that is none of Kafka's."""
    monkeypatch.setattr(topics, "ANSWER_WITHIN_S", 0.3)
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        admin = AdminClient({"bootstrap.servers": f"127.0.0.1:{silent.getsockname()[1]}"}, logger=logging.getLogger())
        with pytest.raises(KafkaException):
            partition_counts(admin, ["a"])


def test_a_right_that_is_missing_is_no_broker_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job would wait for it for minutes, and its user would look after brokers."""
    source = ApplySource(bootstrap_servers="k:1", topic_prefix="shop", options={"sasl.username": "the job"})

    def described(_admin: object, wanted: list[ConfigResource], **_: object) -> dict[ConfigResource, Future[Any]]:
        refused: Future[Any] = Future()
        refused.set_exception(KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)))
        return dict.fromkeys(wanted, refused)

    monkeypatch.setattr(AdminClient, "describe_configs", described)
    with pytest.raises(OperatorError, match=r"topic other\.b: this user may not read its settings") as told:
        patiently(lambda: topic_settings(source, ["shop.a", "other.b"]))
    assert "--allow-principal 'User:the job' --operation DescribeConfigs --topic other.b --topic shop.a" in (
        told.value.hint or ""
    )
    for code, passes in ((KafkaError.TOPIC_AUTHORIZATION_FAILED, False), (KafkaError._TRANSPORT, True)):
        made = unreachable(source, KafkaException(KafkaError(code)))
        assert isinstance(made, NoAnswerError) is passes


def test_a_right_that_is_withdrawn_is_no_reason_to_wait_in_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that follows goes on without the tables that come, and says so once; for brokers that are away it waits."""
    source = ApplySource(bootstrap_servers="k:1", topic_prefix="shop")
    code, told = KafkaError.TOPIC_AUTHORIZATION_FAILED, list[str]()

    def asked(*_: object) -> None:
        raise unreachable(source, KafkaException(KafkaError(code)))

    monkeypatch.setattr(new_tables, "committed_ends", asked)
    monkeypatch.setattr(new_tables, "LOOK_EVERY_S", 0.0)
    nothing, asides = cast("Any", None), cast("Any", SimpleNamespace(tell=told.append))
    config = cast("Any", SimpleNamespace(source=source))
    watch = new_tables.TableWatch(config, nothing, {}, asides, frozenset(), {})
    watch.look()
    watch.look()
    assert ["tables that come are not taken up" in line for line in told] == [True]
    code = KafkaError._TRANSPORT
    watch.look()
    assert len(told) == 1
