"""`cdc.table`: the rows of one table as its topic has them now."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from contextlib import closing
from typing import TYPE_CHECKING, Any

from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.formats.reading import MAGIC
from cdc.library.decrypt import Decrypt
from cdc.library.described import Described
from cdc.library.formats import Readable, raw_key
from cdc.library.packages import require
from cdc.model.errors import OperatorError
from cdc.rules.flat import HEADER, as_event

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

_DELETE = b'"op":"d"'


class Table:
    """The newest row of each key that a read_committed reader saw in a table's topic at the call of `cdc.table`."""

    def __init__(self, config: ConnectorConfig, name: str, text: Collection[str], *, decrypt: bool = False) -> None:
        """Read the topic to its end. Raises OperatorError if there is none, or Kafka does not answer."""
        self.name = name
        self._text = text
        self._decrypt = Decrypt(config) if decrypt else None
        self._described = Described(config, [name])
        topics = self._described.look()
        (self._place,) = self._described.places()
        self._newest: dict[bytes, tuple[bytes, bytes | None, Any]] = {}
        read: Callable[..., Generator[list[Any], None, None]] = registry.part("sinks.topics.records.bulk:read_many")
        with closing(read(config.sink, lambda: topics, to_end=True)) as batches:
            for messages in Readable(config, self._described).all(batches):
                self._newest.update(
                    {raw_key(message): (message.key(), message.value(), message.headers()) for message in messages}
                )  # a key has one partition, whose records come in order

    def to_arrow(self) -> pa.Table:
        """Return the rows as a table of Arrow, typed by the newest version of the table. Needs pyarrow.

        Raises OperatorError for a value that its Arrow type cannot hold: `text` of `cdc.table` keeps such columns.
        """
        require("pyarrow")
        from cdc.library.arrow_batches import TopicEvents  # noqa: PLC0415 - it needs pyarrow

        return TopicEvents(self._described, self._place, self._text).table(*self._live())

    def to_pandas(self) -> pd.DataFrame:
        """Return the rows as a DataFrame of pandas, whose columns have Arrow's types. Needs pandas."""
        require("pandas")
        import pandas as pd  # noqa: PLC0415 - only who asks for it needs it

        return self.to_arrow().to_pandas(types_mapper=pd.ArrowDtype)

    def to_polars(self) -> pl.DataFrame:
        """Return the rows as a DataFrame of polars. Needs polars."""
        require("polars")
        import polars as pl  # noqa: PLC0415 - only who asks for it needs it

        found = pl.from_arrow(self.to_arrow())
        assert isinstance(found, pl.DataFrame)  # noqa: S101 - a table becomes no series
        return found

    def __repr__(self) -> str:
        return f"<cdc.Table {self.name}>"

    def _live(self) -> tuple[list[bytes], list[bytes]]:
        """Return keys and events of the rows that are there."""
        keys, events = [], []
        for key, value, headers in self._newest.values():
            if value is None:
                continue
            if MAGIC in (key[:1], value[:1]):
                raise OperatorError(
                    f"topic {self._place} has a row whose schema is not at the registry",
                    hint="sink.registry in connector.yaml, as it was when the row was written; where the registry was "
                    "made again, the connector fills it and reads the table again when it starts",
                )
            told = next((of for name, of in headers or () if name == HEADER), None)
            event = value if told is None else as_event(value, headers)
            if event is not None and not (told is None and _is_delete(event)):
                keys.append(key)
                events.append(event if self._decrypt is None else self._decrypt.event(self.name, event))
        return keys, events


def _is_delete(event: bytes) -> bool:
    """Whether an event's last members say that it is a delete, whose tombstone is still to come."""
    return event[max(event.rfind(b'"op":'), 0) :].startswith(_DELETE)
