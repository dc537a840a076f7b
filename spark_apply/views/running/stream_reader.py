"""Takes new events of streams into a job's state, and compares their topics with what was read of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from cdc.model.errors import OperatorError
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.offsets import offset_ranges
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.kafka.topic_identity import TopicAsker, difference
from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.model.values import engine_type
from spark_apply.views.model.values import quoted as engine_quoted
from spark_apply.views.planning.streams import Stream, events_of

AT_ONCE: Final = 500_000
"""So many offsets of a topic are read at once."""

Offsets = Mapping[int, int]


@dataclass(slots=True)
class StreamReader:
    """Takes new events of streams into the state."""

    spark: SparkSession
    source: ApplySource
    state: ViewState
    streams: Mapping[str, Stream]
    tell: Callable[[str], None]
    _asker: TopicAsker = field(init=False)

    def __post_init__(self) -> None:
        self._asker = TopicAsker(self.source)

    def open(self) -> set[str]:
        """Make the streams' places; return the relations that are read again, as the file describes them otherwise.

        Raises OperatorError where a topic is not what was read.
        """
        rows = self.state.rows("SELECT name, definition FROM streams")
        known, again = dict(rows), set[str]()
        for name, stream in self.streams.items():
            if known.get(name) == stream.definition:
                continue
            use, topic = stream.use, stream.config.topic
            with self.state.transaction():
                if name in known:  # its columns are others: it is read again
                    again.add(use.relation)
                    self.state.forget([use.relation])
                    self.state.execute(f"DROP TABLE IF EXISTS {place('pending', use.relation)}")
                    self.state.execute("UPDATE streams SET definition = ?, offsets = '{}', unreadable = 0 "
                                       "WHERE name = ?", [stream.definition, name])  # fmt: skip
                    self.state.execute("DELETE FROM late WHERE relation = ?", [use.relation])
                else:
                    told = f"{topic} {self._identity(stream)}"
                    self.state.execute("INSERT INTO streams VALUES (?, ?, ?, '{}', 0)", [name, told, stream.definition])
                self.state.prepare_table(use.relation, stream.columns, (), stream.config.key)
        for name, stream in self.streams.items():
            self._compare(name, stream)
        return again

    def _identity(self, stream: Stream) -> str:
        topic = stream.config.topic
        now = self._asker.now([topic]).get(topic)
        if now is None:
            msg = f"streams.{stream.name}: topic {topic} does not exist any more"
            raise OperatorError(msg, hint="create it again, or take the stream and what reads it out of the file")
        return now.identity

    def _compare(self, name: str, stream: Stream) -> dict[int, int]:
        """Return the first offsets that a stream's topic has. Raises OperatorError if it is not what was read of it.

        A topic that was made again, and records that are gone and were not read, are passed over where the file says
        so: what was read of it stays.
        """
        topic, goes_on = stream.config.topic, stream.config.on_loss == "go_on"
        ((was,),) = self.state.rows("SELECT topic FROM streams WHERE name = ?", [name])
        before, _, told = was.partition(" ")
        now = self._identity(stream)
        how = "it was another topic" if before != topic else difference(told, now)
        if how is not None and not goes_on:
            msg = f"streams.{name}: topic {topic} is not the one that was read: {how}"
            hint = "on_loss: go_on under the stream keeps what was read, and reads the topic from its beginning"
            raise OperatorError(msg, hint=hint)
        if how is not None:
            self.tell(f"warning: streams.{name}: topic {topic}: {how}; it is read too, from its beginning")
            with self.state.transaction():
                self.state.execute("UPDATE streams SET topic = ? WHERE name = ?", [f"{topic} {now}", name])
                self._put(name, {})
        first, _ = offset_ranges(self.source, topic)
        known = self._offsets(name)
        lost = sum(max(first.get(partition, 0) - offset, 0) for partition, offset in known.items())
        if lost and not goes_on:
            msg = f"streams.{name}: {lost:,} records of topic {topic} were removed before they were read"
            raise OperatorError(
                msg, hint="raise the topic's retention; on_loss: go_on under the stream goes on without them"
            )
        if lost:
            self.tell(f"warning: streams.{name}: {lost:,} records of topic {topic} were removed before they were read")
            with self.state.transaction():
                self._put(
                    name, {partition: max(offset, first.get(partition, 0)) for partition, offset in known.items()}
                )
        return first

    def _offsets(self, name: str) -> dict[int, int]:
        rows = self.state.rows("SELECT offsets FROM streams WHERE name = ?", [name])
        return {int(partition): offset for partition, offset in json.loads(rows[0][0]).items()} if rows else {}

    def _put(self, name: str, offsets: Offsets) -> None:
        self.state.execute("UPDATE streams SET offsets = ? WHERE name = ?", [json.dumps(offsets), name])

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return by stream the offsets behind what was read."""
        return {name: self._offsets(name) for name in self.streams}

    def unreadable(self) -> dict[str, int]:
        """Return by stream how many records were no events of it."""
        counts = dict(self.state.rows("SELECT name, unreadable FROM streams"))
        return {name: counts.get(name, 0) for name in self.streams}

    def take_in(self) -> bool:
        """Add what is new to the events that wait; return whether any wait. Tells of records that could not be read.

        Raises OperatorError if a topic is not what was read.
        """
        waits, ends = False, self._ends()
        for name, stream in self.streams.items():
            end, unreadable = ends[stream.config.topic], 0
            if self._offsets(name) != end:
                waits, first = True, self._compare(name, stream)
                share = max(AT_ONCE // max(len(end), 1), 1)
                while (begin := self._offsets(name)) != end:
                    upto = {at: min(last, begin.get(at, first.get(at, 0)) + share) for at, last in end.items()}
                    unreadable += self._take(name, stream, begin, upto)
            elif self._waits(stream):
                waits = True  # read before a step that did not come about
            if unreadable:
                why = "not of its schema, no key, or a time that is none"
                self.tell(f"warning: {unreadable:,} records of stream {name} are no events of it: left out ({why})")
        return waits

    def have_more(self) -> bool:
        """Whether there are events that no step has taken, as far as brokers answer: others wait for them."""
        try:
            ends = self._ends()
        except NoAnswerError:
            return False
        return any(self._offsets(name) != ends[of.config.topic] or self._waits(of) for name, of in self.streams.items())

    def _ends(self) -> dict[str, dict[int, int]]:
        topics = sorted({stream.config.topic for stream in self.streams.values()})
        return self._asker.ends(topics) if topics else {}

    def _waits(self, stream: Stream) -> bool:
        """Whether events of a stream wait that no step has taken."""
        return bool(self.state.rows(f"SELECT 1 FROM {place('pending', stream.use.relation)} LIMIT 1"))

    def _take(self, name: str, stream: Stream, begin: Offsets, end: Offsets) -> int:
        records = read_topic(self.spark, self.source, stream.config.topic, begin, end)
        arrow = events_of(records, stream).toArrow()
        ours = (KEY, POSITION, OP, SOURCE_MS)
        columns = [*((own, own) for own in ours)]
        columns += [
            (engine_quoted(column), f"CAST({engine_quoted(column)} AS {engine_type(kind)})")
            for column, kind in stream.columns
        ]
        listed, read = (", ".join(part) for part in zip(*columns, strict=True))
        with self.state.transaction(), self.state.registered("incoming", arrow):
            at = place("pending", stream.use.relation)
            self.state.execute(f"INSERT INTO {at} ({listed}) SELECT {read} FROM incoming WHERE {KEY} IS NOT NULL")
            ((unreadable,),) = self.state.rows(f"SELECT count(*) FROM incoming WHERE {KEY} IS NULL")
            self._note(name, end, unreadable)
        return int(unreadable)

    def _note(self, name: str, end: Offsets, unreadable: int) -> None:
        """Note up to where a stream was taken in, and how many records of that were no events."""
        self._put(name, end)
        self.state.execute("UPDATE streams SET unreadable = unreadable + ? WHERE name = ?", [unreadable, name])
