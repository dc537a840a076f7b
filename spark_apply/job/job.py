"""Runs the apply job: one streaming query over all topics of a connector, folded into derived stores.

The checkpoint lies in a folder named by a hash of the topic prefix, the tables, the stores and the copies' identities.
After a table or a store was added, or a copy was lost, the job therefore reads the topics from their beginning; guarded
by position, that is safe. A copy that a rebuild or a rollback has swapped in keeps its identity, and catches up
(`spark_apply.job.catch_up`).
"""

from __future__ import annotations

import functools
import hashlib
import json
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from cdc.config.apply_config import ApplyTable
from cdc.config.config import ApplyConfig
from cdc.encode.table_log import log_of
from cdc.model.errors import CdcError, ConfigError, OperatorError
from cdc.model.meter import NO_JOB_METER, JobMeter, JobState
from spark_apply.events import kafka_source
from spark_apply.events.expressions import resolved
from spark_apply.events.projection import check_places, projected_table
from spark_apply.events.quarantine import Quarantine
from spark_apply.events.refusals import refuse_histories, without_log
from spark_apply.events.set_aside import read_set_aside
from spark_apply.job import checkpoint as checkpoints
from spark_apply.job.aside_watch import AsideWatch
from spark_apply.job.barriers import PositionWatcher
from spark_apply.job.catch_up import SwapWatch
from spark_apply.job.maintenance import MaintenanceSchedule
from spark_apply.job.microbatch import Applier, Key, TableCount
from spark_apply.job.pace import JobFigures, Pace
from spark_apply.job.retention import recovery_command, require_deletes, require_offsets
from spark_apply.job.route import Route
from spark_apply.job.set_aside import AsideCopies
from spark_apply.job.topic_identity import FollowedTopics, require_same_topics
from spark_apply.job.watermarks import WatermarkPublisher
from spark_apply.model.completeness import Ends
from spark_apply.model.store import Store, Visibility, open_store
from spark_apply.model.target_table import TargetTable, Version, choose
from spark_apply.model.upkeep import Maintained
from spark_apply.spark.at_work import at_work
from spark_apply.spark.environment import require_paths
from spark_apply.spark.paths import located
from spark_apply.spark.query_failures import opening_errors, raise_failure, recorded, translated
from spark_apply.spark.remedies import reaching
from spark_apply.spark.session import open_session

TRIGGER_MS, FILES_TRIGGER_MS = 200, 1000
"""The shortest time between two batches; the second for stores in which each batch leaves files to compact."""
_LOOK_S = 0.1
_NAMED = 10
"""So many tables of a store are named when the job starts."""
_TASKS, _ADAPTIVE = "spark.sql.shuffle.partitions", "spark.sql.adaptive.enabled"
_EVENTS_A_TASK = 50_000
_EVENTS_ALONE = 10_000
"""One task reads and folds so few events without a shuffle, which would take longer."""
_TRIES = 10  # a rebuild of several stores replaces their copies one after the other

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
    with _stopped_by_signals(stop):
        tell(f"reading the schema topic of {config.source.topic_prefix}")
        chosen, unusable = choose_usable(config)
        require_topics(config, chosen)
        tell("starting Spark")
        spark = open_session(config.name, config.spark)
        stores = open_stores(config, chosen, spark)
        try:
            asides = AsideCopies({}, Quarantine(config), tell, once)
            asides.known = read_set_aside(config)
            evolve = functools.partial(_evolve, config, spark, asides)
            applier = Applier(asides.routes, evolve, asides.quarantine, asides=asides)
            behind = False
            if not stop.is_set():
                start = _Start(config, spark, applier, asides, stores, tell, meter, begin)
                start.open(chosen, unusable, lose_history=lose_history)
                behind = start.follow(once=once, stop=stop, reset_checkpoint=reset_checkpoint)
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


