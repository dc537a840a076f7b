"""Topics as they must be: made where missing, refused, with the command that mends them, where wrong."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Self

from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, ConfigResourceType
from kafka.errors import KafkaError, TopicAlreadyExistsError

from cdc.errors import ConfigError, OperatorError, RetryableError

TOMBSTONES_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""A reader that is away for less than this sees every delete."""
LARGEST_RECORD: Final = 32 * 1024 * 1024

_CLIENT: Final = {
    "security.protocol": "security_protocol",
    "sasl.mechanism": "sasl_mechanism",
    "sasl.mechanisms": "sasl_mechanism",
    "sasl.username": "sasl_plain_username",
    "sasl.password": "sasl_plain_password",
    "ssl.ca.location": "ssl_cafile",
    "ssl.certificate.location": "ssl_certfile",
    "ssl.key.location": "ssl_keyfile",
    "ssl.key.password": "ssl_password",
}


@dataclass(frozen=True, slots=True)
class Wanted:
    """A topic as it must be. `partitions` None: any number."""

    name: str
    partitions: int | None
    configs: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def events(cls, name: str, partitions: int) -> Wanted:
        """A table's topic: compacted, tombstones kept for a week, room for wide rows."""
        return cls(
            name,
            partitions,
            {
                "cleanup.policy": "compact",
                "delete.retention.ms": str(TOMBSTONES_KEPT_MS),
                "max.message.bytes": str(LARGEST_RECORD),
            },
        )

    @classmethod
    def ledger(cls, name: str) -> Wanted:
        """A topic of our own records: compacted, one partition, hence one order."""
        return cls(
            name,
            1,
            {
                "cleanup.policy": "compact",
                "max.message.bytes": str(LARGEST_RECORD),
                "segment.bytes": str(4 * 1024 * 1024),  # closed segments alone are compacted; each start reads it
                "min.cleanable.dirty.ratio": "0.01",
            },
        )


def python_client(bootstrap_servers: str, options: Mapping[str, str]) -> dict[str, Any]:
    """kafka-python's names for librdkafka's options. Raises ConfigError for one it has no name for."""
    unknown = sorted(o for o in options if o.startswith(("ssl.", "sasl.", "security.")) and o not in _CLIENT)
    if unknown:
        raise ConfigError(f"sink.options: {', '.join(unknown)} is not known here", hint=f"known: {', '.join(_CLIENT)}")
    mapped = {_CLIENT[name]: value for name, value in options.items() if name in _CLIENT}
    return {"bootstrap_servers": bootstrap_servers.split(","), **mapped}


class Topics:
    """One admin connection. Use as a context manager. Raises RetryableError while no broker answers."""

    def __init__(self, bootstrap_servers: str, options: Mapping[str, str]) -> None:
        self._servers = bootstrap_servers
        client = python_client(bootstrap_servers, options)
        try:
            self._admin = KafkaAdminClient(
                **client, client_id="cdc", request_timeout_ms=15_000, bootstrap_timeout_ms=8_000
            )
        except (KafkaError, OSError, ValueError) as exc:
            raise unreachable(bootstrap_servers) from exc

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._admin.close()

    def exists(self, topic: str) -> bool:
        """Whether there is a topic of this name."""
        try:
            return topic in self._admin.list_topics()
        except KafkaError as exc:
            raise RetryableError(f"Kafka at {self._servers}: reading topics failed: {type(exc).__name__}") from exc

    def check(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """The topics that are missing. Raises OperatorError for one that exists and is wrong."""
        try:
            existing = self._existing([w.name for w in wanted])
            self._refuse_look_alikes(wanted)
        except KafkaError as exc:
            raise RetryableError(f"Kafka at {self._servers}: reading topics failed: {type(exc).__name__}") from exc
        for topic in wanted:
            if topic.name in existing:
                self._compare(topic, *existing[topic.name])
        return [w for w in wanted if w.name not in existing]

    def _refuse_look_alikes(self, wanted: Sequence[Wanted]) -> None:
        """Kafka's metrics write a dot as an underscore: it makes no topic that differs by these alone."""
        seen = {name.replace(".", "_"): name for name in self._admin.list_topics()}
        for topic in wanted:
            other = seen.setdefault(topic.name.replace(".", "_"), topic.name)
            if other != topic.name:
                raise OperatorError(
                    f"topic {topic.name} cannot be made beside {other}: Kafka takes . and _ for the same in names",
                    hint="capture one of the two tables by a connector with another sink.topic_prefix",
                )

    def create(self, wanted: Sequence[Wanted], *, replication_factor: int | None) -> None:
        """Make topics and wait until they can be written."""
        specs = {
            w.name: {
                "num_partitions": w.partitions or 1,
                "replication_factor": replication_factor or -1,
                "configs": dict(w.configs),
            }
            for w in wanted
        }
        if not specs:
            return
        try:
            self._admin.create_topics(specs, timeout_ms=30_000)
            self._admin.wait_for_topics(list(specs), timeout_ms=30_000)
        except TopicAlreadyExistsError:
            self.check(wanted)
        except KafkaError as exc:
            raise OperatorError(
                f"Kafka at {self._servers}: topics cannot be made: {exc}",
                hint="the connector's user needs CREATE on the cluster or on the topics’ prefix",
            ) from exc

    def _existing(self, names: Sequence[str]) -> dict[str, tuple[int, Mapping[str, str]]]:
        """Partition count and settings of those that exist."""
        present = set(self._admin.list_topics()) & set(names)
        if not present:
            return {}
        partitions = {t["name"]: len(t["partitions"]) for t in self._admin.describe_topics(sorted(present))}
        described = self._admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(present)], config_filter="all"
        )
        return {
            name: (partitions[name], {key: str(found["value"]) for key, found in described["topic"][name].items()})
            for name in present
        }

    def _compare(self, topic: Wanted, partitions: int, settings: Mapping[str, str]) -> None:
        tool = f"--bootstrap-server {self._servers}"
        policy = settings.get("cleanup.policy", "")
        if policy != "compact":
            raise OperatorError(
                f"topic {topic.name} has cleanup.policy={policy}: it would forget rows that still exist",
                hint=f"kafka-configs.sh {tool} --alter --entity-type topics --entity-name {topic.name} "
                "--add-config cleanup.policy=compact",
            )
        kept = int(settings.get("delete.retention.ms", "0"))
        wanted_kept = int(topic.configs.get("delete.retention.ms", "0"))
        if kept < wanted_kept:
            raise OperatorError(
                f"topic {topic.name} has delete.retention.ms={kept}: readers away for longer would miss deletes",
                hint=f"kafka-configs.sh {tool} --alter --entity-type topics --entity-name {topic.name} "
                f"--add-config delete.retention.ms={wanted_kept}",
            )
        if topic.partitions is not None and partitions != topic.partitions:
            raise OperatorError(
                f"topic {topic.name} has {partitions} partitions, {topic.partitions} are asked for: a key must stay in "
                "its partition",
                hint=f"set sink.partitions: {partitions}; or, if nobody needs its events any more: "
                f"kafka-topics.sh {tool} --delete --topic {topic.name}",
            )


def unreachable(servers: str) -> RetryableError:
    """No broker answers."""
    return RetryableError(f"Kafka at {servers} cannot be reached", hint="is it running, and is the address right?")
