"""The tables of a connector as the schema topic describes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError

_LOOK_S: Final = 1.0
"""A description is in the same Kafka transaction as the first event that names it, before it: it is there."""


class Described:
    """The tables that a connector has described in the schema topic."""

    def __init__(self, config: ConnectorConfig, tables: Collection[str] | None) -> None:
        """`tables` are those that are wanted; None: all. Raises OperatorError for one that has no topic yet."""
        self._config, self._wanted = config, tables
        self._versions: dict[str, dict[int, Mapping[str, Any]]] = {}
        """Records of the schema topic, by topic and version."""
        self._looked_s = 0.0
        self.look()
        missing = set(tables or ()) - {table_of(of) for of in self._versions.values()}
        if missing:
            raise OperatorError(
                f"connector {config.name} has not described {', '.join(sorted(missing))}",
                hint="are they among source.tables, and has it run? cdc run CONNECTOR.yaml; cdc status CONNECTOR.yaml",
            )

    def look(self) -> Sequence[str]:
        """Read the schema topic again; return the topics of the tables."""
        self._looked_s = time.monotonic()
        for value in registry.part("sinks.topics.bulk:descriptions")(self._config.sink):
            record = orjson.loads(value)
            name = f"{record['schema']}.{record['table']}"
            if self._config.source.captures(name) and (self._wanted is None or name in self._wanted):
                self._versions.setdefault(record["topic"], {})[record["version"]] = record
        return list(self._versions)

    def record(self, topic: str, version: int) -> Mapping[str, Any]:
        """Return a description. Raises OperatorError for a version that is not described."""
        if version not in self._versions[topic] and time.monotonic() - self._looked_s > _LOOK_S:
            self.look()
        try:
            return self._versions[topic][version]
        except KeyError:
            raise OperatorError(
                f"topic {topic}: version {version} of its table is not in the schema topic",
                hint="a connector that starts publishes again what the schema topic has lost: cdc run CONNECTOR.yaml",
            ) from None

    def had_formats(self) -> bool:
        """Whether records of any table may be other than plain JSON."""
        versions = (record for of in self._versions.values() for record in of.values())
        return any(" " in str(record.get("format", "")) for record in versions)

    def was_flat(self, topic: str) -> bool:
        """Whether a version of the topic's table was flat."""
        return any("format" in record for record in self._versions[topic].values())

    def newest(self, topic: str) -> Mapping[str, Any]:
        """Return the newest description."""
        versions = self._versions[topic]
        return versions[max(versions)]


def table_of(versions: Mapping[int, Mapping[str, Any]]) -> str:
    """Name the table of these descriptions."""
    record = next(iter(versions.values()))
    return f"{record['schema']}.{record['table']}"
