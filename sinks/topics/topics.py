"""Makes topics that are missing, and refuses those that are wrong, with the command that repairs them."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Final, Self

from kafka import KafkaAdminClient, TopicPartition
from kafka.admin import ConfigResource, ConfigResourceType, OffsetSpec
from kafka.errors import KafkaError, TopicAuthorizationFailedError

from cdc.model.errors import CdcError, OperatorError, RetryableError, TopicError, raise_of_topics
from cdc.model.hints import configure, grant
from cdc.model.ledger import UNKNOWN, TopicFacts
from sinks.client import broker_clock
from sinks.client.diagnosis import refuse_untrusted, unreachable
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.client.options import python_client
from sinks.client.patient_admin import PatientAdmin
from sinks.topics.making import ask_for, cannot_make

TOMBSTONES_KEPT_MS: Final = 7 * 24 * 3600 * 1000
"""A reader that is away for less than this sees every delete."""
LARGEST_RECORD: Final = 32 * 1024 * 1024

log = logging.getLogger("cdc")

_OFFSETS_MS: Final = 5_000
_FETCH, _OF_3_7 = 1, 16
"""A request, and its version by which a broker shows that it is of Kafka 3.7 or later."""
_CLOCKS_APART_MS: Final = 60_000
"""Clocks of machines may differ by so much, and a record may be so long on its way."""
BY_CLOCK: Final = {"message.timestamp.after.max.ms": "3600000", "message.timestamp.before.max.ms": f"{2**63 - 1}"}
"""Which records a topic takes by their clock, and what it is where nobody has set it."""
_ALL_BY_CLOCK: Final = {**BY_CLOCK, "message.timestamp.difference.max.ms": f"{2**63 - 1}"}
"""With what brokers before Kafka 3.6 have in their place, and those before 4.0 beside them."""
NEW_NAME: Final = "give the connector another name and another sink.topic_prefix (a fresh snapshot into new topics)"


def identity(of: uuid.UUID | str | None) -> str:
    """Write a topic's id; empty where the broker gives none."""
    return "" if of is None or not uuid.UUID(str(of)).int else str(of)


_OWN_HINT: Final = (
    "a topic of the connector's own has one partition, whatever sink.partitions says: who has made this one? Another "
    "name and sink.topic_prefix have topics of their own"
)


def _partitions_hint(partitions: int, spread: int | None, more: str) -> str:
    """Tell what to do about another number of partitions, which must not leave a key's records in two of them.

    `more` is the command that gives the topic those that it is to have; empty where it has more.
    """
    if spread == 0 and more:
        return f"{more}; or, where no other topic of the connector has records, set sink.partitions: {partitions}"
    if spread in (0, partitions):
        return f"set sink.partitions: {partitions}"
    return NEW_NAME if spread else f"if only sink.partitions was changed, set it to {partitions} again; else {NEW_NAME}"


