"""Names topics, and asks which there are and how they are set."""

from __future__ import annotations

from collections.abc import Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]

from cdc.config.apply_config import ApplySource
from cdc.model.errors import ConfigError
from spark_apply.events.kafka.client import ANSWER_WITHIN_S, client_settings, unreachable


def existing_topics(source: ApplySource) -> dict[str, int]:
    """Return the broker's topics and their partition counts. Raises OperatorError without an answer in 10 s."""
    try:
        admin = AdminClient({**client_settings(source), "socket.timeout.ms": int(ANSWER_WITHIN_S * 1000)})
    except KafkaException as exc:  # it is the first client that a job makes
        raise ConfigError(
            f"source.options: Kafka's client cannot be made: {exc.args[0].str()[:200]}",
            hint="docs/apply-reference.md has the properties that are taken, by librdkafka's names",
        ) from exc
    try:
        found = admin.list_topics(timeout=ANSWER_WITHIN_S).topics
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    return {name: len(topic.partitions) for name, topic in found.items()}


def topic_settings(source: ApplySource, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, by topic and name. Raises OperatorError when the broker does not answer."""
    admin = AdminClient(client_settings(source))  # must live until its futures are done
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    try:
        found = {of.name: future.result(ANSWER_WITHIN_S) for of, future in asked.items()}
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    return {topic: {name: str(entry.value) for name, entry in settings.items()} for topic, settings in found.items()}


def position_topic(prefix: str, connector: str) -> str:
    """Return the topic in which a connector keeps its position: see `cdc.model.state`."""
    return f"{prefix}.position-{connector}"


def quarantine_topic(prefix: str, job: str) -> str:
    """Return the topic of an apply job's quarantine. It has one dot, so it is no table's topic."""
    return f"{prefix}.quarantine-{job}"
