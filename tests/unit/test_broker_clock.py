"""How long ago a connector committed is told by the brokers' clocks: the clock here may be minutes off."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import KafkaAdminClient, TopicPartition
from kafka.errors import ClusterAuthorizationFailedError, UnsupportedVersionError

from sinks.client.broker_clock import committed_ago_s, now_ms

NOW = 1_795_811_589_080
"""By the brokers' clock, which is not ours."""


class Admin:
    """Answers as a broker does; an exception in the place of an answer is raised."""

    def __init__(self, leader_ms: object, *producers: tuple[int, int]) -> None:
        """`producers` have when they wrote last, and where their open transaction begins."""
        self._leader_ms, self._producers = leader_ms, producers

    def describe_metadata_quorum(self) -> dict[str, Any]:
        if isinstance(self._leader_ms, Exception):
            raise self._leader_ms
        voters = [{"replica_id": 1, "last_caught_up_timestamp": self._leader_ms},
                  {"replica_id": 2, "last_caught_up_timestamp": NOW - 5_000}]  # fmt: skip
        return {"topics": [{"partitions": [{"leader_id": 1, "current_voters": voters}]}]}

    def describe_producers(self, places: list[TopicPartition]) -> dict[TopicPartition, Any]:
        of = [
            SimpleNamespace(last_timestamp=at, current_transaction_start_offset=begin) for at, begin in self._producers
        ]
        return {places[0]: SimpleNamespace(active_producers=of)}


def admin(leader_ms: object, *producers: tuple[int, int]) -> KafkaAdminClient:
    return cast("KafkaAdminClient", Admin(leader_ms, *producers))


@pytest.mark.parametrize("off_s", [-300, 300])
def test_a_clock_that_is_off_makes_nobody_dead_or_alive(off_s: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A monitor whose clock was five minutes ahead showed each connector of triggers and etcd as stopped."""
    monkeypatch.setattr(time, "time", lambda: NOW / 1000 + off_s)
    written_ms = NOW - 90_000 - off_s * 1000  # by the clock of the machine that the connector is on
    assert committed_ago_s(admin(NOW, (NOW - 600_000, -1), (NOW - 4_000, -1)), "p", written_ms) == 4.0
    assert committed_ago_s(admin(NOW, (NOW - 90_000, -1)), "p", written_ms) == 90.0
    assert committed_ago_s(admin(NOW, (written_ms, 17)), "p", written_ms) == 0.0  # its transaction is just ending
    assert committed_ago_s(admin(NOW), "p", written_ms) > 24 * 3600  # brokers have forgotten who wrote


@pytest.mark.parametrize("leader_ms", [-1, None, ClusterAuthorizationFailedError(), UnsupportedVersionError()])
def test_brokers_that_do_not_tell_the_time(leader_ms: object) -> None:
    assert now_ms(admin(leader_ms)) is None
    assert committed_ago_s(admin(leader_ms, (NOW, -1)), "p", int(time.time() * 1000) - 7_000) == pytest.approx(7, abs=2)
