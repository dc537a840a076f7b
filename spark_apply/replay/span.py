"""Finds from which offsets on a replay reads, and says what compaction and retention have left of that span."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaException, TopicPartition

from cdc.config.apply_config import ApplySource
from cdc.config.views import VIEW_SCHEMA
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.kafka.client import NO_GROUP, client_settings, unreachable
from spark_apply.events.kafka.offsets import offset_bounds
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.job.watermarks.progress import origin_of
from spark_apply.model.completeness import Ends
from spark_apply.model.target_table import TargetTable

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.05
_TAKEN: Final = 500
_EOF: Final = "_PARTITION_EOF"
_NAMED: Final = 5

Place = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpan:
    """What there is to be read again of a table."""

    table: str
    topic: str
    log: bool
    """Whether the topic keeps every change, as far as its retention goes."""
    first_offsets: Mapping[int, int]
    """The first offset that is still there, by partition."""
    first_at_ms: int | None
    """When the oldest event that is still there was committed at the source; None: there is none."""
    begin_offsets: Mapping[int, int]
    begin_at_ms: int | None
    """The same of the oldest event that is read; None: there is nothing to read."""
    offsets: int
    """How many offsets are read: there are at most so many events."""
    says: str

    def as_json(self) -> dict[str, Any]:
        """Return the stable JSON."""
        return {
            "table": self.table,
            "topic": self.topic,
            "keeps": "every change" if self.log else "newest rows",
            "first_offsets": {str(number): offset for number, offset in self.first_offsets.items()},
            "first_at": instant(self.first_at_ms),
            "begin_offsets": {str(number): offset for number, offset in self.begin_offsets.items()},
            "begin_at": instant(self.begin_at_ms),
            "offsets": self.offsets,
            "says": self.says,
        }


@dataclass(frozen=True, slots=True)
class _Event:
    at_ms: int
    position: str


def refuse_others(source: ApplySource, tables: Sequence[TargetTable], connector: str | None) -> None:
    """Raise ConfigError for a position that says nothing of some tables: those of another connector than its own.

    The positions of a view job are its source's.
    """
    jobs = {of.connector for of in tables if of.schema == VIEW_SCHEMA}
    origins = {of.connector: of.connector for of in tables} | {name: origin_of(source, name) for name in jobs}
    there = set(origins.values())
    own = origins.get(connector or "", connector) or (next(iter(there)) if len(there) == 1 else None)
    others = [of for of in tables if origins[of.connector] != own]
    if others:
        of = f"connector {own}" if own else "one connector, and does not say of which"
        named = ", ".join(f"{table.qualified} of connector {table.connector}" for table in others[:_NAMED])
        raise ConfigError(
            f"--from is a position of {of}: it is no place in the topics of {named}"
            + (" and more" if len(others) > _NAMED else ""),
            hint="--from with a time, 24h ago or 2026-03-01T06:00:00Z; or leave these tables out of a copy of the file",
        )


def spans(source: ApplySource, tables: Iterable[TargetTable], since: dt.datetime | Position) -> list[TableSpan]:
    """Return what is read of each table. Raises OperatorError for a begin before all topics, or behind them."""
    made = list(tables)
    settings = {
        "group.id": f"{source.topic_prefix}.replay",  # the client requires one; nothing is committed under it
        "enable.auto.commit": False,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "fetch.wait.max.ms": 20,
    }
    try:
        with closing(Consumer({**client_settings(source), **settings})) as consumer:
            there = existing_topics(source, [of.topic for of in made])
            places = [(of.topic, number) for of in made for number in range(there[of.topic])]
            bounds = {place: offset_bounds(consumer, *place) for place in places}
            first = _events(consumer, {place: begin for place, (begin, _) in bounds.items()}, bounds)
            if isinstance(since, Position):
                begins = _behind(consumer, since.text, bounds)
            else:
                begins = _since(consumer, int(since.timestamp() * 1000), bounds)
            oldest = _events(consumer, begins, bounds)
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    _refuse(since, first, oldest)
    return [_span(of, since, bounds, begins, (first, oldest)) for of in made]


def _span(
    of: TargetTable,
    since: dt.datetime | Position,
    bounds: Mapping[Place, tuple[int, int]],
    begins: Mapping[Place, int],
    events: tuple[Mapping[Place, _Event], Mapping[Place, _Event]],
) -> TableSpan:
    mine = sorted(number for topic, number in bounds if topic == of.topic)
    first, oldest = (_oldest(of.topic, found) for found in events)
    offsets = sum(bounds[of.topic, number][1] - begins[of.topic, number] for number in mine)
    span = TableSpan(
        table=of.qualified,
        topic=of.topic,
        log=of.history,
        first_offsets={number: bounds[of.topic, number][0] for number in mine},
        first_at_ms=first.at_ms if first else None,
        begin_offsets={number: begins[of.topic, number] for number in mine},
        begin_at_ms=oldest.at_ms if oldest else None,
        offsets=offsets,
        says="",
    )
    return replace(span, says=_says(span, first, since))


def _says(span: TableSpan, first: _Event | None, since: dt.datetime | Position) -> str:
    """Say for people what is read of a table, and what is not there any more."""
    if first is None:
        return "its topic is empty"
    held = f"the oldest event still there is of {instant(first.at_ms)}"
    later = _is_later(first, since)
    if span.log:
        gone = f": what was before {instant(first.at_ms)} is deleted by retention, or was never there" if later else ""
        return f"{span.offsets:,} offsets of its log, which has every change; {held}{gone}"
    gone = ": all that was before is compacted away, or was never there" if later else ""
    return (
        f"{span.offsets:,} offsets of its compacted topic: of a row that has changed more than once the newest change "
        f"alone may be left, so this is a fold of newest rows; {held}{gone}"
    )


def _is_later(event: _Event, since: dt.datetime | Position) -> bool:
    if isinstance(since, Position):
        return event.position > since.text
    return event.at_ms > since.timestamp() * 1000


def _refuse(since: dt.datetime | Position, first: Mapping[Place, _Event], oldest: Mapping[Place, _Event]) -> None:
    if not first:
        raise OperatorError("there is nothing to replay: the topics are empty", hint="cdc status CONNECTOR.yaml")
    begin = min(first.values(), key=lambda event: event.position)
    if all(_is_later(event, since) for event in first.values()):
        raise OperatorError(
            f"--from lies before the topics begin: the oldest event still there is of {instant(begin.at_ms)}, at "
            f"{begin.position}",
            hint=f"--from {begin.position} is all that there is",
        )
    if not oldest:
        raise OperatorError("--from lies behind all events of the topics", hint="an earlier time, or position")


def _oldest(topic: str, found: Mapping[Place, _Event]) -> _Event | None:
    mine = [event for (name, _), event in found.items() if name == topic]
    return min(mine, key=lambda event: event.at_ms, default=None)


def _since(consumer: Consumer, at_ms: int, bounds: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """Return the first offset of each partition that was written at this time or later."""
    asked = [TopicPartition(topic, number, max(0, at_ms)) for topic, number in bounds]  # below 0 it is no time
    found: dict[Place, int] = {}
    for at in consumer.offsets_for_times(asked, timeout=_ANSWER_S) if asked else ():
        if at.error is not None:
            raise KafkaException(at.error)
        first, end = bounds[at.topic, at.partition]
        found[at.topic, at.partition] = end if at.offset < 0 else min(end, max(first, at.offset))
    return found


def _behind(consumer: Consumer, position: str, bounds: Mapping[Place, tuple[int, int]]) -> dict[Place, int]:
    """Return the first offset of each partition from which on all events are at this position or behind it.

    Within a partition positions go up with offsets, so each partition is halved again and again, all at once.
    """
    low = {place: begin for place, (begin, _) in bounds.items()}
    high = {place: end for place, (_, end) in bounds.items()}
    while left := {place: (low[place] + high[place]) // 2 for place in bounds if low[place] < high[place]}:
        found = _events(consumer, left, bounds)
        for place, middle in left.items():
            event = found.get(place)
            if event is not None and event.position < position:
                low[place] = middle + 1
            else:
                high[place] = middle
    return low


def _events(
    consumer: Consumer, begins: Mapping[Place, int], bounds: Mapping[Place, tuple[int, int]]
) -> dict[Place, _Event]:
    """Return the first event of each partition from an offset on; none where there is none."""
    left = {place for place, begin in begins.items() if begin < bounds[place][1]}
    found: dict[Place, _Event] = {}
    if not left:
        return found
    consumer.assign([TopicPartition(topic, number, begins[topic, number]) for topic, number in sorted(left)])
    heard_s = time.monotonic()
    while left:
        messages = consumer.consume(_TAKEN, _POLL_S)
        if not messages and time.monotonic() - heard_s > _ANSWER_S:
            raise OperatorError(
                f"{len(left)} partitions cannot be read: no answer in {_ANSWER_S:.0f} s",
                hint="are the partitions’ leaders alive?",
            )
        for message in messages:
            heard_s = time.monotonic()
            error, place = message.error(), (message.topic() or "", message.partition() or 0)
            if error is not None and error.code() == NO_GROUP:
                continue
            if error is not None and error.name() != _EOF:
                raise KafkaException(error)
            if place not in left:
                continue
            event = _event(message.value()) if error is None else None
            if event is not None:
                found[place] = event
            if event is not None or (message.offset() or 0) >= bounds[place][1] - (error is None):
                left.discard(place)
                consumer.incremental_unassign([TopicPartition(*place)])
    consumer.unassign()
    return found


def _event(value: Any) -> _Event | None:  # noqa: ANN401 - the client's
    if not isinstance(value, bytes):
        return None
    try:
        source = orjson.loads(value)["source"]
        return _Event(int(source["ts_ms"]), str(source["position"]))
    except (ValueError, KeyError, TypeError):
        return None


def ends_of(found: Iterable[TableSpan]) -> Ends:
    """Return the offsets that the job begins at."""
    return {span.topic: dict(span.begin_offsets) for span in found}


def instant(at_ms: int | None) -> str | None:
    """Write a time in UTC, with its zone."""
    return None if at_ms is None else dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")
