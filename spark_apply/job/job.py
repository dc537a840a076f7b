"""Runs the apply job: one streaming query over all topics of a connector, folded into derived stores.

The checkpoint lies in a folder named by a hash of the topic prefix, the tables, the stores and the copies' identities.
After a table or a store was added, or a copy was lost, the job therefore reads the topics from their beginning; guarded
by position, that is safe. A table that comes while the job runs is taken up by another query with a checkpoint of its
own, which begins where the copies are: the new topic at its beginning, the others where the last batch has ended. A
copy that a rebuild or a rollback has swapped in keeps its identity, and catches up
(`spark_apply.job.catch_up.swaps`).
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from cdc.config.config import ApplyConfig
from cdc.machine.stop_signals import stopping
from cdc.model.errors import CdcError
from cdc.model.meter import NO_JOB_METER, JobMeter, JobState
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.offsets import await_markers, ends_by_topic
from spark_apply.events.kafka.stream import stream_topics
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.set_aside import read_set_aside
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.catch_up.asides import AsideWatch
from spark_apply.job.catch_up.new_tables import TableWatch
from spark_apply.job.catch_up.swaps import SwapWatch
from spark_apply.job.checkpoint import files as checkpoints
from spark_apply.job.checkpoint.place import Place
from spark_apply.job.copies.chosen import Unusable, choose_usable, evolved, newest, open_stores, without_topics
from spark_apply.job.copies.maintenance import MaintenanceSchedule
from spark_apply.job.copies.route import Route
from spark_apply.job.copies.set_aside import AsideCopies, Key
from spark_apply.job.pace import JobFigures, Pace
from spark_apply.job.retry import fold_batch
from spark_apply.job.start import Start
from spark_apply.job.topics.compacted_deletes import UnreadDeletes
from spark_apply.job.topics.identity import AWAY_S
from spark_apply.job.topics.retention import recovery_command
from spark_apply.job.watermarks.barriers import PositionWatcher
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Store
from spark_apply.model.upkeep import Maintained
from spark_apply.spark.at_work import at_work
from spark_apply.spark.query_failures import raise_failure, recorded, translated
from spark_apply.spark.session import open_session

TRIGGER_MS, FILES_TRIGGER_MS = 200, 1000
"""The shortest time between two batches; the second for stores in which each batch leaves files to compact."""
_LOOK_S = 0.1
_NAMED = 10
"""So many tables of a store are named when the job starts."""

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ApplySummary:
    """What a run of the job did."""

    name: str
    seconds: float
    batches: int
    tables: Mapping[str, Mapping[str, TableCount]] = field(default_factory=dict)
    """By table, then by store."""
    behind: bool = False
    """With `once`: a transaction was still open when the run began, and is not included."""
    aside: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By table, then by store: the copies that are set aside, and why."""

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc apply --json``."""
        return {
            "name": self.name,
            "seconds": round(self.seconds, 3),
            "batches": self.batches,
            "behind": self.behind,
            "aside": {table: dict(stores) for table, stores in self.aside.items()},
            "tables": {
                table: {store: asdict(count) for store, count in stores.items()}
                for table, stores in self.tables.items()
            },
        }


def run_apply(
    config: ApplyConfig,
    *,
    once: bool,
    lose_history: bool = False,
    reset_checkpoint: bool = False,
    begin: Ends | None = None,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    meter: JobMeter = NO_JOB_METER,
) -> ApplySummary:
    """Follow the topics into the stores: with `once` all that is committed now, else until SIGINT, SIGTERM or `stop`.

    With `lose_history` also where a history misses versions that its log no longer has: they stay missing. With
    `reset_checkpoint` the checkpoint is set aside first, and the topics are read from their beginnings. Without a
    checkpoint they are read from `begin` on, if that is given: copies then have what has changed since.
    Everything that can be refused is refused before a store is touched. Raises CdcError.
    """
    begun = time.monotonic()
    tell = progress or (lambda _line: None)
    stop = stop or threading.Event()
    with stopping(stop):
        tell(f"reading the schema topic of {config.source.topic_prefix}")
        chosen, unusable = choose_usable(config)
        lost = without_topics(config, chosen)
        tell("starting Spark")
        spark = open_session(config.name, config.spark)
        stores, counts, batches = dict[str, Store](), dict[Key, TableCount](), 0
        behind, held, held_at, quarantine, refused = False, None, 0.0, None, dict[str, Unusable]()
        try:
            while True:
                try:
                    if held is not None:
                        chosen, unusable = choose_usable(config, but=refused)
                        lost = without_topics(config, chosen)
                    every = [*(settings for settings, _ in chosen.values()), *(of.settings for of in unusable.values())]
                    stores |= open_stores(config, every, spark, but=stores)
                    quarantine = quarantine or Quarantine(config)
                    asides = AsideCopies({}, quarantine, tell, once)
                    asides.known = read_set_aside(config)
                    evolve = functools.partial(evolved, config, spark, asides)
                    applier = Applier(asides.routes, evolve, asides.quarantine, counts, batches, asides=asides)
                    if stop.is_set():
                        break
                    start = Start(config, spark, stores, tell, asides, applier)
                    usable = {table: of for table, of in chosen.items() if table not in lost}
                    start.open(usable, {**unusable, **lost, **refused}, lose_history=lose_history)
                    reset = reset_checkpoint and held is None
                    how = _How(once=once, stop=stop, reset_checkpoint=reset, held=held, refused=refused)
                    behind, held = _follow(start, begin, meter, how)
                except NoAnswerError as exc:  # no reason to end a job that was following: it may be back in a moment
                    if held is None or time.monotonic() > held_at + AWAY_S:
                        raise
                    tell(f"warning: {exc.message}; it is asked again")
                    if stop.wait(1):
                        break
                    continue
                if held is None:
                    break
                batches, held_at = applier.batches, time.monotonic()
        finally:
            for store in stores.values():
                store.close()
    tables: dict[str, dict[str, TableCount]] = {}
    for (table, name), count in sorted(applier.counts.items()):
        tables.setdefault(table, {})[name] = count
    aside: dict[str, dict[str, str]] = {}
    for (_, name), of in sorted(asides.copies.items()):
        aside.setdefault(of.table, {})[name] = of.error.message
    return ApplySummary(config.name, time.monotonic() - begun, applier.batches, tables, behind, aside)


@dataclass(frozen=True, slots=True)
class _How:
    """How topics are followed."""

    once: bool
    stop: threading.Event
    reset_checkpoint: bool
    held: Ends | None
    """What all copies have that went on until new tables came; None at the start of the job."""
    refused: dict[str, Unusable]
    """Tables that have come and that no start begins with."""


def _follow(start: Start, begin: Ends | None, meter: JobMeter, how: _How) -> tuple[bool, Ends | None]:
    """Follow the topics until the job ends, or new tables have come.

    Return whether a transaction was still open when the run began, and what copies have where new tables have come.
    """
    config, spark, applier, asides = start.config, start.spark, start.applier, start.asides
    topics = sorted({*applier.routes, *(topic for (topic, _), aside in asides.copies.items() if not aside.for_good)})
    behind = how.once and not await_markers(config.source, topics)
    watcher = PositionWatcher(config.source, [route.table for route in applier.routes.values()])
    with watcher, at_work(config.checkpoint):
        checkpoint = start.checkpoint(reset=how.reset_checkpoint)
        publisher = WatermarkPublisher(applier, watcher, start.topics.identities)
        applier.unread = UnreadDeletes(spark, config.source, publisher.ends, start.held)
        asides.containing = True
        for key in list(asides):
            asides.note(*key)
        newest_of = functools.partial(newest, config, spark)
        held = _Loop(
            start,
            publisher,
            SwapWatch(spark, config.source, applier, publisher.replaced),
            AsideWatch(spark, config.source, applier, asides, publisher, newest=newest_of, same=start.require_same),
            TableWatch(
                config,
                spark,
                start.stores,
                asides,
                frozenset([*start.identities, *(of.table for of in asides.copies.values())]),
                how.refused,
            ),
            MaintenanceSchedule(applier.routes, start.tell),
            Place(checkpoint, start.topics, begin if how.held is None else how.held, how.held),
            JobFigures(meter, applier, publisher, asides),
            once=how.once,
            stop=how.stop,
        ).run(topics)
    if held is None:
        return behind, None
    return behind, {**((begin or {}) if how.held is None else how.held), **held}  # of some topics nothing was read yet


@dataclass(slots=True)
class _Loop:
    """Folds in batch after batch, on Spark's thread, and does between two of them what is due."""

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
    _until: Ends = field(default_factory=dict)
    """With `once`: up to where the topics are read."""
    _last: int | None = None
    """The number of the last batch that was applied."""
    _idle: threading.Lock = field(default_factory=threading.Lock)
    """Held while a batch is applied."""
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
        self.start.tell(f"following the topics; {_copies(self.start.applier)}")
        self.figures.meter.becomes(JobState.FOLLOWING)
        failed = False
        try:
            failed = query is not None and self._watch(query)
        except Exception as exc:  # noqa: BLE001 - raised below, as a failed batch is
            self._failures.append(exc)
        finally:
            self._ending.set()
            with self._idle:  # a running batch is finished first
                pass
            self._end(query)
        if self._failures or failed:
            raise_failure(query, self._failures, recovery=recovery_command((), ()))
        self.publisher.publish_pending()
        self.maintenance.look(now=self.once and not self.stop.is_set())
        return self.publisher.every_end() if self.tables.found and not self.stop.is_set() else None

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
            self.publisher.begin(self.at.held if applied is None else applied, checkpoint=self.at.checkpoint)
            self.start.asides.forget_others()
            if self.start.applier.unread is not None:
                self.start.applier.unread.begin(topics)
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
            with recorded(self._failures):
                ends = checkpoints.ends_of(start.spark, self.at.checkpoint, batch_id)
                start.asides.containing = True
                start.applier.look_at_kept()
                visibility = fold_batch(start.applier, self.swaps, records, publisher, ends, asides=start.asides)
                self.at.topics.require()
                publisher.applied(ends, visibility)
                self._last = batch_id
            took_s = time.monotonic() - began
            self.figures.applied(took_s)
            start.tell(self._pace.line(start.applier.batches, took_s=took_s, source_ms=publisher.source_ms()))

    def _watch(self, query: StreamingQuery) -> bool:
        """Look now and then until the run is over; return whether the query ended by itself."""
        while query.isActive:
            if self.stop.wait(_LOOK_S) or self._is_through() or self.tables.found:
                return False
            self._look()
        return not self.stop.is_set()

    def _is_through(self) -> bool:
        """Whether a run with `once` is, and Spark has noted that its last batch was applied."""
        return (
            self.once
            and self._last is not None
            and self.publisher.has_read(self._until)
            and checkpoints.is_committed(self.start.spark, self.at.checkpoint, self._last)
        )

    def _look(self) -> None:
        """Do what is due between two batches."""
        self.figures.meter.moves()
        if self._idle.acquire(blocking=False):  # otherwise a batch is running, which does the same
            try:
                self.figures.meter.waits()  # a copy may be caught up, or a table compacted
                self.start.asides.containing = True
                self.swaps.look()
                self.asides.look()
                self.publisher.publish_pending()
                if not self.once:
                    self.tables.look()
                self.maintenance.look()
                self.figures.look()
            finally:
                self._idle.release()
                self.figures.meter.moves()

    def _end(self, query: StreamingQuery | None) -> None:
        """Stop the query; this waits for a batch that just begins, and that batch waits for the lock."""
        try:
            if query is not None:
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
        f"{name}: {len(of)} tables ({', '.join(of[:_NAMED])}{', …' if len(of) > _NAMED else ''})"
        for name, of in by_store.items()
    ]
    return "; ".join(told)


def _interval(routes: Mapping[str, Route]) -> str:
    files = any(isinstance(store, Maintained) for route in routes.values() for store in route.stores.values())
    return f"{FILES_TRIGGER_MS if files else TRIGGER_MS} milliseconds"
