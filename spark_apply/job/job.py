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
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field

from pyspark.sql import SparkSession

from cdc.config.config import ApplyConfig
from cdc.machine.flag import Flag
from cdc.machine.stop_signals import stopping
from cdc.model.meter import NO_JOB_METER, JobMeter
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.offsets import await_markers, ends_by_topic
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.set_aside import read_set_aside
from spark_apply.job.away import Away
from spark_apply.job.batch.counts import TableCount
from spark_apply.job.batch.microbatch import Applier
from spark_apply.job.batch_loop import BatchLoop
from spark_apply.job.catch_up.asides import AsideWatch
from spark_apply.job.catch_up.new_tables import TableWatch
from spark_apply.job.catch_up.swaps import SwapWatch
from spark_apply.job.checkpoint.place import Place
from spark_apply.job.copies.chosen import Chosen, Unusable, choose_usable, evolved, newest, open_stores, without_topics
from spark_apply.job.copies.maintenance import MaintenanceSchedule
from spark_apply.job.copies.set_aside import AsideCopies, Key
from spark_apply.job.pace import JobFigures
from spark_apply.job.start import Start
from spark_apply.job.topics.compacted_deletes import UnreadDeletes
from spark_apply.job.watermarks.barriers import PositionWatcher
from spark_apply.job.watermarks.publisher import WatermarkPublisher
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Store
from spark_apply.spark.at_work import at_work
from spark_apply.spark.session import open_session

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
    took_all: bool = False
    """With `once`: all that was there when it began is taken, whatever became of the run after that."""

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


@dataclass(frozen=True, slots=True)
class Replayed:
    """What the job of a replay begins with."""

    begin: Ends
    """Where topics are read from, where these copies have no checkpoint; they then have what has changed since."""
    goes_on: bool
    """Whether its copies have all before `begin` that they shall have."""
    left: Mapping[str, Unusable]
    """Tables that the file has not: they are set aside."""
    first: Ends = field(default_factory=dict)
    """Where it has begun at first: a copy that is made, or filled, later than the others has nothing before that."""
    fresh: bool = False
    """Whether it begins now: no copy of its may have rows."""


_NO_REPLAY = Replayed({}, goes_on=False, left={})


def run_apply(
    config: ApplyConfig,
    *,
    once: bool,
    lose_history: bool = False,
    reset_checkpoint: bool = False,
    waits: bool = True,
    replayed: Replayed = _NO_REPLAY,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
    meter: JobMeter = NO_JOB_METER,
) -> ApplySummary:
    """Follow the topics into the stores: with `once` all that is committed now, else until SIGINT, SIGTERM or `stop`.

    With `lose_history` also where a history misses versions that its log no longer has: they stay missing. With
    `reset_checkpoint` the checkpoint is set aside first, and the topics are read from their beginnings. Without a
    checkpoint those of a replay are read from where it begins. Once it follows the topics, a job that `waits` goes on
    where it was when brokers are back that were away.
    Everything that can be refused is refused before a store is touched. Raises CdcError.
    """
    job = _Job(
        config,
        once=once,
        lose_history=lose_history,
        reset_checkpoint=reset_checkpoint,
        begin=replayed.begin or None,
        tell=progress or (lambda _line: None),
        stop=stop or Flag(),
        meter=meter,
        waits=waits and not once,
        _refused={**replayed.left},
        _held=replayed.begin if replayed.goes_on else None,
        _first=replayed.first,
        _fresh=replayed.fresh,
    )
    with stopping(job.stop):
        return job.run()


