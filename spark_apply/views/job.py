"""Runs a view job: views of captured tables, kept up to date and published as topics of their own."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from pyspark.sql import SparkSession

from cdc.config import registry
from cdc.config.apply_config import StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.views import ViewsConfig
from cdc.model.errors import ConfigError, OperatorError, RetryableError
from cdc.model.meter import NO_JOB_METER, JobMeter
from cdc.model.state import State
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.job.away import Away
from spark_apply.job.job import run_apply
from spark_apply.job.topics.identity import OtherTopicError
from spark_apply.job.watermarks.progress import origin_of
from spark_apply.spark.session import open_session
from spark_apply.views.cluster.lake import Lake
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.cluster.store import ClusterStore
from spark_apply.views.cluster.stream_reader import ClusterStreamReader
from spark_apply.views.database.names import schema_of
from spark_apply.views.database.state import DatabaseState
from spark_apply.views.database.store import DatabaseStore
from spark_apply.views.embedded.state import ViewState
from spark_apply.views.model.uses import Way, followed
from spark_apply.views.planning.definitions import Text, refuse_changed, texts_of, with_texts
from spark_apply.views.planning.followable import refuse_unfollowable
from spark_apply.views.planning.planned import Planned, compare, plan_views
from spark_apply.views.publishing.output import ViewOutput
from spark_apply.views.publishing.status import peeked, sink_config
from spark_apply.views.running.commands import Command, Turn, Watch, note_failed, waiting
from spark_apply.views.running.store import ViewStore
from spark_apply.views.running.stream_reader import StreamReader

STORE = "views"
"""The name of the state among the stores of an apply job: entries of the quarantine have it."""

Progress = Callable[[str], None]

_MADE_AGAIN = (
    "first have the connector read the table again: its next start does, if it has not; cdc status of the connector's "
    "file says when it is through. Then {aside}, keep it, and start this job: its state is made again from the topics, "
    "and only what differs is published. Versions of rows as they were that their log has no more are gone"
)
"""A State that the connector has committed before it knew of the new topic says that the table is whole: it is not."""
_MAY_MISS = (
    "warning: the state may miss rows of snapshots in tables with at: or keep:, as an earlier release has made it. "
    "Where cdc view verify finds differences, stop this job, {aside}, keep it, and start it. What the topics have no "
    "more is gone then, as older versions of rows where their log is not one of retention: forever"
)


@dataclass(frozen=True, slots=True)
class ViewSummary:
    """What a run of the job did."""

    name: str
    seconds: float
    steps: int
    """How often the views were computed."""
    events: int
    """Events written, tombstones not counted."""
    position: str | None
    stopped: Mapping[str, str]
    """By view, why it is stopped."""
    took_all: bool = False
    """With `once`: all that was there when it began is taken."""
    reading: Collection[str] = ()
    """Tables that are being read again: views that are computed whole wait for them."""
    signal: int | None = None
    """The signal that has ended it."""

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc view run --json``."""
        return {
            "name": self.name,
            "seconds": round(self.seconds, 3),
            "steps": self.steps,
            "events": self.events,
            "position": self.position,
            "stopped": dict(self.stopped),
        }


def run_views(
    config: ViewsConfig,
    *,
    once: bool,
    meter: JobMeter = NO_JOB_METER,
    progress: Progress | None = None,
    stop: threading.Event | None = None,
) -> ViewSummary:
    """Follow the topics into the views: with `once` all that is committed now, else until SIGINT, SIGTERM or `stop`.

    Everything that can be refused is refused before a topic or the state is touched. A job that follows waits for
    brokers that are away, and goes on where it was. Raises CdcError.
    """
    begun, stop = time.monotonic(), stop or threading.Event()
    tell = progress or (lambda _line: None)
    tell(f"reading the schema topic of {config.source.topic_prefix}")
    away, before, planned = Away(tell, meter), None, None
    found = ViewSummary(config.name, 0.0, 0, 0, None, {})
    while True:
        run = _Run(config, tell, planned, before)
        try:
            run.follow(once=once, meter=meter, stop=stop)
        except (NoAnswerError, RetryableError) as exc:
            if once or (run.store or before) is None:
                raise
            over = run.turn.for_good or away.wait(exc, stop)
        else:
            over = stop.is_set() or run.turn.for_good or (run.refused is None and not run.turn.is_set())
        found = run.added_to(found)
        if over:
            return replace(found, seconds=time.monotonic() - begun)
        config, planned, before = run.config, run.planned, run.store or before


