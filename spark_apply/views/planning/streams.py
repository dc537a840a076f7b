"""Reads streams of events that other applications write to Kafka, for views to join with captured tables.

A stream is a topic of objects, in JSON or Avro. Each is a row; of several with one key the earliest one counts, by the
broker's or producer's timestamp, then by partition and offset: which one that is does not depend on when they are read.
Events of a stream have no position in the source's log. Those that are there when a step is taken belong to it, and
the offsets up to which they were read are published with it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from cdc.config import registry
from cdc.config.apply_config import ApplySource
from cdc.config.views import STREAM_SCHEMA, StreamConfig, ViewsConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError
from cdc.model.state import State
from cdc.model.suggestion import did_you_mean
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.kafka.topics import all_topics, existing_topics
from spark_apply.events.typed import KEY, OP, POSITION, SOURCE_MS
from spark_apply.model.types import kind_of
from spark_apply.spark.json_reader import CORRUPT, LEVELS_OF_VARIANTS, read_json
from spark_apply.spark.names import quoted
from spark_apply.views.model.uses import TIMES, TableUse, Way
from spark_apply.views.model.values import Columns
from spark_apply.views.planning.avro_streams import AvroRecords, SchemaOf

_NUMBER: Final = "_cdc_number"
_LAST_YEAR: Final = 9999
_SECONDS: Final = (-62_135_596_800, 253_402_300_799)
"""From the year 1 to the year 9999: milliseconds, and what is smaller, lie behind it, but for those until 1978."""
_BEGINS_WITH_A_YEAR: Final = r"^\s*[+-]?([0-9]{4}\s*$|[0-9]{4,6}-)"
_EVENT: Final = "_cdc_event"
_END: Final = "_cdc_end"


@dataclass(frozen=True, slots=True)
class Stream:
    """A stream of views.yaml."""

    name: str
    config: StreamConfig
    columns: Columns
    row: T.StructType
    avro: AvroRecords | None = None
    """What reads its records; None: they are JSON."""

    @property
    def definition(self) -> str:
        """What its rows depend on besides the topic."""
        config = self.config
        more = [config.format] if self.avro is not None else []
        more += [config.sent, config.received] if config.sent and config.received else []
        return json.dumps([self.row.simpleString(), list(config.key), config.time, config.keep_ms, *more])

    @property
    def use(self) -> TableUse:
        """How views read it."""
        of = self.config
        return TableUse(f"{STREAM_SCHEMA}.{self.name}", Way.EVENTS, of.time, of.keep_ms, of.sent, of.received)

    def published(self, spark: SparkSession, source: ApplySource, at: State) -> DataFrame:
        """Return the events, as of `events_of`, that a step has read, by the state that was published with it."""
        told = cast("Mapping[str, Mapping[str, int]]", at.offset.get("streams") or {})
        ends = {int(partition): end for partition, end in told.get(self.name, {}).items()}
        return events_of(read_topic(spark, source, self.config.topic, {}, ends), self)


def streams_of(config: ViewsConfig) -> dict[str, Stream]:
    """Return the streams of a file by name. Raises ConfigError for one that cannot be read as it says."""
    schema_of: SchemaOf | None = None
    if config.registry is not None and any(stream.format == "avro" for stream in config.streams.values()):
        schema_of = registry.part("sinks.client.schema_registry:open_schemas")(config.registry.client)
    return {name: _stream(name, stream, schema_of) for name, stream in config.streams.items()}


def _stream(name: str, config: StreamConfig, schema_of: SchemaOf | None) -> Stream:
    try:
        row = T.StructType.fromDDL(config.schema)
    except PySparkException as exc:
        msg = f"streams.{name}.schema: Spark does not take it as columns"
        raise ConfigError(msg, hint="names and types of Spark: id BIGINT, at TIMESTAMP, page STRING") from exc
    if not isinstance(row, T.StructType):
        raise ConfigError(f"streams.{name}.schema: it names no columns", hint="id BIGINT, at TIMESTAMP, page STRING")
    columns = list[tuple[str, Kind]]()
    for column in row.fields:
        if (
            twice := next((other for other, _ in columns if other.casefold() == column.name.casefold()), None)
        ) is not None:
            msg = f"streams.{name}.schema: {twice} and {column.name} are one name to the engine"
            raise ConfigError(msg, hint="leave one of them out: members that it does not name are passed over")
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
    require_times(f"streams.{name}", TableUse(name, Way.EVENTS, config.time, None, config.sent, config.received), kinds)
    avro = None
    if config.format == "avro" and schema_of is not None:
        avro = AvroRecords(name, schema_of, goes_on=config.on_loss == "go_on")
    return Stream(name, config, columns, row, avro)


def require_times(where: str, use: TableUse, kinds: Mapping[str, Kind]) -> None:
    """Raise ConfigError where the time of rows is no column with a time, or none that could be corrected."""
    for key, column in zip(("time", "sent", "received"), use.times, strict=False):
        if column not in kinds:
            hint = did_you_mean(column, kinds, f"columns: {', '.join(kinds)}")
            raise ConfigError(f"{where}.{key}: there is no column {column}", hint=hint)
        if kinds[column].name not in TIMES:
            times = [name for name, kind in kinds.items() if kind.name in TIMES]
            msg = f"{where}.{key}: {column} is {kinds[column].name}, which is no time"
            way = f"one of {', '.join(times)}" if times else "a column of type timestamp, timestamptz, datetime or date"
            raise ConfigError(msg, hint=way)
    of = {kinds[column].name for column in use.times}
    if use.sent is not None and (len(of) > 1 or "date" in of):
        msg = f"{where}: {', '.join(use.times)} are {', '.join(sorted(of))}: one cannot be corrected by the others"
        raise ConfigError(msg, hint="name three columns of one type, timestamp or timestamptz")


def require_topics(source: ApplySource, streams: Mapping[str, Stream]) -> None:
    """Raise ConfigError for a stream whose topic does not exist."""
    there = existing_topics(source, [stream.config.topic for stream in streams.values()])
    for name, stream in streams.items():
        if stream.config.topic not in there:
            msg = f"streams.{name}.topic: there is no topic {stream.config.topic}"
            raise ConfigError(
                msg, hint=did_you_mean(stream.config.topic, all_topics(source), "create it first, or correct the name")
            )


def rows_of(events: DataFrame, stream: Stream) -> DataFrame:
    """Return the rows that a stream has by all its events: of each key the earliest one that is not late."""
    in_time = events.where(F.col(KEY).isNotNull() & ~late_by(stream.use))
    return earliest(in_time, stream.config.key).select(*(F.col(quoted(name)) for name, _ in stream.columns))


def late_by(use: TableUse) -> Column:
    """Return whether an event of a stream is late."""
    if use.time is None or use.keep_ms is None:
        return F.lit(False)  # noqa: FBT003 - a literal column
    begin = F.timestamp_millis(F.col(SOURCE_MS) - F.lit(use.keep_ms)).cast("timestamp_ntz")
    return F.coalesce(time_of(use) <= begin, F.lit(False))  # noqa: FBT003 - the same


def time_of(use: TableUse) -> Column:
    """Return the time of a stream's row."""
    return F.expr(use.instant(lambda name: f"CAST({quoted(name)} AS TIMESTAMP_NTZ)"))


