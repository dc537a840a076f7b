"""Computes views once more, in a state that is thrown away, as they are at the position that is published.

Everything comes from the topics, by the rule and the statements that the job itself uses: so it can be looked into
how a row comes about while the job runs, whose own state nobody else can open, and while it does not.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.apply_config import ApplySource
from cdc.config.views import ViewsConfig
from cdc.model.state import State
from spark_apply.events import typed
from spark_apply.events.envelope import parse
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.latest import latest
from spark_apply.events.projected import project
from spark_apply.model.target_table import TargetTable, derived
from spark_apply.spark import names
from spark_apply.views.embedded.containment import OF_ROWS, WHY
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.held import is_one_unit
from spark_apply.views.embedded.state import ViewState, place
from spark_apply.views.embedded.step import Step, UnitsError, ViewError
from spark_apply.views.model.kept_columns import kept_columns
from spark_apply.views.model.uses import TableUse, Way, followed
from spark_apply.views.model.values import engine_type, object_of, quoted
from spark_apply.views.planning.streams import Stream
from spark_apply.views.planning.view import View

TIMES = place("work", "_cdc_times")
"""Of each event of a relation, by its key and position: when it was committed, in milliseconds since 1970."""


def table_read(use: TableUse, source: ApplySource) -> TargetTable:
    """Return a captured table as views read it."""
    versions = schema_versions(source)[use.table]
    return derived(versions, followed(use))


def events_read(spark: SparkSession, use: TableUse, made: TargetTable, source: ApplySource, limit: str) -> DataFrame:
    """Return the typed events of a table below a position: the newest of each key, or all where a view needs them."""
    end = committed_ends(source, made.topic)
    events = parse(read_topic(spark, source, made.topic, {}, end))
    events = events.where(F.col("valid") & (F.col("position") < limit))
    return project(latest(events, {made.topic: ""} if use.needs_every_event else None), made)


@dataclass(frozen=True, slots=True)
class Read:
    """What views read."""

    uses: Collection[TableUse]
    streams: Mapping[str, Stream]
    """Streams of others, by name; those that are not among `uses` are not read."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """Views at a position. Of each relation ``before`` has the rows, and ``after`` and ``both`` the same ones."""

    state: ViewState
    views: Mapping[str, View]
    """Those that were computed, by relation."""
    uses: Mapping[str, TableUse]
    """By relation, the captured tables that were read."""
    tables: Mapping[str, SourceTable]
    """By relation, those tables."""
    failed: Mapping[str, str]
    """By name, why views cannot be computed."""
    held: Mapping[str, str]
    """Those of them that are in quarantine as a whole, as they have no units."""
    clock_ms: int
    """The clock that they were computed with."""


@contextmanager
def replayed(
    config: ViewsConfig,
    spark: SparkSession,
    at: State,
    views: Collection[View],
    reads: Read,
) -> Iterator[Replayed]:
    """Compute views, which read nothing but each other and `reads`, at the position and the clock of `at`."""
    limit, clock_ms = str(at.offset["position"]), at.source_ms or None
    with tempfile.TemporaryDirectory(prefix="cdc-view-") as folder:
        state = ViewState(Path(folder), memory=config.memory)
        try:
            state.execute(
                f"CREATE TABLE {TIMES} (relation VARCHAR, key VARCHAR, {typed.POSITION} VARCHAR, at_ms BIGINT)"
            )
            state.execute(f"CREATE TABLE {place('work', 'published')} (view VARCHAR, key VARCHAR, row VARCHAR)")
            tables = [
                _filled(state, spark, use, config.source, limit) for use in reads.uses if use.way is not Way.EVENTS
            ]
            tables += [
                _streamed(state, spark, s, config.source, at) for s in reads.streams.values() if s.use in reads.uses
            ]
            failed, held = dict[str, str](), dict[str, str]()
            found: dict[str, View] = {}
            step = Step(state, limit, None, clock_ms, [view.name for view in views])
            for table in tables:
                step.fold(table, reload=False)
            step.apply(tables, ())
            for view in views:
                if any(read.removeprefix("view.") in failed for read in view.plan.reads):
                    failed[view.name] = f"view {view.name}: it reads one that cannot be computed"
                    continue
                try:
                    _computed(state, step, view)
                except ViewError as exc:
                    failed[view.name] = exc.message
                    if is_one_unit(view) and isinstance(exc.__cause__, OF_ROWS):
                        held[view.name] = WHY
                else:
                    found[view.relation] = view
            yield Replayed(
                state,
                found,
                {use.relation: use for use in reads.uses},
                {table.relation: table for table in tables},
                failed,
                held,
                clock_ms or 0,
            )
        finally:
            state.close()


def _filled(state: ViewState, spark: SparkSession, use: TableUse, source: ApplySource, limit: str) -> SourceTable:
    made = table_read(use, source)
    columns = kept_columns(made)
    state.prepare_table(use.relation, columns, use.hidden, use.key(made.key))
    table = SourceTable(use, columns, made.key)
    _wait(state, table, events_read(spark, use, made, source, limit))
    return table


def _streamed(state: ViewState, spark: SparkSession, stream: Stream, source: ApplySource, at: State) -> SourceTable:
    state.prepare_table(stream.use.relation, stream.columns, (), stream.config.key)
    events = stream.published(spark, source, at)
    table = SourceTable(stream.use, stream.columns, stream.config.key)
    _wait(state, table, events.where(F.col(typed.KEY).isNotNull()))
    return table


def key_of(table: SourceTable, row: str) -> str:
    """Return an expression for the key, as JSON, of a row of a table."""
    kinds = dict(table.columns)
    return object_of([(name, kinds[name]) for name in table.key], row)


def _wait(state: ViewState, table: SourceTable, events: DataFrame) -> None:
    """Let events wait for the step."""
    columns, waiting = table.columns, place("pending", table.relation)
    ours = (typed.KEY, typed.POSITION, typed.OP, typed.SOURCE_MS)
    arrow = events.select(*ours, *(F.col(names.quoted(name)) for name, _ in columns)).toArrow()
    listed = ", ".join(quoted(name) for name in (*ours, *(name for name, _ in columns)))
    read = ", ".join([*ours, *(f"CAST({quoted(n)} AS {engine_type(kind)}) AS {quoted(n)}" for n, kind in columns)])
    with state.registered("incoming", arrow):
        state.execute(f"INSERT INTO {waiting} ({listed}) SELECT {read} FROM incoming")
    state.execute(
        f"INSERT INTO {TIMES} SELECT ?, {key_of(table, 'e')}, {typed.POSITION}, {typed.SOURCE_MS} FROM {waiting} e",
        [table.relation],
    )


def _computed(state: ViewState, step: Step, view: View) -> None:
    """Compute a view; units that cannot be computed are told from the others, as the job does it."""
    while True:
        try:
            with state.transaction():
                step.compute(view)
                step.apply((), [view])
                _nothing_changes(state, view)
        except UnitsError:
            continue
        return


def _nothing_changes(state: ViewState, view: View) -> None:
    for relation in (*(node.name for node in view.plan.nodes[:-1]), view.relation):
        for schema in ("changed", "coming"):
            state.execute(f"DELETE FROM {place(schema, relation)}")
