"""The views of a file as a job runs them: checked against what is captured, planned, in the order of what they read."""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from pyspark.sql import SparkSession

from cdc.config.views import VIEW_SCHEMA, ViewConfig, ViewsConfig, engine_of
from cdc.encode.table_log import log_of
from cdc.model.errors import CdcError, ConfigError
from cdc.model.suggestion import did_you_mean
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.topics import existing_topics
from spark_apply.events.refusals import without_log
from spark_apply.model.target_table import TargetTable, Version, refuse_formats, target
from spark_apply.model.types import common_kind, spark_type
from spark_apply.spark.session import open_session
from spark_apply.views.model.uses import TableUse, Way, uses_of
from spark_apply.views.model.values import Columns
from spark_apply.views.planning.forms import PlannedView, plan_config, relations_named
from spark_apply.views.planning.kept_in_postgres import refuse_columns
from spark_apply.views.planning.output_types import output_columns
from spark_apply.views.planning.streams import Stream, require_times, require_topics, streams_of
from spark_apply.views.planning.view import View, relation_of
from spark_apply.views.sql.expressions.engines.dialects import POSTGRES
from spark_apply.views.sql.plan import plan_view
from spark_apply.views.sql.view_plan import Relation

_START_AGAIN: Final = "a new start of the job follows it, if the view's SQL allows"


@dataclass(frozen=True, slots=True)
class Planned:
    """The views of a file, in the order of what they read, and the captured tables that they read."""

    views: tuple[View, ...]
    uses: tuple[TableUse, ...]
    """How views read captured tables."""
    connector: str
    """The one that writes their topics."""
    streams: Mapping[str, Stream]
    """Those that views read, by name."""
    engine: str
    """What computes the views."""
    relations: Mapping[str, Relation]
    """What views may read, as it was when they were planned."""

    @property
    def tables(self) -> tuple[str, ...]:
        """The captured tables that are read, sorted."""
        return tuple(sorted({use.table for use in self.uses if use.way is not Way.EVENTS}))


def plan_views(config: ViewsConfig, spark: SparkSession) -> Planned:
    """Check every view against the schema topic, changing nothing. Raises ConfigError for the first that is wrong."""
    engine = engine_of(config, spark.sparkContext.master)
    versions = schema_versions(config.source)
    captured = {name: of for name, of in versions.items() if of[-1].connector != config.name}
    relations, unusable = _captured_relations(captured)
    streams = streams_of(config)
    relations |= _stream_relations(streams, captured)
    views: list[View] = []
    for name in in_order(config.views):
        view = config.views[name]
        named_there = relations_named(name, view)
        _require_usable(name, named_there, captured, unusable)
        uses = uses_of(view.reads) | {s.use.relation: s.use for s in streams.values() if s.use.relation in named_there}
        _check_uses(name, uses, relations)
        for table in sorted({*named_there, *(use.table for use in uses.values())} & captured.keys()):
            refuse_formats(captured[table], who="a view", where="views")
        views.append(_view(spark, name, view, relations, uses, engine=engine))
        relations[relation_of(name)] = Relation(relation_of(name), dict(views[-1].columns), tuple(view.key))
    own = {view.relation for view in views}
    named = {use.relation: use for view in views for use in view.uses.values()}
    reads = sorted({read for view in views for read in view.plan.reads if read not in own})
    used = tuple(named.get(read) or TableUse(read) for read in reads)
    planned = Planned(tuple(views), used, "", {n: s for n, s in streams.items() if s.use in used}, engine, relations)
    _require_names_apart(relations, _readers(planned))
    _require_one_connector(captured, planned.tables)
    _require_histories(config, captured, planned.uses)
    require_topics(config.source, planned.streams)
    return replace(planned, connector=captured[planned.tables[0]][-1].connector)


def _captured_relations(captured: Mapping[str, Sequence[Version]]) -> tuple[dict[str, Relation], dict[str, CdcError]]:
    """Return captured tables as views read them, and by name why others cannot be read."""
    relations, unusable = dict[str, Relation](), dict[str, CdcError]()
    for name, of in captured.items():
        try:
            relations[name] = _relation(target(of, {}))
        except CdcError as exc:
            unusable[name] = exc
    return relations, unusable


