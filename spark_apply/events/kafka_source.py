"""Reads Kafka: the schema topic on the driver, the tables' topics as a stream of parsed events."""

from __future__ import annotations

import datetime as dt
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType  # type: ignore[attr-defined]
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same
from pyspark.sql.streaming.readwriter import DataStreamReader

from cdc.config.apply_config import ApplySource
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.events.typed import texts
from spark_apply.model.store import Offsets
from spark_apply.model.target_table import Version, parse_version
from spark_apply.spark.json_reader import read_json

MAX_EVENTS_PER_BATCH = 1_000_000
"""Limits a batch, so that the first one does not hold a whole topic; larger batches make cheaper merges."""

_ANSWER_WITHIN_S = 10.0
_MARKERS_WITHIN_S = 5.0
_POLL_S = 0.02  # a call waits so long for more than it has
_TAKEN = 1000
_POLL_RECORDS, _FETCH_BYTES = 5_000, 4 << 20
_EARLIEST = -2
_RECONNECT_MS = 10
_LED_WITHIN_S = 10.0
_NO_LEADER = {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
}
_FETCH_WAIT_MS = 20  # what is read is known to be there: waiting for more would only delay the end of each batch
_FULL_WAIT_MS = 5
"""So long a client waits that has fetched enough ahead; by itself it is a second."""

_Answer = TypeVar("_Answer")
_Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)

_JVM_NAMES = {"sasl.mechanisms": "sasl.mechanism", "ssl.ca.location": "ssl.truststore.location"}
_JVM_SHARED = ("security.protocol", "sasl.mechanism", "client.id", "client.rack", "metadata.max.age.ms")
OPTIONS = (*_JVM_SHARED, *_JVM_NAMES, "sasl.username", "sasl.password")
"""The client properties that an apply job accepts."""


def topics(source: ApplySource) -> dict[str, int]:
    """Return the broker's topics and their partition counts. Raises OperatorError without an answer in 10 s."""
    admin = AdminClient({**client(source), "socket.timeout.ms": int(_ANSWER_WITHIN_S * 1000)})
    try:
        found = admin.list_topics(timeout=_ANSWER_WITHIN_S).topics
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    return {name: len(topic.partitions) for name, topic in found.items()}


