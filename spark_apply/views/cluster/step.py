"""Takes a state on executors from one position and clock to the next, as `spark_apply.views.embedded.step` does.

What changes in a relation is small as a rule: the driver has it, and ships it with the plans that look it up in the
tables of the lake. So a step of few changes reads each large table once or twice, and writes none of them. Where most
of a relation is touched, its rows never leave the executors but for the events that are published.
"""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import pyarrow as pa
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses
from pyspark.sql import types as T  # noqa: N812 - the same

from spark_apply.spark import names
from spark_apply.spark.failures import spark_failure
from spark_apply.stores.lake.rows import no_rows
from spark_apply.views.cluster.containment import (
    LONGEST_S,
    NUMBER,
    computed,
    is_of_values,
    no_rows_computed_by_the_planner,
    numbered,
    sql_state,
    told_apart,
    within,
)
from spark_apply.views.cluster.folding import fold, moved_on, rows_schema
from spark_apply.views.cluster.kept_rows import MOST_OVER, Change, Kept, opened
from spark_apply.views.cluster.publishing import A_SLICE, SIGN, Differences, differing
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.values import arrow, collected, frame, schema_of, some
from spark_apply.views.cluster.waiting_events import done
from spark_apply.views.embedded import step as in_file
from spark_apply.views.embedded.containment import WHOLE, WHY, Range, Search
from spark_apply.views.embedded.fold import SourceTable
from spark_apply.views.embedded.held import hold, hold_wrong, is_held, is_one_unit, unit_name
from spark_apply.views.embedded.step import ViewError
from spark_apply.views.model.values import engine_type, quoted, text
from spark_apply.views.planning.view import View
from spark_apply.views.sql.expressions.engines.dialects import stand_in
from spark_apply.views.sql.view_plan import Computed, Node, found_by

_CHANGED: Final = ("changed", "before_changed", "after_changed", "both_changed")
_EPOCH: Final = dt.datetime(1970, 1, 1)  # noqa: DTZ001 - the engine's timestamps are in UTC, without a zone


