"""Which topics have a log beside them, and what it must be like."""

from __future__ import annotations

import pytest

from cdc.config.kafka_config import KafkaConfig, LogConfig
from cdc.model.errors import ConfigError
from sinks.topics.names import LONGEST, table_topic
from sinks.topics.records.table_logs import TableLogs


def _logs(*tables: str, retention: str = "1h") -> TableLogs:
    log = LogConfig(tables=tables, retention=retention) if tables else None
    return TableLogs(KafkaConfig(bootstrap_servers="nowhere:1", topic_prefix="p", partitions=5, log=log))


def test_tables_are_named_as_the_database_names_them() -> None:
    """Not by their escaped topics; topics of no table have no log."""
    logs = _logs("public.b é", "log.*")
    topics = [table_topic("p", *names) for names in (("public", "b é"), ("log", "t"), ("public", "other"))]
    found = ["p.log.public.b_u0020_u00e9", "p.log.log.t"]
    assert [logs.of(topic) for topic in topics] == [*found, None]
    assert [logs.of(topic) for topic in ("p.schema", "p.position-c", "p.message", *found)] == [None] * 5
    assert logs.all(topics) == found
    assert [logs.written_for(topic) for topic in (*found, topics[2])] == topics  # what is too large is the table's
    assert _logs().all(topics) == []


def test_a_log_has_the_partitions_of_its_table_and_its_own_age() -> None:
    """So a key lies in the same one."""
    (wanted,) = _logs("*.*").wanted(["p.s.t"])
    assert (wanted.name, wanted.partitions) == ("p.log.s.t", 5)
    kept = {name: wanted.configs[name] for name in ("cleanup.policy", "retention.ms", "retention.bytes")}
    assert kept == {"cleanup.policy": "delete", "retention.ms": "3600000", "retention.bytes": "-1"}
    (for_ever,) = _logs("*.*", retention="forever").wanted(["p.s.t"])
    assert for_ever.configs["retention.ms"] == "-1"


def test_a_name_that_has_no_room_for_its_log_is_refused() -> None:
    """The table's topic still fits."""
    topic = table_topic("p", "s", "t" * (LONGEST - 4))
    with pytest.raises(ConfigError, match=f"Kafka takes {LONGEST}"):
        _logs("s.*").of(topic)
    assert _logs("other.*").of(topic) is None
