"""A fleet's topic on a real broker: one that somebody else has made, one that is deleted and made again."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from cdc.fleet.fleet_config import FleetConfig
from cdc.model.errors import OperatorError
from sinks.fleet import topic as topic_module
from sinks.fleet.topic import FleetTopic
from tests.integration.running import eventually


@contextmanager
def fleet_of(kafka: str, prefix: str) -> Iterator[tuple[FleetTopic, AdminClient]]:
    fleet, admin = (
        FleetTopic(FleetConfig(fleet=prefix, bootstrap_servers=kafka)),
        AdminClient({"bootstrap.servers": kafka}),
    )
    yield fleet, admin
    _delete(admin, fleet.topic())


def _delete(admin: AdminClient, topic: str) -> None:
    admin.delete_topics([topic])[topic].result(30)
    eventually(lambda: topic not in admin.list_topics(timeout=60).topics, "it is gone")


def test_a_topic_that_forgets_takes_no_entry(kafka: str, prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    """As a platform's team makes topics: a week later the entries are gone, and connectors are stopped in silence."""
    with fleet_of(kafka, prefix) as (fleet, admin):
        made = NewTopic(fleet.topic(), 1, 1, config={"cleanup.policy": "delete"})
        admin.create_topics([made])[fleet.topic()].result(30)
        with pytest.raises(OperatorError, match=r"cleanup\.policy=delete") as refused:
            fleet.make(1)
        assert f"--entity-name {fleet.topic()} --add-config cleanup.policy=compact" in str(refused.value.hint)
        with caplog.at_level(logging.ERROR, "cdc"), closing(fleet.follow()):
            assert "cleanup.policy=delete" in caplog.text, "a member that is there already goes on, and says so"


def test_a_topic_that_is_made_again_is_what_counts(kafka: str, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries of the former one ran on for ever, and no command showed or removed them.

    And of those of the new one the first were missed, where it had more records already than the former one.
    """
    monkeypatch.setattr(topic_module, "_LOOK_S", 0.1)
    with fleet_of(kafka, prefix) as (fleet, admin):
        fleet.make(2)
        fleet.write("connector/a", b"1")
        with closing(fleet.follow()) as records:
            assert records.changed() == {"connector/a": b"1"}
            _delete(admin, fleet.topic())
            assert records.changed() is None, "what is known stays"
            fleet.make(2)
            for number in range(3):
                fleet.write(f"connector/b{number}", b"2")  # to a member they may come one by one
            wanted = {f"connector/b{number}": b"2" for number in range(3)}
            eventually(lambda: records.changed() == wanted, "the new records alone are there")
            fleet.write("connector/c", b"3")
            eventually(lambda: records.changed() == {**wanted, "connector/c": b"3"}, "it is followed")
