"""From what differs in a view to its events in the outbox, and the units that cannot be published to the quarantine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the name everyone uses

from spark_apply.spark import names
from spark_apply.views.cluster.kept_rows import MOST_OVER, Change, Kept
from spark_apply.views.cluster.step_parts import Running
from spark_apply.views.cluster.values import arrow, collected, frame, json_object, schema_of, some
from spark_apply.views.embedded.held import hold, is_held, unit_name
from spark_apply.views.embedded.state import place
from spark_apply.views.embedded.step import order_of
from spark_apply.views.model.values import quoted, text
from spark_apply.views.planning.view import View

SIGN: Final = "_cdc_sign"
KEY_JSON, ROW_JSON = "_cdc_key", "_cdc_row"
A_SLICE: Final = 250_000
"""So many rows come to the driver at once."""
_HERE: Final = "differing"
_KEPT: Final = place("work", "differing")


@dataclass(slots=True)
class Differences:
    """The rows of a view that differ: with their sign (less than 0: it was there before), and key and row as JSON."""

    on: Running
    view: View
    kept: Kept
    rows: DataFrame
    units: pa.Table | None
    """Those that were recomputed; None: all."""
    stale: bool
    failed: Mapping[str, str]
    """By name, the units that cannot be computed, and why: of them `rows` has what was there alone."""

    def published(self) -> Change:
        """Write the events, and return the change."""
        state = self.on.state
        if self.units is not None:
            return self._few(collected(self.rows))
        self.on.hold(self.rows)
        number = self.rows.count()
        if number <= MOST_OVER:
            return self._few(collected(self.rows))
        wanted = [SIGN, *(name for name, _ in self.view.key), KEY_JSON, ROW_JSON]
        slices = math.ceil(number / A_SLICE)
        for number in range(slices):
            some_rows = self.rows.where(F.pmod(F.hash(KEY_JSON), F.lit(slices)) == number)
            with state.registered(_HERE, some_rows.select(*map(names.quoted, wanted)).toArrow()):
                made = f"INSERT INTO {_KEPT}" if number else f"CREATE OR REPLACE TABLE {_KEPT} AS"
                state.execute(f"{made} SELECT * FROM {_HERE}")
        if self._quarantined(_KEPT):
            self._leave_out(_KEPT)
        self._publish(_KEPT)
        ((count, plus, minus),) = state.rows(
            f"SELECT count(DISTINCT {KEY_JSON}), count(*) FILTER (WHERE {SIGN} > 0), "
            f"count(*) FILTER (WHERE {SIGN} < 0) FROM {_KEPT}"
        )
        state.execute(f"DROP TABLE {_KEPT}")
        columns = [F.col(names.quoted(name)) for name, _ in self.view.columns]
        keys = self.rows.select(*(F.col(names.quoted(name)) for name, _ in self.view.key)).distinct()
        rows = self.rows.where(F.col(SIGN) > 0).select(*columns)
        old = self.rows.where(F.col(SIGN) < 0).select(*columns)
        more = plus if self.stale else plus - minus
        return Change(count, more, None, (keys, rows, old), everything=self.stale)

    def _few(self, found: pa.Table) -> Change:
        """The same, with all that differs at hand."""
        state, schema = self.on.state, schema_of(self.view.columns)
        key = some(schema, [name for name, _ in self.view.key])
        keys, listed = (", ".join(quoted(name) for name, _ in of) for of in (self.view.key, self.view.columns))
        with state.registered(_HERE, found):
            bad = self._quarantined(_HERE)
            if bad:
                good = f"SELECT * FROM {_HERE} d WHERE {unit_name(self.view, 'd')} NOT IN ({self._bad})"
                found = state.arrow(good)
        with state.registered(_HERE, found):
            self._publish(_HERE)
            changed = state.arrow(f"SELECT DISTINCT {keys} FROM {_HERE}")
            rows, old = (state.arrow(f"SELECT {listed} FROM {_HERE} WHERE {SIGN} {s} 0") for s in "><")
        more = rows.num_rows - (0 if self.stale else old.num_rows)
        few = tuple(arrow(of, shape) for of, shape in ((changed, key), (rows, schema), (old, schema)))
        return Change(changed.num_rows, more, (few[0], few[1], few[2]), everything=self.stale)

    @property
    def _bad(self) -> str:
        return f"SELECT unit FROM quarantine WHERE view = {text(self.view.name)}"

    def _quarantined(self, at: str) -> bool:
        """Put units into quarantine of which a key is null or not unique, or that failed; return if there are any."""
        state, view = self.on.state, self.view
        if view.last.computed is not None:
            return False  # of its rows none is wrong, and what has none for that is known
        unit = unit_name(view, "d")
        nulls = "false" if view.plan.null_keys else " OR ".join(f"d.{quoted(name)} IS NULL" for name, _ in view.key)
        twice = (
            f"SELECT any_value({unit}) AS unit, 'the key is not unique' FROM {at} d WHERE {SIGN} > 0 "
            f"GROUP BY {KEY_JSON} HAVING sum({SIGN}) > 1"
        )
        found = state.rows(
            f"SELECT DISTINCT {unit} AS unit, 'a column of the key is null' FROM {at} d WHERE {SIGN} > 0 AND ({nulls}) "
            f"UNION ALL {twice}"
        )
        found += [(name, "the key is not unique") for name in self._there_already(at)]
        recomputed = ""
        if self.units is not None:
            state.execute("CREATE OR REPLACE TABLE work.recomputed (unit VARCHAR)")
            with state.registered("units_now", self.units):
                state.execute(f"INSERT INTO work.recomputed SELECT {unit_name(view, 'u')} FROM units_now u")
            recomputed = " AND unit IN (SELECT unit FROM work.recomputed)"
        hold(state, view, {**dict(found), **self.failed}, self.on.limit, of=recomputed)
        return is_held(state, view)

    def _there_already(self, at: str) -> list[str]:
        """Return the units with a key that comes beside a row that stays as it is: two rows would have it."""
        if self.view.plan.unique_key or self.stale:
            return []
        state, spark = self.on.state, self.on.spark
        keys = ", ".join(quoted(name) for name, _ in self.view.key)
        new = state.arrow(
            f"SELECT {keys} FROM {at} WHERE {KEY_JSON} NOT IN (SELECT {KEY_JSON} FROM {at} WHERE {SIGN} < 0)"
        )
        if not new.num_rows:
            return []
        schema = some(self.kept.schema, [name for name, _ in self.view.key])
        there = self.kept.frame(spark).alias("_cdc_b")
        there = there.join(frame(spark, new, schema).alias("_cdc_c"), self.kept.same("_cdc_b", "_cdc_c"), "left_semi")
        found = collected(there.select(*(F.col(names.quoted(name)) for name in schema.names)))
        with state.registered("there_already", found):
            return [name for (name,) in state.rows(f"SELECT DISTINCT {unit_name(self.view, 't')} FROM there_already t")]

    def _leave_out(self, at: str) -> None:
        """Leave the units in quarantine as they were."""
        state, view = self.on.state, self.view
        unit = f"{unit_name(view, 'd')} IN ({self._bad})"
        listed = ", ".join(quoted(name) for name in view.last.units) or "true AS everything"
        bad = state.arrow(f"SELECT DISTINCT {listed} FROM {at} d WHERE {unit}")
        state.execute(f"DELETE FROM {at} d WHERE {unit}")
        if not view.last.units:
            self.rows = self.rows.limit(0)
            return
        units = frame(self.on.spark, bad, some(schema_of(view.columns), view.last.units))
        same = F.lit(True)  # noqa: FBT003 - a literal column
        for name in view.last.units:
            same &= F.col(f"_cdc_d.{names.quoted(name)}").eqNullSafe(F.col(f"_cdc_u.{names.quoted(name)}"))
        self.rows = self.rows.alias("_cdc_d").join(units.alias("_cdc_u"), same, "left_anti")

    def _publish(self, at: str) -> None:
        """Add the events to the outbox, in the `order_of` their keys."""
        state, name, order = self.on.state, text(self.view.name), order_of(stale=self.stale)
        ((seq,),) = state.rows(
            "SELECT coalesce(max(seq), (SELECT CAST(value AS BIGINT) FROM meta WHERE name = 'seq')) FROM outbox"
        )
        old = f"SELECT {KEY_JSON} AS key, {ROW_JSON} AS row FROM {at} WHERE {SIGN} < 0"
        if self.stale:
            old = f"SELECT key, row FROM {place('work', 'published')} WHERE view = {name}"
        state.execute(
            f"INSERT INTO outbox SELECT {seq} + row_number() OVER (ORDER BY {order}), {name}, "
            "CASE WHEN after IS NULL THEN 'd' WHEN before IS NULL THEN 'c' ELSE 'u' END, key, before, after FROM ("
            f"SELECT coalesce(o.key, n.key) AS key, o.row AS before, n.row AS after FROM ({old}) o FULL JOIN "
            f"(SELECT {KEY_JSON} AS key, {ROW_JSON} AS row FROM {at} WHERE {SIGN} > 0) n ON n.key = o.key "
            "WHERE o.row IS DISTINCT FROM n.row)"
        )


def differing(view: View, fresh: DataFrame, old: DataFrame) -> DataFrame:
    """Return the rows that differ, with their sign, and key and row as JSON."""
    columns = [F.col(names.quoted(name)) for name, _ in view.columns]
    return (
        fresh.withColumn(SIGN, F.lit(1))
        .unionByName(old.withColumn(SIGN, F.lit(-1)))
        .groupBy(*columns)
        .agg(F.sum(SIGN).alias(SIGN))
        .where(F.col(SIGN) != 0)
        .select(
            F.col(SIGN),
            *columns,
            json_object(view.key).alias(KEY_JSON),
            json_object(view.columns).alias(ROW_JSON),
        )
    )
