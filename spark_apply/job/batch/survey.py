"""Reads a batch's newest events, and counts what they are before they are checked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import ExitStack

from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.storagelevel import StorageLevel

from spark_apply.events.envelope import parse
from spark_apply.events.latest import latest, latest_alone
from spark_apply.events.projected import columns_read, project
from spark_apply.model.target_table import TargetTable

ALSO = VALID, EVENTS, VERSION = "_cdc_valid", "_cdc_events", "_cdc_version"
"""Columns about the events, while a batch is checked."""


def read_alone(records: DataFrame, table: TargetTable, apart: Mapping[str, str] | None = None) -> DataFrame:
    """Return the rows of the only topic, with `ALSO`; not yet checked."""
    events = parse(records, columns_read(table))
    found = latest(events, apart) if apart else latest_alone(events)
    return project(found.select(*marked()), table, *ALSO, parsed=True)


def cached(stack: ExitStack, rows: DataFrame) -> DataFrame:
    """Cache `rows` until `stack` ends."""
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    stack.callback(rows.unpersist)
    return rows


@functools.cache
def marked() -> list[Column]:
    """Return the columns of newest events, and those of `ALSO`."""
    return [
        *(F.col(name) for name in ("key", "partition", "offset", "position", "schema_version", "source_ms", "after")),
        F.when(F.col("valid"), F.col("op")).otherwise("d").alias("op"),  # expressions see no row of a delete
        F.col("valid").alias(VALID),
        F.col("events").alias(EVENTS),
        F.col("schema_version").alias(VERSION),
    ]


def survey(found: DataFrame) -> list[Row]:
    """Return by topic ``topic`` and what `aggregates` counts."""
    return found.groupBy("topic").agg(*aggregates("valid", "events", "schema_version", "position")).collect()


@functools.cache
def aggregates(valid: str, events: str, version: str, position: str) -> list[Column]:
    """Return aggregates over columns with these names: ``events, keys, version, first, position, non_events``.

    All but the last count events alone; ``first`` and ``position`` are the least and the greatest position.
    """
    is_event = F.col(valid)
    return [
        F.sum(F.when(is_event, F.col(events))).alias("events"),
        F.count_if(is_event).alias("keys"),
        F.max(F.when(is_event, F.col(version))).alias("version"),
        F.min(F.when(is_event, F.col(position))).alias("first"),
        F.max(F.when(is_event, F.col(position))).alias("position"),
        F.count_if(~is_event).alias("non_events"),
    ]
