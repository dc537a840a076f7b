"""The tables of a connector as the schema topic describes them."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.model.errors import OperatorError
from cdc.model.suggestion import not_described

_LOOK_S: Final = 1.0
"""A description is in the same Kafka transaction as the first event that names it, before it: it is there."""


class Described:
    """The tables that a connector has described in the schema topic."""

    def __init__(self, config: ConnectorConfig, tables: Collection[str] | None) -> None:
        """`tables` are those that are wanted; None: all. Raises OperatorError for one that has no topic yet."""
        self._config, self._wanted = config, tables
        self._versions: dict[str, dict[int, Mapping[str, Any]]] = {}
        """Records of the schema topic, by place and version.

        The place of a table is its topic; in a topic that tables share, the topic and the table's name.
        """
        self._known: set[str] = set()
        """The tables that are described, wanted or not."""
        self._topics: dict[str, str] = {}
        """The topics, by place."""
        self._shared: dict[str, str] = {}
        """Topics that tables share; the place of one of them."""
        self._looked_s = 0.0
        self.look()
        self.must_have(tables or ())

    def look(self) -> Sequence[str]:
        """Read the schema topic again; return the topics of the tables."""
        self._looked_s = time.monotonic()
        found: dict[str, dict[int, Mapping[str, Any]]] = {}
        for value in registry.part("sinks.topics.records.bulk:descriptions")(self._config.sink):
            record = orjson.loads(value)
            name = f"{record['schema']}.{record['table']}"
            captured = self._config.source.captures(name)
            if captured:
                self._known.add(name)
            if captured and (self._wanted is None or name in self._wanted):
                found.setdefault(name, {})[record["version"]] = record
        for name, versions in found.items():
            newest = versions[max(versions)]
            place = topic = newest["topic"]
            if "key_table" in newest:
                place = _shared_place(topic, name)
                self._shared.setdefault(topic, place)
            self._topics[place] = topic
            self._versions[place] = {**self._versions.get(place, {}), **versions}
        return list(dict.fromkeys(self._topics.values()))

    def must_have(self, tables: Collection[str]) -> None:
        """Raise OperatorError for a table that has no topic yet, or that is not wanted."""
        missing = set(tables) - {table_of(of) for of in self._versions.values()}
        if missing:
            raise not_described(self._config.name, missing, self._known)

    @property
    def shares(self) -> bool:
        """Whether any topic has more than one table's rows."""
        return bool(self._shared)

    def places(self) -> Sequence[str]:
        """Return where the tables' records are found: `record` and the others take one of these."""
        return list(self._versions)

    def place(self, topic: str, table: str | None) -> str | None:
        """Return the place of a record, whose key may name its table; None: of a table that is not wanted."""
        if topic not in self._shared:
            return topic
        if table is None:  # no connector has written it
            return self._shared[topic]
        place = _shared_place(topic, table)
        return place if place in self._versions else None

    def record(self, place: str, version: int) -> Mapping[str, Any]:
        """Return a description. Raises OperatorError for a version that is not described."""
        if version not in self._versions[place] and time.monotonic() - self._looked_s > _LOOK_S:
            self.look()
        try:
            return self._versions[place][version]
        except KeyError:
            raise OperatorError(
                f"topic {place}: version {version} of its table is not in the schema topic",
                hint="a connector that starts publishes again what the schema topic has lost: cdc run CONNECTOR.yaml",
            ) from None

    def had_formats(self) -> bool:
        """Whether records of any table may be other than plain JSON."""
        versions = (record for of in self._versions.values() for record in of.values())
        return any(" " in str(record.get("format", "")) for record in versions)

    def was_flat(self, place: str) -> bool:
        """Whether a version of the place's table was flat."""
        return any("format" in record for record in self._versions[place].values())

    def columns(self, place: str) -> set[str]:
        """Return the columns that the place's table has, or had in a version of before."""
        return {column["name"] for record in self._versions[place].values() for column in record["columns"]}

    def newest(self, place: str) -> Mapping[str, Any]:
        """Return the newest description."""
        versions = self._versions[place]
        return versions[max(versions)]


def _shared_place(topic: str, table: str) -> str:
    return f"{topic} ({table})"


def table_of(versions: Mapping[int, Mapping[str, Any]]) -> str:
    """Name the table of these descriptions."""
    record = next(iter(versions.values()))
    return f"{record['schema']}.{record['table']}"