def topic_settings(source: ApplySource, names: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the settings of topics, by topic and name. Raises OperatorError when the broker does not answer."""
    admin = AdminClient(client(source))  # must live until its futures are done
    asked = admin.describe_configs([ConfigResource(ResourceType.TOPIC, name) for name in names])
    try:
        found = {of.name: future.result(_ANSWER_WITHIN_S) for of, future in asked.items()}
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    return {topic: {name: str(entry.value) for name, entry in settings.items()} for topic, settings in found.items()}


def position_topic(prefix: str, connector: str) -> str:
    """Return the topic in which a connector keeps its position: see `cdc.model.state`."""
    return f"{prefix}.position-{connector}"


def quarantine_topic(prefix: str, job: str) -> str:
    """Return the topic of an apply job's quarantine. It has one dot, so it is no table's topic."""
    return f"{prefix}.quarantine-{job}"


def schema_versions(source: ApplySource) -> dict[str, list[Version]]:
    """Read all committed versions of all tables, by ``schema.table``, to the present end of the schema topic.

    Raises OperatorError when the topic is missing or the broker does not answer.
    """
    topic = f"{source.topic_prefix}.schema"
    if topic not in topics(source):
        msg = f"topic {topic} does not exist at {source.bootstrap_servers}: no connector has written there"
        raise OperatorError(msg, hint="run the connector first: cdc run connector.yaml; or correct source.topic_prefix")
    found: dict[str, dict[int, Version]] = {}
    for message in committed(source, topic, 1):
        value = message.value()
        if value is not None:
            version = parse_version(value)
            found.setdefault(version.qualified, {})[version.number] = version
    return {table: list(versions.values()) for table, versions in found.items()}


def committed(source: ApplySource, topic: str, partitions: int) -> Iterator[Message]:
    """Yield the committed records of all partitions, in order within each, up to the end as it is now.

    Raises OperatorError when the broker does not answer.
    """
    unread = set(range(partitions))
    for message in _records(source, topic, dict.fromkeys(unread, 0)):
        if message.error() is None:
            yield message
        else:
            unread.discard(message.partition() or 0)
        if not unread:
            return


def _records(source: ApplySource, topic: str, begins: Mapping[int, int]) -> Iterator[Message]:
    """Yield committed records from these offsets on, and an end-of-partition error at each end; without end."""
    if not begins:
        return
    consumer = Consumer(
        {
            "fetch.queue.backoff.ms": _FULL_WAIT_MS,
            **client(source),
            "group.id": f"{source.topic_prefix}.apply-read",  # the client requires one; nothing is committed under it
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
        }
    )
    try:
        consumer.assign([TopicPartition(topic, number, offset) for number, offset in begins.items()])
        answered_at = time.monotonic()
        while True:
            messages = consumer.consume(_TAKEN, _POLL_S)
            if not messages and time.monotonic() - answered_at > _ANSWER_WITHIN_S:
                msg = f"topic {topic} cannot be read: no answer in {_ANSWER_WITHIN_S:.0f} s"
                raise OperatorError(msg, hint="are the partitions’ leaders alive?")
            for message in messages:
                answered_at = time.monotonic()
                error = message.error()
                if error is not None and error.name() != "_PARTITION_EOF":
                    raise unreachable(source, KafkaException(error))
                yield message
    finally:
        consumer.close()


def await_markers(source: ApplySource, names: Sequence[str]) -> bool:
    """Wait until read_committed readers see all that was in the topics at the call; False if 5 s were not enough.

    A commit returns to its producer before its control records are in every partition: without this wait, a run with
    ``--once`` could miss the transaction just committed.
    """
    ends = _ends(source, names, "read_uncommitted")
    until = time.monotonic() + _MARKERS_WITHIN_S
    while True:
        stable = _ends(source, names, "read_committed")
        if all(stable[place] >= end for place, end in ends.items()):
            return True
        if time.monotonic() > until:
            return False
        time.sleep(0.05)


def _ends(source: ApplySource, names: Sequence[str], isolation: str) -> dict[tuple[str, int], int]:
    return {place: end for place, (_, end) in _bounds(source, names, isolation).items()}


def _bounds(source: ApplySource, names: Sequence[str], isolation: str) -> dict[tuple[str, int], tuple[int, int]]:
    group = {"group.id": f"{source.topic_prefix}.apply-ends", "isolation.level": isolation}
    consumer = Consumer({**client(source), **group})
    try:
        known = consumer.list_topics(timeout=_ANSWER_WITHIN_S).topics
        places = [(name, number) for name in names if name in known for number in known[name].partitions]
        return {place: offset_bounds(consumer, *place) for place in places}
    except KafkaException as exc:
        raise unreachable(source, exc) from exc
    finally:
        consumer.close()


def offset_bounds(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Return a partition's first offset, and its end as the consumer may see it. Raises KafkaException."""
    place = TopicPartition(topic, partition)
    return ask_leader(lambda: consumer.get_watermark_offsets(place, timeout=_ANSWER_WITHIN_S))


def ask_leader(ask: Callable[[], _Answer]) -> _Answer:
    """Ask a broker about partitions. Raises KafkaException.

    A partition without a leader (it was just created, or its leader failed) is waited for, up to 10 s.
    """
    until = time.monotonic() + _LED_WITHIN_S
    while True:
        try:
            return ask()
        except KafkaException as exc:
            if exc.args[0].code() not in _NO_LEADER or time.monotonic() > until:
                raise
        time.sleep(0.05)


@dataclass(frozen=True, slots=True)
class LogStart:
    """The beginning of a partition that is not compacted."""

    first: int
    """The records below it were deleted."""
    end: int
    at: dt.datetime | None
    """When its first record was written; None if nothing was deleted, or nothing is left."""


def log_starts(source: ApplySource, topic: str) -> dict[int, LogStart]:
    """Return the beginnings by partition. Raises OperatorError when the broker does not answer."""
    bounds = {number: bound for (_, number), bound in _bounds(source, [topic], "read_committed").items()}
    times: dict[int, dt.datetime] = {}
    asked = {number: first for number, (first, end) in bounds.items() if 0 < first < end}
    unread = set(asked)
    for message in _records(source, topic, asked):
        number = message.partition() or 0
        if message.error() is None and number in unread:
            _, written_ms = message.timestamp()
            times[number] = dt.datetime.fromtimestamp(written_ms / 1000, dt.UTC)
        unread.discard(number)
        if not unread:
            break
    return {number: LogStart(first, end, times.get(number)) for number, (first, end) in bounds.items()}


def offset_ranges(source: ApplySource, topic: str) -> tuple[dict[int, int], dict[int, int]]:
    """Return first and end offsets by partition; the end is that of a read_committed reader."""
    found = {number: bounds for (_, number), bounds in _bounds(source, [topic], "read_committed").items()}
    return {number: first for number, (first, _) in found.items()}, {number: end for number, (_, end) in found.items()}


def committed_ends(source: ApplySource, topic: str) -> dict[int, int]:
    """Return by partition the offset behind the last record that a read_committed reader sees now."""
    return {number: end for (_, number), end in _ends(source, [topic], "read_committed").items()}


def ends_by_topic(source: ApplySource, names: Sequence[str]) -> dict[str, dict[int, int]]:
    """Return by topic what `committed_ends` gives."""
    found: dict[str, dict[int, int]] = {name: {} for name in names}
    for (name, number), end in _ends(source, names, "read_committed").items():
        found[name][number] = end
    return found


def written_ends(source: ApplySource, topic: str) -> dict[int, int]:
    """Return by partition the high watermark: open transactions count."""
    return {number: end for (_, number), end in _ends(source, [topic], "read_uncommitted").items()}


def keys_between(
    source: ApplySource, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[bytes]:
    """Yield the keys of the committed records from `begins` up to `ends`, both as `committed_ends` gives them."""
    for message in records_between(source, topic, begins, ends):
        key = message.key()
        if isinstance(key, bytes):
            yield key


def records_between(
    source: ApplySource, topic: str, begins: Mapping[int, int], ends: Mapping[int, int]
) -> Iterator[Message]:
    """Yield the committed records from `begins` up to `ends`, in order within each partition."""
    left = {number: end for number, end in ends.items() if begins.get(number, 0) < end}
    for message in _records(source, topic, {number: begins.get(number, 0) for number in left}):
        number, offset = message.partition() or 0, message.offset() or 0
        error = message.error()
        if error is None and offset < left.get(number, 0):
            yield message
        if offset >= left.get(number, 0) - (error is None):
            left.pop(number, None)
        if not left:
            return


def stream(
    spark: SparkSession, source: ApplySource, names: Sequence[str], begin: Mapping[str, Offsets] | None = None
) -> DataFrame:
    """Read the topics as a stream, from the checkpoint or else from `begin`; without it from their beginnings.

    Returns ``key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,
    timestampType INT``: committed records only. Missing offsets stop the query.
    """
    reader = _configured(spark.readStream.format("kafka"), source)
    reader = reader.option("subscribe", ",".join(names)).option("startingOffsets", _beginning(source, names, begin))
    return reader.option("maxOffsetsPerTrigger", MAX_EVENTS_PER_BATCH).load()


def _beginning(source: ApplySource, names: Sequence[str], begin: Mapping[str, Offsets] | None) -> str:
    """Write where to begin as Spark has it, which asks for each partition of each topic."""
    if begin is None:
        return "earliest"
    there = topics(source)
    return json.dumps(
        {
            name: {str(number): begin.get(name, {}).get(number, _EARLIEST) for number in range(there[name])}
            for name in names
            if name in there
        }
    )


def read(spark: SparkSession, source: ApplySource, topic: str, begin: Offsets, end: Offsets) -> DataFrame:
    """Read the committed records of a topic from `begin` up to `end`; columns as of `stream`, ``-2`` is the beginning.

    Nothing is read before an action, and each action reads again.
    """
    first = {str(partition): begin.get(partition, _EARLIEST) for partition in end}
    last = {str(partition): offset for partition, offset in end.items()}
    reader = _configured(spark.read.format("kafka"), source)
    reader = reader.option("subscribe", topic).option("startingOffsets", json.dumps({topic: first}))
    return reader.option("endingOffsets", json.dumps({topic: last})).load()


def _configured(reader: _Reader, source: ApplySource) -> _Reader:
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": str(_FETCH_WAIT_MS),
        "kafka.max.poll.records": str(_POLL_RECORDS),
        "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
        "failOnDataLoss": "true",
    }
    options |= {f"kafka.{name}": value for name, value in jvm_options(source.options).items()}
    return reader.options(**options)


def parse(records: DataFrame, columns: tuple[str, ...] | None = None) -> DataFrame:
    """Parse Kafka records (``key, value, topic, partition, offset``) to events; tombstones are left out.

    Returns ``topic STRING, partition INT, offset BIGINT, key STRING, op STRING, position STRING, schema_version INT,
    source_ms BIGINT, after STRING`` (JSON of the new row, null in a delete), ``valid BOOLEAN`` (false: this is no event
    of the contract, other columns may be null). Inside `after`, strings are untouched and numbers keep their value.
    With `columns`, `after` is ``STRUCT<column STRING, …>``, their texts: the JSON is read once instead of twice.
    """
    read, event = _columns(columns)
    return records.where(read[0]).select(*read[1:]).select(*event)


@functools.lru_cache
def _columns(columns: tuple[str, ...] | None) -> tuple[list[Column], list[Column]]:
    """Return columns: a condition and what is read from a record; then those of an event."""
    event = read_json(F.col("value").cast("string"), _envelope(columns))
    after, op = F.col("event.after"), F.col("event.op")
    is_row = after.startswith("{") if columns is None else after.isNotNull()
    position, version = F.col("event.source.position"), F.col("event.source.schema_version")
    whole = (op == "d") | (op.isin("r", "c", "u") & is_row)
    known = F.col("key").isNotNull() & position.isNotNull() & version.isNotNull()
    at = [F.col("topic"), F.col("partition"), F.col("offset")]
    return (
        [F.col("value").isNotNull(), *at, F.col("key").cast("string").alias("key"), event.alias("event")],
        [
            *at,
            F.col("key"),
            op.alias("op"),
            position.alias("position"),
            version.alias("schema_version"),
            F.col("event.source.ts_ms").alias("source_ms"),
            after.alias("after"),
            F.coalesce(whole & known, F.lit(False)).alias("valid"),  # noqa: FBT003 - a literal column
        ],
    )


def _envelope(columns: tuple[str, ...] | None) -> T.StructType:
    """Return the type that an event's value is read as; leaving out what is not needed saves time."""
    row = T.StringType() if columns is None else texts(columns)
    position = T.StructField("position", T.StringType())
    source = [position, T.StructField("schema_version", T.IntegerType()), T.StructField("ts_ms", T.LongType())]
    fields = {"op": T.StringType(), "after": row, "source": T.StructType(source)}
    return T.StructType([T.StructField(name, kind) for name, kind in fields.items()])


def jvm_options(options: Mapping[str, str]) -> dict[str, str]:
    """Translate client properties of librdkafka to the JVM client's. Raises ConfigError for one without counterpart."""
    named = {_JVM_NAMES.get(name, name): value for name, value in options.items()}
    unknown = sorted(set(named) - {*_JVM_SHARED, "ssl.truststore.location", "sasl.username", "sasl.password"})
    if unknown:
        msg = f"source.options.{unknown[0]}: the apply job cannot hand this to Spark's Kafka client"
        raise ConfigError(msg, hint=f"allowed here: {', '.join(sorted(OPTIONS))}")
    found = {name: value for name, value in named.items() if name in _JVM_SHARED}
    if "ssl.truststore.location" in named:
        found |= {"ssl.truststore.location": named["ssl.truststore.location"], "ssl.truststore.type": "PEM"}
    if "sasl.username" in named:
        login = "scram.ScramLoginModule" if "SCRAM" in named.get("sasl.mechanism", "") else "plain.PlainLoginModule"
        user, password = (_quoted(named.get(name, "")) for name in ("sasl.username", "sasl.password"))
        found["sasl.jaas.config"] = (
            f"org.apache.kafka.common.security.{login} required username={user} password={password};"
        )
    return found


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def client(source: ApplySource) -> dict[str, str | int | float | bool]:
    """Return the settings of every Kafka client here. They live shortly, so the reconnect backoff is short."""
    soon = {"reconnect.backoff.ms": _RECONNECT_MS}
    return {**soon, **source.options, "bootstrap.servers": source.bootstrap_servers, "log_level": 0}


def unreachable(source: ApplySource, exc: KafkaException) -> OperatorError:
    """Translate the client's error to OperatorError."""
    reason = exc.args[0].name() if exc.args and hasattr(exc.args[0], "name") else type(exc).__name__
    msg = f"Kafka at {source.bootstrap_servers} does not answer ({reason})"
    return OperatorError(msg, hint="is the broker up, and source.bootstrap_servers right? cdc dev up starts one here")
