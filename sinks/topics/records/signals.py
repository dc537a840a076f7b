"""The signal topic holds what `cdc snapshot` asks of a connector, each under a key; a tombstone says it was done."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from confluent_kafka import Consumer, TopicPartition

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import OperatorError
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.topics.names import signal_topic
from sinks.topics.records.read_back import read_to_end
from sinks.topics.records.single_record import NoTopicError, NotTakenError, write_record
from sinks.topics.topics import Topics

_ASK_S = 15.0
_AT_ONCE = 100
_AGAIN_S: Final = 30.0
"""A client that has told of an error is replaced after so long: it knows certificates and keys as they were."""

log = logging.getLogger("cdc.kafka")


class Commands:
    """Reads the commands that wait: those that are there, then those that come; never waits for one."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str], topic: str) -> None:
        self._waiting: dict[bytes, bytes] = {}
        self._servers, self._topic, self._next = bootstrap_servers, topic, 0
        for message in read_to_end(bootstrap_servers, options, topic, "read_committed"):
            self._hear(message)
        self._settings: dict[str, Any] = {
            **options,
            "bootstrap.servers": bootstrap_servers,
            "socket.keepalive.enable": "true",
            "group.id": "cdc-commands",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": "1024",
            "error_cb": self._failed,
        }
        self._consumer = self._open()

    def _open(self) -> Consumer:
        self._is_failing, self._opened_s = False, time.monotonic()
        consumer = Consumer(self._settings, logger=log)
        consumer.assign([TopicPartition(self._topic, 0, self._next)])
        return consumer

    def _failed(self, _error: object) -> None:
        self._is_failing = True

    def _hear(self, message: Any) -> None:  # noqa: ANN401 - the client's
        _hear(self._waiting, message.key(), message.value())
        self._next = (message.offset() or 0) + 1

    def waiting(self) -> list[tuple[bytes, bytes]]:
        """Return those not answered, oldest first."""
        if self._is_failing and time.monotonic() - self._opened_s > _AGAIN_S:
            self._consumer.close()
            self._consumer = self._open()
        for _ in range(_AT_ONCE):
            try:
                message = self._consumer.poll(0)
            except DRIVER_ERRORS as exc:
                raise translate(exc, self._servers, "reading the signal topic") from exc
            if message is None:
                break
            if message.error() is None:  # the producer notices as well when a broker fails
                self._hear(message)
        return list(self._waiting.items())

    def answered(self, key: bytes) -> None:
        """Do not give this command again."""
        self._waiting.pop(key, None)

    def close(self) -> None:
        self._consumer.close()


def _hear(waiting: dict[bytes, bytes], key: bytes | None, value: bytes | None) -> None:
    if key is not None and value is not None:
        waiting[key] = value
    elif key is not None:
        waiting.pop(key, None)


def waiting_commands(config: KafkaConfig, connector: str) -> list[tuple[bytes, bytes]]:
    """Return what a connector has been asked for and has not answered, oldest first, from outside of it."""
    topic = signal_topic(config.prefix, connector)
    with Topics(config.bootstrap_servers, config.options) as topics:
        if not topics.exists(topic):
            return []
    waiting: dict[bytes, bytes] = {}
    committed = read_to_end(config.bootstrap_servers, config.options, topic, "read_committed", open_too=False)
    for message in committed:
        _hear(waiting, message.key(), message.value())
    return list(waiting.items())


def send_command(config: KafkaConfig, connector: str, key: bytes, value: bytes | None) -> None:
    """Leave a command for a connector, or take it away (None). Raises OperatorError where it has never run."""
    topic = signal_topic(config.prefix, connector)
    broker = config.bootstrap_servers
    try:
        write_record(config, topic, key, value, within_s=_ASK_S)
    except NoTopicError as exc:
        msg = f"connector {connector} has never run, or topic {topic} was deleted: it is not there"
        raise OperatorError(
            msg, hint="cdc run CONNECTOR.yaml makes it; one that runs makes it again by itself"
        ) from exc
    except NotTakenError as exc:
        raise OperatorError(
            f"Kafka at {broker}: topic {topic} takes nothing: {exc}",
            hint="is it running, and may this user WRITE there?",
        ) from exc
    except DRIVER_ERRORS as exc:
        raise translate(exc, broker, f"writing to topic {topic}") from exc