def _stream_relations(streams: Mapping[str, Stream], captured: Collection[str]) -> dict[str, Relation]:
    """Return streams as views read them. Raises ConfigError for one that is called as a captured table is."""
    found = {}
    for stream in streams.values():
        if stream.use.relation in captured:
            msg = f"streams.{stream.name}: {stream.use.relation} is a captured table, too"
            raise ConfigError(msg, hint="give the stream another name")
        found[stream.use.relation] = Relation(stream.use.relation, dict(stream.columns), stream.config.key)
    return found


def _require_usable(
    name: str,
    reads: Collection[str],
    captured: Mapping[str, Sequence[Version]],
    unusable: Mapping[str, CdcError],
) -> None:
    """Raise ConfigError for a view that reads a table which cannot be read, or whose own name is taken."""
    for table in reads:
        if table in unusable:
            msg = f"views.{name} cannot read it: {unusable[table].message}"
            raise ConfigError(msg, hint="take the view out of the file: the others go on")
    if relation_of(name) in captured:
        writer = captured[relation_of(name)][-1].connector
        msg = f"views.{name}: {writer} publishes a table or a view of that name, {relation_of(name)}, already"
        raise ConfigError(msg, hint="give the view another name: its topic would be the same")


def _view(
    spark: SparkSession,
    name: str,
    view: ViewConfig,
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
    *,
    engine: str,
) -> View:
    """Return a view with its plan, which reads tables as `uses` say."""
    read = {**relations, **{use.relation: _used(relations[use.table], use) for use in uses.values()}}
    (plan, sql, match), columns = planned_view(spark, name, view, read, uses, engine=engine)
    if engine == POSTGRES.name:
        refuse_columns(plan, [read[of] for of in plan.reads])
    return View(plan, columns, sql, uses, match)


def planned_view(
    spark: SparkSession,
    name: str,
    view: ViewConfig,
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
    *,
    engine: str,
) -> tuple[PlannedView, Columns]:
    """Plan a view, and have Spark tell its columns. Raises ConfigError, which names another engine only if it helps."""
    try:
        return _typed(spark, name, plan_config(name, view, relations, uses, engine=engine), relations, uses)
    except ConfigError as exc:
        if engine == "spark" or "engine: spark" not in (exc.hint or ""):
            raise
        try:
            elsewhere = plan_config(name, view, relations, uses, engine="spark")
        except ConfigError as other:
            if "engine: " not in (other.hint or ""):
                raise other from exc
            raise ConfigError(exc.message, hint="write it in another way") from exc
        try:
            _typed(spark, name, elsewhere, relations, uses)
        except ConfigError:
            raise ConfigError(exc.message, hint="write it in another way: Spark itself does not take it") from exc
        raise


def _typed(
    spark: SparkSession,
    name: str,
    found: PlannedView,
    relations: Mapping[str, Relation],
    uses: Mapping[str, TableUse],
) -> tuple[PlannedView, Columns]:
    reads = {of: list(relations[of].columns.items()) for of in found.plan.reads}
    return found, output_columns(spark, name, found.sql, reads, uses)


def _check_uses(name: str, uses: Mapping[str, TableUse], relations: Mapping[str, Relation]) -> None:
    """Raise ConfigError for a table of a view's ``from:`` that cannot be read as it says."""
    for table, use in uses.items():
        if table not in relations or table.startswith(f"{VIEW_SCHEMA}."):
            captured = [one for one in relations if not one.startswith(f"{VIEW_SCHEMA}.")]
            raise ConfigError(
                f"views.{name}.from.{table}: it is no captured table",
                hint=did_you_mean(table, captured, "captured are: " + ", ".join(captured)),
            )
        require_times(f"views.{name}.from.{table}", use, relations[table].columns)


def _used(relation: Relation, use: TableUse) -> Relation:
    return Relation(use.relation, {**relation.columns, **dict(use.hidden)}, use.key(tuple(relation.change_columns)))


