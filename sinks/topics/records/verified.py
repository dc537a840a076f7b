"""Keeps what `cdc verify` has found last of each copy, in a topic of the job: when, and how many rows differed.

In: counts. Out: the same, for the monitor and its metrics. No key and no value is in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import orjson

from cdc.config.kafka_config import KafkaConfig
from sinks.topics.records.read_back import read_to_end
from sinks.topics.records.single_record import write_record
from sinks.topics.topics import Topics, Wanted

_WITHIN_S: Final = 10.0


def verified_topic(prefix: str, job: str) -> str:
    """Name the topic. It has one dot, so it is no table's."""
    return f"{prefix}.verified-{job}"


def keep_verified(config: KafkaConfig, job: str, found: Mapping[tuple[str, str], Mapping[str, Any]]) -> None:
    """Keep the counts of copies, by store and table. Raises what the client raises, and CdcError."""
    topic = verified_topic(config.prefix, job)
    with Topics(config.bootstrap_servers, config.options) as topics:
        missing = topics.check([Wanted.internal(topic)])
        topics.create(missing, replication_factor=config.replication_factor)
    for (store, table), counts in found.items():
        write_record(config, topic, orjson.dumps([store, table]), orjson.dumps(dict(counts)), within_s=_WITHIN_S)


def read_verified(config: KafkaConfig, job: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the counts by store and table; none where nothing was verified yet."""
    topic = verified_topic(config.prefix, job)
    with Topics(config.bootstrap_servers, config.options) as topics:
        if not topics.exists(topic):
            return {}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for message in read_to_end(config.bootstrap_servers, config.options, topic, "read_committed", open_too=False):
        try:
            store, table = orjson.loads(message.key() or b"")
            counts = orjson.loads(message.value() or b"")
            found[str(store), str(table)] = {
                "at_ms": int(counts["at_ms"]),
                "agrees": bool(counts["agrees"]),
                "differing": int(counts["differing"]),
                "agreed_ms": None if counts["agreed_ms"] is None else int(counts["agreed_ms"]),
            }
        except (ValueError, KeyError, TypeError):
            continue  # what somebody else has put there
    return found