@dataclass(slots=True)
class _Start:
    """Opens the copies, and starts to follow the topics."""

    config: ApplyConfig
    spark: SparkSession
    applier: Applier
    asides: AsideCopies
    stores: Mapping[str, Store]
    tell: Progress
    meter: JobMeter
    begin: Ends | None
    """Where the topics are read from where there is no checkpoint; None: their beginnings."""
    topics: FollowedTopics = field(init=False)
    identities: dict[str, dict[str, str | None]] = field(default_factory=dict)
    """By table, then by store; None: the copy cannot be opened."""

    def open(self, chosen: Chosen, unusable: Unusable, *, lose_history: bool) -> None:
        """Open all copies. Raises the first error if none can go on."""
        targets = projected_targets(chosen, self.spark)
        copies = [(made, name) for table, made in targets.items() for name in chosen[table][0].stores]
        self.topics = FollowedTopics(self.config.source, {made.topic: made for made in targets.values()})
        self.topics.begin()
        missed = self._missed_deletes([copy for copy in copies if not (lose_history and copy[0].history)])
        if missed and len(missed) == len(copies):
            raise next(iter(missed.values()))
        for made, name in copies:
            route = self.applier.routes.setdefault(made.topic, Route(made, {}))
            self.applier.counts[made.qualified, name] = TableCount()
            of = self.identities.setdefault(made.qualified, {})
            of[name], error = None, missed.get((made.qualified, name))
            try:
                with opening_errors(made.qualified):
                    of[name] = self.stores[name].open(made)
            except CdcError as exc:
                error = error or exc
            if error is None:
                self.applier.routes[made.topic] = Route(made, {**route.stores, name: self.stores[name]})
            else:
                self.asides.refused(made.topic, name, made.qualified, self.stores[name], error)
        for table, (settings, topic, refusal) in unusable.items():
            self.identities[table] = dict.fromkeys(settings.stores)
            for name in settings.stores:
                self.asides.refused(topic, name, table, self.stores[name], refusal)
        self.asides.require_some()

    def _missed_deletes(self, copies: Sequence[tuple[TargetTable, str]]) -> dict[tuple[str, str], CdcError]:
        try:
            every = [(made, {name: self.stores[name]}) for made, name in copies]
            require_same_topics(self.topics.begun, every)
            require_deletes(self.config.source, every)
        except Exception:  # noqa: BLE001 - of which copies it is, is found out one by one
            found: dict[tuple[str, str], CdcError] = {}
            for made, name in copies:
                try:
                    with reaching(f"{made.qualified} in {name}"):
                        require_same_topics(self.topics.begun, [(made, {name: self.stores[name]})])
                        require_deletes(self.config.source, [(made, {name: self.stores[name]})])
                except CdcError as exc:
                    found[made.qualified, name] = exc
            return found
        return {}

    def follow(self, *, once: bool, stop: threading.Event, reset_checkpoint: bool) -> bool:
        """Follow the topics; return whether a transaction was still open when the run began."""
        topics = sorted({*self.applier.routes, *(topic for topic, _ in self.asides)})
        behind = once and not kafka_source.await_markers(self.config.source, topics)
        watcher = PositionWatcher(self.config.source, [route.table for route in self.applier.routes.values()])
        with watcher, at_work(self.config.checkpoint):
            with reaching(f"checkpoint: {self.config.checkpoint}"):
                identities = known_identities(self.spark, self.config, self.identities)
                checkpoint = checkpoint_folder(self.config, identities)
                checkpoints.prepare(self.spark, checkpoint)
                aside = checkpoints.set_aside(self.spark, checkpoint) if reset_checkpoint else None
                if aside is not None:
                    self.tell(f"the checkpoint was set aside as {aside}")
                checkpoints.note_copies(self.spark, checkpoint, identities)
            publisher = WatermarkPublisher(self.applier, watcher, self.topics.identities)
            self.asides.containing = True
            for key in list(self.asides):
                self.asides.note(*key)
            _run(
                self.spark,
                self.config,
                self.applier,
                publisher,
                maintenance=MaintenanceSchedule(self.applier.routes, self.tell),
                asides=AsideWatch(
                    *(self.spark, self.config.source, self.applier, self.asides, publisher),
                    newest=functools.partial(_newest, self.config, self.spark),
                    same=lambda table, name, store: require_same_topics(self.topics.begun, [(table, {name: store})]),
                ),
                topics=topics,
                at=_Place(checkpoint, self.topics, self.begin),
                once=once,
                stop=stop,
                tell=self.tell,
                figures=JobFigures(self.meter, self.applier, publisher, self.asides),
            )
        return behind


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a job stands: its checkpoint, and the topics that the offsets in it are of."""

    checkpoint: str
    topics: FollowedTopics
    since: Ends | None
    """Where they are read from where there is no checkpoint."""

    def left(self, ends: Ends) -> Ends:
        """Return those of the ends that lie behind where reading begins: the others are never read up to."""
        since = self.since or {}
        found = {
            topic: {number: end for number, end in of.items() if end > since.get(topic, {}).get(number, -1)}
            for topic, of in ends.items()
        }
        return {topic: of for topic, of in found.items() if of}

    def begin(self, spark: SparkSession, tell: Progress) -> Ends | None:
        """Return the end offsets of the last batch that was applied.

        Raises OperatorError for a checkpoint that is damaged, of other topics, or of offsets that are gone.
        """
        applied = checkpoints.ends_committed(spark, self.checkpoint)
        noted = checkpoints.noted_topics(spark, self.checkpoint)
        for line in self.topics.compare(noted, self.checkpoint):
            tell(line)
        now: dict[str, tuple[str, int]] = {**self.topics.begun}
        if now != noted:
            checkpoints.note_topics(spark, self.checkpoint, now)
        logs = [topic for topic, table in self.topics.tables.items() if table.history]
        require_offsets(self.topics.source, applied, logs=logs)
        return applied


Chosen = dict[str, tuple[ApplyTable, list[Version]]]
"""By ``schema.table``."""


Unusable = dict[str, tuple[ApplyTable, str, CdcError]]
"""By ``schema.table``: tables of which no copy can be made as they are now, with their topic, and why."""


def choose_usable(config: ApplyConfig) -> tuple[Chosen, Unusable]:
    """Return the tables of apply.yaml with their versions in the schema topic, and those that cannot be copied.

    Raises CdcError for what is wrong in the file.
    """
    places = [(f"stores.{name}.path", store.path) for name, store in config.stores.items() if store.path]
    require_paths([*places, ("checkpoint", config.checkpoint)])
    versions = kafka_source.schema_versions(config.source)
    chosen: Chosen = {}
    tables: dict[str, tuple[ApplyTable, TargetTable]] = {}
    unusable: Unusable = {}
    for table, settings in choose(config.tables, versions).items():
        try:
            tables[table] = (settings, projected_table(versions[table], settings))
        except ConfigError:
            raise
        except CdcError as exc:
            newest = versions[table][-1].topic
            unusable[table] = (settings, log_of(newest) if settings.mode == "history" else newest, exc)
        else:
            chosen[table] = (settings, versions[table])
    refuse_histories(config, tables)
    check_places(tables, {name: store.type for name, store in config.stores.items()})
    return chosen, unusable


def choose_tables(config: ApplyConfig) -> Chosen:
    """Do what `choose_usable` does, and raise CdcError for the first table that cannot be copied."""
    chosen, unusable = choose_usable(config)
    for _, _, error in unusable.values():
        raise error
    return chosen


def _newest(config: ApplyConfig, spark: SparkSession, table: str) -> TargetTable:
    """Return a table at its newest version. Raises CdcError if no copy of it can be made."""
    versions = kafka_source.schema_versions(config.source)
    settings = choose(config.tables, versions)[table]
    return resolved(projected_table(versions[table], settings), spark)


def projected_targets(chosen: Chosen, spark: SparkSession) -> dict[str, TargetTable]:
    """Return what copies of the tables hold. Raises ConfigError for the first expression that cannot be used."""
    return {
        table: resolved(projected_table(versions, settings), spark)
        for table, (settings, versions) in sorted(chosen.items())
    }


def without_logs(config: ApplyConfig, chosen: Chosen) -> dict[str, str]:
    """Return the tables in history mode without a log topic, with the topic's name."""
    there = kafka_source.topics(config.source)
    histories = {
        table: projected_table(versions, of).topic for table, (of, versions) in chosen.items() if of.mode == "history"
    }
    return {table: topic for table, topic in histories.items() if topic not in there}


