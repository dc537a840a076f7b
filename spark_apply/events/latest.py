"""Folds events: keeps the newest of each key by position; of a history's log every event, once. DataFrame -> DataFrame.

Why the newest event of a batch is enough
=========================================
Positions order all events of a key, and an event holds the whole row or a delete. So what a set of events says of a key
is its event with the greatest position, and max(A ∪ B) = max(max(A), max(B)). Maximum is associative, commutative and
idempotent: it makes no difference how events are divided into batches, in what order batches come, or how often an
event comes. A store that replaces a row only with one of a greater position computes the same maximum, one batch after
the other.

Deletes are the exception: a deleted row leaves no position in the store to compare with, so an older event that comes
after the delete would bring the row back. Two rules prevent it. The job hands no event over that the copy has taken in
already: `not_again` tells by the copy's mark. And where a topic is read again from its beginning, the events of a key
come in the order of their positions, because a key has one partition: the delete comes again as well, after everything
that it deletes.

A store that shows whole transactions alone (`WholeStore`) shows the maximum over the events before a limit. The newest
event of a batch may lie behind the limit, so that store gets the newest before it, and every event from it on: see
`limits`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.events.typed import OFFSET, PARTITION, POSITION
from spark_apply.model.completeness import TakenIn

_OF_EVENT = ("partition", "offset", "op", "position", "schema_version", "source_ms", "after")


def latest(events: DataFrame, limits: Mapping[str, str] | None = None) -> DataFrame:
    """Return the newest event of each topic and key; a record that is no event is a row of its own.

    `limits` gives positions by topic: there, it is the newest event before the limit, and every event from it on.
    `events` is what `spark_apply.events.envelope.parse` gives. Returns its columns and ``events BIGINT``: how many
    events a row stands for.
    """
    ahead, apart, order, newest, counted = _columns()
    if limits:
        known = F.create_map(*(F.lit(part) for pair in limits.items() for part in pair))
        limit = F.try_element_at(known, F.col("topic"))
        apart = apart.when(order >= limit, order)
    found = events.groupBy(ahead, "key", "topic", apart.alias("apart")).agg(newest, counted)
    return found.select("topic", "key", "newest.*", "events")


def latest_alone(events: DataFrame) -> DataFrame:
    """Do what `latest` does for one topic, cheaper: a record that is no event makes its whole key invalid.

    To keep such a record apart from its key's events, as `latest` does, is a good part of what that costs.
    """
    ahead, newest, counted, valid = _columns_alone()
    return events.groupBy(ahead, "key").agg(newest, counted, valid).select("key", "newest.*", "events", "valid")


def not_again(rows: DataFrame, had: TakenIn) -> DataFrame:
    """Return typed newest events (`spark_apply.events.typed`) without those that a copy has taken in before.

    Where the newest event of a key is one of them, so are all that it stands for.
    """
    new = F.col(POSITION) >= had.before
    if had.ends:
        ends = F.create_map(*(F.lit(part) for pair in had.ends.items() for part in pair))
        new &= F.col(OFFSET) >= F.coalesce(F.try_element_at(ends, F.col(PARTITION)), F.lit(0))
    return rows.where(new)


@functools.cache
def _columns() -> tuple[Column, Column, Column, Column, Column]:
    """Return columns: a sort prefix, what keeps records apart that are no events, the order, newest event, count.

    The prefix is a hash, since Spark compares the first eight bytes of the first column before anything else, and the
    first bytes of topics and keys are alike.
    """
    order = F.when(F.col("valid"), F.col("position")).otherwise("")
    return (
        F.xxhash64("key").alias("ahead"),
        F.when(~F.col("valid"), F.concat_ws("/", "partition", "offset")),
        order,
        F.max_by(F.struct(*_OF_EVENT, "valid"), order).alias("newest"),
        F.count(F.lit(1)).alias("events"),
    )


@functools.cache
def _columns_alone() -> tuple[Column, Column, Column, Column]:
    """Return columns: a sort prefix, the newest event, the count, whether all records are events."""
    return (
        F.xxhash64("key").alias("ahead"),
        F.max_by(F.struct(*_OF_EVENT), "position").alias("newest"),
        F.count(F.lit(1)).alias("events"),
        (F.count_if(~F.col("valid")) == 0).alias("valid"),
    )
