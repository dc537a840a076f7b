"""Reads the schema topic: the versions of all tables."""

from __future__ import annotations

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.model.target_table import Version, parse_version


def schema_topic(source: ApplySource) -> str:
    """Return the name of the topic that has the versions of all tables."""
    return f"{source.topic_prefix}.schema"


def schema_versions(source: ApplySource) -> dict[str, list[Version]]:
    """Read all committed versions of all tables, by ``schema.table``, to the present end of the schema topic.

    Raises OperatorError when the topic is missing or the broker does not answer.
    """
    topic = schema_topic(source)
    if topic not in existing_topics(source):
        msg = f"topic {topic} does not exist at {source.bootstrap_servers}: no connector has written there"
        raise OperatorError(msg, hint="run the connector first: cdc run connector.yaml; or correct source.topic_prefix")
    found: dict[str, dict[int, Version]] = {}
    for message in committed_records(source, topic, 1):
        value = message.value()
        if value is not None:
            version = parse_version(value)
            found.setdefault(version.qualified, {})[version.number] = version
    return {table: list(versions.values()) for table, versions in found.items()}