def require_topics(config: ApplyConfig, chosen: Chosen) -> None:
    """Raise OperatorError for a table whose topic does not exist."""
    for table, topic in without_logs(config, chosen).items():
        raise without_log(table, topic)
    there = kafka_source.topics(config.source)
    for table, (settings, versions) in chosen.items():
        topic = projected_table(versions, settings).topic
        if topic not in there:
            msg = f"{table}: its topic {topic} does not exist at {config.source.bootstrap_servers}"
            raise OperatorError(msg, hint="was it deleted? A fresh snapshot of the connector writes it again")


def open_stores(config: ApplyConfig, chosen: Chosen, spark: SparkSession) -> dict[str, Store]:
    """Open the stores that the tables use, by their names in apply.yaml."""
    used = sorted({name for settings, _ in chosen.values() for name in settings.stores} or config.stores)
    prefix = config.source.topic_prefix
    return {name: open_store(config.stores[name], name=name, prefix=prefix, spark=spark) for name in used}


def _evolve(config: ApplyConfig, spark: SparkSession, asides: AsideCopies, route: Route) -> Route:
    table, stores = _newest(config, spark, route.table.qualified), {}
    for name, store in route.stores.items():
        with asides.contained(table.topic, name):
            store.open(table)
            stores[name] = store
    return Route(table, stores)