@dataclass(slots=True)
class _Job:
    """One run of the job: rounds, each of which follows the topics until the run ends or new tables have come."""

    config: ApplyConfig
    once: bool
    lose_history: bool
    reset_checkpoint: bool
    begin: Ends | None
    tell: Progress
    stop: threading.Event
    meter: JobMeter
    waits: bool
    _spark: SparkSession = field(init=False)
    _stores: dict[str, Store] = field(default_factory=dict)
    _counts: dict[Key, TableCount] = field(default_factory=dict)
    _chosen: Chosen = field(init=False)
    _unusable: dict[str, Unusable] = field(init=False)
    _refused: dict[str, Unusable] = field(default_factory=dict)
    """Tables that no round begins with: that have come, and that a replay is run without."""
    _quarantine: Quarantine | None = None
    _start: Start = field(init=False)
    """The newest round's, as it began."""
    _behind: bool = False
    _took_all: bool = False
    _batches: int = 0
    """How many batches the rounds before have applied."""
    _held: Ends | None = None
    """What all copies have that went on until new tables came, or in an earlier run; None in a job's first round."""
    _first: Ends = field(default_factory=dict)
    """Where a replay has begun at first."""
    _fresh: bool = False
    """Whether it is a replay that begins now."""
    _follows: bool = False
    """Whether a round has begun to follow the topics: from then on Kafka is waited for, if the job `waits`."""
    _away: Away = field(init=False)

    def __post_init__(self) -> None:
        self._away = Away(self.tell, self.meter)

    def run(self) -> ApplySummary:
        """Follow the topics round by round, and sum up."""
        began = time.monotonic()
        self.tell(f"reading the schema topic of {self.config.source.topic_prefix}")
        self._choose()
        self.tell("starting Spark")
        self._spark = open_session(self.config.name, self.config.spark)
        try:
            while self._round():
                pass
        finally:
            for store in self._stores.values():
                store.close()
        return _summary(self._start, time.monotonic() - began, behind=self._behind, took_all=self._took_all)

    def _round(self) -> bool:
        """Begin, and follow; return whether another round is due. Brokers that are away later on are waited for."""
        try:
            if self._follows:
                self._choose()
            self._open_stores()
            if self.stop.is_set():
                return False
            left, fresh = {**self._unusable, **self._refused}, self._fresh and not self._follows
            self._start.open(self._chosen, left, lose_history=self.lose_history, fresh=fresh)
            held = self._follow()
        except NoAnswerError as exc:
            if not (self.waits and self._follows):
                raise
            self._batches = self._start.applier.batches
            return not self._away.wait(exc, self.stop)
        if held is None:
            return False
        self._held, self._follows, self._batches = held, True, self._start.applier.batches
        return True

    def _choose(self) -> None:
        """Choose the tables, as the schema topic and the broker have them now."""
        chosen, unusable = choose_usable(self.config, but=self._refused)
        lost = without_topics(self.config, chosen)
        self._chosen = {table: of for table, of in chosen.items() if table not in lost}
        self._unusable = {**unusable, **lost}

    def _open_stores(self) -> None:
        """Open the stores of the chosen tables, and make ready what opens their copies and applies batches."""
        every = [*(settings for settings, _ in self._chosen.values()), *(of.settings for of in self._unusable.values())]
        self._stores |= open_stores(self.config, every, self._spark, but=self._stores)
        self._quarantine = self._quarantine or Quarantine(self.config)
        asides = AsideCopies({}, self._quarantine, self.tell, self.once)
        asides.known = read_set_aside(self.config)
        evolve = functools.partial(evolved, self.config, self._spark, asides)
        applier = Applier(asides.routes, evolve, asides.quarantine, self._counts, self._batches, asides=asides)
        self._start = Start(self.config, self._spark, self._stores, self.tell, asides, applier)

    def _follow(self) -> Ends | None:
        """Follow the topics until the job ends, or new tables have come; then return what the copies have."""
        config, start, applier, asides = self.config, self._start, self._start.applier, self._start.asides
        topics = sorted({*applier.routes, *(topic for (topic, _), of in asides.copies.items() if not of.for_good)})
        if self._away.said:  # asked here, since Spark would wait for minutes
            ends_by_topic(config.source, topics)
        self._behind = self.once and not await_markers(config.source, topics)
        since = self.begin if self._held is None else self._held
        watcher = PositionWatcher(config.source, [route.table for route in applier.routes.values()])
        with watcher, at_work(config.checkpoint):
            checkpoint = start.checkpoint(reset=self.reset_checkpoint and not self._follows)
            if since is None:
                start.tell_from_beginning(checkpoint)
            publisher = WatermarkPublisher(applier, watcher, start.topics.identities)
            applier.unread = UnreadDeletes(self._spark, config.source, publisher.ends, start.held)
            asides.containing = True
            for key in list(asides):
                asides.note(*key)
            loop = self._loop(publisher, Place(checkpoint, start.topics, since, self._held))
            self._away.said = ""
            try:
                held = loop.run(topics)
            finally:
                self._follows |= loop.follows
            self._took_all = loop.took_all
        return None if held is None else {**(since or {}), **held}  # of some topics nothing was read yet

    def _loop(self, publisher: WatermarkPublisher, at: Place) -> BatchLoop:
        """Give the loop of a round what looks between its batches."""
        config, spark, start, applier, asides = (
            self.config,
            self._spark,
            self._start,
            self._start.applier,
            self._start.asides,
        )
        newest_of = functools.partial(newest, config, spark)
        began = frozenset([*start.identities, *(of.table for of in asides.copies.values())])
        return BatchLoop(
            start,
            publisher,
            SwapWatch(spark, config.source, applier, publisher.replaced),
            AsideWatch(
                spark,
                config.source,
                applier,
                asides,
                publisher,
                newest=newest_of,
                same=start.require_same,
                first=self._first,
            ),
            TableWatch(config, spark, start.stores, asides, began, self._refused),
            MaintenanceSchedule(applier.routes, start.tell),
            at,
            JobFigures(self.meter, applier, publisher, asides),
            once=self.once,
            stop=self.stop,
        )


def _summary(start: Start, seconds: float, *, behind: bool, took_all: bool) -> ApplySummary:
    """Sum up what a job has done whose newest round began with `start`."""
    tables: dict[str, dict[str, TableCount]] = {}
    for (table, name), count in sorted(start.applier.counts.items()):
        tables.setdefault(table, {})[name] = count
    aside: dict[str, dict[str, str]] = {}
    for (_, name), of in sorted(start.asides.copies.items()):
        aside.setdefault(of.table, {})[name] = of.error.message
    return ApplySummary(start.config.name, seconds, start.applier.batches, tables, behind, aside, took_all)
