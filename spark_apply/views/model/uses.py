"""Says how a view reads a captured table: as it is, as a stream with late events, or as it was at a time. Pure.

A way of reading is a relation of its own in the state, with events that wait and rows of its own: two views that read
a table in one way share it.

    rows      the newest row of each key
    stream    the same without late events (`from: {t: {time: at, keep: 7d}}`)
    history   every version of each row, with when it was there (`from: {t: {at: event}}`, or `arrival`)

Late
====
An event of a stream is late if it was committed at m, and the time of its row, as it was before it or as it is after
it, lies at or before m - keep. Late events are left out and counted. What is late depends on the source's log alone,
never on when a job reads it: so a job that was down answers as one that never was. Rows of a snapshot are never late.
A row stays when the source deletes it later than `keep`: sources clear old events away, which is no correction.

Versions
========
A row's version lasts from its event to the next one of its key that changes it, in positions (``from <= p < to``) and
in times of commit (``from <= t < to``), which never go back within a key. A delete of what is not there says nothing.
The first version of a key is there since always if a snapshot read it: what was there before the capture began is not
known to have been different.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from cdc.config.apply_config import ApplyTable
from cdc.config.views import ReadConfig
from cdc.model.change import Kind

FROM_POSITION, TO_POSITION = "_cdc_from_position", "_cdc_to_position"
VALID_FROM, VALID_TO = "_cdc_valid_from", "_cdc_valid_to"
ARRIVAL: Final = "_cdc_arrival"
"""The position of the event that has made the row what it is."""

SINCE_ALWAYS: Final = ""
"""As a version's first position: it sorts before every position."""

TIMES: Final = ("timestamptz", "timestamp_micros", "timestamp_millis", "date")
"""Kinds of columns that a stream's time can be."""

_TEXT, _INSTANT = Kind("string"), Kind("timestamp_micros")


class Way(Enum):
    """What a relation has of a table."""

    ROWS = "rows"
    STREAM = "stream"
    HISTORY = "history"
    EVENTS = "events"
    """Of a topic that another application writes; see `spark_apply.views.planning.streams`."""


@dataclass(frozen=True, slots=True)
class TableUse:
    """A captured table, and how it is read."""

    table: str
    """``schema.table``."""
    way: Way = Way.ROWS
    time: str | None = None
    """The column that says when a row happened."""
    keep_ms: int | None = None
    sent: str | None = None
    """The column that says when a row was sent, by the clock that has told its time."""
    received: str | None = None
    """The column that says when it was received, by a clock that is right."""
    arrival: bool = False
    """Whether its rows have `ARRIVAL`."""
    at: str = "now"
    """Of a history: whether the other side is looked up by its time (``event``) or its position (``arrival``)."""

    @property
    def relation(self) -> str:
        """The name that the relation has in the state and in plans."""
        if self.way is Way.EVENTS:
            return self.table
        if self.way is Way.HISTORY:
            return f"{self.table}@history"
        time = ",".join(self.times)
        kept = f"@{time}+{self.keep_ms}ms" if self.way is Way.STREAM else ""
        return f"{self.table}{kept}{'@arrival' if self.arrival else ''}"

    @property
    def times(self) -> list[str]:
        """The columns that its rows' time is made of: one, or three, of which the first is corrected by the others."""
        return [name for name in (self.time, self.sent, self.received) if name is not None]

    def instant(self, value: Callable[[str], str]) -> str:
        """Return the time of a row, in the SQL of every engine; `value` gives a column.

        How long a row was kept before it was sent is right whatever the clock says that has told both: so it happened
        that long before it was received. What would have been sent before it happened, or in no year of any clock, or
        would have happened in none, counts when it was received; without the two instants the time is what it says.
        """
        if len(self.times) <= 1:
            return value(self.time or "")
        event, sent, received = map(value, self.times)
        return (
            f"CASE WHEN {event} > {sent} OR least({event}, {sent}, {received}) < TIMESTAMP '1900-01-01 00:00:00' "
            f"OR greatest({event}, {sent}, {received}) >= TIMESTAMP '9999-01-01 00:00:00' "
            f"THEN coalesce({received}, {event}) "
            f"WHEN {sent} - {event} > {received} - TIMESTAMP '1900-01-01 00:00:00' THEN {received} "
            f"ELSE coalesce({event} + ({received} - {sent}), {event}) END"
        )

    @property
    def hidden(self) -> Sequence[tuple[str, Kind]]:
        """Columns beside the table's own."""
        if self.way is Way.HISTORY:
            return [(FROM_POSITION, _TEXT), (TO_POSITION, _TEXT), (VALID_FROM, _INSTANT), (VALID_TO, _INSTANT)]
        return [(ARRIVAL, _TEXT)] if self.arrival else []

    @property
    def needs_every_event(self) -> bool:
        """Whether the newest event of each key is not enough."""
        return self.way is not Way.ROWS

    def key(self, key: tuple[str, ...]) -> tuple[str, ...]:
        """Return what tells the relation's rows apart, by the table's key."""
        return (*key, FROM_POSITION) if self.way is Way.HISTORY else key


def uses_of(reads: Mapping[str, ReadConfig]) -> dict[str, TableUse]:
    """Return by table how a view reads those that its ``from:`` names."""
    arrival = any(read.at == "arrival" for read in reads.values())
    found = {}
    for table, read in reads.items():
        if read.at in ("event", "arrival"):
            found[table] = TableUse(table, Way.HISTORY, at=read.at)
        else:
            way = Way.STREAM if read.keep is not None else Way.ROWS
            made = TableUse(table, way, read.time, read.keep_ms, read.sent, read.received)
            found[table] = replace(made, arrival=arrival and read.time is not None)
    return found


def followed(use: TableUse, *stores: str) -> ApplyTable:
    """Return how a captured table is followed for views."""
    return ApplyTable(stores=stores, mode="history" if use.way is Way.HISTORY else "latest")