def _known(config: ViewsConfig) -> list[Command]:
    """Return the commands that wait, without those that are about views of another file: they are answered."""
    commands = waiting(config)
    for command in commands:
        others = sorted(command.views.keys() - config.views.keys())
        if others:
            why = f"the job's file has no view {', '.join(others)}: start it with the file that has it"
            note_failed(config, [command], why)
    return [command for command in commands if command.views.keys() <= config.views.keys()]


def _asked(commands: Sequence[Command]) -> dict[str, Text]:
    """Return by view the definitions that commands give; later ones count."""
    return {name: text for command in commands for name, text in command.views.items()}


@dataclass(slots=True)
class _Run:
    """One run of the job, by one set of definitions."""

    config: ViewsConfig
    """The file; once the commands are done, with what they have asked for."""
    tell: Progress
    planned: Planned | None
    """The plans of the run before, where there was one: this one goes on by them if tables allow no new ones."""
    before: ViewStore | None = None
    """The state as a run before has left it: another copy of the job that went on since is not fenced off."""
    commands: Sequence[Command] = ()
    turn: Turn = field(default_factory=Turn)
    store: ViewStore | None = None
    """None as long as it is not open."""
    first: int = 0
    """The number of the last event that was in Kafka before."""
    refused: str | None = None
    """Why what the commands ask for cannot be done."""
    took_all: bool = False
    """With `once`: whether all that was there is taken."""

    def follow(self, *, once: bool, meter: JobMeter, stop: threading.Event) -> None:
        """Do what commands ask for, and follow the topics until the run is to end, or is to be taken up by another."""
        self.commands = _known(self.config)
        if self.commands:
            self.tell(f"publishing what cdc view rebuild has asked for: {', '.join(sorted(_asked(self.commands)))}")
        known = frozenset(command.key for command in self.commands)
        with nullcontext() if once else Watch(self.config, known, self.turn, stop):
            self._follow(once=once, meter=meter)
        if self.refused is not None:
            self.tell(f"warning: what was asked for is not done, and the views go on as they were: {self.refused}")
            note_failed(self.config, self.commands, self.refused)

    def added_to(self, found: ViewSummary) -> ViewSummary:
        """Return what this run has done beside what was found of those before."""
        found, store = replace(found, took_all=self.took_all, signal=self.turn.signal), self.store
        if store is None:
            return found
        steps, events = found.steps + store.steps, found.events + store.output.sent - self.first
        position = store.reached or found.position
        stopped, reading = store.stopped, store.reading
        return replace(found, steps=steps, events=events, position=position, stopped=stopped, reading=reading)

    def _follow(self, *, once: bool, meter: JobMeter) -> None:
        config, asked = self.config, _asked(self.commands)
        versions = schema_versions(config.source)  # first, as Spark takes its time, and there may be none
        spark = open_session(config.name, config.spark)
        try:
            config = with_texts(config, asked)
            planned = self._plan(config, spark)
            state = peeked(config)
            refuse_changed(config, state, asked)
            refuse_unfollowable(planned.views, asked, versions)
        except ConfigError as exc:
            if not self.commands:
                raise
            self.refused = exc.message
            return
        for view in planned.views:
            for warning in view.plan.warnings:
                self.tell(f"warning: views.{view.name}: {warning}")
        self.tell(f"views are computed by {planned.engine}")
        self.store = store = open_state(config, planned, spark, self.tell, asked, before=self.before, stand=state)
        store.answers, store.turn = tuple(command.act() for command in self.commands), self.turn.turn
        self.first = store.output.sent
        try:
            of = _apply_config(config, planned, store)
            self.took_all = run_apply(
                of, once=once, waits=False, meter=meter, progress=self.tell, stop=self.turn
            ).took_all
        except OtherTopicError as exc:
            raise OperatorError(exc.message, hint=store.way_out) from exc
        finally:
            store.close()
            self.refused = store.refused
            if self.refused is None and not store.rebuilt:
                self.config, self.planned = config, planned

    def _plan(self, config: ViewsConfig, spark: SparkSession) -> Planned:
        """Plan the views; those of a job that runs go on as before where a table has no column of theirs any more."""
        try:
            return plan_views(config, spark)
        except ConfigError as exc:
            if self.planned is None or self.commands:
                raise
            self.tell(f"warning: the views go on as they were planned before: {exc.message}")
            return self.planned


