"""Asks Kafka which topics these are, and where they end, by one connection that is kept.

A topic that was deleted and made again has the name and not the identity.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.client import ask_leader, client_settings, unreachable
from spark_apply.events.kafka.topics import partition_counts

_ANSWER_WITHIN_S = 10.0
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class TopicNow(NamedTuple):
    """What a topic is now."""

    identity: str
    """``<cluster>/<topic id>``; a part is empty where the broker gives none."""
    partitions: int


class TopicAsker:
    """Asks one cluster about topics, again and again, by one connection."""

    def __init__(self, source: ApplySource) -> None:
        self._source = source
        self._admin = AdminClient(client_settings(source))

    def now(self, names: Iterable[str]) -> dict[str, TopicNow]:
        """Return what topics are, without those that do not exist. Raises OperatorError without an answer."""
        asked = sorted(set(names))
        if not asked:
            return {}
        found: dict[str, TopicNow] = {}
        try:
            answers = self._admin.describe_topics(TopicCollection(asked), request_timeout=_ANSWER_WITHIN_S)
            cluster = self._admin.describe_cluster(request_timeout=_ANSWER_WITHIN_S).result().cluster_id
            for name, future in answers.items():
                try:
                    topic: Any = future.result()
                except KafkaException as exc:
                    if exc.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                        raise
                    continue
                number = str(topic.topic_id) if topic.topic_id is not None else ""
                found[name] = TopicNow(f"{cluster or ''}/{'' if number == _NO_ID else number}", len(topic.partitions))
        except KafkaException as exc:
            raise unreachable(self._source, exc) from exc
        return found

    def ends(self, names: Sequence[str]) -> dict[str, dict[int, int]]:
        """Return by topic what `spark_apply.events.kafka.offsets.committed_ends` gives. Raises OperatorError."""
        try:
            return ask_leader(lambda: self._ends(names))
        except KafkaException as exc:
            raise unreachable(self._source, exc) from exc

    def _ends(self, names: Sequence[str]) -> dict[str, dict[int, int]]:
        counts, found = partition_counts(self._admin, names), {name: dict[int, int]() for name in names}
        end = OffsetSpec.latest()  # type: ignore[no-untyped-call]
        latest = {TopicPartition(name, at): end for name, of in counts.items() for at in range(of)}
        committed = IsolationLevel.READ_COMMITTED
        asked = self._admin.list_offsets(latest, isolation_level=committed, request_timeout=_ANSWER_WITHIN_S)
        for place, future in asked.items():
            found[place.topic][place.partition] = future.result().offset
        return found


def identities(source: ApplySource, names: Iterable[str]) -> dict[str, str]:
    """Return the identities of topics that exist. Raises OperatorError without an answer."""
    return {name: topic.identity for name, topic in TopicAsker(source).now(names).items()}


def difference(before: str, now: str) -> str | None:
    """Say how two identities differ; None if they do not, or if a broker has not given what would tell."""
    pairs = list(zip(before.split("/", 1), now.split("/", 1), strict=False))
    names = ("another Kafka cluster answers under this name", "it was deleted and made again")
    return next(
        (what for what, (one, other) in zip(names, pairs, strict=False) if one and other and one != other), None
    )


def differing(known: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Return the topics that are others than those that are known, each with how."""
    found = {topic: difference(identity, now[topic]) for topic, identity in known.items() if topic in now}
    return {topic: how for topic, how in sorted(found.items()) if how is not None}
