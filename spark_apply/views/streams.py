"""Reads streams of events that other applications write to Kafka, for views to join with captured tables.

A stream is a topic of JSON objects. Each object is a row; of several with one key the earliest one counts, by the
broker's or producer's timestamp, then by partition and offset: which one that is does not depend on when they are read.
Events of a stream have no position in the source's log. Those that are there when a step is taken belong to it, and
the offsets up to which they were read are published with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config.apply_config import ApplySource
from cdc.config.views import STREAM_SCHEMA, StreamConfig, ViewsConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import State
from spark_apply.events import kafka_source
from spark_apply.events.topic_identity import TopicAsker, difference
from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.model.suggestion import did_you_mean
from spark_apply.model.types import kind_of
from spark_apply.spark.json_reader import CORRUPT, read_json
from spark_apply.spark.names import quoted
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.uses import TIMES, TableUse, Way
from spark_apply.views.values import Columns, engine_type
from spark_apply.views.values import quoted as engine_quoted

AT_ONCE: Final = 500_000
"""So many offsets of a topic are read at once."""

_NUMBER: Final = "_cdc_number"

Offsets = Mapping[int, int]


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of views.yaml."""

    name: str
    config: StreamConfig
    columns: Columns
    row: T.StructType

    @property
    def definition(self) -> str:
        """What its rows depend on besides the topic."""
        config = self.config
        return json.dumps([self.row.simpleString(), list(config.key), config.time, config.keep_ms])

    @property
    def use(self) -> TableUse:
        """How views read it."""
        return TableUse(f"{STREAM_SCHEMA}.{self.name}", Way.EVENTS, self.config.time, self.config.keep_ms)

    def published(self, spark: SparkSession, source: ApplySource, at: State) -> DataFrame:
        """Return the events, as of `events_of`, that a step has read, by the state that was published with it."""
        told = cast("Mapping[str, Mapping[str, int]]", at.offset.get("streams") or {})
        ends = {int(partition): end for partition, end in told.get(self.name, {}).items()}
        return events_of(kafka_source.read(spark, source, self.config.topic, {}, ends), self)


def streams_of(config: ViewsConfig) -> dict[str, Stream]:
    """Return the streams of a file by name. Raises ConfigError for one that cannot be read as it says."""
    return {name: _stream(name, stream) for name, stream in config.streams.items()}


def _stream(name: str, config: StreamConfig) -> Stream:
    try:
        row = T.StructType.fromDDL(config.schema)
    except PySparkException as exc:
        msg = f"streams.{name}.schema: Spark does not take it as columns"
        raise ConfigError(msg, hint="names and types of Spark: id BIGINT, at TIMESTAMP, page STRING") from exc
    if not isinstance(row, T.StructType):
        raise ConfigError(f"streams.{name}.schema: it names no columns", hint="id BIGINT, at TIMESTAMP, page STRING")
    columns = []
    for column in row.fields:
        kind = kind_of(column.dataType)
        if kind is None:
            found = column.dataType.simpleString()
            msg = f"streams.{name}.schema: {column.name} is {found}, which views have no values for"
            raise ConfigError(msg, hint="a type of docs/values.md, or STRING, which keeps its JSON")
        columns.append((column.name, kind))
    kinds = dict(columns)
    for key in config.key:
        if key not in kinds:
            hint = did_you_mean(key, kinds, f"columns: {', '.join(kinds)}")
            raise ConfigError(f"streams.{name}.key: there is no column {key}", hint=hint)
    if config.time is not None and (config.time not in kinds or kinds[config.time].name not in TIMES):
        times = [column for column, kind in columns if kind.name in TIMES]
        msg = f"streams.{name}.time: {config.time} is no column with a time"
        raise ConfigError(msg, hint=f"one of {', '.join(times)}" if times else "add one to schema: at TIMESTAMP")
    return Stream(name, config, columns, row)


def require_topics(source: ApplySource, streams: Mapping[str, Stream]) -> None:
    """Raise ConfigError for a stream whose topic does not exist."""
    there = kafka_source.topics(source) if streams else {}
    for name, stream in streams.items():
        if stream.config.topic not in there:
            msg = f"streams.{name}.topic: there is no topic {stream.config.topic}"
            raise ConfigError(
                msg, hint=did_you_mean(stream.config.topic, there, "create it first, or correct the name")
            )


