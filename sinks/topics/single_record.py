"""Writes one record by itself, outside any transaction: a command for a connector, or the error that it met.

In: a topic that exists, key, value. Out: a record that every reader sees at once. Never a table's event.
"""

from __future__ import annotations

import logging

from confluent_kafka import Producer

from cdc.config.kafka_config import KafkaConfig

log = logging.getLogger("cdc.kafka")


class NoTopicError(Exception):
    """The topic does not exist: its connector has never run."""


class NotTakenError(Exception):
    """No broker has taken the record in time."""


def write_record(
    config: KafkaConfig, topic: str, key: bytes, value: bytes | None, *, within_s: float, partition: int = -1
) -> None:
    """Return when the record is written, to the partition of its key if none is named.

    Raises NoTopicError, NotTakenError, and the client's KafkaException.
    """
    refused: list[object] = []
    producer = Producer(
        {
            **config.options,
            "bootstrap.servers": config.bootstrap_servers,
            "message.timeout.ms": int(within_s * 1000),
            "allow.auto.create.topics": "false",
        },
        logger=log,
    )
    if producer.list_topics(topic, timeout=within_s).topics[topic].error is not None:
        raise NoTopicError(topic)
    producer.produce(
        topic, value, key, partition=partition, on_delivery=lambda error, _: refused.append(error) if error else None
    )
    if producer.flush(within_s) or refused:
        raise NotTakenError(topic)
