"""Writes one record by itself, outside any transaction: a command for a connector, or the error that it met.

In: a topic that exists, key, value. Out: a record that every reader sees at once. Never a table's event.
"""

from __future__ import annotations

import logging
from typing import Final

from confluent_kafka import KafkaError, Producer

from cdc.config.kafka_config import KafkaConfig

log = logging.getLogger("cdc.kafka")

_ABSENT: Final = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC)  # noqa: SLF001 - the client's own code


class NoTopicError(Exception):
    """The topic does not exist: its connector has never run."""


class NotTakenError(Exception):
    """No broker has taken the record, or not in time; why, in words."""


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
    missing = producer.list_topics(topic, timeout=within_s).topics[topic].error
    if missing is not None and missing.code() in _ABSENT:
        raise NoTopicError(topic)
    if missing is not None:
        raise NotTakenError(missing.str())
    producer.produce(
        topic, value, key, partition=partition, on_delivery=lambda error, _: refused.append(error) if error else None
    )
    if producer.flush(within_s) or refused:
        raise NotTakenError(str(refused[0]) if refused else f"no answer within {within_s:g} s")