def _require_histories(
    config: ViewsConfig, versions: Mapping[str, Sequence[Version]], uses: Sequence[TableUse]
) -> None:
    """Raise ConfigError for a table that is read in two ways that need two topics, and for one without a log."""
    histories = {use.table for use in uses if use.way is Way.HISTORY}
    there = existing_topics(config.source, [log_of(versions[table][-1].topic) for table in histories])
    for use in uses:
        if use.table in histories and use.way is not Way.HISTORY:
            msg = f"views: {use.table} is looked up as it was, and read as it is now by another view or part of one"
            raise ConfigError(msg, hint="write these views into a views.yaml of their own, with another name and state")
    for table in sorted(histories):
        topic = log_of(versions[table][-1].topic)
        if topic not in there:
            error = without_log(table, topic)
            msg = f"views: {table} is looked up as it was, which takes its log, topic {topic}: it does not exist"
            raise ConfigError(msg, hint=error.hint)


def _relation(table: TargetTable) -> Relation:
    """Return what SQL may read of a table: the columns that it has now. Those that it had have no new values."""
    now = [c for c in table.columns if any(table.version in numbers for _, numbers in c.versions)]
    return Relation(table.qualified, {column.name: column.kind for column in now}, table.key)


@dataclass(frozen=True, slots=True)
class Changed:
    """What it means for a view that tables are not as they were when it was planned."""

    cannot_read: str | None = None
    """Why it cannot be computed from them any more; None where it can."""
    more: tuple[str, ...] = ()
    """Columns that it would have besides, if it were planned now: its `*` takes them."""


def compare(planned: Planned, view: View, tables: Mapping[str, TargetTable]) -> Changed:
    """Compare a view's plan with tables as they are now."""
    relations, retyped = dict[str, Relation](), dict[str, str]()
    for name, of in tables.items():
        relations[name], how = _unchanged(_relation(of), planned.relations[name])
        retyped |= {column: f"column {column} of {name} is {kind} now" for column, kind in how.items()}
        if how.keys() & set(of.key) and name in {use.table for use in _read_by(planned, view)}:
            return Changed(f"{retyped[min(how.keys() & set(of.key))]}; {_START_AGAIN}")
    for stream in planned.streams.values():
        relations[stream.use.relation] = Relation(stream.use.relation, dict(stream.columns), stream.config.key)
    for table, use in view.uses.items():
        relations[use.relation] = _used(relations[table], use)
    for other in planned.views:
        relations[other.relation] = Relation(other.relation, dict(other.columns), other.plan.key)
    try:
        _check_uses(view.name, view.uses, relations)
        if view.match is not None:
            view.match.check(relations)
            return Changed()
        divided = view.plan.divided
        plan = plan_view(
            view.name, view.sql, view.plan.key, relations, uses=view.uses, divided=divided, engine=planned.engine
        )
    except ConfigError as exc:
        told = [words for column, words in retyped.items() if re.search(rf"\b{re.escape(column)}\b", exc.message)]
        return Changed(f"{told[0]}; {_START_AGAIN}" if told else exc.message)
    was, now = view.last.columns, plan.nodes[-1].columns
    gone = [name for name in was if name not in now]
    if gone:  # of SELECT *
        return Changed(retyped.get(gone[0], f"there is no column {gone[0]} any more") + f"; {_START_AGAIN}")
    return Changed(more=tuple(name for name in now if name not in was))


def _unchanged(now: Relation, planned: Relation) -> tuple[Relation, dict[str, str]]:
    """Return a relation without the columns that have another type than a view was planned with, and their types.

    A narrower one is none: what a view keeps holds its values. A column whose name has changed in its case alone is
    another one, which a plan that reads the old one must not find.
    """
    how = {
        name: spark_type(kind).simpleString()
        for name, kind in now.columns.items()
        if (was := planned.columns.get(name)) is not None and common_kind(was, kind) != was
    }
    was_called = {name.casefold() for name in planned.columns}
    same = {
        name: kind
        for name, kind in now.columns.items()
        if name not in how and (name in planned.columns or name.casefold() not in was_called)
    }
    return replace(now, columns=same), how