def earliest(events: DataFrame, key: Sequence[str]) -> DataFrame:
    """Return the earliest event of each key."""
    first = F.row_number().over(Window.partitionBy(*map(quoted, key)).orderBy(POSITION))
    return events.withColumn(_NUMBER, first).where(F.col(_NUMBER) == 1).drop(_NUMBER)


def _whole(row: T.StructType) -> T.StructType:
    """Return the type of an event between two members of ours.

    Spark stops reading behind the first value, and takes the first one of an array: what follows would be passed over.
    """
    event = T.StructType([T.StructField(field.name, _as_read(field.dataType)) for field in row.fields])
    of = {_EVENT: event, _END: T.BooleanType(), CORRUPT: T.StringType()}
    return T.StructType([T.StructField(name, kind) for name, kind in of.items()])


def _as_read(kind: T.DataType) -> T.DataType:
    """Return the type that JSON is read as: of times and dates it must be seen what stands there.

    Spark's reader takes every whole number for seconds, and lets one of microseconds overflow into another time; takes
    a time of day for one of today, whenever it reads it; and a date without hyphens for a number of days.
    """
    if isinstance(kind, T.ArrayType):
        return T.ArrayType(_as_read(kind.elementType))
    return T.VariantType() if isinstance(kind, T.TimestampType | T.DateType) else kind


