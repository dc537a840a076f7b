"""Compares views with Spark's batch answer over the tables' topics, at the position and the clock of what is published.

Nothing of the job's state is read: tables are folded from their topics up to the position that the view job has
published, Spark runs the views' SQL over them, a pattern's SQL too, a match is found by an index, and each view's topic
is folded up to the same step. A job that goes on meanwhile does not disturb it, unless compaction removes what it has
replaced: then it is looked at again.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from cdc.config.views import ViewsConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import State
from spark_apply.events.envelope import parse
from spark_apply.events.kafka.offsets import committed_ends
from spark_apply.events.kafka.schema_topic import schema_versions
from spark_apply.events.kafka.stream import read_topic
from spark_apply.events.latest import latest
from spark_apply.events.projected import project
from spark_apply.events.typed import OP
from spark_apply.model.target_table import TargetTable, derived, target
from spark_apply.model.types import spark_type
from spark_apply.spark.names import quoted
from spark_apply.spark.session import open_session
from spark_apply.views.cluster.containment import is_of_values
from spark_apply.views.model.uses import TableUse, Way, followed
from spark_apply.views.planning.definitions import refuse_changed
from spark_apply.views.planning.output_types import spark_text
from spark_apply.views.planning.planned import Planned, plan_views
from spark_apply.views.planning.streams import rows_of
from spark_apply.views.planning.view import View
from spark_apply.views.proof.held_back import WHY, failing, held_back, of_units
from spark_apply.views.proof.reading import as_used
from spark_apply.views.publishing.output import last_position
from spark_apply.views.publishing.status import peeked
from spark_apply.views.search.verified import matched, no_searches

NAMED: Final = 20
"""So many keys of each view are named."""

_TRIES: Final = 3
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - timestamps without a zone, in UTC
_HOW: Final = "_cdc_how"

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Verified:
    """What was found of a view."""

    view: str
    position: str
    rows: int
    """That Spark's answer has."""
    missing: int
    """Rows of the answer that the topic does not have."""
    extra: int
    """Rows of the topic that the answer does not have."""
    different: int
    keys: tuple[tuple[str, str], ...]
    """Of the first ones: what is wrong, and the key as JSON. What is in quarantine is named by its unit, too."""
    failed: str | None = None
    """Why Spark has no answer; then nothing was compared."""
    quarantined: int = 0
    """Units that cannot be published, for a value, or since a key would be null or not unique: not compared."""

    @property
    def agrees(self) -> bool:
        return not (self.missing or self.extra or self.different or self.failed)

    def as_json(self) -> dict[str, object]:
        """Return the stable JSON of ``cdc view verify --json``."""
        return {
            "view": self.view,
            "position": self.position,
            "rows": self.rows,
            "missing": self.missing,
            "extra": self.extra,
            "different": self.different,
            "quarantined": self.quarantined,
            "failed": self.failed,
            "keys": [{"how": how, "key": key} for how, key in self.keys],
        }


def verify_views(config: ViewsConfig, *, only: str | None = None, progress: Progress | None = None) -> list[Verified]:
    """Compare each view, or one. Raises OperatorError before anything is published, ConfigError for a wrong file."""
    tell = progress or (lambda _line: None)
    if only is not None and only not in config.views:
        raise ConfigError(f"views: there is no view {only}", hint=f"views of this file: {', '.join(config.views)}")
    spark = open_session(config.name, config.spark)
    refuse_changed(config, peeked(config))
    return compare_views(config, plan_views(config, spark), config.views if only is None else [only], tell)


def compare_views(
    config: ViewsConfig, planned: Planned, only: Collection[str], tell: Progress, *, rebuilt: bool = False
) -> list[Verified]:
    """Compare what is published of views with what these definitions of them give.

    Units that cannot be published keep the rows that they have; in a view that is to be `rebuilt` they are left out.
    """
    spark = open_session(config.name, config.spark)
    found: list[Verified] = []
    for _ in range(_TRIES):
        state = standing(config)
        found = _Look(config, spark, state, tell, rebuilt).compare(planned, only)
        if all(of.agrees for of in found) or standing(config) == state:
            break
    return found


def standing(config: ViewsConfig) -> State:
    """Return where the view job stands. Raises OperatorError before anything is published."""
    state = peeked(config)
    if state is None:
        msg = f"view job {config.name} has published nothing yet"
        raise OperatorError(msg, hint="run it: cdc view run VIEWS.yaml")
    return state


def needed(views: tuple[View, ...], only: Collection[str]) -> set[str]:
    """Return the relations that are looked at: views, and what they read."""
    found: set[str] = set()
    for view in reversed(views):  # each comes after those that it reads
        if view.name in only or view.relation in found:
            found |= {view.relation, *view.plan.reads}
    return found