@dataclass(slots=True)
class StreamReader:
    """Takes new events of streams into the state."""

    spark: SparkSession
    source: ApplySource
    state: ViewState
    streams: Mapping[str, Stream]
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
            with self.state.transaction():
                self.state.execute("UPDATE streams SET topic = ? WHERE name = ?", [f"{topic} {now}", name])
                self._put(name, {})
        first, _ = kafka_source.offset_ranges(self.source, topic)
        known = self._offsets(name)
        lost = sum(max(first.get(partition, 0) - offset, 0) for partition, offset in known.items())
        if lost and not goes_on:
            msg = f"streams.{name}: {lost:,} records of topic {topic} were removed before they were read"
            raise OperatorError(
                msg, hint="raise the topic's retention; on_loss: go_on under the stream goes on without them"
            )
        if lost:
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

    def take_in(self) -> dict[str, int]:
        """Add what is new to the events that wait; return by stream how many records could not be read.

        A stream for which no event waits is not in the result. Raises OperatorError if a topic is not what was read.
        """
        found: dict[str, int] = {}
        topics = sorted({stream.config.topic for stream in self.streams.values()})
        ends = kafka_source.ends_by_topic(self.source, topics) if topics else {}
        for name, stream in self.streams.items():
            end = ends[stream.config.topic]
            if self._offsets(name) != end:
                first = self._compare(name, stream)
                share = max(AT_ONCE // max(len(end), 1), 1)
                while (begin := self._offsets(name)) != end:
                    upto = {at: min(last, begin.get(at, first.get(at, 0)) + share) for at, last in end.items()}
                    found[name] = found.get(name, 0) + self._take(name, stream, begin, upto)
            elif self.state.rows(f"SELECT 1 FROM {place('pending', stream.use.relation)} LIMIT 1"):
                found[name] = 0  # read before a step that did not come about
        return found

    def _take(self, name: str, stream: Stream, begin: Offsets, end: Offsets) -> int:
        records = kafka_source.read(self.spark, self.source, stream.config.topic, begin, end)
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
            self._put(name, end)
            self.state.execute("UPDATE streams SET unreadable = unreadable + ? WHERE name = ?", [unreadable, name])
        return int(unreadable)


def rows_of(events: DataFrame, stream: Stream) -> DataFrame:
    """Return the rows that a stream has by all its events: of each key the earliest one that is not late."""
    events = events.where(F.col(KEY).isNotNull())
    if stream.config.time is not None and stream.config.keep_ms is not None:
        begin = F.timestamp_millis(F.col(SOURCE_MS) - F.lit(stream.config.keep_ms)).cast("timestamp_ntz")
        late = F.col(quoted(stream.config.time)).cast("timestamp_ntz") <= begin
        events = events.where(~F.coalesce(late, F.lit(False)))  # noqa: FBT003 - a literal column
    first = F.row_number().over(Window.partitionBy(*map(quoted, stream.config.key)).orderBy(POSITION))
    kept = events.withColumn(_NUMBER, first).where(F.col(_NUMBER) == 1)
    return kept.select(*(F.col(quoted(name)) for name, _ in stream.columns))


def events_of(records: DataFrame, stream: Stream) -> DataFrame:
    """Return the events of Kafka records, as of `spark_apply.events.kafka_source.read`; records without a value none.

    Returns ``_cdc_key STRING`` (the key as text, whose times have milliseconds alone; null where the record is no
    object of these columns, or a column of the key is null), ``_cdc_position STRING``, ``_cdc_op STRING`` (``c``),
    ``_cdc_source_ms BIGINT`` (the record's timestamp), then the stream's columns.
    """
    with_corrupt = T.StructType([*stream.row.fields, T.StructField(CORRUPT, T.StringType())])
    at_ms = F.unix_millis("timestamp")
    row = read_json(F.col("value").cast("string"), with_corrupt)
    parsed = records.where(F.col("value").isNotNull()).select("partition", "offset", at_ms.alias("at"), row.alias("r"))
    key = F.struct(*(F.col(f"r.{quoted(name)}").alias(name) for name in stream.config.key))
    good = F.col(f"r.{CORRUPT}").isNull()
    for name in stream.config.key:
        good &= F.col(f"r.{quoted(name)}").isNotNull()
    return parsed.select(
        F.when(good, F.to_json(key)).alias(KEY),
        F.format_string("%016x.%08x.%016x", F.greatest(F.col("at"), F.lit(0)), "partition", "offset").alias(POSITION),
        F.lit("c").alias(OP),
        F.col("at").alias(SOURCE_MS),
        *(F.col(f"r.{quoted(name)}").alias(name) for name, _ in stream.columns),
    )