def _read_by(planned: Planned, view: View) -> list[TableUse]:
    return [use for use in planned.uses if use.relation in view.plan.reads]


def describe_views(config: ViewsConfig) -> dict[str, object]:
    """Return the stable JSON of ``cdc view plan --json``, changing nothing. Raises what `plan_views` does."""
    planned = plan_views(config, open_session(config.name, config.spark))
    tables = {use.relation: use.table for use in planned.uses}
    return {
        "name": config.name,
        "engine": planned.engine,
        "tables": list(planned.tables),
        "views": {
            view.name: {
                "reads": sorted({tables.get(read, read) for read in view.plan.reads}),
                "key": list(view.plan.key),
                "columns": {name: kind.name for name, kind in view.columns},
                "uses_clock": view.plan.uses_clock,
                "warnings": list(view.plan.warnings),
                "nodes": [
                    {
                        "name": node.name,
                        "reads": sorted({tables.get(read, read) for read in node.reads}),
                        "units": list(node.divided_by),
                        "deadlines": bool(node.due),
                        "stops": [check.what for check in node.checks],
                    }
                    for node in view.plan.nodes
                ],
            }
            for view in planned.views
        },
    }


def in_order(views: Mapping[str, ViewConfig]) -> list[str]:
    """Order views so that each comes after those that it reads. Raises ConfigError for views that read each other."""
    named = {name: relations_named(name, view) for name, view in views.items()}
    reads = {name: {other for other in views if relation_of(other) in tables} for name, tables in named.items()}
    found: list[str] = []
    while len(found) < len(views):
        ready = [name for name in views if name not in found and reads[name] <= set(found)]
        if not ready:
            left = [name for name in views if name not in found]
            msg = f"views: {', '.join(left)} read each other in a circle"
            raise ConfigError(msg, hint="a view may read views that do not, over others, read it")
        found.append(ready[0])
    return found


def _readers(planned: Planned) -> dict[str, list[str]]:
    """Return by relation which views read it; a view's own is of that view."""
    found = {view.relation: [view.name] for view in planned.views}
    for view in planned.views:
        for table in {use.table for use in _read_by(planned, view)}:
            found.setdefault(table, []).append(view.name)
    return dict(sorted(found.items()))


def _require_names_apart(relations: Mapping[str, Relation], read: Mapping[str, Sequence[str]]) -> None:
    """Raise ConfigError for names that the engine takes for one: it does not tell upper from lower case.

    `read` has for each relation the views that read it; a view's own is of that view.
    """
    alike: list[tuple[str, tuple[str, str], Sequence[str]]] = [
        ("tables that views read", pair, [*read[pair[0]], *read[pair[1]]]) for pair in _alike(read)
    ]
    alike += [(f"columns of {of}", pair, views) for of, views in read.items() for pair in _alike(relations[of].columns)]
    for what, (one, other), views in alike:
        msg = f"views {', '.join(sorted({*views}))}: {what} differ in upper and lower case alone: {one}, {other}"
        hint = "rename one, or leave it out by source.columns of the connector; without these views the others go on"
        raise ConfigError(msg, hint=hint)


def _alike(names: Iterable[str]) -> list[tuple[str, str]]:
    pairs = itertools.combinations(sorted(names), 2)
    return [(one, other) for one, other in pairs if one.casefold() == other.casefold()]


def _require_one_connector(versions: Mapping[str, Sequence[Version]], tables: Sequence[str]) -> None:
    if not tables:
        raise ConfigError("views: they read no captured table", hint="name one: SELECT … FROM public.orders")
    of = {versions[table][-1].connector: table for table in tables}
    if len(of) > 1:
        said = ", ".join(f"{table} is of {connector}" for connector, table in sorted(of.items()))
        msg = f"views: their tables are of several connectors, whose positions cannot be compared: {said}"
        raise ConfigError(msg, hint="write a views.yaml for the tables of each connector")
