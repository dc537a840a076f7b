"""`sink` of a connector's file: the cluster, the topics, and what records are like."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from cdc.config.published.record_format import RecordFormat, RegistryConfig, check_format
from cdc.config.published.route import RouteConfig, check_routes
from cdc.config.requirement import require
from cdc.config.table_patterns import matches
from cdc.model.errors import ConfigError

_BROKER = re.compile(
    r"(?:(?:SASL_)?(?:PLAINTEXT|SSL)://)?(?:\[[0-9A-Fa-f:.%]+\]|[^\s:/;\[\]]+)(?::(\d{1,5}))?", re.IGNORECASE
)
_PREFIX = re.compile(r"[A-Za-z0-9_-]{1,100}")
_RETENTION = re.compile(r"([1-9]\d{0,8})([mhd])")
_UNITS_MS = {"m": 60_000, "h": 3_600_000, "d": 86_400_000}

BEFORES = ("log", "topic")
"""Where the old row of an event may come from."""
PRODUCERS = ("own", "librdkafka")
"""Clients that a connector can write with, the default first."""

GUARANTEED = frozenset(
    {
        "acks",
        "enable.auto.commit",
        "enable.idempotence",
        "enable.partition.eof",
        "isolation.level",
        "max.in.flight.requests.per.connection",
        "partitioner",
        "log.connection.close",
        "log_level",
        "transactional.id",
    }
)
"""Client properties that carry a guarantee: not to be set by a user."""


TOPIC_KEPT = {
    "cleanup.policy": "leave it out: tables are compacted, logs are not",
    "retention.ms": "sink.log.retention is how long logs of tables are kept",
    "retention.bytes": "sink.log.retention is how long logs of tables are kept",
}
"""Properties of topics that carry a guarantee: not to be set by a user."""

TOPIC_LEAST = {
    "max.message.bytes": 1_000_000,
    "segment.bytes": 1_048_576,
    "delete.retention.ms": 7 * 24 * 3600 * 1000,
}
"""The least that correctness needs: a position and a row fit, and a reader that was away for a week sees deletes."""


def brokers_of(bootstrap_servers: str) -> list[str]:
    """Return the addresses of brokers, each as ``host:port``: not all clients take a protocol before it, or no address.

    As Kafka's own properties have them: ``PLAINTEXT://host:9092``, and commas behind the last.
    """
    found = filter(None, map(str.strip, bootstrap_servers.split(",")))
    return [server.rpartition("://")[2] for server in found]


def check_clients(bootstrap_servers: str, topic_prefix: str, options: Mapping[str, str]) -> None:
    """Refuse what every client of a cluster is told, where it cannot be meant."""
    require(bootstrap_servers.strip(" ,"), "bootstrap_servers is empty", "bootstrap_servers: 127.0.0.1:9092")
    for number, server in enumerate(filter(None, map(str.strip, bootstrap_servers.split(","))), 1):
        found = _BROKER.fullmatch(server)
        require(
            found and 0 < int(found[1] or 1) <= MOST_PORT,
            f"bootstrap_servers: address {number} is not host:port",  # not repeated: a reference may hold a password
            "host1:9092,host2:9092; IPv6 in brackets: [::1]:9092; who logs in is said in options",
        )
        protocol, told = server.rpartition("://")[0].upper(), options.get("security.protocol", "PLAINTEXT").upper()
        require(
            protocol in ("", told),
            f"bootstrap_servers: address {number} has protocol {protocol}, and security.protocol is another",
            f"options: {{security.protocol: {protocol}}}, if that is what the listener speaks",
        )
    require(
        _PREFIX.fullmatch(topic_prefix),
        f"topic_prefix “{topic_prefix}” is not a prefix for topics",
        "letters, digits, _ and -; no dot, so that no two tables can share a topic",
    )
    refused = sorted(GUARANTEED & set(options))
    require(not refused, f"options: {', '.join(refused)} cannot be set: delivery depends on it", "leave it out")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The tables whose events are also kept in a log, where no event replaces another: histories are made from it."""

    tables: tuple[str, ...]
    """Names and patterns, as `source.tables` has them."""
    retention: str
    """``30d``, ``12h``, ``90m`` or ``forever``."""

    def __post_init__(self) -> None:
        require(self.tables, "tables is empty", "tables: [public.orders]")
        for pattern in self.tables:
            schema, _, table = pattern.partition(".")
            require(schema and table, f"tables: “{pattern}” is not schema.table", "public.orders, or public.*")
        require(
            self.retention == "forever" or _RETENTION.fullmatch(self.retention),
            f"retention: “{self.retention}” is no time",
            "30d, 12h, 90m, or forever",
        )

    @property
    def retention_ms(self) -> int:
        """The retention as Kafka has it: -1 is for ever."""
        found = _RETENTION.fullmatch(self.retention)
        return int(found[1]) * _UNITS_MS[found[2]] if found else -1

    def has(self, table: str) -> bool:
        """Whether ``schema.table`` has a log."""
        return any(matches(pattern, table) for pattern in self.tables)