@dataclass(slots=True)
class ClusterStep:
    """One step: events that sort before its limit are folded in."""

    on: Running
    clock_before_ms: int | None
    clock_after_ms: int | None
    stale: Collection[str]
    """Views of which nothing that is kept can be used: everything is computed, and compared with what is published."""
    before: Mapping[str, Kept]
    """Relations as they were before the step, those that are opened."""
    after: dict[str, Kept] = field(default_factory=dict)
    """Those of which the step has written anything, as they are after it."""
    changed: set[str] = field(default_factory=set)
    """Those of which rows differ."""
    whole: set[str] = field(default_factory=set)
    """Relations of which so much has changed that what reads them is computed whole."""
    computed: dict[str, str] = field(default_factory=dict)
    """How views were computed: ``whole``, or by ``units``."""
    late: dict[str, int] = field(default_factory=dict)
    """By relation, how many events of it came too late to count."""
    search: Search = field(default_factory=lambda: Search(longest_s=LONGEST_S))
    """What was found out of units that cannot be computed, also by earlier attempts of this very step."""
    left_out: dict[str, tuple[str, int]] = field(default_factory=dict)
    """By view, why units of it could not be computed, and how many; 0: it has none, and is left out as a whole."""
    _opened: dict[str, Kept] = field(default_factory=dict)
    _changes: dict[str, tuple[Kept, Change]] = field(default_factory=dict)
    """Those that no statement has read yet."""
    _shown: set[str] = field(default_factory=set)

    @property
    def limit(self) -> str:
        """The position that the step goes to."""
        return self.on.limit

    def fold(self, table: SourceTable, *, reload: bool) -> None:
        """Find out what the waiting events before the limit change in a table.

        With `reload` the table's topic was read from its beginning: a row that it does not have is gone.
        """
        kept = self._kept(table.relation, rows_schema(table), table.row_key, null_safe=False)
        folded = fold(self.on, kept, table, clock_ms=self.clock_after_ms, reload=reload)
        if folded.late:
            self.late[table.relation] = folded.late
        if folded.change is not None:
            self._note(kept, folded.change)
        if folded.moved is not None:
            self.after[table.relation] = moved_on(self.on, self.after.get(table.relation, kept), folded.moved)

    def _kept(self, relation: str, schema: T.StructType | None, by: Sequence[str], *, null_safe: bool) -> Kept:
        known = self._opened.get(relation) or self.before.get(relation)
        if known is None or (schema is not None and known.schema != schema) or known.by != tuple(by):
            known = opened(self.on.lake, self.on.state, relation, schema, by, null_safe=null_safe)
            if known is None:
                known = Kept(relation, schema or T.StructType([]), tuple(by), null_safe)
            self._opened[relation] = known
        return known

    def _note(self, kept: Kept, change: Change) -> None:
        """Take over a change, if it is one, and let statements see it."""
        if not change.count and not change.everything:
            return
        relation = kept.relation
        self.changed.add(relation)
        self.after[relation] = kept.after(self.on.spark, self.on.state, change)
        if change.everything or change.count > in_file.MOST_TOUCHED * kept.number:
            self.whole.add(relation)
        self._changes[relation] = kept, change

    def _show_changed(self, relation: str) -> None:
        """Let statements see both sides of a relation, once it is read."""
        kept, change = self._changes.pop(relation)
        keys, rows, old = change.frames(self.on.spark, kept)
        before = kept.frame(self.on.spark)
        self._show("before", relation, before)
        self._show("after", relation, self.after[relation].frame(self.on.spark))
        self._show("both", relation, before.unionByName(rows))
        self._show("changed", relation, keys)
        self._show("before_changed", relation, old)
        self._show("after_changed", relation, rows)
        self._show("both_changed", relation, old.unionByName(rows))

    def _show(self, schema: str, relation: str, rows: DataFrame) -> None:
        name = stand_in(schema, relation)
        rows.createOrReplaceTempView(names.quoted(name))
        self._shown.add(name)

    def _show_unchanged(self, node: Node, relations: Mapping[str, Kept]) -> None:
        for relation in node.reads:
            if relation not in self.changed and stand_in("after", relation) not in self._shown:
                rows = relations[relation].frame(self.on.spark)
                for schema in ("before", "after", "both"):
                    self._show(schema, relation, rows)
                for schema in _CHANGED:
                    self._show(schema, relation, no_rows(self.on.spark, relations[relation].schema))

    def compute(self, view: View) -> None:
        """Compute a view: what changes in it is noted, and its events are in the outbox.

        Raises ViewError, after which the transaction must be rolled back.
        """
        try:
            self._compute(view)
        except (PySparkException, Py4JJavaError) as exc:
            reason = _without_values(exc)
            if reason is None:
                raise  # the executors or the lake, not this view
            raise ViewError(view.name, f"view {view.name}: {reason}") from exc

    def _compute(self, view: View) -> None:
        stale = view.name in self.stale
        whole = is_one_unit(view) and not stale
        again = whole and is_held(self.on.state, view) and any(map(self._is_touched, view.plan.nodes))
        try:
            for node in view.plan.nodes[:-1]:
                if stale or again or self._is_touched(node):
                    self._compute_node(node, stale=stale or again)
            if stale or again or self._is_touched(view.last):
                self._compute_view(view, stale=stale)
        except (PySparkException, Py4JJavaError) as exc:
            if not (whole and is_of_values(exc)):
                raise
            # its nodes before the last may be at different positions now: they are computed again with it
            hold(self.on.state, view, {WHOLE: WHY}, self.limit)
            self.left_out[view.name] = WHY, 0

    def _is_touched(self, node: Node) -> bool:
        return bool(node.due and self.clock_before_ms != self.clock_after_ms) or any(
            relation in self.changed for relation in node.reads
        )

    def _reads(self, node: Node, *, whole: bool) -> None:
        """Let statements see what a node reads."""
        found = {}
        for relation in node.reads:
            if relation in self._changes:
                self._show_changed(relation)
            found[relation] = self._opened.get(relation) or self.before.get(relation) or self._of_state(relation)
        self._show_unchanged(node, found)
        self.on.sized(sum(kept.number for kept in found.values()), whole=whole)

    def _of_state(self, relation: str) -> Kept:
        found = opened(self.on.lake, self.on.state, relation, None, (), null_safe=True)
        made = found or Kept(relation, T.StructType([]), (), null_safe=True)
        self._opened[relation] = made
        return made

    def _units(self, node: Node) -> pa.Table | None:
        """Return the units that may differ; None where there are none."""
        changed = [relation for relation in node.reads if relation in self.changed]
        asked = [
            statement
            for statement in node.touched
            if any(stand_in(schema, of) + "`" in statement for of in changed for schema in _CHANGED)
        ]
        if self.clock_before_ms != self.clock_after_ms:
            asked += node.due
        if not asked:
            return None
        listed = ", ".join(names.quoted(name) for name in node.units)
        union = " UNION ALL ".join(f"SELECT * FROM ({statement})" for statement in asked)
        rows = self.run(f"SELECT DISTINCT * FROM ({union}) AS u({listed})")
        found = collected(rows)
        if not found.num_rows:
            return None
        self._show("units", node.name, frame(self.on.spark, found, rows.schema))
        return found

    def run(self, statement: str) -> DataFrame:
        """Return the rows of a statement of a plan."""
        given = {"clock_before": self.clock_before_ms, "clock_after": self.clock_after_ms}
        clocks = {
            name: str(_EPOCH + dt.timedelta(milliseconds=at_ms or 0))
            for name, at_ms in given.items()
            if f":{name} " in statement
        }
        return self.on.spark.sql(statement, clocks) if clocks else self.on.spark.sql(statement)

    def _require_checked(self, node: Node, *, whole: bool) -> None:
        in_file.require_checked(node, lambda each: not self.run(each).isEmpty(), whole=whole)

    def _rows(self, node: Node, *, whole: bool) -> DataFrame:
        return self.run(node.whole if whole else node.restricted)

    def _is_whole(self, node: Node, *, stale: bool) -> bool:
        return stale or not node.units or any(relation in self.whole for relation in node.reads)

    def _compute_node(self, node: Node, *, stale: bool) -> None:
        whole = self._is_whole(node, stale=stale)
        self._reads(node, whole=whole)
        if not whole and self._units(node) is None:
            return
        self._require_checked(node, whole=whole)
        fresh = self._rows(node, whole=whole)
        schema = _nullable(fresh.schema)
        kept = self._kept(node.name, schema, node.units, null_safe=True)
        if stale:
            kept = replace(kept, base=None, over=None, gone=None, changed=None, number=0)
            self._opened[node.name] = kept
        old = kept.frame(self.on.spark)
        if not whole:
            old = self._in_units(node, old)
        sides = self.on.hold(fresh.withColumn(SIGN, F.lit(1)).unionByName(old.withColumn(SIGN, F.lit(-1))))
        differing = sides.groupBy(*(F.col(names.quoted(f.name)) for f in schema)).agg(F.sum(SIGN).alias(SIGN))
        differing = differing.where(F.col(SIGN) != 0)
        new = sides.where(F.col(SIGN) > 0).drop(SIGN)
        if not node.units:
            if stale or not differing.isEmpty():
                number = new.count()
                small = number <= MOST_OVER
                few = (pa.table({}), collected(new), collected(old)) if small else None
                self._note(kept, Change(number, number, few, None if small else (new, new, old), everything=True))
            return
        units = [F.col(names.quoted(name)) for name in node.units]
        keys = self.on.hold(differing.select(*units).distinct())
        count = keys.count()
        rows = self.on.hold(new.alias("_cdc_b").join(keys.alias("_cdc_c"), kept.same("_cdc_b", "_cdc_c"), "left_semi"))
        gone = self.on.hold(
            sides.where(F.col(SIGN) < 0)
            .drop(SIGN)
            .alias("_cdc_b")
            .join(keys.alias("_cdc_c"), kept.same("_cdc_b", "_cdc_c"), "left_semi")
        )
        more, number = rows.count(), gone.count()
        small = max(count, more, number) <= MOST_OVER
        few = (collected(keys), collected(rows), collected(gone)) if small else None
        many = None if small else (keys, rows, gone)
        self._note(kept, Change(count, more if stale else more - number, few, many, everything=stale))

    def _in_units(self, node: Node, rows: DataFrame, *, null_safe: bool = True) -> DataFrame:
        units = self.on.spark.table(names.quoted(stand_in("units", node.name)))
        same = F.lit(True)  # noqa: FBT003 - a literal column
        for name in node.units:
            row, unit = F.col(f"_cdc_b.{names.quoted(name)}"), F.col(f"_cdc_u.{names.quoted(name)}")
            same &= row.eqNullSafe(unit) if null_safe else row == unit
        return rows.alias("_cdc_b").join(units.alias("_cdc_u"), same, "left_semi")

    def _compute_view(self, view: View, *, stale: bool) -> None:
        node, relation = view.last, view.relation
        whole = self._is_whole(node, stale=stale)
        self._reads(node, whole=whole)
        kept = self._kept(relation, schema_of(view.columns), view.plan.key, null_safe=view.plan.null_keys)
        if stale:
            kept = replace(kept, base=None, over=None, gone=None, changed=None, number=0)
            self._opened[relation] = kept
        old, wrong = kept.frame(self.on.spark), None
        if node.computed is not None:
            self._show("before", relation, old)
            wrong = self._ask(view, node.computed, whole=whole)
        units = None if whole else self._units(node)
        if not whole and units is None:
            return
        self.computed[view.name] = "whole" if whole else "units"
        self._require_checked(node, whole=whole)
        if not whole:
            old = self._in_units(node, old, null_safe=view.plan.null_keys)
        if wrong is not None:
            old = old.alias("_cdc_b").join(F.broadcast(wrong).alias("_cdc_u"), _same(node.held_by), "left_anti")

        def published(fresh: DataFrame, failed: Mapping[str, str]) -> Change:
            rows = differing(view, fresh, old)
            return Differences(self.on, view, kept, rows, units, stale, failed).published()

        if view.name not in self.search.failed:
            try:
                change = published(self._select(view, whole=whole), {})
            except (PySparkException, Py4JJavaError) as exc:
                if not (node.units and is_of_values(exc) and self.search.is_worth_it(view.name, None)):
                    raise
            else:
                self._note(kept, change)
                return
        self._note(kept, published(*self._good(view, units)))

    def _ask(self, view: View, computed: Computed, *, whole: bool) -> DataFrame | None:
        """Have rows found that no SQL gives, in the driver; what is wrong goes into quarantine, and is returned.

        None: nothing is wrong.
        """
        found, held = computed(self._read, self.changed, whole=whole)
        schema, names_of = schema_of(view.columns), view.last.columns
        self._show("work", found_by(view.last.name), frame(self.on.spark, found, some(schema, names_of)))
        hold_wrong(self.on.state, view, held, self.limit)
        of = some(schema, view.last.held_by)
        return frame(self.on.spark, held, of) if held.num_rows else None

    def _read(self, statement: str) -> pa.RecordBatchReader:
        """Return the rows of a statement, so many at a time; they stay with the executors until then."""
        rows = self.on.hold(self.run(statement))
        slices = max(math.ceil(rows.count() / A_SLICE), 1)
        part = F.pmod(F.hash(*map(names.quoted, rows.columns)), F.lit(slices))
        tables = (collected(rows.where(part == number) if slices > 1 else rows) for number in range(slices))
        first = next(tables)
        batches = (batch for table in itertools.chain([first], tables) for batch in table.to_batches(10_000))
        return pa.RecordBatchReader.from_batches(first.schema, batches)

    def _select(self, view: View, *, whole: bool) -> DataFrame:
        """Return a view's rows, by its types."""
        rows = self._rows(view.last, whole=whole)
        return rows.select(
            *(F.col(names.quoted(f.name)).cast(f.dataType).alias(f.name) for f in schema_of(view.columns))
        )

    def _good(self, view: View, units: pa.Table | None) -> tuple[DataFrame, dict[str, str]]:
        """Return the rows of the units that can be computed, and the others by name, and why.

        Without `units`, of all.
        """
        node, state, spark = view.last, self.on.state, self.on.spark
        listed = [F.col(names.quoted(name)) for name in node.units]
        with no_rows_computed_by_the_planner(spark):
            if units is None:
                found = self.run(node.every).select(*listed).distinct()
            else:
                found = spark.table(names.quoted(stand_in("units", node.name))).select(*listed)
            held = self._held(view, found.schema)
            every = self.on.hold(numbered(found, held))
            count = every.count()
        known = (
            0
            if held is None
            else every.alias("_cdc_b").join(held.alias("_cdc_u"), _same(node.units), "left_semi").count()
        )

        def attempt(units: Range) -> None:
            self._show("units", node.name, within(every, units))
            computed(self._select(view, whole=False))

        bad, error = told_apart(self.search, view.name, (count, known), attempt)
        if error is not None:
            raise error
        failed = dict[str, str]()
        if bad:
            with state.registered("failed_units", collected(every.where(F.col(NUMBER).isin(bad)).drop(NUMBER))):
                failed = {unit: WHY for (unit,) in state.rows(f"SELECT {unit_name(view, 'u')} FROM failed_units u")}
            self.left_out[view.name] = WHY, len(bad)
        self._show("units", node.name, every.where(~F.col(NUMBER).isin(bad)).drop(NUMBER))
        return self._select(view, whole=False), failed

    def _held(self, view: View, schema: T.StructType) -> DataFrame | None:
        """Return the units of a view that are in quarantine; None where there are none."""
        kinds = dict(view.columns)
        listed = ", ".join(
            f"CAST(json_extract_string(unit, '$[{number}]') AS {engine_type(kinds[name])}) AS {quoted(name)}"
            for number, name in enumerate(view.last.units)
        )
        found = self.on.state.arrow(f"SELECT {listed} FROM quarantine WHERE view = {text(view.name)}")
        return frame(self.on.spark, arrow(found, schema), schema) if found.num_rows else None

    def apply(self, tables: Sequence[SourceTable], views: Sequence[View]) -> None:
        """Write what has become too much to lie over its snapshot, and let go of what was held for the step."""
        del views
        for relation, kept in self.after.items():
            if kept.worn:
                self.after[relation] = kept.written(self.on.spark, self.on.lake, self.on.state)
            else:
                kept.note(self.on.state, new=False)
        for table in tables:
            done(self.on, table)

    @property
    def relations(self) -> dict[str, Kept]:
        """All that the step has read or changed, as it is after it."""
        return {**{name: kept for name, kept in self._opened.items() if kept.by}, **self.after}

    def end(self) -> None:
        """Let go of what was held for the step."""
        self.on.end()
        for name in self._shown:
            self.on.spark.catalog.dropTempView(name)
        self._shown.clear()


def _same(units: Sequence[str]) -> Column:
    """Return the condition that rows of two aliases have the same unit columns."""
    same = F.lit(True)  # noqa: FBT003 - a literal column
    for name in units:
        same &= F.col(f"_cdc_b.{names.quoted(name)}").eqNullSafe(F.col(f"_cdc_u.{names.quoted(name)}"))
    return same


def _nullable(schema: T.StructType) -> T.StructType:
    return T.StructType([T.StructField(field.name, field.dataType) for field in schema])


def _without_values(exc: Exception) -> str | None:
    """Say what Spark refused of a view's SQL, without the values that its messages hold; None for another failure."""
    if is_of_values(exc):
        return WHY
    return spark_failure(exc) if sql_state(exc).startswith(("42", "0A")) else None
