"""A member's file, fleet.yaml: which fleet, and how its brokers are reached."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from cdc.config.kafka_config import KafkaConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.config.yaml.yaml_binding import load
from cdc.model.errors import ConfigError

_NAME: Final = re.compile(r"[a-z][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetConfig:
    """The fleet's name, and the Kafka cluster that its topic and group are on."""

    fleet: str
    bootstrap_servers: str
    replication_factor: int | None = None
    """Of the fleet's topic, when it is made; None: the broker's default."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Client properties by librdkafka's names, as in `sink.options` of a connector."""
    metrics: MetricsConfig = field(default_factory=MetricsConfig)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.fleet):
            raise ConfigError(
                f"fleet: “{self.fleet}” is not a fleet's name",
                hint="a lower-case letter, then lower-case letters, digits, _ and -, at most 40 in all",
            )
        self.kafka()

    def kafka(self) -> KafkaConfig:
        """Return the same as the parts that speak to Kafka take it."""
        return KafkaConfig(
            bootstrap_servers=self.bootstrap_servers,
            topic_prefix=f"cdc-fleet-{self.fleet}",
            replication_factor=self.replication_factor,
            options=self.options,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFile:
    """What the file may say; the first two can be given as options, too."""

    fleet: str | None = None
    bootstrap_servers: str | None = None
    replication_factor: int | None = None
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    metrics: MetricsConfig = field(default_factory=MetricsConfig)
    """Where a member shows its own metrics and those of its connectors; it cannot be given as an option."""


def load_fleet(path: Path | None, *, fleet: str | None, bootstrap_servers: str | None) -> FleetConfig:
    """Read a member's file, if there is one; what is given beside it counts more. Raises ConfigError."""
    found = FleetFile() if path is None else load(path, FleetFile, aliases={"bootstrap.servers": "bootstrap_servers"})
    name, servers = fleet or found.fleet, bootstrap_servers or found.bootstrap_servers
    if name is None:
        raise ConfigError("which fleet is not known", hint="--fleet NAME, or CDC_FLEET, or fleet: NAME in fleet.yaml")
    if servers is None:
        raise ConfigError(
            "which brokers the fleet is on is not known",
            hint="--bootstrap-servers HOST:PORT, or CDC_BOOTSTRAP_SERVERS, or bootstrap_servers in fleet.yaml",
        )
    try:
        return FleetConfig(
            fleet=name,
            bootstrap_servers=servers,
            replication_factor=found.replication_factor,
            options=found.options,
            metrics=found.metrics,
        )
    except ConfigError as exc:
        raise ConfigError(exc.message if path is None else f"{path}: {exc.message}", hint=exc.hint) from exc
