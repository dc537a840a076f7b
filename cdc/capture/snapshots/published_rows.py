"""Reads a source's rows as its connector would publish them, for the comparison with derived stores.

Rows are read as by an incremental snapshot, in windows that are each a consistent view at a known position. Nothing is
held for longer than a window, and nothing is written to Kafka.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple, Protocol, Self

from cdc.capture.snapshots.incremental_snapshot import FIRST_ROWS, KEYS_AT_ONCE, WINDOW_ROWS, next_window_rows
from cdc.config import registry
from cdc.config.config import ConnectorConfig
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.model.change import Row, Table
from cdc.model.errors import RetryableError, raise_first
from cdc.model.interfaces import Choosing, Snapshotter, Window
from cdc.model.state import Key
from cdc.rules.capture_rules import NO_RULES, CaptureRules
from cdc.rules.keyring import Keyring, Records


class PublishedRow(NamedTuple):
    """A row as an event would have it."""

    key: Key
    """As the server prints it."""
    event_key: bytes
    """JSON"""
    after: bytes | None
    """JSON; None: its values cannot be written as JSON."""
    unwritable: tuple[str, ...] = ()
    """Columns whose values cannot be."""


@dataclass(frozen=True, slots=True)
class PublishedWindow:
    """A window of published rows: rows of one table under one view."""

    table: Table
    """The table as it was when they were read, with its published columns."""
    rows: Sequence[PublishedRow]
    end: int
    """A commit position: everything that the view had seen lies before it."""
    unwritable: int = 0
    """How many rows were left out because not even their keys can be written."""


class PublishedTables:
    """Reads the captured tables of one connector; a context manager."""

    def __init__(
        self, tables: Sequence[Table], reader: Snapshotter, *, prefix: str, rules: CaptureRules = NO_RULES
    ) -> None:
        """`reader` is closed with this. Raises OperatorError for rules that cannot be applied."""
        self._sources: Final = {table.qualified: table for table in tables}
        self._reader, self._keys = reader, rules.keys
        of = {name: rules.of(name) for name in self._sources}
        self._encoders = {
            name: TableEncoder(
                table, connector="", prefix=prefix, database="", version=0, topic="",
                published=None if (found := of[name]) is None else found.published(table),
            )
            for name, table in self._sources.items()
        }  # fmt: skip
        self.tables: Final = {name: encoder.table for name, encoder in self._encoders.items()}
        """With the columns that are published, and the kinds that they are published as."""

    def read(self, name: str) -> Iterator[PublishedWindow]:
        """Read all rows of a table in the order of its key, each key under exactly one of the views.

        Raises RetryableError when the table is altered or dropped meanwhile.
        """
        table, after, rows = self._sources[name], None, FIRST_ROWS
        key = table.key_order
        while True:
            window = self._reader.window(table, after, rows, key=key, first=False)
            yield self._part(table, window)
            if window is None or window.after is None:
                return
            after, key = window.after, window.table.key_order
            rows = next_window_rows(window, WINDOW_ROWS) or rows

    def find(self, name: str, keys: Sequence[Key]) -> Iterator[PublishedWindow]:
        """Read the rows with these keys; a key without a row is left out.

        The views have seen every transaction that had begun before the call, and values are encrypted under the keys
        that their subjects have by then: a key that was made here because there was none has given way to the topic's.
        """
        if self._keys is not None:
            self._keys.refresh()
        table, first = self._sources[name], True
        for at in range(0, len(keys), KEYS_AT_ONCE):
            asked = frozenset(self.event_key(name, key) for key in keys[at : at + KEYS_AT_ONCE])
            part = self._part(table, self._reader.rows(table, keys[at : at + KEYS_AT_ONCE], first=first))
            yield PublishedWindow(
                part.table, [row for row in part.rows if row.event_key in asked], part.end, part.unwritable
            )
            first = False

    def event_key(self, name: str, key: Key) -> bytes:
        """Encode a key. Raises ValueError for a text that no row of the table can have."""
        return self._encoders[name].key_of(key)

    def close(self) -> None:
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _part(self, table: Table, window: Window | None) -> PublishedWindow:
        if window is None:
            raise RetryableError(f"table {table.qualified} was dropped, or has another key now", hint="start again")
        if window.table.columns != table.columns or window.table.key != table.key:
            raise RetryableError(f"table {table.qualified} was altered meanwhile", hint="start again")
        encoder = self._encoders[table.qualified]
        shown = encoder.shown(window.rows)
        rows = [row for row in (_published(encoder, row) for row in shown) if row is not None]
        return PublishedWindow(encoder.table, rows, window.end, len(shown) - len(rows))


def _published(encoder: TableEncoder, row: Row) -> PublishedRow | None:
    key = tuple(value for index in encoder.key_indexes if isinstance(value := row[index], bytes))
    try:
        event_key = encoder.key(row)
    except ValueError:
        return None
    try:
        return PublishedRow(key, event_key, encoder.row(row))
    except ValueError:
        return PublishedRow(key, event_key, None, encoder.blame(row))


class KeyTopic(Protocol):
    """Is read while its connector writes it: `sinks.topics.records.keys.KeyReader`."""

    def begins_again(self) -> bool | None:
        """Whether all that is known is to be forgotten; None: there is no topic."""

    def more(self) -> Records:
        """Give the records since the last call."""


def keys_since(keys: Keyring, topic: KeyTopic) -> Records:
    """Give the records of the key topic since the last call; all of them, if those of before are none any more."""
    again = topic.begins_again()
    if again or again is None:
        keys.forget()
    return topic.more() if again is not None else ()


def open_published(config: ConnectorConfig) -> PublishedTables:
    """Connect to a connector's source. Raises OperatorError where its run would."""
    source = registry.source(config)()
    try:
        source.connect()
        tables, beside = source.tables(), source.left_out() if isinstance(source, Choosing) else {}
    finally:
        source.close()
    rules = CaptureRules.of_source(config.source)
    raise_first(rules.refusals(tables, first=False, beside=beside))
    if rules.keys is not None:
        reader = registry.part("sinks.topics.records.keys:KeyReader")(config.sink, config.name)
        rules.keys.begin((), more=partial(keys_since, rules.keys, reader))
        rules.keys.refresh()
    return PublishedTables(tables, registry.snapshotter(config)(), prefix=config.sink.prefix, rules=rules)
