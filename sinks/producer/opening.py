"""Makes the producer that a connector's file asks for, with what is derived from the options of librdkafka."""

from __future__ import annotations

from typing import Final

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import ConfigError
from sinks.client.connection import ConnectionConfig
from sinks.client.options import python_client
from sinks.client.record_batch import CODECS, Codec
from sinks.producer.librdkafka import LibrdkafkaProducer
from sinks.producer.producer import Producer
from sinks.producer.transactional import TransactionalProducer

_ANSWER_MS: Final = 40_000
"""An answer is awaited for longer than a broker waits for its followers, which is 30 s."""


def codec(config: KafkaConfig) -> Codec:
    """Return how records are compressed. Raises ConfigError for what is not known."""
    name = config.options.get("compression.type", config.options.get("compression.codec", "lz4"))
    try:
        return CODECS[name]
    except KeyError:
        raise ConfigError(
            f"sink.options: compression.type: {name} is not known", hint=f"known: {', '.join(CODECS)}"
        ) from None


def connection_config(config: KafkaConfig) -> ConnectionConfig:
    """Return how our own client connects, from the options of librdkafka."""
    options = config.options
    return ConnectionConfig(
        client_id=options.get("client.id", "cdc"),
        answer_s=int(options.get("socket.timeout.ms", _ANSWER_MS)) / 1000,
        options=python_client(config.bootstrap_servers, options),
    )


def open_producer(
    config: KafkaConfig, transactional_id: str, *, batch_bytes: int, largest_bytes: int
) -> TransactionalProducer:
    """Make a producer; `batch_bytes` is what a batch of several records may have, `largest_bytes` what a record may."""
    timeout_ms = round(config.transaction_timeout_s * 1000)
    if config.producer == "librdkafka":
        return LibrdkafkaProducer(
            config.bootstrap_servers,
            config.options,
            transactional_id=transactional_id,
            timeout_ms=timeout_ms,
            compression=codec(config).name,
            batch_bytes=batch_bytes,
            largest_bytes=largest_bytes,
        )
    return Producer(
        config.bootstrap_servers,
        connection_config(config),
        transactional_id=transactional_id,
        timeout_ms=timeout_ms,
        codec=codec(config),
    )