def open_state(
    config: ViewsConfig,
    planned: Planned,
    spark: SparkSession,
    tell: Progress,
    rebuilt: Collection[str],
    *,
    before: ViewStore | None,
    stand: State | None,
) -> ViewStore:
    """Open the state, fence other copies off, and publish what a killed job has left; `rebuilt` are computed whole.

    With `before`, the state as this process has had it, a copy that has published since is not fenced off: `stand` is
    what is in Kafka. Then FencedError is raised.
    """
    folder = Path(config.state)
    state = _state_of(config, planned.engine, before)
    lake = Lake(spark, config.tables or str(folder / "tables"))
    if state.set_aside is not None:
        tell(f"warning: the state could not be used; it is kept as {state.set_aside}, and made again from the topics")
    empty = state.set_aside is not None
    if isinstance(state, DatabaseState) and state.made_again:
        empty = True
        tell(f"warning: the tables in the store are {state.made_again}; they are made again from the topics")
    prefix, origin = config.source.topic_prefix, origin_of(config.source, planned.connector)
    sink = registry.sink(sink_config(config), config.name)
    output = ViewOutput(sink, config.name, prefix, state, planned.views, tell, origin, texts_of(config))
    try:
        if before is not None and not empty:  # an empty one knows nothing of what this process has published itself
            output.require_own(stand)
        output.begin()
        if isinstance(state, ClusterState) and not lake.has(state.named()):
            tell(f"the tables in {lake.place} cannot be used: they are made again from the topics")
            output.begin_again()
        if not output.knows_state:
            tell("the state is not the one that the topics are of: it is made again from the topics")
            output.begin_again()
        if not state.tells_events_by_key and any(use.way in (Way.STREAM, Way.HISTORY) for use in planned.uses):
            tell(_MAY_MISS.format(aside=_aside(config)))
        read = (spark, config.source, state, planned.streams, tell)
        given = (state, output, planned.views, planned.uses, folder)
        how = partial(compare, planned)
        store: ViewStore
        if isinstance(state, ClusterState):
            store = ClusterStore(*given, ClusterStreamReader(*read, lake=lake), how, lake=lake)
        elif isinstance(state, DatabaseState):
            folder.mkdir(parents=True, exist_ok=True)
            store = DatabaseStore(*given, StreamReader(*read), how)
        else:
            store = ViewStore(*given, StreamReader(*read), how)
        store.rebuilt, store.way_out = set(rebuilt), _MADE_AGAIN.format(aside=_aside(config))
        store.begin()
    except BaseException:
        output.sink.close()
        state.close()
        raise
    return store


def _state_of(config: ViewsConfig, engine: str, before: ViewStore | None) -> ViewState:
    if engine == "postgres":
        was = before.state.owner if before is not None and isinstance(before.state, DatabaseState) else None
        prefix = config.source.topic_prefix
        return DatabaseState(config.store or "", job=config.name, prefix=prefix, goes_on_as=was)
    return (ClusterState if engine == "spark" else ViewState)(Path(config.state), memory=config.memory)


def _aside(config: ViewsConfig) -> str:
    """Say how somebody puts the state aside."""
    if config.store:
        return f"rename the schema {schema_of(config.name)} of the store"
    return f"move the folder {config.state} elsewhere"


def _apply_config(config: ViewsConfig, planned: Planned, store: ViewStore) -> ApplyConfig:
    return ApplyConfig(
        name=config.name,
        source=config.source,
        stores={STORE: StoreConfig(type="spark_apply.views.running.store:open_store", options={"store": store})},
        tables={use.table: followed(use, STORE) for use in planned.uses if use.way is not Way.EVENTS},
        checkpoint=str(Path(config.state) / "checkpoint"),
        quarantine=config.quarantine,
        spark=config.spark,
    )
