"""`sink.topic_config`: topics as a managed service takes them, and no event lost by it."""

from __future__ import annotations

from typing import Any

import pytest

from cdc.config.kafka_config import KafkaConfig
from cdc.model.errors import ConfigError
from sinks.kafka import KafkaSink
from tests.unit.test_pipeline import A


def _wanted(**settings: Any) -> dict[str, dict[str, str]]:
    config = KafkaConfig(bootstrap_servers="h:1", topic_prefix="p", topic_config=settings)
    wanted = KafkaSink(config, "c", ["message", "dead-letter"]).wanted([A])
    return {topic.name: dict(topic.configs) for topic in wanted}


def test_ours_stay_where_nothing_is_said() -> None:
    wanted = _wanted()
    assert wanted["p.position-c"]["segment.bytes"] == "4194304"
    assert {of["max.message.bytes"] for of in wanted.values()} == {"33554432"}


def test_what_a_managed_service_takes() -> None:
    settings = {"max.message.bytes": "8388608", "segment.bytes": "52428800", "min.cleanable.dirty.ratio": None}
    wanted = _wanted(**settings)
    for of in wanted.values():
        assert of["max.message.bytes"] == "8388608"
        assert of["segment.bytes"] == "52428800"
        assert "min.cleanable.dirty.ratio" not in of
    assert wanted["p.position-c"]["cleanup.policy"] == "compact"


def test_tombstones_are_kept_for_longer_only_where_they_matter() -> None:
    """Else an existing topic of ours would be refused for what nobody needs of it."""
    wanted = _wanted(**{"delete.retention.ms": "1209600000"})
    assert {name for name, of in wanted.items() if "delete.retention.ms" in of} == {"p.s.a"}
    assert wanted["p.s.a"]["delete.retention.ms"] == "1209600000"


def test_batches_fit_the_limit_that_topics_are_made_with() -> None:
    config = KafkaConfig(bootstrap_servers="h:1", topic_prefix="p", topic_config={"max.message.bytes": "1000000"})
    sink = KafkaSink(config, "c")
    assert sink._smallest_limit == 1_000_000


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("cleanup.policy", "compact,delete"),
        ("retention.ms", "1"),
        ("retention.bytes", None),
        ("max.message.bytes", "999999"),
        ("max.message.bytes", "much"),
        ("segment.bytes", "14"),
        ("delete.retention.ms", None),
        ("delete.retention.ms", "86400000"),
        ("unclean.leader.election.enable", "true"),
    ],
)
def test_what_would_lose_events_is_refused(name: str, value: str | None) -> None:
    with pytest.raises(ConfigError, match=f"topic_config: {name}"):
        _wanted(**{name: value})
