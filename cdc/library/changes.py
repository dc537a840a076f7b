"""The changes that a Python program is given, and the transactions they belong to."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import orjson

from cdc.library.values import RowReader

Raw: TypeAlias = tuple[bytes, bytes]
"""Key and value of an event, as a topic would have them."""
Readers: TypeAlias = Callable[[str, int], RowReader]
"""Gives what reads the rows of a table, by ``schema.table`` and the version of its description."""


@dataclass(frozen=True, slots=True)
class Change:
    """One row of one table has changed, or was read."""

    op: str
    """``c`` created, ``u`` updated, ``d`` deleted, ``r`` read; ``t``: all rows of the table before it are gone."""
    table: str
    """``schema.table``; MySQL and MariaDB: ``database.table``."""
    key: dict[str, Any] | None = field(repr=False)
    """The key columns; None for ``t``."""
    before: dict[str, Any] | None = field(repr=False)
    """What the source sent of the old row: all of it with REPLICA IDENTITY FULL, else the key, or None."""
    after: dict[str, Any] | None = field(repr=False)
    """The new row; a value may be `cdc.UNCHANGED`. None for ``d`` and ``t``."""
    position: str
    """Its place in the order of all changes: text that sorts. For one key, positions strictly increase."""
    committed_at: dt.datetime | None
    """When its transaction was committed, in UTC; ``r``: when the row was read. None: the topic does not tell."""


def table_of(event: Mapping[str, Any]) -> str:
    """Name the table of an event."""
    source = event["source"]
    return f"{source.get('schema', source['db'])}.{source['table']}"


def change_of(table: str, key: bytes, event: Mapping[str, Any], readers: Readers) -> Change:
    """Make a change of an event."""
    source = event["source"]
    op, at_ms, position = event["op"], source.get("ts_ms"), source["position"]
    at = None if at_ms is None else dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC)
    if op == "t":
        return Change(op, table, None, None, None, position, at)
    read = readers(table, source["schema_version"])
    return Change(op, table, read(orjson.loads(key)), read(event.get("before")), read(event["after"]), position, at)


class Transaction:
    """A whole transaction of the source, or rows that were read together. Iterating gives its changes, in order."""

    __slots__ = ("_done", "_events", "_readers", "id", "position")

    def __init__(
        self,
        identifier: str | None,
        position: str,
        events: Callable[[], Iterator[Raw]],
        readers: Readers,
        done: Callable[[], None],
    ) -> None:
        self.id = identifier
        """The source's name of it; None: its rows were read, or a table's rows are about to be."""
        self.position = position
        """The position of its last change."""
        self._events, self._readers, self._done = events, readers, done

    def __iter__(self) -> Iterator[Change]:
        for key, value in self._events():
            event = orjson.loads(value)
            yield change_of(table_of(event), key, event, self._readers)

    def done(self) -> None:
        """Say that this transaction and all before it are dealt with: a new start goes on behind it.

        It returns when the position file is on the disk.
        """
        self._done()

    def __repr__(self) -> str:
        return f"<cdc.Transaction {self.id or 'of rows read'} at {self.position}>"
