"""Tells the time, and how long ago a topic was committed to, by the brokers' clocks: ours may be minutes off.

No request of Kafka's protocol is for the time. The leader of a KRaft cluster's controllers says when it was last up to
date with itself, which is now. A marker, by which a transaction ends, has the broker's time, and each partition tells
of its producers when they wrote last. ZooKeeper's clusters have no such leader, and a user may not be allowed to ask.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

from kafka import KafkaAdminClient, TopicPartition

from sinks.client.failures import DRIVER_ERRORS

log = logging.getLogger("cdc.kafka")

_LEAST_MS: Final = 1_000_000_000_000
"""Less is no time: the protocol writes -1 where there is none."""


def now_ms(admin: KafkaAdminClient) -> int | None:
    """Return the time by the controllers' leader; None: it is not told."""
    try:
        found: dict[str, Any] = admin.describe_metadata_quorum()
        times = [
            int(voter.get("last_caught_up_timestamp") or 0)
            for topic in found["topics"]
            for partition in topic["partitions"]
            for voter in partition["current_voters"]
            if voter["replica_id"] == partition["leader_id"]
        ]
    except DRIVER_ERRORS as exc:
        log.debug("the brokers do not tell the time: %s", type(exc).__name__)
        return None
    return max((at for at in times if at >= _LEAST_MS), default=None)


def committed_ago_s(admin: KafkaAdminClient, topic: str, committed_at_ms: int) -> float:
    """Return how long ago the last transaction ended in a topic of one partition; 0 while one has written to it.

    `committed_at_ms` is when that was by the writer's clock, which is compared with ours where the brokers do not tell.
    """
    try:
        place = TopicPartition(topic, 0)
        producers = admin.describe_producers([place])[place].active_producers
        at_ms = now_ms(admin)
    except DRIVER_ERRORS as exc:
        log.debug("the brokers do not tell who has written to %s: %s", topic, type(exc).__name__)
        at_ms, producers = None, ()
    if at_ms is None:
        return time.time() - committed_at_ms / 1000
    if any(of.current_transaction_start_offset >= 0 for of in producers):
        return 0.0
    return (at_ms - max((of.last_timestamp for of in producers), default=0)) / 1000