@dataclass(frozen=True, slots=True)
class _Look:
    """One comparison, at one state of the view job."""

    config: ViewsConfig
    spark: SparkSession
    state: State
    tell: Progress
    rebuilt: bool

    def compare(self, planned: Planned, only: Collection[str]) -> list[Verified]:
        stand_ins: dict[str, str] = {}
        found = []
        relations = needed(planned.views, only)
        for use in planned.uses:
            if use.relation in relations and use.way is not Way.EVENTS:
                self.tell(f"reading {use.table}")
                has = [*planned.relations[use.table].columns, *(name for name, _ in use.hidden)]  # not what it had once
                self._register(stand_ins, use.relation, self._used(use).select(*(F.col(quoted(name)) for name in has)))
        for stream in planned.streams.values():
            if stream.use.relation in relations:
                self.tell(f"reading {stream.config.topic}")
                events = stream.published(self.spark, self.config.source, self.state)
                self._register(stand_ins, stream.use.relation, rows_of(events, stream))
        clock = _EPOCH + dt.timedelta(milliseconds=self.state.source_ms)
        for view in planned.views:
            if view.relation not in relations:
                continue  # not asked for
            kinds = dict(view.columns)
            answer = self._answer(view, stand_ins, clock)
            answer = answer.select(*(F.col(quoted(n)).cast(spark_type(kinds[n])).alias(n) for n in kinds))
            comes_back = self.rebuilt and view.name in only  # it may have been left out of the file for a while
            if view.relation not in self.state.tables and not comes_back:
                self._register(stand_ins, view.relation, answer)  # new since then: others may be about to read it
                continue
            self.tell(f"comparing {view.name}")
            compared, shown = self._contained(view, answer, self._no_searches(view, stand_ins), asked=view.name in only)
            self._register(stand_ins, view.relation, shown)
            if view.name in only:
                found.append(compared)
        for name in stand_ins.values():
            self.spark.catalog.dropTempView(name)
        return found

    def _answer(self, view: View, stand_ins: Mapping[str, str], clock: dt.datetime) -> DataFrame:
        if view.match is None:
            return self.spark.sql(spark_text(view.sql, stand_ins, clock, view.uses))
        queries, docs = (self.spark.table(stand_ins[of.name]) for of in (view.match.queries, view.match.docs))
        return matched(self.spark, view.match, view.columns, queries, docs)

    def _no_searches(self, view: View, stand_ins: Mapping[str, str]) -> DataFrame | None:
        """Return what of a match is in quarantine because it is no search, and why."""
        if view.match is None:
            return None
        queries = self.spark.table(stand_ins[view.match.queries.name])
        return no_searches(self.spark, view.match, view.columns, queries, WHY)

    def _register(self, stand_ins: dict[str, str], relation: str, rows: DataFrame) -> None:
        stand_ins[relation] = f"_cdc_verified_{len(stand_ins)}"
        rows.createOrReplaceTempView(stand_ins[relation])

    def _used(self, use: TableUse) -> DataFrame:
        """Return the rows that views read of a table, up to the position that is published."""
        limit = str(self.state.offset["position"])
        if use.way is Way.ROWS and not use.arrival:
            return self._rows(use.table, F.col("position") < limit)
        versions = schema_versions(self.config.source)[use.table]
        made = derived(versions, followed(use))
        events = self._events(made).where(F.col("valid") & (F.col("position") < limit))
        rows = project(latest(events, {made.topic: ""}), made)
        return as_used(rows, use, [column.name for column in made.columns], made.key)

    def _rows(self, table: str, before: Column) -> DataFrame:
        """Return a table's newest rows, by the events that meet a condition."""
        made = target(schema_versions(self.config.source)[table], {})
        rows = project(latest(self._events(made).where(F.col("valid") & before)), made).where(F.col(OP) != "d")
        return rows.select(*(F.col(quoted(column.name)) for column in made.columns))

    def _events(self, table: TargetTable) -> DataFrame:
        source = self.config.source
        end = committed_ends(source, table.topic)
        return parse(read_topic(self.spark, source, table.topic, {}, end))

    def _contained(
        self, view: View, answer: DataFrame, wrong: DataFrame | None, *, asked: bool
    ) -> tuple[Verified, DataFrame]:
        """Compare a view, if that is asked for, and return its rows as views that read it see them.

        Units that are known to be `wrong` are in quarantine, and so are those that Spark cannot compute; where it
        cannot compute any, that is told of the view, and the others are compared.
        """
        whole = answer.cache()
        try:
            whole.count()  # a view that reads it may not read what cannot be computed
            return self._told(view, whole, wrong, asked=asked)
        except (PySparkException, Py4JJavaError) as exc:
            failed = self._failed(view, exc)
            whole.unpersist()
            divided = None if (self.rebuilt and asked) or not is_of_values(exc) else failing(view, answer)
        if divided is None:
            return failed, answer
        good, bad = divided
        try:
            return self._told(view, good.cache(), bad, asked=asked)
        except (PySparkException, Py4JJavaError) as exc:
            return self._failed(view, exc), answer

    def _failed(self, view: View, exc: PySparkException | Py4JJavaError) -> Verified:
        """Say why Spark cannot compute a view. Raises what is wrong with Spark itself."""
        if isinstance(exc, PySparkException):
            return self._none(view, f"Spark cannot compute it: {exc.getCondition() or type(exc).__name__}")
        if not is_of_values(exc):
            raise exc
        return self._none(view, "Spark cannot compute it: a function does not take a value")

    def _told(
        self, view: View, answer: DataFrame, failed: DataFrame | None, *, asked: bool
    ) -> tuple[Verified, DataFrame]:
        """Compare rows of a view's answer with its topic, those apart that are of units which failed, or are wrong."""
        held = self._held_back(view, answer)
        if held is not None and failed is not None:
            held = held.unionByName(failed)
        held = failed if held is None else held
        there = self._rows_there(view) if asked or held is not None else answer
        if held is None:
            return (self._compared(view, answer, there) if asked else self._none(view)), answer
        good = of_units(view, answer, held, how="left_anti").cache()
        kept = of_units(view, there, held, how="left_semi")
        others = there if self.rebuilt and asked else of_units(view, there, held, how="left_anti")
        compared = self._compared(view, good, others) if asked else self._none(view)
        found = [(row[0], row[1]) for row in _named(view.held_by, held).collect()]
        keys = compared.keys + tuple(sorted(found)[: NAMED - len(compared.keys)])
        shown = good if self.rebuilt and asked else good.unionByName(kept)
        return replace(compared, quarantined=len(found), keys=keys), shown

    def _none(self, view: View, failed: str | None = None) -> Verified:
        return Verified(view.name, str(self.state.offset["position"]), 0, 0, 0, 0, (), failed)

    def _held_back(self, view: View, answer: DataFrame) -> DataFrame | None:
        """Return the units that are in quarantine, and why; None where there are none."""
        held = held_back(view, answer)
        held = None if held is None else held.cache()
        return None if held is None or held.isEmpty() else held

    def _rows_there(self, view: View) -> DataFrame:
        """Return the rows of a view's topic, up to what is published, with the columns of its definition."""
        commit = Position(self.state.epoch, self.state.commit, 0)
        last = last_position(commit, int(self.state.offset["seq"])).text
        there = self._rows(view.relation, F.col("position") <= last)
        kinds = dict(view.columns)
        new = [name for name in kinds if name not in there.columns]
        there = there.withColumns({name: F.lit(None).cast(spark_type(kinds[name])) for name in new})
        return there.select(*(F.col(quoted(name)) for name in kinds))

    def _compared(self, view: View, answer: DataFrame, there: DataFrame) -> Verified:
        kinds = dict(view.columns)
        versions = schema_versions(self.config.source)[view.relation]
        newest = max(versions, key=lambda version: version.number)
        reshaped = [name for name, _ in newest.columns] != list(kinds)
        key = [name for name, _ in view.key]
        same = F.lit(True)  # noqa: FBT003 - a literal column
        for name in key:
            same &= F.col(f"a.{quoted(name)}").eqNullSafe(F.col(f"t.{quoted(name)}"))
        equal = F.lit(not reshaped)  # a row of other columns is another row
        for name in kinds:
            equal &= F.col(f"a.{quoted(name)}").eqNullSafe(F.col(f"t.{quoted(name)}"))
        joined = (
            answer.withColumn("_cdc_a", F.lit(1))
            .alias("a")
            .join(there.withColumn("_cdc_t", F.lit(1)).alias("t"), same, "full_outer")
        )
        how = (
            F.when(F.col("_cdc_t").isNull(), "missing")
            .when(F.col("_cdc_a").isNull(), "extra")
            .when(~equal, "different")
        )
        named = _json(F.coalesce(F.col(f"a.{quoted(n)}"), F.col(f"t.{quoted(n)}")).alias(n) for n in key)
        wrong = joined.select(how.alias(_HOW), named.alias("key")).where(F.col(_HOW).isNotNull()).cache()
        counts = {row[_HOW]: row["count"] for row in wrong.groupBy(_HOW).count().collect()}
        keys = tuple((row[_HOW], row["key"]) for row in wrong.orderBy(_HOW, "key").limit(NAMED).collect())
        rows = answer.count()
        wrong.unpersist()
        missing, extra, different = (int(counts.get(name, 0)) for name in ("missing", "extra", "different"))
        return Verified(view.name, str(self.state.offset["position"]), rows, missing, extra, different, keys)


def _json(columns: Iterable[Column]) -> Column:
    return F.to_json(F.struct(*columns), {"ignoreNullFields": "false"})


def _named(units: Sequence[str], held: DataFrame) -> DataFrame:
    """Return why units are in quarantine, and their names."""
    name = _json(F.col(quoted(unit)) for unit in units) if units else F.lit("{}")
    return held.select(F.col(WHY), name)