def known_identities(
    spark: SparkSession, config: ApplyConfig, identities: Mapping[str, Mapping[str, str | None]]
) -> checkpoints.Identities:
    """Complete the identities with those that the last checkpoints have noted: some copies cannot be opened now."""
    missing = any(identity is None for of in identities.values() for identity in of.values())
    noted = checkpoints.noted_copies(spark, located(config.checkpoint)) if missing else []

    def known(table: str, name: str) -> str | None:
        return next((of[table][name] for of in noted if name in of.get(table, {})), None)

    found = {table: {name: i or known(table, name) for name, i in of.items()} for table, of in identities.items()}
    return {table: {name: i for name, i in of.items() if i is not None} for table, of in found.items()}


def checkpoint_folder(config: ApplyConfig, identities: Mapping[str, Mapping[str, str]]) -> str:
    """Return the checkpoint folder of a job with these copies (identities by table, then by store)."""
    fed = json.dumps([config.source.topic_prefix, identities], sort_keys=True)
    folder = hashlib.sha256(fed.encode()).hexdigest()[:16]
    return f"{located(config.checkpoint)}/{folder}"


def _run(  # noqa: PLR0915 - one visible loop, with what it shares
    spark: SparkSession,
    config: ApplyConfig,
    applier: Applier,
    publisher: WatermarkPublisher,
    *,
    maintenance: MaintenanceSchedule,
    asides: AsideWatch,
    topics: Sequence[str],
    at: _Place,
    once: bool,
    stop: threading.Event,
    tell: Progress,
    figures: JobFigures,
) -> None:
    idle, ending, checkpoint = threading.Lock(), threading.Event(), at.checkpoint
    last: list[int] = []
    """The number of the last batch that was applied."""
    swaps = SwapWatch(spark, config.source, applier, publisher.replaced)
    failures, pace = list[Exception](), Pace(applier.counts)

    def apply(records: DataFrame, batch_id: int) -> None:
        with idle:
            if stop.is_set() or ending.is_set():
                msg = "stopped before this batch"
                raise InterruptedError(msg)  # a return would mean to Spark that the batch is done
            began = time.monotonic()
            with recorded(failures):
                ends = checkpoints.ends_of(spark, checkpoint, batch_id)
                visibility = _apply(applier, swaps, records, publisher, ends, asides=asides.asides)
                at.topics.require()
                publisher.applied(ends, visibility)
                last[:] = [batch_id]
            took_s = time.monotonic() - began
            figures.applied(took_s)
            tell(pace.line(applier.batches, took_s=took_s, source_ms=publisher.source_ms()))

    writer = kafka_source.stream(spark, config.source, topics, at.since).writeStream.queryName(config.name)
    writer = writer.option("checkpointLocation", checkpoint).foreachBatch(apply)
    # Not `availableNow`: it cannot go on from an unfinished batch where partitions were added since (Spark 4.0.0).
    writer = writer.trigger(processingTime="100 milliseconds" if once else _interval(applier.routes))
    try:
        swaps.look(now=True)
        publisher.begin(at.begin(spark, tell), checkpoint=checkpoint)
        asides.asides.forget_others()
        asides.look(now=True)
        until = at.left(kafka_source.ends_by_topic(config.source, topics)) if once else {}
        query = None if once and publisher.has_read(until) else writer.start()
    except CdcError:
        raise
    except Exception as exc:
        raise translated(exc, recovery=recovery_command((), ())) from exc
    tell(f"following the topics; {_copies(applier)}")
    figures.meter.becomes(JobState.FOLLOWING)

    def through() -> bool:
        """Whether a run with `once` is, and Spark has noted that its last batch was applied."""
        return (
            once and bool(last) and publisher.has_read(until) and checkpoints.is_committed(spark, checkpoint, last[0])
        )

    def look() -> None:
        figures.meter.moves()
        if idle.acquire(blocking=False):  # otherwise a batch is running, which does the same
            try:
                figures.meter.waits()  # a copy may be caught up, or a table compacted
                _look(swaps, asides, publisher, maintenance)
                figures.look()
            finally:
                idle.release()
                figures.meter.moves()

    failed = False
    try:
        failed = query is not None and _watch(query, stop, through, look)
    except Exception as exc:  # noqa: BLE001 - raised below, as a failed batch is
        failures.append(exc)
    finally:
        ending.set()
        with idle:  # a running batch is finished first
            pass
        _end(query, failures)
    if failures or failed:
        raise_failure(query, failures, recovery=recovery_command((), ()))
    publisher.publish_pending()
    maintenance.look(now=once and not stop.is_set())


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


