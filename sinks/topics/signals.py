"""The signal topic holds what `cdc snapshot` asks of a connector, each under a key; a tombstone says it was done."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from cdc.config.config import KafkaConfig
from cdc.model.errors import OperatorError
from sinks.topics.names import signal_topic
from sinks.topics.read_back import read_to_end

_ASK_S = 15.0
_AT_ONCE = 100

log = logging.getLogger("cdc.kafka")


class Commands:
    """Reads the commands that wait: those that are there, then those that come; never waits for one."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str], topic: str) -> None:
        self._waiting: dict[bytes, bytes] = {}
        end = 0
        for message in read_to_end(bootstrap_servers, options, topic, "read_committed"):
            self._hear(message.key(), message.value())
            end = (message.offset() or 0) + 1
        self._consumer = Consumer(
            {
                **options,
                "bootstrap.servers": bootstrap_servers,
                "group.id": "cdc-commands",
                "enable.auto.commit": "false",
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "queued.max.messages.kbytes": "1024",
            },
            logger=log,
        )
        self._consumer.assign([TopicPartition(topic, 0, end)])

    def waiting(self) -> list[tuple[bytes, bytes]]:
        """Return those not answered, oldest first."""
        for _ in range(_AT_ONCE):
            message = self._consumer.poll(0)
            if message is None:
                break
            if message.error() is None:  # what goes wrong with the broker, the producer hears too
                self._hear(message.key(), message.value())
        return list(self._waiting.items())

    def answered(self, key: bytes) -> None:
        """Do not give this command again."""
        self._waiting.pop(key, None)

    def close(self) -> None:
        self._consumer.close()

    def _hear(self, key: bytes | None, value: bytes | None) -> None:
        if key is not None and value is not None:
            self._waiting[key] = value
        elif key is not None:
            self._waiting.pop(key, None)


def send_command(config: KafkaConfig, connector: str, key: bytes, value: bytes) -> None:
    """Leave a command for a connector. Raises OperatorError where it has never run."""
    topic = signal_topic(config.prefix, connector)
    refused: list[object] = []
    try:
        producer = Producer(
            {
                **config.options,
                "bootstrap.servers": config.bootstrap_servers,
                "message.timeout.ms": int(_ASK_S * 1000),
                "allow.auto.create.topics": "false",
            },
            logger=log,
        )
        if producer.list_topics(topic, timeout=_ASK_S).topics[topic].error is not None:
            raise OperatorError(
                f"connector {connector} has never run: topic {topic} is not there", hint="cdc run first"
            )
        producer.produce(topic, value, key, on_delivery=lambda error, _: refused.append(error) if error else None)
        left = producer.flush(_ASK_S)
    except (KafkaException, BufferError) as exc:
        raise OperatorError(f"Kafka at {config.bootstrap_servers}: topic {topic} cannot be written") from exc
    if left or refused:
        raise OperatorError(f"Kafka at {config.bootstrap_servers}: topic {topic} takes nothing", hint="is it running?")
