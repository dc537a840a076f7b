"""Reads the schema topic: the versions of all tables."""

from __future__ import annotations

import time
from typing import Final

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.offsets import partition_bounds
from spark_apply.events.kafka.records import committed_records
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.model.target_table import Version, parse_version

_FIRST_WITHIN_S: Final = 10.0
"""So long the first transaction of a connector is waited for."""
_ASKED_EVERY_S: Final = 0.1


def schema_topic(source: ApplySource) -> str:
    """Return the name of the topic that has the versions of all tables."""
    return f"{source.topic_prefix}.schema"


def schema_versions(source: ApplySource) -> dict[str, list[Version]]:
    """Read all committed versions of all tables, by ``schema.table``, to the present end of the schema topic.

    Where nothing is committed yet, a transaction that has begun is waited for: the broker marks one as committed a
    moment after it has told the connector so. Raises OperatorError when the topic is missing or the broker does not
    answer.
    """
    topic = schema_topic(source)
    if topic not in existing_topics(source, [topic]):
        msg = f"topic {topic} does not exist at {source.bootstrap_servers}: no connector has written there"
        raise OperatorError(msg, hint="run the connector first: cdc run CONNECTOR.yaml; or correct source.topic_prefix")
    found, until_s, goes_on = _committed(source, topic), time.monotonic() + _FIRST_WITHIN_S, True
    while not found and goes_on and time.monotonic() < until_s:
        time.sleep(_ASKED_EVERY_S)
        goes_on = _has_begun(source, topic)  # asked first: it may end between the two
        found = _committed(source, topic)
    return found


def _has_begun(source: ApplySource, topic: str) -> bool:
    """Tell whether there are records whose transaction has not ended."""
    ends = [partition_bounds(source, [topic], isolation) for isolation in ("read_committed", "read_uncommitted")]
    return ends[0] != ends[1]


def _committed(source: ApplySource, topic: str) -> dict[str, list[Version]]:
    found: dict[str, dict[int, Version]] = {}
    for message in committed_records(source, topic, 1):
        value = message.value()
        if value is not None:
            version = parse_version(value)
            found.setdefault(version.qualified, {})[version.number] = version
    return {table: list(versions.values()) for table, versions in found.items()}