def _look(
    swaps: SwapWatch, asides: AsideWatch, publisher: WatermarkPublisher, maintenance: MaintenanceSchedule
) -> None:
    """Do what is due between two batches."""
    asides.asides.containing = True
    swaps.look()
    asides.look()
    publisher.publish_pending()
    maintenance.look()


def _watch(query: StreamingQuery, stop: threading.Event, through: Callable[[], bool], look: Callable[[], None]) -> bool:
    """Look now and then until the run is over; return whether the query ended by itself."""
    while query.isActive:
        if stop.wait(_LOOK_S) or through():
            return False
        look()
    return not stop.is_set()


def _end(query: StreamingQuery | None, failures: list[Exception]) -> None:
    """Stop the query; this waits for a batch that just begins, and that batch waits for the lock."""
    try:
        if query is not None:
            query.stop()
    except Exception as exc:  # noqa: BLE001 - the caller raises the first failure
        failures.append(exc)


def _sized(records: DataFrame, events: int, *, most: int) -> DataFrame:
    """Plan a batch for its size: in small batches, starting more tasks costs more than it gains."""
    records.sparkSession.conf.set(_TASKS, max(1, min(most, events // _EVENTS_A_TASK)))
    records.sparkSession.conf.set(_ADAPTIVE, events >= _EVENTS_A_TASK)
    return records.coalesce(1) if events <= _EVENTS_ALONE else records


def _interval(routes: Mapping[str, Route]) -> str:
    files = any(isinstance(store, Maintained) for route in routes.values() for store in route.stores.values())
    return f"{FILES_TRIGGER_MS if files else TRIGGER_MS} milliseconds"


def _apply(
    applier: Applier,
    swaps: SwapWatch,
    records: DataFrame,
    publisher: WatermarkPublisher,
    ends: Ends,
    *,
    asides: AsideCopies | None = None,
) -> dict[Key, Visibility]:
    """Fold a batch in. The whole batch is retried when a copy was swapped meanwhile, and once after another failure.

    With `asides` once after any, and then the copies that fail are set aside.
    """
    if asides is not None:
        asides.containing = False
    swaps.look()
    records = _sized(records, publisher.unread(ends), most=int(swaps.spark.conf.get(_TASKS) or 1))
    tries = 0
    while True:
        visibility = publisher.visibility(ends)
        try:
            applier(records, visibility, publisher.late_before())
        except Exception as exc:
            tries += 1
            again = tries == 1 and not isinstance(exc, CdcError)
            if asides is not None:
                again, asides.containing = not asides.containing, True  # a store that is away fails the look, too
            swapped = swaps.look(now=True)
            if asides is not None:
                asides.containing = not swapped
            again = (again or swapped) and not (asides is not None and asides.over)
            if not again or tries == _TRIES:
                raise
        else:
            if asides is not None:
                asides.containing = True
            return visibility


@contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    """Let SIGINT and SIGTERM end the job after its batch, in the main thread alone; others use `stop`."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
