"""Reads topics by Spark: as a stream, or from one offset to another."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TypeVar

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming.readwriter import DataStreamReader

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.client import FETCH_WAIT_MS, jvm_options
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.model.store import Offsets

MAX_EVENTS_PER_BATCH = 1_000_000
"""Limits a batch, so that the first one does not hold a whole topic; larger batches make cheaper merges."""

_POLL_RECORDS, _FETCH_BYTES = 5_000, 4 << 20
_EARLIEST = -2

_Reader = TypeVar("_Reader", DataFrameReader, DataStreamReader)


def stream_topics(
    spark: SparkSession, source: ApplySource, names: Sequence[str], begin: Mapping[str, Offsets] | None = None
) -> DataFrame:
    """Read the topics as a stream, from the checkpoint or else from `begin`; without it from their beginnings.

    Returns ``key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP,
    timestampType INT``: committed records only. Missing offsets stop the query.
    """
    reader = _configured(spark.readStream.format("kafka"), source)
    reader = reader.option("subscribe", ",".join(names)).option("startingOffsets", _beginning(source, names, begin))
    return reader.option("maxOffsetsPerTrigger", MAX_EVENTS_PER_BATCH).load()


def read_topic(spark: SparkSession, source: ApplySource, topic: str, begin: Offsets, end: Offsets) -> DataFrame:
    """Read the committed records of a topic from `begin` up to `end`; columns as of `stream`, ``-2`` is the beginning.

    Nothing is read before an action, and each action reads again.
    """
    first = {str(partition): begin.get(partition, _EARLIEST) for partition in end}
    last = {str(partition): offset for partition, offset in end.items()}
    reader = _configured(spark.read.format("kafka"), source)
    reader = reader.option("subscribe", topic).option("startingOffsets", json.dumps({topic: first}))
    return reader.option("endingOffsets", json.dumps({topic: last})).load()


def _beginning(source: ApplySource, names: Sequence[str], begin: Mapping[str, Offsets] | None) -> str:
    """Write where to begin as Spark has it, which asks for each partition of each topic."""
    if begin is None:
        return "earliest"
    there = existing_topics(source, names)
    return json.dumps(
        {
            name: {str(number): begin.get(name, {}).get(number, _EARLIEST) for number in range(there[name])}
            for name in names
            if name in there
        }
    )


def _configured(reader: _Reader, source: ApplySource) -> _Reader:
    options = {
        "kafka.bootstrap.servers": source.bootstrap_servers,
        "kafka.isolation.level": "read_committed",
        "kafka.fetch.max.wait.ms": str(FETCH_WAIT_MS),
        "kafka.max.poll.records": str(_POLL_RECORDS),
        "kafka.max.partition.fetch.bytes": str(_FETCH_BYTES),
        "failOnDataLoss": "true",
    }
    options |= {f"kafka.{name}": value for name, value in jvm_options(source.options).items()}
    return reader.options(**options)
