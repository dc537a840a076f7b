"""Folds one topic in, from some offsets to its present end, as one batch."""

from __future__ import annotations

from dataclasses import replace

from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplySource
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.stream import read_topic
from spark_apply.job.batch.microbatch import Applier
from spark_apply.model.completeness import Mark
from spark_apply.model.store import EVERYTHING, Offsets, Visibility, is_whole


def fold(spark: SparkSession, source: ApplySource, applier: Applier, topic: str, begin: Offsets) -> Offsets:
    """Fold a topic in from `begin` to its present end, as one batch; return that end."""
    end = committed_ends(source, topic)
    if any(at > begin.get(partition, 0) for partition, at in end.items()):
        route = applier.routes[topic]
        whole = {
            (topic, name): _visible(store.mark(route.table), end)
            for name, store in route.stores.items()
            if is_whole(store)
        }
        applier(read_topic(spark, source, topic, begin, end), whole)
    return end


def fill(spark: SparkSession, source: ApplySource, applier: Applier, topic: str) -> Offsets | None:
    """Fill an empty copy with a topic to its present end, and return that end; None: discard the copy."""
    end = committed_ends(source, topic)
    return end if applier.fill(read_topic(spark, source, topic, {}, end)) else None


def _visible(mark: Mark | None, end: Offsets) -> Visibility:
    """Let a copy take in what lies before `end`, and show no more than before."""
    if mark is None:
        return Visibility(Mark(end, None), "")
    return Visibility(replace(mark, ends=end), mark.complete.position if mark.complete else EVERYTHING)