MOST_PORT: Final = 65_535
MOST_PARTITIONS: Final = 100_000
"""Of one topic: more than any cluster has, and less than its requests can say."""
MOST_REPLICAS: Final = 1_000
LEAST_TRANSACTION_S: Final = 10
MOST_TRANSACTION_S: Final = 86_400
LEAST_IDLE_S: Final = 0.5
MOST_IDLE_S: Final = 60.0
"""A copy that was fenced off notices at its next commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaConfig:
    """The Kafka cluster and topics that events go to."""

    type: str = "kafka"
    bootstrap_servers: str
    topic_prefix: str | None = None
    producer: str = "own"
    """Which client writes: our own, or librdkafka, which is slower and gives the same guarantees."""
    partitions: int = 6
    replication_factor: int | None = None
    """None: the broker's default.replication.factor."""
    transaction_timeout_s: float = 600.0
    """After how long the brokers end a transaction that is still open. A source transaction is written in one."""
    idle_position_s: float = 10.0
    """How often the position is committed where nothing happens; views' clocks move with it."""
    transaction_metadata: bool = False
    """Whether the beginning and end of each source transaction are written to a topic of their own."""
    log: LogConfig | None = None
    """The tables that have a log."""
    route: tuple[RouteConfig, ...] = ()
    """The tables whose events go to a topic of another name, which they may share."""
    format: str = "envelope"
    """A shape (``envelope``, ``flat``: the row alone), an encoding (``json``, ``connect-json``, ``avro``,
    ``protobuf``, ``json-schema``), or both."""
    formats: Mapping[str, str] = field(default_factory=dict)
    """The format by table or pattern, where it is another; the first that fits is taken."""
    flat_metadata: tuple[str, ...] = ()
    """What a flat value has besides the row."""
    registry: RegistryConfig | None = None
    before: str = "log"
    """Where the old row of an update or a delete comes from, if the log does not have the whole of it."""
    headers: tuple[str, ...] = ()
    """What records tell in headers."""
    topic_config: Mapping[str, str | None] = field(default_factory=dict)
    """Topic properties by Kafka's names, in place of ours or beside them; None: what the broker has."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties by librdkafka's names (security.protocol, sasl.username, …)."""

    def __post_init__(self) -> None:
        require(self.type == "kafka", f"type: “{self.type}” is not a sink", "type: kafka")
        require(self.producer in PRODUCERS, f"producer: “{self.producer}” is not known", " or ".join(PRODUCERS))
        require(
            0 < self.partitions <= MOST_PARTITIONS,
            f"partitions: {self.partitions} is out of range",
            f"1 or more, at most {MOST_PARTITIONS}",
        )
        require(
            self.replication_factor is None or 0 < self.replication_factor <= MOST_REPLICAS,
            f"replication_factor: must be 1 or more, and at most {MOST_REPLICAS}",
            "leave it out for the broker's default",
        )
        require(
            LEAST_TRANSACTION_S <= self.transaction_timeout_s <= MOST_TRANSACTION_S,
            f"transaction_timeout_s: {self.transaction_timeout_s:g} is out of range",
            f"{LEAST_TRANSACTION_S} to {MOST_TRANSACTION_S}, and no more than the brokers' transaction.max.timeout.ms",
        )
        require(self.before in BEFORES, f"before: “{self.before}” is not known", f"one of {', '.join(BEFORES)}")
        shapes = [RecordFormat.parsed(text) for text in (self.format, *self.formats.values())]
        require(
            self.before == "log" or any(of is None or of.shape != "flat" for of in shapes),
            "before means nothing: every table is flat, and a row has no before",
            "format: envelope, or take before out",
        )
        check_format(
            self.format, self.formats, metadata=self.flat_metadata, headers=self.headers, registry=self.registry
        )
        check_routes(self.route)
        require(
            LEAST_IDLE_S <= self.idle_position_s <= MOST_IDLE_S,
            f"idle_position_s: {self.idle_position_s:g} is out of range",
            f"{LEAST_IDLE_S:g} to {MOST_IDLE_S:g}",
        )
        check_clients(self.bootstrap_servers, self.topic_prefix or "x", self.options)
        for name, value in self.topic_config.items():
            require(
                name not in TOPIC_KEPT,
                f"topic_config: {name} cannot be set: no event may be lost",
                TOPIC_KEPT.get(name),
            )
            least = TOPIC_LEAST.get(name)
            require(
                least is None
                or (value is None and name != "delete.retention.ms")
                or (value is not None and value.isdecimal() and int(value) >= least),
                f"topic_config: {name}: {value} is out of range",
                f"a whole number, {least} or more",
            )
        require(
            self.topic_config.get("unclean.leader.election.enable") != "true",
            "topic_config: unclean.leader.election.enable: true loses what was acknowledged",
            "leave it out",
        )

    @property
    def prefix(self) -> str:
        """`topic_prefix`, which `load_connector` fills in with the connector's name."""
        if self.topic_prefix is None:
            raise ConfigError("topic_prefix is not known", hint="load the file with load_connector")
        return self.topic_prefix
