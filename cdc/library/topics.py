"""The changes in a connector's topics: one by one, or as Arrow's record batches.

Committed records alone are read, the events of each key in order. Rows are typed by the schema topic.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.encode.topic_contents import foreign
from cdc.library.changes import Change, change_of
from cdc.library.described import Described
from cdc.library.formats import Readable
from cdc.library.packages import require
from cdc.library.values import RowReader
from cdc.model.errors import ConfigError
from cdc.rules.flat import HEADER, as_event

if TYPE_CHECKING:
    import pyarrow as pa


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
        # no record is older, and numbers below 0 mean the ends of a topic
        self._since_ms = None if since is None else max(0, int(since.timestamp() * 1000))
        self._to_end = until_caught_up
        self._described = Described(config, tables)

    def _read(self) -> Generator[list[Any], None, None]:
        read: Callable[..., Generator[list[Any], None, None]] = registry.part("sinks.topics.records.bulk:read_many")
        found = read(self._config.sink, self._described.look, since_ms=self._since_ms, to_end=self._to_end)
        return Readable(self._config, self._described).changes(found)

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

    def arrow(
        self, rows: int = 50_000, *, text: Mapping[str, Collection[str]] | None = None
    ) -> Iterator[pa.RecordBatch]:
        """Give the changes as record batches of at most `rows`, each of one table and one version of it.

        A batch has ``__op, __position, __ts_ms`` and the table's columns, of a delete the key's alone; its schema's
        metadata name ``table`` and ``version``. `text` has, by table, columns that are given as the text of their JSON.
        Raises OperatorError for a value that its Arrow type cannot hold, and ConfigError if pyarrow is missing.
        """
        if rows < 1:
            raise ConfigError(f"arrow: rows: {rows} is out of range", hint="1 or more")
        require("pyarrow")
        if text is not None and not isinstance(text, Mapping):
            raise ConfigError("arrow: text names columns by their tables", hint='text={"public.orders": ["total"]}')
        wanted = {table: [of] if isinstance(of, str) else of for table, of in (text or {}).items()}
        self._described.must_have(wanted)
        from cdc.library import arrow_batches  # noqa: PLC0415 - it needs pyarrow

        return arrow_batches.batches(self._read(), self._described, rows, wanted)


def _change(message: Any, reader: Callable[[str, int], RowReader], described: Described) -> Change | None:  # noqa: ANN401 - a client's record
    """Read a record; None for a tombstone behind its delete, and for what no connector has written."""
    topic, value, headers = message.topic(), message.value(), message.headers()
    flat = headers is not None and any(name == HEADER for name, _ in headers)
    if value is None and not flat:
        return None
    if flat:
        value = as_event(value, headers)
    event = foreign.event_of(value)
    if event is None:
        newest = described.newest(topic)
        foreign.tell(topic, f"{newest['schema']}.{newest['table']}")
        return None
    record = described.record(topic, event["source"]["schema_version"])
    return change_of(f"{record['schema']}.{record['table']}", message.key(), event, lambda _, v: reader(topic, v))
