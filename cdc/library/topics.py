"""The changes in a connector's topics: one by one, or as Arrow's record batches.

Committed records alone are read, the events of each key in order. Rows are typed by the schema topic.
"""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Final

import orjson

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.library.changes import Change, change_of
from cdc.library.values import RowReader
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.flat import HEADER, as_event

if TYPE_CHECKING:
    import pyarrow as pa

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


class Topics:
    """The changes in a connector's topics. Iterating gives them one by one, `arrow` in batches."""

    def __init__(
        self,
        config: ConnectorConfig,
        tables: Collection[str] | None,
        *,
        since: dt.datetime | None,
        until_caught_up: bool,
    ) -> None:
        self._config = config
        self._since_ms = None if since is None else round(since.timestamp() * 1000)
        self._to_end = until_caught_up
        self._described = Described(config, tables)

    def _read(self) -> Generator[list[Any], None, None]:
        read: Callable[..., Generator[list[Any], None, None]] = registry.part("sinks.topics.bulk:read_many")
        return read(self._config.sink, self._described.look, since_ms=self._since_ms, to_end=self._to_end)

    def __iter__(self) -> Iterator[Change]:
        readers: dict[tuple[str, int], RowReader] = {}

        def reader(topic: str, version: int) -> RowReader:
            found = readers.get((topic, version))
            if found is None:
                columns = self._described.record(topic, version)["columns"]
                found = readers[topic, version] = RowReader(columns)
            return found

        with closing(self._read()) as batches:
            for messages in batches:
                for message in messages:
                    change = _change(message, reader, self._described)
                    if change is not None:
                        yield change

    def arrow(self, rows: int = 50_000, *, text: Mapping[str, Collection[str]] | None = None) -> Iterator[pa.RecordBatch]:
        """Give the changes as record batches of at most `rows`, each of one table and one version of it.

        A batch has ``__op, __position, __ts_ms`` and the table's columns, of a delete the key's alone; its schema's
        metadata name ``table`` and ``version``. `text` has, by table, columns that are given as the text of their JSON.
        Raises OperatorError for a value that its Arrow type cannot hold, and ConfigError if pyarrow is missing.
        """
        if rows < 1:
            raise ConfigError(f"arrow: rows: {rows} is out of range", hint="1 or more")
        from cdc.library import arrow_batches  # noqa: PLC0415 - it needs pyarrow

        return arrow_batches.batches(self._read(), self._described, rows, text or {})


def _change(message: Any, reader: Callable[[str, int], RowReader], described: Described) -> Change | None:  # noqa: ANN401 - a client's record
    """Read a record; None for a tombstone behind its delete."""
    topic, value, headers = message.topic(), message.value(), message.headers()
    flat = headers is not None and any(name == HEADER for name, _ in headers)
    if value is None and not flat:
        return None
    if flat:
        value = as_event(value, headers)
    event = orjson.loads(value)
    record = described.record(topic, event["source"]["schema_version"])
    return change_of(f"{record['schema']}.{record['table']}", message.key(), event, lambda _, v: reader(topic, v))

