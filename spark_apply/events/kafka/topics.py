"""Names topics, and asks which there are and how they are set."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclOperation,
    AdminClient,
    ConfigResource,
    ResourceType,
)

from cdc.config.apply_config import ApplySource
from cdc.model.errors import ConfigError
from cdc.model.hints import grant
from spark_apply.events.kafka.client import (
    ANSWER_WITHIN_S,
    ForbiddenError,
    NoAnswerError,
    client_settings,
    leaderless,
    unreachable,
)

_NOT_SEEN: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.TOPIC_EXCEPTION}
)
"""What brokers answer to a name that no topic has, that this user may not see, or that none can have."""


_TO_READ: Final = {AclOperation.READ: "Read", AclOperation.DESCRIBE_CONFIGS: "DescribeConfigs"}
"""What a job must be allowed of each topic of a table, by Kafka's tools' names; ``Describe`` comes with ``Read``."""
_NAMED: Final = 5
"""So many topics are named that have partitions without a leader."""


def existing_topics(source: ApplySource, names: Iterable[str]) -> dict[str, int]:
    """Return the partition counts of those topics that exist. Raises OperatorError without an answer in 10 s."""
    admin = _admin(source)
    try:
        return partition_counts(admin, names)
    except KafkaException as exc:
        raise unreachable(source, exc) from exc


def partition_counts(admin: AdminClient, names: Iterable[str]) -> dict[str, int]:
    """Return the partition counts of those topics that exist and that this user may see. Raises KafkaException.

    No other topic is asked for: a cluster may have tens of thousands.
    """
    asked, found = sorted(set(names)), dict[str, int]()
    answers = admin.describe_topics(TopicCollection(asked), request_timeout=ANSWER_WITHIN_S) if asked else {}
    for name, future in answers.items():
        try:
            found[name] = len(future.result().partitions)  # the request has its time, and an error of its own
        except KafkaException as exc:
            if exc.args[0].code() not in _NOT_SEEN:
                raise
    return found


def missing_rights(source: ApplySource, names: Iterable[str]) -> dict[str, list[str]]:
    """Return the topics that this user may not read, with the operations that are missing.

    Of one that it may not see, nothing says whether it exists. Raises OperatorError without an answer in 10 s.
    """
    admin, asked, found = _admin(source), sorted(set(names)), dict[str, list[str]]()
    answers = (
        admin.describe_topics(
            TopicCollection(asked), include_authorized_operations=True, request_timeout=ANSWER_WITHIN_S
        )
        if asked
        else {}
    )
    for name, future in answers.items():
        try:
            allowed = future.result().authorized_operations
        except KafkaException as exc:
            if exc.args[0].code() not in _NOT_SEEN:
                raise unreachable(source, exc) from exc
            if exc.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                found[name] = [*_TO_READ.values()]
        else:
            missing = [told for operation, told in _TO_READ.items() if operation not in (allowed or _TO_READ)]
            if missing:
                found[name] = missing
    return found


def why_unread(source: ApplySource, topics: Iterable[str]) -> NoAnswerError | None:
    """Ask the brokers why topics were not read in time; None: they answer, and each partition has a leader."""
    admin, lost = _admin(source), list[str]()
    answers = admin.describe_topics(TopicCollection(sorted({*topics})), request_timeout=ANSWER_WITHIN_S)
    for name, future in answers.items():
        try:
            without = [of.id for of in future.result().partitions if of.leader is None or of.leader.id < 0]
        except KafkaException as exc:
            error = unreachable(source, exc)
            if exc.args[0].code() not in _NOT_SEEN and isinstance(error, NoAnswerError):
                return error
        else:
            lost += [f"{name} ({', '.join(map(str, without))})"] if without else []
    return leaderless(f"Kafka: partitions have no leader: {'; '.join(lost[:_NAMED])}") if lost else None


def all_topics(source: ApplySource) -> list[str]:
    """Return the names of all topics of the cluster that this user may see, to tell which one somebody meant."""
    admin = _admin(source)
    try:
        return sorted(admin.list_topics(timeout=ANSWER_WITHIN_S).topics)
    except KafkaException as exc:
        raise unreachable(source, exc) from exc


def _admin(source: ApplySource) -> AdminClient:
    """Make the first client of a job. Raises ConfigError for options that it does not take."""
    try:
        return AdminClient({**client_settings(source), "socket.timeout.ms": int(ANSWER_WITHIN_S * 1000)})
    except KafkaException as exc:
        raise ConfigError(
            f"source.options: Kafka's client cannot be made: {exc.args[0].str()[:200]}",
            hint="docs/apply-reference.md has the properties that are taken, by librdkafka's names",
        ) from exc


def topic_settings(source: ApplySource, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, by topic and name. Raises OperatorError if the broker does not answer, or tell."""
    admin = AdminClient(client_settings(source))  # must live until its futures are done
    wanted = [ConfigResource(ResourceType.TOPIC, name) for name in names]
    asked = admin.describe_configs(wanted, request_timeout=ANSWER_WITHIN_S)
    found, refused = {}, []
    for of, future in asked.items():
        try:
            settings = future.result()
        except KafkaException as exc:
            if exc.args[0].code() != KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise unreachable(source, exc) from exc
            refused.append(of.name)
        else:
            found[of.name] = {name: str(entry.value) for name, entry in settings.items()}
    if refused:
        raise _untold(source, sorted(refused))
    return found


def _untold(source: ApplySource, topics: Sequence[str]) -> ForbiddenError:
    return ForbiddenError(
        f"topic {topics[0]}: this user may not read its settings (DESCRIBE_CONFIGS), which say how long deletes "
        "are kept",
        hint=grant(source.bootstrap_servers, source.options, ["DescribeConfigs"], *topics),
    )


def position_topic(prefix: str, connector: str) -> str:
    """Return the topic in which a connector keeps its position: see `cdc.model.state`."""
    return f"{prefix}.position-{connector}"


def quarantine_topic(prefix: str, job: str) -> str:
    """Return the topic of an apply job's quarantine. It has one dot, so it is no table's topic."""
    return f"{prefix}.quarantine-{job}"
