"""Folds batch after batch into the copies, and does between two of them what is due."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from cdc.model.errors import CdcError
from cdc.model.meter import JobState
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.offsets import ends_by_topic
from spark_apply.events.kafka.stream import stream_topics
from spark_apply.events.kafka.topics import why_unread
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.catch_up.asides import AsideWatch
from spark_apply.job.catch_up.new_tables import TableWatch
from spark_apply.job.catch_up.swaps import SwapWatch
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.place import Place
from spark_apply.job.copies.maintenance import MaintenanceSchedule
from spark_apply.job.copies.route import Route
from spark_apply.job.pace import JobFigures, Pace
from spark_apply.job.retry import fold_batch
from spark_apply.job.start import Start
from spark_apply.job.topics.identity import OtherTopicError
from spark_apply.job.topics.retention import recovery_command
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Ends
from spark_apply.model.store import FedStore
from spark_apply.model.upkeep import Maintained
from spark_apply.spark.failures import waited_for_kafka
from spark_apply.spark.query_failures import raise_failure, recorded, translated

TRIGGER_MS, FILES_TRIGGER_MS = 200, 1000
"""The shortest time between two batches; the second for stores in which each batch leaves files to compact."""
_LOOK_S, _ASK_S = 0.1, 1.0
"""How often is looked what is due; and how often is asked for more: Spark, by a call into the JVM, whether the query
runs, and stores whether something has come that is not of their tables."""
_TOPICS_S = 5.0
"""How often the brokers are asked, while a batch runs, whether its topics are still there."""
_NOTED_S, _NOTED_WITHIN_S = 0.02, 5.0
"""How often, and for how long, a job that ends asks whether Spark has noted its last batch."""
_NAMED = 10
"""So many tables of a store are named when the job starts."""


@dataclass(slots=True)
class BatchLoop:
    """Follows the topics: batches are folded in on Spark's thread, watches look between two of them on the caller's."""

    start: Start
    publisher: WatermarkPublisher
    swaps: SwapWatch
    asides: AsideWatch
    tables: TableWatch
    maintenance: MaintenanceSchedule
    at: Place
    figures: JobFigures
    once: bool
    stop: threading.Event
    took_all: bool = False
    """Whether a run with `once` is through."""
    follows: bool = False
    """Whether the query was begun: all brokers that were asked for that have answered."""
    _until: Ends = field(default_factory=dict)
    """With `once`: up to where the topics are read."""
    _last: int | None = None
    """The number of the last batch that was applied."""
    _idle: threading.Lock = field(default_factory=threading.Lock)
    """Held while a batch is applied."""
    _topics_at: float = 0.0
    """When the topics of the running batch are asked for, on the monotonic clock."""
    _suspected: bool = False
    """Whether one of them was not there."""
    _ending: threading.Event = field(default_factory=threading.Event)
    _failures: list[Exception] = field(default_factory=list)
    _pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self._pace = Pace(self.start.applier.counts)

    def run(self, topics: Sequence[str]) -> Ends | None:
        """Follow the topics until a run with `once` is through, the job is to stop, or it fails.

        Return what all copies have that go on, where new tables have come: they are followed together from there.
        """
        query = self._begin(topics)
        self.follows = query is not None
        self.start.tell(f"following the topics; {_copies(self.start.applier)}")
        self.figures.meter.becomes(JobState.FOLLOWING)
        failed = False
        try:
            failed = query is not None and self._watch(query)
        except Exception as exc:  # noqa: BLE001 - raised below, as a failed batch is
            self._fails(query, exc)
        finally:
            self._ending.set()
            self._await_batch(query)
            self._end(query)
        if self._failures or failed:
            self._raise_no_answer(query)
            if not (self._failures and isinstance(self._failures[0], CdcError)):
                self.at.topics.require()  # one that is gone, or another by now, Spark tells in its own words
            recovery, checkpoint = recovery_command((), ()), self.at.checkpoint
            raise_failure(query, self._failures, recovery=recovery, checkpoint=checkpoint)
        self.took_all = self._is_through() or (self.once and query is None)
        self.publisher.publish_pending()
        self.maintenance.look(now=self.once and not self.stop.is_set())
        return self.publisher.every_end() if self.tables.found and not self.stop.is_set() else None

    def _fails(self, query: StreamingQuery | None, exc: Exception) -> None:
        """Note a failure. A batch that reads a topic that is gone is stopped: it would wait, minutes at a time."""
        self._failures.append(exc)
        if query is not None and isinstance(exc, OtherTopicError):
            self.start.asides.over = True  # what the stop ends is no copy's fault, and not tried again
            self._stop(query)

    def _await_batch(self, query: StreamingQuery | None) -> None:
        """Wait for a running batch, which is finished first, unless a topic is gone meanwhile."""
        while not self._idle.acquire(timeout=_LOOK_S):
            try:
                self._look_at_topics()
            except OtherTopicError as exc:
                self._fails(query, exc)
        self._idle.release()

    def _raise_no_answer(self, query: StreamingQuery | None) -> None:
        """Raise NoAnswerError if the query, or a batch, has failed because no broker answers, or leads a partition."""
        cause = self._failures[0] if self._failures else query.exception() if query is not None else None
        error = cause if isinstance(cause, NoAnswerError) else None
        if cause is not None and waited_for_kafka(cause):
            error = why_unread(self.start.config.source, self.start.applier.routes)
        if error is not None:
            raise error from cause

    def _begin(self, topics: Sequence[str]) -> StreamingQuery | None:
        """Compare copies, topics and checkpoint, and start the query; None: a run with `once` has nothing to read."""
        config, spark, tell = self.start.config, self.start.spark, self.start.tell
        writer = stream_topics(spark, config.source, topics, self.at.since).writeStream.queryName(config.name)
        writer = writer.option("checkpointLocation", self.at.checkpoint).foreachBatch(self._apply)
        # Not `availableNow`: it cannot go on from an unfinished batch where partitions were added since (Spark 4.0.0).
        every = "100 milliseconds" if self.once else _interval(self.start.applier.routes)
        writer = writer.trigger(processingTime=every)
        try:
            self.swaps.look(now=True)
            applied = self.at.begin(spark, tell)
            self.publisher.begin(applied, checkpoint=self.at.checkpoint)
            self.start.asides.forget_others()
            if self.start.applier.unread is not None:
                self.start.applier.unread.begin(topics)
            self.start.search_rest()
            if self.once:  # otherwise their turn comes between two batches: the others do not wait for them
                self.asides.look(now=True)
            self._until = self.at.left(ends_by_topic(config.source, topics)) if self.once else {}
            return None if self.once and self.publisher.has_read(self._until) else writer.start()
        except CdcError:
            raise
        except Exception as exc:
            raise translated(exc, recovery=recovery_command((), ())) from exc

    def _apply(self, records: DataFrame, batch_id: int) -> None:
        """Fold a batch in, and publish what is complete with it."""
        with self._idle:
            if self.stop.is_set() or self._ending.is_set():
                msg = "stopped before this batch"
                raise InterruptedError(msg)  # a return would mean to Spark that the batch is done
            start, publisher, began = self.start, self.publisher, time.monotonic()
            self._topics_at, self._suspected = began + _TOPICS_S, False
            with recorded(self._failures):
                ends = checkpoints.ends_of(start.spark, self.at.checkpoint, batch_id)
                start.asides.containing = True
                start.applier.look_at_kept()
                visibility = fold_batch(start.applier, self.swaps, records, publisher, ends, asides=start.asides)
                self.at.topics.require()
                publisher.applied(ends, visibility)
                self._last = batch_id
            took_s = time.monotonic() - began
            self.asides.share_s = took_s / 2
            self.figures.applied(took_s)
            start.tell(self._pace.line(start.applier.batches, took_s=took_s, source_ms=publisher.source_ms()))

    def _watch(self, query: StreamingQuery) -> bool:
        """Look now and then until the run is over; return whether the query ended by itself."""
        asks_at = 0.0
        while True:
            asks = time.monotonic() >= asks_at
            if asks or self._failures:  # which end the query
                if not query.isActive:
                    return not self.stop.is_set()
                asks_at = time.monotonic() + _ASK_S
            if self.stop.wait(_LOOK_S) or self._is_through() or self.tables.found:
                return False
            self._look(asks=asks)

    def _is_through(self) -> bool:
        """Whether a run with `once` is, and Spark has noted that its last batch was applied."""
        return self.once and self._last is not None and self.publisher.has_read(self._until) and self._is_noted()

    def _is_noted(self) -> bool:
        """Whether Spark has noted the last batch, if there is one."""
        last = self._last
        return last is None or checkpoints.is_committed(self.start.spark, self.at.checkpoint, last)

    def _await_note(self, query: StreamingQuery) -> None:
        """Wait until Spark has noted the last batch, or the query has ended, for some seconds."""
        until = time.monotonic() + _NOTED_WITHIN_S
        while not self._is_noted() and query.isActive and time.monotonic() < until:
            time.sleep(_NOTED_S)

    def _look(self, *, asks: bool) -> None:
        """Do what is due between two batches; `asks`: and what is looked at by asking."""
        self.figures.meter.moves()
        if self._idle.acquire(blocking=False):  # otherwise a batch is running, which does the same
            try:
                self.figures.meter.waits()  # a copy may be caught up, or a table compacted
                self.start.asides.containing = True
                self.swaps.look()
                self.asides.look()
                self.publisher.publish_pending(self._fed() if asks else ())
                if not self.once:
                    self.tables.look()
                self.maintenance.look()
                self.figures.look()
            finally:
                self._idle.release()
                self.figures.meter.moves()
        else:
            self._look_at_topics()

    def _look_at_topics(self) -> None:
        """Raise OtherTopicError if a topic is gone under a batch that runs for long.

        The brokers say so twice: one that has just begun may not know of it yet.
        """
        if time.monotonic() < self._topics_at:
            return
        try:
            self.at.topics.require(within_s=0)
            self._suspected = False
        except NoAnswerError:  # the batch finds that out
            pass
        except OtherTopicError:
            if self._suspected:
                raise
            self._suspected = True
        self._topics_at = time.monotonic() + _TOPICS_S

    def _fed(self) -> list[str]:
        """Return the stores that go on though nothing has come of their tables."""
        return [name for name, store in self.start.stores.items() if isinstance(store, FedStore) and store.has_more()]

    def _end(self, query: StreamingQuery | None) -> None:
        """Stop the query; this waits for a batch that just begins, and that batch waits for the lock.

        Spark first notes that the last batch was applied: else the next start, and its first new row with it, would
        wait until all of that batch was read and folded in once more.
        """
        if query is not None:
            with suppress(Exception):  # a checkpoint that cannot be read now is not waited for
                self._await_note(query)
            self._stop(query)

    def _stop(self, query: StreamingQuery) -> None:
        """Stop the query, and with it the Spark jobs of a batch that runs."""
        try:
            query.stop()
        except Exception as exc:  # noqa: BLE001 - the caller raises the first failure
            self._failures.append(exc)


def _copies(applier: Applier) -> str:
    """Name the copies that go on, by store."""
    by_store: dict[str, list[str]] = {}
    for _, route in sorted(applier.routes.items()):
        for name in route.stores:
            by_store.setdefault(name, []).append(route.table.qualified)
    told = [
        f"{name}: {', '.join(of[:_NAMED])}{f' … ({len(of)} tables)' if len(of) > _NAMED else ''}"
        for name, of in by_store.items()
    ]
    return "; ".join(told)


def _interval(routes: Mapping[str, Route]) -> str:
    files = any(isinstance(store, Maintained) for route in routes.values() for store in route.stores.values())
    return f"{FILES_TRIGGER_MS if files else TRIGGER_MS} milliseconds"