def _value(found: Column, kind: T.DataType) -> Column:
    """Return the value of a column that was read as `_as_read` says; null, too, where a time or date is none."""
    if isinstance(kind, T.ArrayType):
        return F.transform(found, lambda element: _value(element, kind.elementType))
    if not isinstance(kind, T.TimestampType | T.DateType):
        return found
    found = _without_parts(found)
    what, text = F.schema_of_variant(found), F.try_variant_get(found, "$", "string")
    value = F.when((what == "STRING") & text.rlike(_BEGINS_WITH_A_YEAR), text.try_cast(kind))
    if isinstance(kind, T.TimestampType):
        seconds = F.try_variant_get(found, "$", "bigint")
        value = value.when((what == "BIGINT") & seconds.between(*_SECONDS), F.timestamp_seconds(seconds))
    return value


def _without_parts(found: Column) -> Column:
    """Return a variant, or null where it is an object or an array.

    Spark asks for the types, or the text, of such a one by a call for each level, as it makes it: where a thread's
    stack is too small for them, the JVM ends.
    """
    kinds = ("array<variant>", "map<string,variant>")
    parts = [F.try_variant_get(found, "$", kind).isNotNull() for kind in kinds]
    return F.when(~(parts[0] | parts[1]), found)


def _is_lost(found: Column, value: Column, kind: T.DataType) -> Column:
    """Whether what was read is no value of its column, and not null."""
    if isinstance(kind, T.ArrayType):
        element = kind.elementType
        return F.exists(found, lambda each: _is_lost(each, _value(each, element), element))
    if not isinstance(kind, T.TimestampType | T.DateType):
        return F.lit(False)  # noqa: FBT003 - a literal column
    return found.isNotNull() & ~F.is_variant_null(found) & value.isNull()


def events_of(records: DataFrame, stream: Stream) -> DataFrame:
    """Return the events of Kafka records, as of `events.kafka.stream.read_topic`; records without a value none.

    Returns ``_cdc_key STRING`` (the key as text, whose times have milliseconds alone; null where the record is no
    object of these columns and nothing besides, is nested deeper than `LEVELS_OF_VARIANTS`, a column of the key is
    null, or a time is none until 9999),
    ``_cdc_position STRING``,
    ``_cdc_op STRING`` (``c``), ``_cdc_source_ms BIGINT`` (the record's timestamp), then the stream's columns.
    """
    at_ms = F.unix_millis("timestamp")
    text = F.col("value").cast("string") if stream.avro is None else stream.avro.as_json(records)
    whole = F.concat(F.lit(f'{{"{_EVENT}":'), text, F.lit(f',"{_END}":true}}'))
    read = read_json(whole, _whole(stream.row), levels=LEVELS_OF_VARIANTS + 1)  # with ours
    parsed = records.where(F.col("value").isNotNull()).select(
        *("partition", "offset", at_ms.alias("at"), read[_EVENT].alias("r")),
        (read[CORRUPT].isNull() & read[_END] & F.is_valid_utf8(text)).alias("is_one"),
    )
    found = {field.name: (F.col(f"r.{quoted(field.name)}"), field.dataType) for field in stream.row.fields}
    values = {name: _value(*of) for name, of in found.items()}
    good = F.coalesce("is_one", F.lit(False))  # noqa: FBT003 - a value
    for name in stream.config.key:
        good &= values[name].isNotNull()
    for name, kind in stream.columns:
        good &= ~F.coalesce(_is_lost(found[name][0], values[name], found[name][1]), F.lit(False))  # noqa: FBT003 - the same
        if kind.name in TIMES and kind.name != "date":
            good &= F.coalesce(F.year(values[name]) <= _LAST_YEAR, F.lit(True))  # noqa: FBT003 - the same
    return parsed.select(
        F.when(good, F.to_json(F.struct(*(values[name].alias(name) for name in stream.config.key)))).alias(KEY),
        F.format_string("%016x.%08x.%016x", F.greatest(F.col("at"), F.lit(0)), "partition", "offset").alias(POSITION),
        F.lit("c").alias(OP),
        F.col("at").alias(SOURCE_MS),
        *(values[name].alias(name) for name, _ in stream.columns),
    )
