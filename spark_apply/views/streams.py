"""Reads streams of events that other applications write to Kafka, for views to join with captured tables.

A stream is a topic of JSON objects. Each object is a row; of several with one key the earliest one counts, by the
broker's or producer's timestamp, then by partition and offset: which one that is does not depend on when they are read.
Events of a stream have no position in the source's log. Those that are there when a step is taken belong to it, and
the offsets up to which they were read are published with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config.config import ApplySource
from cdc.config.views import STREAM_SCHEMA, StreamConfig, ViewsConfig
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import State
from spark_apply.events import kafka_source
from spark_apply.events.topic_identity import difference, identities
from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.model.suggestion import did_you_mean
from spark_apply.model.types import kind_of
from spark_apply.spark.names import quoted
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.uses import TIMES, TableUse, Way
from spark_apply.views.values import Columns, engine_type
from spark_apply.views.values import quoted as engine_quoted

AT_ONCE: Final = 200_000
"""So many offsets of a partition are read at once."""

_CORRUPT: Final = "_cdc_corrupt"
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

    def open(self) -> set[str]:
        """Make the streams' places; return the relations that are read again, as the file describes them otherwise.

        Raises OperatorError where a topic is not what was read.
        """
        if not self.streams:
            return set()
        known = {
            name: (topic, was) for name, topic, was in self.state.rows("SELECT name, topic, definition FROM streams")
        }
        now = identities(self.source, [stream.config.topic for stream in self.streams.values()])
        again: set[str] = set()
        for name, stream in self.streams.items():
            topic, use = stream.config.topic, stream.use
            identity = f"{topic} {now[topic]}"
            was, definition = known.get(name, (identity, stream.definition))
            before, _, told = was.partition(" ")
            how = "it was another topic" if before != topic else difference(told, now[topic])
            if how is not None:
                msg = f"streams.{name}: topic {topic} is not the one that was read: {how}"
                raise OperatorError(
                    msg, hint="give the stream another name: its events are then read from the beginning"
                )
            if name in known and definition == stream.definition:
                self._require_all(name, stream)
                continue
            with self.state.transaction():
                if name in known:  # its columns are others: it is read again
                    again.add(use.relation)
                    self.state.forget([use.relation])
                    self.state.execute(f"DROP TABLE IF EXISTS {place('pending', use.relation)}")
                    self.state.execute("DELETE FROM streams WHERE name = ?", [name])
                    self.state.execute("DELETE FROM late WHERE relation = ?", [use.relation])
                self.state.prepare_table(use.relation, stream.columns, (), stream.config.key)
                self.state.execute("INSERT INTO streams VALUES (?, ?, ?, '{}', 0)", [name, identity, stream.definition])
        return again

    def _require_all(self, name: str, stream: Stream) -> None:
        """Raise OperatorError if records are gone that were not read, unless the file says to go on."""
        known = self._offsets(name)
        first, _ = kafka_source.offset_ranges(self.source, stream.config.topic)
        lost = sum(max(first.get(partition, 0) - offset, 0) for partition, offset in known.items())
        if lost and stream.config.on_loss == "stop":
            msg = f"streams.{name}: {lost:,} records of topic {stream.config.topic} were removed before they were read"
            raise OperatorError(
                msg, hint="raise the topic's retention; on_loss: go_on under the stream goes on without them"
            )
        if lost:
            moved = {partition: max(offset, first.get(partition, 0)) for partition, offset in known.items()}
            with self.state.transaction():
                self._put(name, moved)

    def _offsets(self, name: str) -> dict[int, int]:
        rows = self.state.rows("SELECT offsets FROM streams WHERE name = ?", [name])
        return {int(partition): offset for partition, offset in json.loads(rows[0][0]).items()} if rows else {}

    def _put(self, name: str, offsets: Offsets) -> None:
        self.state.execute("UPDATE streams SET offsets = ? WHERE name = ?", [json.dumps(offsets), name])

    def offsets(self) -> dict[str, dict[int, int]]:
        """Return by stream the offsets behind what was read."""
        return {name: self._offsets(name) for name in self.streams}

    def take_in(self) -> dict[str, int]:
        """Add what is new to the events that wait; return by stream how many records could not be read.

        A stream without new events is not in the result.
        """
        found: dict[str, int] = {}
        topics = sorted({stream.config.topic for stream in self.streams.values()})
        ends = kafka_source.ends_by_topic(self.source, topics) if topics else {}
        for name, stream in self.streams.items():
            end = ends[stream.config.topic]
            while (begin := self._offsets(name)) != end:
                upto = {at: min(last, begin.get(at, self._first(stream, at)) + AT_ONCE) for at, last in end.items()}
                found[name] = found.get(name, 0) + self._take(name, stream, begin, upto)
        return found

    def _first(self, stream: Stream, partition: int) -> int:
        first, _ = kafka_source.offset_ranges(self.source, stream.config.topic)
        return first.get(partition, 0)

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
    first = F.row_number().over(Window.partitionBy(KEY).orderBy(POSITION))
    kept = events.withColumn(_NUMBER, first).where(F.col(_NUMBER) == 1)
    return kept.select(*(F.col(quoted(name)) for name, _ in stream.columns))


def events_of(records: DataFrame, stream: Stream) -> DataFrame:
    """Return the events of Kafka records, as of `spark_apply.events.kafka_source.read`; records without a value none.

    Returns ``_cdc_key STRING`` (the key's JSON; null where the record is no object of these columns, or a column of the
    key is null), ``_cdc_position STRING``, ``_cdc_op STRING`` (``c``), ``_cdc_source_ms BIGINT`` (the record's
    timestamp), then the stream's columns.
    """
    with_corrupt = T.StructType([*stream.row.fields, T.StructField(_CORRUPT, T.StringType())])
    options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    at_ms = F.unix_millis("timestamp")
    row = F.from_json(F.col("value").cast("string"), with_corrupt, options)
    parsed = records.where(F.col("value").isNotNull()).select("partition", "offset", at_ms.alias("at"), row.alias("r"))
    key = F.struct(*(F.col(f"r.{quoted(name)}").alias(name) for name in stream.config.key))
    good = F.col(f"r.{_CORRUPT}").isNull()
    for name in stream.config.key:
        good &= F.col(f"r.{quoted(name)}").isNotNull()
    return parsed.select(
        F.when(good, F.to_json(key)).alias(KEY),
        F.format_string("%016x.%08x.%016x", F.greatest(F.col("at"), F.lit(0)), "partition", "offset").alias(POSITION),
        F.lit("c").alias(OP),
        F.col("at").alias(SOURCE_MS),
        *(F.col(f"r.{quoted(name)}").alias(name) for name, _ in stream.columns),
    )