@dataclass(frozen=True, slots=True)
class Wanted:
    """Describes a topic as it must be. `partitions` None: any number."""

    name: str
    partitions: int | None
    configs: Mapping[str, str] = field(default_factory=dict)
    of: str = ""
    """The topic of the tables that depend on this one; empty: all that a connector does."""

    def refused(self, message: str, *, hint: str) -> OperatorError:
        """Return the error of a topic that is not so."""
        return TopicError(message, hint=hint, topic=self.of) if self.of else OperatorError(message, hint=hint)

    @classmethod
    def events(cls, name: str, partitions: int) -> Wanted:
        """Describe a table's topic: compacted, tombstones kept for a week, room for wide rows."""
        return cls(
            name,
            partitions,
            {
                "cleanup.policy": "compact",
                "delete.retention.ms": str(TOMBSTONES_KEPT_MS),
                "max.message.bytes": str(LARGEST_RECORD),
            },
            of=name,
        )

    @classmethod
    def log(cls, name: str, partitions: int | None, kept: Mapping[str, str], *, of: str = "") -> Wanted:
        """Describe a topic in which no record replaces another: kept as `kept` says, else by the broker's settings."""
        settings = {"cleanup.policy": "delete", "max.message.bytes": str(LARGEST_RECORD), **kept}
        return cls(name, partitions, settings, of=of)

    @classmethod
    def internal(cls, name: str) -> Wanted:
        """Describe a topic of our own records: compacted, one partition, hence one order."""
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

    def adjusted(self, settings: Mapping[str, str | None]) -> Wanted:
        """Take `sink.topic_config` in place of our own settings, or beside them; None: leave it to the broker."""
        configs = {**self.configs, **settings}
        if "delete.retention.ms" not in self.configs:  # it matters only where readers follow deletes
            configs.pop("delete.retention.ms", None)
        return replace(self, configs={name: value for name, value in configs.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Existing:
    """Describes a topic as it is."""

    partitions: int
    replicas: int
    allowed: frozenset[str]
    """The operations this user may do on it."""
    settings: Mapping[str, str]
    identity: str = ""


@dataclass(frozen=True, slots=True)
class Broker:
    """Holds how many brokers there are, and the settings of one."""

    count: int
    settings: Mapping[str, str]


def _specs(wanted: Sequence[Wanted], replication_factor: int | None) -> dict[str, dict[str, Any]]:
    return {
        w.name: {
            "num_partitions": w.partitions or 1,
            "replication_factor": replication_factor or -1,
            "configs": dict(w.configs),
        }
        for w in wanted
    }


class Topics:
    """Holds one admin connection. Use as a context manager. Raises RetryableError while no broker answers."""

    def __init__(
        self,
        bootstrap_servers: str,
        options: Mapping[str, str],
        *,
        spread: Callable[[str, str], int | None] = lambda _topic, _identity: 0,
    ) -> None:
        """`spread` tells over how many partitions a topic's records were spread; 0: it has none; None: unknown.

        It is given the topic's name and id.
        """
        self._servers, self._options = bootstrap_servers, options
        self._spread = spread
        self.smallest_limit = LARGEST_RECORD
        """The smallest max.message.bytes of the topics that `check` has found."""
        client = python_client(bootstrap_servers, options)
        refuse_untrusted(bootstrap_servers, options)
        try:
            admin = KafkaAdminClient(**client, client_id="cdc", request_timeout_ms=15_000, bootstrap_timeout_ms=8_000)
        except DRIVER_ERRORS as exc:
            raise unreachable(bootstrap_servers) from exc
        self._admin = PatientAdmin(admin)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, at: TracebackType | None) -> None:
        self._admin.close()

    def exists(self, topic: str) -> bool:
        """Tell whether there is a topic of this name."""
        return topic in self.names()

    def names(self) -> set[str]:
        """Return all topics this user sees."""
        try:
            return set(self._admin.list_topics())
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "reading topics") from exc

    def check(self, wanted: Sequence[Wanted]) -> list[Wanted]:
        """Return the topics that are missing. Raises OperatorError for one that exists and is wrong.

        It is a TopicError if all that are wrong are of tables.
        """
        existing = self.existing([w.name for w in wanted])
        raise_of_topics(self._refusals(wanted, existing))
        return [w for w in wanted if w.name not in existing]

    def refusals(self, wanted: Sequence[Wanted]) -> list[OperatorError]:
        """Return all that is wrong with those of the topics that exist: `check` raises it."""
        return list(self._refusals(wanted, self.existing([w.name for w in wanted])))

    def _refusals(self, wanted: Sequence[Wanted], existing: Mapping[str, Existing]) -> Iterator[OperatorError]:
        yield from self._look_alikes(wanted)
        yield from self._hidden([w for w in wanted if w.name not in existing])
        for topic in wanted:
            if topic.name in existing:
                yield from self._compare(topic, existing[topic.name])

    def _hidden(self, wanted: Sequence[Wanted]) -> Iterator[OperatorError]:
        """Refuse topics that this user may not see: they would be taken for missing, and what they hold for lost."""
        asked = {topic.name: topic for topic in wanted}
        try:
            there = self._admin.describe_topics(sorted(asked)) if asked else []
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "reading topics") from exc
        for topic in there:
            if topic["error_code"] == TopicAuthorizationFailedError.errno:
                yield asked[topic["name"]].refused(
                    f"topic {topic['name']}: this user may not DESCRIBE it, and cannot see whether it is there",
                    hint=self._grant(topic["name"], "Describe", "DescribeConfigs", "Read", "Write"),
                )

    def _look_alikes(self, wanted: Sequence[Wanted]) -> Iterator[OperatorError]:
        """Refuse names that differ only by dot and underscore: Kafka's metrics mix them up, it makes no such topic."""
        seen = {name.replace(".", "_"): name for name in self.names()}
        for topic in wanted:
            other = seen.setdefault(topic.name.replace(".", "_"), topic.name)
            if other != topic.name:
                yield topic.refused(
                    f"topic {topic.name} cannot be made beside {other}: Kafka takes . and _ for the same in names",
                    hint="capture one of the two tables by a connector with another sink.topic_prefix",
                )

    def create(self, wanted: Sequence[Wanted], *, replication_factor: int | None) -> None:
        """Make topics and wait until they can be written."""
        specs = _specs(wanted, replication_factor)
        if not specs:
            return
        try:
            others = ask_for(self._admin, self._servers, specs)
        except DRIVER_ERRORS as exc:
            raise cannot_make(exc, self._servers) from exc
        if others:  # somebody has just made them
            self.check(wanted)

    def rehearse(self, wanted: Sequence[Wanted], *, replication_factor: int | None) -> list[CdcError]:
        """Return what the broker would say to `create`; nothing is made."""
        if not wanted:
            return []
        specs = _specs(wanted, replication_factor)
        try:
            ask_for(self._admin, self._servers, specs, validate_only=True)
        except DRIVER_ERRORS as exc:
            return [cannot_make(exc, self._servers)]
        return []

    def broker(self) -> Broker:
        """Describe the cluster as its brokers do."""
        try:
            brokers = self._admin.brokers()
            number = str(brokers[0])
            asked = [ConfigResource(ConfigResourceType.BROKER, number)]
            found = self._admin.describe_configs(asked, config_filter="all")["broker"][number]
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "reading the brokers' settings") from exc
        settings = {key: str(setting["value"]) for key, setting in found.items()}
        return Broker(len(brokers), settings)

    def existing(self, names: Sequence[str]) -> dict[str, Existing]:
        """Return those that exist, by name."""
        try:
            return self._existing(names)
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "reading topics") from exc

    def _existing(self, names: Sequence[str]) -> dict[str, Existing]:
        present = set(self._admin.list_topics()) & set(names)
        if not present:
            return {}
        topics = {t["name"]: t for t in self._admin.describe_topics(sorted(present))}
        described = self._admin.describe_configs(
            [ConfigResource(ConfigResourceType.TOPIC, name) for name in sorted(present)], config_filter="all"
        )
        return {
            name: Existing(
                len(topics[name]["partitions"]),
                min((len(p["replica_nodes"]) for p in topics[name]["partitions"]), default=0),
                frozenset(topics[name]["authorized_operations"] or ()),
                {key: str(found["value"]) for key, found in described["topic"][name].items()},
                identity(topics[name].get("topic_id")),
            )
            for name in present
        }

    def facts(self, names: Sequence[str]) -> dict[str, TopicFacts]:
        """Return what is to be relied on of those topics that exist, by name."""
        try:
            there = self._admin.describe_topics(sorted(names)) if names else []
        except KafkaError as exc:
            raise RetryableError(f"Kafka at {self._servers}: reading topics failed: {type(exc).__name__}") from exc
        partitions = {t["name"]: [p["partition_index"] for p in t["partitions"]] for t in there if not t["error_code"]}
        first, ends = (self._offsets(partitions, which) for which in (OffsetSpec.EARLIEST, OffsetSpec.LATEST))
        return {
            topic["name"]: TopicFacts(
                identity=identity(topic.get("topic_id")),
                partitions=len(partitions[topic["name"]]),
                forgotten=sum(first[topic["name"]]) if topic["name"] in first else UNKNOWN,
                ends=ends.get(topic["name"], ()),
            )
            for topic in there
            if topic["name"] in partitions
        }

    def _offsets(self, partitions: Mapping[str, Sequence[int]], which: OffsetSpec) -> dict[str, tuple[int, ...]]:
        """Return an offset of each partition, in their order; of no topic where a leader is being chosen."""
        asked = {TopicPartition(name, p): which for name, of in partitions.items() for p in of}
        try:
            found = self._admin.list_partition_offsets(asked, timeout_ms=_OFFSETS_MS) if asked else {}
        except KafkaError as exc:
            log.debug("offsets of topics are not known: %s", type(exc).__name__)
            return {}
        return {
            name: tuple(found[TopicPartition(name, p)].offset for p in sorted(of)) for name, of in partitions.items()
        }

    def ends(self, names: Sequence[str]) -> int:
        """Return the sum of the ends of all partitions of those topics that exist: how much was ever written there."""
        try:
            there = self._admin.describe_topics(sorted(names)) if names else []
            places = [
                TopicPartition(topic["name"], of["partition_index"])
                for topic in there
                if not topic["error_code"]
                for of in topic["partitions"]
            ]
            if not places:
                return 0
            offsets = self._admin.list_partition_offsets(dict.fromkeys(places, OffsetSpec.LATEST))
        except DRIVER_ERRORS as exc:
            raise translate(exc, self._servers, "reading the ends of topics") from exc
        return sum(offsets[place].offset for place in places)

    def committed_ago_s(self, topic: str, committed_at_ms: int) -> float:
        """Return how long ago a topic of one partition was committed to, by the brokers' clocks where they tell."""
        return broker_clock.committed_ago_s(self._admin, topic, committed_at_ms)

    def _compare(self, topic: Wanted, found: Existing) -> Iterator[OperatorError]:
        partitions, settings = found.partitions, found.settings
        if not settings and (not found.allowed or "DESCRIBE_CONFIGS" in found.allowed):
            raise RetryableError(
                f"Kafka at {self._servers}: topic {topic.name} has no settings for now",
                hint="it is just being made, or goes. If this stays so, it may be a right that no broker tells of: "
                f"{self._grant(topic.name, 'DescribeConfigs')}",
            )
        if not settings:
            yield topic.refused(
                f"topic {topic.name}: this user may not read its settings (DESCRIBE_CONFIGS): it may forget records",
                hint=self._grant(topic.name, "DescribeConfigs"),
            )
            return
        policy, wanted_policy = settings.get("cleanup.policy", ""), topic.configs["cleanup.policy"]
        if policy != wanted_policy:
            forgets = "rows that still exist" if wanted_policy == "compact" else "all but the last record of a key"
            yield topic.refused(
                f"topic {topic.name} has cleanup.policy={policy}: it would forget {forgets}",
                hint=configure(self._servers, topic.name, f"cleanup.policy={wanted_policy}"),
            )
        self.smallest_limit = min(self.smallest_limit, int(settings.get("max.message.bytes", self.smallest_limit)))
        kept = int(settings.get("delete.retention.ms", "0"))
        wanted_kept = int(topic.configs.get("delete.retention.ms", "0"))
        if kept < wanted_kept:
            yield topic.refused(
                f"topic {topic.name} has delete.retention.ms={kept}: readers away for longer would miss deletes",
                hint=configure(self._servers, topic.name, f"delete.retention.ms={wanted_kept}"),
            )
        yield from self._retention_refusals(topic, settings)
        yield from self._unwritable(topic, found)
        if topic.partitions is not None and partitions != topic.partitions:
            own = topic.partitions == 1 and not topic.of
            more = (
                f"kafka-topics.sh --bootstrap-server {self._servers} --alter --topic {topic.name} "
                f"--partitions {topic.partitions}"
            )
            yield topic.refused(
                f"topic {topic.name} has {partitions} partitions, {topic.partitions} are asked for: a key must stay in "
                "its partition",
                hint=_OWN_HINT
                if own
                else _partitions_hint(
                    partitions,
                    self._spread(topic.name, found.identity),
                    more if partitions < topic.partitions else "",
                ),
            )

    def _retention_refusals(self, topic: Wanted, settings: Mapping[str, str]) -> Iterator[OperatorError]:
        """Refuse a log that would be deleted earlier than it should be."""
        for setting in ("retention.ms", "retention.bytes"):
            wanted, found = topic.configs.get(setting), settings.get(setting)
            if wanted is None or found is None or int(found) < 0 or 0 <= int(wanted) <= int(found):
                continue
            yield topic.refused(
                f"topic {topic.name} has {setting}={found}: it would forget earlier than asked for ({wanted})",
                hint=configure(self._servers, topic.name, f"{setting}={wanted}"),
            )

    def _unwritable(self, topic: Wanted, found: Existing) -> Iterator[OperatorError]:
        """Refuse a topic that takes no record: transactions fail at it, of all tables and for ever."""
        in_sync = int(found.settings.get("min.insync.replicas", 1))
        if in_sync > found.replicas > 0 and not self._asks_for_no_more_than_there_are():
            yield topic.refused(
                f"topic {topic.name} has min.insync.replicas={in_sync}, and {found.replicas} replicas: nothing can be "
                "written to it",
                hint=configure(self._servers, topic.name, f"min.insync.replicas={max(1, found.replicas - 1)}"),
            )
        apart = {name: int(found.settings.get(name, _CLOCKS_APART_MS)) for name in _ALL_BY_CLOCK}
        for name, most_ms in apart.items() if found.settings.get("message.timestamp.type") != "LogAppendTime" else ():
            if most_ms < _CLOCKS_APART_MS:
                yield topic.refused(
                    f"topic {topic.name} has {name}={most_ms}: it takes no record, and no end of a transaction, by a "
                    "clock that differs so much from its broker's, and a transaction that cannot end stops all tables",
                    hint=configure(self._servers, topic.name, f"{name}={_ALL_BY_CLOCK[name]}"),
                )
        if found.allowed and "WRITE" not in found.allowed:  # brokers without authorization say nothing, or all
            yield topic.refused(
                f"topic {topic.name}: this user may not WRITE to it", hint=self._grant(topic.name, "Write")
            )

    def _asks_for_no_more_than_there_are(self) -> bool:
        """Whether brokers take records that all replicas have, also where those are fewer than `min.insync.replicas`.

        As from Kafka 3.7 (KAFKA-15583): a topic of one replica is usual where a cluster's default is two.
        """
        return bool(self._admin.api_versions()[_FETCH][1] >= _OF_3_7)

    def _grant(self, topic: str, *operations: str) -> str:
        return grant(self._servers, self._options, operations, topic)
